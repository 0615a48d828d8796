//! Errors of storing.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::io::Errno;
use thiserror::Error;

/// Why nothing can be stored at a path.
#[derive(Debug, Error)]
pub enum OutputError {
    /// Something other than a directory has the name.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The path in question.
        path: PathBuf,
    },
    /// Permissions or a read-only file system.
    #[error("{} is not writable: {source}", path.display())]
    NotWritable {
        /// The path in question.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// No space or quota left.
    #[error("no space left for {}: {source}", path.display())]
    Full {
        /// The path in question.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// Files of this size are forbidden by the resource limit.
    #[error("{}: {source} (remedy: ulimit -f unlimited)", path.display())]
    TooLarge {
        /// The path in question.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A run id or hostname that cannot be the name of a directory.
    #[error("{name:?} cannot be the name of a directory")]
    Name {
        /// The name in question.
        name: String,
    },
    /// The run directory belongs to another user.
    #[error("{} belongs to uid {uid}: choose another --run-id or --out", path.display())]
    Foreign {
        /// The path in question.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// Anything else.
    #[error("{}: {source}", path.display())]
    Other {
        /// The path in question.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl OutputError {
    /// Classifies an error of the kernel.
    pub fn new(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match Errno::from_io_error(&source) {
            Some(Errno::NOTDIR | Errno::LOOP) => Self::NotADirectory { path },
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Self::NotWritable { path, source },
            Some(Errno::FBIG) => Self::TooLarge { path, source },
            _ if is_full(&source) => Self::Full { path, source },
            _ => Self::Other { path, source },
        }
    }
}

/// Whether the error means that no space or quota is left.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOSPC | Errno::DQUOT)
    )
}

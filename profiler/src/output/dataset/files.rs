//! Directories and files that are whole or not there: modes, ownership, atomic replacement.
//!
//! Below the run directory everything is opened relative to its directory and without following links, so that a
//! profiler running as root writes nowhere else, whoever owns the directory.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Uid},
    io::Errno,
};
use thiserror::Error;

/// Mode of new files, before the umask.
const FILE_MODE: u32 = 0o640;
/// Mode of new directories, before the umask.
const FOLDER_MODE: u32 = 0o750;
/// A disk that cannot take this much (bytes) is called full at start.
const PROBE_BYTES: usize = 16 * 1024;

/// Who owns what is created: `(uid, gid)`; `None` leaves it to the kernel.
pub type Owner = Option<(u32, u32)>;

/// Why nothing can be stored at a place.
#[derive(Debug, Error)]
pub enum OutputError {
    /// Something else has the name of the directory.
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
        /// What the kernel said.
        source: io::Error,
    },
    /// No space or quota left.
    #[error("no space left for {}: {source}", path.display())]
    Full {
        /// The path in question.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A run id or hostname that cannot be the name of a directory.
    #[error("{name:?} cannot be the name of a directory")]
    Name {
        /// The name in question.
        name: String,
    },
    /// A run directory that somebody else has made.
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
        /// What the kernel said.
        source: io::Error,
    },
}

impl OutputError {
    /// What `source` means for `path`.
    pub(super) fn new(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match Errno::from_io_error(&source) {
            Some(Errno::NOTDIR | Errno::LOOP) => Self::NotADirectory { path },
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Self::NotWritable { path, source },
            _ if is_full(&source) => Self::Full { path, source },
            _ => Self::Other { path, source },
        }
    }
}

/// Whether `error` says that there is no space (or quota) left.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOSPC | Errno::DQUOT)
    )
}

/// Whether `name` is one plain component of a path.
pub fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(components.next(), Some(Component::Normal(only)) if only == name)
        && components.next().is_none()
        && !name.contains('\0')
}

/// Name of the directory of `hostname` in every table: a Hive partition.
pub fn host_directory(hostname: &str) -> String {
    format!("host={hostname}")
}

/// The host that a directory of a table belongs to.
pub fn host_of_directory(name: &str) -> Option<&str> {
    name.strip_prefix("host=")
}

/// Whether `name` is that of a file that was being written.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.strip_suffix(".tmp").is_some()
}

/// An open directory; the files in it are named relative to it.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    owner: Owner,
}

impl Directory {
    /// Opens an existing directory. What is created in it will belong to `owner`.
    pub fn open(path: &Path, owner: Owner) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            fd: rustix::fs::openat(CWD, path, flags, Mode::empty())?,
            path: path.to_owned(),
            owner,
        })
    }

    /// Opens the directory of a run, which must not be a link: whoever may write beside it could lead it elsewhere.
    pub fn open_run(path: &Path, owner: Owner) -> io::Result<Self> {
        match path.file_name() {
            Some(name) => Self::open(above(path), owner)?.sub(name),
            None => Self::open(path, owner),
        }
    }

    /// Opens a directory inside this one.
    pub fn sub(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let name = name.as_ref();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(Self {
            fd: rustix::fs::openat(&self.fd, name, flags, Mode::empty())?,
            path: self.path.join(name),
            owner: self.owner,
        })
    }

    /// Opens a directory inside this one and makes it first where it is missing.
    pub fn make(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        Ok(self.make_or_open(name.as_ref())?.0)
    }

    /// The same, and whether it was made.
    fn make_or_open(&self, name: &OsStr) -> io::Result<(Self, bool)> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(FOLDER_MODE)) {
            Ok(()) => {
                let made = self.sub(name)?;
                give_to(&made.fd, self.owner);
                self.sync()?;
                Ok((made, true))
            }
            Err(Errno::EXIST) => Ok((self.sub(name)?, false)),
            Err(error) => Err(error.into()),
        }
    }

    /// The same directory; what is created in it will belong to `owner`.
    #[must_use]
    pub fn owned(self, owner: Owner) -> Self {
        Self { owner, ..self }
    }

    /// User and group that own the directory.
    pub fn owned_by(&self) -> io::Result<(u32, u32)> {
        let stat = rustix::fs::fstat(&self.fd)?;
        Ok((stat.st_uid, stat.st_gid))
    }

    /// Where the directory was when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a file that must not exist; writes go to its end.
    pub fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::APPEND
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(FILE_MODE))?;
        give_to(&fd, self.owner);
        Ok(fd.into())
    }

    /// When something of this name was last written, s since 1970 by the clock of the file system.
    pub fn modified(&self, name: &str) -> io::Result<i64> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(stat.st_mtime)
    }

    /// The time by the clock of the file system, which may be another machine's, s since 1970.
    pub fn now(&self) -> io::Result<i64> {
        let name = format!(".now.{}.{}.tmp", std::process::id(), thread_id());
        let written = self
            .write_synced(&name, b"x")
            .and_then(|()| self.modified(&name));
        self.remove(&name)?;
        written
    }

    /// Opens an existing file for reading. It may have been replaced by anything: no pipe is waited for.
    pub fn read(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty());
        let file = File::from(fd.map_err(|error| match error {
            Errno::LOOP => io::Error::other("a link"),
            error => error.into(),
        })?);
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(io::Error::other("not a regular file"))
        }
    }

    /// Names of everything in the directory that is valid UTF-8, sorted.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            if let Ok(name) = entry?.file_name().to_str()
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Whether there is anything of this name.
    pub fn has(&self, name: &str) -> io::Result<bool> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a file; one that is not there is no error.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives a file a new name, which must be free.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        match rustix::fs::renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            // Not every file system can do it in one step (NFS).
            Err(Errno::INVAL | Errno::NOSYS) => self.rename_by_link(from, to),
            result => Ok(result?),
        }
    }

    /// A second name, which every file system refuses if it is taken, and then the first one is removed.
    fn rename_by_link(&self, from: &str, to: &str) -> io::Result<()> {
        match rustix::fs::linkat(&self.fd, from, &self.fd, to, AtFlags::empty()) {
            Ok(()) => {}
            // A file server whose first answer was lost says that its own doing is in the way.
            Err(Errno::EXIST) if self.is_same(from, to)? => {}
            Err(Errno::EXIST) => return Err(Errno::EXIST.into()),
            // No second names here: nothing better is left than to look first.
            Err(_) if self.has(to)? => return Err(Errno::EXIST.into()),
            Err(_) => return Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?),
        }
        self.remove(from)
    }

    fn is_same(&self, one: &str, other: &str) -> io::Result<bool> {
        let file = |name| {
            let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok::<_, io::Error>((stat.st_dev, stat.st_ino))
        };
        Ok(file(one)? == file(other)?)
    }

    /// Whether the directory was removed, or its file system is gone.
    pub fn is_gone(&self) -> bool {
        !matches!(rustix::fs::fstat(&self.fd), Ok(stat) if stat.st_nlink > 0)
    }

    /// Makes what happened to names in the directory durable.
    pub fn sync(&self) -> io::Result<()> {
        match rustix::fs::fsync(&self.fd) {
            // Some network file systems have no fsync of directories.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Stores `bytes` under a free name: a temporary file, synced, renamed, the directory synced. On an error
    /// nothing is left behind.
    pub fn write_new(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.store_new(&format!(".{name}.tmp"), name, bytes)
    }

    /// The same in a directory in which several hosts write; `writer` keeps their temporary files apart.
    pub fn write_new_among(&self, name: &str, writer: &str, bytes: &[u8]) -> io::Result<()> {
        self.store_new(&format!(".{name}.{writer}.tmp"), name, bytes)
    }

    fn store_new(&self, temporary: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
        let stored = self
            .write_synced(temporary, bytes)
            .and_then(|()| self.rename(temporary, name));
        self.end_write(temporary, stored)
    }

    /// Like [`Directory::write_new`], but takes the place of a file that has the name. `writer` keeps the temporary
    /// files of several hosts apart.
    pub fn replace(&self, name: &str, writer: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = format!(".{name}.{writer}.tmp");
        let stored = self
            .write_synced(&temporary, bytes)
            .and_then(|()| Ok(rustix::fs::renameat(&self.fd, &*temporary, &self.fd, name)?));
        self.end_write(&temporary, stored)
    }

    fn write_synced(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.remove(name)?;
        let mut file = self.create(name)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn end_write(&self, temporary: &str, stored: io::Result<()>) -> io::Result<()> {
        if stored.is_err() {
            // The error that matters is the first one.
            let _ = self.remove(temporary);
            return stored;
        }
        self.sync()
    }
}

/// Ownership is a convenience: a file system that refuses it (`root_squash`) still gets the data.
fn give_to(fd: impl AsFd, owner: Owner) {
    if let Some((uid, gid)) = owner {
        let _ = rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    }
}

/// Makes the directory of a run with its parents and checks that it can be written. What was made is removed
/// again on an error.
///
/// # Errors
///
/// When it cannot be made, is something else, cannot be written, or the disk is full.
pub fn create_run_dir(path: &Path, owner: Owner) -> Result<Directory, OutputError> {
    let mut made = Vec::new();
    let result = create_and_probe(path, owner, &mut made);
    if result.is_err() {
        for (directory, name) in made.iter().rev() {
            let _ = rustix::fs::unlinkat(&directory.fd, name, AtFlags::REMOVEDIR);
        }
    }
    result
}

/// The directory in which `path` is.
fn above(path: &Path) -> &Path {
    let above = path.parent().unwrap_or(path);
    if above.as_os_str().is_empty() {
        Path::new(".")
    } else {
        above
    }
}

/// Each directory is made and opened in the one above it, which stays open. What was there before is the user's to name, by
/// links too; but not the directory of the run itself.
fn create_and_probe(
    path: &Path,
    owner: Owner,
    made: &mut Vec<(Directory, OsString)>,
) -> Result<Directory, OutputError> {
    let Some(name) = path.file_name() else {
        let directory = Directory::open(path, owner).map_err(|e| OutputError::new(path, e))?;
        return probe(&directory).map(|_| directory);
    };
    let there = above(path)
        .ancestors()
        .find(|ancestor| !ancestor.as_os_str().is_empty() && ancestor.exists())
        .unwrap_or(Path::new("."));
    let mut directory = Directory::open(there, owner).map_err(|e| OutputError::new(path, e))?;
    let missing = above(path).strip_prefix(there).unwrap_or(above(path));
    let mut make = |directory: Directory, name: &OsStr| {
        let (below, is_new) = directory
            .make_or_open(name)
            .map_err(|error| OutputError::new(&directory.path.join(name), error))?;
        let owners = directory.owned_by();
        if is_new {
            made.push((directory, name.to_owned()));
        }
        Ok::<_, OutputError>((below, is_new, owners))
    };
    for name in missing.iter().filter(|name| *name != ".") {
        directory = make(directory, name)?.0;
    }
    let (run, is_new, owner_above) = make(directory, name)?;
    let error = |error| OutputError::new(path, error);
    // A file server may call us by another name.
    let ours_here = probe(&run)?;
    let (uid, _) = run.owned_by().map_err(error)?;
    let is_trusted = is_new
        || uid == rustix::process::geteuid().as_raw()
        || owner.is_some_and(|(owner, _)| owner == uid)
        || uid == ours_here
        || owner_above.map_err(error)?.0 == uid;
    if is_trusted {
        Ok(run)
    } else {
        Err(OutputError::Foreign {
            path: path.to_owned(),
            uid,
        })
    }
}

/// Checks that a directory can be written; returns the uid that files get in it.
fn probe(directory: &Directory) -> Result<u32, OutputError> {
    // Processes of other hosts, which may have our id, try the same at the same time.
    let node = rustix::system::uname();
    let node = node.nodename().to_string_lossy().replace('/', "_");
    let name = format!(".probe.{node}.{}.{}.tmp", std::process::id(), thread_id());
    let written = directory.write_synced(&name, &[0; PROBE_BYTES]);
    let found = rustix::fs::statat(&directory.fd, &*name, AtFlags::SYMLINK_NOFOLLOW);
    let removed = directory.remove(&name);
    written
        .and(removed)
        .and_then(|()| Ok(found?.st_uid))
        .map_err(|error| OutputError::new(&directory.path, error))
}

fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use tempfile::TempDir;

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_run_directory_is_made_with_its_parents() {
        let out = TempDir::new().unwrap();
        let path = out.path().join("a/b");
        let directory = create_run_dir(&path, None).unwrap();
        assert!(directory.names().unwrap().is_empty());
        assert_eq!(mode(&path) & !0o750, 0);
        // Once more is no error: several hosts share one.
        create_run_dir(&path, None).unwrap();
        directory.write_new("x", b"1").unwrap();
        assert_eq!(mode(&path.join("x")) & !0o640, 0);
        assert_eq!(
            directory.write_new("x", b"2").unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        directory.replace("x", "host", b"3").unwrap();
        assert_eq!(std::fs::read(path.join("x")).unwrap(), b"3");
        assert_eq!(directory.names().unwrap(), ["x"]);
    }

    #[test]
    fn what_cannot_be_a_run_directory_is_said() {
        let out = TempDir::new().unwrap();
        let file = out.path().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("run")] {
            let error = create_run_dir(&path, None).unwrap_err();
            assert!(
                matches!(error, OutputError::NotADirectory { .. }),
                "{error}"
            );
        }
        let error = create_run_dir(Path::new("/proc/nothing/here"), None).unwrap_err();
        assert!(error.to_string().contains("/proc/nothing"), "{error}");
    }

    #[test]
    fn what_is_created_belongs_to_the_owner() {
        let out = TempDir::new().unwrap();
        let metadata = out.path().metadata().unwrap();
        // Anyone may give a file to themselves, only root to others.
        let owner = if metadata.uid() == 0 {
            (12345, 54321)
        } else {
            (metadata.uid(), metadata.gid())
        };
        let path = out.path().join("out/run");
        let directory = create_run_dir(&path, Some(owner)).unwrap();
        directory
            .make("table")
            .unwrap()
            .write_new("part", b"")
            .unwrap();
        for below in ["", "..", "table", "table/part"] {
            let metadata = path.join(below).metadata().unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), owner, "{below}");
        }
    }

    #[test]
    fn links_are_not_followed() {
        let out = TempDir::new().unwrap();
        let elsewhere = TempDir::new().unwrap();
        let directory = create_run_dir(&out.path().join("run"), None).unwrap();
        symlink(elsewhere.path(), directory.path().join("table")).unwrap();
        assert!(directory.make("table").is_err());
        symlink(
            elsewhere.path().join("x"),
            directory.path().join(".part.tmp"),
        )
        .unwrap();
        directory.write_new("part", b"1").unwrap();
        assert_eq!(elsewhere.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_name_that_is_taken_stays_whose_it_is() {
        let out = TempDir::new().unwrap();
        let directory = create_run_dir(out.path(), None).unwrap();
        let taken = |result: io::Result<()>| result.unwrap_err().kind();
        for (name, rename) in [
            ("a", Directory::rename as fn(&Directory, &str, &str) -> _),
            ("b", Directory::rename_by_link),
        ] {
            directory.write_new("new", b"1").unwrap();
            rename(&directory, "new", name).unwrap();
            directory.write_new("new", b"2").unwrap();
            let refused = taken(rename(&directory, "new", name));
            assert_eq!(refused, io::ErrorKind::AlreadyExists, "{name}");
            assert_eq!(std::fs::read(out.path().join(name)).unwrap(), b"1");
            directory.remove("new").unwrap();
        }
        // The answer to a first try was lost.
        directory.write_new("new", b"3").unwrap();
        std::fs::hard_link(out.path().join("new"), out.path().join("c")).unwrap();
        directory.rename_by_link("new", "c").unwrap();
        assert_eq!(directory.names().unwrap(), ["a", "b", "c"]);
    }

    /// What each of many writes is whole, and only one of them was the first.
    #[test]
    fn many_writers_do_not_disturb_each_other() {
        let out = TempDir::new().unwrap();
        let path = out.path().join("runs/run");
        let begin = std::sync::Barrier::new(16);
        let firsts: usize = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..16)
                .map(|number| {
                    let (path, begin) = (&path, &begin);
                    scope.spawn(move || {
                        begin.wait();
                        let directory = create_run_dir(path, None).unwrap();
                        let writer = format!("node{number}");
                        let bytes = writer.repeat(50_000);
                        let first = directory.write_new_among("once", &writer, bytes.as_bytes());
                        for _ in 0..5 {
                            directory
                                .replace("often", &writer, bytes.as_bytes())
                                .unwrap();
                        }
                        usize::from(first.is_ok())
                    })
                })
                .collect();
            writers
                .into_iter()
                .map(|writer| writer.join().unwrap())
                .sum()
        });
        assert_eq!(firsts, 1);
        let directory = Directory::open(&path, None).unwrap();
        assert_eq!(directory.names().unwrap(), ["often", "once"]);
        for name in ["often", "once"] {
            let text = std::fs::read_to_string(path.join(name)).unwrap();
            let end = 4 + text[4..].find('n').unwrap();
            assert_eq!(text, text[..end].repeat(50_000), "{name} is whole");
        }
    }

    #[test]
    fn names_of_directories() {
        for name in ["node1", "a.b-c", "2026-01-01T00"] {
            assert!(is_plain_name(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "/", "a/", "a\0"] {
            assert!(!is_plain_name(name), "{name:?}");
        }
    }
}

//! Opening of files where a user can have placed anything: a pipe that nobody writes to, a link to
//! the file of another user, a device.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::AsFd,
    path::Path,
};

use rustix::{
    fs::{CWD, Mode, OFlags},
    io::Errno,
};

/// Length limit of a text, in bytes.
const LONGEST: u64 = 16 << 20;

/// Whether the file itself may be a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// The user who starts the profiler names the file.
    Followed,
    /// Only its directory is chosen.
    Refused,
}

/// Opens a regular file for reading.
///
/// # Errors
///
/// When it cannot be opened, is a link that is refused, or no regular file.
pub fn open(path: &Path, links: Links) -> io::Result<File> {
    let flags = match links {
        Links::Followed => OFlags::empty(),
        Links::Refused => OFlags::NOFOLLOW,
    };
    open_at(CWD, path, OFlags::RDONLY | flags, Mode::empty())
}

/// Opens a regular file with these flags, `path` being relative to a directory. Does not wait for
/// the other end of a pipe.
///
/// # Errors
///
/// As [`open`].
pub fn open_at(
    directory: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
    mode: Mode,
) -> io::Result<File> {
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(directory, path.as_ref(), flags, mode);
    let file = File::from(opened.map_err(|error| match error {
        Errno::LOOP => io::Error::other("a link"),
        // A socket, or a pipe that nobody reads.
        Errno::NXIO => not_regular(),
        error => error.into(),
    })?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(not_regular())
    }
}

/// The text of a file of at most 16 MiB.
///
/// # Errors
///
/// As [`open`], and when the file is larger, or not UTF-8.
pub fn read_to_string(path: &Path, links: Links) -> io::Result<String> {
    let mut text = String::new();
    open(path, links)?
        .take(LONGEST + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        return Err(io::Error::other("larger than 16 MiB"));
    }
    Ok(text)
}

fn not_regular() -> io::Error {
    io::Error::other("not a regular file")
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use rustix::fs::{FileType, mknodat};

    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name| directory.path().join(name);
        std::fs::write(path("file"), "text").expect("written");
        symlink("file", path("link")).expect("a link");
        mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
        let _listener = UnixListener::bind(path("socket")).expect("a socket");
        let read = |name, links| read_to_string(&path(name), links);
        for links in [Links::Followed, Links::Refused] {
            assert_eq!(read("file", links).expect("regular"), "text");
            for other in ["pipe", "socket", "."] {
                let error = read(other, links).expect_err("not a file").to_string();
                assert_eq!(error, "not a regular file", "{other}");
            }
            let missing = read("none", links).expect_err("none").kind();
            assert_eq!(missing, io::ErrorKind::NotFound);
        }
        assert_eq!(read("link", Links::Followed).expect("regular"), "text");
        let refused = read("link", Links::Refused).expect_err("a link");
        assert_eq!(refused.to_string(), "a link");
    }

    #[test]
    fn texts_are_limited() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        let file = File::create(&path).expect("created");
        for (length, is_read) in [(LONGEST, true), (LONGEST + 1, false)] {
            file.set_len(length).expect("sparse");
            let read = read_to_string(&path, Links::Followed);
            assert_eq!(read.is_ok(), is_read, "{length}");
        }
    }
}

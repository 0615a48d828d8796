//! An open directory.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Uid},
    io::Errno,
};

use super::is_temporary;
use crate::{
    output::dataset::foreign_file::Trust,
    support::{invoking_user::Owner, regular_file, units::format_bytes},
};

/// Mode of new files, before the umask.
const FILE_MODE: u32 = 0o640;
/// Mode of new files that everyone may read.
const PUBLIC_MODE: u32 = 0o644;
/// Mode of new directories, before the umask.
const DIRECTORY_MODE: u32 = 0o750;

/// An open directory. Files are opened relative to it.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    owner: Owner,
    trust: Trust,
    /// Whether everyone may read new files, whatever the umask.
    is_public: bool,
}

impl Directory {
    /// Opens an existing directory. New files in it get this owner.
    pub fn open(path: &Path, owner: Owner) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            fd: rustix::fs::openat(CWD, path, flags, Mode::empty())?,
            path: path.to_owned(),
            owner,
            trust: Trust::default(),
            is_public: false,
        })
    }

    /// Opens a run directory. Links are refused: a user who may write to the directory above could
    /// have made one.
    pub fn open_run(path: &Path, owner: Owner) -> io::Result<Self> {
        match path.file_name() {
            Some(name) => Self::open(above(path), owner)?.sub(name),
            None => Self::open(path, owner),
        }
    }

    /// Another descriptor of it.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Opens a directory inside this one.
    pub fn sub(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let name = name.as_ref();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(Self {
            fd: rustix::fs::openat(&self.fd, name, flags, Mode::empty())?,
            path: self.path.join(name),
            owner: self.owner,
            trust: self.trust,
            is_public: self.is_public,
        })
    }

    /// Opens a directory inside this one; creates it if it is missing.
    pub fn make(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        Ok(self.make_or_open(name.as_ref())?.0)
    }

    /// Like [`Directory::make`], but gives another name to what has this one and is no directory.
    pub fn claim(&self, name: &str) -> io::Result<Self> {
        match self.make(name) {
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                self.set_aside(name)?;
                self.make(name)
            }
            made => made,
        }
    }

    /// Also returns whether the directory is new.
    pub(super) fn make_or_open(&self, name: &OsStr) -> io::Result<(Self, bool)> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(DIRECTORY_MODE)) {
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

    /// Sets the owner of new files.
    #[must_use]
    pub fn owned(self, owner: Owner) -> Self {
        Self { owner, ..self }
    }

    /// Sets whose files are read without limits.
    #[must_use]
    pub fn trusting(self, trust: Trust) -> Self {
        Self { trust, ..self }
    }

    /// Lets everyone read new files.
    #[must_use]
    pub fn readable_by_all(self) -> Self {
        Self {
            is_public: true,
            ..self
        }
    }

    /// Whether a file belongs to this user, or to the owner of new files.
    pub fn is_own(&self, file: &File) -> io::Result<bool> {
        let uid = rustix::fs::fstat(file)?.st_uid;
        let is_owner = self.owner.is_some_and(|(owner, _)| owner == uid);
        Ok(is_owner || uid == rustix::process::geteuid().as_raw())
    }

    /// Whose files are read without limits.
    pub fn trust(&self) -> Trust {
        self.trust
    }

    /// User and group of the directory.
    pub fn owned_by(&self) -> io::Result<(u32, u32)> {
        let stat = rustix::fs::fstat(&self.fd)?;
        Ok((stat.st_uid, stat.st_gid))
    }

    /// Path at which the directory was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a file, which must not exist, for appending.
    pub fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::APPEND
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(FILE_MODE))?;
        if self.is_public {
            rustix::fs::fchmod(&fd, Mode::from_raw_mode(PUBLIC_MODE))?;
        }
        give_to(&fd, self.owner);
        Ok(fd.into())
    }

    /// Opens a file for reading and writing; creates it if it is missing.
    pub fn open_or_create(&self, name: &str) -> io::Result<File> {
        match self.create(name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let flags = OFlags::RDWR | OFlags::NOFOLLOW;
                regular_file::open_at(&self.fd, name, flags, Mode::empty())
            }
            created => created,
        }
    }

    /// Time of the last change of a file, s since 1970 by the clock of the file system.
    pub fn modified(&self, name: &str) -> io::Result<i64> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(stat.st_mtime)
    }

    /// Present time by the clock of the file system, which can be a server's, s since 1970.
    pub fn now(&self) -> io::Result<i64> {
        let name = format!(".now.{}.{}.tmp", std::process::id(), thread_id());
        let written = self
            .write_synced(&name, b"x")
            .and_then(|()| self.modified(&name));
        self.remove(&name)?;
        written
    }

    /// Opens an existing regular file for reading. The name can belong to anything.
    pub fn read(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
        regular_file::open_at(&self.fd, name, flags, Mode::empty())
    }

    /// Content of a file of at most this size in bytes, or `foreign` if it is of another user.
    pub fn read_whole(&self, name: &str, limit: u64, foreign: u64) -> io::Result<Vec<u8>> {
        let file = self.read(name)?;
        let is_foreign = self.trust.limits(&file)?.is_some();
        let limit = if is_foreign { foreign } else { limit };
        let mut content = Vec::new();
        file.take(limit + 1).read_to_end(&mut content)?;
        if content.len() as u64 <= limit {
            return Ok(content);
        }
        let limit = format_bytes(limit);
        Err(io::Error::other(if is_foreign {
            format!("over the limit of {limit} for a file of another user: --trust reads it")
        } else {
            format!("too large, over {limit}")
        }))
    }

    /// Names of the entries, sorted; names that are not UTF-8 are left out.
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

    /// Whether an entry has this name.
    pub fn has(&self, name: &str) -> io::Result<bool> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a regular file has this name.
    pub fn has_file(&self, name: &str) -> io::Result<bool> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode).is_file()),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a file, if it exists.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the temporary files of a writer that has ended. The profiler makes no directories with
    /// such names.
    pub fn remove_temporary_files(&self) -> io::Result<()> {
        for name in self.names()?.iter().filter(|name| is_temporary(name)) {
            match self.remove(name) {
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Gives a file this name, with underscores at its end while it is taken. Returns the name.
    pub fn rename_to_free(&self, name: &str, mut free: String) -> io::Result<String> {
        while self.has(&free)? {
            free.push('_');
        }
        self.rename(name, &free)?;
        self.sync()?;
        Ok(free)
    }

    /// Gives another name to what has the name of a file or directory of the profiler and is none.
    fn set_aside(&self, name: &str) -> io::Result<()> {
        // Readers of Parquet ignore names that begin so.
        self.rename_to_free(name, format!("_{name}.aside"))?;
        Ok(())
    }

    /// Renames a file. Fails if the new name is taken.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        match rustix::fs::renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            // Some file systems (NFS) cannot do this atomically.
            Err(Errno::INVAL | Errno::NOSYS) => self.rename_by_link(from, to),
            result => Ok(result?),
        }
    }

    /// Creates a hard link, which fails if the name is taken, and removes the old name.
    fn rename_by_link(&self, from: &str, to: &str) -> io::Result<()> {
        match rustix::fs::linkat(&self.fd, from, &self.fd, to, AtFlags::empty()) {
            Ok(()) => {}
            // A file server whose first reply was lost refuses the repeated request.
            Err(Errno::EXIST) if self.is_same(from, to)? => {}
            Err(Errno::EXIST) => return Err(Errno::EXIST.into()),
            // Without hard links, a check before the rename is the best there is.
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

    /// Removes an empty directory.
    pub fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// User of an entry.
    pub(super) fn user_of(&self, name: &str) -> io::Result<u32> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(stat.st_uid)
    }

    /// Whether the directory was removed, or its file system unmounted.
    pub fn is_gone(&self) -> bool {
        !matches!(rustix::fs::fstat(&self.fd), Ok(stat) if stat.st_nlink > 0)
    }

    /// Makes changes of names in the directory durable.
    pub fn sync(&self) -> io::Result<()> {
        match rustix::fs::fsync(&self.fd) {
            // Some network file systems do not support fsync on directories.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Stores a file under a name that no file has: writes a temporary file, syncs it, renames it, and
    /// syncs the directory. An error leaves nothing behind.
    pub fn write_new(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.store_new(&format!(".{name}.tmp"), name, bytes)
    }

    /// Like [`Directory::write_new`], in a directory that several hosts write to: `writer` makes
    /// the name of the temporary file unique.
    pub fn write_new_among(&self, name: &str, writer: &str, bytes: &[u8]) -> io::Result<()> {
        self.store_new(&format!(".{name}.{writer}.tmp"), name, bytes)
    }

    fn store_new(&self, temporary: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
        let stored =
            self.write_synced(temporary, bytes)
                .and_then(|()| match self.rename(temporary, name) {
                    Err(error) if self.is_taken_by_another_kind(name, &error) => {
                        self.set_aside(name)?;
                        self.rename(temporary, name)
                    }
                    renamed => renamed,
                });
        self.end_write(temporary, stored)
    }

    fn is_taken_by_another_kind(&self, name: &str, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::AlreadyExists && self.has_file(name).is_ok_and(|file| !file)
    }

    /// Like [`Directory::write_new_among`], but replaces an existing file.
    pub fn replace(&self, name: &str, writer: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = format!(".{name}.{writer}.tmp");
        let stored = self.write_synced(&temporary, bytes).and_then(|()| {
            let rename = || rustix::fs::renameat(&self.fd, &*temporary, &self.fd, name);
            match rename() {
                Err(Errno::ISDIR) => {
                    self.set_aside(name)?;
                    Ok(rename()?)
                }
                renamed => Ok(renamed?),
            }
        });
        self.end_write(&temporary, stored)
    }

    pub(super) fn write_synced(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = match self.create(name) {
            // A killed profiler has left it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                match self.remove(name) {
                    Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                        self.set_aside(name)?;
                    }
                    removed => removed?,
                }
                self.create(name)?
            }
            created => created?,
        };
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn end_write(&self, temporary: &str, stored: io::Result<()>) -> io::Result<()> {
        if stored.is_err() {
            // The first error is the relevant one.
            let _ = self.remove(temporary);
            return stored;
        }
        self.sync()
    }
}

/// Sets the owner. Errors are ignored: a file system that refuses it (`root_squash`) still gets the
/// data.
fn give_to(fd: impl AsFd, owner: Owner) {
    if let Some((uid, gid)) = owner {
        let _ = rustix::fs::fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    }
}

/// The parent directory of a path.
pub(super) fn above(path: &Path) -> &Path {
    let above = path.parent().unwrap_or(path);
    if above.as_os_str().is_empty() {
        Path::new(".")
    } else {
        above
    }
}

/// Part of the names of temporary files.
pub(super) fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::output::dataset::files::create_run_dir;

    #[test]
    fn rename_does_not_replace_files() {
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
        // The reply to a first attempt was lost.
        directory.write_new("new", b"3").unwrap();
        std::fs::hard_link(out.path().join("new"), out.path().join("c")).unwrap();
        directory.rename_by_link("new", "c").unwrap();
        assert_eq!(directory.names().unwrap(), ["a", "b", "c"]);
    }
}

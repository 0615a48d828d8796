//! Files that appear at once, when all of them are complete.

use std::{
    fmt::Display,
    fs::{self, File, Permissions},
    io::{self, BufWriter, Write},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use tempfile::NamedTempFile;

use crate::failure::{Failure, Reason, os_error::of_temporary};

/// Files of an export. They have other names until [`commit`](Self::commit); dropped before, they
/// are removed.
pub struct Files {
    force: bool,
    written: Vec<(NamedTempFile, PathBuf)>,
}

/// The standard output, and whether its reader has closed it.
struct Stdout<'a> {
    closed: &'a AtomicBool,
}

impl Write for Stdout<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.note(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.note(io::stdout().flush())
    }
}

impl Stdout<'_> {
    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            self.closed.store(true, Ordering::Relaxed);
        }
        result
    }
}

/// Where a file of an export goes.
pub enum Destination {
    Stdout,
    File(PathBuf),
}

impl Destination {
    /// `-` is the standard output.
    pub fn of(path: &Path) -> Self {
        if path.as_os_str() == "-" {
            Self::Stdout
        } else {
            Self::File(path.to_owned())
        }
    }

    /// A directory for temporary files.
    pub fn directory(&self) -> PathBuf {
        match self {
            Self::File(path) => directory_of(path).to_owned(),
            Self::Stdout => std::env::temp_dir(),
        }
    }
}

/// The directory of a file.
pub fn directory_of(path: &Path) -> &Path {
    let directory = path.parent().filter(|parent| *parent != Path::new(""));
    directory.unwrap_or(Path::new("."))
}

fn failure(path: &Path, error: &dyn Display) -> Failure {
    let message = format!("cannot write {}: {error}", path.display());
    Failure::new(Reason::Output, message)
}

/// A failure with the name of the file.
pub fn in_file(path: &Path, failed: &Failure) -> Failure {
    Failure::new(failed.reason, format!("{}: {failed}", path.display()))
}

impl Files {
    /// No files. `force` is whether existing files are replaced.
    pub fn new(force: bool) -> Self {
        Self {
            force,
            written: Vec::new(),
        }
    }

    /// Writes a file by `write`. A pipe that its reader has closed ends the writing, and is no error.
    ///
    /// # Errors
    ///
    /// When the file exists and is not to be replaced, or cannot be written.
    pub fn write<T: Default>(
        &mut self,
        destination: &Destination,
        write: impl FnOnce(&mut (dyn Write + Send)) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match destination {
            Destination::Stdout => {
                let closed = AtomicBool::new(false);
                let mut output = BufWriter::new(Stdout { closed: &closed });
                let result = write(&mut output).and_then(|result| {
                    let flushed = output.flush();
                    flushed.map_err(|error| failure(Path::new("standard output"), &error))?;
                    Ok(result)
                });
                // Nobody reads what is left in the buffer.
                drop(output.into_parts());
                if closed.into_inner() {
                    return Ok(T::default());
                }
                result
            }
            Destination::File(path) => {
                let mut output = self.begin(path)?;
                let result = write(&mut output).map_err(|why| in_file(path, &why))?;
                output.flush().map_err(|error| failure(path, &error))?;
                Ok(result)
            }
        }
    }

    /// Begins a file. The caller writes it, flushes it, and names it in errors.
    ///
    /// # Errors
    ///
    /// When the file exists and is not to be replaced, or cannot be created.
    pub fn begin(&mut self, path: &Path) -> Result<BufWriter<File>, Failure> {
        if !self.force && path.symlink_metadata().is_ok() {
            return Err(exists(path));
        }
        // As open(2) would create it; the umask applies.
        let file = tempfile::Builder::new()
            .prefix(".profiler-export-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory_of(path));
        let opened = file.and_then(|file| Ok((file.as_file().try_clone()?, file)));
        let (output, file) = opened.map_err(|error| failure(path, &of_temporary(&error)))?;
        self.written.push((file, path.to_owned()));
        Ok(BufWriter::new(output))
    }

    /// Gives all files their names, and returns these.
    ///
    /// # Errors
    ///
    /// When a file exists by now, or cannot be renamed. Those before it have their names.
    pub fn commit(self) -> Result<Vec<PathBuf>, Failure> {
        let mut paths = Vec::new();
        for (file, path) in self.written {
            let named = if self.force {
                file.persist(&path)
            } else {
                file.persist_noclobber(&path)
            };
            let result: Result<File, _> = named;
            result.map_err(|error| match error.error.kind() {
                io::ErrorKind::AlreadyExists => exists(&path),
                _ => failure(&path, &error.error),
            })?;
            paths.push(path);
        }
        Ok(paths)
    }
}

fn exists(path: &Path) -> Failure {
    let message = format!("{} exists; --force replaces it", path.display());
    Failure::new(Reason::Output, message)
}

/// Creates a directory for several files.
///
/// # Errors
///
/// When there is a file of this name, for example.
pub fn create_directory(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).map_err(|error| failure(path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(files: &mut Files, path: &Path, text: &str) -> Result<(), Failure> {
        files.write(&Destination::of(path), |output| {
            output.write_all(text.as_bytes()).map_err(Failure::internal)
        })
    }

    #[test]
    fn files_appear_together_and_replace_only_by_force() {
        let directory = tempfile::tempdir().expect("a directory");
        let [a, b] = ["a", "b"].map(|name| directory.path().join(name));
        let names = || fs::read_dir(directory.path()).expect("there").count();
        let mut files = Files::new(false);
        put(&mut files, &a, "1").expect("written");
        assert!(!a.exists());
        let failed = files.write(&Destination::of(&b), |_| {
            Err::<(), _>(Failure::new(Reason::Output, "no"))
        });
        assert!(failed.is_err_and(|why| why.message == format!("{}: no", b.display())));
        drop(files);
        assert_eq!(names(), 0);

        let mut files = Files::new(false);
        put(&mut files, &a, "1").expect("written");
        put(&mut files, &b, "2").expect("written");
        assert_eq!(files.commit().expect("renamed"), [a.clone(), b.clone()]);
        let refused = put(&mut Files::new(false), &a, "3").expect_err("it exists");
        assert!(refused.message.contains("--force"), "{refused}");
        let mut files = Files::new(true);
        put(&mut files, &a, "3").expect("written");
        files.commit().expect("replaced");
        assert_eq!(fs::read_to_string(&a).expect("there"), "3");
        assert_eq!(names(), 2);
    }
}

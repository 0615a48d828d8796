//! The files of a guest: each lies where it lies on the host, with what it is linked with.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufWriter, Write},
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::cpio::Archive;
use crate::shell;

enum Entry {
    Directory(u32),
    File { permissions: u32, content: Content },
    Symlink(PathBuf),
    CharacterDevice((u32, u32)),
}

enum Content {
    Bytes(Vec<u8>),
    /// Read when the archive is written.
    Of(PathBuf),
}

/// Sorted, so that a directory comes before what is in it.
#[derive(Default)]
pub struct Tree(BTreeMap<PathBuf, Entry>);

impl Tree {
    pub fn directory(&mut self, path: impl AsRef<Path>, permissions: u32) -> Result<()> {
        let place = self.place(path.as_ref())?;
        self.0.entry(place).or_insert(Entry::Directory(permissions));
        Ok(())
    }

    pub fn device(&mut self, path: impl AsRef<Path>, number: (u32, u32)) -> Result<()> {
        let place = self.place(path.as_ref())?;
        self.0.insert(place, Entry::CharacterDevice(number));
        Ok(())
    }

    pub fn file(&mut self, path: impl AsRef<Path>, permissions: u32, bytes: Vec<u8>) -> Result<()> {
        let place = self.place(path.as_ref())?;
        let content = Content::Bytes(bytes);
        let file = Entry::File {
            permissions,
            content,
        };
        self.0.insert(place, file);
        Ok(())
    }

    /// A file of the host and the libraries that it is linked with.
    pub fn program(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.program_as(&path, &path)
    }

    /// The same, with its content from elsewhere.
    pub fn program_as(&mut self, path: impl AsRef<Path>, from: impl AsRef<Path>) -> Result<()> {
        self.host_file(path.as_ref(), from.as_ref())?;
        for library in libraries(from.as_ref())? {
            self.host_file(&library, &library)?;
        }
        Ok(())
    }

    fn host_file(&mut self, path: &Path, from: &Path) -> Result<()> {
        let place = self.place(path)?;
        let from = from
            .canonicalize()
            .with_context(|| format!("looking for {}", from.display()))?;
        let permissions = fs::metadata(&from)?.permissions().mode() & 0o777;
        let content = Content::Of(from);
        let file = Entry::File {
            permissions,
            content,
        };
        self.0.insert(place, file);
        Ok(())
    }

    /// Where a path leads, with its directories and links as the host has them.
    fn place(&mut self, path: &Path) -> Result<PathBuf> {
        const MOST_LINKS: usize = 40;
        let mut rest: Vec<PathBuf> = parts(path);
        let mut place = PathBuf::from("/");
        let mut links = 0;
        while !rest.is_empty() {
            let name = rest.remove(0);
            if name.as_os_str() == ".." {
                place.pop();
                continue;
            }
            let next = place.join(name);
            if let Ok(target) = fs::read_link(&next) {
                links += 1;
                if links > MOST_LINKS {
                    bail!("{}: too many links", path.display());
                }
                if target.is_absolute() {
                    place = PathBuf::from("/");
                }
                rest.splice(0..0, parts(&target));
                self.0.insert(next, Entry::Symlink(target));
            } else {
                if !rest.is_empty() {
                    let directory = self.0.entry(next.clone());
                    directory.or_insert(Entry::Directory(0o755));
                }
                place = next;
            }
        }
        Ok(place)
    }

    /// Writes the archive, not compressed: unpacking would take an emulated CPU longer.
    pub fn write(&self, path: &Path) -> Result<()> {
        let write = || {
            let file = BufWriter::new(fs::File::create(path)?);
            let mut archive = Archive::new(file);
            for (path, entry) in &self.0 {
                write_entry(&mut archive, path, entry)?;
            }
            archive.finish()?.flush()
        };
        write().with_context(|| format!("writing {}", path.display()))
    }
}

fn write_entry(
    archive: &mut Archive<impl Write>,
    path: &Path,
    entry: &Entry,
) -> std::io::Result<()> {
    let text = |path: &Path| {
        let text = path.to_str().map(str::to_owned);
        text.ok_or_else(|| std::io::Error::other(format!("{} is not UTF-8", path.display())))
    };
    let path = text(path)?;
    match entry {
        Entry::Directory(permissions) => archive.directory(&path, *permissions),
        Entry::Symlink(target) => archive.symlink(&path, &text(target)?),
        Entry::CharacterDevice(number) => archive.character_device(&path, *number),
        Entry::File {
            permissions,
            content: Content::Bytes(bytes),
        } => archive.file(&path, *permissions, bytes),
        Entry::File {
            permissions,
            content: Content::Of(from),
        } => archive.file(&path, *permissions, &fs::read(from)?),
    }
}

/// The names on the way; those that change nothing are left out.
fn parts(path: &Path) -> Vec<PathBuf> {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| part.as_os_str().into())
        .collect()
}

/// The libraries of a program, with the one that loads them.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    // What is not a dynamic program (a script, a static one) has none: ldd fails then.
    let Ok(text) = shell::stdout(Command::new("ldd").arg(program)) else {
        return Ok(Vec::new());
    };
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        bail!("{} lacks a library: {}", program.display(), line.trim());
    }
    Ok(paths(&text))
}

/// Reads `libc.so.6 => /lib/libc.so.6 (0x…)` and `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn paths(ldd: &str) -> Vec<PathBuf> {
    let words = ldd.split_whitespace();
    words
        .filter(|word| word.starts_with('/'))
        .map(Into::into)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{Entry, Tree, paths};

    #[test]
    fn what_ldd_prints() {
        let text =
            "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\t/lib64/ld.so (0x3)\n";
        let expected: [PathBuf; 2] = ["/lib/libc.so.6".into(), "/lib64/ld.so".into()];
        assert_eq!(paths(text), expected);
    }

    #[test]
    fn links_are_kept_and_followed() {
        let folder = std::env::temp_dir().join(format!("xtask-tree-{}", std::process::id()));
        let real = folder.join("real");
        std::fs::create_dir_all(&real).expect("a folder");
        std::fs::write(real.join("file"), "x").expect("a file");
        std::os::unix::fs::symlink("real/../real", folder.join("link")).expect("a link");
        let mut tree = Tree::default();
        let placed = tree.host_file(&folder.join("link/file"), &real.join("file"));
        std::fs::remove_dir_all(&folder).expect("removed");
        placed.expect("placed");
        let is = |path: &Path, test: fn(&Entry) -> bool| tree.0.get(path).is_some_and(test);
        assert!(is(&folder.join("link"), |e| matches!(e, Entry::Symlink(_))));
        assert!(is(&real, |e| matches!(e, Entry::Directory(_))));
        assert!(is(&real.join("file"), |e| matches!(e, Entry::File { .. })));
    }
}

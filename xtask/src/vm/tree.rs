//! The files of a guest. Programs and their libraries have the same paths as on the host or in the
//! userland of another architecture.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufWriter, Write},
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use cpio::newc::{self, ModeFileType};

use super::userland::Userland;

enum Entry {
    Directory(u32),
    File { permissions: u32, content: Content },
    Symlink(PathBuf),
    CharacterDevice((u32, u32)),
}

enum Content {
    Bytes(Vec<u8>),
    /// Copied from this file when the archive is written.
    Of(PathBuf),
}

pub struct Tree<'a> {
    userland: &'a Userland,
    /// Sorted, so that a directory precedes its entries.
    entries: BTreeMap<PathBuf, Entry>,
}

impl<'a> Tree<'a> {
    pub fn new(userland: &'a Userland) -> Self {
        Self {
            userland,
            entries: BTreeMap::new(),
        }
    }

    pub fn directory(&mut self, path: impl AsRef<Path>, permissions: u32) -> Result<()> {
        let place = self.place(path.as_ref())?;
        self.entries
            .entry(place)
            .or_insert(Entry::Directory(permissions));
        Ok(())
    }

    pub fn device(&mut self, path: impl AsRef<Path>, number: (u32, u32)) -> Result<()> {
        let place = self.place(path.as_ref())?;
        self.entries.insert(place, Entry::CharacterDevice(number));
        Ok(())
    }

    pub fn file(&mut self, path: impl AsRef<Path>, permissions: u32, bytes: Vec<u8>) -> Result<()> {
        let place = self.place(path.as_ref())?;
        let content = Content::Bytes(bytes);
        let file = Entry::File {
            permissions,
            content,
        };
        self.entries.insert(place, file);
        Ok(())
    }

    /// Adds a program of the userland with its libraries.
    pub fn program(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let place = self.own_file(path.as_ref())?;
        let from = self.userland.real(&place);
        self.libraries_of(&from)
    }

    /// Adds a program of the host with its libraries.
    pub fn program_as(&mut self, path: impl AsRef<Path>, from: impl AsRef<Path>) -> Result<()> {
        let place = self.place(path.as_ref())?;
        self.content(place, from.as_ref())?;
        self.libraries_of(from.as_ref())
    }

    fn libraries_of(&mut self, program: &Path) -> Result<()> {
        for library in self.userland.libraries(program)? {
            self.own_file(&library)?;
        }
        Ok(())
    }

    /// Adds a file of the userland; returns its resolved path.
    fn own_file(&mut self, path: &Path) -> Result<PathBuf> {
        let place = self.place(path)?;
        self.content(place.clone(), &self.userland.real(&place))?;
        Ok(place)
    }

    fn content(&mut self, place: PathBuf, from: &Path) -> Result<()> {
        let metadata =
            fs::metadata(from).with_context(|| format!("looking for {}", from.display()))?;
        let file = Entry::File {
            permissions: metadata.permissions().mode() & 0o777,
            content: Content::Of(from.to_owned()),
        };
        self.entries.insert(place, file);
        Ok(())
    }

    /// Resolves a path in the userland and adds its directories and links.
    fn place(&mut self, path: &Path) -> Result<PathBuf> {
        const MAX_LINKS: usize = 40;
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
            if let Ok(target) = fs::read_link(self.userland.real(&next)) {
                links += 1;
                if links > MAX_LINKS {
                    bail!("{}: too many links", path.display());
                }
                if target.is_absolute() {
                    place = PathBuf::from("/");
                }
                rest.splice(0..0, parts(&target));
                self.entries.insert(next, Entry::Symlink(target));
            } else {
                if !rest.is_empty() {
                    let directory = self.entries.entry(next.clone());
                    directory.or_insert(Entry::Directory(0o755));
                }
                place = next;
            }
        }
        Ok(place)
    }

    /// Writes the archive that the kernel unpacks at boot; uncompressed, because decompression is
    /// slow on an emulated CPU.
    pub fn write(&self, path: &Path) -> Result<()> {
        let write = || {
            let mut file = BufWriter::new(fs::File::create(path)?);
            for (inode, (path, entry)) in (1..).zip(&self.entries) {
                write_entry(&mut file, inode, path, entry)?;
            }
            newc::trailer(file)?.flush()
        };
        write().with_context(|| format!("writing {}", path.display()))
    }
}

fn write_entry(archive: &mut impl Write, inode: u32, path: &Path, entry: &Entry) -> io::Result<()> {
    let text = |path: &Path| {
        let text = path.to_str().map(str::to_owned);
        text.ok_or_else(|| io::Error::other(format!("{} is not UTF-8", path.display())))
    };
    let path = text(path)?;
    let header = newc::Builder::new(path.trim_start_matches('/')).ino(inode);
    let (header, kind, content) = match entry {
        Entry::Directory(permissions) => {
            let header = header.mode(*permissions).nlink(2);
            (header, ModeFileType::Directory, Vec::new())
        }
        Entry::Symlink(target) => {
            let target = text(target)?.into_bytes();
            (header.mode(0o777), ModeFileType::Symlink, target)
        }
        Entry::CharacterDevice((major, minor)) => {
            let header = header.mode(0o600).rdev_major(*major).rdev_minor(*minor);
            (header, ModeFileType::Char, Vec::new())
        }
        Entry::File {
            permissions,
            content,
        } => {
            let content = match content {
                Content::Bytes(bytes) => bytes.clone(),
                Content::Of(from) => fs::read(from)?,
            };
            (header.mode(*permissions), ModeFileType::Regular, content)
        }
    };
    let size = u32::try_from(content.len())
        .map_err(|_| io::Error::other(format!("{path} is too large for the format")))?;
    let mut writer = header.set_mode_file_type(kind).write(archive, size);
    writer.write_all(&content)?;
    writer.finish().map(drop)
}

/// The components of a path that matter for its resolution.
fn parts(path: &Path) -> Vec<PathBuf> {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| part.as_os_str().into())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Entry, Tree, Userland};
    use crate::arch::Arch;

    #[test]
    fn links_are_added_and_followed() {
        let directory = std::env::temp_dir().join(format!("xtask-tree-{}", std::process::id()));
        let real = directory.join("real");
        std::fs::create_dir_all(&real).expect("a directory");
        std::fs::write(real.join("file"), "x").expect("a file");
        std::os::unix::fs::symlink("real/../real", directory.join("link")).expect("a link");
        let userland = Userland::host(Arch::host().expect("known"));
        let mut tree = Tree::new(&userland);
        let placed = tree.own_file(&directory.join("link/file"));
        std::fs::remove_dir_all(&directory).expect("removed");
        placed.expect("placed");
        let is = |path: &Path, test: fn(&Entry) -> bool| tree.entries.get(path).is_some_and(test);
        assert!(is(&directory.join("link"), |e| matches!(
            e,
            Entry::Symlink(_)
        )));
        assert!(is(&real, |e| matches!(e, Entry::Directory(_))));
        assert!(is(&real.join("file"), |e| matches!(e, Entry::File { .. })));
    }
}

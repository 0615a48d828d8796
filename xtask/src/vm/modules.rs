//! Kernel modules of a guest, with their dependencies, in the order of loading.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::shell;

/// Names of modules and their parameters.
pub type ModuleList = [(&'static str, &'static str)];

pub const KERNEL_TEST_MODULES: &ModuleList = &[
    ("ext4", ""),
    ("loop", ""),
    ("overlay", ""),
    ("fuse", ""),
    ("nfs", ""),
    ("veth", ""),
    ("bridge", ""),
    ("macvlan", ""),
    ("dummy", ""),
    ("sch_netem", ""),
    ("dm_mod", ""),
    ("dm_delay", ""),
    ("dm_flakey", ""),
    ("brd", "rd_nr=2 rd_size=131072"),
    ("null_blk", "nr_devices=0"),
];

/// A module to be loaded.
pub struct Module {
    pub name: String,
    pub parameters: &'static str,
    pub bytes: Vec<u8>,
}

/// Reads the modules of the list from `directory`, each preceded by its dependencies.
pub fn collect(directory: &Path, wanted: &ModuleList) -> Result<Vec<Module>> {
    let mut collection = Collection {
        files: files(directory)?,
        seen: BTreeSet::new(),
        modules: Vec::new(),
    };
    for (name, parameters) in wanted {
        collection.add(name, parameters)?;
    }
    Ok(collection.modules)
}

struct Collection {
    files: BTreeMap<String, PathBuf>,
    seen: BTreeSet<String>,
    modules: Vec<Module>,
}

impl Collection {
    /// A module without a file is built in, or not part of this kernel.
    fn add(&mut self, name: &str, parameters: &'static str) -> Result<()> {
        let Some(path) = self.files.get(name) else {
            return Ok(());
        };
        if !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        let bytes = read(path)?;
        for needed in needs(&bytes) {
            self.add(&needed, "")?;
        }
        self.modules.push(Module {
            name: name.to_owned(),
            parameters,
            bytes,
        });
        Ok(())
    }
}

/// Files of all modules below a directory, by name.
fn files(directory: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries =
            fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("reading {}", directory.display()))?;
            // Links (`build`, `source`) are not followed.
            let kind = entry.file_type()?;
            if kind.is_dir() {
                directories.push(entry.path());
            } else if let Some(name) = module_name(&entry.file_name()) {
                found.insert(name, entry.path());
            }
        }
    }
    Ok(found)
}

/// `dm_mod` for `dm-mod.ko.xz`.
fn module_name(file: &OsStr) -> Option<String> {
    let (name, compression) = file.to_str()?.split_once(".ko")?;
    ["", ".xz", ".zst", ".gz"]
        .contains(&compression)
        .then(|| name.replace('-', "_"))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let tool = match path.extension().and_then(OsStr::to_str) {
        Some("ko") => return fs::read(path).with_context(|| format!("reading {}", path.display())),
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => bail!("{}: unknown compression", path.display()),
    };
    shell::bytes(Command::new(tool).args(["-d", "-c", "--"]).arg(path))
        .with_context(|| format!("decompressing {}", path.display()))
}

/// Dependencies in the section `.modinfo`, which consists of `key=value` strings with a final NUL.
fn needs(module: &[u8]) -> Vec<String> {
    let mut needs = Vec::new();
    for text in module.split(|byte| *byte == 0) {
        let Ok(text) = str::from_utf8(text) else {
            continue;
        };
        if let Some(names) = text.strip_prefix("depends=") {
            needs.extend(names.split(',').map(str::to_owned));
        } else if let Some(words) = text.strip_prefix("softdep=pre: ") {
            let words = words.split_whitespace();
            needs.extend(words.take_while(|word| *word != "post:").map(str::to_owned));
        }
    }
    needs.retain(|name| !name.is_empty());
    for name in &mut needs {
        *name = name.replace('-', "_");
    }
    needs
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::{module_name, needs};

    #[test]
    fn modules_are_named_after_their_files() {
        let name = |file: &str| module_name(OsStr::new(file));
        assert_eq!(name("dm-mod.ko.xz").as_deref(), Some("dm_mod"));
        assert_eq!(name("ext4.ko").as_deref(), Some("ext4"));
        assert_eq!(name("modules.order"), None);
        assert_eq!(name("a.kobject"), None);
    }

    #[test]
    fn dependencies_are_read_from_modinfo() {
        let module =
            b"\x7fELF\0\xff\0license=GPL\0depends=jbd2,mb-cache\0softdep=pre: crc32c post: x\0";
        assert_eq!(needs(module), ["jbd2", "mb_cache", "crc32c"]);
        assert_eq!(needs(b"\0depends=\0"), Vec::<String>::new());
    }
}

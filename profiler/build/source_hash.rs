//! One number for the sources of the BPF object. `cargo xtask build` stores it beside the object
//! and the build script of `profiler` compares it, so that an object older than its source is
//! noticed. Both include this file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Hashes the manifest and every file under `src/` of the package at `package`.
pub fn source_hash(package: &Path) -> io::Result<String> {
    let mut files = vec![package.join("Cargo.toml")];
    collect(&package.join("src"), &mut files)?;
    files.sort();
    let mut hash = Fnv1a::new();
    for file in files {
        let name = file.strip_prefix(package).unwrap_or(&file);
        hash.field(name.as_os_str().as_encoded_bytes());
        hash.field(&fs::read(&file)?);
    }
    Ok(format!("{:016x}", hash.0))
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// Fowler–Noll–Vo: the standard library's hasher may change between compilers.
struct Fnv1a(u64);

impl Fnv1a {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Its length goes first, so that moving a byte from one field to the next changes the hash.
    fn field(&mut self, bytes: &[u8]) {
        self.bytes(&bytes.len().to_le_bytes());
        self.bytes(bytes);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

//! Directories and files of a dataset: names, permissions, ownership, atomic replacement.
//!
//! Below the run directory everything is opened relative to its directory and without following
//! links. A profiler that runs as root therefore writes nowhere else, regardless of the owner of
//! the directory.

mod directory;
mod error;
mod run_directory;

use std::path::{Component, Path};

pub use self::{
    directory::Directory,
    error::{OutputError, is_full},
    run_directory::create_run_dir,
};

/// Whether the text is a single normal component of a path, not `..` or empty.
pub fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(components.next(), Some(Component::Normal(only)) if only == name)
        && components.next().is_none()
        && !name.contains('\0')
}

/// Name of the directory of a host in every table: a Hive partition.
pub fn host_directory(hostname: &str) -> String {
    format!("host={hostname}")
}

/// The host of a directory in a table.
pub fn host_of_directory(name: &str) -> Option<&str> {
    name.strip_prefix("host=")
}

/// Whether the name is that of an incomplete file.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.strip_suffix(".tmp").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

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

//! Facts about the machine that decide what can be measured.

use std::path::PathBuf;

/// Roots and facts, read once at start.
#[derive(Clone, Debug)]
pub struct Host {
    /// Where procfs is mounted.
    pub procfs: PathBuf,
    /// Where sysfs is mounted.
    pub sysfs: PathBuf,
    /// Name of this node, as in the dataset's `host=` folders.
    pub hostname: String,
}

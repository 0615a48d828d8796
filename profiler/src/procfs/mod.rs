//! Readers of `/proc` and `/sys`. Each takes its root, so that tests give it another one.

pub mod cgroup_names;
pub mod file;
pub mod loadavg;
pub mod meminfo;
pub mod mount_names;
pub mod mounts;
pub mod pressure;
pub mod process_count;
pub mod process_file;
pub mod read;
pub mod stat;

//! Readers of `/proc` and `/sys`. Each takes the root directory as a parameter, so that tests can
//! use fixtures.

pub mod cgroup_cpu_stat;
pub mod cgroup_limits;
pub mod cgroup_memory;
pub mod cgroup_mounts;
pub mod cgroup_names;
pub mod cpu_list;
pub mod cpuinfo;
pub(crate) mod device_access;
pub mod device_file;
pub mod file;
pub mod loadavg;
pub mod meminfo;
pub(crate) mod memory_file;
pub mod mount_names;
pub mod mounts;
pub mod pressure;
pub mod process_cgroup;
pub mod process_count;
pub mod process_file;
pub mod process_list;
pub mod process_stat;
pub mod process_status;
pub mod read;
pub mod smaps_rollup;
pub mod stat;

//! Tests that need a complete system: Debian with systemd as pid 1 and cgroup v2 only, in a virtual
//! machine (`cargo xtask test system`).

mod boot;
mod bounds;
mod changes;
mod commands;
mod limits;
mod memory;
mod packaged;
mod pressure;
mod serve;
mod sessions;
mod slurm;
mod storage;
mod unit;

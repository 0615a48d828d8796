//! What needs a whole system: Debian with systemd as pid 1 and cgroup v2 only, in a virtual machine
//! (`cargo xtask test system`).

mod boot;
mod limits;
mod pressure;
mod sessions;
mod shell;
mod slurm;
mod storage;
mod unit;

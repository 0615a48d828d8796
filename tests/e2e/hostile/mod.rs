//! Attacks by an unprivileged user on a privileged profiler. Run by `cargo xtask test hostile`.

mod capabilities;
mod file_capabilities;
mod foreign_run;
mod instance_lock;
mod jobs;
mod marks;
mod memory;
mod names;
mod obstacles;
mod output;
mod paths;
mod process_names;
mod recovery;
mod service;
mod service_load;
mod service_privacy;

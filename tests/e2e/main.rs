//! End-to-end tests: the running kernel, real workloads, real readers. Run by `cargo xtask test
//! e2e`.

mod allocation;
mod browser;
mod cgroup;
mod clients;
mod coming_from;
mod command_line;
mod compare;
mod crash;
mod deploy;
mod engines;
mod errors;
mod export;
mod full_disk;
mod golden;
mod gpu;
mod hostile;
mod job_layouts;
mod job_search;
mod jobs;
mod many_nodes;
mod nvidia;
mod oar;
mod old_schema;
mod perf;
mod pid_reuse;
mod process;
mod process_lifetime;
mod psutil;
mod readers;
mod recipes;
mod reference_tools;
mod regions;
mod report;
mod report_input;
mod retention;
mod roofline;
mod run_end;
mod run_queue;
mod run_table;
mod samples;
mod sched;
mod service;
mod soak;
mod summary;
mod system;
mod timeline;
mod unprivileged;
mod usage;
mod verdict;
mod xtask;

/// Path of the program `bin/workload`.
const WORKLOAD: &str = env!("CARGO_BIN_EXE_workload");

//! Helpers that several modules share: time, units, messages, counters, threads.

pub mod cache;
pub mod clock;
pub mod delta;
pub mod device_counters;
pub mod heap;
pub mod helper_process;
pub mod host_name;
pub mod http;
pub mod invoking_user;
pub mod labels;
pub mod log;
pub mod names;
pub mod notifier;
pub mod own_cost;
pub mod regular_file;
pub mod reported;
pub mod resource_limits;
pub mod runtime_directory;
pub mod self_metrics;
pub mod service_manager;
pub mod shared_memory;
pub mod signals;
mod time_namespace;
pub mod timekeeping;
pub mod units;
pub mod worker;

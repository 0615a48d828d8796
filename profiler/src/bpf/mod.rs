//! The user side of the BPF programs: offsets, loading, attaching, reading.

pub mod btf;
mod instrumentation;
mod map_reader;
mod programs;
mod records;
mod stats;
mod syscall;

pub use self::instrumentation::{
    AttachResult, Attached, Hook, Instrumentation, Method, Missing, REFUSED, Requested,
};
pub use self::map_reader::{Plain, Table};
pub use programs::{LoadError, Programs, Reading, Roots, Scope, Settings};
pub use records::{Event, Record};
pub use stats::Stats;

//! The user side of the BPF programs: offsets, loading, attaching, reading.

pub mod btf;
mod features;
mod programs;
mod records;
mod stats;
mod syscall;
mod table;

pub use features::{Attached, Feature, Hook, Missing, Outcome, REFUSED, Wanted, Way};
pub use programs::{LoadError, Programs, Reading, Roots, Scope, Settings};
pub use records::{Event, Record};
pub use stats::Stats;
pub use table::{Plain, Table};

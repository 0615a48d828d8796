//! The user side of the BPF programs: offsets, loading, attaching, reading.

pub mod btf;
mod programs;
mod records;

pub use programs::{LoadError, Programs, Reading, Roots, Scope, Settings};
pub use records::{Event, Record};

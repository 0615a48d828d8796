//! Where numbers come from: the trait of a source and the registry of all.
//!
//! A source knows nothing of files; it turns one reading into batches of its tables.

pub mod cpu;
pub mod host;
pub mod system;

mod counter;
mod frequency;
mod kernel_file;
mod load;
mod memory;
mod pressure;
mod proc_stat;
mod process_count;

use anyhow::Result;

use crate::{
    clock::Tick,
    host::Host,
    schema::{Batch, Table},
    tasks::TaskTable,
};

/// What a source is given at each tick.
pub struct Sample<'a> {
    /// The moment; all rows of a tick carry the same `ts`.
    pub tick: Tick,
    /// The processes of the target, read once for all sources.
    pub tasks: &'a TaskTable,
    /// Whether this is the run's last reading.
    pub last: bool,
}

/// Something that is read at every tick.
pub trait Source: Send {
    /// Reads once. The first call sets baselines; later ones add rows to `out`.
    ///
    /// # Errors
    ///
    /// When nothing could be read. The loop counts the error, says it once, and goes on.
    fn sample(&mut self, at: &Sample<'_>, out: &mut Vec<Batch>) -> Result<()>;
}

/// How far a source can work on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// All columns.
    Works,
    /// Some columns are null.
    Partly {
        /// What is missing.
        why: String,
        /// What would enable it.
        remedy: String,
    },
    /// No rows.
    No {
        /// What is missing.
        why: String,
        /// What would enable it.
        remedy: String,
    },
}

/// What a source is opened with.
pub struct Context<'a> {
    /// Facts about this machine.
    pub host: &'a Host,
    /// Whether per-thread rows are wanted.
    pub threads: bool,
}

/// An entry of the registry.
pub struct SourceSpec {
    /// Name on the command line.
    pub name: &'static str,
    /// One line for `profiler check` and the reference.
    pub help: &'static str,
    /// Its tables.
    pub tables: &'static [&'static Table],
    /// What this machine lets it do.
    pub probe: fn(&Host) -> Support,
    /// Opens it.
    pub open: fn(&Context<'_>) -> Result<Box<dyn Source>>,
}

/// Every source; those named on no command line run by default.
pub static REGISTRY: &[&SourceSpec] = &[&host::SPEC, &system::SPEC, &cpu::SPEC];

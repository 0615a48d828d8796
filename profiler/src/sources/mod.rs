//! Where numbers come from: the trait of a source and the registry of all.
//!
//! A source knows nothing of files; it turns one reading into batches of its tables.

pub mod cpu;
pub mod host;
pub mod overhead;
pub mod process;
pub mod sched;
pub mod system;
pub mod usage;

mod counter;
mod frequency;
mod kernel_file;
mod load;
mod memory;
mod pressure;
mod proc_stat;
mod process_count;

use std::sync::OnceLock;

use anyhow::Result;

use crate::{
    bpf::{Programs, Scope, Settings},
    clock::Tick,
    host::Host,
    ledger::Ledger,
    privileges,
    schema::{Batch, ProcessKey, Table},
    tasks::{Row, TaskTable},
};

/// What a source is given at each tick.
pub struct Sample<'a> {
    /// The moment; all rows of a tick carry the same `ts`.
    pub tick: Tick,
    /// The processes of the target, read once for all sources.
    pub tasks: &'a TaskTable,
    /// What the profiler itself has cost so far.
    pub ledger: &'a Ledger,
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
    /// Whether it reads the processes of the target.
    pub tasks: bool,
    /// Opens it.
    pub open: fn(&Context<'_>) -> Result<Box<dyn Source>>,
}

/// Every source; those named on no command line run by default.
pub static REGISTRY: &[&SourceSpec] = &[
    &process::SPEC,
    &sched::SPEC,
    &usage::SPEC,
    &system::SPEC,
    &cpu::SPEC,
    &host::SPEC,
    &overhead::SPEC,
];

/// The columns that identify a process's or thread's row.
fn process_key(at: &Sample<'_>, row: &Row) -> ProcessKey {
    ProcessKey {
        ts: at.tick.ts,
        interval_ns: row.interval_ns,
        pid: row.id.pid,
        start_ts: at.tasks.clock.wall_of_boottime(row.id.start_boottime),
        tid: row.tid,
    }
}

/// How the processes of the target can be followed here; found out by loading the programs.
fn task_support(host: &Host) -> Support {
    static SUPPORT: OnceLock<Support> = OnceLock::new();
    let probe = || {
        let remedy =
            "sudo, or: setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep profiler";
        if !privileges::may_load_bpf() {
            return Support::No {
                why: "not root, and without CAP_BPF and CAP_PERFMON".to_owned(),
                remedy: remedy.to_owned(),
            };
        }
        let settings = Settings {
            scope: Scope::Pids,
            sched: true,
            threads: false,
        };
        match Programs::load(host, &settings) {
            Ok(_) => Support::Works,
            Err(error) => Support::Partly {
                why: format!(
                    "{error}; from /proc only: no process that lives less than an interval"
                ),
                remedy: error.remedy(),
            },
        }
    };
    SUPPORT.get_or_init(probe).clone()
}

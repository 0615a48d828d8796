//! The profiler's side of the BPF programs: offsets, loading, attaching, reading.

pub mod btf;
mod error;
mod instrumentation;
mod iterator;
mod kernel_map;
mod load;
mod names;
mod object;
mod pod;
mod programs;
mod records;
mod ring_buffer;
mod stats;
mod syscall;
mod task_reader;

pub use self::{
    error::{BpfError, HookError},
    instrumentation::{AttachResult, Attached, Hook, Instrumentation, Method, Missing, Requested},
    kernel_map::KernelMap,
    load::{Scope, Settings, WAKEUP},
    names::{NamesRecord, read_names},
    programs::{KernelSupport, Programs},
    records::{Event, Record},
    stats::Stats,
    task_reader::{Reading, Roots, TaskReader, Visits},
};

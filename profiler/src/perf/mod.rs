//! Hardware counters through perf_event_open(2): which events, opened on whom, and what their counts say.
//!
//! A run selects groups of the CPU's table and events by hand ([`Selection`]); a [`Plan`] turns them into bundles that the
//! PMUs here can count at the same time; [`counters`] opens a bundle and reads it with one system call. The source is
//! [`sources::perf`](crate::sources::perf).

pub mod constants;
mod count;
pub mod counters;
mod custom_events;
mod errors;
mod machine;
mod metrics;
pub mod node_cycles;
mod plan;
mod processes;
mod selection;
mod targets;
mod validate;

pub use self::{
    count::Count,
    errors::{explain, remedy},
    machine::Machine,
    metrics::{Value, evaluate},
    plan::{EventIndex, GroupPlan, Note, PerfGroup, Plan},
    processes::{Entry, Processes},
    selection::Selection,
    targets::{Target, Targets},
    validate::validate,
};

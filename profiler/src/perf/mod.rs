//! Hardware counters through perf_event_open(2): selection of events, opening, counts and metrics.
//!
//! A run selects groups of the CPU's event table and custom events ([`Selection`]). A [`Plan`]
//! turns them into perf groups that the PMUs of this machine can count at the same time.
//! [`open_group`] opens a perf group and reads it with one system call. The source is
//! [`sources::perf`](crate::sources::perf).

mod catalog;
pub mod constants;
mod count;
mod cpus;
mod error;
mod machine;
mod metrics;
mod node_counters;
mod open_error;
pub mod open_group;
mod plan;
mod selection;
mod target_counters;
mod validate;

pub use self::{
    catalog::catalog,
    count::Count,
    error::Error,
    machine::Machine,
    metrics::{MetricValue, evaluate},
    node_counters::{NodeCounters, UnitCounters},
    open_error::{explain, remedy},
    plan::{
        EventIndex, GroupPlan, Note, PerfGroup, Plan, PlannedEvent,
        node_cycles::{NODE_CYCLES, TARGET_CYCLES},
    },
    selection::Selection,
    target_counters::{ProcessCounters, TargetCounters},
    validate::validate,
};

//! Hardware counters through perf_event_open(2): which events, opened on whom, and what their counts say.
//!
//! A run selects groups of the CPU's table and events by hand ([`Selection`]); a [`Plan`] turns them into bundles that the
//! PMUs here can count at the same time; [`counters`] opens a bundle and reads it with one system call. The source is
//! [`sources::perf`](crate::sources::perf).

mod by_hand;
pub mod constants;
mod count;
pub mod counters;
mod machine;
mod metrics;
pub mod node_cycles;
mod places;
mod plan;
mod processes;
mod selection;
mod trouble;
mod validate;

pub use self::{
    count::Count,
    machine::Machine,
    metrics::{Value, evaluate},
    places::{Place, Places},
    plan::{Bundle, GroupPlan, Note, Plan, Slot},
    processes::{Entry, Processes},
    selection::Selection,
    trouble::{explain, remedy},
    validate::validate,
};

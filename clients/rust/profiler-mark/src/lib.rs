//! Marks regions, events and values of a program that runs under the profiler.
//!
//! ```
//! let fit = profiler_mark::region("fit").attr("epochs", 2).start();
//! for number in 0..2 {
//!     let _epoch = fit.region("epoch").attr("number", number).start();
//!     profiler_mark::event("checkpoint").attr("file", "model.pt").send();
//! }
//! profiler_mark::gauge("peak_memory", 1e9, "bytes").send();
//! drop(fit);
//! ```
//!
//! The dataset of the profiler has the resources that each region used: see `docs/regions.md` of the
//! profiler, which also defines the grammar and the limits of marks.
//!
//! No function waits: if the profiler cannot receive a mark, it is dropped, and the next one reports
//! it. Without a profiler (`PROFILER_SOCKET` is not set) a mark costs a few nanoseconds, and its attributes
//! are not formatted.
//!
//! With the feature `tracing`, spans become regions: see [`tracing::MarkLayer`].

#![cfg_attr(not(feature = "tracing"), allow(rustdoc::broken_intra_doc_links))]

mod json;
mod mark;
mod socket;
#[cfg(feature = "tracing")]
pub mod tracing;

pub use self::{
    json::Value,
    mark::{Mark, Once, Region, RegionId, Start, enabled, event, gauge, phase, region},
};

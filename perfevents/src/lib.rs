//! What is known of each microarchitecture, and which one a CPU is.
//!
//! The knowledge is data: `data/<vendor>/<uarch>.toml`, one file per microarchitecture, embedded when the crate is
//! built. See [`Uarch`] for what a file says.

mod catalog;
mod check;
mod cpu_id;
mod device;
mod event;
mod formula;
mod group;
mod uarch;

pub use catalog::{Catalog, Error};
pub use cpu_id::CpuId;
pub use device::{Device, EncodeError, Encoding, Format, FormatError, WORDS};
pub use event::{CORE_PMU, Event, Pmu, Source};
pub use formula::{Formula, FormulaError};
pub use group::{CONSTANTS, Group, Meaning, Metric, Reduce, UNITS};
pub use uarch::{Cpuid, Match, Midr, Numbers, Pvr, Uarch};

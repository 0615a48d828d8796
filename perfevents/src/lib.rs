//! Hardware events, groups and metrics of each microarchitecture, and how to identify a CPU.
//!
//! They are data: `data/<vendor>/<uarch>.toml`, one file per microarchitecture, embedded when the
//! crate is built. A file may have another one as its `base`; it then holds the differences.
//! [`Uarch`] shows what a file looks like.
#![warn(missing_docs)]

mod catalog;
mod check;
mod cpu_id;
mod device;
mod event;
mod event_table;
mod formula;
mod group;
mod layout;
mod request;
mod source;
mod uarch;

pub use catalog::{Catalog, Error};
pub use cpu_id::CpuId;
pub use device::{Device, EncodeError, Encoding, Format, FormatError, WORDS};
pub use event::{CACHE_PMU, CORE_PMU, Event, HARDWARE_PMU, KERNEL_PMUS, Pmu, SOFTWARE_PMU};
use event_table::EventTable;
pub use event_table::EventTableError;
pub use formula::{Formula, FormulaError};
pub use group::{CONSTANTS, Group, Meaning, Metric, Reduce, Room, UNITS};
pub use request::{Item, Request, RequestError, Term};
pub use source::{Origin, Origins, Source};
pub use uarch::{Cpuid, Match, Midr, Numbers, Pvr, Uarch};

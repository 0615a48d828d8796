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
mod layout;
mod record;
mod request;
mod uarch;

pub use catalog::{Catalog, Error};
pub use cpu_id::CpuId;
pub use device::{Device, EncodeError, Encoding, Format, FormatError, WORDS};
pub use event::{CACHE_PMU, CORE_PMU, Event, HARDWARE_PMU, KERNEL_PMUS, Pmu, SOFTWARE_PMU, Source};
pub use formula::{Formula, FormulaError};
pub use group::{CONSTANTS, Group, Meaning, Metric, Reduce, Room, UNITS};
pub use record::{RecordError, Recorded, differences, record};
pub use request::{Item, Request, RequestError, Term};
pub use uarch::{Cpuid, Match, Midr, Numbers, Pvr, Uarch};

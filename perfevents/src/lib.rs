//! What is known of each microarchitecture, and which one a CPU is.
//!
//! The knowledge is data: `data/<vendor>/<uarch>.toml`, one file per microarchitecture, embedded when the crate is
//! built. See [`Uarch`] for what a file says.

mod catalog;
mod cpu_id;
mod uarch;

pub use catalog::{Catalog, Error};
pub use cpu_id::CpuId;
pub use uarch::{Cpuid, Match, Midr, Numbers, Pvr, Uarch};

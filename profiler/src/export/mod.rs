//! Stored runs as files of other formats.
//!
//! Each format is one file here. [`tables`] converts any table of the dataset, the others what other
//! programs expect. Rows are read and written in batches, so that the memory does not grow with the
//! run.

pub mod chrome_trace;
mod clock;
mod csv;
mod feather;
pub mod files;
pub mod flowcept;
mod json;
mod marks;
pub mod mlflow;
mod output;
mod parquet;
pub mod perfmon;
pub mod perfpy;
pub mod prov;
pub mod pytyche;
pub mod selection;
pub mod series;
mod spool;
pub mod tables;

pub use self::selection::Selection;

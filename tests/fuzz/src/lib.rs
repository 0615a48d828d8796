//! Shared by the fuzz targets.

pub mod panics;
pub mod processes;
pub mod run;
pub mod stored;

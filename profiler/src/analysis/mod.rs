//! Figures from stored runs: one declaration gives the value and the SQL that recomputes it.

pub mod catalog;
pub mod compare;
pub mod figure;
mod filled;
pub mod page;
pub mod perfmon;
pub mod roofline;
pub mod rows;
pub mod samples;
pub mod scan;
pub mod series;
pub mod stored_run;
pub mod summary;

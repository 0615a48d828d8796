//! Where batches go: a dataset of Parquet files for the run, or one for each batch job.

pub mod dataset;
pub mod instance_lock;
pub mod per_job;
pub mod recovery;

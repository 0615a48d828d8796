//! The dataset of a run: journals, Parquet files, `run.json`, `views.sql`, and their recovery.
//!
//! A separate thread does all writing, so that a slow or full disk never delays a sample.
//! `docs/architecture.md` describes the steps.

pub mod compacted;
pub mod dictionary;
pub mod files;
pub mod foreign_file;
pub mod journal;
pub mod journal_reader;
pub(crate) mod keyed;
pub mod listing;
pub mod manifest;
pub mod metadata;
mod interruption;
mod output;
pub mod parquet_file;
pub mod parquet_reader;
mod process_identity;
mod queue;
pub mod recover;
mod row_buffer;
mod run_table;
pub mod sparse;
mod table;
#[cfg(test)]
mod tests;
mod thread;
pub mod views;
mod writer;

use std::{path::PathBuf, time::Duration};

pub use self::{
    files::OutputError,
    manifest::Manifest,
    output::Dataset,
    recover::recover,
    writer::{DatasetWriter, FinishError, TableSummary, WriteSummary, WriterStats},
};
use crate::{schema::DatasetSchema, support::invoking_user::Owner};

/// Default of [`DatasetOptions::memory_budget`].
const MEMORY_BUDGET: usize = 64 << 20;

/// How a dataset is written.
#[derive(Clone, Debug)]
pub struct DatasetOptions {
    /// Directory of the run; created if it is missing. Several hosts can share one.
    pub run_dir: PathBuf,
    /// Name of this node.
    pub hostname: String,
    /// Name of the run, stored in every file.
    pub run_id: String,
    /// Time between Parquet files.
    pub checkpoint: Duration,
    /// Whether every sample survives a power failure, not only every checkpoint.
    pub sync: bool,
    /// Limit of the memory in bytes for rows that cannot be stored yet. Beyond it the oldest rows
    /// are dropped and counted.
    pub memory_budget: usize,
    /// Owner of the files.
    pub owner: Owner,
    /// Content of `run.json`; `None` to write none.
    pub manifest: Option<Manifest>,
    /// Tables and views of `views.sql`.
    pub schema: &'static DatasetSchema,
    /// Whether every column can be null, because the rows come from another program.
    pub all_nullable: bool,
    /// Whether [rows of sleeping processes](crate::schema::Table::sparse) are left out.
    pub sparse: bool,
}

impl DatasetOptions {
    /// The defaults of the command line, without a manifest.
    pub fn new(run_dir: PathBuf, hostname: &str, run_id: &str) -> Self {
        Self {
            run_dir,
            hostname: hostname.to_owned(),
            run_id: run_id.to_owned(),
            checkpoint: Duration::from_secs(60),
            sync: false,
            memory_budget: MEMORY_BUDGET,
            owner: None,
            manifest: None,
            schema: DatasetSchema::EMPTY,
            all_nullable: false,
            sparse: false,
        }
    }
}

//! `profiler compact`: merges the Parquet files of finished runs.

#[cfg(test)]
mod tests;

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use clap::{Args, ValueHint};

use super::{TrustOption, print};
use crate::{
    failure::{Failure, Reason},
    output::compaction::{CompactError, CompactReport, Keep, Limits, Options, compact},
    report,
    sources::dataset_schema,
    support::{
        log::{self, escaped, harmless, harmless_message},
        units::{self, counted, format_bytes},
    },
};

/// Arguments of `profiler compact`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Directories with runs (--out of `profiler run`)
    #[arg(required = true, value_name = "DATASET", value_hint = ValueHint::DirPath)]
    dataset: Vec<PathBuf>,
    /// Resolution of rows by age: raw=7d,1s=90d,1m=3y
    ///
    /// In this example, rows are kept as sampled until their day (UTC) has been over for 7 days,
    /// then as one row per second and series, then as one per minute. After 3 years they are
    /// removed, and so are runs without rows. In downsampled rows, increases are sums and gauges
    /// are means, with columns NAME_min and NAME_max. The last age can be `forever`. Tables of
    /// processes, regions and hosts keep their rows until the end.
    #[arg(long, value_name = "RESOLUTION=AGE,…")]
    keep: Option<Keep>,
    /// Remove the rows of the oldest days while all compacted files together exceed this size: 2T
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    max_size: Option<u64>,
    #[command(flatten)]
    trust: TrustOption,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When a directory cannot be read or written, or another process compacts it.
    pub fn run(&self) -> Result<u8, Failure> {
        let options = Options {
            schema: dataset_schema(),
            keep: self.keep.clone().unwrap_or_default(),
            max_bytes: self.max_size,
            now_us: now_us(),
            limits: Limits::default(),
            trust: self.trust.trust(),
        };
        let mut is_complete = true;
        for dataset in &self.dataset {
            let result = compact(dataset, &options, &mut |_| Ok(()));
            let report = result.map_err(|error| {
                let reason = match &error {
                    CompactError::Io { source, .. }
                        if source.kind() == std::io::ErrorKind::NotFound && !dataset.exists() =>
                    {
                        Reason::Target
                    }
                    _ => Reason::Output,
                };
                Failure::new(reason, error.to_string())
            })?;
            for skipped in &report.skipped {
                report!(
                    "left alone: {}: {}",
                    harmless(&skipped.name),
                    harmless_message(&skipped.why)
                );
            }
            for (table, error) in &report.failed {
                report!(
                    "{}: not compacted: {}",
                    harmless(table),
                    harmless_message(error)
                );
            }
            is_complete &= report.failed.is_empty();
            print(text(dataset, &report))?;
        }
        Ok(if is_complete { 0 } else { Reason::Output as u8 })
    }
}

fn now_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_micros();
    i64::try_from(now).unwrap_or(i64::MAX)
}

fn text(dataset: &Path, report: &CompactReport) -> String {
    let mut text = String::new();
    if report.is_continued {
        text.push_str("an interrupted compaction was completed\n");
    }
    if report.tables.is_empty() {
        let _ = writeln!(text, "{}: nothing to compact", log::path(dataset));
        return text;
    }
    let of =
        |number: u64, bytes: u64| format!("{} ({})", counted(number, "file"), format_bytes(bytes));
    let rows = |before: u64, after: u64| {
        if before == after {
            counted(before, "row")
        } else {
            format!("{before} -> {after} rows")
        }
    };
    let (mut all, mut old, mut new) = ((0, 0), (0, 0), (0, 0));
    let mut tables = String::new();
    for table in &report.tables {
        all = (all.0 + table.rows, all.1 + table.new_rows);
        old = (old.0 + table.old.0, old.1 + table.old.1);
        new = (new.0 + table.new.0, new.1 + table.new.1);
        let _ = writeln!(
            tables,
            "  {}: {}, {} -> {}",
            harmless(&table.name),
            rows(table.rows, table.new_rows),
            of(table.old.0, table.old.1),
            of(table.new.0, table.new.1)
        );
    }
    let _ = writeln!(
        text,
        "{}: {}, {}, {} -> {}",
        log::path(dataset),
        counted(report.runs as u64, "run"),
        rows(all.0, all.1),
        of(old.0, old.1),
        of(new.0, new.1)
    );
    text.push_str(&tables);
    for run in &report.removed {
        let _ = writeln!(text, "  {}: removed, as all of its rows were", escaped(run));
    }
    text
}

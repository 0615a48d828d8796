//! Outputs: destinations of the rows of a session.
//!
//! Outputs form a chain. Each one gets the batches of a reading, takes rows out of them or only
//! looks at them, and passes the rest on. The session knows no output by name.

pub mod arrow_stream;
pub mod compaction;
pub mod dataset;
pub mod instance_lock;
pub mod job_router;
pub mod memory_guard;
pub mod recovery;
pub mod retention;
pub mod status;
pub mod status_file;

use std::{collections::BTreeMap, path::PathBuf};

use serde_json::Value;

use self::dataset::manifest::Loss;
use crate::{
    schema::{Batch, Timestamp},
    support::{self_metrics::SelfMetrics, timekeeping::Timekeeping},
    tasks::TaskTable,
};

/// A destination of rows. It is opened by its constructor.
pub trait Output {
    /// The process of the profiled command has been created, but not started.
    fn command_created(&mut self, _pid: u32) {}

    /// The settings of the session have changed; `config` is that of `run.json`.
    fn reconfigured(&mut self, _config: &Value) {}

    /// Gets the batches of one reading, at a sample or at a region boundary; returns those for the
    /// next output. It is called once per reading, also without batches, and must not wait for a
    /// disk or a network.
    fn write(&mut self, reading: &Reading<'_>, batches: Vec<Batch>) -> Vec<Batch>;

    /// Reports new errors, and updates the cost and the losses of this output. Called before each
    /// sample.
    fn update_self_metrics(&mut self, _self_metrics: &mut SelfMetrics) {}

    /// Stores everything and ends. Outputs end in the order of the chain; each can add to `end`.
    fn finish(self: Box<Self>, end: &mut SessionEnd) -> OutputReport;

    /// Ends without a result, because the command could not be started.
    fn discard(self: Box<Self>) {}
}

/// Context of the batches that one reading has produced.
pub struct Reading<'a> {
    /// Time of the reading, `CLOCK_MONOTONIC` in ns.
    pub monotonic_ns: u64,
    /// Wall clock of the reading.
    pub ts: Timestamp,
    /// The processes of the target.
    pub tasks: &'a TaskTable,
    /// Losses since the start of the session.
    pub losses: &'a dyn Fn() -> Vec<Loss>,
}

/// Facts about the end of a session.
pub struct SessionEnd {
    /// Wall clock of the end.
    pub ts: Timestamp,
    /// Exit code of the profiled command as sh(1) reports it; `None` without a command, or if it
    /// has not ended.
    pub exit_code: Option<u8>,
    /// Lines of sources for the user.
    pub summary: String,
    /// State of the clock.
    pub clock: Timekeeping,
    /// Losses of the session.
    pub losses: Vec<Loss>,
    /// Processes per user that claimed a job and got no run for it.
    pub refused_claims: BTreeMap<u32, u64>,
}

/// Result of an output.
#[derive(Debug, Default)]
pub struct OutputReport {
    /// The run that was written.
    pub run: Option<PathBuf>,
    /// Lines for the user, unless `--quiet`.
    pub lines: Vec<String>,
    /// Data that was lost or not stored; the session fails with exit code 5.
    pub lost: Vec<String>,
}

/// The outputs of a session, as a chain.
#[derive(Default)]
pub struct Outputs(Vec<Box<dyn Output>>);

impl Outputs {
    /// Appends an output to the chain.
    pub fn push(&mut self, output: impl Output + 'static) {
        self.0.push(Box::new(output));
    }

    /// See [`Output::command_created`].
    pub fn command_created(&mut self, pid: u32) {
        for output in &mut self.0 {
            output.command_created(pid);
        }
    }

    /// See [`Output::reconfigured`].
    pub fn reconfigured(&mut self, config: &Value) {
        for output in &mut self.0 {
            output.reconfigured(config);
        }
    }

    /// Sends the batches of one reading through the chain.
    pub fn write(&mut self, reading: &Reading<'_>, batches: Vec<Batch>) {
        self.0
            .iter_mut()
            .fold(batches, |batches, output| output.write(reading, batches));
    }

    /// See [`Output::update_self_metrics`].
    pub fn update_self_metrics(&mut self, self_metrics: &mut SelfMetrics) {
        for output in &mut self.0 {
            output.update_self_metrics(self_metrics);
        }
    }

    /// Ends all outputs and combines their reports.
    pub fn finish(&mut self, end: &mut SessionEnd) -> OutputReport {
        let mut all = OutputReport::default();
        for output in std::mem::take(&mut self.0) {
            let report = output.finish(end);
            all.run = report.run.or(all.run);
            all.lines.extend(report.lines);
            all.lost.extend(report.lost);
        }
        all
    }

    /// See [`Output::discard`].
    pub fn discard(self) {
        for output in self.0 {
            output.discard();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use arrow::array::RecordBatch;

    use super::*;
    use crate::{
        columns,
        host::Host,
        schema::{Table, TickKey, TypedTable},
        support::clock::Clock,
    };

    columns! {
        /// One column beside the key.
        pub struct Row {
            value: u64 = Gauge("1", "A value"),
        }
    }

    static FIRST: TypedTable<TickKey, Row> = TypedTable::new("first", "Rows for the first output");
    static SECOND: TypedTable<TickKey, Row> =
        TypedTable::new("second", "Rows for the second output");

    /// Takes the batches of one table and records all calls.
    struct Recorder {
        name: &'static str,
        table: &'static Table,
        calls: Rc<RefCell<Vec<String>>>,
    }

    impl Recorder {
        fn record(&self, call: &str) {
            self.calls
                .borrow_mut()
                .push(format!("{} {call}", self.name));
        }
    }

    impl Output for Recorder {
        fn write(&mut self, _reading: &Reading<'_>, mut batches: Vec<Batch>) -> Vec<Batch> {
            let taken = batches.extract_if(.., |batch| batch.table.name == self.table.name);
            let call = format!("takes {}", taken.count());
            self.record(&call);
            batches
        }

        fn finish(self: Box<Self>, end: &mut SessionEnd) -> OutputReport {
            self.record(&format!("ends with {} claims", end.refused_claims.len()));
            end.refused_claims.insert(1, 1);
            OutputReport {
                run: None,
                lines: vec![self.name.to_owned()],
                lost: Vec::new(),
            }
        }
    }

    #[test]
    fn outputs_pass_on_what_they_do_not_take() {
        let calls = Rc::new(RefCell::new(Vec::new()));
        let mut outputs = Outputs::default();
        for (name, table) in [("a", &FIRST), ("b", &SECOND), ("c", &FIRST)] {
            outputs.push(Recorder {
                name,
                table,
                calls: calls.clone(),
            });
        }
        let tasks = TaskTable::without_reader(&Host::probe("/proc", "/sys", None), Clock::new());
        let reading = Reading {
            monotonic_ns: 0,
            ts: Timestamp::from_us(0),
            tasks: &tasks,
            losses: &Vec::new,
        };
        let batch = |table: &'static Table| Batch {
            table,
            rows: RecordBatch::new_empty(table.schema()),
        };
        outputs.write(&reading, vec![batch(&FIRST), batch(&SECOND), batch(&FIRST)]);
        let mut end = SessionEnd {
            ts: Timestamp::from_us(0),
            exit_code: None,
            summary: String::new(),
            clock: Timekeeping::of(&Clock::new()),
            losses: Vec::new(),
            refused_claims: BTreeMap::new(),
        };
        let report = outputs.finish(&mut end);
        assert_eq!(report.lines, ["a", "b", "c"]);
        assert_eq!(
            *calls.borrow(),
            [
                "a takes 2",
                "b takes 1",
                "c takes 0",
                "a ends with 0 claims",
                "b ends with 1 claims",
                "c ends with 1 claims",
            ]
        );
    }
}

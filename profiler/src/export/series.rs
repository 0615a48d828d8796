//! Samples of a node, read in parts, so that the memory does not grow with the run.

use std::{collections::BTreeSet, time::Duration};

use super::selection::Selection;
use crate::{
    analysis::{
        figure::{Figure, OverTime},
        rows::times,
        samples::{Places, Sample, Samples},
        scan::{Groups, Request, names_of_groups, scan},
        stored_run::{StoredHost, StoredRun},
    },
    failure::Failure,
};

/// Length of a part, µs.
const PART: i64 = 600_000_000;

/// A value of each sample: a figure of all rows, or of a group of them.
#[derive(Clone, Debug)]
pub struct Column {
    pub figure: Figure,
    /// Columns by which rows are grouped, none for all rows.
    pub by: &'static [&'static str],
    /// Name of the group.
    pub group: String,
}

impl Column {
    /// Of all rows.
    pub fn of(figure: Figure) -> Self {
        Self {
            figure,
            by: &[],
            group: String::new(),
        }
    }

    /// Of the rows that have these values in the columns `by`.
    pub fn of_group(figure: Figure, by: &'static [&'static str], group: &str) -> Self {
        Self {
            figure,
            by,
            group: group.to_owned(),
        }
    }
}

/// Figures with the same groups.
struct Grouping {
    by: &'static [&'static str],
    figures: Vec<Figure>,
    places: Places,
}

impl Grouping {
    fn of(columns: &[Column]) -> Vec<Self> {
        let mut groupings: Vec<Self> = Vec::new();
        for (place, column) in columns.iter().enumerate() {
            let found = groupings.iter().position(|of| of.by == column.by);
            let number = found.unwrap_or_else(|| {
                groupings.push(Self {
                    by: column.by,
                    figures: Vec::new(),
                    places: Places::new(),
                });
                groupings.len() - 1
            });
            let Self {
                figures, places, ..
            } = &mut groupings[number];
            let named = figures.iter().position(|figure| {
                (figure.table, figure.name) == (column.figure.table, column.figure.name)
            });
            let figure = named.unwrap_or_else(|| {
                figures.push(column.figure);
                figures.len() - 1
            });
            let key = (figure, column.group.clone());
            places.entry(key).or_default().push(place);
        }
        groupings
    }

    fn request(&self, width: usize) -> Request<'_, Samples> {
        let groups = match self.by {
            [] => Groups::All,
            by => Groups::Columns(by.to_vec()),
        };
        let samples = Samples::new(self.places.clone(), width);
        Request::new(&self.figures, groups, samples)
    }
}

/// Samples of a run.
pub struct Series<'a> {
    pub run: &'a StoredRun,
    pub selection: &'a Selection,
    /// Time between two samples, if it is not that of the run.
    pub every: Option<Duration>,
}

impl Series<'_> {
    /// Passes the samples of a host on, with their times in µs since 1970-01-01 UTC. Each has a value
    /// in the first column. Files that cannot be read are added to `failures`.
    ///
    /// # Errors
    ///
    /// Those of `each`.
    pub fn of_host(
        &self,
        host: &StoredHost,
        columns: &[Column],
        failures: &mut Vec<String>,
        mut each: impl FnMut(i64, &Sample) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let selected = self.selection.on(self.run, host, failures);
        let every = self.every.map_or(0.0, |every| every.as_secs_f64());
        // Tables have rows at different times if one source is read less often than another.
        let tables: BTreeSet<&str> = columns.iter().map(|column| column.figure.table).collect();
        let parts = tables.iter().flat_map(|table| self.parts(table, host));
        let parts: BTreeSet<i64> = parts.collect();
        let groupings = Grouping::of(columns);
        let over_time: Vec<OverTime> = columns
            .iter()
            .map(|column| column.figure.over_time)
            .collect();
        let mut early = vec![f64::NAN; columns.len()];
        let mut pending: Option<(i64, Sample)> = None;
        // Kept until the next one, because the last can be followed by values without a sample.
        let mut complete: Option<(i64, Sample)> = None;
        for number in parts {
            let begin = number * PART;
            let part = self.run.between(begin, begin + PART);
            let requests = groupings.iter().map(|of| of.request(columns.len()));
            let mut requests: Vec<_> = requests.collect();
            failures.extend(scan(&part, host, &mut requests));
            let mut samples = Samples::default();
            for request in requests {
                samples.merge(request.values);
            }
            for (ts, mut sample) in samples.by_time {
                if !selected.has(ts, sample.seconds) {
                    // What is left belongs to the selected sample before it.
                    if let Some((_, last)) = pending.as_mut().or(complete.as_mut()) {
                        last.include(&over_time, &early);
                    }
                    early.fill(f64::NAN);
                    continue;
                }
                // Sources without intervals have values at the start of the run, and processes at
                // marks; in a very short interval, the kernel counts no CPU time.
                sample.include(&over_time, &early);
                if sample.values[0].is_nan() {
                    early = sample.values;
                    continue;
                }
                early.fill(f64::NAN);
                if let Some((time, sample)) = complete.take() {
                    each(time, &sample)?;
                }
                let (time, all) = pending.get_or_insert_with(|| (ts, Sample::default()));
                *time = ts;
                all.append(&over_time, &sample);
                // Samples are not exactly one interval apart.
                if all.seconds >= 0.99 * every {
                    complete = pending.take();
                }
            }
        }
        failures.sort_unstable();
        failures.dedup();
        match pending.or(complete) {
            Some((time, mut sample)) => {
                sample.include(&over_time, &early);
                each(time, &sample)
            }
            None => Ok(()),
        }
    }

    /// Numbers of the parts that have rows of a table: few, although a wrong clock can set years between
    /// two rows.
    fn parts(&self, table: &str, host: &StoredHost) -> BTreeSet<i64> {
        let mut parts = BTreeSet::new();
        // What cannot be read is reported by those who read the rows.
        let _ = self.run.read(table, host, &["ts"], |batch| {
            let times = times(batch, "ts").into_iter().flatten();
            // The time at the end of a part belongs to it.
            parts.extend(times.map(|ts| (ts - 1).div_euclid(PART)));
        });
        parts
    }
}

/// Values of columns since the start of the run.
pub struct Running<'a> {
    columns: &'a [Column],
    /// In the order of the columns; NaN for null.
    pub values: Vec<f64>,
}

impl<'a> Running<'a> {
    /// Before the first sample.
    pub fn new(columns: &'a [Column]) -> Self {
        Self {
            columns,
            values: vec![f64::NAN; columns.len()],
        }
    }

    /// Adds a sample: increases are added up, and file systems, which are read less often than the rest,
    /// keep their last values.
    pub fn add(&mut self, sample: &Sample) {
        let read = self.columns.iter().zip(&sample.values);
        for (value, (column, read)) in self.values.iter_mut().zip(read) {
            let is_total = column.figure.over_time == OverTime::Sum;
            let is_kept = is_total || column.figure.table == "filesystem";
            if !read.is_nan() {
                // NaN before the first value.
                *value = if is_total { value.max(0.0) } else { 0.0 } + read;
            } else if !is_kept {
                *value = f64::NAN;
            }
        }
    }
}

/// The groups of a host in which a figure has a value.
pub fn groups(
    run: &StoredRun,
    host: &StoredHost,
    figure: &Figure,
    by: &[&'static str],
    failures: &mut Vec<String>,
) -> BTreeSet<String> {
    let mut columns = by.to_vec();
    figure.columns(&mut columns);
    let mut groups = BTreeSet::new();
    let read = run.read(figure.table, host, &columns, |batch| {
        let values = figure.values(batch);
        for (name, value) in names_of_groups(batch, by).into_iter().zip(values) {
            if let Some(name) = name.filter(|_| value.is_some_and(|value| !value.is_nan())) {
                groups.insert(name);
            }
        }
    });
    failures.extend(read.err().into_iter().flatten());
    groups
}

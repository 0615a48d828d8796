//! Computes figures of a stored run, all that need the same table in one reading of it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use arrow::array::RecordBatch;

use super::{
    figure::{Accumulator, Coverage, Figure, OverRows, OverTime},
    rows::{ProcessKey, Texts, numbers, processes, times},
    series::{Named, Series, Span},
    stored_run::{StoredHost, StoredRun},
};
use crate::support::worker::in_threads;

/// How rows are divided into groups, each with figures of its own.
pub enum Groups {
    /// All rows are one group.
    All,
    /// By a text that the process of the row has; rows of other processes do not count.
    Process(HashMap<ProcessKey, String>),
    /// By columns of the table. Rows without the first one do not count; nulls in the others are left
    /// out of the name.
    Columns(Vec<&'static str>),
}

/// Between the parts of the name of a group of several columns.
pub const SEPARATOR: &str = "\u{1f}";

/// Figures of a group.
#[derive(Clone, Debug, Default)]
pub struct Values(Vec<Accumulator>);

impl Values {
    /// No values.
    pub fn new(figures: &[Figure]) -> Self {
        Self(vec![Accumulator::default(); figures.len()])
    }

    /// Adds those of another host or run.
    pub fn merge(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            own.merge(other);
        }
    }

    /// The results, in the order of the figures.
    pub fn results(&self, figures: &[Figure]) -> Vec<Option<f64>> {
        let of = |index: usize| self.0[index].result(figures[index].over_time);
        let bound = |figure: &Figure| {
            let name = figure.at_least?;
            of(figures.iter().position(|other| other.name == name)?)
        };
        let known = figures.iter().enumerate().take(self.0.len());
        known
            .map(|(index, figure)| match (of(index), bound(figure)) {
                (Some(value), Some(bound)) => Some(value.max(bound)),
                (value, bound) => value.or(bound),
            })
            .collect()
    }
}

impl Values {
    /// The rows behind sums to which some rows contribute nothing because they have no value.
    pub fn partial(&self, figures: &[Figure]) -> Vec<(&'static str, Coverage)> {
        let pairs = figures.iter().zip(&self.0);
        let sums = pairs.filter(|(figure, _)| figure.is_sum());
        sums.filter_map(|(figure, value)| Some((figure.name, value.missing()?)))
            .collect()
    }
}

/// Figures by group.
pub type Grouped = BTreeMap<String, Values>;

/// The value of a figure in a reading.
#[derive(Clone, Copy, Debug)]
pub struct OfReading {
    /// Index of the figure.
    pub index: usize,
    /// NaN for null.
    pub value: f64,
    pub rows: Coverage,
}

/// Receives the values of readings.
pub trait Collect {
    /// Adds the values of a group in the `seconds` until `ts` (µs since 1970-01-01 UTC).
    fn add(&mut self, figures: &[Figure], group: &str, at: (i64, f64), values: &[OfReading]);
}

impl Collect for Grouped {
    fn add(&mut self, figures: &[Figure], group: &str, at: (i64, f64), values: &[OfReading]) {
        if !self.contains_key(group) {
            self.insert(group.to_owned(), Values::new(figures));
        }
        if let Some(into) = self.get_mut(group) {
            for of in values {
                let over_time = figures[of.index].over_time;
                into.0[of.index].add(over_time, of.value, at.1, of.rows);
            }
        }
    }
}

/// Figures over time, one map for each figure.
pub struct OverTimes {
    pub span: Span,
    pub series: Vec<Named>,
}

impl OverTimes {
    /// Without values.
    pub fn new(span: Span, figures: &[Figure]) -> Self {
        let series = vec![Named::new(); figures.len()];
        Self { span, series }
    }
}

impl Collect for OverTimes {
    fn add(&mut self, figures: &[Figure], group: &str, at: (i64, f64), values: &[OfReading]) {
        let (ts, seconds) = at;
        for &OfReading { index, value, .. } in values.iter().filter(|of| !of.value.is_nan()) {
            // Increases are shown as rates.
            let value = match figures[index].over_time {
                OverTime::Sum if seconds > 0.0 => value / seconds,
                OverTime::Sum => continue,
                _ => value,
            };
            let named = &mut self.series[index];
            if !named.contains_key(group) {
                named.insert(group.to_owned(), Series::new(&self.span));
            }
            if let Some(series) = named.get_mut(group) {
                series.add(&self.span, ts, seconds, value);
            }
        }
    }
}

/// Figures to compute, and how rows are divided among groups.
pub struct Request<'a, C = Grouped> {
    pub figures: &'a [Figure],
    pub groups: Groups,
    /// The result.
    pub values: C,
}

impl<'a, C: Collect> Request<'a, C> {
    /// A request whose result is added to `values`.
    pub fn new(figures: &'a [Figure], groups: Groups, values: C) -> Self {
        Self {
            figures,
            groups,
            values,
        }
    }

    /// Adds columns of `table` that it needs.
    fn columns(&self, table: &str, columns: &mut Vec<&'static str>) {
        for figure in self.figures.iter().filter(|figure| figure.table == table) {
            figure.columns(columns);
            match &self.groups {
                Groups::All => {}
                Groups::Process(_) => columns.extend(["pid", "start_ts"]),
                Groups::Columns(names) => columns.extend(names),
            }
        }
    }
}

/// Computes figures of a host. Returns the files that cannot be read, with the reason; the figures
/// have the rows of all others.
pub fn scan<C: Collect>(
    run: &StoredRun,
    host: &StoredHost,
    requests: &mut [Request<'_, C>],
) -> Vec<String> {
    let mut failures = Vec::new();
    let figures = requests.iter().flat_map(|request| request.figures);
    let tables: BTreeSet<&str> = figures.map(|figure| figure.table).collect();
    for table in tables {
        let mut columns = vec!["ts", "interval_ns"];
        let mut readings = Vec::new();
        for request in &mut *requests {
            request.columns(table, &mut columns);
            readings.extend(Reading::new(table, request));
        }
        let read = run.read(table, host, &columns, |batch| {
            for reading in &mut readings {
                reading.add(batch);
            }
        });
        readings.iter_mut().for_each(Reading::end);
        failures.extend(read.err().into_iter().flatten());
    }
    failures
}

/// The rows of one reading, which follow one another.
struct Reading<'a, C> {
    figures: &'a [Figure],
    /// The figures of this table.
    indices: Vec<usize>,
    groups: &'a Groups,
    into: &'a mut C,
    ts: Option<i64>,
    /// Names of the groups, in the order of `values`.
    names: Vec<String>,
    numbers: HashMap<String, usize>,
    /// By group and figure.
    values: Vec<Vec<OfRows>>,
    /// By group: the time that its rows cover.
    seconds: Vec<f64>,
    /// Groups with rows in this reading.
    touched: Vec<usize>,
}

/// Aggregate over the rows of one reading.
#[derive(Clone, Copy)]
struct OfRows {
    value: f64,
    rows: Coverage,
}

const NONE: OfRows = OfRows {
    value: f64::NAN,
    rows: Coverage { known: 0, of: 0 },
};

impl OfRows {
    fn add(&mut self, over: OverRows, value: f64) {
        self.rows.of += 1;
        if value.is_nan() {
            return;
        }
        self.rows.known += 1;
        self.value = match over {
            _ if self.rows.known == 1 => value,
            OverRows::Sum | OverRows::Mean => self.value + value,
            OverRows::Max => self.value.max(value),
            OverRows::Min => self.value.min(value),
        };
    }

    fn result(self, over: OverRows) -> f64 {
        match over {
            OverRows::Mean => self.value / self.rows.known as f64,
            _ => self.value,
        }
    }
}

impl<'a, C: Collect> Reading<'a, C> {
    /// For the figures of this table, if there are any.
    fn new(table: &str, request: &'a mut Request<'_, C>) -> Option<Self> {
        let figures = request.figures.iter().enumerate();
        let of_table = figures.filter(|(_, figure)| figure.table == table);
        let indices: Vec<_> = of_table.map(|(index, _)| index).collect();
        (!indices.is_empty()).then(|| Self {
            figures: request.figures,
            indices,
            groups: &request.groups,
            into: &mut request.values,
            ts: None,
            names: Vec::new(),
            numbers: HashMap::new(),
            values: Vec::new(),
            seconds: Vec::new(),
            touched: Vec::new(),
        })
    }

    fn add(&mut self, batch: &RecordBatch) {
        let group_of = self.groups_of(batch);
        let times = times(batch, "ts");
        let intervals = numbers(batch, "interval_ns");
        let columns: Vec<_> = self
            .indices
            .iter()
            .map(|&index| {
                (
                    self.figures[index].over_rows,
                    self.figures[index].values(batch),
                )
            })
            .collect();
        for row in 0..batch.num_rows() {
            let (Some(group), Some(ts)) = (group_of[row], times[row]) else {
                continue;
            };
            if self.ts != Some(ts) {
                self.end();
                self.ts = Some(ts);
            }
            // A group is touched by rows without values too: it exists.
            if self.values[group].is_empty() {
                self.values[group] = vec![NONE; columns.len()];
                self.touched.push(group);
            }
            self.seconds[group] = self.seconds[group].max(intervals[row] / 1e9);
            for (of_rows, (over, values)) in self.values[group].iter_mut().zip(&columns) {
                if let Some(value) = values[row] {
                    of_rows.add(*over, value);
                }
            }
        }
    }

    /// The group of each row.
    fn groups_of(&mut self, batch: &RecordBatch) -> Vec<Option<usize>> {
        match self.groups {
            Groups::All => vec![Some(self.number("")); batch.num_rows()],
            Groups::Process(names) => {
                let processes = processes(batch).into_iter();
                let name = |process: Option<ProcessKey>| names.get(&process?);
                processes
                    .map(|process| name(process).map(|name| self.number(name)))
                    .collect()
            }
            Groups::Columns(names) => {
                let names = names_of_groups(batch, names);
                names
                    .into_iter()
                    .map(|name| name.map(|name| self.number(&name)))
                    .collect()
            }
        }
    }

    fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len();
        self.names.push(name.to_owned());
        self.values.push(Vec::new());
        self.seconds.push(0.0);
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// Passes the values of the reading on.
    fn end(&mut self) {
        let Some(ts) = self.ts else { return };
        for group in self.touched.drain(..) {
            let values = std::mem::take(&mut self.values[group]).into_iter();
            let values = self.indices.iter().zip(values);
            let values = values.map(|(&index, of_rows)| OfReading {
                index,
                value: of_rows.result(self.figures[index].over_rows),
                rows: of_rows.rows,
            });
            let values: Vec<_> = values.collect();
            let at = (ts, std::mem::take(&mut self.seconds[group]));
            self.into.add(self.figures, &self.names[group], at, &values);
        }
    }
}

/// The name of the group of each row, by these columns.
pub fn names_of_groups(batch: &RecordBatch, columns: &[&str]) -> Vec<Option<String>> {
    let columns: Vec<_> = columns.iter().map(|name| Texts::of(batch, name)).collect();
    let name = |row| {
        columns.first()?.get(row)?;
        let parts: Vec<_> = columns.iter().filter_map(|texts| texts.get(row)).collect();
        Some(parts.join(SEPARATOR))
    };
    (0..batch.num_rows()).map(name).collect()
}

/// Calls `work` for each host, several at the same time, and returns the results in the order of the
/// hosts.
pub fn for_each_host<T: Send>(
    hosts: &[StoredHost],
    work: impl Fn(&StoredHost) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results: Vec<_> = hosts.iter().map(|_| Mutex::new(None)).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    in_threads(threads.min(hosts.len()), || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(host) = hosts.get(number) else { break };
            let result = work(host);
            *results[number]
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(result);
        }
    });
    let results = results.into_iter();
    results
        .filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::catalog::PROCESSES;

    fn index(name: &str) -> usize {
        let mut all = PROCESSES.iter();
        all.position(|figure| figure.name == name)
            .expect("declared")
    }

    #[test]
    fn sums_know_their_rows_and_peaks_their_bounds() {
        let of = |name: &str, value, rows: [u64; 2]| OfReading {
            index: index(name),
            value,
            rows: Coverage {
                known: rows[0],
                of: rows[1],
            },
        };
        let mut values = Grouped::new();
        let samples = [
            of("storage_read_bytes", 5.0, [2, 3]),
            of("storage_write_bytes", 0.0, [3, 3]),
            of("peak_memory_bytes", 70.0, [1, 3]),
            of("max_process_rss_bytes", 300.0, [3, 3]),
        ];
        values.add(PROCESSES, "", (1, 1.0), &samples);
        let again = [of("storage_read_bytes", 1.0, [3, 3])];
        values.add(PROCESSES, "", (2, 1.0), &again);
        let values = &values[""];
        let partial = ("storage_read_bytes", Coverage { known: 5, of: 6 });
        assert_eq!(values.partial(PROCESSES), [partial]);
        let results = values.results(PROCESSES);
        let result = |name: &str| results[index(name)];
        assert_eq!(result("storage_read_bytes"), Some(6.0));
        assert_eq!(result("storage_write_bytes"), Some(0.0));
        // Also where nothing was sampled.
        assert_eq!(result("peak_memory_bytes"), Some(300.0));
        assert_eq!(result("peak_rss_bytes"), Some(300.0));
        assert_eq!(result("peak_swap_bytes"), None);
    }
}

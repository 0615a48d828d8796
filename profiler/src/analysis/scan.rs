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
    figure::{Accumulator, Figure, OverRows},
    rows::{ProcessKey, Texts, numbers, processes, times},
    stored_run::{StoredHost, StoredRun},
};

/// How rows are divided into groups, each with figures of its own.
pub enum Groups {
    /// All rows are one group.
    All,
    /// By a text that the process of the row has; rows of other processes do not count.
    Process(HashMap<ProcessKey, String>),
    /// By a column of the table.
    Column(&'static str),
}

/// Figures of a group.
#[derive(Clone, Debug)]
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
        let pairs = self.0.iter().zip(figures);
        pairs
            .map(|(value, figure)| value.result(figure.over_time))
            .collect()
    }
}

/// Figures by group.
pub type Grouped = BTreeMap<String, Values>;

/// Figures to compute, and how rows are divided among groups.
pub struct Request<'a> {
    pub figures: &'a [Figure],
    pub groups: Groups,
    /// The result.
    pub values: Grouped,
}

impl<'a> Request<'a> {
    /// A request without values yet.
    pub fn new(figures: &'a [Figure], groups: Groups) -> Self {
        Self {
            figures,
            groups,
            values: Grouped::new(),
        }
    }

    /// Adds columns of `table` that it needs.
    fn columns(&self, table: &str, columns: &mut Vec<&'static str>) {
        for figure in self.figures.iter().filter(|figure| figure.table == table) {
            figure.columns(columns);
            match self.groups {
                Groups::All => {}
                Groups::Process(_) => columns.extend(["pid", "start_ts"]),
                Groups::Column(name) => columns.push(name),
            }
        }
    }
}

/// Computes figures of a host. Returns the files that cannot be read, with the reason; the figures
/// have the rows of all others.
pub fn scan(run: &StoredRun, host: &StoredHost, requests: &mut [Request<'_>]) -> Vec<String> {
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
struct Reading<'a> {
    figures: &'a [Figure],
    /// The figures of this table.
    indices: Vec<usize>,
    groups: &'a Groups,
    into: &'a mut Grouped,
    ts: Option<i64>,
    seconds: f64,
    /// Names of the groups, in the order of `values`.
    names: Vec<String>,
    numbers: HashMap<String, usize>,
    /// By group and figure.
    values: Vec<Vec<OfRows>>,
    /// Groups with rows in this reading.
    touched: Vec<usize>,
}

/// Aggregate over the rows of one reading.
#[derive(Clone, Copy)]
struct OfRows {
    value: f64,
    count: u64,
}

const NONE: OfRows = OfRows {
    value: f64::NAN,
    count: 0,
};

impl OfRows {
    fn add(&mut self, over: OverRows, value: f64) {
        if value.is_nan() {
            return;
        }
        self.count += 1;
        self.value = match over {
            _ if self.count == 1 => value,
            OverRows::Sum | OverRows::Mean => self.value + value,
            OverRows::Max => self.value.max(value),
            OverRows::Min => self.value.min(value),
        };
    }

    fn result(self, over: OverRows) -> f64 {
        match over {
            OverRows::Mean => self.value / self.count as f64,
            _ => self.value,
        }
    }
}

impl<'a> Reading<'a> {
    /// For the figures of this table, if there are any.
    fn new(table: &str, request: &'a mut Request<'_>) -> Option<Self> {
        let figures = request.figures.iter().enumerate();
        let of_table = figures.filter(|(_, figure)| figure.table == table);
        let indices: Vec<_> = of_table.map(|(index, _)| index).collect();
        (!indices.is_empty()).then(|| Self {
            figures: request.figures,
            indices,
            groups: &request.groups,
            into: &mut request.values,
            ts: None,
            seconds: 0.0,
            names: Vec::new(),
            numbers: HashMap::new(),
            values: Vec::new(),
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
            self.seconds = self.seconds.max(intervals[row] / 1e9);
            for (of_rows, (over, values)) in self.values[group].iter_mut().zip(&columns) {
                of_rows.add(*over, values[row]);
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
            Groups::Column(name) => {
                let texts = Texts::of(batch, name);
                let rows = 0..batch.num_rows();
                rows.map(|row| texts.get(row).map(|name| self.number(name)))
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
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// Adds the values of the reading to those over time.
    fn end(&mut self) {
        for group in self.touched.drain(..) {
            let values = std::mem::take(&mut self.values[group]);
            let into = self.into.entry(self.names[group].clone());
            let into = into.or_insert_with(|| Values::new(self.figures));
            for (&index, of_rows) in self.indices.iter().zip(values) {
                let figure = &self.figures[index];
                let value = of_rows.result(figure.over_rows);
                into.0[index].add(figure.over_time, value, self.seconds);
            }
        }
        self.seconds = 0.0;
    }
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
    std::thread::scope(|scope| {
        for _ in 0..threads.min(hosts.len()) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(host) = hosts.get(number) else { break };
                    let result = work(host);
                    *results[number]
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner) = Some(result);
                }
            });
        }
    });
    let results = results.into_iter();
    results
        .filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

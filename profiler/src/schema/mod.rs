//! Tables and their columns, with unit, kind and help.
//!
//! A source declares its row with [`columns!`](crate::columns) and its table with
//! [`TypedTable::new`]. The Arrow schema, the metric reference and the DuckDB views are generated
//! from these declarations, and [`read`] reads finished batches through them.

mod cell;
mod column;
mod dataset;
pub mod duckdb;
mod edition;
pub mod read;
pub mod run;

use std::{
    marker::PhantomData,
    ops::Deref,
    sync::{Arc, OnceLock},
};

use arrow::{
    array::RecordBatch,
    datatypes::{Schema, SchemaRef},
};

pub use self::{
    cell::{Buckets, Cell, Label, Timestamp, Words, is_column_type},
    column::{Column, ColumnHandle, Columns, Kind},
    dataset::{DatasetSchema, SourceTable, View},
    edition::Edition,
};
use crate::columns;

/// Version of the schema as a whole; renaming or retyping a column increments it.
pub const SCHEMA_VERSION: u32 = 4;

columns! {
    /// Columns of every table with rows per sample.
    pub struct TickKey {
        ts: Timestamp = Label("us", "Wall clock of the sample, from one monotonic→realtime offset per run"),
        interval_ns: u64 = Gauge("ns", "Time this row covers"),
    }
}

columns! {
    /// Columns of every table with rows per sample and process, of which some rows have no process.
    pub struct OwnerKey {
        ts: Timestamp = Label("us", "Wall clock of the sample, from one monotonic→realtime offset per run"),
        interval_ns: u64 = Gauge("ns", "Time this row covers"),
        pid: Option<u32> = Label("", "Process id (thread group id) in the profiler's pid namespace; null in rows without a process"),
        start_ts: Option<Timestamp> = Label("us", "Start of the process; (pid, start_ts) identifies it"),
        tid: Option<u32> = Label("", "Thread id with --threads; null in the rows of whole processes"),
    }
}

columns! {
    /// Columns of every table with rows per sample and process.
    pub struct ProcessKey {
        ts: Timestamp = Label("us", "Wall clock of the sample, from one monotonic→realtime offset per run"),
        interval_ns: u64 = Gauge("ns", "Time this row covers"),
        pid: u32 = Label("", "Process id (thread group id) in the profiler's pid namespace"),
        start_ts: Timestamp = Label("us", "Start of the process; (pid, start_ts) identifies it"),
        tid: Option<u32> = Label("", "Thread id with --threads; null in the rows of whole processes"),
    }
}

/// Last column of every Parquet file.
pub const RUN_COLUMN: Column = Column {
    name: "run",
    unit: "",
    kind: Kind::Label,
    help: "Name of the run",
    model: "",
    data_type: Label::data_type,
    nullable: false,
};

/// Column that readers make from the path of a Parquet file.
pub const HOST_COLUMN: Column = Column {
    name: "host",
    unit: "",
    kind: Kind::Label,
    help: "Name of the node, from the name of the directory",
    model: "",
    data_type: String::data_type,
    nullable: false,
};

/// One table of the dataset.
#[derive(Debug)]
pub struct Table {
    /// Name of the table and of its directory.
    pub name: &'static str,
    /// Meaning of one row.
    pub help: &'static str,
    /// Whether only the last row of each key is stored. The key is `(pid, region)` if the table has
    /// a column `region`, else `(pid, start_ts)`. A row whose `region_end_ts` or `end_ts` is null
    /// is still open, and is stored when the run ends.
    pub keyed: bool,
    /// Whether every sample has at least one row, whatever the target does.
    pub every_tick: bool,
    /// How rows of sleeping processes that are left out are made; `None` if none is left out.
    pub sparse: Option<&'static Sparse>,
    columns: [&'static [Column]; 2],
    schema: OnceLock<SchemaRef>,
}

/// What the row of a sleeping process has at a sample without a row of it. Counters are 0, and all
/// other columns are as in its last row, but:
#[derive(Debug)]
pub struct Sparse {
    /// Counter that has the interval.
    pub asleep: Option<&'static str>,
    /// Columns that are null, because they are not read at each sample.
    pub occasional: &'static [&'static str],
}

impl Sparse {
    /// Longest time between the rows of a process, s.
    pub const PERIOD_S: u32 = 60;
}

impl Table {
    /// The view with a row of each process at every sample; the table itself if none is left out.
    pub fn filled(&self) -> String {
        match self.sparse {
            Some(_) => format!("{}_filled", self.name),
            None => self.name.to_owned(),
        }
    }

    /// All columns in order.
    pub fn columns(&self) -> impl Iterator<Item = &'static Column> + use<> {
        let [key, row] = self.columns;
        key.iter().chain(row)
    }

    /// Index of the column that is null in the rows of whole processes, in a table per process.
    pub fn thread_column(&self) -> Option<usize> {
        let mut columns = self.columns();
        columns.position(|column| column.name == ProcessKey::tid.name())
    }

    /// The Arrow schema, of [fields with metadata](Column::field).
    pub fn schema(&self) -> SchemaRef {
        self.schema
            .get_or_init(|| {
                let fields: Vec<_> = self.columns().map(Column::field).collect();
                Arc::new(Schema::new(fields))
            })
            .clone()
    }
}

/// A table with the types of its rows: each row has the columns of `K`, then those of `R`.
#[derive(Debug)]
pub struct TypedTable<K, R> {
    table: Table,
    types: PhantomData<fn() -> (K, R)>,
}

impl<K: Columns, R: Columns> TypedTable<K, R> {
    /// Declares a table; `help` is the meaning of one row.
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self {
            table: Table {
                name,
                help,
                keyed: false,
                every_tick: false,
                sparse: None,
                columns: [K::COLUMNS, R::COLUMNS],
                schema: OnceLock::new(),
            },
            types: PhantomData,
        }
    }

    /// Declares a table of which only the last row of each key is stored: see [`Table::keyed`].
    pub const fn keyed(name: &'static str, help: &'static str) -> Self {
        let mut table = Self::new(name, help);
        table.table.keyed = true;
        table
    }

    /// Declares a table with rows at every sample: see [`Table::every_tick`].
    pub const fn every_tick(name: &'static str, help: &'static str) -> Self {
        let mut table = Self::new(name, help);
        table.table.every_tick = true;
        table
    }

    /// Declares a table whose rows of sleeping processes can be left out: see [`Table::sparse`].
    pub const fn sparse(name: &'static str, help: &'static str, sparse: &'static Sparse) -> Self {
        let mut table = Self::new(name, help);
        table.table.sparse = Some(sparse);
        table
    }

    /// The same table without the types of its rows.
    pub const fn untyped(&'static self) -> &'static Table {
        &self.table
    }
}

impl<K, R> Deref for TypedTable<K, R> {
    type Target = Table;
    fn deref(&self) -> &Table {
        &self.table
    }
}

/// Rows of one table, on their way from a source to the outputs.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Table of the rows.
    pub table: &'static Table,
    pub rows: RecordBatch,
}

/// Collects the rows of one table.
pub struct TableBuilder<K: Columns, R: Columns> {
    table: &'static TypedTable<K, R>,
    key: K::Builder,
    row: R::Builder,
    rows: usize,
}

impl<K: Columns, R: Columns> TableBuilder<K, R> {
    /// An empty builder.
    pub fn new(table: &'static TypedTable<K, R>) -> Self {
        Self {
            table,
            key: K::Builder::default(),
            row: R::Builder::default(),
            rows: 0,
        }
    }

    /// Adds one row.
    pub fn push(&mut self, key: K, row: R) {
        key.append(&mut self.key);
        row.append(&mut self.row);
        self.rows += 1;
    }

    /// Adds the rows collected so far to `out` as one batch, unless there are none.
    ///
    /// # Panics
    ///
    /// If a builder has another type than its table, which the compiler excludes.
    pub fn finish(&mut self, out: &mut Vec<Batch>) {
        if self.rows == 0 {
            return;
        }
        self.rows = 0;
        let mut arrays = Vec::new();
        K::finish(&mut self.key, &mut arrays);
        R::finish(&mut self.row, &mut arrays);
        let rows = RecordBatch::try_new(self.table.schema(), arrays)
            .expect("table and builder have the same row types");
        out.push(Batch {
            table: self.table,
            rows,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    columns! {
        /// A row with each kind of cell.
        pub struct Row {
            count: u64 = Counter("1", "A count"),
            maybe: Option<u64> = Gauge("bytes", "Null when unknown"),
            name: Label = Label("", "A name"),
            hist: Option<Buckets> = Counter("1", "A histogram"),
        }
    }

    static TABLE: TypedTable<TickKey, Row> = TypedTable::new("test", "One row per test");

    #[test]
    fn rows_become_typed_columns() {
        let mut builder = TableBuilder::new(&TABLE);
        for (maybe, hist) in [(Some(7), Some(Buckets(vec![0, 2]))), (None, None)] {
            builder.push(
                TickKey {
                    ts: Timestamp::from_us(5),
                    interval_ns: 1,
                },
                Row {
                    count: 1,
                    maybe,
                    name: "a".into(),
                    hist,
                },
            );
        }
        let mut out = Vec::new();
        builder.finish(&mut out);
        builder.finish(&mut out);
        let [batch] = &out[..] else {
            panic!("one batch, not {}", out.len())
        };
        assert_eq!(batch.rows.num_rows(), 2);
        assert_eq!(batch.rows.column(3).null_count(), 1);
        assert_eq!(batch.rows.column(5).null_count(), 1);
        let schema = TABLE.schema();
        assert_eq!(schema.field(0).data_type(), &Timestamp::data_type());
        assert_eq!(schema.field(3).metadata()["unit"], "bytes");
        assert!(schema.field(3).is_nullable() && !schema.field(2).is_nullable());
    }

    #[test]
    fn handles_have_the_place_and_name_of_their_column() {
        assert_eq!((Row::count.index(), Row::hist.index()), (0, 3));
        assert_eq!(Row::hist.name(), "hist");
        assert_eq!(ProcessKey::tid.index(), OwnerKey::tid.index());
    }

    #[test]
    fn only_tables_per_process_have_threads() {
        static OF_PROCESSES: TypedTable<ProcessKey, Row> = TypedTable::new("test", "A test");
        assert_eq!(OF_PROCESSES.thread_column(), Some(4));
        assert_eq!(TABLE.thread_column(), None);
    }
}

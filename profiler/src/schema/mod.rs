//! Tables and columns: the one place that says what is stored, in which unit and of which kind.
//!
//! A source declares its row with [`columns!`](crate::columns) and its table with [`Table::new`]. The Arrow
//! schema, the metric reference and the DuckDB views all come from these declarations.

pub(super) mod read;

use std::sync::{Arc, OnceLock};

use arrow::{
    array::{
        ArrayRef, BooleanBuilder, ListBuilder, PrimitiveBuilder, RecordBatch, StringBuilder,
        StringDictionaryBuilder, TimestampNanosecondBuilder, UInt64Builder,
    },
    datatypes::{
        DataType, Field, Float64Type, Int32Type, Int64Type, Schema, SchemaRef, TimeUnit,
        UInt32Type, UInt64Type,
    },
};

/// Version of the schema as a whole; a renamed or retyped column increments it.
pub const SCHEMA_VERSION: u32 = 2;

/// How the values of a column behave over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Increase over the interval.
    Counter,
    /// Value as read at the tick.
    Gauge,
    /// Name, identifier or other fact.
    Label,
}

impl Kind {
    /// The word in the field metadata.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Label => "label",
        }
    }
}

/// One column of a table; every part is mandatory.
#[derive(Debug)]
pub struct Column {
    /// Name in the Arrow schema.
    pub name: &'static str,
    /// Unit of the values (`ns`, `bytes`, `1` for a plain count), empty for labels.
    pub unit: &'static str,
    /// How the values behave over time.
    pub kind: Kind,
    /// One line that says what is counted, and where it comes from.
    pub help: &'static str,
    /// Name of the model that made the values; empty for what was measured.
    pub model: &'static str,
    /// Arrow type.
    pub data_type: fn() -> DataType,
    /// Whether "not available" can occur.
    pub nullable: bool,
}

/// A value that a column can hold.
pub trait Cell: Sized {
    /// Collects the values of one batch.
    type Builder: Default;
    /// Whether the type has a "not available".
    const NULLABLE: bool = false;
    /// Arrow type of the column.
    fn data_type() -> DataType;
    /// Adds one value.
    fn append(value: Option<Self>, builder: &mut Self::Builder);
    /// Ends the batch.
    fn finish(builder: &mut Self::Builder) -> ArrayRef;
}

/// Whether a column of a table can have this type.
pub fn is_column_type(data_type: &DataType) -> bool {
    let types: [fn() -> DataType; 10] = [
        u64::data_type,
        u32::data_type,
        i64::data_type,
        i32::data_type,
        f64::data_type,
        bool::data_type,
        String::data_type,
        Label::data_type,
        Timestamp::data_type,
        Buckets::data_type,
    ];
    types.iter().any(|of| of() == *data_type)
}

/// "Not available" is null in Arrow.
impl<T: Cell> Cell for Option<T> {
    type Builder = T::Builder;
    const NULLABLE: bool = true;
    fn data_type() -> DataType {
        T::data_type()
    }
    fn append(value: Option<Self>, builder: &mut Self::Builder) {
        T::append(value.flatten(), builder);
    }
    fn finish(builder: &mut Self::Builder) -> ArrayRef {
        T::finish(builder)
    }
}

macro_rules! primitive_cell {
    ($($native:ty => $arrow:ty, $data_type:expr;)*) => {$(
        impl Cell for $native {
            type Builder = PrimitiveBuilder<$arrow>;
            fn data_type() -> DataType {
                $data_type
            }
            fn append(value: Option<Self>, builder: &mut Self::Builder) {
                builder.append_option(value);
            }
            fn finish(builder: &mut Self::Builder) -> ArrayRef {
                Arc::new(builder.finish())
            }
        }
    )*};
}

primitive_cell! {
    u64 => UInt64Type, DataType::UInt64;
    u32 => UInt32Type, DataType::UInt32;
    i64 => Int64Type, DataType::Int64;
    i32 => Int32Type, DataType::Int32;
    f64 => Float64Type, DataType::Float64;
}

impl Cell for bool {
    type Builder = BooleanBuilder;
    fn data_type() -> DataType {
        DataType::Boolean
    }
    fn append(value: Option<Self>, builder: &mut Self::Builder) {
        builder.append_option(value);
    }
    fn finish(builder: &mut Self::Builder) -> ArrayRef {
        Arc::new(builder.finish())
    }
}

/// Free text that rarely repeats (a command line).
impl Cell for String {
    type Builder = StringBuilder;
    fn data_type() -> DataType {
        DataType::Utf8
    }
    fn append(value: Option<Self>, builder: &mut Self::Builder) {
        builder.append_option(value);
    }
    fn finish(builder: &mut Self::Builder) -> ArrayRef {
        Arc::new(builder.finish())
    }
}

/// A name that repeats from row to row; stored as an Arrow dictionary.
#[derive(Clone, Debug, Eq)]
pub enum Label {
    /// A word known at compile time.
    Static(&'static str),
    /// A name read from the system.
    Shared(Arc<str>),
}

impl Label {
    /// The text itself.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Static(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl PartialEq for Label {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl From<&'static str> for Label {
    fn from(text: &'static str) -> Self {
        Self::Static(text)
    }
}

impl From<String> for Label {
    fn from(text: String) -> Self {
        Self::Shared(text.into())
    }
}

impl From<&Arc<str>> for Label {
    fn from(text: &Arc<str>) -> Self {
        Self::Shared(text.clone())
    }
}

impl Cell for Label {
    type Builder = StringDictionaryBuilder<Int32Type>;
    fn data_type() -> DataType {
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
    }
    fn append(value: Option<Self>, builder: &mut Self::Builder) {
        builder.append_option(value.as_ref().map(Label::as_str));
    }
    fn finish(builder: &mut Self::Builder) -> ArrayRef {
        Arc::new(builder.finish())
    }
}

/// Wall clock in ns since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Cell for Timestamp {
    type Builder = TimestampNanosecondBuilder;
    fn data_type() -> DataType {
        DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
    }
    fn append(value: Option<Self>, builder: &mut Self::Builder) {
        builder.append_option(value.map(|Self(ns)| ns));
    }
    fn finish(builder: &mut Self::Builder) -> ArrayRef {
        Arc::new(builder.finish().with_timezone("UTC"))
    }
}

/// Log2 histogram: element i counts values in [2^i, 2^(i+1)); trailing zeros are cut off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets(pub Vec<u64>);

impl Cell for Buckets {
    type Builder = ListBuilder<UInt64Builder>;
    fn data_type() -> DataType {
        DataType::List(Arc::new(Field::new("item", DataType::UInt64, true)))
    }
    fn append(value: Option<Self>, builder: &mut Self::Builder) {
        if let Some(Self(counts)) = &value {
            builder.values().append_slice(counts);
        }
        builder.append(value.is_some());
    }
    fn finish(builder: &mut Self::Builder) -> ArrayRef {
        Arc::new(builder.finish())
    }
}

/// A struct whose fields are columns; made by [`columns!`](crate::columns).
pub trait Columns: Sized {
    /// Collects rows column by column.
    type Builder: Default;
    /// The columns in order.
    const COLUMNS: &'static [Column];
    /// Adds one row.
    fn append(self, builder: &mut Self::Builder);
    /// Ends the batch: one array per column.
    fn finish(builder: &mut Self::Builder, arrays: &mut Vec<ArrayRef>);
}

/// Declares a row struct and its columns together, so that they cannot differ.
///
/// ```
/// profiler::columns! {
///     /// What is stored of one example.
///     pub struct ExampleRow {
///         read_bytes: u64 = Counter("bytes", "Bytes read"),
///         temperature: Option<f64> = Gauge("°C", "Temperature; null without a sensor"),
///     }
/// }
/// ```
#[macro_export]
macro_rules! columns {
    ($(#[$meta:meta])* pub struct $row:ident {
        $($name:ident: $cell:ty = $kind:ident($unit:literal, $help:literal $(, $model:literal)?),)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $row {
            $(#[doc = $help] pub $name: $cell,)*
        }

        const _: () = {
            #[derive(Default)]
            pub struct Builder {
                $($name: <$cell as $crate::schema::Cell>::Builder,)*
            }

            impl $crate::schema::Columns for $row {
                type Builder = Builder;
                const COLUMNS: &'static [$crate::schema::Column] = &[
                    $($crate::schema::Column {
                        name: stringify!($name),
                        unit: $unit,
                        kind: $crate::schema::Kind::$kind,
                        help: $help,
                        model: [$($model,)? ""][0],
                        data_type: <$cell as $crate::schema::Cell>::data_type,
                        nullable: <$cell as $crate::schema::Cell>::NULLABLE,
                    },)*
                ];
                fn append(self, builder: &mut Builder) {
                    $(<$cell as $crate::schema::Cell>::append(Some(self.$name), &mut builder.$name);)*
                }
                fn finish(
                    builder: &mut Builder,
                    arrays: &mut Vec<::arrow::array::ArrayRef>,
                ) {
                    $(arrays.push(<$cell as $crate::schema::Cell>::finish(&mut builder.$name));)*
                }
            }
        };
    };
}

columns! {
    /// Columns of every table that has rows per tick.
    pub struct TickKey {
        ts: Timestamp = Label("ns", "Wall clock of the tick, from one monotonic→realtime offset per run"),
        interval_ns: u64 = Gauge("ns", "Measured time since this source's previous reading"),
    }
}

columns! {
    /// Columns of every table whose rows are of a process where that is known.
    pub struct OwnerKey {
        ts: Timestamp = Label("ns", "Wall clock of the tick, from one monotonic→realtime offset per run"),
        interval_ns: u64 = Gauge("ns", "Measured time since this source's previous reading of the process"),
        pid: Option<u32> = Label("", "Process id (thread group id) in the profiler's pid namespace; null: of no process that is known"),
        start_ts: Option<Timestamp> = Label("ns", "Start of the process; (pid, start_ts) identifies it"),
        tid: Option<u32> = Label("", "Thread id with --threads; null in the rows of whole processes"),
    }
}

columns! {
    /// Columns of every table that has rows per tick and process.
    pub struct ProcessKey {
        ts: Timestamp = Label("ns", "Wall clock of the tick, from one monotonic→realtime offset per run"),
        interval_ns: u64 = Gauge("ns", "Measured time since this source's previous reading of the process"),
        pid: u32 = Label("", "Process id (thread group id) in the profiler's pid namespace"),
        start_ts: Timestamp = Label("ns", "Start of the process; (pid, start_ts) identifies it"),
        tid: Option<u32> = Label("", "Thread id with --threads; null in the rows of whole processes"),
    }
}

/// One Parquet dataset.
#[derive(Debug)]
pub struct Table {
    /// Name of the table and of its directory.
    pub name: &'static str,
    /// What one row is.
    pub help: &'static str,
    /// Rows with the same `(pid, start_ts)` replace each other, or `(pid, region)` where there is such a column; those
    /// whose `end_ts` or `region_end_ts` is null are still open and are stored only when the run ends.
    pub lifetimes: bool,
    columns: [&'static [Column]; 2],
    schema: OnceLock<SchemaRef>,
}

impl Table {
    /// A table whose rows begin with the columns of `K` and go on with those of `R`.
    pub const fn new<K: Columns, R: Columns>(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            help,
            lifetimes: false,
            columns: [K::COLUMNS, R::COLUMNS],
            schema: OnceLock::new(),
        }
    }

    /// A table of lifetimes: see [`Table::lifetimes`].
    pub const fn of_lifetimes<K: Columns, R: Columns>(
        name: &'static str,
        help: &'static str,
    ) -> Self {
        let mut table = Self::new::<K, R>(name, help);
        table.lifetimes = true;
        table
    }

    /// All columns in order.
    pub fn columns(&self) -> impl Iterator<Item = &'static Column> + use<> {
        let [key, row] = self.columns;
        key.iter().chain(row)
    }

    /// The Arrow schema; each field's metadata carries `unit`, `kind`, `help`, and `model` where a model made the values.
    pub fn schema(&self) -> SchemaRef {
        self.schema
            .get_or_init(|| {
                let fields: Vec<_> = self
                    .columns()
                    .map(|column| {
                        let metadata = [
                            ("unit", column.unit),
                            ("kind", column.kind.as_str()),
                            ("help", column.help),
                            ("model", column.model),
                        ];
                        let metadata = metadata
                            .into_iter()
                            .filter(|(name, value)| *name != "model" || !value.is_empty())
                            .map(|(name, value)| (name.to_owned(), value.to_owned()))
                            .collect::<std::collections::HashMap<_, _>>();
                        Field::new(column.name, (column.data_type)(), column.nullable)
                            .with_metadata(metadata)
                    })
                    .collect();
                Arc::new(Schema::new(fields))
            })
            .clone()
    }
}

/// Rows of one table, on their way from a source to the sink.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Where the rows belong.
    pub table: &'static Table,
    /// The rows.
    pub rows: RecordBatch,
}

/// Collects the rows of one table.
pub struct TableBuilder<K: Columns, R: Columns> {
    table: &'static Table,
    key: K::Builder,
    row: R::Builder,
    rows: usize,
}

impl<K: Columns, R: Columns> TableBuilder<K, R> {
    /// An empty builder for `table`, which must have been declared with the same `K` and `R`.
    pub fn new(table: &'static Table) -> Self {
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

    /// Hands over the rows collected so far, if any.
    ///
    /// # Panics
    ///
    /// When the table was declared with other columns: an error in the program, not in its input.
    pub fn finish(&mut self, out: &mut Vec<Batch>) {
        if self.rows == 0 {
            return;
        }
        self.rows = 0;
        let mut arrays = Vec::new();
        K::finish(&mut self.key, &mut arrays);
        R::finish(&mut self.row, &mut arrays);
        let rows = RecordBatch::try_new(self.table.schema(), arrays)
            .expect("the table is declared with the columns of its builder");
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

    static TABLE: Table = Table::new::<TickKey, Row>("test", "One row per test");

    #[test]
    fn rows_become_typed_columns() {
        let mut builder = TableBuilder::<TickKey, Row>::new(&TABLE);
        for (maybe, hist) in [(Some(7), Some(Buckets(vec![0, 2]))), (None, None)] {
            builder.push(
                TickKey {
                    ts: Timestamp(5),
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
}

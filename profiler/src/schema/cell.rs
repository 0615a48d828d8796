//! Types of cells, and the Arrow types that store them.

use std::{ffi::OsStr, sync::Arc};

use arrow::{
    array::{
        Array, ArrayRef, BooleanArray, BooleanBuilder, DictionaryArray, ListArray, ListBuilder,
        PrimitiveArray, PrimitiveBuilder, StringArray, StringBuilder, StringDictionaryBuilder,
        TimestampMicrosecondArray, TimestampMicrosecondBuilder, UInt64Builder,
    },
    datatypes::{
        DataType, Field, Float64Type, Int32Type, Int64Type, TimeUnit, UInt32Type, UInt64Type,
    },
};

/// The value of a column in one row.
pub trait Cell: Sized {
    /// Collects the values of one batch.
    type Builder: Default;
    /// Array of a batch.
    type Array: Array + 'static;
    /// Whether the column can be null.
    const NULLABLE: bool = false;
    /// Arrow type of the column.
    fn data_type() -> DataType;
    /// Adds one value.
    fn append(value: Option<Self>, builder: &mut Self::Builder);
    /// Ends the batch.
    fn finish(builder: &mut Self::Builder) -> ArrayRef;
}

/// Type of timestamps before version 3 of the schema, whose journals can still be recovered.
fn timestamp_of_version_2() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
}

/// Whether a column of a table can have this type.
pub fn is_column_type(data_type: &DataType) -> bool {
    let types: [fn() -> DataType; 11] = [
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
        Words::data_type,
    ];
    types.iter().any(|known| known() == *data_type) || *data_type == timestamp_of_version_2()
}

/// `None` is null in Arrow.
impl<T: Cell> Cell for Option<T> {
    type Builder = T::Builder;
    type Array = T::Array;
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
            type Array = PrimitiveArray<$arrow>;
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
    type Array = BooleanArray;
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

/// Text that rarely repeats, such as a command line.
impl Cell for String {
    type Builder = StringBuilder;
    type Array = StringArray;
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

/// A name that repeats from row to row, stored in an Arrow dictionary.
#[derive(Clone, Debug, Eq)]
pub enum Label {
    /// A word known at compile time.
    Static(&'static str),
    /// A name read from the system.
    Shared(Arc<str>),
}

impl Label {
    /// Text of the label.
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

/// Bytes that are not UTF-8 become U+FFFD.
impl From<&OsStr> for Label {
    fn from(text: &OsStr) -> Self {
        Self::Shared(text.to_string_lossy().into())
    }
}

impl From<&Arc<str>> for Label {
    fn from(text: &Arc<str>) -> Self {
        Self::Shared(text.clone())
    }
}

impl Cell for Label {
    type Builder = StringDictionaryBuilder<Int32Type>;
    type Array = DictionaryArray<Int32Type>;
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

/// Wall clock in µs since 1970-01-01 UTC, rounded down. Readers such as Spark and DuckDB have no
/// time arithmetic in ns; durations have columns in ns of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The timestamp of a wall clock in ns since 1970-01-01 UTC.
    pub const fn from_ns(ns: i64) -> Self {
        Self(ns.div_euclid(1_000))
    }

    /// The timestamp of a wall clock in µs since 1970-01-01 UTC.
    pub const fn from_us(us: i64) -> Self {
        Self(us)
    }

    /// µs since 1970-01-01 UTC.
    pub const fn us(self) -> i64 {
        self.0
    }

    /// ns since 1970-01-01 UTC.
    pub const fn ns(self) -> i64 {
        self.0.saturating_mul(1_000)
    }
}

impl Cell for Timestamp {
    type Builder = TimestampMicrosecondBuilder;
    type Array = TimestampMicrosecondArray;
    fn data_type() -> DataType {
        DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
    }
    fn append(value: Option<Self>, builder: &mut Self::Builder) {
        builder.append_option(value.map(|Self(us)| us));
    }
    fn finish(builder: &mut Self::Builder) -> ArrayRef {
        Arc::new(builder.finish().with_timezone("UTC"))
    }
}

/// Histogram: number of values in each bucket. Trailing zeros are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets(pub Vec<u64>);

impl Cell for Buckets {
    type Builder = ListBuilder<UInt64Builder>;
    type Array = ListArray;
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

/// List of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words(pub Vec<String>);

impl Cell for Words {
    type Builder = ListBuilder<StringBuilder>;
    type Array = ListArray;
    fn data_type() -> DataType {
        DataType::List(Arc::new(Field::new("item", DataType::Utf8, true)))
    }
    fn append(value: Option<Self>, builder: &mut Self::Builder) {
        let is_known = value.is_some();
        for word in value.into_iter().flat_map(|Self(words)| words) {
            builder.values().append_value(word);
        }
        builder.append(is_known);
    }
    fn finish(builder: &mut Self::Builder) -> ArrayRef {
        Arc::new(builder.finish())
    }
}

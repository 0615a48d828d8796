//! Rows of one run and host in compacted files, which have those of many.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::Arc,
};

use arrow::{
    array::{
        Array as _, ArrayRef, AsArray as _, BooleanArray, RecordBatch, StringArray, new_null_array,
    },
    compute::{
        CastOptions, and, cast_with_options, filter_record_batch, interleave_record_batch,
        kernels::cmp::eq,
    },
    datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimestampMicrosecondType},
    error::ArrowError,
};
use parquet::{
    arrow::ProjectionMask,
    data_type::AsBytes as _,
    file::{metadata::RowGroupMetaData, statistics::Statistics},
};

use super::{DIRECTORY, day_and_name};
use crate::output::dataset::{
    files::Directory, parquet_file, parquet_reader::ParquetReader, sparse,
};

/// Rows of one batch.
const BATCH_ROWS: usize = 8192;
/// Rows that are sorted at once: beyond them, the files are read several times, each time for a part
/// of the time.
const SORTED_ROWS: u64 = 2 << 20;

/// The rows that are read.
#[derive(Clone, Copy, Debug)]
pub struct Filter<'a> {
    pub run: &'a str,
    pub host: &'a str,
    pub table: &'a str,
    /// Columns; `None` for all of them.
    pub columns: Option<&'a [&'a str]>,
    /// Rows after the first time until the second, µs since 1970-01-01 UTC.
    pub times: Option<(i64, i64)>,
}

/// Passes the rows of a file on, in its order.
///
/// # Errors
///
/// When the file cannot be read.
pub fn for_each_batch(
    run: &Directory,
    file: &str,
    filter: Filter<'_>,
    mut rows: impl FnMut(RecordBatch),
) -> io::Result<()> {
    parquet_file::decode(|| {
        let reader = open(run, filter.table, file)?;
        let groups: Vec<_> = groups(&reader, filter).map(|(index, _)| index).collect();
        let wanted = |name: &str| {
            ["run", "host"].contains(&name)
                || (name == "ts" && filter.times.is_some())
                || filter.columns.is_none_or(|columns| columns.contains(&name))
        };
        let fields = reader.schema().fields().iter().map(|field| field.name());
        let names: Vec<_> = fields
            .map(String::as_str)
            .filter(|name| wanted(name))
            .collect();
        let mask = ProjectionMask::columns(reader.parquet_schema(), names);
        let schema = reader.schema().clone();
        let reader = reader.with_projection(mask).with_row_groups(groups);
        for batch in reader.with_batch_size(BATCH_ROWS).build()? {
            let batch = sparse::of_file(selected(&batch?, filter)?, &schema);
            if batch.num_rows() > 0 {
                rows(batch);
            }
        }
        Ok(())
    })
}

/// Size of a file in bytes, and its rows.
///
/// # Errors
///
/// When the file cannot be read.
pub fn size(run: &Directory, table: &str, file: &str) -> io::Result<(u64, u64)> {
    parquet_file::decode(|| {
        let reader = open(run, table, file)?;
        let rows = reader.metadata().file_metadata().num_rows();
        Ok((reader.bytes()?, u64::try_from(rows).unwrap_or(0)))
    })
}

fn open(run: &Directory, table: &str, file: &str) -> io::Result<ParquetReader> {
    let (day, name) = day_and_name(file)?;
    let above = run.sub("..")?.sub(DIRECTORY)?;
    ParquetReader::open(&above.sub(table)?.sub(day)?, name)
}

/// Row groups that can have rows, by their statistics.
fn groups<'a>(
    reader: &'a ParquetReader,
    filter: Filter<'a>,
) -> impl Iterator<Item = (usize, &'a RowGroupMetaData)> {
    let groups = reader.metadata().row_groups().iter().enumerate();
    groups.filter(move |(_, group)| {
        let can_have = |column, text: &str| match statistics(group, column) {
            Some(Statistics::ByteArray(texts)) => {
                let text = text.as_bytes();
                texts.min_opt().is_none_or(|first| first.as_bytes() <= text)
                    && (texts.max_opt().is_none_or(|last| last.as_bytes() >= text)
                        || !texts.max_is_exact())
            }
            _ => true,
        };
        let in_time = filter.times.is_none_or(|(from, to)| {
            span(group).is_none_or(|(first, last)| first <= to && last > from)
        });
        in_time && can_have("host", filter.host) && can_have("run", filter.run)
    })
}

fn statistics<'a>(group: &'a RowGroupMetaData, column: &str) -> Option<&'a Statistics> {
    let mut columns = group.columns().iter();
    let column = columns.find(|of| of.column_path().string() == column);
    column?.statistics()
}

/// First and last `ts` of a row group.
pub fn span(group: &RowGroupMetaData) -> Option<(i64, i64)> {
    match statistics(group, "ts") {
        Some(Statistics::Int64(ts)) => Some((*ts.min_opt()?, *ts.max_opt()?)),
        _ => None,
    }
}

/// The rows of the run and host in these times, without the column of the host, which readers take
/// from the directory.
fn selected(batch: &RecordBatch, filter: Filter<'_>) -> io::Result<RecordBatch> {
    let text = |name: &str, value: &str| {
        let column = batch.column_by_name(name);
        let column = column.ok_or_else(|| io::Error::other(format!("no column {name}")))?;
        eq(column, &StringArray::new_scalar(value)).map_err(io::Error::other)
    };
    let of_run = and(&text("run", filter.run)?, &text("host", filter.host)?);
    let mut matches = of_run.map_err(io::Error::other)?;
    if let (Some((from, to)), Some(times)) = (filter.times, batch.column_by_name("ts"))
        && let Some(times) = times.as_primitive_opt::<TimestampMicrosecondType>()
    {
        let within: BooleanArray = times
            .iter()
            .map(|ts| Some(ts.is_some_and(|ts| ts > from && ts <= to)))
            .collect();
        matches = and(&matches, &within).map_err(io::Error::other)?;
    }
    let rows = filter_record_batch(batch, &matches).map_err(io::Error::other)?;
    let host = rows.schema().index_of("host").map_err(io::Error::other)?;
    let others: Vec<_> = (0..rows.num_columns())
        .filter(|&index| index != host)
        .collect();
    rows.project(&others).map_err(io::Error::other)
}

/// Passes the rows of several files on in the order of `ts`; rows with the same `ts` are in the order
/// of the files. About two million rows at most are in memory, with the columns asked for.
///
/// # Errors
///
/// When a file cannot be read.
pub fn read_by_time(
    run: &Directory,
    files: &BTreeSet<String>,
    count: u64,
    filter: Filter<'_>,
    mut rows: impl FnMut(&RecordBatch),
) -> io::Result<()> {
    let columns = filter.columns.map(|columns| [columns, &["ts"]].concat());
    let filter = Filter {
        columns: columns.as_deref(),
        ..filter
    };
    let windows = if count <= SORTED_ROWS {
        vec![filter.times]
    } else {
        windows(run, files, count, filter)?
    };
    for times in windows {
        let filter = Filter { times, ..filter };
        let mut batches = Vec::new();
        for file in files {
            for_each_batch(run, file, filter, |batch| batches.push(batch))?;
        }
        sorted_by_time(&batches, &mut rows).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Parts of the time, each with about [`SORTED_ROWS`] rows.
fn windows(
    run: &Directory,
    files: &BTreeSet<String>,
    count: u64,
    filter: Filter<'_>,
) -> io::Result<Vec<Option<(i64, i64)>>> {
    let mut all: Option<(i64, i64)> = None;
    for file in files {
        parquet_file::decode(|| {
            let reader = open(run, filter.table, file)?;
            for (first, last) in groups(&reader, filter).filter_map(|(_, group)| span(group)) {
                let (from, to) = all.unwrap_or((first, last));
                all = Some((from.min(first), to.max(last)));
            }
            Ok(())
        })?;
    }
    let Some((first, last)) = all else {
        return Ok(Vec::new());
    };
    let (from, to) = filter.times.unwrap_or((i64::MIN, i64::MAX));
    let (from, to) = (from.max(first.saturating_sub(1)), to.min(last));
    let number = i64::try_from(count.div_ceil(SORTED_ROWS)).unwrap_or(i64::MAX);
    let step = (to.saturating_sub(from) / number).max(1);
    let mut windows = Vec::new();
    let mut start = from;
    while start < to {
        let end = start.saturating_add(step).min(to);
        windows.push(Some((start, end)));
        start = end;
    }
    Ok(windows)
}

fn sorted_by_time(
    batches: &[RecordBatch],
    mut rows: impl FnMut(&RecordBatch),
) -> Result<(), ArrowError> {
    // Files of other versions can have other columns.
    let schemas = batches.iter().map(|batch| Schema::clone(&batch.schema()));
    let Some(schema) = schemas.reduce(|all, other| union(&all, &other)) else {
        return Ok(());
    };
    let schema = Arc::new(schema);
    let batches = batches.iter().map(|batch| aligned(batch, &schema));
    let batches = batches.collect::<Result<Vec<_>, _>>()?;
    let mut order = Vec::new();
    for (number, batch) in batches.iter().enumerate() {
        let ts = batch.column(schema.index_of("ts")?);
        let ts = ts.as_primitive::<TimestampMicrosecondType>();
        order.extend(ts.iter().enumerate().map(|(row, ts)| (ts, (number, row))));
    }
    order.sort_by_key(|(ts, _)| *ts);
    let order: Vec<_> = order.into_iter().map(|(_, place)| place).collect();
    let batches: Vec<_> = batches.iter().collect();
    for places in order.chunks(BATCH_ROWS) {
        rows(&interleave_record_batch(&batches, places)?);
    }
    Ok(())
}

/// The columns of the first schema, then those that only the second has.
fn union(first: &Schema, second: &Schema) -> Schema {
    let is_new = |field: &&Arc<Field>| first.index_of(field.name()).is_err();
    let new = second.fields().iter().filter(is_new);
    let fields: Vec<_> = first.fields().iter().chain(new).cloned().collect();
    let nullable = fields
        .iter()
        .map(|field| Field::clone(field).with_nullable(true));
    let metadata = [first.metadata(), second.metadata()].into_iter().flatten();
    let metadata = metadata.map(|(key, value)| (key.clone(), value.clone()));
    Schema::new_with_metadata(
        nullable.collect::<Vec<_>>(),
        metadata.collect::<HashMap<_, _>>(),
    )
}

/// The type of a column in compacted files. Texts are plain: in Parquet they have dictionaries
/// anyway.
pub fn plain(of: &DataType) -> &DataType {
    match of {
        DataType::Dictionary(_, values) => values,
        other => other,
    }
}

/// The rows with the columns of `schema`: missing ones are null, others are cast.
///
/// # Errors
///
/// When a value cannot be cast, or a column is missing that cannot be null.
pub fn aligned(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let column = |field: &Arc<Field>| -> Result<ArrayRef, ArrowError> {
        let Some(column) = batch.column_by_name(field.name()) else {
            return Ok(new_null_array(field.data_type(), batch.num_rows()));
        };
        if column.data_type() == field.data_type() {
            return Ok(column.clone());
        }
        // An error instead of a null for a value that does not fit.
        let options = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        let found = floored(column, field.data_type());
        cast_with_options(&found, field.data_type(), &options)
    };
    let columns = schema.fields().iter().map(column);
    RecordBatch::try_new(schema.clone(), columns.collect::<Result<_, _>>()?)
}

/// Times in ns become µs, rounded down, as those of the writer.
fn floored(column: &ArrayRef, to: &DataType) -> ArrayRef {
    use arrow::datatypes::TimeUnit::{Microsecond, Nanosecond};
    match (column.data_type(), to) {
        (DataType::Timestamp(Nanosecond, _), DataType::Timestamp(Microsecond, _)) => {
            let ns = column.as_primitive::<arrow::datatypes::TimestampNanosecondType>();
            Arc::new(ns.unary::<_, Int64Type>(|ns| ns.div_euclid(1000)))
        }
        _ => column.clone(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::{
        array::{Int64Array, TimestampNanosecondArray},
        datatypes::TimeUnit,
    };

    use super::*;

    #[test]
    fn old_columns_get_the_types_of_the_newest_version() {
        let time = |unit| DataType::Timestamp(unit, Some("UTC".into()));
        let ns = TimestampNanosecondArray::from(vec![Some(-1), None]).with_timezone("UTC");
        let old = Schema::new(vec![
            Field::new("ts", time(TimeUnit::Nanosecond), true),
            Field::new("n", DataType::Int64, true),
        ]);
        let old = Arc::new(old);
        let with = |n| {
            let n = Arc::new(Int64Array::from(vec![n; 2]));
            RecordBatch::try_new(old.clone(), vec![Arc::new(ns.clone()), n]).unwrap()
        };
        let new = Arc::new(Schema::new(vec![
            Field::new("n", DataType::UInt64, true),
            Field::new("more", DataType::Utf8, true),
            Field::new("ts", time(TimeUnit::Microsecond), true),
        ]));
        let rows = aligned(&with(7), &new).unwrap();
        let ts = rows.column(2).as_primitive::<TimestampMicrosecondType>();
        assert_eq!(ts.iter().collect::<Vec<_>>(), [Some(-1), None]);
        assert_eq!(rows.column(1).null_count(), 2);
        assert!(aligned(&with(-7), &new).is_err());
    }
}

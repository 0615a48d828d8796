//! Comparing rows before and after a compaction.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hasher as _},
    io,
};

use arrow::{
    array::{ArrayRef, AsArray as _, RecordBatch, StringArray},
    datatypes::Schema,
    row::{RowConverter, SortField},
};

use super::{
    sort::{BATCH_ROWS, SortKey},
    stored::RowPlace,
};
use crate::{
    output::dataset::{compacted::SORTED_BY, files::Directory, parquet_reader::ParquetReader},
    schema::{HOST_COLUMN, RUN_COLUMN},
};

/// Number and checksum of rows, whatever their order: the sum of a hash of all values of each row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum {
    pub rows: u64,
    sum: u64,
}

/// By host and run.
pub type Checksums = BTreeMap<RowPlace, Checksum>;

/// The rows of both.
pub fn sum(a: &Checksums, b: &Checksums) -> Checksums {
    let mut all = a.clone();
    for (place, more) in b {
        let sum = all.entry(place.clone()).or_default();
        sum.rows += more.rows;
        sum.sum = sum.sum.wrapping_add(more.sum);
    }
    all
}

/// Computes checksums of rows with the same columns.
pub struct Checker {
    converter: RowConverter,
}

impl Checker {
    /// For rows with these columns.
    ///
    /// # Errors
    ///
    /// When a column has a type without an order.
    pub fn new(schema: &Schema) -> io::Result<Self> {
        let fields = schema.fields().iter();
        let fields = fields.map(|field| SortField::new(field.data_type().clone()));
        let converter = RowConverter::new(fields.collect()).map_err(io::Error::other)?;
        Ok(Self { converter })
    }

    /// Adds rows of one host and run.
    ///
    /// # Errors
    ///
    /// When they have other columns.
    pub fn add(&self, columns: &[ArrayRef], sum: &mut Checksum) -> io::Result<()> {
        self.hashes(columns, |_, hash| {
            sum.rows += 1;
            sum.sum = sum.sum.wrapping_add(hash);
        })
    }

    fn hashes(&self, columns: &[ArrayRef], mut add: impl FnMut(usize, u64)) -> io::Result<()> {
        let rows = self
            .converter
            .convert_columns(columns)
            .map_err(io::Error::other)?;
        for (number, row) in rows.iter().enumerate() {
            let mut hasher = DefaultHasher::new();
            hasher.write(row.data());
            add(number, hasher.finish());
        }
        Ok(())
    }
}

/// Run and host of the rows of a file.
pub struct Places<'a> {
    run: &'a StringArray,
    host: &'a StringArray,
}

/// The columns of run and host.
///
/// # Errors
///
/// When they are missing.
pub fn places(batch: &RecordBatch) -> io::Result<Places<'_>> {
    let column = |name: &str| {
        let column = batch.column_by_name(name);
        let texts = column.and_then(|column| column.as_string_opt::<i32>());
        texts.ok_or_else(|| io::Error::other(format!("no column {name}")))
    };
    Ok(Places {
        run: column(RUN_COLUMN.name)?,
        host: column(HOST_COLUMN.name)?,
    })
}

impl Places<'_> {
    /// Host and run of a row.
    pub fn of(&self, row: usize) -> (String, String) {
        (
            self.host.value(row).to_owned(),
            self.run.value(row).to_owned(),
        )
    }

    /// Whether a row has the host and run of the one before it.
    pub fn is_as_before(&self, row: usize) -> bool {
        let Some(before) = row.checked_sub(1) else {
            return false;
        };
        self.run.value(row) == self.run.value(before)
            && self.host.value(row) == self.host.value(before)
    }
}

/// Adds the numbers of rows by place.
///
/// # Errors
///
/// When the columns of run and host are missing.
pub fn count(batch: &RecordBatch, rows: &mut BTreeMap<RowPlace, u64>) -> io::Result<()> {
    let places = places(batch)?;
    let mut first = 0;
    for row in 1..=batch.num_rows() {
        if row == batch.num_rows() || !places.is_as_before(row) {
            *rows.entry(places.of(first)).or_default() += (row - first) as u64;
            first = row;
        }
    }
    Ok(())
}

/// Adds the checksums of rows of a file, the last columns of which are the run and the host.
///
/// # Errors
///
/// When these columns are missing.
pub fn add_file_rows(
    checker: &Checker,
    batch: &RecordBatch,
    sums: &mut Checksums,
) -> io::Result<()> {
    let places = places(batch)?;
    let values = &batch.columns()[..batch.num_columns() - 2];
    let mut place = (String::new(), String::new());
    checker.hashes(values, |row, hash| {
        if !places.is_as_before(row) {
            place = places.of(row);
        }
        let sum = match sums.get_mut(&place) {
            Some(sum) => sum,
            None => sums.entry(place.clone()).or_default(),
        };
        sum.rows += 1;
        sum.sum = sum.sum.wrapping_add(hash);
    })
}

/// Reads a compacted file, passes its rows on, and checks that they are sorted. Its last columns are
/// the run and the host.
///
/// # Errors
///
/// When it cannot be read, or is not what was to be written.
pub fn read(
    directory: &Directory,
    name: &str,
    mut rows: impl FnMut(&RecordBatch) -> io::Result<()>,
) -> io::Result<()> {
    let reader = ParquetReader::open(directory, name)?;
    let key = SortKey::new(reader.schema(), SORTED_BY)?;
    let mut last: Option<Box<[u8]>> = None;
    for batch in reader.with_batch_size(BATCH_ROWS).build()? {
        let batch = batch?;
        rows(&batch)?;
        let keys = key.of(&batch)?;
        for row in &keys {
            if last.as_deref().is_some_and(|last| last > row.data()) {
                return Err(io::Error::other("rows are not sorted"));
            }
            last = Some(row.data().into());
        }
    }
    Ok(())
}

//! Writing the rows of a table and day: new ones, and those of files that are written again.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    sync::Arc,
};

use arrow::{
    array::{Array as _, ArrayRef, AsArray as _, BooleanArray, RecordBatch, StringArray},
    compute::filter_record_batch,
    datatypes::{SchemaRef, TimestampMicrosecondType},
};

use super::{
    AfterStep, Limits, Step,
    check::{self, Checker, Checksums, places},
    columns::{with_host, without_run},
    day_files::{DayFiles, NewFile, temporary},
    keep::{DAY_US, Resolution},
    parts::{Part, Parts, no_times, open},
    plan::Source,
    reduce::by_host::HostReducer,
    sort::{BATCH_ROWS, Batches, Sink, SortKey, SortedFile, Sorter, merge},
    stored::{RowPlace, StoredFile, in_file},
    totals::Totals,
};
use crate::{
    output::dataset::{
        compacted::{SORTED_BY, aligned, day_and_name},
        files::Directory,
        parquet_file,
        parquet_reader::ParquetReader,
    },
    schema::Sparse,
};

/// What the rows of all days have in common.
pub struct Table<'a> {
    pub out: &'a Directory,
    pub directory: &'a Directory,
    pub name: &'a str,
    pub sources: &'a [Source],
    pub parts: &'a Parts,
    pub limits: &'a Limits,
    /// How rows that are left out are made; `None` if there are none.
    pub sparse: Option<&'static Sparse>,
}

/// Rows of a day.
pub struct Day {
    /// Since 1970-01-01 UTC.
    pub number: i64,
    /// Name of its directory.
    pub name: String,
    /// `None` if no rows are kept.
    pub resolution: Option<Resolution>,
    /// Columns of the rows; the last one is the run.
    pub schema: SchemaRef,
    /// Files that are written again.
    pub files: Vec<StoredFile>,
}

/// Result for a day.
pub struct Written {
    pub files: BTreeMap<NewFile, BTreeSet<RowPlace>>,
    /// Size of the files.
    pub bytes: u64,
    /// Rows of Parquet files of the runs.
    pub parts: Checksums,
    /// Rows of files that are written again.
    pub stored: Checksums,
    pub after: Checksums,
}

/// Writes the files of a day under temporary names, reads them again, and compares.
///
/// # Errors
///
/// When a file cannot be read or written, or rows differ.
pub fn write(table: &Table<'_>, day: &Day, after: AfterStep<'_>) -> io::Result<Written> {
    let of_day = table.directory.make(&day.name)?;
    let schema = with_host(&day.schema);
    let resolution = day.resolution.unwrap_or_default();
    let mut files = DayFiles::new(&of_day, schema.clone(), resolution, table.limits)?;
    let mut input = Input {
        table,
        day,
        checker: Checker::new(&without_run(&day.schema))?,
        order: Arc::new(SortKey::new(&schema, SORTED_BY)?),
        schema,
        is_reduced: day.resolution.is_some_and(|of| of != Resolution::RAW),
        totals: Totals::default(),
        parts: Checksums::new(),
        stored: Checksums::new(),
    };
    input.pass(&mut files, after)?;
    if files.finish()? {
        after(Step::FileWritten)?;
    }
    let mut result = Written {
        files: BTreeMap::new(),
        bytes: 0,
        parts: input.parts,
        stored: input.stored,
        after: Checksums::new(),
    };
    let mut totals = Totals::default();
    for (number, places) in files.files {
        let temporary = temporary(number);
        let read = check::read(&of_day, &temporary, |batch| {
            if input.is_reduced {
                totals.add(batch)?;
            }
            check::add_file_rows(&input.checker, batch, &mut result.after)
        });
        read.map_err(|error| io::Error::other(format!("{}/{}: {error}", table.name, day.name)))?;
        result.bytes += of_day.read(&temporary)?.metadata()?.len();
        let file = NewFile {
            day: day.name.clone(),
            number,
        };
        result.files.insert(file, places);
    }
    of_day.sync()?;
    if input.is_reduced {
        input.totals.check(&totals, &input.schema)?;
    } else if day.resolution.is_some() && check::sum(&result.parts, &result.stored) != result.after
    {
        return Err(io::Error::other("the rows written differ from those read"));
    }
    Ok(result)
}

/// The rows of a day as they are read.
struct Input<'a> {
    table: &'a Table<'a>,
    day: &'a Day,
    checker: Checker,
    /// Order of the rows of a file.
    order: Arc<SortKey>,
    /// Schema of the files: the last columns are the run and the host.
    schema: SchemaRef,
    is_reduced: bool,
    totals: Totals,
    parts: Checksums,
    stored: Checksums,
}

impl Input<'_> {
    /// Passes all rows on to the files, reduced or as they are.
    fn pass(&mut self, files: &mut DayFiles<'_>, after: AfterStep<'_>) -> io::Result<()> {
        let mut write = |batch: &RecordBatch| {
            if files.push(batch)? {
                after(Step::FileWritten)?;
            }
            Ok(())
        };
        match self.day.resolution {
            None => self.sorted(&mut |_| Ok(())),
            Some(Resolution::RAW) => self.sorted(&mut write),
            Some(resolution) => {
                let (schema, spilled) = (self.schema.clone(), self.spilled());
                let limits = *self.table.limits;
                let order = self.order.clone();
                let make = |key| Sorter::new(schema.clone(), key, limits, spilled.clone());
                let mut reducer =
                    HostReducer::new(&schema, resolution, &order, &make, self.table.sparse)?;
                self.sorted(&mut |batch| reducer.push(batch, &mut write))?;
                reducer.finish(&mut write)
            }
        }
    }

    /// Directory of temporary files without names.
    fn spilled(&self) -> PathBuf {
        self.table.directory.path().to_owned()
    }

    /// Passes all rows on in the order of files.
    fn sorted(&mut self, sink: Sink<'_>) -> io::Result<()> {
        if self.day.files.is_empty() {
            return self.new_rows(sink);
        }
        let mut new = SortedFile::new(&self.spilled(), self.schema.clone())?;
        self.new_rows(&mut |batch| new.push(batch))?;
        let mut streams = vec![new.read()?];
        for file in &self.day.files {
            let (directory, name) = self.directory_of(file)?;
            check::read(&directory, name, |batch| {
                let batch = stored_rows(batch, file, &self.schema)?;
                if self.is_reduced {
                    self.totals.add(&batch)?;
                }
                check::add_file_rows(&self.checker, &batch, &mut self.stored)
            })?;
            streams.push(self.stored(file)?);
        }
        merge(streams, &self.order, sink)
    }

    fn directory_of<'f>(&self, file: &'f StoredFile) -> io::Result<(Directory, &'f str)> {
        let (day, name) = day_and_name(&file.name)?;
        Ok((self.table.directory.sub(day)?, name))
    }

    fn stored<'f>(&self, file: &'f StoredFile) -> io::Result<Batches<'f>> {
        let (directory, name) = self.directory_of(file)?;
        let reader = ParquetReader::open(&directory, name)?;
        let reader = reader.with_batch_size(BATCH_ROWS / 4).build()?;
        let schema = self.schema.clone();
        Ok(Box::new(
            reader.map(move |batch| stored_rows(&batch?, file, &schema)),
        ))
    }

    /// Passes the rows of the Parquet files of runs on, in the order of files.
    fn new_rows(&mut self, sink: Sink<'_>) -> io::Result<()> {
        let (table, number) = (self.table, self.day.number);
        let of_day = |part: &&Part| part.days.0 <= number && number <= part.days.1;
        let mut parts = table.parts.list.iter().filter(of_day).peekable();
        // Both the sources and their files are sorted by host.
        while let Some(first) = parts.peek() {
            let host = &table.sources[first.source].host;
            let mut sorter = Sorter::new(
                self.schema.clone(),
                self.order.clone(),
                *table.limits,
                self.spilled(),
            );
            while let Some(part) = parts.next_if(|part| table.sources[part.source].host == *host) {
                let source = &table.sources[part.source];
                let place = (host.clone(), source.run.clone());
                let name = parquet_file::name(part.number);
                let directory = open(table.out, table.name, source)?;
                let named = |error| in_file(&directory, &name, &error);
                let reader = ParquetReader::open(&directory, &name).map_err(named)?;
                for batch in reader.with_batch_size(BATCH_ROWS).build()? {
                    let batch = self.of_run(&batch.map_err(named)?, &source.run)?;
                    let batch = of_this_day(&batch, number, part)?;
                    if batch.num_rows() == 0 {
                        continue;
                    }
                    let values = &batch.columns()[..batch.num_columns() - 1];
                    let sum = self.parts.entry(place.clone()).or_default();
                    self.checker.add(values, sum)?;
                    let batch = on_host(&batch, host, &self.schema)?;
                    if self.is_reduced {
                        self.totals.add(&batch)?;
                    }
                    sorter.push(batch)?;
                }
            }
            sorter.finish(sink)?;
        }
        Ok(())
    }

    /// The rows with all columns; the last one is the run.
    fn of_run(&self, batch: &RecordBatch, run: &str) -> io::Result<RecordBatch> {
        let schema = &self.day.schema;
        let rows = aligned(batch, schema).map_err(io::Error::other);
        let run_column = schema.fields().len() - 1;
        match rows {
            Ok(rows) if rows.column(run_column).null_count() == 0 => Ok(rows),
            rows => {
                // Before version 3 of the schema, files have no column `run`.
                let mut columns = rows?.columns().to_vec();
                let texts = std::iter::repeat_n(run, batch.num_rows());
                columns[run_column] = Arc::new(StringArray::from_iter_values(texts));
                RecordBatch::try_new(schema.clone(), columns).map_err(io::Error::other)
            }
        }
    }
}

/// The rows with the column of the host.
fn on_host(batch: &RecordBatch, host: &str, schema: &SchemaRef) -> io::Result<RecordBatch> {
    let hosts = StringArray::from_iter_values(std::iter::repeat_n(host, batch.num_rows()));
    let columns = batch.columns().iter().cloned();
    let columns: Vec<ArrayRef> = columns.chain([Arc::new(hosts) as ArrayRef]).collect();
    RecordBatch::try_new(schema.clone(), columns).map_err(io::Error::other)
}

/// The rows of a compacted file that a run refers to, with all columns.
fn stored_rows(
    batch: &RecordBatch,
    file: &StoredFile,
    schema: &SchemaRef,
) -> io::Result<RecordBatch> {
    let rows = aligned(batch, schema).map_err(io::Error::other)?;
    if file.dead == 0 {
        return Ok(rows);
    }
    let places = places(&rows)?;
    let is_live = (0..rows.num_rows()).map(|row| Some(file.live.contains(&places.of(row))));
    let is_live: BooleanArray = is_live.collect();
    filter_record_batch(&rows, &is_live).map_err(io::Error::other)
}

/// The rows with a `ts` on this day.
fn of_this_day(batch: &RecordBatch, day: i64, part: &Part) -> io::Result<RecordBatch> {
    if part.days == (day, day) {
        return Ok(batch.clone());
    }
    let ts = batch.column_by_name("ts").ok_or_else(no_times)?;
    let ts = ts.as_primitive::<TimestampMicrosecondType>();
    let is_of_day: BooleanArray = ts
        .iter()
        .map(|ts| Some(ts.is_some_and(|ts| ts.div_euclid(DAY_US) == day)))
        .collect();
    filter_record_batch(batch, &is_of_day).map_err(io::Error::other)
}

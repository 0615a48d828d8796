//! Sorting more rows than fit into memory: sorted files are merged.
//!
//! In memory are at most the rows to sort, and one batch and the pages of one row group of each file
//! that is merged.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow::{
    array::RecordBatch,
    compute::interleave_record_batch,
    datatypes::{Schema, SchemaRef},
    row::{RowConverter, Rows, SortField},
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::Limits;
use crate::output::dataset::parquet_file::{Encoder, Layout};

/// Rows of a batch.
pub const BATCH_ROWS: usize = 8192;
/// Rows of a row group of a sorted file: its pages are in memory while it is merged.
const GROUP_ROWS: usize = 2 * BATCH_ROWS;

/// Receives sorted batches.
pub type Sink<'a> = &'a mut dyn FnMut(&RecordBatch) -> io::Result<()>;

/// The columns that rows are sorted by.
pub struct SortKey {
    columns: Vec<usize>,
    converter: RowConverter,
}

impl SortKey {
    /// The columns of `names` that the schema has.
    ///
    /// # Errors
    ///
    /// When a column cannot be sorted by.
    pub fn new(schema: &Schema, names: &[&str]) -> io::Result<Self> {
        let columns: Vec<_> = names
            .iter()
            .filter_map(|name| schema.index_of(name).ok())
            .collect();
        let fields = columns.iter().map(|&column| {
            let field = schema.field(column);
            SortField::new(field.data_type().clone())
        });
        let converter = RowConverter::new(fields.collect()).map_err(io::Error::other)?;
        Ok(Self { columns, converter })
    }

    /// The keys of the rows, which can be compared.
    ///
    /// # Errors
    ///
    /// When the batch has another schema.
    pub fn of(&self, batch: &RecordBatch) -> io::Result<Rows> {
        let columns: Vec<_> = self
            .columns
            .iter()
            .map(|&column| batch.column(column).clone())
            .collect();
        self.converter
            .convert_columns(&columns)
            .map_err(io::Error::other)
    }
}

/// Sorts rows; those with equal keys keep their order.
pub struct Sorter {
    schema: SchemaRef,
    key: Arc<SortKey>,
    limits: Limits,
    /// Directory of the temporary files, which have no names.
    directory: PathBuf,
    batches: Vec<RecordBatch>,
    bytes: usize,
    /// Sorted files: those of a level are merged into one of the next. Later levels have earlier rows.
    levels: Vec<Vec<File>>,
}

impl Sorter {
    /// Without rows.
    pub fn new(schema: SchemaRef, key: Arc<SortKey>, limits: Limits, directory: PathBuf) -> Self {
        Self {
            schema,
            key,
            limits,
            directory,
            batches: Vec::new(),
            bytes: 0,
            levels: Vec::new(),
        }
    }

    /// Adds rows.
    ///
    /// # Errors
    ///
    /// When a temporary file cannot be written.
    pub fn push(&mut self, batch: RecordBatch) -> io::Result<()> {
        self.bytes += batch.get_array_memory_size();
        self.batches.push(batch);
        if self.bytes >= self.limits.sorted_bytes {
            self.spill()?;
        }
        Ok(())
    }

    /// Passes all rows on in their order.
    ///
    /// # Errors
    ///
    /// Those of the sink, and of temporary files.
    pub fn finish(mut self, sink: Sink<'_>) -> io::Result<()> {
        if self.levels.is_empty() {
            return self.sorted(sink);
        }
        self.spill()?;
        let files: Vec<File> = self.levels.drain(..).rev().flatten().collect();
        merge_files(files, &self.key, sink)
    }

    /// Passes the rows in memory on.
    fn sorted(&mut self, sink: Sink<'_>) -> io::Result<()> {
        let batches = std::mem::take(&mut self.batches);
        self.bytes = 0;
        let keys = batches.iter().map(|batch| self.key.of(batch));
        let keys = keys.collect::<io::Result<Vec<_>>>()?;
        let rows = batches.iter().enumerate();
        let mut order: Vec<(usize, usize)> = rows
            .flat_map(|(number, batch)| (0..batch.num_rows()).map(move |row| (number, row)))
            .collect();
        let key = |&(number, row): &(usize, usize)| keys[number].row(row);
        order.sort_by(|a, b| key(a).cmp(&key(b)));
        let batches: Vec<_> = batches.iter().collect();
        for places in order.chunks(BATCH_ROWS) {
            sink(&interleave_record_batch(&batches, places).map_err(io::Error::other)?)?;
        }
        Ok(())
    }

    fn spill(&mut self) -> io::Result<()> {
        if self.batches.is_empty() {
            return Ok(());
        }
        let mut file = SortedFile::new(&self.directory, self.schema.clone())?;
        self.sorted(&mut |batch| file.push(batch))?;
        let mut file = file.finish()?;
        for level in 0.. {
            if level == self.levels.len() {
                self.levels.push(Vec::new());
            }
            self.levels[level].push(file);
            if self.levels[level].len() < self.limits.merged_files {
                break;
            }
            let files = std::mem::take(&mut self.levels[level]);
            let mut merged = SortedFile::new(&self.directory, self.schema.clone())?;
            merge_files(files, &self.key, &mut |batch| merged.push(batch))?;
            file = merged.finish()?;
        }
        Ok(())
    }
}

/// A temporary file with sorted rows, which has no name.
pub struct SortedFile {
    encoder: Encoder<File>,
    group: Vec<RecordBatch>,
    rows: usize,
}

impl SortedFile {
    /// # Errors
    ///
    /// When no file can be created in the directory.
    pub fn new(directory: &Path, schema: SchemaRef) -> io::Result<Self> {
        let layout = Layout {
            sorted_by: &[],
            ids: &[],
        };
        let file = tempfile::tempfile_in(directory)?;
        Ok(Self {
            encoder: Encoder::to(file, schema, layout)?,
            group: Vec::new(),
            rows: 0,
        })
    }

    /// # Errors
    ///
    /// When the rows cannot be written.
    pub fn push(&mut self, batch: &RecordBatch) -> io::Result<()> {
        self.group.push(batch.clone());
        self.rows += batch.num_rows();
        if self.rows >= GROUP_ROWS {
            self.rows = 0;
            self.encoder.encode(&std::mem::take(&mut self.group))?;
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<File> {
        if !self.group.is_empty() {
            self.encoder.encode(&self.group)?;
        }
        Ok(self.encoder.finish()?)
    }

    /// The rows, from the beginning.
    ///
    /// # Errors
    ///
    /// When they cannot be written or read.
    pub fn read(self) -> io::Result<Batches<'static>> {
        batches(self.finish()?)
    }
}

/// Sorted batches.
pub type Batches<'a> = Box<dyn Iterator<Item = io::Result<RecordBatch>> + 'a>;

/// Sorted rows that are merged with others.
struct Stream<'a> {
    batches: Batches<'a>,
    batch: RecordBatch,
    keys: Rows,
    row: usize,
}

impl<'a> Stream<'a> {
    fn start(mut batches: Batches<'a>, key: &SortKey) -> io::Result<Option<Self>> {
        let Some(batch) = next(&mut batches)? else {
            return Ok(None);
        };
        let keys = key.of(&batch)?;
        Ok(Some(Self {
            batches,
            batch,
            keys,
            row: 0,
        }))
    }

    fn key(&self) -> Box<[u8]> {
        self.keys.row(self.row).data().into()
    }
}

/// The next batch with rows.
fn next(batches: &mut Batches<'_>) -> io::Result<Option<RecordBatch>> {
    batches
        .find(|batch| batch.as_ref().map_or(true, |batch| batch.num_rows() > 0))
        .transpose()
}

/// Merges sorted files.
fn merge_files(files: Vec<File>, key: &SortKey, sink: Sink<'_>) -> io::Result<()> {
    let files = files.into_iter().map(batches);
    merge(files.collect::<io::Result<_>>()?, key, sink)
}

fn batches(file: File) -> io::Result<Batches<'static>> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file)?;
    let reader = reader.with_batch_size(BATCH_ROWS / 4).build()?;
    Ok(Box::new(
        reader.map(|batch| batch.map_err(io::Error::other)),
    ))
}

/// Merges sorted rows. Rows with equal keys are in the order of `all`.
///
/// # Errors
///
/// When rows cannot be read, and those of the sink.
pub fn merge(all: Vec<Batches<'_>>, key: &SortKey, sink: Sink<'_>) -> io::Result<()> {
    let mut streams = Vec::new();
    for batches in all {
        streams.extend(Stream::start(batches, key)?);
    }
    let mut heap: BinaryHeap<_> = streams
        .iter()
        .enumerate()
        .map(|(number, stream)| Reverse((stream.key(), number)))
        .collect();
    let mut places = Vec::with_capacity(BATCH_ROWS);
    while let Some(Reverse((_, number))) = heap.pop() {
        let stream = &mut streams[number];
        places.push((number, stream.row));
        stream.row += 1;
        let is_at_end = stream.row == stream.batch.num_rows();
        if is_at_end || places.len() == BATCH_ROWS {
            let batches: Vec<_> = streams.iter().map(|stream| &stream.batch).collect();
            sink(&interleave_record_batch(&batches, &places).map_err(io::Error::other)?)?;
            places.clear();
        }
        let stream = &mut streams[number];
        if is_at_end {
            match next(&mut stream.batches)? {
                Some(batch) => {
                    stream.keys = key.of(&batch)?;
                    stream.row = 0;
                    stream.batch = batch;
                }
                None => continue,
            }
        }
        heap.push(Reverse((streams[number].key(), number)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow::{
        array::{AsArray as _, Int64Array},
        datatypes::{DataType, Field, Int64Type},
    };

    use super::*;

    #[test]
    fn rows_are_sorted_in_memory_and_in_several_levels_of_files() {
        let fields = ["key", "number"].map(|name| Field::new(name, DataType::Int64, false));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let key = Arc::new(SortKey::new(&schema, &["none", "key"]).unwrap());
        let directory = tempfile::TempDir::new().unwrap();
        for sorted_bytes in [1 << 30, 100_000, 1] {
            let limits = Limits {
                sorted_bytes,
                merged_files: 3,
                ..Limits::default()
            };
            let path = directory.path().to_owned();
            let mut sorter = Sorter::new(schema.clone(), key.clone(), limits, path);
            let mut all = Vec::new();
            for batch in 0..20_i64 {
                let numbers: Vec<i64> = (batch * 1000..(batch + 1) * 1000).collect();
                let keys: Vec<i64> = numbers.iter().map(|n| n * 7919 % 101).collect();
                all.extend(keys.iter().copied().zip(numbers.iter().copied()));
                let columns = [keys, numbers].map(|c| Arc::new(Int64Array::from(c)) as _);
                let batch = RecordBatch::try_new(schema.clone(), columns.to_vec()).unwrap();
                sorter.push(batch).unwrap();
            }
            all.sort_unstable();
            let mut found = Vec::new();
            let mut sink = |batch: &RecordBatch| {
                let values = |c: usize| {
                    batch
                        .column(c)
                        .as_primitive::<Int64Type>()
                        .values()
                        .to_vec()
                };
                found.extend(values(0).into_iter().zip(values(1)));
                Ok(())
            };
            sorter.finish(&mut sink).unwrap();
            assert!(found == all, "{sorted_bytes}");
            assert_eq!(directory.path().read_dir().unwrap().count(), 0);
        }
    }
}

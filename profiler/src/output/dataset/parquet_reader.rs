//! Reading Parquet files, within limits if they are of other users.

use std::{
    fs::File,
    io,
    sync::{Arc, atomic::AtomicU64},
};

use arrow::{array::RecordBatch, datatypes::SchemaRef};
use parquet::{
    arrow::{
        ProjectionMask,
        arrow_reader::{
            ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
            ParquetRecordBatchReaderBuilder,
        },
        parquet_to_arrow_field_levels,
    },
    file::metadata::ParquetMetaData,
    schema::types::SchemaDescriptor,
};

use super::{
    files::Directory,
    foreign_file::{Bounded, ForeignGroups, Limits},
};

/// Rows of a batch.
const BATCH_ROWS: usize = 1024;

/// A Parquet file, and what is read of it.
pub struct ParquetReader {
    file: Arc<File>,
    metadata: ArrowReaderMetadata,
    limits: Option<Arc<Limits>>,
    projection: ProjectionMask,
    groups: Option<Vec<usize>>,
    batch_rows: usize,
}

impl ParquetReader {
    /// Opens a file of a directory.
    ///
    /// # Errors
    ///
    /// As [`ParquetReader::of`].
    pub fn open(directory: &Directory, name: &str) -> io::Result<Self> {
        let file = directory.read(name)?;
        let limits = directory.trust().limits(&file)?;
        Self::of(file, limits)
    }

    /// Reads the metadata of an open file.
    ///
    /// # Errors
    ///
    /// When they cannot be read, or are over the limits.
    pub fn of(file: File, limits: Option<Limits>) -> io::Result<Self> {
        let file = Arc::new(file);
        let options = ArrowReaderOptions::new();
        let metadata = match &limits {
            None => ArrowReaderMetadata::load(&*file, options)?,
            Some(limits) => {
                let metadata = ArrowReaderMetadata::load(&Bounded(file.clone()), options)?;
                let checked = limits.check_metadata(metadata.metadata());
                checked.map_err(|error| limits.refused().unwrap_or_else(|| error.into()))?;
                metadata
            }
        };
        Ok(Self {
            file,
            metadata,
            limits: limits.map(Arc::new),
            projection: ProjectionMask::all(),
            groups: None,
            batch_rows: BATCH_ROWS,
        })
    }

    /// All columns, with the metadata of the file.
    pub fn schema(&self) -> &SchemaRef {
        self.metadata.schema()
    }

    /// Columns as Parquet has them.
    pub fn parquet_schema(&self) -> &SchemaDescriptor {
        self.metadata.parquet_schema()
    }

    /// Metadata of the file.
    pub fn metadata(&self) -> &Arc<ParquetMetaData> {
        self.metadata.metadata()
    }

    /// Size of the file in bytes.
    ///
    /// # Errors
    ///
    /// When the kernel does not tell it.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Reads only these columns.
    #[must_use]
    pub fn with_projection(self, projection: ProjectionMask) -> Self {
        Self { projection, ..self }
    }

    /// Reads only these row groups.
    #[must_use]
    pub fn with_row_groups(self, groups: Vec<usize>) -> Self {
        Self {
            groups: Some(groups),
            ..self
        }
    }

    /// Sets the number of rows of a batch.
    #[must_use]
    pub fn with_batch_size(self, batch_rows: usize) -> Self {
        Self { batch_rows, ..self }
    }

    /// The rows.
    ///
    /// # Errors
    ///
    /// When the columns cannot be read.
    pub fn build(self) -> io::Result<Batches> {
        let Some(limits) = self.limits else {
            let file = Arc::try_unwrap(self.file).or_else(|file| file.try_clone())?;
            let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata)
                .with_projection(self.projection)
                .with_batch_size(self.batch_rows);
            let reader = match self.groups {
                Some(groups) => reader.with_row_groups(groups),
                None => reader,
            };
            return Ok(Batches {
                reader: reader.build()?,
                limits: None,
            });
        };
        let metadata = self.metadata.metadata();
        let fields = Some(self.metadata.schema().fields());
        let columns =
            parquet_to_arrow_field_levels(self.metadata.parquet_schema(), self.projection, fields)?;
        let all = || (0..metadata.num_row_groups()).collect();
        let groups: Vec<usize> = self.groups.unwrap_or_else(all);
        let groups = ForeignGroups {
            file: Bounded(self.file),
            metadata: metadata.clone(),
            groups: groups
                .into_iter()
                .map(|index| (index, Arc::new(AtomicU64::new(0))))
                .collect(),
            limits: limits.clone(),
        };
        let reader = ParquetRecordBatchReader::try_new_with_row_groups(
            &columns,
            &groups,
            self.batch_rows,
            None,
        );
        Ok(Batches {
            reader: reader?,
            limits: Some(limits),
        })
    }
}

/// The rows of a file.
pub struct Batches {
    reader: ParquetRecordBatchReader,
    limits: Option<Arc<Limits>>,
}

impl Iterator for Batches {
    type Item = io::Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.reader.next()?;
        Some(batch.map_err(|error| {
            let refused = self.limits.as_ref().and_then(|limits| limits.refused());
            refused.unwrap_or_else(|| io::Error::other(error))
        }))
    }
}

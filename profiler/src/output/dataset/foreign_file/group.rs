//! The row groups of a Parquet file, whose pages are counted.

use std::sync::{Arc, atomic::AtomicU64};

use parquet::{
    arrow::arrow_reader::RowGroups,
    column::page::{PageIterator, PageReader},
    errors::Result,
    file::metadata::{ParquetMetaData, RowGroupMetaData},
};

use super::{Limits, bounded::Bounded, pages::ForeignPages};

/// Row groups that are read within the limits.
pub struct ForeignGroups {
    pub file: Bounded,
    pub metadata: Arc<ParquetMetaData>,
    /// Indices of row groups with the size of their decoded values so far in bytes.
    pub groups: Vec<(usize, Arc<AtomicU64>)>,
    pub limits: Arc<Limits>,
}

impl RowGroups for ForeignGroups {
    fn num_rows(&self) -> usize {
        let rows = self.row_groups().map(RowGroupMetaData::num_rows);
        rows.fold(0, |sum, rows| sum + usize::try_from(rows).unwrap_or(0))
    }

    fn column_chunks(&self, column: usize) -> Result<Box<dyn PageIterator>> {
        Ok(Box::new(ForeignChunks {
            file: self.file.clone(),
            metadata: self.metadata.clone(),
            groups: self.groups.clone().into_iter(),
            limits: self.limits.clone(),
            column,
        }))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        let groups = self.groups.iter();
        Box::new(groups.map(|(index, _)| self.metadata.row_group(*index)))
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }
}

/// A column of the row groups.
struct ForeignChunks {
    file: Bounded,
    metadata: Arc<ParquetMetaData>,
    groups: std::vec::IntoIter<(usize, Arc<AtomicU64>)>,
    limits: Arc<Limits>,
    column: usize,
}

impl Iterator for ForeignChunks {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (index, decoded) = self.groups.next()?;
        let group = self.metadata.row_group(index);
        let pages = self.limits.check_memory().and_then(|()| {
            ForeignPages::new(&self.file, group, self.column, self.limits.clone(), decoded)
        });
        Some(pages.map(|pages| Box::new(pages) as _))
    }
}

impl PageIterator for ForeignChunks {}

//! Data frames: a row for each sample, hosts one after the other. All hosts have the same columns.

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use arrow::{
    array::{ArrayRef, Float64Array, RecordBatch, StringArray},
    datatypes::{DataType, Field, Schema, SchemaRef},
};

use super::{
    Export,
    samples::{Block, Row},
};
use crate::{
    export::{
        files::in_file,
        output::{RowWriter, failed},
        tables::Format,
    },
    failure::Failure,
};

const FORMATS: [Format; 3] = [Format::Csv, Format::Parquet, Format::Feather];
/// Rows that are held in memory.
const ROWS: usize = 4096;

/// The data frame of a metric in all formats.
pub struct Frames {
    schema: SchemaRef,
    /// Number of each column of numbers, by name.
    places: HashMap<String, usize>,
    hosts: Vec<String>,
    times: Vec<f64>,
    values: Vec<Vec<Option<f64>>>,
    writers: Vec<(PathBuf, Box<dyn RowWriter>)>,
}

impl Frames {
    /// Begins the files.
    pub fn new(export: &mut Export<'_>, metric: &str, blocks: &[Block]) -> Result<Self, Failure> {
        let mut places = HashMap::new();
        let mut fields = vec![
            Field::new("Host", DataType::Utf8, false),
            Field::new("Timestamps", DataType::Float64, false),
        ];
        let quantities = blocks.iter().flat_map(|block| &block.quantities);
        for header in quantities.filter_map(|quantity| quantity.header.as_ref()) {
            if !places.contains_key(header) {
                places.insert(header.clone(), places.len());
                fields.push(Field::new(header, DataType::Float64, true));
            }
        }
        // The key of the frame in an HDF5 file.
        let key = format!("{metric}_{}", export.job);
        let metadata = HashMap::from([("perfmon.key".to_owned(), key)]);
        let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
        let mut writers = Vec::new();
        for format in FORMATS {
            let path = export.path(&format!("{metric}.{}", format.extension()));
            let output = export.files.begin(&path)?;
            let mut writer = format.writer(output, &schema)?;
            // A header even without rows.
            let header = writer.write(&RecordBatch::new_empty(schema.clone()));
            header.map_err(|why| in_file(&path, &why))?;
            writers.push((path, writer));
        }
        Ok(Self {
            schema,
            values: vec![Vec::new(); places.len()],
            places,
            hosts: Vec::new(),
            times: Vec::new(),
            writers,
        })
    }

    /// Adds a sample.
    pub fn add(&mut self, block: &Block, row: &Row) -> Result<(), Failure> {
        self.hosts.push(block.name.clone());
        self.times.push(row.time);
        for values in &mut self.values {
            values.push(None);
        }
        for (quantity, value) in block.quantities.iter().zip(&row.values) {
            let place = quantity
                .header
                .as_ref()
                .and_then(|header| self.places.get(header));
            if let Some(&place) = place
                && !value.is_nan()
                && let Some(last) = self.values[place].last_mut()
            {
                *last = Some(value * quantity.frame_factor);
            }
        }
        if self.hosts.len() >= ROWS {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let hosts = StringArray::from_iter_values(self.hosts.drain(..));
        let times: Float64Array = self.times.drain(..).collect();
        let mut columns: Vec<ArrayRef> = vec![Arc::new(hosts), Arc::new(times)];
        for values in &mut self.values {
            let values: Float64Array = values.drain(..).collect();
            columns.push(Arc::new(values));
        }
        let batch = RecordBatch::try_new(self.schema.clone(), columns).map_err(failed)?;
        for (path, writer) in &mut self.writers {
            writer.write(&batch).map_err(|why| in_file(path, &why))?;
        }
        Ok(())
    }

    /// Ends the files.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.flush()?;
        for (path, writer) in self.writers {
            writer.finish().map_err(|why| in_file(&path, &why))?;
        }
        Ok(())
    }
}

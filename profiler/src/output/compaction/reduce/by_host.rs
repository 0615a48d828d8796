//! Reducing rows in the order of a file: by host, process and time.

use std::{io, sync::Arc};

use arrow::{
    array::{AsArray as _, RecordBatch},
    datatypes::{SchemaRef, TimestampMicrosecondType, UInt64Type},
};

use super::{
    super::{
        check::places,
        keep::Resolution,
        sort::{Sink, SortKey, Sorter},
    },
    INTERVAL, Reducer, TS,
    filler::{Filler, Samples},
    sorted_by,
    times::Times,
};
use crate::schema::Sparse;

/// Makes a sorter for an order.
type NewSorter<'a> = &'a dyn Fn(Arc<SortKey>) -> Sorter;

/// A host, and its rows so far.
struct Host {
    name: String,
    by_series: Sorter,
    times: Times,
    /// `None` if no rows are left out.
    samples: Option<Samples>,
}

/// Sorts the rows of each host by series, reduces them, and sorts them again.
pub struct HostReducer<'a> {
    schema: &'a SchemaRef,
    resolution: Resolution,
    series: Arc<SortKey>,
    order: &'a Arc<SortKey>,
    sorter: NewSorter<'a>,
    /// How rows that are left out are made; `None` if there are none.
    sparse: Option<&'static Sparse>,
    host: Option<Host>,
}

impl<'a> HostReducer<'a> {
    /// `order` is that of the file.
    ///
    /// # Errors
    ///
    /// When a column has a type without an order.
    pub fn new(
        schema: &'a SchemaRef,
        resolution: Resolution,
        order: &'a Arc<SortKey>,
        sorter: NewSorter<'a>,
        sparse: Option<&'static Sparse>,
    ) -> io::Result<Self> {
        Ok(Self {
            schema,
            resolution,
            series: Arc::new(SortKey::new(schema, &sorted_by(schema))?),
            order,
            sorter,
            sparse,
            host: None,
        })
    }

    /// Adds the next rows, and passes those of earlier hosts on.
    ///
    /// # Errors
    ///
    /// Those of `sink` and of temporary files.
    pub fn push(&mut self, batch: &RecordBatch, sink: Sink<'_>) -> io::Result<()> {
        let places = places(batch)?;
        let mut first = 0;
        for row in 1..=batch.num_rows() {
            let (host, _) = places.of(first);
            if row < batch.num_rows() && (places.is_as_before(row) || places.of(row).0 == host) {
                continue;
            }
            let rows = batch.slice(first, row - first);
            first = row;
            if self.host.as_ref().is_none_or(|open| open.name != host) {
                self.finish(sink)?;
                self.host = Some(Host {
                    name: host,
                    by_series: (self.sorter)(self.series.clone()),
                    times: Times::default(),
                    samples: self.sparse.map(|_| Samples::default()),
                });
            }
            if let Some(host) = &mut self.host {
                host.add(rows)?;
            }
        }
        Ok(())
    }

    /// Passes the rows of the last host on.
    ///
    /// # Errors
    ///
    /// Those of `sink` and of temporary files.
    pub fn finish(&mut self, sink: Sink<'_>) -> io::Result<()> {
        let Some(host) = self.host.take() else {
            return Ok(());
        };
        let Host {
            by_series,
            times,
            samples,
            ..
        } = host;
        let mut filler = self.sparse.zip(samples).map(|(sparse, samples)| {
            let series = Arc::clone(&self.series);
            Filler::new(sparse, series, samples)
        });
        let mut reducer = Reducer::new(self.schema.clone(), self.resolution, times)?;
        let mut in_order = (self.sorter)(self.order.clone());
        let mut push = |rows: &RecordBatch| in_order.push(rows.clone());
        by_series.finish(&mut |batch| match &mut filler {
            Some(filler) => reducer.push(&filler.fill(batch)?, &mut push),
            None => reducer.push(batch, &mut push),
        })?;
        reducer.finish(&mut push)?;
        in_order.finish(sink)
    }
}

impl Host {
    fn add(&mut self, rows: RecordBatch) -> io::Result<()> {
        let column = |name: &str| {
            let column = rows.column_by_name(name);
            column.ok_or_else(|| io::Error::other(format!("no column {name}")))
        };
        let ts = column(TS)?.as_primitive::<TimestampMicrosecondType>();
        let interval = column(INTERVAL)?.as_primitive::<UInt64Type>();
        let places = places(&rows)?;
        let mut run = String::new();
        for row in 0..rows.num_rows() {
            if !places.is_as_before(row) {
                run = places.of(row).1;
            }
            self.times.add(&run, ts.value(row), interval.value(row));
            if let Some(samples) = &mut self.samples {
                samples.add(&run, ts.value(row));
            }
        }
        self.by_series.push(rows)
    }
}

//! Sums that do not change when rows are reduced.

use std::{collections::BTreeMap, io};

use arrow::{
    array::{Array as _, ArrayRef, AsArray as _, RecordBatch},
    compute::sum,
    datatypes::{Schema, UInt64Type},
};

use super::{
    check::places,
    reduce::{self, Number},
};

/// Largest relative difference between sums of the same floating-point numbers.
const FLOAT_ERROR: f64 = 1e-9;

/// Sums of columns by host and run.
#[derive(Debug, Default)]
pub struct Totals {
    by_place: BTreeMap<(String, String), Vec<Option<Number>>>,
}

impl Totals {
    /// Adds rows of a file, which have columns for run and host.
    ///
    /// # Errors
    ///
    /// When these columns are missing.
    pub fn add(&mut self, batch: &RecordBatch) -> io::Result<()> {
        let columns = reduce::sums(batch.schema_ref());
        let places = places(batch)?;
        let mut first = 0;
        for row in 1..=batch.num_rows() {
            if row < batch.num_rows() && places.is_as_before(row) {
                continue;
            }
            let totals = self.by_place.entry(places.of(first)).or_default();
            totals.resize(columns.len(), None);
            for (total, &column) in totals.iter_mut().zip(&columns) {
                let column = batch.column(column);
                for value in (first..row).filter_map(|row| value(column, row)) {
                    *total = Some(total.map_or(value, |total| total.plus(value)));
                }
            }
            first = row;
        }
        Ok(())
    }

    /// Compares with the sums of the reduced rows.
    ///
    /// # Errors
    ///
    /// When a sum differs.
    pub fn check(&self, reduced: &Self, schema: &Schema) -> io::Result<()> {
        let names: Vec<_> = reduce::sums(schema)
            .into_iter()
            .map(|column| schema.field(column).name())
            .collect();
        let differs = |(host, run): &(String, String), what: &str| {
            io::Error::other(format!("{run} of {host}: another sum of {what}"))
        };
        if let Some(place) = reduced
            .by_place
            .keys()
            .find(|place| !self.by_place.contains_key(*place))
        {
            return Err(differs(place, "rows"));
        }
        for (place, sums) in &self.by_place {
            let found = reduced
                .by_place
                .get(place)
                .ok_or_else(|| differs(place, "rows"))?;
            for ((before, after), name) in sums.iter().zip(found).zip(&names) {
                if !same(*before, *after) {
                    return Err(differs(place, name));
                }
            }
        }
        Ok(())
    }
}

/// A number, or the sum of a histogram.
fn value(column: &ArrayRef, row: usize) -> Option<Number> {
    let Some(lists) = column.as_list_opt::<i32>() else {
        return Number::of(column, row);
    };
    lists.is_valid(row).then(|| {
        let buckets = lists.value(row);
        let sum = sum(buckets.as_primitive::<UInt64Type>());
        Number::Int(sum.unwrap_or(0).into())
    })
}

fn same(before: Option<Number>, after: Option<Number>) -> bool {
    match (before, after) {
        (Some(Number::Float(a)), Some(Number::Float(b))) => {
            (a - b).abs() <= FLOAT_ERROR * a.abs().max(b.abs())
        }
        (before, after) => before == after,
    }
}

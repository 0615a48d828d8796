//! Values of another program, and the columns that they come from.

use std::collections::HashMap;

use arrow::datatypes::DataType;
use serde_json::Value as Json;

use super::Row;
use crate::{analysis::figure::Value, schema::Table, sources::dataset_schema};

/// A value of another program that is a multiple of a column.
pub struct Quantity {
    /// JSON pointer.
    path: String,
    pub table: &'static str,
    pub column: &'static str,
    /// Columns of the same row that the value contains.
    contains: Vec<&'static str>,
    /// What exports multiply the column with.
    factor: f64,
    is_counter: bool,
    is_real: bool,
}

impl Quantity {
    /// The inverse of what an export writes at a path of keys separated by dots; `None` if no column can be
    /// computed from it.
    pub fn new(path: &str, table: &'static str, value: &Value, is_counter: bool) -> Option<Self> {
        let (columns, factor) = value.as_sum()?;
        let (column, contains) = columns.split_first()?;
        let columns = dataset_schema().table(table).into_iter();
        let mut columns = columns.flat_map(Table::columns);
        let declared = columns.find(|declared| declared.name == *column)?;
        Some(Self {
            path: format!("/{}", path.replace('.', "/")),
            table,
            column,
            contains: contains.to_vec(),
            factor,
            is_counter,
            is_real: (declared.data_type)() == DataType::Float64,
        })
    }

    /// The value in an object.
    pub fn of(&self, object: &Json) -> Option<f64> {
        object.pointer(&self.path)?.as_f64()
    }

    /// The value in an object of lists, at a sample.
    pub fn at(&self, object: &Json, sample: usize) -> Option<f64> {
        object.pointer(&self.path)?.get(sample)?.as_f64()
    }

    fn set(&self, row: &mut Row, value: f64) {
        let value = Some(value / self.factor);
        if self.is_real {
            set_real(row, self.column, value);
        } else {
            set(row, self.column, value);
        }
    }
}

/// Values of counters at the last reading.
#[derive(Default)]
pub struct Counters {
    /// By what is counted, and the column.
    last: HashMap<(String, &'static str), f64>,
    /// Value before the first reading, if it is known.
    first: Option<f64>,
}

impl Counters {
    /// Counters that are 0 before their first reading.
    pub fn from_zero() -> Self {
        Self {
            first: Some(0.0),
            ..Self::default()
        }
    }

    /// The columns of a reading. An increase is unknown after a value that is missing, and where the
    /// counter has become smaller.
    pub fn row<'a>(
        &mut self,
        name: &str,
        quantities: impl IntoIterator<Item = &'a Quantity>,
        value: impl Fn(&Quantity) -> Option<f64>,
    ) -> Row {
        let mut row = Row::new();
        let mut sums = Vec::new();
        for quantity in quantities {
            let mut read = value(quantity).unwrap_or(f64::NAN);
            if quantity.is_counter {
                let key = (name.to_owned(), quantity.column);
                let before = self.last.insert(key, read).or(self.first);
                read -= before.unwrap_or(f64::NAN);
            }
            if read >= 0.0 {
                quantity.set(&mut row, read);
            }
            if !quantity.contains.is_empty() {
                sums.push(quantity);
            }
        }
        for Quantity {
            column, contains, ..
        } in sums
        {
            let number = |name: &str| row.get(name).and_then(Json::as_u64);
            let parts = contains.iter().map(|part| number(part).unwrap_or(0)).sum();
            if let Some(sum) = number(column) {
                row.insert((*column).to_owned(), sum.saturating_sub(parts).into());
            }
        }
        row
    }
}

/// Sets a column of counts, bytes or ns.
pub fn set(row: &mut Row, column: &str, value: Option<f64>) {
    let value = value.filter(|value| (0.0..1.8e19).contains(value));
    if let Some(value) = value {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "in range"
        )]
        row.insert(column.to_owned(), (value.round() as u64).into());
    }
}

/// Sets a column of numbers with fractions.
pub fn set_real(row: &mut Row, column: &str, value: Option<f64>) {
    if let Some(value) = value.filter(|value| value.is_finite()) {
        row.insert(column.to_owned(), value.into());
    }
}

/// Sets a column of texts.
pub fn set_text(row: &mut Row, column: &str, text: Option<&str>) {
    if let Some(text) = text {
        row.insert(column.to_owned(), text.into());
    }
}

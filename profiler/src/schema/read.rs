//! Reading the batches of a tick again, by the names of their columns.

use arrow::{
    array::{Array as _, AsArray as _, PrimitiveArray, RecordBatch},
    compute::cast,
    datatypes::{ArrowPrimitiveType, Int32Type},
};

use super::Batch;

/// The rows of one table. Rows of threads are left out: those of their processes have them.
pub struct Rows<'a>(Vec<&'a RecordBatch>);

impl<'a> Rows<'a> {
    /// Those among the batches of a tick.
    pub fn of(batches: &'a [Batch], table: &str) -> Self {
        let of_table = batches.iter().filter(|batch| batch.table.name == table);
        Self(of_table.map(|batch| &batch.rows).collect())
    }

    /// The values of a column, where the labels are as wanted.
    pub fn values<T: ArrowPrimitiveType>(
        &self,
        column: &str,
        wanted: &[(&str, &str)],
    ) -> Vec<Option<T::Native>> {
        let mut values = Vec::new();
        for rows in &self.0 {
            let Some(array) = numbers::<T>(rows, column) else {
                continue;
            };
            let chosen = chosen(rows, wanted);
            let of_rows = array.iter().zip(chosen);
            values.extend(of_rows.filter_map(|(value, chosen)| chosen.then_some(value)));
        }
        values
    }

    /// The texts of a label, where the labels are as wanted.
    pub fn labels(&self, column: &str, wanted: &[(&str, &str)]) -> Vec<Option<&'a str>> {
        let mut texts = Vec::new();
        for rows in &self.0 {
            let Some((keys, words)) = dictionary(rows, column) else {
                continue;
            };
            let chosen = chosen(rows, wanted);
            let of_rows = keys.iter().zip(chosen).filter(|(_, chosen)| *chosen);
            texts.extend(of_rows.map(|(key, _)| {
                let key = usize::try_from(key?).ok()?;
                words.get(key).copied()
            }));
        }
        texts
    }
}

fn numbers<T: ArrowPrimitiveType>(rows: &RecordBatch, column: &str) -> Option<PrimitiveArray<T>> {
    let array = rows.column_by_name(column)?;
    if let Some(array) = array.as_primitive_opt::<T>() {
        return Some(array.clone());
    }
    Some(cast(array, &T::DATA_TYPE).ok()?.as_primitive::<T>().clone())
}

/// Keys and words of a label.
fn dictionary<'a>(
    rows: &'a RecordBatch,
    column: &str,
) -> Option<(&'a PrimitiveArray<Int32Type>, Vec<&'a str>)> {
    let array = rows.column_by_name(column)?;
    let array = array.as_dictionary_opt::<Int32Type>()?;
    let words = array.values().as_string_opt::<i32>()?;
    Some((array.keys(), words.iter().flatten().collect()))
}

fn chosen(rows: &RecordBatch, wanted: &[(&str, &str)]) -> Vec<bool> {
    let mut chosen = match rows.column_by_name("tid") {
        Some(tid) => (0..tid.len()).map(|row| tid.is_null(row)).collect(),
        None => vec![true; rows.num_rows()],
    };
    for (column, word) in wanted {
        let found = dictionary(rows, column).and_then(|(keys, words)| {
            let key = words.iter().position(|known| known == word)?;
            Some((keys, i32::try_from(key).ok()?))
        });
        for (row, chosen) in chosen.iter_mut().enumerate() {
            *chosen &=
                found.is_some_and(|(keys, key)| keys.is_valid(row) && keys.value(row) == key);
        }
    }
    chosen
}

/// The sum of those that are known; `None` when none is.
pub fn sum<T: Copy + std::iter::Sum>(values: &[Option<T>]) -> Option<T> {
    let known = values.iter().flatten();
    known.clone().next()?;
    Some(known.copied().sum())
}

/// The sum, if all are known and there is any.
pub fn whole<T: Copy + std::iter::Sum>(values: &[Option<T>]) -> Option<T> {
    if values.is_empty() {
        return None;
    }
    values.iter().copied().sum()
}

/// The largest of those that are known.
pub fn largest(values: &[Option<f64>]) -> Option<f64> {
    values.iter().flatten().copied().reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{Float64Type, UInt64Type};

    use super::*;
    use crate::{
        columns,
        schema::{Label, Table, TableBuilder, TickKey, Timestamp},
    };

    columns! {
        /// A row.
        pub struct Row {
            tid: Option<u32> = Label("", "A thread"),
            kind: Option<Label> = Label("", "A kind"),
            count: Option<u64> = Counter("1", "A count"),
        }
    }

    static TABLE: Table = Table::new::<TickKey, Row>("test", "A test");

    #[test]
    fn values_of_processes_are_chosen_by_labels() {
        let mut builder = TableBuilder::<TickKey, Row>::new(&TABLE);
        let rows = [
            (None, Some("a"), Some(1)),
            (None, Some("b"), Some(2)),
            (Some(7), Some("a"), Some(4)),
            (None, None, Some(8)),
            (None, Some("a"), None),
        ];
        for (tid, kind, count) in rows {
            let key = TickKey {
                ts: Timestamp(0),
                interval_ns: 1,
            };
            let kind = kind.map(Label::Static);
            builder.push(key, Row { tid, kind, count });
        }
        let mut batches = Vec::new();
        builder.finish(&mut batches);
        let rows = Rows::of(&batches, "test");
        let all = rows.values::<UInt64Type>("count", &[]);
        assert_eq!(all, [Some(1), Some(2), Some(8), None]);
        let of_a = rows.values::<Float64Type>("count", &[("kind", "a")]);
        assert_eq!(of_a, [Some(1.0), None]);
        assert!(
            rows.values::<UInt64Type>("count", &[("kind", "c")])
                .is_empty()
        );
        assert!(rows.values::<UInt64Type>("none", &[]).is_empty());
        assert_eq!(rows.labels("kind", &[("kind", "b")]), [Some("b")]);
        assert_eq!((sum(&all), whole(&all)), (Some(11), None));
        assert_eq!(largest(&of_a), Some(1.0));
        assert_eq!((sum::<u64>(&[None]), whole::<u64>(&[])), (None, None));
    }
}

//! Reads the batches of a sample again, through the handles of their columns.

use std::{marker::PhantomData, ops::Add};

use arrow::{
    array::{Array as _, ArrayRef, AsArray as _, DictionaryArray, PrimitiveArray, RecordBatch},
    datatypes::{ArrowPrimitiveType, Int32Type},
    error::ArrowError,
};
use arrow_select::dictionary::garbage_collect_any_dictionary;

use super::{Batch, Cell, ColumnHandle, Columns, TypedTable};

/// Rows of one table. Rows of threads are excluded, because the rows of their processes contain
/// them.
#[derive(Debug)]
pub struct Rows<'a, K, R> {
    batches: Vec<Selected<'a>>,
    types: PhantomData<fn() -> (K, R)>,
}

/// Some rows of a batch, by index.
#[derive(Debug)]
struct Selected<'a> {
    batch: &'a RecordBatch,
    rows: Vec<usize>,
}

impl<'a, K: Columns, R: Columns> Rows<'a, K, R> {
    /// The rows of `table` in the batches of a sample.
    pub fn of(batches: &'a [Batch], table: &'static TypedTable<K, R>) -> Self {
        let of_table = batches
            .iter()
            .filter(|batch| std::ptr::eq(batch.table, table.untyped()));
        let tid = table.thread_column();
        let selected = of_table.map(|Batch { rows: batch, .. }| {
            let is_thread = |row| tid.is_some_and(|tid| batch.column(tid).is_valid(row));
            Selected {
                batch,
                rows: (0..batch.num_rows())
                    .filter(|row| !is_thread(*row))
                    .collect(),
            }
        });
        Self {
            batches: selected.collect(),
            types: PhantomData,
        }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.batches.iter().all(|selected| selected.rows.is_empty())
    }

    /// The rows in which `label` is one of `words`.
    #[must_use]
    pub fn with<C>(&self, label: ColumnHandle<R, C>, words: &[&str]) -> Self
    where
        C: Cell<Array = DictionaryArray<Int32Type>>,
    {
        let selected = self.batches.iter().map(|selected| {
            let labels = selected.array::<C>(K::COLUMNS.len() + label.index());
            let accepted = dictionary(labels).map(|word| words.contains(&word));
            let accepted: Vec<bool> = accepted.collect();
            selected.filtered(|row| labels.key(row).is_some_and(|key| accepted[key]))
        });
        Self {
            batches: selected.collect(),
            types: PhantomData,
        }
    }

    /// The rows in which `flag` is false.
    #[must_use]
    pub fn without(&self, flag: ColumnHandle<R, bool>) -> Self {
        let selected = self.batches.iter().map(|selected| {
            let flags = selected.array::<bool>(K::COLUMNS.len() + flag.index());
            selected.filtered(|row| !flags.value(row))
        });
        Self {
            batches: selected.collect(),
            types: PhantomData,
        }
    }

    /// Values of a column.
    pub fn values<C, P>(
        &self,
        column: ColumnHandle<R, C>,
    ) -> impl Iterator<Item = Option<P::Native>>
    where
        C: Cell<Array = PrimitiveArray<P>>,
        P: ArrowPrimitiveType,
    {
        self.numbers::<C, P>(K::COLUMNS.len() + column.index())
    }

    /// Values of a column of the key.
    pub fn keys<C, P>(&self, column: ColumnHandle<K, C>) -> impl Iterator<Item = Option<P::Native>>
    where
        C: Cell<Array = PrimitiveArray<P>>,
        P: ArrowPrimitiveType,
    {
        self.numbers::<C, P>(column.index())
    }

    /// Texts of a column of labels.
    pub fn labels<C>(&self, column: ColumnHandle<R, C>) -> impl Iterator<Item = Option<&'a str>>
    where
        C: Cell<Array = DictionaryArray<Int32Type>>,
    {
        self.texts::<C>(K::COLUMNS.len() + column.index())
    }

    /// Texts of a column of labels in the key.
    pub fn key_labels<C>(&self, column: ColumnHandle<K, C>) -> impl Iterator<Item = Option<&'a str>>
    where
        C: Cell<Array = DictionaryArray<Int32Type>>,
    {
        self.texts::<C>(column.index())
    }

    fn numbers<C, P>(&self, index: usize) -> impl Iterator<Item = Option<P::Native>>
    where
        C: Cell<Array = PrimitiveArray<P>>,
        P: ArrowPrimitiveType,
    {
        self.batches.iter().flat_map(move |selected| {
            let array = selected.array::<C>(index);
            let value = |row: &usize| array.is_valid(*row).then(|| array.value(*row));
            selected.rows.iter().map(value)
        })
    }

    fn texts<C>(&self, index: usize) -> impl Iterator<Item = Option<&'a str>>
    where
        C: Cell<Array = DictionaryArray<Int32Type>>,
    {
        self.batches.iter().flat_map(move |selected| {
            let labels = selected.array::<C>(index);
            let words: Vec<&str> = dictionary(labels).collect();
            let text = move |row: &usize| labels.key(*row).map(|key| words[key]);
            selected.rows.iter().map(text)
        })
    }
}

impl<'a> Selected<'a> {
    /// The rows of which a condition holds.
    fn filtered(&self, condition: impl Fn(usize) -> bool) -> Self {
        let rows = self.rows.iter().copied().filter(|row| condition(*row));
        Self {
            batch: self.batch,
            rows: rows.collect(),
        }
    }

    fn array<C: Cell>(&self, index: usize) -> &'a C::Array {
        array::<C>(self.batch, index)
    }
}

/// The column of a batch at `index`, whose cells have the type `C`.
///
/// # Panics
///
/// If the column has another type: an error in the program, not in its input.
pub fn array<C: Cell>(batch: &RecordBatch, index: usize) -> &C::Array {
    let array = batch.column(index).as_any();
    array
        .downcast_ref()
        .expect("a batch has the columns of its table")
}

/// Words of a column of labels, in the order of their keys.
pub fn dictionary(labels: &DictionaryArray<Int32Type>) -> impl Iterator<Item = &str> {
    let words = labels.values().as_string::<i32>();
    words.iter().map(Option::unwrap_or_default)
}

/// Sum of the known values; `None` if none is known.
pub fn sum_of_known<T: Add<Output = T>>(values: impl IntoIterator<Item = Option<T>>) -> Option<T> {
    values
        .into_iter()
        .flatten()
        .reduce(|sum, value| sum + value)
}

/// Sum of all values; `None` if one is unknown or there are none.
pub fn sum_of_all<T: Add<Output = T>>(values: impl IntoIterator<Item = Option<T>>) -> Option<T> {
    let mut values = values.into_iter();
    let first = values.next()?;
    values.fold(first, |sum, value| Some(sum? + value?))
}

/// Largest of the known values.
pub fn largest(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    values.into_iter().flatten().reduce(f64::max)
}

/// Removes labels that no row uses, after rows were selected: they belong to others, and take space.
///
/// # Errors
///
/// When Arrow cannot copy a dictionary.
pub fn without_unused_labels(rows: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let columns = rows
        .columns()
        .iter()
        .map(|column| match column.as_any_dictionary_opt() {
            Some(labels) => garbage_collect_any_dictionary(labels),
            None => Ok(ArrayRef::clone(column)),
        });
    RecordBatch::try_new(rows.schema(), columns.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        columns,
        schema::{Label, ProcessKey, TableBuilder, Timestamp},
    };

    columns! {
        pub struct Row {
            kind: Option<Label> = Label("", "A kind"),
            count: Option<u64> = Counter("1", "A count"),
        }
    }

    static TABLE: TypedTable<ProcessKey, Row> = TypedTable::new("test", "A test");
    static OTHER: TypedTable<ProcessKey, Row> = TypedTable::new("other", "Another");

    #[test]
    fn values_of_processes_are_selected_by_labels() {
        let mut builder = TableBuilder::new(&TABLE);
        let rows = [
            (None, Some("a"), Some(1)),
            (None, Some("b"), Some(2)),
            (Some(7), Some("a"), Some(4)),
            (None, None, Some(8)),
            (None, Some("a"), None),
        ];
        for (tid, kind, count) in rows {
            let key = ProcessKey {
                ts: Timestamp::from_us(0),
                interval_ns: 1,
                pid: 7,
                start_ts: Timestamp::from_us(3),
                tid,
            };
            let kind = kind.map(Label::Static);
            builder.push(key, Row { kind, count });
        }
        let mut batches = Vec::new();
        builder.finish(&mut batches);
        let rows = Rows::of(&batches, &TABLE);
        let counts = |rows: &Rows<'_, _, _>| rows.values(Row::count).collect::<Vec<_>>();
        assert_eq!(counts(&rows), [Some(1), Some(2), Some(8), None]);
        assert_eq!(rows.keys(ProcessKey::pid).collect::<Vec<_>>(), [Some(7); 4]);
        let labels: Vec<_> = rows.labels(Row::kind).collect();
        assert_eq!(labels, [Some("a"), Some("b"), None, Some("a")]);
        assert_eq!(counts(&rows.with(Row::kind, &["a"])), [Some(1), None]);
        let both = rows.with(Row::kind, &["a", "b"]);
        assert_eq!(counts(&both), [Some(1), Some(2), None]);
        assert!(rows.with(Row::kind, &["c"]).is_empty() && !rows.is_empty());
        assert!(Rows::of(&batches, &OTHER).is_empty());
    }

    #[test]
    fn sums_of_unknown_values() {
        assert_eq!(sum_of_known([Some(1), None, Some(2)]), Some(3));
        assert_eq!(sum_of_known::<u64>([None]), None);
        assert_eq!(sum_of_all([Some(1), Some(2)]), Some(3));
        assert_eq!(sum_of_all([Some(1), None]), None);
        assert_eq!(sum_of_all::<u64>([]), None);
        assert_eq!(largest([Some(1.0), None, Some(0.5)]), Some(1.0));
    }
}

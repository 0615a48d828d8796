//! Dividing the rows of a table by the processes that they are of.

use std::collections::BTreeMap;

use arrow::{
    array::{Array as _, ArrayRef, AsArray as _, RecordBatch, UInt32Array},
    compute::take_record_batch,
    datatypes::{TimestampNanosecondType, UInt32Type},
    error::ArrowError,
};
use arrow_select::dictionary::garbage_collect_any_dictionary;

use super::Key;
use crate::schema::Batch;

/// Rows of one table, each with the job that they are of.
type Partitioned = Vec<(Option<u64>, Batch)>;

/// The rows of each job, and of none, in their order; `None` when no row is of a job.
///
/// # Errors
///
/// When Arrow cannot pick the rows.
pub fn divide(
    batch: &Batch,
    job_of: impl Fn(Key) -> Option<u64>,
) -> Result<Option<Partitioned>, ArrowError> {
    let rows = &batch.rows;
    let Some((pids, starts)) = keys(rows) else {
        return Ok(None);
    };
    let mut indices: BTreeMap<Option<u64>, Vec<u32>> = BTreeMap::new();
    for (row, index) in (0..rows.num_rows()).zip(0_u32..) {
        let known = pids.is_valid(row) && starts.is_valid(row);
        let job = known
            .then(|| job_of((pids.value(row), starts.value(row))))
            .flatten();
        indices.entry(job).or_default().push(index);
    }
    if indices.keys().all(Option::is_none) {
        return Ok(None);
    }
    let divided = indices.into_iter().map(|(job, indices)| {
        let picked = take_record_batch(rows, &UInt32Array::from(indices))?;
        let rows = without_others(&picked)?;
        Ok((
            job,
            Batch {
                table: batch.table,
                rows,
            },
        ))
    });
    divided.collect::<Result<_, _>>().map(Some)
}

/// The columns that say of which process a row is; of other tables there are none.
fn keys(
    rows: &RecordBatch,
) -> Option<(
    &arrow::array::PrimitiveArray<UInt32Type>,
    &arrow::array::PrimitiveArray<TimestampNanosecondType>,
)> {
    let pids = rows.column_by_name("pid")?.as_primitive_opt()?;
    let starts = rows.column_by_name("start_ts")?.as_primitive_opt()?;
    Some((pids, starts))
}

/// Labels that only rows of others have are not the job's to see, and would be stored with each batch.
fn without_others(rows: &RecordBatch) -> Result<RecordBatch, ArrowError> {
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
        schema::{Buckets, Label, OwnerKey, TableBuilder, TickKey, Timestamp, TypedTable},
    };

    columns! {
        /// A row of something.
        pub struct Row {
            name: Label = Label("", "A name"),
            buckets: Buckets = Counter("1", "A histogram"),
        }
    }

    static OWNED: TypedTable<OwnerKey, Row> =
        TypedTable::new("owned", "Rows of processes, or of none");
    static WHOLE: TypedTable<TickKey, Row> = TypedTable::new("whole", "Rows of the node");

    fn owned(pids: &[Option<u32>]) -> Batch {
        let mut builder = TableBuilder::new(&OWNED);
        for (pid, number) in pids.iter().zip(0..) {
            builder.push(
                OwnerKey {
                    ts: Timestamp(1),
                    interval_ns: 1,
                    pid: *pid,
                    start_ts: pid.map(|pid| Timestamp(i64::from(pid) * 10)),
                    tid: None,
                },
                Row {
                    name: format!("of {pid:?}").into(),
                    buckets: Buckets(vec![number]),
                },
            );
        }
        let mut out = Vec::new();
        builder.finish(&mut out);
        out.remove(0)
    }

    /// Even pids are of the job with half their number.
    fn even((pid, start): Key) -> Option<u64> {
        assert_eq!(start, i64::from(pid) * 10);
        (pid % 2 == 0).then_some(u64::from(pid / 2))
    }

    #[test]
    fn every_row_goes_to_one_place() {
        let batch = owned(&[Some(2), None, Some(3), Some(4), Some(2)]);
        let divided = divide(&batch, even).unwrap().expect("rows of jobs");
        let jobs: Vec<_> = divided.iter().map(|(job, _)| *job).collect();
        assert_eq!(jobs, [None, Some(1), Some(2)]);
        let pids = [[None, Some(3)].as_slice(), &[Some(2), Some(2)], &[Some(4)]];
        let numbers = [[1, 2].as_slice(), &[0, 4], &[3]];
        for ((_, rows), (pids, numbers)) in divided.iter().zip(pids.into_iter().zip(numbers)) {
            let rows = &rows.rows;
            let found: Vec<_> = rows["pid"].as_primitive::<UInt32Type>().iter().collect();
            assert_eq!(found, pids);
            let buckets = rows["buckets"].as_list::<i32>();
            let values = buckets
                .values()
                .as_primitive::<arrow::datatypes::UInt64Type>();
            assert_eq!(
                values
                    .slice(
                        usize::try_from(buckets.value_offsets()[0]).unwrap(),
                        numbers.len()
                    )
                    .values(),
                numbers
            );
            // No name of a process of others is left, not even unused.
            let names = rows["name"].as_any_dictionary();
            let mut distinct: Vec<_> = pids.iter().map(|pid| format!("of {pid:?}")).collect();
            distinct.dedup();
            let kept = names.values().as_string::<i32>();
            let kept: Vec<_> = kept.iter().flatten().map(str::to_owned).collect();
            assert_eq!(kept, distinct);
        }
    }

    #[test]
    fn what_is_of_no_job_is_not_touched() {
        assert!(divide(&owned(&[Some(1), None]), even).unwrap().is_none());
        let mut builder = TableBuilder::new(&WHOLE);
        builder.push(
            TickKey {
                ts: Timestamp(1),
                interval_ns: 1,
            },
            Row {
                name: "x".into(),
                buckets: Buckets(Vec::new()),
            },
        );
        let mut out = Vec::new();
        builder.finish(&mut out);
        assert!(divide(&out[0], even).unwrap().is_none());
    }
}

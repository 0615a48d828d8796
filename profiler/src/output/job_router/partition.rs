//! Partitioning the rows of a table by the job of their process.

use std::collections::BTreeMap;

use arrow::{
    array::{Array as _, AsArray as _, RecordBatch, UInt32Array},
    compute::take_record_batch,
    datatypes::{TimestampMicrosecondType, UInt32Type},
    error::ArrowError,
};

use super::RowOwner;
use crate::schema::{Batch, read::without_unused_labels};

/// Rows of one table per job; `None` for rows without a job.
type Partitions = Vec<(Option<u64>, Batch)>;

/// The rows of each job, and those without a job, in their order; `None` if no row has a job.
///
/// # Errors
///
/// When Arrow cannot select the rows.
pub fn partition(
    batch: &Batch,
    job_of: impl Fn(RowOwner) -> Option<u64>,
) -> Result<Option<Partitions>, ArrowError> {
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
    let partitions = indices.into_iter().map(|(job, indices)| {
        let selected = take_record_batch(rows, &UInt32Array::from(indices))?;
        let rows = without_unused_labels(&selected)?;
        Ok((
            job,
            Batch {
                table: batch.table,
                rows,
            },
        ))
    });
    partitions.collect::<Result<_, _>>().map(Some)
}

/// The columns that identify the process of a row, if the table has them.
fn keys(
    rows: &RecordBatch,
) -> Option<(
    &arrow::array::PrimitiveArray<UInt32Type>,
    &arrow::array::PrimitiveArray<TimestampMicrosecondType>,
)> {
    let pids = rows.column_by_name("pid")?.as_primitive_opt()?;
    let starts = rows.column_by_name("start_ts")?.as_primitive_opt()?;
    Some((pids, starts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        columns,
        schema::{Buckets, Label, OwnerKey, TableBuilder, TickKey, Timestamp, TypedTable},
    };

    columns! {
        /// A label and a list.
        pub struct Row {
            name: Label = Label("", "A name"),
            buckets: Buckets = Counter("1", "A histogram"),
        }
    }

    static OWNED: TypedTable<OwnerKey, Row> =
        TypedTable::new("owned", "Rows of processes, or of none");
    static NODE_ROWS: TypedTable<TickKey, Row> = TypedTable::new("whole", "Rows of the node");

    fn owned(pids: &[Option<u32>]) -> Batch {
        let mut builder = TableBuilder::new(&OWNED);
        for (pid, number) in pids.iter().zip(0..) {
            builder.push(
                OwnerKey {
                    ts: Timestamp::from_us(1),
                    interval_ns: 1,
                    pid: *pid,
                    start_ts: pid.map(|pid| Timestamp::from_us(i64::from(pid) * 10)),
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

    /// A process with an even pid belongs to the job with half its number.
    fn even((pid, start): RowOwner) -> Option<u64> {
        assert_eq!(start, i64::from(pid) * 10);
        (pid % 2 == 0).then_some(u64::from(pid / 2))
    }

    #[test]
    fn every_row_goes_to_one_partition() {
        let batch = owned(&[Some(2), None, Some(3), Some(4), Some(2)]);
        let partitions = partition(&batch, even).unwrap().expect("rows of jobs");
        let jobs: Vec<_> = partitions.iter().map(|(job, _)| *job).collect();
        assert_eq!(jobs, [None, Some(1), Some(2)]);
        let pids = [[None, Some(3)].as_slice(), &[Some(2), Some(2)], &[Some(4)]];
        let numbers = [[1, 2].as_slice(), &[0, 4], &[3]];
        for ((_, rows), (pids, numbers)) in partitions.iter().zip(pids.into_iter().zip(numbers)) {
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
            // Labels of other jobs are removed.
            let names = rows["name"].as_any_dictionary();
            let mut distinct: Vec<_> = pids.iter().map(|pid| format!("of {pid:?}")).collect();
            distinct.dedup();
            let kept = names.values().as_string::<i32>();
            let kept: Vec<_> = kept.iter().flatten().map(str::to_owned).collect();
            assert_eq!(kept, distinct);
        }
    }

    #[test]
    fn batches_without_jobs_are_not_changed() {
        assert!(partition(&owned(&[Some(1), None]), even).unwrap().is_none());
        let mut builder = TableBuilder::new(&NODE_ROWS);
        builder.push(
            TickKey {
                ts: Timestamp::from_us(1),
                interval_ns: 1,
            },
            Row {
                name: "x".into(),
                buckets: Buckets(Vec::new()),
            },
        );
        let mut out = Vec::new();
        builder.finish(&mut out);
        assert!(partition(&out[0], even).unwrap().is_none());
    }
}

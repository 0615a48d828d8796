//! Tables of the dataset: the rows of all nodes in one file, with the columns of the schema, `host` and
//! `run`.

use std::{io::Write, sync::Arc};

use arrow::{
    array::{
        Array as _, ArrayRef, AsArray as _, BooleanArray, RecordBatch, StringArray,
        TimestampMicrosecondArray, new_null_array,
    },
    compute::cast,
    datatypes::{DataType, Field, Schema, SchemaRef, TimestampMicrosecondType, UInt64Type},
};
use arrow_select::filter::filter_record_batch;

use super::{
    csv::{Csv, Texts},
    feather::Feather,
    json::Json,
    output::{RowWriter, failed},
    parquet::Parquet,
    selection::{self, Selection},
};
use crate::{
    analysis::{rows::is_time, stored_run::StoredRun},
    failure::Failure,
    schema::Table,
};

/// Formats of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Csv,
    /// CSV in which no text is a formula.
    SpreadsheetCsv,
    Json,
    Ndjson,
    Feather,
    Parquet,
}

impl Format {
    /// End of the names of files.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Csv | Self::SpreadsheetCsv => "csv",
            Self::Json => "json",
            Self::Ndjson => "ndjson",
            Self::Feather => "feather",
            Self::Parquet => "parquet",
        }
    }

    /// A writer for rows of a schema.
    pub fn writer<'a>(
        self,
        output: impl Write + Send + 'a,
        schema: &SchemaRef,
    ) -> Result<Box<dyn RowWriter + 'a>, Failure> {
        Ok(match self {
            Self::Csv => Box::new(Csv::new(output, Texts::AsStored)),
            Self::SpreadsheetCsv => Box::new(Csv::new(output, Texts::Marked)),
            Self::Json => Box::new(Json::array(output)),
            Self::Ndjson => Box::new(Json::lines(output)),
            Self::Feather => Box::new(Feather::new(output, schema)?),
            Self::Parquet => Box::new(Parquet::new(output, schema)?),
        })
    }

    fn is_text(self) -> bool {
        matches!(
            self,
            Self::Csv | Self::SpreadsheetCsv | Self::Json | Self::Ndjson
        )
    }

    /// Whether fields can be lists.
    fn has_lists(self) -> bool {
        !matches!(self, Self::Csv | Self::SpreadsheetCsv)
    }
}

/// Writes a table of runs. Returns the files that cannot be read, with the reason.
///
/// # Errors
///
/// When the output cannot be written.
pub fn write(
    runs: &[StoredRun],
    table: &Table,
    selection: &Selection,
    format: Format,
    output: &mut (dyn Write + Send),
) -> Result<Vec<String>, Failure> {
    let schema = schema(table, format);
    let mut writer = format.writer(output, &schema)?;
    // A header even without rows.
    writer.write(&RecordBatch::new_empty(schema.clone()))?;
    let mut columns: Vec<&str> = table.columns().map(|column| column.name).collect();
    columns.extend(selection::COLUMNS);
    let mut failures = Vec::new();
    for run in runs {
        let id = run.id();
        for host in run.hosts.iter() {
            let selected = selection.on(run, host, &mut failures);
            let mut result = Ok(());
            let read = run.read(table.name, host, &columns, |batch| {
                if result.is_err() {
                    return;
                }
                let rows = selected.rows(batch).map(BooleanArray::from);
                let rows = rows.map(|rows| filter_record_batch(batch, &rows));
                let batch = rows
                    .transpose()
                    .map(|rows| rows.unwrap_or_else(|| batch.clone()));
                result = batch
                    .map_err(failed)
                    .and_then(|batch| converted(&batch, &schema, &host.name, &id))
                    .and_then(|batch| writer.write(&batch));
            });
            result?;
            failures.extend(read.err().into_iter().flatten());
        }
    }
    writer.finish()?;
    Ok(failures)
}

/// Columns of a table in a format.
fn schema(table: &Table, format: Format) -> SchemaRef {
    let schema = table.schema();
    let fields = schema.fields().iter().map(|field| {
        let data_type = match field.data_type() {
            DataType::Dictionary(_, values) => (**values).clone(),
            DataType::List(_) if !format.has_lists() => DataType::Utf8,
            // Names of time zones need a database.
            DataType::Timestamp(unit, Some(_)) if format.is_text() => {
                DataType::Timestamp(*unit, Some("+00:00".into()))
            }
            other => other.clone(),
        };
        // Files of older versions lack columns.
        let field = (**field).clone().with_data_type(data_type);
        field.with_nullable(true)
    });
    let names = ["host", "run"].map(|name| Field::new(name, DataType::Utf8, true));
    Arc::new(Schema::new(fields.chain(names).collect::<Vec<_>>()))
}

fn converted(
    batch: &RecordBatch,
    schema: &SchemaRef,
    host: &str,
    run: &str,
) -> Result<RecordBatch, Failure> {
    let rows = batch.num_rows();
    let columns = schema
        .fields()
        .iter()
        .map(|field| -> Result<ArrayRef, Failure> {
            let same = |text: &str| Arc::new(StringArray::from_iter_values(vec![text; rows])) as _;
            let column = match (field.name().as_str(), batch.column_by_name(field.name())) {
                ("host", _) => return Ok(same(host)),
                ("run", _) => return Ok(same(run)),
                (_, None) => return Ok(new_null_array(field.data_type(), rows)),
                (_, Some(column)) => column,
            };
            match (column.data_type(), field.data_type()) {
                (DataType::List(_), DataType::Utf8) => Ok(Arc::new(lists_as_json(column))),
                (_, to) => cast(column, to).map(of_clock).map_err(failed),
            }
        });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new(schema.clone(), columns).map_err(failed)
}

/// Without what is no time: text would have an error in its place.
fn of_clock(column: ArrayRef) -> ArrayRef {
    let Some(times) = column.as_primitive_opt::<TimestampMicrosecondType>() else {
        return column;
    };
    let times: TimestampMicrosecondArray = times.unary_opt(|us| is_time(us).then_some(us));
    Arc::new(times.with_data_type(column.data_type().clone()))
}

/// `[1,2]` and `["a","b"]`.
fn lists_as_json(column: &ArrayRef) -> StringArray {
    let lists = column.as_list::<i32>();
    let texts = (0..lists.len()).map(|row| {
        if lists.is_null(row) {
            return None;
        }
        let list = lists.value(row);
        if let Some(numbers) = list.as_primitive_opt::<UInt64Type>() {
            return serde_json::to_string(&numbers.iter().collect::<Vec<_>>()).ok();
        }
        let words = cast(&list, &DataType::Utf8).ok()?;
        let words: Vec<_> = words.as_string::<i32>().iter().collect();
        serde_json::to_string(&words).ok()
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;

    use super::*;
    use crate::sources::dataset_schema;

    #[test]
    fn what_is_no_time_is_null_in_text() {
        let table = dataset_schema().table("system").expect("a table");
        let times: ArrayRef = Arc::new(Int64Array::from(vec![i64::MIN, 1_000_000, i64::MAX]));
        let rows = RecordBatch::try_from_iter([("ts", times)]).expect("a batch");
        for (format, [none, second]) in [
            (Format::Csv, ["\n,", "\n1970-01-01T00:00:01Z,"]),
            (
                Format::Ndjson,
                ["{\"ts\":null,", "{\"ts\":\"1970-01-01T00:00:01Z\","],
            ),
        ] {
            let schema = schema(table, format);
            let mut output = Vec::new();
            let mut writer = format.writer(&mut output, &schema).expect("a writer");
            let rows = converted(&rows, &schema, "node1", "run").expect("rows");
            writer.write(&rows).expect("written");
            writer.finish().expect("written");
            let text = String::from_utf8(output).expect("text");
            assert_eq!(text.matches(none).count(), 2, "{text}");
            assert_eq!(text.matches(second).count(), 1, "{text}");
        }
    }
}

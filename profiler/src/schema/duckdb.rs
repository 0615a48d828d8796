//! Types of columns in DuckDB.

use arrow::datatypes::DataType;

use super::Column;

/// Type of a column in the Parquet files, as DuckDB names it.
pub fn type_name(column: &Column) -> String {
    match (column.data_type)() {
        DataType::UInt64 => "UBIGINT".into(),
        DataType::UInt32 => "UINTEGER".into(),
        DataType::Int64 => "BIGINT".into(),
        DataType::Int32 => "INTEGER".into(),
        DataType::Float64 => "DOUBLE".into(),
        DataType::Boolean => "BOOLEAN".into(),
        DataType::Utf8 | DataType::Dictionary(..) => "VARCHAR".into(),
        DataType::Timestamp(..) => "TIMESTAMPTZ".into(),
        DataType::List(item) if *item.data_type() == DataType::Utf8 => "VARCHAR[]".into(),
        DataType::List(_) => "UBIGINT[]".into(),
        other => other.to_string(),
    }
}

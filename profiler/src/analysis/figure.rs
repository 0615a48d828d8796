//! A figure: an aggregate over the rows of a table. One declaration gives its value and its SQL.

use std::fmt::Write as _;

use arrow::array::RecordBatch;

use super::rows::{Texts, numbers};
use crate::{
    schema::Table,
    sources::dataset_schema,
    support::units::{format_bytes, format_ns},
};

/// Unit of a figure, which decides how it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Hours,
    Bytes,
    Mebibytes,
    Percent,
    Count,
    Joules,
    Watts,
    Flop,
    /// A unit of another program, in which values are given.
    Named(&'static str),
}

impl Unit {
    /// Symbol.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Hours => "h",
            Self::Bytes => "bytes",
            Self::Mebibytes => "MiB",
            Self::Percent => "%",
            Self::Count => "1",
            Self::Joules => "J",
            Self::Watts => "W",
            Self::Flop => "FLOP",
            Self::Named(name) => name,
        }
    }
}

impl Unit {
    /// A value for people: `1.2 s`, `3.4 GiB`, `56 %`.
    pub fn format(self, value: f64) -> String {
        match self {
            Self::Seconds => format_ns(whole(value * 1e9)),
            Self::Bytes => format_bytes(whole(value)),
            Self::Mebibytes => format_bytes(whole(value * 1_048_576.0)),
            Self::Percent => format!("{value:.1} %"),
            Self::Hours if value < 1.0 => format_ns(whole(value * 3600e9)),
            Self::Hours => format!("{} h", significant(value)),
            Self::Count => scaled(value, ""),
            Self::Joules => scaled(value, "J"),
            Self::Watts => scaled(value, "W"),
            Self::Flop => scaled(value, "FLOP"),
            Self::Named(name) if value > 0.0 && value < 0.01 => format!("{value:.0e} {name}"),
            Self::Named(name) if value >= 1e6 => {
                let digits = format!("{value:.2e}");
                let (digits, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
                let digits = digits.trim_end_matches('0').trim_end_matches('.');
                format!("{digits}e{exponent} {name}")
            }
            Self::Named(name) => format!("{} {name}", significant(value)),
        }
    }
}

/// Without fraction; 0 for negative numbers.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates at the limits"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

/// Three significant digits.
fn significant(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A value with a prefix of powers of 1000.
pub fn scaled(value: f64, unit: &str) -> String {
    let is_whole = unit.is_empty() && value.fract() == 0.0;
    if is_whole && value.abs() < 10_000.0 {
        return format!("{value:.0}");
    }
    let mut scaled = value;
    for prefix in ["", "k", "M", "G", "T"] {
        if scaled.abs() < 1000.0 {
            return format!("{} {prefix}{unit}", significant(scaled))
                .trim_end()
                .to_owned();
        }
        scaled /= 1000.0;
    }
    format!("{} P{unit}", significant(scaled))
}

/// An aggregate over the rows of a table: first over those of one reading of a host, then over
/// readings.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    pub name: &'static str,
    pub unit: Unit,
    /// Meaning.
    pub help: &'static str,
    pub table: &'static str,
    /// Value of a row.
    pub value: Value,
    /// Rows that count.
    pub rows: &'static [Condition],
    pub over_rows: OverRows,
    pub over_time: OverTime,
    /// Another figure of the same list that it cannot be below: a maximum of samples misses what is
    /// between them.
    pub at_least: Option<&'static str>,
}

/// Column with the time that a row covers.
const INTERVAL: &str = "interval_ns";

/// Value of a row, computed from columns of the same row; null if one of them is null.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    Column(&'static str),
    /// The sum of several columns.
    Sum(&'static [&'static str]),
    /// A sum of columns divided by another one; null if that is 0.
    Ratio(&'static [&'static str], &'static [&'static str]),
    /// A column times a ratio.
    Part(
        &'static str,
        &'static [&'static str],
        &'static [&'static str],
    ),
    /// 1 for each row.
    One,
    /// A value times a constant.
    Scaled(f64, &'static Value),
    /// A share of the interval in %. The kernel updates these times at other moments than we read
    /// them, so that a ratio can be a little above 1.
    ShareOfInterval(&'static str),
}

/// Condition for a row.
#[derive(Clone, Copy, Debug)]
pub enum Condition {
    IsNull(&'static str),
    NotNull(&'static str),
    /// A text.
    Is(&'static str, &'static str),
    /// One of several texts.
    IsOneOf(&'static str, &'static [&'static str]),
    /// Another text, or null.
    IsNot(&'static str, &'static str),
    /// A truth value or number that is 0.
    Zero(&'static str),
    /// A number that is neither 0 nor null.
    NotZero(&'static str),
}

/// Aggregate over the rows of one reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverRows {
    Sum,
    Mean,
    Max,
    Min,
}

impl OverRows {
    fn sql(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "avg",
            Self::Max => "max",
            Self::Min => "min",
        }
    }
}

/// Aggregate over readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OverTime {
    Sum,
    Max,
    /// Weighted with the time that each reading covers.
    Mean,
    /// The sum of values times the seconds that they cover.
    Integral,
    /// Share of the time in which the value is at least this, %.
    ShareAtLeast(f64),
}

impl Value {
    /// The columns that are added up, and what their sum is multiplied with; `None` for other values.
    pub fn as_sum(&self) -> Option<(&[&'static str], f64)> {
        match self {
            Self::Column(name) => Some((std::slice::from_ref(name), 1.0)),
            Self::Sum(names) => Some((names, 1.0)),
            Self::Scaled(factor, value) => {
                let (names, of_value) = value.as_sum()?;
                Some((names, factor * of_value))
            }
            Self::Ratio(..) | Self::Part(..) | Self::One | Self::ShareOfInterval(_) => None,
        }
    }

    /// Adds the columns that it is computed from.
    pub fn columns(&self, columns: &mut Vec<&'static str>) {
        match self {
            Self::Column(name) => columns.push(name),
            Self::Sum(names) => columns.extend(*names),
            Self::Ratio(above, below) => columns.extend(above.iter().chain(*below)),
            Self::Part(name, above, below) => {
                columns.push(name);
                columns.extend(above.iter().chain(*below));
            }
            Self::One => {}
            Self::Scaled(_, value) => value.columns(columns),
            Self::ShareOfInterval(name) => columns.extend([name, INTERVAL]),
        }
    }

    /// Values of all rows, NaN for null.
    pub fn of(&self, batch: &RecordBatch) -> Vec<f64> {
        let ratio = |above: &[&str], below: &[&str]| {
            let pairs = sum(batch, above).into_iter().zip(sum(batch, below));
            pairs.map(|(above, below)| {
                if below == 0.0 {
                    f64::NAN
                } else {
                    above / below
                }
            })
        };
        match self {
            Self::Column(name) => numbers(batch, name),
            Self::Sum(names) => sum(batch, names),
            Self::Ratio(above, below) => ratio(above, below).collect(),
            Self::Part(name, above, below) => {
                let pairs = numbers(batch, name).into_iter().zip(ratio(above, below));
                pairs.map(|(value, ratio)| value * ratio).collect()
            }
            Self::One => vec![1.0; batch.num_rows()],
            Self::Scaled(factor, value) => value
                .of(batch)
                .into_iter()
                .map(|value| value * factor)
                .collect(),
            Self::ShareOfInterval(name) => ratio(&[name], &[INTERVAL])
                // Unlike `min`, keeps NaN.
                .map(|share| if share > 1.0 { 100.0 } else { 100.0 * share })
                .collect(),
        }
    }

    fn sql(&self) -> String {
        let sum = |names: &[&str]| match names {
            [name] => quoted(name),
            names => {
                let names: Vec<_> = names.iter().map(|name| quoted(name)).collect();
                format!("({})", names.join(" + "))
            }
        };
        match self {
            Self::Column(name) => quoted(name),
            Self::Sum(names) => sum(names),
            Self::Ratio(above, below) => format!("{} / nullif({}, 0)", sum(above), sum(below)),
            Self::Part(name, above, below) => {
                format!(
                    "{} * {} / nullif({}, 0)",
                    quoted(name),
                    sum(above),
                    sum(below)
                )
            }
            Self::One => "1".to_owned(),
            Self::Scaled(factor, value) => format!("{factor:e} * {}", value.sql()),
            Self::ShareOfInterval(name) => format!(
                "least(100, 100.0 * {} / nullif({INTERVAL}, 0))",
                quoted(name)
            ),
        }
    }
}

/// Sum of columns.
fn sum(batch: &RecordBatch, names: &[&str]) -> Vec<f64> {
    let mut columns = names.iter().map(|name| numbers(batch, name));
    let mut sum = columns.next().unwrap_or_default();
    for column in columns {
        for (sum, value) in sum.iter_mut().zip(column) {
            *sum += value;
        }
    }
    sum
}

fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

impl Condition {
    fn column(self) -> &'static str {
        match self {
            Self::IsNull(name)
            | Self::NotNull(name)
            | Self::Is(name, _)
            | Self::IsOneOf(name, _)
            | Self::IsNot(name, _)
            | Self::Zero(name)
            | Self::NotZero(name) => name,
        }
    }

    fn sql(self) -> String {
        let name = quoted(self.column());
        match self {
            Self::IsNull(_) => format!("{name} IS NULL"),
            Self::NotNull(_) => format!("{name} IS NOT NULL"),
            Self::Is(_, text) => format!("{name} = '{text}'"),
            Self::IsOneOf(_, texts) => format!("{name} IN ('{}')", texts.join("', '")),
            Self::IsNot(_, text) => format!("{name} IS DISTINCT FROM '{text}'"),
            Self::Zero(_) => format!("{name}::DOUBLE = 0"),
            Self::NotZero(_) => format!("{name}::DOUBLE <> 0"),
        }
    }

    /// Clears the rows that do not meet the condition.
    fn select(self, batch: &RecordBatch, selected: &mut [bool]) {
        let mut keep = |meets: &dyn Fn(usize) -> bool| {
            for (row, selected) in selected.iter_mut().enumerate() {
                *selected &= meets(row);
            }
        };
        let column = batch.column_by_name(self.column());
        let is_null = |row| column.is_none_or(|column| column.is_null(row));
        match self {
            Self::IsNull(_) => keep(&is_null),
            Self::NotNull(_) => keep(&|row| !is_null(row)),
            Self::Is(name, text) => {
                let texts = Texts::of(batch, name);
                keep(&|row| texts.get(row) == Some(text));
            }
            Self::IsOneOf(name, wanted) => {
                let texts = Texts::of(batch, name);
                keep(&|row| texts.get(row).is_some_and(|text| wanted.contains(&text)));
            }
            Self::IsNot(name, text) => {
                let texts = Texts::of(batch, name);
                keep(&|row| texts.get(row) != Some(text));
            }
            Self::Zero(name) => {
                let values = numbers(batch, name);
                keep(&|row| values[row] == 0.0);
            }
            Self::NotZero(name) => {
                let values = numbers(batch, name);
                keep(&|row| !values[row].is_nan() && values[row] != 0.0);
            }
        }
    }
}

impl Figure {
    /// Defaults of a figure: the sum over all rows.
    pub const SUM: Self = Self {
        name: "",
        unit: Unit::Count,
        help: "",
        table: "",
        value: Value::One,
        rows: &[],
        over_rows: OverRows::Sum,
        over_time: OverTime::Sum,
        at_least: None,
    };

    /// With another aggregate over the rows of a reading.
    #[must_use]
    pub const fn over_rows(mut self, over: OverRows) -> Self {
        self.over_rows = over;
        self
    }

    /// With another aggregate over readings.
    #[must_use]
    pub const fn over_time(mut self, over: OverTime) -> Self {
        self.over_time = over;
        self
    }

    /// Not below another figure of the same list.
    #[must_use]
    pub const fn at_least(mut self, other: &'static str) -> Self {
        self.at_least = Some(other);
        self
    }

    /// Adds the columns that it is computed from.
    pub fn columns(&self, columns: &mut Vec<&'static str>) {
        self.value.columns(columns);
        columns.extend(self.rows.iter().map(|condition| condition.column()));
    }

    /// Values of the rows that count, NaN for null; `None` for all other rows.
    pub fn values(&self, batch: &RecordBatch) -> Vec<Option<f64>> {
        let mut selected = vec![true; batch.num_rows()];
        for condition in self.rows {
            condition.select(batch, &mut selected);
        }
        let values = self.value.of(batch).into_iter().zip(selected);
        values
            .map(|(value, selected)| selected.then_some(value))
            .collect()
    }

    /// Whether it is a sum, which is too small if a row has no value.
    pub fn is_sum(&self) -> bool {
        let over_time = matches!(self.over_time, OverTime::Sum | OverTime::Integral);
        over_time && self.over_rows == OverRows::Sum
    }

    /// A query for the values over time that plots show. `by` are columns of the table.
    pub fn sql_over_time(&self, by: &[&str]) -> String {
        self.sql_over_time_of(&filled(self.table), by)
    }

    /// A query for the values over time of each rank.
    pub fn sql_of_ranks(&self) -> String {
        let rows = format!(
            "(SELECT rows.*, task_rank FROM {} AS rows JOIN process USING (host, pid, start_ts) \
             WHERE task_rank IS NOT NULL)",
            filled(self.table)
        );
        self.sql_over_time_of(&rows, &["task_rank"])
    }

    fn sql_over_time_of(&self, rows: &str, by: &[&str]) -> String {
        let by: String = by.iter().map(|name| quoted(name) + ", ").collect();
        let over_rows = self.over_rows.sql();
        let rate = if self.over_time == OverTime::Sum {
            " / (max(interval_ns) / 1e9)"
        } else {
            ""
        };
        format!(
            "SELECT host, {by}ts, max(interval_ns) / 1e9 AS seconds, {over_rows}({}){}{rate} AS {} FROM \
             {rows} GROUP BY host, {by}ts ORDER BY host, {by}ts",
            self.value.sql(),
            // A reading has its time from all rows.
            self.sql_rows(" FILTER (", ")"),
            self.name,
        )
    }

    /// The conditions for rows, if there are any, between `before` and `after`.
    fn sql_rows(&self, before: &str, after: &str) -> String {
        let conditions: Vec<_> = self.rows.iter().map(|condition| condition.sql()).collect();
        if conditions.is_empty() {
            return String::new();
        }
        format!("{before}{}{after}", conditions.join(" AND "))
    }

    /// A query for the views of the dataset (`views.sql`). `by` are columns of the table: there is one
    /// row for each of their combinations. `list` has the figure that this one cannot be below.
    pub fn sql(&self, by: &[&str], list: &[Self]) -> String {
        let own = self.sql_without_bound(by);
        let bound = list.iter().find(|other| self.at_least == Some(other.name));
        let Some(bound) = bound else { return own };
        let keys: String = by.iter().map(|name| quoted(name) + ", ").collect();
        let group = if by.is_empty() { "" } else { " GROUP BY ALL" };
        format!(
            "SELECT {keys}max({name}) AS {name} FROM ({own} UNION ALL {}){group}",
            bound.sql_without_bound(by),
            name = self.name,
        )
    }

    fn sql_without_bound(&self, by: &[&str]) -> String {
        let keys: String = by.iter().map(|name| quoted(name) + ", ").collect();
        let (sum, value) = ("sum(seconds)", "v");
        let over_time = match self.over_time {
            OverTime::Sum => format!("sum({value})"),
            OverTime::Max => format!("max({value})"),
            OverTime::Integral => format!("sum({value} * seconds)"),
            OverTime::Mean => {
                format!("sum({value} * seconds) / {sum} FILTER ({value} IS NOT NULL)")
            }
            OverTime::ShareAtLeast(least) => format!(
                "100 * coalesce({sum} FILTER ({value} >= {least}), 0) / {sum} FILTER ({value} IS NOT NULL)"
            ),
        };
        let over_rows = self.over_rows.sql();
        let seconds = match self.over_time {
            OverTime::Sum | OverTime::Max => "",
            _ => ", max(interval_ns) / 1e9 AS seconds",
        };
        let mut sql = format!(
            "SELECT {keys}{over_time} AS {name} FROM (SELECT {keys}{over_rows}({value}) AS v{seconds} FROM {table}",
            name = self.name,
            value = self.value.sql(),
            table = filled(self.table),
        );
        sql += &self.sql_rows(" WHERE ", "");
        let _ = write!(sql, " GROUP BY {keys}run, host, ts)");
        if !by.is_empty() {
            sql.push_str(" GROUP BY ALL");
        }
        sql
    }
}

/// The view of a table that has a row of each process at every sample.
fn filled(table: &str) -> String {
    let declared = dataset_schema().table(table);
    declared.map_or_else(|| table.to_owned(), Table::filled)
}

/// The aggregate over readings of one figure.
#[derive(Clone, Copy, Debug)]
pub struct Accumulator {
    sum: f64,
    seconds: f64,
    max: f64,
    count: u64,
    /// Rows with and without a value.
    rows: Coverage,
}

/// Rows behind a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Those with a value.
    pub known: u64,
    /// Those that count.
    pub of: u64,
}

impl Coverage {
    /// Adds other rows.
    pub fn add(&mut self, other: Self) {
        self.known += other.known;
        self.of += other.of;
    }
}

impl Default for Accumulator {
    fn default() -> Self {
        Self {
            sum: 0.0,
            seconds: 0.0,
            max: f64::NEG_INFINITY,
            count: 0,
            rows: Coverage::default(),
        }
    }
}

impl Accumulator {
    /// Adds the value of a reading that covers `seconds`, and the rows behind it.
    pub fn add(&mut self, over: OverTime, value: f64, seconds: f64, rows: Coverage) {
        self.rows.add(rows);
        if value.is_nan() {
            return;
        }
        self.count += 1;
        self.max = self.max.max(value);
        self.seconds += seconds;
        self.sum += match over {
            OverTime::Sum | OverTime::Max => value,
            OverTime::Mean | OverTime::Integral => value * seconds,
            OverTime::ShareAtLeast(least) => {
                if value >= least {
                    100.0 * seconds
                } else {
                    0.0
                }
            }
        };
    }

    /// Adds the readings of another host.
    pub fn merge(&mut self, other: &Self) {
        self.rows.add(other.rows);
        self.count += other.count;
        self.max = self.max.max(other.max);
        self.seconds += other.seconds;
        self.sum += other.sum;
    }

    /// The rows behind the result, if some have no value.
    pub fn missing(&self) -> Option<Coverage> {
        (self.rows.known < self.rows.of).then_some(self.rows)
    }

    /// The result; `None` without values.
    pub fn result(&self, over: OverTime) -> Option<f64> {
        let value = match over {
            OverTime::Sum | OverTime::Integral => self.sum,
            OverTime::Max => self.max,
            OverTime::Mean | OverTime::ShareAtLeast(_) => self.sum / self.seconds,
        };
        (self.count != 0 && value.is_finite()).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::UInt64Array;

    use super::*;

    /// Pressure of 100.3 % was shown.
    #[test]
    fn shares_of_an_interval_are_at_most_100_percent() {
        let column = |values: [Option<u64>; 4]| Arc::new(UInt64Array::from(values.to_vec())) as _;
        let batch = RecordBatch::try_from_iter([
            ("waited_ns", column([Some(1003), Some(500), None, Some(1)])),
            (
                INTERVAL,
                column([Some(1000), Some(1000), Some(1000), Some(0)]),
            ),
        ]);
        let shares = Value::ShareOfInterval("waited_ns").of(&batch.expect("a batch"));
        assert_eq!(shares[..2], [100.0, 50.0]);
        assert!(shares[2].is_nan() && shares[3].is_nan(), "{shares:?}");
    }

    /// A label of an axis has room for ten letters.
    #[test]
    fn large_values_of_other_units_are_short() {
        let unit = Unit::Named("1/s");
        for (value, text) in [
            (1e9, "1e9 1/s"),
            (1.0149e9, "1.01e9 1/s"),
            (2.5e6, "2.5e6 1/s"),
            (999_000.0, "999000 1/s"),
            (0.0, "0.00 1/s"),
        ] {
            assert_eq!(unit.format(value), text);
        }
    }
}

//! Compaction of one table: which days have work, and what it changes.

use std::{collections::BTreeMap, io};

use arrow::{
    compute::kernels::cast_utils::Parser as _,
    datatypes::{Date32Type, Schema},
};

use super::{
    AfterStep, CompactedTable, Options, Step,
    check::{self, Checksums},
    columns::with_extremes,
    commit::Commit,
    day::{self, Day, Table},
    keep::{DAY_US, Resolution},
    parts::{Parts, no_times},
    plan::TablePlan,
    reduce,
    stored::{self, StoredDays},
};
use crate::{
    output::dataset::{compacted::DAY, files::Directory},
    support::units::rfc3339,
};

/// Writes and verifies the compacted files of a table under temporary names; `None` if nothing is to
/// be done. Files that exist are written again only if `rewrite`.
///
/// # Errors
///
/// When a file cannot be read or written, or rows differ.
pub fn merge(
    out: &Directory,
    compacted: &Directory,
    (name, plan): (&str, &TablePlan),
    rewrite: bool,
    options: &Options,
    after: AfterStep<'_>,
) -> io::Result<Option<(Commit, CompactedTable)>> {
    let mut parts = Parts::read(out, name, &plan.sources, options.schema)?;
    let directory = compacted.make(name)?;
    let stored = if rewrite {
        stored::read(&directory, &plan.runs)?
    } else {
        StoredDays::new()
    };
    let mut days = chosen(name, &parts, stored, options)?;
    if days.is_empty() && parts.list.is_empty() {
        return Ok(None);
    }
    let files = days.iter().flat_map(|day| &day.files);
    for file in files.clone() {
        parts.fields.add(&file.schema);
    }
    let all = (parts.list.len() + files.count()) as u64;
    let schema = parts.fields.schema(name, options.schema, all);
    for day in &mut days {
        let is_raw = day.resolution.is_none_or(|of| of == Resolution::RAW);
        day.schema = if is_raw {
            schema.clone()
        } else {
            with_extremes(&schema)
        };
    }
    let sparse = options.schema.table(name).and_then(|table| table.sparse);
    let table = Table {
        out,
        directory: &directory,
        name,
        sources: &plan.sources,
        parts: &parts,
        limits: &options.limits,
        sparse: parts.fields.is_sparse.then_some(sparse).flatten(),
    };
    let mut commit = Commit::new(name, plan, &parts.files);
    let mut read = Checksums::new();
    let mut result = CompactedTable {
        name: name.to_owned(),
        rows: 0,
        new_rows: 0,
        old: (parts.list.len() as u64, parts.bytes),
        new: (0, 0),
    };
    for day in &days {
        let written = day::write(&table, day, after)?;
        commit.add(plan, day, &written);
        read = check::sum(&read, &written.parts);
        let count = |sums: &Checksums| sums.values().map(|sum| sum.rows).sum::<u64>();
        result.rows += count(&written.parts) + count(&written.stored);
        result.new_rows += count(&written.after);
        result.old.0 += day.files.len() as u64;
        result.old.1 += day.files.iter().map(|file| file.bytes).sum::<u64>();
        result.new.0 += written.files.len() as u64;
        result.new.1 += written.bytes;
    }
    parts.check(&plan.sources, &read)?;
    after(Step::Verified)?;
    Ok(Some((commit, result)))
}

/// The days with new rows, or with files that are written again.
fn chosen(
    table: &str,
    parts: &Parts,
    mut stored: StoredDays,
    options: &Options,
) -> io::Result<Vec<Day>> {
    let known = options.schema.table(table);
    let is_reducible =
        known.is_some_and(|table| reduce::is_reducible(&table.schema(), table.keyed));
    let mut names: BTreeMap<i64, String> = BTreeMap::new();
    for day in parts.list.iter().flat_map(|part| part.days.0..=part.days.1) {
        names.insert(day, day_name(day)?);
    }
    let has_new_rows = names.clone();
    for name in stored.keys() {
        names.insert(day_number(name)?, name.clone());
    }
    let mut days = Vec::new();
    for (number, name) in names {
        let kept = options.keep.of(number, options.now_us);
        let resolution = kept.map(|kept| if is_reducible { kept } else { Resolution::RAW });
        let files = stored.remove(&name).unwrap_or_default();
        let has_new_rows = has_new_rows.contains_key(&number);
        let files = stored::to_rewrite(files, resolution, has_new_rows, &options.limits);
        if has_new_rows || !files.is_empty() {
            days.push(Day {
                number,
                name,
                resolution,
                schema: Schema::empty().into(),
                files,
            });
        }
    }
    Ok(days)
}

/// `day=2026-01-31`.
fn day_name(day: i64) -> io::Result<String> {
    let text = rfc3339(day.saturating_mul(DAY_US).saturating_mul(1000));
    let date = text.split_once('T').ok_or_else(no_times)?.0;
    Ok(format!("{DAY}{date}"))
}

/// The day of a directory, since 1970-01-01 UTC.
pub fn day_number(name: &str) -> io::Result<i64> {
    let date = name.strip_prefix(DAY).and_then(Date32Type::parse);
    let date = date.ok_or_else(|| io::Error::other(format!("{name}: not a day")))?;
    Ok(date.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_days_are_read_again() {
        for day in [0, -1, 20_000, 20_454] {
            assert_eq!(day_number(&day_name(day).unwrap()).unwrap(), day);
        }
        assert!(day_number("day=soon").is_err());
    }
}

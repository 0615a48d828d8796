//! Size of the compacted files by day.

use std::{collections::BTreeMap, io};

use super::merge::day_number;
use crate::output::dataset::{compacted::DAY, files::Directory, parquet_file};

/// The first day of which rows can be kept if the files may have `limit` bytes in total; `None` if
/// all can.
///
/// # Errors
///
/// When a directory cannot be read.
pub fn first_day(compacted: &Directory, limit: u64) -> io::Result<Option<i64>> {
    let mut days: BTreeMap<i64, u64> = BTreeMap::new();
    for table in compacted.names()? {
        let Ok(table) = compacted.sub(&table) else {
            continue;
        };
        for name in table.names()? {
            let Ok(day) = table.sub(&name) else { continue };
            if !name.starts_with(DAY) {
                continue;
            }
            let bytes = days.entry(day_number(&name)?).or_default();
            for file in day.names()? {
                if parquet_file::number(&file).is_some() {
                    *bytes += day.read(&file)?.metadata()?.len();
                }
            }
        }
    }
    Ok(first_within(&days, limit))
}

fn first_within(days: &BTreeMap<i64, u64>, limit: u64) -> Option<i64> {
    let mut left = limit;
    for (day, bytes) in days.iter().rev() {
        match left.checked_sub(*bytes) {
            Some(rest) => left = rest,
            None => return Some(day.saturating_add(1)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_days_are_removed_first() {
        let days = BTreeMap::from([(1, 10), (2, 20), (4, 30)]);
        for (limit, first) in [
            (60, None),
            (59, Some(2)),
            (50, Some(2)),
            (49, Some(3)),
            (29, Some(5)),
        ] {
            assert_eq!(first_within(&days, limit), first, "{limit}");
        }
    }
}

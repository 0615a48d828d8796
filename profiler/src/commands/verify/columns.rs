//! Columns of tables: the same on all hosts.

use std::collections::{BTreeMap, BTreeSet};

use super::{All, Report};
use crate::schema::SCHEMA_VERSION;

impl Report {
    /// Checks that all hosts have the same columns and schema version.
    pub(super) fn columns(&mut self, all: &All) {
        let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut types: BTreeMap<(&str, &str), BTreeMap<&str, &str>> = BTreeMap::new();
        let mut conflicts = BTreeSet::new();
        for ((table, host), contents) in all {
            for version in &contents.versions {
                versions.entry(version).or_default().insert(host);
            }
            for (column, of_type) in &contents.columns {
                types
                    .entry((table, column))
                    .or_default()
                    .entry(of_type)
                    .or_insert(host);
            }
            conflicts.extend(
                contents
                    .conflicts
                    .iter()
                    .map(|column| (table.as_str(), column.as_str())),
            );
        }
        if versions.len() > 1 {
            let of: Vec<_> = versions
                .iter()
                .map(|(version, hosts)| format!("{version} of {}", some(hosts)))
                .collect();
            self.problem(format!("versions of the schema differ: {}", of.join(", ")));
        }
        for version in versions.keys() {
            if version
                .parse::<u32>()
                .is_ok_and(|version| version > SCHEMA_VERSION)
            {
                self.note(format!(
                    "version {version} of the schema is newer than this profiler's"
                ));
            }
        }
        for ((table, column), of) in types {
            if of.len() > 1 || conflicts.contains(&(table, column)) {
                let of: Vec<_> = of
                    .iter()
                    .map(|(of_type, host)| format!("{of_type} of {host}"))
                    .collect();
                self.problem(format!(
                    "{table}.{column} has several types: {}",
                    of.join(", ")
                ));
            }
        }
    }
}

/// The first names, and the number of the others.
fn some(names: &BTreeSet<&str>) -> String {
    let shown: Vec<_> = names.iter().take(3).copied().collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

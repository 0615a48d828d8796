//! Selection of groups and events (`--groups`, `--events`, `--perfevents`).

use std::path::PathBuf;

use perfevents::{Catalog, Request, Uarch};

use super::{Error, catalog};

/// Groups that are counted by default, as far as the CPU has them.
///
/// `SW` is not one of them: `usage` and `sched` have the same values at a lower cost.
const DEFAULT: [&str; 6] = ["HW", "HW_CACHE", "FLOPS", "MEM", "L2", "L3"];

/// Replacements of groups that a CPU does not have.
const REPLACEMENTS: [(&str, &[&str]); 1] = [("FLOPS", &["FLOPS_DP", "FLOPS_SP"])];

/// Selected groups and events.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Groups by name; the default groups if `None`.
    pub groups: Option<Vec<String>>,
    /// Events in the syntax of perf(1).
    pub events: Request,
    /// Directory of additional tables.
    pub tables: Option<PathBuf>,
}

impl Selection {
    /// Parses the values of `--groups` and `--events`.
    ///
    /// # Errors
    ///
    /// If no group is given, or the events have a syntax error.
    pub fn new(
        groups: Option<&str>,
        events: Option<&str>,
        tables: Option<PathBuf>,
    ) -> Result<Self, Error> {
        let names = |list: &str| -> Vec<String> {
            list.split(',')
                .map(|name| name.trim().to_owned())
                .filter(|name| !name.is_empty())
                .collect()
        };
        let request: Option<Request> = events.map(str::parse).transpose()?;
        let groups = match (groups.map(names), &request) {
            (Some(groups), None) if groups.is_empty() => {
                return Err(Error::NoGroup);
            }
            // With events and without groups, only the events are counted.
            (None, Some(_)) => Some(Vec::new()),
            (groups, _) => groups,
        };
        Ok(Self {
            groups,
            events: request.unwrap_or_default(),
            tables,
        })
    }

    /// Whether groups or events are given explicitly.
    pub fn is_explicit(&self) -> bool {
        self.groups.is_some()
    }

    /// The event tables, including those of the directory.
    ///
    /// # Errors
    ///
    /// If a table of the directory cannot be read or contradicts itself.
    pub fn catalog(&self) -> Result<Catalog, Error> {
        catalog(self.tables.as_deref())
    }

    /// Names of the selected groups in the tables of the CPU.
    ///
    /// # Errors
    ///
    /// If a given group is in none of the tables.
    pub fn group_names<'a>(&'a self, tables: &[&'a Uarch]) -> Result<Vec<&'a str>, Error> {
        let has = |name: &str| tables.iter().any(|table| table.groups.contains_key(name));
        let replacements = |name: &str| {
            let found = REPLACEMENTS.iter().find(|(missing, _)| *missing == name);
            let names = found.map_or(&[][..], |(_, names)| names);
            names.iter().copied().filter(|name| has(name))
        };
        let Some(groups) = &self.groups else {
            let names = DEFAULT.iter().flat_map(|name| {
                let own = has(name).then_some(*name);
                let others = replacements(name).filter(move |_| own.is_none());
                own.into_iter().chain(others)
            });
            return Ok(names.collect());
        };
        let mut names: Vec<&str> = Vec::new();
        for name in groups {
            let before = names.len();
            let known = tables
                .iter()
                .flat_map(|table| table.groups.keys())
                .find(|known| known.eq_ignore_ascii_case(name));
            match known {
                Some(known) => names.push(known),
                None => names.extend(replacements(&name.to_ascii_uppercase())),
            }
            if names.len() == before {
                let mut known: Vec<&str> = tables
                    .iter()
                    .flat_map(|table| table.groups.keys().map(String::as_str))
                    .collect();
                known.sort_unstable();
                known.dedup();
                return Err(Error::UnknownGroup {
                    group: name.clone(),
                    known: known.join(", "),
                });
            }
        }
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(*name));
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(groups: Option<&str>, cpu: &str) -> Result<Vec<String>, Error> {
        let catalog = Catalog::builtin();
        let tables: Vec<&Uarch> = catalog
            .iter()
            .filter(|uarch| [cpu, "generic"].contains(&&*uarch.id))
            .collect();
        let selection = Selection::new(groups, None, None)?;
        let names = selection.group_names(&tables)?;
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    #[test]
    fn default_groups_by_cpu() {
        let all = ["HW", "HW_CACHE", "FLOPS", "MEM", "L2", "L3"];
        assert_eq!(names(None, "skx").expect("known"), all);
        let tgl = names(None, "tgl").expect("known");
        assert!(tgl.contains(&"FLOPS_DP".to_owned()) || tgl.contains(&"FLOPS".to_owned()));
        assert_eq!(names(None, "none").expect("known"), ["HW", "HW_CACHE"]);
    }

    #[test]
    fn groups_by_name() {
        let some = names(Some("tma, mem,MEM"), "skx").expect("known");
        assert_eq!(some, ["TMA", "MEM"]);
        let error = names(Some("TMA"), "none").expect_err("unknown").to_string();
        assert!(
            error.contains("TMA") && error.contains("HW_CACHE"),
            "{error}"
        );
        assert!(names(Some(","), "skx").is_err());
        let custom = Selection::new(None, Some("cpu/event=1/"), None).expect("valid");
        assert_eq!(custom.groups, Some(Vec::new()));
        assert!(Selection::new(None, Some("cpu/"), None).is_err());
    }
}

//! Which groups and events a run counts.

use std::path::PathBuf;

use perfevents::{Catalog, Request, Uarch};

use crate::{
    commands::events,
    failure::{Failure, Reason},
};

/// The groups of a run that says nothing else; those that this CPU does not have are left out.
///
/// `SW` is not among them: `usage` and `sched` have the same for less.
const DEFAULT: [&str; 6] = ["HW", "HW_CACHE", "FLOPS", "MEM", "L2", "L3"];

/// What stands for a group that a CPU does not have.
const INSTEAD: [(&str, &[&str]); 1] = [("FLOPS", &["FLOPS_DP", "FLOPS_SP"])];

/// As the command line has it.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Groups by name; the default ones when `None`.
    pub groups: Option<Vec<String>>,
    /// Events in the syntax of perf(1).
    pub events: Request,
    /// Directory of tables that are added.
    pub tables: Option<PathBuf>,
}

impl Selection {
    /// Reads the texts of `--groups` and `--events`.
    ///
    /// # Errors
    ///
    /// When the events are none.
    pub fn new(
        groups: Option<&str>,
        events: Option<&str>,
        tables: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let usage = |what: String| Failure::new(Reason::Usage, what);
        let names = |list: &str| -> Vec<String> {
            list.split(',')
                .map(|name| name.trim().to_owned())
                .filter(|name| !name.is_empty())
                .collect()
        };
        let request: Option<Request> = events
            .map(str::parse)
            .transpose()
            .map_err(|error| usage(format!("--events {error}")))?;
        let groups = match (groups.map(names), &request) {
            (Some(groups), None) if groups.is_empty() => {
                return Err(usage("--groups names no group".to_owned()));
            }
            // Whoever names events wants these, and no others.
            (None, Some(_)) => Some(Vec::new()),
            (groups, _) => groups,
        };
        Ok(Self {
            groups,
            events: request.unwrap_or_default(),
            tables,
        })
    }

    /// Whether anything was asked for by name.
    pub fn is_explicit(&self) -> bool {
        self.groups.is_some()
    }

    /// The tables of a run.
    ///
    /// # Errors
    ///
    /// When one of the directory makes no sense.
    pub fn catalog(&self) -> Result<Catalog, Failure> {
        events::catalog(self.tables.as_deref())
    }

    /// The names of the groups, of those that a CPU with these tables has.
    ///
    /// # Errors
    ///
    /// When a group that was asked for is in none of the tables.
    pub fn group_names<'a>(&'a self, tables: &[&'a Uarch]) -> Result<Vec<&'a str>, String> {
        let has = |name: &str| tables.iter().any(|table| table.groups.contains_key(name));
        let instead = |name: &str| {
            let found = INSTEAD.iter().find(|(missing, _)| *missing == name);
            let all = found.map_or(&[][..], |(_, instead)| instead);
            all.iter().copied().filter(|name| has(name))
        };
        let Some(groups) = &self.groups else {
            let names = DEFAULT.iter().flat_map(|name| {
                let own = has(name).then_some(*name);
                let others = instead(name).filter(move |_| own.is_none());
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
                None => names.extend(instead(&name.to_ascii_uppercase())),
            }
            if names.len() == before {
                let mut known: Vec<&str> = tables
                    .iter()
                    .flat_map(|table| table.groups.keys().map(String::as_str))
                    .collect();
                known.sort_unstable();
                known.dedup();
                return Err(format!(
                    "--groups {name}: this CPU has {}",
                    known.join(", ")
                ));
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

    fn names(groups: Option<&str>, cpu: &str) -> Result<Vec<String>, String> {
        let catalog = Catalog::builtin();
        let tables: Vec<&Uarch> = catalog
            .iter()
            .filter(|uarch| [cpu, "generic"].contains(&&*uarch.id))
            .collect();
        let selection = Selection::new(groups, None, None).map_err(|error| error.to_string())?;
        let names = selection.group_names(&tables)?;
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    #[test]
    fn the_default_is_what_the_cpu_has() {
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
        let error = names(Some("TMA"), "none").expect_err("unknown");
        assert!(
            error.contains("TMA") && error.contains("HW_CACHE"),
            "{error}"
        );
        assert!(names(Some(","), "skx").is_err());
        let by_hand = Selection::new(None, Some("cpu/event=1/"), None).expect("valid");
        assert_eq!(by_hand.groups, Some(Vec::new()));
        assert!(Selection::new(None, Some("cpu/"), None).is_err());
    }
}

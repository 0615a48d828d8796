//! Selection of groups and events (`--groups`, `--events`, `--perfevents`).

use std::path::PathBuf;

use perfevents::{Catalog, Request, Uarch};

use super::{Error, catalog::catalog_of};
use crate::{host::Host, support::names};

/// Groups that are counted by default, as far as the CPU has them.
///
/// `SW` is not one of them: `usage` and `sched` have the same values at a lower cost.
const DEFAULT: &[&str] = &["HW", "HW_CACHE", "FLOPS", "MEM", "L2", "L3", "LLC"];

/// Default groups of a run like perfmon's, which counted all of these.
const LIKE_PERFMON: &[&str] = &[
    "HW", "HW_CACHE", "FLOPS", "MEM", "L2", "L3", "LLC", "SW", "L2CACHE", "L3CACHE",
];

/// Default groups that are left out if their events do not fit on the counters together. Their
/// counts are bandwidths of processes, and a split group would give a rough estimate at a high cost
/// to the others.
const IF_FITTING: [&str; 2] = ["LLC", MEM_PROXY];
const MEM_PROXY: &str = "MEM_PROXY";

/// Groups in place of those that a CPU does not have. perfmon's names of groups are included.
const REPLACEMENTS: [(&str, &[&str]); 4] = [
    ("FLOPS", &["FLOPS_DP", "FLOPS_SP"]),
    ("LLC", &[MEM_PROXY]),
    ("HARDWARE_EVENTS", &["HW", "HW_CACHE"]),
    ("SOFTWARE_EVENTS", &["SW"]),
];

/// Selected groups and events.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The default groups.
    defaults: &'static [&'static str],
    /// Groups by name; the default groups if `None`. If every name has a sign, they are changes of
    /// the default groups: `+TMA`, `-L3`.
    pub groups: Option<Vec<String>>,
    /// Events in the syntax of perf(1).
    pub events: Request,
    /// Directory of additional tables.
    pub tables: Option<PathBuf>,
}

impl Default for Selection {
    fn default() -> Self {
        Self {
            defaults: DEFAULT,
            groups: None,
            events: Request::default(),
            tables: None,
        }
    }
}

impl Selection {
    /// Parses the values of `--groups` and `--events`.
    ///
    /// # Errors
    ///
    /// If no group is given, if only some of them have a sign, or if the events have a syntax error.
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
        let groups = groups.map(names);
        if let Some(groups) = &groups {
            let signed = groups.iter().filter(|group| sign(group).is_some()).count();
            if signed != 0 && signed != groups.len() {
                return Err(Error::MixedGroups);
            }
        }
        let request: Option<Request> = events.map(str::parse).transpose()?;
        let groups = match (groups, &request) {
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
            ..Self::default()
        })
    }

    /// The same with the default groups of perfmon.
    #[must_use]
    pub fn like_perfmon(self) -> Self {
        Self {
            defaults: LIKE_PERFMON,
            ..self
        }
    }

    /// Whether groups or events are given explicitly.
    pub fn is_explicit(&self) -> bool {
        self.groups.is_some()
    }

    /// Whether a group is left out if its events do not fit on the counters together: it is counted
    /// by default and was not named.
    pub fn is_optional(&self, group: &str) -> bool {
        let named = self.groups.iter().flatten();
        let mut named = named.map(|name| name.trim_start_matches(SIGNS));
        let is = |name: &str| {
            let replaced = REPLACEMENTS
                .iter()
                .find(|(from, _)| name.eq_ignore_ascii_case(from));
            name.eq_ignore_ascii_case(group)
                || replaced.is_some_and(|(_, names)| names.contains(&group))
        };
        IF_FITTING.contains(&group) && !named.any(is)
    }

    /// The event tables of this machine's CPUs, including those of the directory.
    ///
    /// # Errors
    ///
    /// If a table of the directory cannot be read or contradicts itself.
    pub fn catalog(&self, host: &Host) -> Result<Catalog, Error> {
        catalog_of(host, self.tables.as_deref())
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
        let defaults = || {
            self.defaults.iter().flat_map(|&name| {
                let own = has(name).then_some(name);
                let others = replacements(name).filter(move |_| own.is_none());
                own.into_iter().chain(others)
            })
        };
        let find = |name: &str| -> Result<Vec<&'a str>, Error> {
            let mut known = tables.iter().flat_map(|table| table.groups.keys());
            if let Some(known) = known.find(|known| known.eq_ignore_ascii_case(name)) {
                return Ok(vec![known]);
            }
            let found: Vec<&str> = replacements(&name.to_ascii_uppercase()).collect();
            if found.is_empty() {
                return Err(unknown(name, tables));
            }
            Ok(found)
        };
        let Some(groups) = &self.groups else {
            return Ok(defaults().collect());
        };
        let mut names: Vec<&str> = Vec::new();
        if groups.first().is_some_and(|group| sign(group).is_some()) {
            names.extend(defaults());
        }
        for group in groups {
            let found = find(group.trim_start_matches(SIGNS))?;
            if sign(group) == Some('-') {
                names.retain(|name| !found.contains(name));
            } else {
                names.extend(found);
            }
        }
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(*name));
        Ok(names)
    }
}

/// Signs of changes of the default groups.
const SIGNS: [char; 2] = ['+', '-'];

fn sign(group: &str) -> Option<char> {
    group.chars().next().filter(|first| SIGNS.contains(first))
}

fn unknown(group: &str, tables: &[&Uarch]) -> Error {
    let mut known: Vec<&str> = tables
        .iter()
        .flat_map(|table| table.groups.keys().map(String::as_str))
        .collect();
    known.sort_unstable();
    known.dedup();
    Error::UnknownGroup {
        group: group.to_owned(),
        known: names::listed(group, known),
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
        let all = ["HW", "HW_CACHE", "FLOPS", "MEM", "L2", "L3", "LLC"];
        assert_eq!(names(None, "skx").expect("known"), all);
        let tgl = names(None, "tgl").expect("known");
        assert!(tgl.contains(&"FLOPS_DP".to_owned()) || tgl.contains(&"FLOPS".to_owned()));
        assert!(tgl.contains(&"MEM_PROXY".to_owned()), "{tgl:?}");
        assert_eq!(names(None, "none").expect("known"), ["HW", "HW_CACHE"]);
    }

    #[test]
    fn default_groups_of_perfmon_by_cpu() {
        let catalog = Catalog::builtin();
        let skx: Vec<&Uarch> = catalog
            .iter()
            .filter(|uarch| ["skx", "generic"].contains(&&*uarch.id))
            .collect();
        let selection = |groups| {
            let selection = Selection::new(groups, None, None).expect("valid");
            selection.like_perfmon()
        };
        let all = selection(None);
        assert_eq!(all.group_names(&skx).expect("known"), LIKE_PERFMON);
        let given = selection(Some("TMA"));
        assert_eq!(given.group_names(&skx).expect("known"), ["TMA"]);
        let fewer = selection(Some("-SW"));
        assert_eq!(
            fewer.group_names(&skx).expect("known").len(),
            LIKE_PERFMON.len() - 1
        );
        // A CPU without any of the caches' groups.
        assert_eq!(all.group_names(&[]).expect("known"), [""; 0]);
    }

    #[test]
    fn signs_change_the_default_groups() {
        let some = names(Some("+tma,-L3, -flops"), "skx").expect("known");
        assert_eq!(some, ["HW", "HW_CACHE", "MEM", "L2", "LLC", "TMA"]);
        let some = names(Some("-FLOPS,+L2CACHE"), "tgl").expect("known");
        assert!(
            !some.iter().any(|name| name.starts_with("FLOPS")),
            "{some:?}"
        );
        assert!(names(Some("+NONE"), "skx").is_err());
        for mixed in ["TMA,+L3", "-L3,TMA"] {
            let error = names(Some(mixed), "skx").expect_err("mixed").to_string();
            assert!(error.contains('+'), "{error}");
        }
    }

    #[test]
    fn groups_have_the_names_of_perfmon() {
        let all = "hardware_events,software_events,L2,L3,L2cache,L3cache";
        let groups = names(Some(all), "skx").expect("known");
        let expected = ["HW", "HW_CACHE", "SW", "L2", "L3", "L2CACHE", "L3CACHE"];
        assert_eq!(groups, expected);
    }

    #[test]
    fn named_groups_are_not_optional() {
        let of = |groups| Selection::new(groups, None, None).expect("valid");
        assert!(of(None).is_optional("LLC") && of(None).is_optional("MEM_PROXY"));
        assert!(of(Some("+TMA")).is_optional("LLC") && !of(None).is_optional("L3"));
        assert!(!of(Some("+llc")).is_optional("MEM_PROXY"));
        assert!(!of(Some("MEM_PROXY")).is_optional("MEM_PROXY"));
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

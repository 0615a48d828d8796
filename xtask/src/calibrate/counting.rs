//! Event groups of this CPU, and counts of the profiler.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use perfevents::{CORE_PMU, Device};
use serde_json::Value;

use super::{verdict::Counted, workload::Metric};
use crate::{run, shell};

const INTERVAL: &str = "200ms";

/// A rate times its interval is the count. On a hybrid CPU, selects the kind of core on which the
/// kernel ran.
const TOTALS: &str = "\
SELECT metric, arg_max(total, share), max(share)
FROM (
  SELECT metric, pmu, sum(value * interval_ns / 1e9) AS total,
    sum(running_ratio * interval_ns) / sum(interval_ns) FILTER (running_ratio IS NOT NULL) AS share
  FROM perf_metric WHERE scope = '{scope}' GROUP BY metric, pmu
)
WHERE total IS NOT NULL AND share IS NOT NULL
GROUP BY metric";

/// Fails on a machine without a PMU.
pub fn require_pmu(sysfs: &Path) -> Result<()> {
    ensure!(
        !Device::all(sysfs, CORE_PMU).is_empty(),
        "no core PMU in {}, so that nothing can be compared. On a virtual machine, enable vPMU passthrough on the \
         host (QEMU: -cpu host,pmu=on)",
        sysfs.join("bus/event_source/devices").display()
    );
    Ok(())
}

/// The event groups of this CPU.
pub struct Groups {
    /// Metrics by group.
    metrics: BTreeMap<String, BTreeSet<String>>,
    /// Reasons by group that cannot be counted.
    refused: BTreeMap<String, String>,
}

impl Groups {
    /// Reads the groups of the event tables, and which of them can be opened.
    pub fn read(profiler: &Path) -> Result<Self> {
        let mut command = Command::new(profiler);
        let tables = shell::stdout(command.args(["events", "--json"]))?;
        let tables = serde_json::from_str(&tables)
            .with_context(|| format!("reading `{}`", shell::display(&command)))?;
        let mut command = run::privileged(profiler);
        let opened = shell::stdout(command.args(["events", "--validate"]))?;
        Self::new(metrics(&tables), refused(&opened))
    }

    fn new(
        metrics: BTreeMap<String, BTreeSet<String>>,
        refused: BTreeMap<String, String>,
    ) -> Result<Self> {
        ensure!(
            !metrics.is_empty(),
            "no event table with groups for this CPU, so that nothing can be compared. Write a table and set \
             PROFILER_PERFEVENTS=DIR (docs/perfevents.md)"
        );
        Ok(Self { metrics, refused })
    }

    pub fn has_flops(&self) -> bool {
        self.metrics.keys().any(|group| group.starts_with("FLOPS"))
    }

    /// The first of these metrics that the CPU supports.
    pub fn choose(&self, wanted: &[Metric]) -> Option<Metric> {
        let has = |(group, metric): &&Metric| {
            let metrics = self.metrics.get(*group);
            metrics.is_some_and(|metrics| metrics.contains(*metric))
        };
        wanted.iter().find(has).copied()
    }

    /// The reason if the group cannot be counted.
    pub fn refusal(&self, group: &str) -> Option<&str> {
        self.refused.get(group).map(String::as_str)
    }
}

/// Parses `profiler events --json`.
fn metrics(tables: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let tables = tables.as_array().into_iter().flatten();
    for (name, group) in tables.flat_map(|table| table["groups"].as_object().into_iter().flatten())
    {
        let metrics = group["metrics"].as_array().into_iter().flatten();
        let names = metrics.filter_map(|metric| metric["name"].as_str());
        all.entry(name.clone())
            .or_default()
            .extend(names.map(str::to_owned));
    }
    all
}

/// Parses `  GROUP  not counted: REASON` of `profiler events --validate`, for each kind of core.
fn refused(text: &str) -> BTreeMap<String, String> {
    let mut refused = BTreeMap::new();
    let mut counted = BTreeSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("  ")) {
        let Some((group, verdict)) = line.split_once(' ') else {
            continue;
        };
        match verdict.trim_start().strip_prefix("not counted: ") {
            Some(why) => drop(refused.insert(group.to_owned(), why.to_owned())),
            None => drop(counted.insert(group.to_owned())),
        }
    }
    refused.retain(|group, _| !counted.contains(group));
    refused
}

/// Settings for runs of the profiler.
pub struct Counting<'a> {
    pub profiler: &'a Path,
    pub python: &'a Path,
    /// `tests/scripts/read.py`.
    pub reader: &'a Path,
    /// Output directory.
    pub directory: &'a Path,
}

impl Counting<'_> {
    /// Profiles a command; returns the totals by metric of the group.
    pub fn count(
        &self,
        group: &str,
        scope: &str,
        label: &str,
        words: &[String],
    ) -> Result<BTreeMap<String, Counted>> {
        let out = self.directory.join(label);
        let mut command = run::privileged(self.profiler);
        command
            .args(["run", "--source", "perf", "--groups", group, "--strict"])
            .args(["--interval", INTERVAL, "--quiet", "--out"])
            .arg(&out)
            .arg("--")
            .args(words);
        shell::run_quietly(&mut command)?;
        self.totals(&only_entry(&out)?, scope)
    }

    fn totals(&self, run: &Path, scope: &str) -> Result<BTreeMap<String, Counted>> {
        let mut command = Command::new(self.python);
        command
            .arg(self.reader)
            .arg(run)
            .arg(TOTALS.replace("{scope}", scope));
        let rows = shell::stdout(&mut command)?;
        let rows: Vec<(String, f64, f64)> = serde_json::from_str(&rows)
            .with_context(|| format!("reading the totals of {}: {rows}", run.display()))?;
        let totals = rows
            .into_iter()
            .map(|(metric, total, share)| (metric, Counted { total, share }));
        Ok(totals.collect())
    }
}

/// The only run in a directory.
fn only_entry(directory: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.with_context(|| format!("reading {}", directory.display()))?;
    match &entries[..] {
        [run] => Ok(run.path()),
        _ => bail!("{} runs in {}, not one", entries.len(), directory.display()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn groups_of_all_kinds_of_cores_are_merged() {
        let table = |group: &str, metric: &str| json!({ "groups": { group: { "metrics": [{ "name": metric }] } } });
        let tables = json!([table("FLOPS_DP", "dp_flops"), table("FLOPS", "flops")]);
        let groups = Groups::new(metrics(&tables), BTreeMap::new()).expect("groups");
        let wanted = |first| [first, ("FLOPS", "flops")];
        assert_eq!(
            groups.choose(&wanted(("FLOPS_DP", "dp_flops"))),
            Some(("FLOPS_DP", "dp_flops"))
        );
        assert_eq!(
            groups.choose(&wanted(("FLOPS_SP", "sp_flops"))),
            Some(("FLOPS", "flops"))
        );
        assert_eq!(groups.choose(&[("MEM", "mem_bw")]), None);
        assert!(groups.has_flops());
        let memory = Groups::new(metrics(&json!([table("MEM", "mem_bw")])), BTreeMap::new());
        assert!(!memory.expect("groups").has_flops());
        let none = Groups::new(metrics(&json!([])), BTreeMap::new());
        let error = none.err().expect("no groups").to_string();
        assert!(error.contains("no event table"), "{error}");
    }

    #[test]
    fn group_is_refused_if_no_kind_of_core_counts_it() {
        let text = "P (adl-p)\n  FLOPS_DP  counted\n  MEM       not counted: PMU uncore_imc_* not found\n\
                    E (adl-e)\n  FLOPS_DP  not counted: this CPU has no such event\n  L2  counted, but multiplexed\n";
        let refused = refused(text);
        assert_eq!(refused.keys().collect::<Vec<_>>(), ["MEM"]);
        assert_eq!(refused["MEM"], "PMU uncore_imc_* not found");
    }

    #[test]
    fn missing_pmu_is_an_error_with_a_remedy() {
        let error = require_pmu(Path::new("/nonexistent")).expect_err("no such directory");
        let text = error.to_string();
        assert!(
            text.contains("no core PMU") && text.contains("passthrough"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1);
    }
}

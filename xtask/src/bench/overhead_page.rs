//! The figures in docs/overhead.md, and the machine and version that they were measured on.
//!
//! `cargo xtask bench overhead` writes them after a complete measurement. `cargo xtask docs`
//! updates the line that reports whether the BPF programs have changed since. The test tier `docs`
//! fails if that line is wrong.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::plot::{self, Bar, Group};
use crate::{bpf, workspace::Workspace};

pub const PAGE: &str = "docs/overhead.md";

const MEASURED: [&str; 2] = ["<!-- measured -->\n", "<!-- /measured -->"];
const STATUS: [&str; 2] = ["<!-- status -->\n", "<!-- /status -->"];
/// Text on the page that precedes the hash of the programs' sources.
const PROGRAMS: &str = "BPF programs `";

/// Plot of the page.
const PLOT: &str = "docs/overhead.svg";

/// Replaces the figures and the plot.
pub fn record(workspace: &Workspace, report: &Value) -> Result<()> {
    let path = workspace.root.join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let word = |name: &str| report[name].as_str().unwrap_or("?");
    let programs = word("programs");
    let provenance = format!(
        "Measured on {} at commit `{}` on Linux {} with {} CPUs ({}), {PROGRAMS}{programs}`.\n\
         Ratios can be compared with other machines, absolute times cannot.",
        word("date"),
        word("commit"),
        word("kernel"),
        report["cpus"],
        word("cpu"),
    );
    let page = replaced(
        &page,
        MEASURED,
        &format!("\n{provenance}\n\n{}\n", tables(report)),
    )?;
    fs::write(&path, with_status(&page, programs)?)
        .with_context(|| format!("writing {}", path.display()))?;
    let path = workspace.root.join(PLOT);
    fs::write(&path, plot::svg(&bars(report)))
        .with_context(|| format!("writing {}", path.display()))
}

/// The page with the status line for the present BPF programs.
pub fn current(workspace: &Workspace) -> Result<String> {
    let path = workspace.root.join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    with_status(&page, &bpf::source_hash(workspace)?)
}

fn with_status(page: &str, programs: &str) -> Result<String> {
    let measured = page.split_once(PROGRAMS);
    let measured = measured.and_then(|(_, rest)| Some(rest.split_once('`')?.0));
    let status = match measured {
        Some(hash) if hash == programs => {
            "The BPF programs have not changed since the figures were measured."
        }
        Some(_) => {
            "**Outdated:** the BPF programs have changed since the figures were measured. Run\n\
             `cargo xtask bench overhead` to measure again."
        }
        None => {
            "**Outdated:** the figures are older than the present BPF programs, and do not record the version\n\
             that was measured. Run `cargo xtask bench overhead` to measure again."
        }
    };
    replaced(page, STATUS, &format!("{status}\n"))
}

fn replaced(page: &str, [begin, end]: [&str; 2], text: &str) -> Result<String> {
    let (before, rest) = page
        .split_once(begin)
        .with_context(|| format!("{PAGE} without {}", begin.trim()))?;
    let (_, after) = rest
        .split_once(end)
        .with_context(|| format!("{PAGE} without {end}"))?;
    Ok(format!("{before}{begin}{text}{end}{after}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value, digits: usize) -> String {
    let number = value.as_f64();
    number.map_or("—".to_owned(), |number| format!("{number:.digits$}"))
}

fn times(value: &Value, digits: usize) -> String {
    match value.as_f64() {
        Some(number) => format!("×{number:.digits$}"),
        None => String::new(),
    }
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

/// The measurements by workload, in their order.
fn by_workload(report: &Value) -> Vec<(&str, Vec<&Value>)> {
    let mut groups: Vec<(&str, Vec<&Value>)> = Vec::new();
    for measured in list(&report["workloads"]) {
        let name = text_of(&measured["name"]);
        match groups.last_mut() {
            Some((last, group)) if *last == name => group.push(measured),
            _ => groups.push((name, vec![measured])),
        }
    }
    groups
}

/// The workloads that were measured with other tools.
fn bars(report: &Value) -> Vec<Group> {
    let groups = by_workload(report).into_iter();
    let compared = groups.filter(|(_, group)| group.len() > 1);
    let bars = compared.map(|(name, group)| {
        let bars = group.into_iter().filter_map(|measured| {
            Some(Bar {
                tool: text_of(&measured["tool"]).to_owned(),
                ratio: measured["ratio"].as_f64()?,
                low: measured["ratio_low"].as_f64()?,
                high: measured["ratio_high"].as_f64()?,
            })
        });
        (name.to_owned(), bars.collect())
    });
    bars.collect()
}

fn tables(report: &Value) -> String {
    let mut text = peers_table(report);
    text.push_str("\n![Slowdown of workloads by several tools](overhead.svg)\n\n");
    text.push_str(
        "| profiler, at 1 s | tool | % of a core, first 10 s | % of a core, then | peak RSS, MB | ms until attached |\n\
         |---|---|---|---|---|---|\n",
    );
    for cost in list(&report["profiler"]) {
        let rss = cost["peak_rss_bytes"].as_f64().map(|bytes| bytes / 1e6);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            text_of(&cost["name"]),
            text_of(&cost["tool"]),
            number(&cost["first_percent"], 2),
            number(&cost["cpu_percent"], 2),
            number(&rss.into(), 1),
            number(&cost["start_ms"], 0),
        );
    }
    text.push_str(
        "\n| workload | slowdown (median) | 95 % confidence interval | fastest runs | goal | result |\n\
         |---|---|---|---|---|---|\n",
    );
    for (name, group) in by_workload(report) {
        let measured = group[0];
        let _ = writeln!(
            text,
            "| {name} | {} | {} to {} | {} | {} | {} |",
            times(&measured["ratio"], 3),
            times(&measured["ratio_low"], 3),
            times(&measured["ratio_high"], 3),
            times(&measured["ratio_fastest"], 3),
            times(&measured["ratio_goal"], 2),
            verdict(measured),
        );
    }
    text.push_str(&programs_table(report));
    text
}

/// Whether the confidence interval is below the goal, above it, or around it.
fn verdict(measured: &Value) -> &'static str {
    let number = |name: &str| measured[name].as_f64();
    match (
        number("ratio_low"),
        number("ratio_high"),
        number("ratio_goal"),
    ) {
        (_, Some(high), Some(goal)) if high <= goal => "met",
        (Some(low), _, Some(goal)) if low > goal => "**missed**",
        (Some(_), Some(_), Some(_)) => "inconclusive",
        _ => "",
    }
}

/// Slowdown by the profiler and by other tools.
fn peers_table(report: &Value) -> String {
    let groups = by_workload(report);
    let compared: Vec<_> = groups.iter().filter(|(_, group)| group.len() > 1).collect();
    let Some((_, first)) = compared.first() else {
        return String::new();
    };
    let tools: Vec<&str> = first.iter().map(|one| text_of(&one["tool"])).collect();
    let mut text = format!("| workload | {} |\n|---|", tools.join(" | "));
    text.push_str(&"---|".repeat(tools.len()));
    text.push('\n');
    for (name, group) in compared {
        let _ = write!(text, "| {name} |");
        for tool in &tools {
            let measured = group.iter().find(|one| text_of(&one["tool"]) == *tool);
            let ratio = measured.map_or(&Value::Null, |measured| &measured["ratio"]);
            let _ = write!(text, " {} |", times(ratio, 3));
        }
        text.push('\n');
    }
    text
}

/// Run time of the programs, each with the workload in which it ran most often.
fn programs_table(report: &Value) -> String {
    let mut text = "\nRun time of each BPF program in the workload in which it ran most often, and of an empty \
         program at the same hook:\n\n\
         | BPF program | workload | ns per run | ns per run, empty program |\n|---|---|---|---|\n"
        .to_owned();
    let mut most: BTreeMap<&str, (u64, &str, &Value)> = BTreeMap::new();
    for workload in list(&report["programs"]) {
        for program in list(&workload["programs"]) {
            let runs = program["runs"].as_u64().unwrap_or(0);
            let entry = (runs, text_of(&workload["workload"]), program);
            let known = most.entry(text_of(&program["name"])).or_insert(entry);
            if known.0 < runs {
                *known = entry;
            }
        }
    }
    for (name, (_, workload, program)) in most.iter().filter(|(_, (runs, ..))| *runs >= 100) {
        let _ = writeln!(
            text,
            "| `{name}` | {workload} | {} | {} |",
            number(&program["ns_per_run"], 0),
            number(&program["empty_ns_per_run"], 0),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EMPTY: &str =
        "a\n<!-- status -->\n<!-- /status -->\n<!-- measured -->\n<!-- /measured -->\nz\n";

    #[test]
    fn the_page_says_whether_it_is_older_than_the_programs() {
        let unknown = with_status(EMPTY, "1234").expect("has its marks");
        assert!(
            unknown.contains("**Outdated:** the figures are older"),
            "{unknown}"
        );
        let text = "with BPF programs `1234`.\n";
        let page = replaced(&unknown, MEASURED, text).expect("has its marks");
        let same = with_status(&page, "1234").expect("has its marks");
        assert!(
            same.contains("have not changed") && !same.contains("Outdated"),
            "{same}"
        );
        let other = with_status(&same, "5678").expect("has its marks");
        assert!(other.contains("have changed since"), "{other}");
        assert_ne!(same, other);
        assert!(with_status("nothing", "1").is_err());
    }

    #[test]
    fn figures_become_tables() {
        let report = json!({
            "workloads": [
                {"name": "pipe", "tool": "profiler --pid", "ratio": 1.02, "ratio_low": 1.0,
                    "ratio_high": 1.1, "ratio_fastest": 1.04, "ratio_goal": 1.05},
                {"name": "pipe", "tool": "runqlat", "ratio": 1.3, "ratio_low": 1.2, "ratio_high": 1.4,
                    "ratio_fastest": 1.3, "ratio_goal": null},
                {"name": "fio", "tool": "profiler --pid", "ratio": 1.0, "ratio_low": 1.0,
                    "ratio_high": 1.0, "ratio_fastest": 1.0, "ratio_goal": 1.02},
                {"name": "tcp", "tool": "profiler --pid", "ratio": 1.2, "ratio_low": 1.1,
                    "ratio_high": 1.3, "ratio_fastest": 1.1, "ratio_goal": 1.06}],
            "programs": [
                {"workload": "pipe", "programs": [
                    {"name": "sched_switch", "runs": 1000, "ns_per_run": 197.2, "empty_ns_per_run": null},
                    {"name": "rare", "runs": 3, "ns_per_run": 1.0, "empty_ns_per_run": 1.0}]},
                {"workload": "fio", "programs": [
                    {"name": "sched_switch", "runs": 500, "ns_per_run": 300.0, "empty_ns_per_run": null}]}],
            "profiler": [{"name": "100 processes", "tool": "profiler --pid", "first_percent": 2.5,
                "cpu_percent": 0.23, "peak_rss_bytes": 54_300_000, "start_ms": 269.4}],
        });
        let text = tables(&report);
        for line in [
            "| workload | profiler --pid | runqlat |\n|---|---|---|\n| pipe | ×1.020 | ×1.300 |\n\n",
            "| pipe | ×1.020 | ×1.000 to ×1.100 | ×1.040 | ×1.05 | inconclusive |",
            "| fio | ×1.000 | ×1.000 to ×1.000 | ×1.000 | ×1.02 | met |",
            "| tcp | ×1.200 | ×1.100 to ×1.300 | ×1.100 | ×1.06 | **missed** |",
            "| `sched_switch` | pipe | 197 | — |",
            "| 100 processes | profiler --pid | 2.50 | 0.23 | 54.3 | 269 |",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(
            !text.contains("rare") && !text.contains("| 300 |"),
            "{text}"
        );
        let bars = bars(&report);
        assert_eq!((bars.len(), bars[0].1.len()), (1, 2));
    }
}

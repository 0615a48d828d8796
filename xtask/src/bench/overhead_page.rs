//! The figures in docs/overhead.md, and the machine and version that they were measured on.
//!
//! `cargo xtask bench overhead` writes them after a complete measurement. `cargo xtask docs`
//! updates the line that reports whether the BPF programs have changed since. The test tier `docs`
//! fails if that line is wrong.

use std::{fmt::Write as _, fs, process::Command};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{bpf, shell, workspace::Workspace};

pub const PAGE: &str = "docs/overhead.md";

const MEASURED: [&str; 2] = ["<!-- measured -->\n", "<!-- /measured -->"];
const STATUS: [&str; 2] = ["<!-- status -->\n", "<!-- /status -->"];
/// Text on the page that precedes the hash of the programs' sources.
const PROGRAMS: &str = "BPF programs `";

/// Replaces the figures.
pub fn record(workspace: &Workspace, report: &Value) -> Result<()> {
    let path = workspace.root.join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let programs = bpf::source_hash(workspace)?;
    let commit = shell::stdout(
        Command::new("git")
            .args(["-c", "safe.directory=*", "-C"])
            .arg(&workspace.root)
            .args(["describe", "--always", "--dirty"]),
    )?;
    let date = shell::stdout(Command::new("date").args(["-u", "+%F"]))?;
    let provenance = format!(
        "Measured on {} at commit `{}` on Linux {} with {} CPUs ({}), {PROGRAMS}{programs}`.\n\
         Ratios can be compared with other machines, absolute times cannot.",
        date.trim(),
        commit.trim(),
        report["kernel"].as_str().unwrap_or("?"),
        report["cpus"],
        report["cpu"].as_str().unwrap_or("?"),
    );
    let page = replaced(
        &page,
        MEASURED,
        &format!("\n{provenance}\n\n{}\n", tables(report)),
    )?;
    fs::write(&path, with_status(&page, &programs)?)
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

fn tables(report: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let number = |value: &Value, digits: usize| {
        let number = value.as_f64();
        number.map_or("—".to_owned(), |number| format!("{number:.digits$}"))
    };
    let times = |value: &Value, digits| match number(value, digits) {
        none if none == "—" => String::new(),
        number => format!("×{number}"),
    };
    let mut text = "| workload | slowdown (median) | 95 % confidence interval | fastest runs | goal |\n|---|---|---|---|---|\n"
        .to_owned();
    for pairs in list(&report["workloads"]) {
        let _ = writeln!(
            text,
            "| {} | {} | {} to {} | {} | {} |",
            pairs["name"].as_str().unwrap_or("?"),
            times(&pairs["ratio"], 3),
            times(&pairs["ratio_low"], 3),
            times(&pairs["ratio_high"], 3),
            times(&pairs["ratio_fastest"], 3),
            times(&pairs["ratio_goal"], 2),
        );
    }
    text.push_str(
        "\nRun time of each BPF program that ran at least 100 times, and of an empty program at the same hook:\n\n\
         | BPF program | workload | ns per run | ns per run, empty program |\n|---|---|---|---|\n",
    );
    for workload in list(&report["programs"]) {
        let often = |program: &Value| program["runs"].as_u64() >= Some(100);
        for program in list(&workload["programs"]).iter().filter(|one| often(one)) {
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} |",
                program["name"].as_str().unwrap_or("?"),
                workload["workload"].as_str().unwrap_or("?"),
                number(&program["ns_per_run"], 0),
                number(&program["empty_ns_per_run"], 0),
            );
        }
    }
    text.push_str(
        "\n| profiler, interval 1 s | CPU, % of a core | peak RSS, MB | start until attached, ms |\n|---|---|---|---|\n",
    );
    for cost in list(&report["controller"]) {
        let rss = cost["peak_rss_bytes"].as_f64().map(|bytes| bytes / 1e6);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            cost["name"].as_str().unwrap_or("?"),
            number(&cost["cpu_percent"], 2),
            number(&rss.into(), 1),
            number(&cost["start_ms"], 0),
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
            "workloads": [{"name": "pipe", "ratio": 1.02, "ratio_low": 1.0, "ratio_high": 1.1,
                "ratio_fastest": 1.04, "ratio_goal": 1.15}],
            "programs": [{"workload": "pipe", "programs": [
                {"name": "sched_switch", "runs": 1000, "ns_per_run": 197.2, "empty_ns_per_run": null},
                {"name": "rare", "runs": 3, "ns_per_run": 1.0, "empty_ns_per_run": 1.0}]}],
            "controller": [{"name": "100 processes", "cpu_percent": 0.23, "peak_rss_bytes": 54_300_000, "start_ms": 269.4}],
        });
        let text = tables(&report);
        for line in [
            "| pipe | ×1.020 | ×1.000 to ×1.100 | ×1.040 | ×1.15 |",
            "| `sched_switch` | pipe | 197 | — |",
            "| 100 processes | 0.23 | 54.3 | 269 |",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("rare"), "{text}");
    }
}

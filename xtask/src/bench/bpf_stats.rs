//! What the kernel itself measures of each BPF program.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{
    attached::Attached,
    pairs::{Parent, Workload},
};

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Lets the kernel measure for as long as this lives.
///
/// A shell that waits for the end of its input puts the old value back: it outlives us however we
/// end, by Ctrl-C or by a signal that nobody can catch.
struct Measuring(Child);

impl Measuring {
    fn start() -> Result<Self> {
        let old = fs::read_to_string(SWITCH).with_context(|| format!("reading {SWITCH}"))?;
        let guard = Command::new("sh")
            .args([
                "-c",
                "trap '' INT TERM HUP; cat >/dev/null; echo \"$1\" > \"$2\"",
                "sh",
            ])
            .args([old.trim(), SWITCH])
            .stdin(Stdio::piped())
            .spawn()
            .context("starting the shell that restores the setting")?;
        let this = Self(guard);
        fs::write(SWITCH, "1").with_context(|| format!("writing {SWITCH}"))?;
        Ok(this)
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Runs of one program during the workload.
pub struct Program {
    name: String,
    runs: u64,
    run_ns: u64,
}

impl Program {
    /// Runs the workload once with the profiler attached and the kernel measuring.
    pub fn measure_all(workload: &Workload, profiler: &Path, scratch: &Path) -> Result<Vec<Self>> {
        let mut parent = Parent::start()?;
        let target = ["--pid".to_owned(), parent.pid().to_string()];
        let attached = Attached::start(profiler, &target, scratch)?;
        let measuring = Measuring::start()?;
        let before = read(attached.pid())?;
        parent.time(workload)?;
        let after = read(attached.pid())?;
        drop(measuring);
        attached.stop()?;
        let mut programs: Vec<Self> = after
            .into_iter()
            .map(|(id, (name, runs, run_ns))| {
                let (_, old_runs, old_ns) = before.get(&id).cloned().unwrap_or_default();
                let runs = runs.saturating_sub(old_runs);
                Self {
                    name,
                    runs,
                    run_ns: run_ns.saturating_sub(old_ns),
                }
            })
            .collect();
        programs.sort_by_key(|program| std::cmp::Reverse(program.run_ns));
        Ok(programs)
    }

    fn ns_per_run(&self) -> Option<f64> {
        (self.runs > 0).then(|| self.run_ns as f64 / self.runs as f64)
    }

    pub fn print(&self) {
        let cost = self
            .ns_per_run()
            .map_or("never run".into(), |ns| format!("{ns:.0} ns per run"));
        println!("{:<27} {:>10} runs  {cost}", self.name, self.runs);
    }

    pub fn json(&self) -> Value {
        json!({
            "name": self.name,
            "runs": self.runs,
            "run_ns": self.run_ns,
            "ns_per_run": self.ns_per_run(),
        })
    }
}

/// Name, runs and nanoseconds of every program that a process holds, by program id.
type Programs = BTreeMap<u64, (String, u64, u64)>;

/// The file descriptors of a process tell all of it: those of programs the cost, those of links
/// where the program is attached.
fn read(pid: u32) -> Result<Programs> {
    let dir = format!("/proc/{pid}/fdinfo");
    let mut programs = Programs::new();
    let mut names = BTreeMap::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("reading {dir}"))? {
        // Another file may be closed in between.
        let Ok(text) = fs::read_to_string(entry?.path()) else {
            continue;
        };
        let field = |name: &str| {
            text.lines()
                .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
        };
        let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok());
        let Some(id) = number("prog_id") else {
            continue;
        };
        if let (Some(ns), Some(runs)) = (number("run_time_ns"), number("run_cnt")) {
            programs.insert(id, (format!("program {id}"), runs, ns));
        } else if let Some(name) = field("tp_name").or(field("target_name")) {
            names.insert(id, name.to_owned());
        } else if let Some(btf) = field("target_btf_id") {
            names.insert(id, format!("BTF type {btf}"));
        }
    }
    for (id, name) in names {
        if let Some(program) = programs.get_mut(&id) {
            program.0 = name;
        }
    }
    Ok(programs)
}

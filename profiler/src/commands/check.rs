//! `profiler check`: which sources work here, and how to enable the others.

use std::fmt::Write as _;

use clap::Args;
use serde_json::{Value, json};

use super::{print, print_json};
use crate::{
    failure::Failure,
    host::Host,
    privileges,
    sources::{LoadTrial, REGISTRY, Support, trial},
};

/// Arguments of `profiler check`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Print JSON, with the attach result of each BPF program
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When the result cannot be encoded.
    pub fn run(&self) -> Result<u8, Failure> {
        let _raised = privileges::raise();
        let host = Host::probe("/proc", "/sys", None);
        if self.json {
            print_json(&json(&host))?;
        } else {
            print(table(&host))?;
        }
        Ok(0)
    }
}

fn parts(support: &Support) -> (&'static str, &str, &str) {
    match support {
        Support::Works => ("works", "", ""),
        Support::Partly { why, remedy } => ("partly", why, remedy),
        Support::No { why, remedy } => ("no", why, remedy),
    }
}

/// One line per source, then each reason once with the sources that share it.
fn table(host: &Host) -> String {
    let width = REGISTRY
        .iter()
        .map(|spec| spec.name.len())
        .max()
        .unwrap_or(0);
    let mut text = format!(
        "{}, Linux {}, {}\n\n",
        host.hostname,
        host.kernel_release.as_deref().unwrap_or("?"),
        if privileges::may_load_bpf() {
            "may load BPF programs"
        } else {
            "may not load BPF programs"
        },
    );
    let mut reasons: Vec<(Vec<&str>, String, String)> = Vec::new();
    for spec in REGISTRY {
        let support = spec.support(host);
        let (status, why, remedy) = parts(&support);
        let _ = writeln!(text, "{:width$}  {status:6}  {}", spec.name, spec.help);
        if why.is_empty() {
            continue;
        }
        match reasons.iter_mut().find(|(_, known, _)| known == why) {
            Some((names, _, _)) => names.push(spec.name),
            None => reasons.push((vec![spec.name], why.to_owned(), remedy.to_owned())),
        }
    }
    for (names, why, remedy) in reasons {
        let _ = write!(text, "\n{}: {why}\n", names.join(", "));
        if !remedy.is_empty() {
            let _ = writeln!(text, "  → {remedy}");
        }
    }
    text
}

fn json(host: &Host) -> Value {
    let sources: Vec<_> = REGISTRY
        .iter()
        .map(|spec| {
            let support = spec.support(host);
            let (status, why, remedy) = parts(&support);
            let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            json!({
                "source": spec.name,
                "status": status,
                "help": spec.help,
                "why": text(why),
                "remedy": text(remedy),
                "tables": spec.tables.iter().map(|table| table.name).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "hostname": host.hostname,
        "kernel": host.kernel_release,
        "sources": sources,
        "programs": programs(host),
    })
}

/// Every BPF program with its hook on this kernel or the reason why it has none; null if BPF
/// programs cannot be loaded.
fn programs(host: &Host) -> Value {
    if !privileges::may_load_bpf() {
        return Value::Null;
    }
    let Ok(LoadTrial {
        attached,
        instrumentations,
    }) = trial(host)
    else {
        return Value::Null;
    };
    let mut programs: Vec<_> = attached
        .iter()
        .map(|attached| json!({ "program": attached.program, "hook": attached.hook, "why": null }))
        .collect();
    for missing in instrumentations
        .iter()
        .flat_map(|instrumentation| &instrumentation.missing)
    {
        let why = format!("{}: {}", missing.hook.name(), missing.error);
        programs.push(json!({ "program": missing.hook.program, "hook": null, "why": why }));
    }
    programs.into()
}

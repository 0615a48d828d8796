//! `profiler events`: hardware event groups of a CPU, from the tables of `perfevents`.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use clap::{Args, ValueHint};
use perfevents::{Catalog, Event, Group, Room, Uarch};
use serde_json::{Value, json};

use super::{print, print_json};
use crate::{
    failure::{Failure, Reason},
    host::{Host, cpu_ids},
    perf, privileges,
    support::names,
};

/// Arguments of `profiler events`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Show this microarchitecture, such as skx, instead of that of this machine
    #[arg(long, value_name = "ID", conflicts_with = "cpus")]
    cpu: Option<String>,
    /// List the ids of all known microarchitectures with the names of their groups
    #[arg(long)]
    cpus: bool,
    /// Open every group on this machine and report which can be counted
    #[arg(long, conflicts_with_all = ["cpu", "cpus", "json"])]
    validate: bool,
    /// Directory of event tables (*.toml), added to the built-in ones or replacing those of the
    /// same name
    #[arg(
        long,
        value_name = "DIR",
        env = "PROFILER_PERFEVENTS",
        value_hint = ValueHint::DirPath
    )]
    perfevents: Option<PathBuf>,
    /// Print JSON: events, groups and metrics
    #[arg(long, conflicts_with = "cpus")]
    json: bool,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When an event table is invalid, or the microarchitecture is unknown.
    pub fn run(&self) -> Result<u8, Failure> {
        let catalog = perf::catalog(self.perfevents.as_deref())?;
        if self.cpus {
            print(cpus(&catalog))?;
            return Ok(0);
        }
        if self.validate {
            let _raised = privileges::raise();
            let host = Host::probe("/proc", "/sys", None);
            print(perf::validate(&host, &catalog))?;
            return Ok(0);
        }
        let selection = Selection::new(&catalog, self.cpu.as_deref())?;
        if self.json {
            print_json(&selection.json())?;
        } else {
            print(selection.text())?;
        }
        Ok(0)
    }
}

/// Microarchitectures to show.
struct Selection<'a> {
    uarchs: Vec<&'a Uarch>,
    /// Whether they are those of this machine.
    here: bool,
    /// Events that the kernel defines for every CPU.
    generic: Option<&'a Uarch>,
}

impl<'a> Selection<'a> {
    /// The microarchitecture with this id, or those of this machine.
    fn new(catalog: &'a Catalog, id: Option<&str>) -> Result<Self, Failure> {
        let Some(id) = id else {
            let ids = cpu_ids(Path::new("/proc"), Path::new("/sys"));
            let mut uarchs: Vec<&Uarch> = Vec::new();
            for uarch in ids.iter().flat_map(|id| catalog.candidates(id)) {
                if !uarchs.iter().any(|known| known.id == uarch.id) {
                    uarchs.push(uarch);
                }
            }
            return Ok(Self {
                uarchs,
                here: true,
                generic: catalog.generic(),
            });
        };
        let Some(uarch) = catalog.iter().find(|uarch| uarch.id == id) else {
            let known = catalog.iter().map(|uarch| uarch.id.as_str());
            let unknown = names::unknown("CPU", id, known);
            let message = format!("{unknown}; `profiler events --cpus` describes them");
            return Err(Failure::new(Reason::Usage, message));
        };
        Ok(Self {
            uarchs: vec![uarch],
            here: false,
            generic: catalog.generic(),
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        if self.uarchs.is_empty() {
            text.push_str("No event table matches this CPU.\n");
        }
        for uarch in &self.uarchs {
            let which = match (self.here, uarch.matches.is_empty()) {
                (true, _) => "this CPU",
                (false, true) => "every CPU",
                (false, false) => "not necessarily this CPU",
            };
            let _ = writeln!(text, "{} ({}, {which})", uarch.name, uarch.id);
            for (name, group) in &uarch.groups {
                write_group(&mut text, uarch, name, group);
            }
        }
        if let Some(generic) = self.generic.filter(|_| self.here) {
            let names: Vec<_> = generic.groups.keys().map(String::as_str).collect();
            let _ = writeln!(
                text,
                "\nWith the kernel's generic events, on every CPU: {}\n(profiler events --cpu {})",
                names.join(", "),
                generic.id,
            );
        }
        text
    }

    fn json(&self) -> Value {
        self.uarchs.iter().map(|uarch| uarch_json(uarch)).collect()
    }
}

/// Two lines per microarchitecture: id and name, then the names of its groups.
fn cpus(catalog: &Catalog) -> String {
    let width = catalog
        .iter()
        .map(|uarch| uarch.id.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for uarch in catalog.iter() {
        let groups: Vec<_> = uarch.groups.keys().map(String::as_str).collect();
        let _ = writeln!(text, "{:width$}  {}", uarch.id, uarch.name);
        let _ = writeln!(text, "{:width$}  {}", "", groups.join(" "));
    }
    text
}

fn write_group(text: &mut String, uarch: &Uarch, name: &str, group: &Group) {
    let _ = writeln!(text, "\n{name}: {}", group.help);
    if let Some(note) = &group.note {
        let _ = writeln!(text, "  ({note})");
    }
    if !group.fits(uarch, Room::WITH_SMT) {
        text.push_str("  (more events than counters: multiplexed on cores with two threads)\n");
    }
    for metric in &group.metrics {
        let unit = Catalog::meanings()
            .get(&metric.name)
            .map_or("", |meaning| meaning.unit.as_str());
        let _ = writeln!(text, "  {} [{unit}] = {}", metric.name, metric.formula);
    }
    for (alias, event) in &group.events {
        let code = uarch.events.get(event).map(perf_syntax).unwrap_or_default();
        let validated = uarch.events.get(event).is_none_or(|event| event.validated);
        let doubt = if validated { "" } else { "  (one source only)" };
        let _ = writeln!(text, "    {alias} = {event}  {code}{doubt}");
    }
}

/// The event in the syntax of perf(1): `cpu/event=0xc7,umask=0x1/`.
fn perf_syntax(event: &Event) -> String {
    if event.code.is_empty() {
        return format!(
            "{}/{}/",
            event.pmu,
            event.alias.as_deref().unwrap_or_default()
        );
    }
    let fields: Vec<_> = event
        .code
        .iter()
        .map(|(field, value)| format!("{field}={value:#x}"))
        .collect();
    format!("{}/{}/", event.pmu, fields.join(","))
}

fn uarch_json(uarch: &Uarch) -> Value {
    let events: BTreeMap<_, _> = uarch
        .events
        .iter()
        .map(|(name, event)| (name, event_json(event)))
        .collect();
    let groups: BTreeMap<_, _> = uarch
        .groups
        .iter()
        .map(|(name, group)| (name, group_json(uarch, group)))
        .collect();
    json!({
        "id": uarch.id,
        "name": uarch.name,
        "vendor": uarch.vendor,
        "events": events,
        "groups": groups,
    })
}

fn event_json(event: &Event) -> Value {
    json!({
        "help": event.help,
        "pmu": event.pmu,
        "code": event.code,
        "perf": perf_syntax(event),
        "validated": event.validated,
        "errata": event.errata,
    })
}

fn group_json(uarch: &Uarch, group: &Group) -> Value {
    let metrics: Vec<_> = group
        .metrics
        .iter()
        .map(|metric| {
            let meaning = Catalog::meanings().get(&metric.name);
            json!({
                "name": metric.name,
                "formula": metric.formula.to_string(),
                "unit": meaning.map(|meaning| &meaning.unit),
                "help": meaning.map(|meaning| &meaning.help),
            })
        })
        .collect();
    json!({
        "help": group.help,
        "note": group.note,
        "events": group.events,
        "metrics": metrics,
        "fits": group.fits(uarch, Room::WITH_SMT),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_listed_with_formulas_and_codes() {
        let catalog = Catalog::builtin();
        let selection = Selection::new(catalog, Some("skx")).expect("known");
        let text = selection.text();
        for line in [
            "Skylake-SP (skx, not necessarily this CPU)",
            "  mem_bw [B/s] = 64 * (r + w) / time",
            "    r = UNC_M_CAS_COUNT.RD  uncore_imc_*/event=0x4,umask=0x3/",
            "    w = L1D.M_EVICT  cpu/event=0x51,umask=0x4/  (one source only)",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let json = selection.json();
        assert_eq!(json[0]["events"]["L1D.M_EVICT"]["code"]["umask"], 4);
        assert_eq!(json[0]["groups"]["FLOPS"]["fits"], false);
        let error = Selection::new(catalog, Some("z80")).err().expect("unknown");
        assert!(error.to_string().contains("--cpus"), "{error}");
        assert!(
            cpus(catalog)
                .lines()
                .any(|line| line.starts_with("zen4") && line.ends_with("Zen 4"))
        );
    }
}

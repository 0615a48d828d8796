//! Events that were written out instead of taken from a group.

use std::sync::Arc;

use perfevents::{CORE_PMU, Device, Event, Item, Reduce, SOFTWARE_PMU, Term, Uarch};

use crate::{host, schema::Label};

use super::{
    counters::Attributes,
    machine::{Kind, Machine},
    plan::{Part, PerfGroup, Plan, cpus_of, instances},
};

impl Plan {
    /// Events that were written out, one or several in braces.
    pub(super) fn add_by_hand(
        &mut self,
        machine: &Machine<'_>,
        items: &[Item],
    ) -> Result<(), String> {
        let resolved: Vec<(&Item, Vec<Found>)> = items
            .iter()
            .map(|item| Ok((item, resolve(machine, item)?)))
            .collect::<Result<_, String>>()?;
        // The kernel's own events go with any PMU's.
        let is_software =
            |found: &[Found]| matches!(found, [one] if one.device.name == SOFTWARE_PMU);
        let with_pmu = resolved.iter().find(|(_, found)| !is_software(found));
        let Some((_, first)) = with_pmu.or(resolved.first()) else {
            return Ok(());
        };
        for (item, found) in &resolved {
            let (own, firsts) = (names(found), names(first));
            if own != firsts && !is_software(found) {
                return Err(format!(
                    "--events {}: in braces with an event of another PMU ({own}, {firsts})",
                    item.name
                ));
            }
        }
        let mut slots: Arc<[usize]> = Arc::new([]);
        for (index, Found { device, .. }) in first.iter().enumerate() {
            let node_batches = device.cpumask().is_some();
            let on_device: Vec<(&Item, &Found)> = resolved
                .iter()
                .filter_map(|(item, found)| Some((*item, found.get(index).or(found.first())?)))
                .collect();
            // Instances of one PMU add up; kinds of cores do not.
            if index == 0 || !node_batches {
                let slot = |(item, found): &(&Item, &Found)| {
                    let pmu = Label::from(found.label(node_batches && first.len() > 1));
                    self.add_slot(None, &item.name, &pmu, found.scale)
                };
                slots = on_device.iter().map(slot).collect();
            }
            let perf_group = PerfGroup {
                slots: slots.clone(),
                events: on_device
                    .iter()
                    .map(|(_, found)| found.attributes)
                    .collect(),
                cpus: cpus_of(device),
            };
            if !node_batches {
                self.core.push(perf_group);
                continue;
            }
            for instance in instances(machine, std::slice::from_ref(device), Reduce::Sum) {
                self.parts.push(Part {
                    perf_group: perf_group.clone(),
                    cpu: instance.cpu.number,
                    socket: instance.cpu.socket,
                });
            }
        }
        Ok(())
    }
}

fn names(found: &[Found]) -> String {
    let names: Vec<&str> = found.iter().map(|found| &*found.device.name).collect();
    names.join(" ")
}

impl Found {
    /// The name of its PMU; `of_all` without the number of the instance.
    fn label(&self, of_all: bool) -> String {
        let name = &self.device.name;
        if !of_all {
            return name.clone();
        }
        let number = |c: char| c.is_ascii_digit() || c == '_';
        name.trim_end_matches(number).to_owned()
    }
}

/// An event on one PMU.
struct Found {
    device: Device,
    attributes: Attributes,
    scale: Option<f64>,
}

/// Second names that perf(1) has for generic events.
const SYNONYMS: [(&str, &str); 5] = [
    ("cycles", "cpu-cycles"),
    ("branches", "branch-instructions"),
    ("faults", "page-faults"),
    ("cs", "context-switches"),
    ("migrations", "cpu-migrations"),
];

/// The PMUs that count it, with its code on each.
fn resolve(machine: &Machine<'_>, item: &Item) -> Result<Vec<Found>, String> {
    let error = |what: String| format!("--events {}: {what}", item.name);
    let sysfs = &machine.host.sysfs;
    let known = by_name(machine, item);
    let devices = match (&item.pmu, &known) {
        (Some(pmu), _) => Device::named(sysfs, pmu),
        (None, Some((Some(device), event))) if event.pmu == CORE_PMU => vec![(*device).clone()],
        (None, Some((_, event))) => Device::all(sysfs, &event.pmu),
        (None, None) => {
            let what = "unknown; `profiler events` lists this CPU's, and cpu/event=0xc7,umask=0x1/ is any code";
            return Err(error(what.to_owned()));
        }
    };
    if devices.is_empty() {
        let pmus = host::names(&sysfs.join("bus/event_source/devices"), "").join(", ");
        return Err(error(format!(
            "there is no PMU for it here; there are {pmus}"
        )));
    }
    let found = devices.into_iter().map(|device| {
        let encoded = match &known {
            Some((_, event)) => device
                .encode(event)
                .map(|encoding| (encoding, device.scale(event))),
            None => device.encode_terms(&item.terms),
        };
        let (encoding, scale) = encoded.map_err(|what| error(what.to_string()))?;
        Ok(Found {
            attributes: Attributes {
                encoding,
                user: item.user,
                kernel: item.kernel,
            },
            device,
            scale,
        })
    });
    found.collect()
}

/// The event of a table that has this name, whatever its case, with the PMU of the cores that the table is of.
fn by_name<'a>(machine: &'a Machine<'_>, item: &Item) -> Option<(Option<&'a Device>, &'a Event)> {
    let (None, [Term::Alias(name)]) = (&item.pmu, &item.terms[..]) else {
        return None;
    };
    let name = SYNONYMS
        .iter()
        .find(|(synonym, _)| synonym == name)
        .map_or(&**name, |(_, name)| name);
    let find = |table: &'a Uarch| {
        let mut events = table.events.iter();
        events.find(|(known, _)| known.eq_ignore_ascii_case(name))
    };
    let of_kind = |kind: &'a Kind<'_>| Some((kind.device.as_ref(), find(kind.table)?.1));
    let own = machine.kinds.iter().find_map(of_kind);
    own.or_else(|| Some((None, find(machine.generic?)?.1)))
}

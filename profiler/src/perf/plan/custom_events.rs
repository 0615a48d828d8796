//! Custom events (`--events`).

use std::sync::Arc;

use perfevents::{CORE_PMU, Device, Event, Item, Reduce, SOFTWARE_PMU, Term, Uarch};

use super::{
    EventIndex, NodeGroup, PerfGroup, Plan,
    instances::{covered_cpus, instances},
};
use crate::{
    host,
    perf::{
        Error,
        machine::{CoreKind, Machine},
        open_group::Attributes,
    },
    schema::Label,
    support::names,
};

/// Synonyms of generic events in perf(1).
const SYNONYMS: [(&str, &str); 5] = [
    ("cycles", "cpu-cycles"),
    ("branches", "branch-instructions"),
    ("faults", "page-faults"),
    ("cs", "context-switches"),
    ("migrations", "cpu-migrations"),
];

/// A custom event on one PMU.
struct ResolvedEvent {
    device: Device,
    attributes: Attributes,
    scale: Option<f64>,
}

impl Plan {
    /// Adds one custom event, or several that were given in braces.
    pub(super) fn add_custom_events(
        &mut self,
        machine: &Machine<'_>,
        items: &[Item],
    ) -> Result<(), Error> {
        let resolved: Vec<(&Item, Vec<ResolvedEvent>)> = items
            .iter()
            .map(|item| Ok((item, resolve(machine, item)?)))
            .collect::<Result<_, Error>>()?;
        // The kernel's software events can be combined with those of any PMU.
        let is_software =
            |events: &[ResolvedEvent]| matches!(events, [one] if one.device.name == SOFTWARE_PMU);
        let with_pmu = resolved.iter().find(|(_, events)| !is_software(events));
        let Some((_, first)) = with_pmu.or(resolved.first()) else {
            return Ok(());
        };
        for (item, events) in &resolved {
            let (pmus, other_pmus) = (pmu_names(events), pmu_names(first));
            if pmus != other_pmus && !is_software(events) {
                return Err(Error::MixedPmus {
                    event: item.name.clone(),
                    pmus,
                    other_pmus,
                });
            }
        }
        let mut indices: Arc<[EventIndex]> = Arc::new([]);
        for (position, ResolvedEvent { device, .. }) in first.iter().enumerate() {
            let is_node_wide = device.cpumask().is_some();
            let on_device: Vec<(&Item, &ResolvedEvent)> = resolved
                .iter()
                .filter_map(|(item, events)| {
                    Some((*item, events.get(position).or(events.first())?))
                })
                .collect();
            // The instances of an uncore PMU share an event; each kind of core has its own.
            if position == 0 || !is_node_wide {
                let add = |(item, event): &(&Item, &ResolvedEvent)| {
                    let pmu = Label::from(event.pmu(is_node_wide && first.len() > 1));
                    self.add_event(None, &item.name, &pmu, event.scale)
                };
                indices = on_device.iter().map(add).collect();
            }
            let group = PerfGroup {
                indices: indices.clone(),
                attributes: on_device
                    .iter()
                    .map(|(_, event)| event.attributes)
                    .collect(),
                cpus: covered_cpus(device),
            };
            if !is_node_wide {
                self.core_groups.push(group);
                continue;
            }
            for instance in instances(machine, std::slice::from_ref(device), Reduce::Sum) {
                self.node_groups.push(NodeGroup {
                    group: group.clone(),
                    cpu: instance.cpu.number,
                    socket: instance.cpu.socket,
                });
            }
        }
        Ok(())
    }
}

fn pmu_names(events: &[ResolvedEvent]) -> String {
    let names: Vec<&str> = events.iter().map(|event| &*event.device.name).collect();
    names.join(" ")
}

impl ResolvedEvent {
    /// Name of the PMU; `for_all` instances without the number.
    fn pmu(&self, for_all: bool) -> String {
        let name = &self.device.name;
        if !for_all {
            return name.clone();
        }
        let number = |c: char| c.is_ascii_digit() || c == '_';
        name.trim_end_matches(number).to_owned()
    }
}

/// The event on each PMU that counts it.
fn resolve(machine: &Machine<'_>, item: &Item) -> Result<Vec<ResolvedEvent>, Error> {
    let sysfs = &machine.host.sysfs;
    let event = || item.name.clone();
    let known = by_name(machine, item);
    let devices = match (&item.pmu, &known) {
        (Some(pmu), _) => Device::named(sysfs, pmu),
        (None, Some((Some(device), event))) if event.pmu == CORE_PMU => vec![(*device).clone()],
        (None, Some((_, event))) => Device::all(sysfs, &event.pmu),
        (None, None) => {
            return Err(Error::UnknownEvent {
                event: event(),
                similar: similar(machine, &item.name),
            });
        }
    };
    if devices.is_empty() {
        let pmus = host::names(&sysfs.join("bus/event_source/devices"), "");
        return Err(Error::NoPmu {
            event: event(),
            available: pmus.join(", "),
        });
    }
    let resolved = devices.into_iter().map(|device| {
        let encoded = match &known {
            Some((_, event)) => device
                .encode(event)
                .map(|encoding| (encoding, device.scale(event))),
            None => device.encode_terms(&item.terms),
        };
        let (encoding, scale) = encoded.map_err(|error| Error::Encode {
            event: event(),
            error,
        })?;
        Ok(ResolvedEvent {
            attributes: Attributes {
                encoding,
                user: item.user,
                kernel: item.kernel,
            },
            device,
            scale,
        })
    });
    resolved.collect()
}

/// A known event with a similar name.
fn similar(machine: &Machine<'_>, name: &str) -> Option<String> {
    let own = machine.kinds.iter().map(|kind| kind.table);
    let events = own
        .chain(machine.generic)
        .flat_map(|table| table.events.keys());
    let synonyms = SYNONYMS.iter().map(|(synonym, _)| *synonym);
    names::similar(name, events.map(String::as_str).chain(synonyms)).map(str::to_owned)
}

/// The event with this name in a table, ignoring case, and the PMU of the table's cores.
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
    let in_kind = |kind: &'a CoreKind<'_>| Some((kind.device.as_ref(), find(kind.table)?.1));
    let own = machine.kinds.iter().find_map(in_kind);
    own.or_else(|| Some((None, find(machine.generic?)?.1)))
}

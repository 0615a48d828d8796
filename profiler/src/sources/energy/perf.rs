//! RAPL counters through perf_event_open(2): the PMUs `power` and, for cores of AMD, `power_core`
//! (arch/x86/events/rapl.c). The kernel extends their counts to 64 bits, so they never wrap.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context as _, Result, anyhow};
use perfevents::{Device, Term};

use super::{
    accumulator::whole,
    meter::{Counter, Domain, Instrument, Limits, Meter, Problem, Reading},
};
use crate::{
    host::{Host, cpu_list, names, number, text},
    perf::{
        explain,
        open_group::{Attributes, CounterScope, OpenGroup},
        remedy,
    },
    support::clock::monotonic_ns,
};

/// PMUs of packages and of cores.
const PMUS: [&str; 2] = ["power", "power_core"];

/// Meters of the domains for which `wanted` is true. Only their events are opened.
pub(super) fn meters(host: &Host, wanted: impl Fn(&Domain) -> bool) -> Vec<Meter> {
    let mut meters = Vec::new();
    for pmu in PMUS {
        for device in Device::all(&host.sysfs, pmu) {
            let directory = host.sysfs.join("bus/event_source/devices").join(pmu);
            for event in events(&directory, &device) {
                for (domain, cpus) in domains(host, &device, &event) {
                    if wanted(&domain) {
                        meters.push(open(host, domain, &event, &cpus));
                    }
                }
            }
        }
    }
    meters
}

/// An event that counts energy.
struct Event {
    /// `energy-pkg`
    name: String,
    attributes: Attributes,
    /// Joules per count.
    scale: f64,
}

/// Events whose unit is the joule.
fn events(directory: &Path, device: &Device) -> Vec<Event> {
    let directory = directory.join("events");
    let names = names(&directory, "energy-").into_iter();
    let events = names.filter_map(|name| {
        let unit = text(&directory.join(format!("{name}.unit")))?;
        let scale: f64 = number(&directory.join(format!("{name}.scale")))?;
        let (encoding, _) = device.encode_terms(&[Term::Alias(name.clone())]).ok()?;
        let attributes = Attributes {
            encoding,
            // The PMU rejects events that exclude anything.
            user: true,
            kernel: true,
        };
        let is_energy = unit == "Joules" && scale.is_finite() && scale > 0.0;
        is_energy.then_some(Event {
            name,
            attributes,
            scale,
        })
    });
    events.collect()
}

/// Domains that an event counts, each with the CPUs on which it is opened.
fn domains(host: &Host, device: &Device, event: &Event) -> BTreeMap<Domain, Vec<u32>> {
    let mask = device.cpumask().and_then(|mask| cpu_list(&mask));
    let cpus: Vec<u32> = (mask.unwrap_or_default().into_iter())
        .filter_map(|cpu| u32::try_from(cpu).ok())
        .collect();
    let mut domains: BTreeMap<Domain, Vec<u32>> = BTreeMap::new();
    let name = match event.name.as_str() {
        "energy-pkg" => "package",
        // The counter of the platform is the same on all packages.
        "energy-psys" => {
            domains.insert(Domain::of_node("psys"), cpus.into_iter().take(1).collect());
            return domains;
        }
        "energy-cores" | "energy-core" => "core",
        "energy-ram" => "dram",
        "energy-gpu" => "uncore",
        other => other.trim_start_matches("energy-"),
    };
    let topology = host.sysfs.join("devices/system/cpu");
    let fact = |cpu: u32, file: &str| -> Option<u32> {
        number(&topology.join(format!("cpu{cpu}/topology/{file}")))
    };
    let socket = |cpu| fact(cpu, "physical_package_id").unwrap_or(0);
    let is_of_core = event.name == "energy-core";
    for &cpu in &cpus {
        // If the mask has several CPUs of a package, the event counts dies.
        let has_dies = || {
            cpus.iter()
                .filter(|other| socket(**other) == socket(cpu))
                .count()
                > 1
        };
        let domain = Domain {
            die: if is_of_core || !has_dies() {
                None
            } else {
                fact(cpu, "die_id")
            },
            ..Domain::of_socket(socket(cpu), name)
        };
        domains.entry(domain).or_default().push(cpu);
    }
    domains
}

fn open(host: &Host, domain: Domain, event: &Event, cpus: &[u32]) -> Meter {
    let mut opened = Vec::new();
    let mut problem = None;
    for cpu in cpus {
        match OpenGroup::open(&[event.attributes], CounterScope::Cpu(*cpu)) {
            Ok(group) => opened.push(group),
            Err(refused) => {
                let why = explain(&refused.error, host);
                problem = Some(Problem {
                    why: format!("{} on CPU {cpu}: {why}", event.name),
                    remedy: remedy(&refused.error, host).into_owned(),
                });
                break;
            }
        }
    }
    let counter = Events {
        refused: problem.as_ref().map(|problem| problem.why.clone()),
        name: event.name.clone(),
        opened,
        scale: event.scale,
        count: 0,
    };
    let limits = Limits {
        rises: true,
        ..Limits::default()
    };
    Meter {
        domain,
        provider: "perf",
        instrument: Instrument::Counter(Box::new(counter), limits),
        problem,
    }
}

/// The sum of an event on several CPUs.
struct Events {
    name: String,
    refused: Option<String>,
    opened: Vec<OpenGroup>,
    scale: f64,
    /// Counts since the event was opened.
    count: u64,
}

impl Counter for Events {
    fn read(&mut self) -> Result<Option<Reading>> {
        if let Some(why) = &self.refused {
            return Err(anyhow!("{why}"));
        }
        let at = monotonic_ns();
        let mut result = Ok(());
        for group in &mut self.opened {
            match group.read() {
                Ok(increase) if increase.running < increase.enabled => {
                    result = Err(anyhow!("{}: it was not counted all of the time", self.name));
                }
                Ok(increase) => {
                    let count: u64 = increase.counts.iter().sum();
                    self.count = self.count.saturating_add(count);
                }
                Err(error) => result = Err(error).with_context(|| self.name.clone()),
            }
        }
        result?;
        Ok(Some(Reading {
            // The product is exact for 53 bits of counts, which are 2 MJ in the unit of RAPL.
            energy_uj: whole(self.count as f64 * self.scale * 1e6),
            at,
        }))
    }
}

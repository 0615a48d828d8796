//! `energy`: what packages, cores, memory and the node used, by the counters of the processor and of the board.

mod accumulator;
mod acpi;
pub(super) mod attribution;
mod battery;
mod cray;
mod files;
mod hwmon;
mod integral;
mod meter;
mod perf;
mod periodic;
mod powercap;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::{Context, Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::Host,
    schema::{Batch, Label, Table, TableBuilder, TickKey},
};

use self::{
    accumulator::Accumulator,
    integral::Integral,
    meter::{Domain, Instrument, Limits, Meter, Meters},
    periodic::PeriodicTask,
};

columns! {
    /// One domain over one interval.
    pub struct EnergyRow {
        socket: Option<u32> = Label("", "Number of the package; null for all together, and for the whole node"),
        die: Option<u32> = Label("", "Number of the die, where a package has several"),
        domain: Label = Label("", "package (on NVIDIA Grace with its memory); its parts core, uncore (mostly the GPU), sysio (Grace), and dram (beside the package on servers); module: a package with its GPU; psys: the platform, as its processor knows it; node: the whole machine; accel0 and so on: accelerators; any other: a sensor by its driver and label"),
        provider: Label = Label("", "Who says so. Counters: powercap and perf (RAPL), hwmon (amd_energy and others), cray (pm_counters, whole joules). Estimates, which are power added up (trapezoids between several readings in an interval): hwmon_power, acpi_power (also by IPMI), battery_power (null on the mains)"),
        energy_uj: Option<u64> = Counter("µJ", "Energy used; null when it could not be read for a part of the interval, or may have wrapped unseen"),
    }
}

static TABLE: Table = Table::new::<TickKey, EnergyRow>(
    "energy",
    "Each power domain of the node: one row per tick and domain; packages add up, their parts are in them. A meter that goes on by itself has no row at a tick at which it tells nothing new; interval_ns is its own",
);

/// The entry of the registry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "energy",
    help: "energy of packages, cores, memory and the node",
    tables: &[&TABLE],
    probe,
    tasks: false,
    procfs: false,
    instrumentation: None,
    default: true,
    open: |context: &Context<'_>| Ok(Box::new(Energy::open(context.host, context.interval))),
};

/// Each domain once, by the best provider that can be read.
fn meters(host: &Host) -> Vec<Meter> {
    let mut meters = Meters::default();
    meters.add(powercap::meters(host));
    let by_perf = perf::meters(host, |domain| meters.is_missing(domain));
    meters.add(by_perf);
    let chips = hwmon::chips(host);
    meters.add(hwmon::meters(host, &chips));
    meters.add(cray::meters(host));
    meters.add(acpi::meters(&chips));
    meters.add(battery::meters(host));
    meters.finish()
}

/// The domain that is attributed to processes.
pub const PACKAGE: &str = "package";

/// Whether the energy of packages can be read.
pub fn has_packages(host: &Host) -> bool {
    meters(host)
        .iter()
        .any(|meter| meter.domain.name == PACKAGE && meter.problem.is_none())
}

fn probe(host: &Host) -> Support {
    let meters = meters(host);
    if meters.is_empty() {
        return Support::No {
            why: "no meter of energy (RAPL, hwmon, Cray, ACPI, battery)".to_owned(),
            remedy: "modprobe intel_rapl_msr, or acpi_power_meter; a virtual machine has none"
                .to_owned(),
        };
    }
    let mut troubles = meters.iter().filter_map(|meter| meter.problem.as_ref());
    let Some(first) = troubles.next() else {
        return Support::Works;
    };
    let more = match troubles.count() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Support::Partly {
        why: format!("{}{more}", first.why),
        remedy: first.remedy.clone(),
    }
}

struct Energy {
    accumulators: Vec<(Domain, &'static str, Shared)>,
    /// Reads what would wrap within an interval.
    _in_between: Option<PeriodicTask>,
    rows: TableBuilder<TickKey, EnergyRow>,
}

type Shared = Arc<Mutex<Accumulator>>;

fn lock(accumulator: &Shared) -> MutexGuard<'_, Accumulator> {
    accumulator.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Energy {
    fn open(host: &Host, interval: Duration) -> Self {
        let accumulators = meters(host).into_iter().map(|meter| {
            let (counter, limits) = match meter.instrument {
                Instrument::Counter(counter, limits) => (counter, limits),
                Instrument::Gauge(gauge) => {
                    let integral = Box::new(Integral::new(gauge, interval));
                    (integral as Box<_>, Limits::default())
                }
            };
            let accumulator = Arc::new(Mutex::new(Accumulator::new(counter, limits)));
            (meter.domain, meter.provider, accumulator)
        });
        let accumulators: Vec<_> = accumulators.collect();
        Self {
            _in_between: in_between(&accumulators, interval),
            accumulators,
            rows: TableBuilder::new(&TABLE),
        }
    }
}

/// Without a thread for it, what may have wrapped unseen is null.
fn in_between(
    accumulators: &[(Domain, &'static str, Shared)],
    interval: Duration,
) -> Option<PeriodicTask> {
    let impatient: Vec<(Shared, u64)> = accumulators
        .iter()
        .filter_map(|(_, _, accumulator)| {
            let timeout = lock(accumulator).timeout()?;
            (u128::from(timeout) <= interval.as_nanos()).then(|| (accumulator.clone(), timeout))
        })
        .collect();
    let shortest = impatient.iter().map(|(_, timeout)| *timeout).min()?;
    let period = Duration::from_nanos(shortest).max(SHORTEST);
    let read = move || {
        for (accumulator, _) in &impatient {
            lock(accumulator).read();
        }
    };
    PeriodicTask::every(period, read).ok()
}

/// More often than this no counter wraps; a range that says so is wrong.
const SHORTEST: Duration = Duration::from_millis(10);

impl Source for Energy {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let mut result = Ok(());
        for (domain, provider, accumulator) in &self.accumulators {
            let mut accumulator = lock(accumulator);
            accumulator.read();
            if let Err(error) = accumulator.error() {
                result = Err(error).with_context(|| format!("{} by {provider}", domain.name));
            }
            let Some(taken) = accumulator.take() else {
                continue;
            };
            self.rows.push(
                TickKey {
                    ts: at.tick.ts,
                    interval_ns: taken.interval_ns,
                },
                EnergyRow {
                    socket: domain.socket,
                    die: domain.die,
                    domain: Label::from(domain.name.clone()),
                    provider: Label::Static(provider),
                    energy_uj: taken.energy_uj,
                },
            );
        }
        self.rows.finish(out);
        result
    }
}

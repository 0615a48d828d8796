//! `energy`: energy of packages, cores, memory and the node, from meters of the processor and of
//! the board.

mod accumulator;
mod acpi;
mod battery;
mod cray;
mod files;
mod hwmon;
mod integral;
mod meter;
mod perf;
mod powercap;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::{Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::Host,
    schema::{Batch, Label, TableBuilder, TickKey, TypedTable},
    support::worker::PeriodicTask,
};

use self::{
    accumulator::Accumulator,
    integral::Integral,
    meter::{Domain, Instrument, Limits, Meter, Meters, Problem},
};

columns! {
    /// One power domain over one interval.
    pub struct EnergyRow {
        socket: Option<u32> = Label("", "Number of the package; null for all packages together and for the whole node"),
        die: Option<u32> = Label("", "Number of the die, if a package has several"),
        domain: Label = Label("", "Power domain. package (on NVIDIA Grace, with its memory); its parts core, uncore (mostly the GPU) and sysio (Grace); dram (on servers, in addition to the package); module (a package with its GPU); psys (the platform, measured by the processor); node (the whole machine); accel0, accel1, … (accelerators); others are sensors, named by driver and label"),
        provider: Label = Label("", "Origin of the value. Counters: powercap and perf (RAPL), hwmon (amd_energy and others), cray (pm_counters, in whole joules). Estimates, which are integrals of power (trapezoids between several readings per interval): hwmon_power, acpi_power (also through IPMI), battery_power (null on external power)"),
        energy_uj: Option<u64> = Counter("µJ", "Energy used; null if it could not be read for part of the interval, if the counter may have wrapped more than once, and for a RAPL counter that has not risen since the start (virtual machines)"),
    }
}

pub static TABLE: TypedTable<TickKey, EnergyRow> = TypedTable::new(
    "energy",
    "One row per sample and power domain of the node. Packages add up and include their parts. A meter that updates on its own schedule has rows only for new values, and its own interval_ns",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "energy",
    help: "energy of packages, cores, memory and the node",
    tables: &[TABLE.untyped()],
    probe: Some(probe),
    has_hardware: |host| !meters(host).is_empty(),
    open: |context| {
        let period = if context.for_user {
            USER_PERIOD
        } else {
            Duration::ZERO
        };
        Ok(Box::new(Energy::open(
            context.host,
            context.interval,
            period,
        )))
    },
    ..SourceSpec::DEFAULT
};

/// The meters of this machine. If several measure the same domain, the best readable one.
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

/// Domain whose energy is divided among processes.
pub const PACKAGE: &str = "package";

/// Whether the energy of packages can be read.
pub fn has_packages(host: &Host) -> bool {
    meters(host)
        .iter()
        .any(|meter| meter.domain.name == PACKAGE && meter.problem.is_none())
}

/// Time in which a counter that rises has risen: RAPL is updated every millisecond.
const RISE: Duration = Duration::from_millis(50);

/// Finds the problem of each counter that does not rise although it should.
fn find_still(meters: &mut [Meter]) {
    let mut still: Vec<(&mut Meter, u64)> = Vec::new();
    for meter in meters {
        if meter.rises()
            && meter.problem.is_none()
            && let Some(energy) = meter.count()
        {
            still.push((meter, energy));
        }
    }
    let deadline = Instant::now() + RISE;
    while !still.is_empty() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
        still.retain_mut(|(meter, energy)| meter.count() == Some(*energy));
    }
    for (meter, _) in still {
        let name = &meter.domain;
        meter.problem = Some(Problem {
            why: format!(
                "{name} ({}) does not rise, its energy is null: it is not connected, as in many \
                 virtual machines",
                meter.provider
            ),
            remedy: String::new(),
        });
    }
}

fn probe(host: &Host) -> Support {
    let mut meters = meters(host);
    find_still(&mut meters);
    if meters.is_empty() {
        return Support::Unavailable {
            why: "no energy meter (RAPL, hwmon, Cray, ACPI, battery)".to_owned(),
            remedy: "modprobe intel_rapl_msr, or acpi_power_meter; virtual machines have none"
                .to_owned(),
        };
    }
    let mut problems = meters.iter().filter_map(|meter| meter.problem.as_ref());
    let Some(first) = problems.next() else {
        return Support::Ok;
    };
    let more = match problems.count() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Support::Limited {
        why: format!("{}{more}", first.why),
        remedy: first.remedy.clone(),
    }
}

/// Shortest time between two readings for an ordinary user, a little less than 1 s so that samples at
/// 1 s are not skipped. Power in milliseconds tells which data another program computes with
/// (CVE-2020-8694), so that the kernel lets only root read RAPL.
pub const USER_PERIOD: Duration = Duration::from_millis(900);

struct Energy {
    /// Shortest time between two readings.
    period: Duration,
    /// Time of the last reading, ns of `CLOCK_MONOTONIC`.
    read_at: Option<u64>,
    accumulators: Vec<(Domain, &'static str, Shared)>,
    /// Reads counters that could wrap more than once within an interval.
    _in_between: Option<PeriodicTask>,
    rows: TableBuilder<TickKey, EnergyRow>,
}

type Shared = Arc<Mutex<Accumulator>>;

fn lock(accumulator: &Shared) -> MutexGuard<'_, Accumulator> {
    accumulator.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Energy {
    fn open(host: &Host, interval: Duration, period: Duration) -> Self {
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
            period,
            read_at: None,
            _in_between: in_between(&accumulators, interval),
            accumulators,
            rows: TableBuilder::new(&TABLE),
        }
    }
}

/// Starts a thread that reads counters between samples, if any could wrap more than once within an
/// interval. Without the thread their energy is null.
fn in_between(
    accumulators: &[(Domain, &'static str, Shared)],
    interval: Duration,
) -> Option<PeriodicTask> {
    let short: Vec<(Shared, u64)> = accumulators
        .iter()
        .filter_map(|(_, _, accumulator)| {
            let period = lock(accumulator).period()?;
            (u128::from(period) <= interval.as_nanos()).then(|| (accumulator.clone(), period))
        })
        .collect();
    let shortest = short.iter().map(|(_, period)| *period).min()?;
    let period = Duration::from_nanos(shortest).max(SHORTEST);
    let read = move || {
        for (accumulator, _) in &short {
            lock(accumulator).read();
        }
    };
    PeriodicTask::every(period, "energy", read).ok()
}

/// Shortest period in which a counter can wrap; a range that is smaller is wrong.
const SHORTEST: Duration = Duration::from_millis(10);

impl Source for Energy {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let now = ctx.tick.monotonic_ns;
        let elapsed = self
            .read_at
            .map(|at| Duration::from_nanos(now.saturating_sub(at)));
        if !ctx.last && elapsed.is_some_and(|elapsed| elapsed < self.period) {
            return Ok(());
        }
        self.read_at = Some(now);
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
                ctx.key(taken.interval_ns),
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

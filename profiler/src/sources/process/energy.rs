//! Modelled energy of each process, summed over the time in which it was followed.

use hashbrown::HashMap;

use crate::{
    perf::TARGET_CYCLES,
    schema::{Batch, OwnerKey, Timestamp, read::Rows},
    sources::{
        TickContext,
        energy_attribution::{Attribution, Packages},
        perf::{self, EventRow},
    },
    tasks::{ProcessId, TaskTable},
};

/// A value of each process; `None` if part of it is unknown.
type Sums = HashMap<ProcessId, Option<f64>>;

/// Energy of all live processes. What a process uses between two samples gets its energy at the
/// next sample, when the energy of the interval is known.
#[derive(Default)]
pub(super) struct Energies {
    packages: Packages,
    by_cpu_time: Sums,
    by_cycles: Sums,
    /// CPU time since the last sample, ns.
    cpu_ns: HashMap<ProcessId, u64>,
    /// Cycles since the last sample.
    cycles: Sums,
}

impl Energies {
    /// Adds the energy of a reading, from the batches of the other sources.
    pub(super) fn add(&mut self, ctx: &TickContext<'_>, batches: &[Batch]) {
        let earlier_ns = self.cpu_ns.values().sum();
        for row in ctx.tasks.rows.iter().filter(|row| row.tid.is_none()) {
            *self.cpu_ns.entry(row.id).or_default() += row.cpu_time.user + row.cpu_time.system;
        }
        self.add_cycles(ctx, batches);
        if ctx.boundary.is_some() {
            return;
        }
        let package_uj = self.packages.energy_uj(&ctx.tick, batches);
        let model = Attribution::by_cpu_time(package_uj, batches, earlier_ns);
        for (id, used) in self.cpu_ns.drain() {
            let share = model.map(|model| model.share(used as f64));
            add(&mut self.by_cpu_time, id, share);
        }
        let model = Attribution::by_cycles(package_uj, batches);
        for (id, used) in self.cycles.drain() {
            let share = used.zip(model).map(|(used, model)| model.share(used));
            add(&mut self.by_cycles, id, share);
        }
    }

    fn add_cycles(&mut self, ctx: &TickContext<'_>, batches: &[Batch]) {
        let cycles = cycles_of_processes(batches);
        if cycles.is_empty() {
            return;
        }
        for process in ctx.tasks.iter() {
            let start = ctx.tasks.clock.wall_of_boottime(process.id.start_boottime);
            if let Some(cycles) = cycles.get(&(process.id.pid, start)) {
                add(&mut self.cycles, process.id, *cycles);
            }
        }
    }

    /// Energy of a process by CPU time, µJ.
    pub(super) fn by_cpu_time(&self, id: ProcessId) -> Option<f64> {
        self.by_cpu_time.get(&id).copied().flatten()
    }

    /// Energy of a process by cycles, µJ.
    pub(super) fn by_cycles(&self, id: ProcessId) -> Option<f64> {
        self.by_cycles.get(&id).copied().flatten()
    }

    /// Forgets ended processes, when there are any.
    pub(super) fn retain(&mut self, tasks: &TaskTable) {
        let is_alive = |id| tasks.get(id).is_some_and(|process| process.end.is_none());
        for sums in [&mut self.by_cpu_time, &mut self.by_cycles] {
            if sums.len() > tasks.count() {
                sums.retain(|id, _| is_alive(*id));
            }
        }
    }
}

/// Adds a value to a sum, which becomes unknown with the value.
fn add(sums: &mut Sums, id: ProcessId, value: Option<f64>) {
    let sum = sums.entry(id).or_insert(Some(0.0));
    *sum = sum.zip(value).map(|(sum, value)| sum + value);
}

/// Cycles of each process with counters, summed over the kinds of cores.
fn cycles_of_processes(batches: &[Batch]) -> HashMap<(u32, Timestamp), Option<f64>> {
    let [group, event] = TARGET_CYCLES;
    let events = Rows::of(batches, &perf::EVENTS)
        .with(EventRow::scope, &["process"])
        .with(EventRow::group, &[group])
        .with(EventRow::event, &[event]);
    let processes = events
        .keys(OwnerKey::pid)
        .zip(events.keys(OwnerKey::start_ts));
    let mut cycles = HashMap::new();
    for ((pid, start), count) in processes.zip(events.values(EventRow::count)) {
        if let (Some(pid), Some(start)) = (pid, start) {
            let sum = cycles
                .entry((pid, Timestamp::from_us(start)))
                .or_insert(Some(0.0));
            *sum = sum.zip(count).map(|(sum, count): (f64, f64)| sum + count);
        }
    }
    cycles
}

//! CPUs, and parts of the node: what is opened once, at the start of a run.

use std::{collections::BTreeMap, io, sync::Arc};

use super::{
    Count, Machine, Plan,
    counters::{Counters, Of},
};

/// Counters with the slots that their counts go to.
pub(super) type Opened = (Counters, Arc<[usize]>);

/// A CPU or a socket.
#[derive(Debug)]
pub struct Target {
    /// Its number.
    pub id: u32,
    /// When it was read last, ns of `CLOCK_MONOTONIC`.
    pub read_at: Option<u64>,
    /// What was added since then; `None` for what is not counted here.
    pub counts: Vec<Option<Count>>,
    opened: Vec<Opened>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Targets {
    /// With `--node`.
    pub cpus: Vec<Target>,
    /// Sockets with the parts of the node that belong to them.
    pub sockets: Vec<Target>,
}

impl Targets {
    /// Opens the parts of the node and, `with_cpus`, the bundles of the core on every CPU. What is refused becomes a note
    /// of the plan.
    pub fn open(plan: &mut Plan, machine: &Machine<'_>, with_cpus: bool) -> Self {
        let slots = plan.slots.len();
        let mut refused = Vec::new();
        let mut cpus = Vec::new();
        for cpu in machine.cpus.iter().filter(|_| with_cpus) {
            let mut target = Target::new(cpu.number, slots);
            for perf_group in &plan.core {
                let has = perf_group.cpus.as_ref();
                if has.is_some_and(|cpus| !cpus.contains(&cpu.number)) {
                    continue;
                }
                match Counters::open(&perf_group.events, Of::Cpu(cpu.number)) {
                    Ok(counters) => target.opened.push((counters, perf_group.slots.clone())),
                    Err(error) => refused.push((perf_group.clone(), error.error)),
                }
            }
            cpus.push(target);
        }
        let mut sockets: BTreeMap<u32, Target> = BTreeMap::new();
        for part in &plan.parts {
            match Counters::open(&part.perf_group.events, Of::Cpu(part.cpu)) {
                Ok(counters) => sockets
                    .entry(part.socket)
                    .or_insert_with(|| Target::new(part.socket, slots))
                    .opened
                    .push((counters, part.perf_group.slots.clone())),
                Err(error) => refused.push((part.perf_group.clone(), error.error)),
            }
        }
        for (perf_group, error) in refused {
            plan.refuse(&perf_group, &error, machine);
        }
        cpus.retain(|target| !target.opened.is_empty());
        Self {
            cpus,
            sockets: sockets.into_values().collect(),
        }
    }

    /// Whether nothing could be opened.
    pub fn is_empty(&self) -> bool {
        self.cpus.is_empty() && self.sockets.is_empty()
    }
}

impl Target {
    fn new(id: u32, slots: usize) -> Self {
        Self {
            id,
            read_at: None,
            counts: vec![None; slots],
            opened: Vec::new(),
        }
    }

    /// Reads what was added.
    ///
    /// # Errors
    ///
    /// The last of those that occurred; what could be read is there.
    pub fn read(&mut self) -> io::Result<()> {
        self.counts.fill(None);
        read(&mut self.opened, &mut self.counts)
    }
}

/// Adds what was counted since the reading before; goes on after an error, and returns the last.
pub(super) fn read(opened: &mut [Opened], counts: &mut [Option<Count>]) -> io::Result<()> {
    let mut result = Ok(());
    for (counters, slots) in opened {
        match counters.read() {
            Ok(increase) => {
                for (slot, raw) in slots.iter().zip(increase.counts) {
                    let count = counts[*slot].get_or_insert_default();
                    count.add(*raw, increase.enabled, increase.running);
                }
            }
            Err(error) => result = Err(error),
        }
    }
    result
}

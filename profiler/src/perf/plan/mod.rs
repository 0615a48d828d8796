//! What is counted on this machine: from groups and events by name to bundles that its PMUs can hold.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use perfevents::{
    CORE_PMU, Catalog, Device, Encoding, Event, Formula, Group, Reduce, SOFTWARE_PMU, Uarch,
};

use rustix::io::Errno;

use crate::{
    failure::{Failure, Reason},
    host::cpu_list,
    schema::Label,
};

use super::{
    Count, Selection,
    counters::{Attributes, Counters, Of, Refused},
    errors,
    machine::{Cpu, Kind, Machine},
};

/// One event of a plan. Counts are kept in the order of the slots.
#[derive(Clone, Debug)]
pub struct EventIndex {
    /// Its group; `None` for an event by hand.
    pub group: Option<Label>,
    /// Its name.
    pub event: Label,
    /// Which PMU counts it.
    pub pmu: Label,
    /// What one count is worth; `None` where the kernel does not tell it, and no count has a value.
    pub scale: Option<f64>,
}

impl EventIndex {
    /// What a count of it comes to, in its unit.
    pub fn value(&self, count: &Count) -> Option<f64> {
        Some(count.value()? * self.scale?)
    }
}

/// Events that are counted together.
#[derive(Clone, Debug)]
pub struct PerfGroup {
    /// Where their counts go.
    pub slots: Arc<[usize]>,
    /// How they are opened.
    pub events: Vec<Attributes>,
    /// CPUs that have the PMU; `None` when all.
    pub cpus: Option<Vec<u32>>,
}

/// A bundle that counts a part of the node.
#[derive(Clone, Debug)]
pub struct Part {
    /// What is counted.
    pub perf_group: PerfGroup,
    /// The CPU by which the part is opened.
    pub cpu: u32,
    /// The socket that it belongs to.
    pub socket: u32,
}

/// A metric of a group.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Its name.
    pub name: Label,
    /// Its unit.
    pub unit: Label,
    /// How it follows from the counts.
    pub formula: Formula,
}

/// A group, on one kind of core or on a part of the node.
#[derive(Clone, Debug)]
pub struct GroupPlan {
    /// Its name.
    pub name: Label,
    /// Which PMU counts it.
    pub pmu: Label,
    /// Slots of the events by their names in the formulas.
    pub slots: BTreeMap<String, usize>,
    /// Its metrics, in order.
    pub metrics: Vec<Metric>,
    /// Whether parts of the node are counted, whoever uses them.
    pub node_batches: bool,
}

/// Everything that is counted in a run.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Each event.
    pub slots: Vec<EventIndex>,
    /// Bundles that are opened on each thread or CPU.
    pub core: Vec<PerfGroup>,
    /// Bundles that are opened once.
    pub parts: Vec<Part>,
    /// Groups with their metrics.
    pub groups: Vec<GroupPlan>,
    /// What is left out or counted in turns.
    pub notes: Vec<Note>,
    /// What would help.
    pub remedy: String,
}

/// Why something is not counted as it was wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Groups or events; none when it is all of them.
    pub what: Vec<String>,
    /// The reason.
    pub why: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.what.is_empty() {
            write!(f, "{}: ", self.what.join(", "))?;
        }
        f.write_str(&self.why)
    }
}

const TURNS: &str = "more events than counters, so they are counted in turns";

/// What helps where a PMU outside the cores is missing.
const NO_UNCORE: &str = "the kernel's module for it (modprobe intel_uncore, amd_uncore, arm_cmn …); few virtual machines have one";

/// Where an instance of a PMU is opened.
pub(super) struct Instance {
    device: usize,
    pub(super) cpu: Cpu,
}

impl Plan {
    /// Makes a plan of what was asked for.
    ///
    /// # Errors
    ///
    /// When it names something that there is not.
    pub fn new(machine: &Machine<'_>, selection: &Selection) -> Result<Self, Failure> {
        let usage = |what: String| Failure::new(Reason::Usage, what);
        let mut plan = Self::default();
        if machine.has_core_pmu() && machine.kinds.is_empty() && !selection.is_explicit() {
            let why = "this CPU is in no table: only the kernel's generic events are counted";
            plan.note(
                None,
                why.to_owned(),
                "a table of its own: docs/perfevents.md",
            );
        }
        let names = selection.group_names(&machine.tables()).map_err(usage)?;
        for name in names {
            for kind in &machine.kinds {
                if let Some(group) = kind.table.groups.get(name) {
                    plan.add_group(machine, kind, name, group);
                }
            }
            let generic = machine.generic.and_then(|table| {
                let group = table.groups.get(name)?;
                let device = None;
                Some((Kind { table, device }, group))
            });
            if let Some((kind, group)) = generic {
                plan.add_group(machine, &kind, name, group);
            }
        }
        for items in &selection.events.0 {
            plan.add_by_hand(machine, items).map_err(usage)?;
        }
        Ok(plan)
    }

    /// Tries each bundle of the core on the calling thread: what is refused is left out, what does not fit is split.
    pub fn probe(&mut self, machine: &Machine<'_>) {
        let mut tried = Vec::new();
        let mut waiting: Vec<PerfGroup> = std::mem::take(&mut self.core);
        for perf_group in &mut waiting {
            self.leave_out_ignored(perf_group, machine);
        }
        waiting.retain(|perf_group| !perf_group.events.is_empty());
        waiting.reverse();
        while let Some(mut perf_group) = waiting.pop() {
            let refused = match Counters::open(&perf_group.events, Of::Caller) {
                Ok(mut counters) => {
                    if !perf_group.is_everywhere(machine) || counters.get_a_turn() {
                        tried.push(perf_group);
                        continue;
                    }
                    // The kernel takes some groups that it can never count, because others keep counters for themselves.
                    Refused {
                        index: perf_group.events.len() - 1,
                        error: Errno::BUSY.into(),
                    }
                }
                Err(refused) => refused,
            };
            let does_not_fit = matches!(
                Errno::from_io_error(&refused.error),
                Some(Errno::INVAL | Errno::BUSY | Errno::NOSPC)
            );
            if refused.index > 0 && does_not_fit {
                let rest = perf_group.split(refused.index);
                self.turns(&rest);
                waiting.push(rest);
                waiting.push(perf_group);
                continue;
            }
            let mut one = perf_group.split(refused.index);
            let rest = one.split(1);
            self.refuse(&one, &refused.error, machine);
            // Those before it were accepted.
            perf_group.append(rest);
            if !perf_group.events.is_empty() {
                waiting.push(perf_group);
            }
        }
        self.core = tried;
    }

    /// Whether nothing is left to count.
    pub fn is_empty(&self) -> bool {
        self.core.is_empty() && self.parts.is_empty()
    }

    /// The notes in one line.
    pub fn why(&self) -> String {
        let notes: Vec<_> = self.notes.iter().map(Note::to_string).collect();
        notes.join("; ")
    }

    fn note(&mut self, what: Option<&str>, why: String, remedy: &str) {
        let known = self
            .notes
            .iter_mut()
            .find(|note| note.why == why && note.what.is_empty() == what.is_none());
        match (known, what) {
            (Some(note), Some(what)) if note.what.iter().all(|known| known != what) => {
                note.what.push(what.to_owned());
            }
            (Some(_), _) => {}
            (None, what) => self.notes.push(Note {
                what: what.map(str::to_owned).into_iter().collect(),
                why,
            }),
        }
        if self.remedy.is_empty() {
            remedy.clone_into(&mut self.remedy);
        }
    }

    /// Leaves out events of a core that need one of its extra registers (offcore responses), if this kernel ignores the
    /// value for it: it would count all of them.
    fn leave_out_ignored(&mut self, perf_group: &mut PerfGroup, machine: &Machine<'_>) {
        let needs_register = |event: &Attributes| {
            let has = |kind: &Kind<'_>| {
                kind.device.as_ref().is_some_and(|device| {
                    device.kind == event.encoding.kind
                        && device.formats().contains_key("offcore_rsp")
                })
            };
            event.encoding.config[1] != 0 && machine.kinds.iter().any(has)
        };
        let mut index = 0;
        while index < perf_group.events.len() {
            let event = perf_group.events[index];
            if !needs_register(&event) || heeds_config1(event) {
                index += 1;
                continue;
            }
            let mut ignored = perf_group.split(index);
            let rest = ignored.split(1);
            perf_group.append(rest);
            let event = self.slots[ignored.slots[0]].event.clone();
            let why = "this kernel ignores the value of its register (config1)".to_owned();
            self.note(Some(event.as_str()), why, "a kernel that knows this CPU");
        }
    }

    /// Says that the events of a bundle are not counted.
    pub(super) fn refuse(
        &mut self,
        perf_group: &PerfGroup,
        error: &std::io::Error,
        machine: &Machine<'_>,
    ) {
        for slot in &*perf_group.slots {
            let event = self.slots[*slot].event.clone();
            let why = errors::explain(error, machine.host);
            let remedy = errors::remedy(error, machine.host);
            self.note(Some(event.as_str()), why, remedy);
        }
    }

    fn no_pmu(&mut self, machine: &Machine<'_>) {
        self.note(
            None,
            "this machine has no PMU, so no hardware counters".to_owned(),
            errors::remedy(&Errno::NODEV.into(), machine.host),
        );
    }

    fn turns(&mut self, perf_group: &PerfGroup) {
        let slot = perf_group.slots.first().map(|slot| &self.slots[*slot]);
        let group = slot.and_then(|slot| slot.group.clone());
        let what = group.as_ref().map_or("events by hand", Label::as_str);
        self.note(Some(what), TURNS.to_owned(), "");
    }

    pub(super) fn add_slot(
        &mut self,
        group: Option<&Label>,
        event: &str,
        pmu: &Label,
        scale: Option<f64>,
    ) -> usize {
        if scale.is_none() {
            let why = format!(
                "PMU {} does not tell what a count is worth (events/*.scale)",
                pmu.as_str()
            );
            self.note(Some(event), why, "");
        }
        self.slots.push(EventIndex {
            group: group.cloned(),
            event: Label::from(event.to_owned()),
            pmu: pmu.clone(),
            scale,
        });
        self.slots.len() - 1
    }

    fn add_group(&mut self, machine: &Machine<'_>, kind: &Kind<'_>, name: &str, group: &Group) {
        let perf_groups = group.bundles(kind.table, machine.room);
        let label = Label::from(name.to_owned());
        let node_batches = group
            .resolve(kind.table)
            .values()
            .any(|event| !event.is_core());
        if node_batches {
            self.add_parts(machine, kind.table, &label, group, &perf_groups);
            return;
        }
        let take_turns = perf_groups
            .values()
            .any(|perf_groups| perf_groups.len() > 1);
        // One for each kind of core that the PMUs are of.
        let devices_of = |pmu: &str| match (pmu, &kind.device) {
            (CORE_PMU, Some(device)) => vec![device.clone()],
            _ => Device::all(&machine.host.sysfs, pmu),
        };
        let kinds = perf_groups
            .keys()
            .filter(|pmu| **pmu != SOFTWARE_PMU || perf_groups.len() == 1)
            .map(|pmu| devices_of(pmu).len())
            .min()
            .unwrap_or(0);
        if kinds == 0 {
            self.no_pmu(machine);
        } else if take_turns {
            self.note(Some(name), TURNS.to_owned(), "");
        }
        for index in 0..kinds {
            let mut slots = BTreeMap::new();
            let mut first = None;
            for (pmu, perf_groups) in &perf_groups {
                let devices = devices_of(pmu);
                let Some(device) = devices.get(index).or(devices.first()) else {
                    continue;
                };
                let pmu = Label::from(device.name.clone());
                first.get_or_insert_with(|| pmu.clone());
                for aliases in perf_groups {
                    let taken = self.add_bundle(kind.table, &label, group, aliases, device, &pmu);
                    slots.extend(taken);
                }
            }
            if let (Some(pmu), false) = (first, slots.is_empty()) {
                self.groups
                    .push(group_plan(&label, pmu, group, slots, false));
            }
        }
    }

    /// Events of a core's PMU; where their counts go, by their names in the formulas.
    fn add_bundle(
        &mut self,
        table: &Uarch,
        label: &Label,
        group: &Group,
        aliases: &[&str],
        device: &Device,
        pmu: &Label,
    ) -> BTreeMap<String, usize> {
        let mut slots = BTreeMap::new();
        let mut events = Vec::new();
        let mut order = Vec::new();
        for (alias, name, event) in named(table, group, aliases) {
            match device.encode(event) {
                Ok(encoding) => {
                    let slot = self.add_slot(Some(label), name, pmu, device.scale(event));
                    slots.insert(alias.to_owned(), slot);
                    order.push(slot);
                    events.push(everywhere(encoding));
                }
                Err(error) => self.note(Some(name), error.to_string(), ""),
            }
        }
        if !events.is_empty() {
            self.core.push(PerfGroup {
                slots: order.into(),
                events,
                cpus: cpus_of(device),
            });
        }
        slots
    }

    /// Events of parts of the node, on all instances of their PMUs.
    fn add_parts(
        &mut self,
        machine: &Machine<'_>,
        table: &Uarch,
        label: &Label,
        group: &Group,
        perf_groups: &BTreeMap<&str, Vec<Vec<&str>>>,
    ) {
        let mut slots = BTreeMap::new();
        let mut pmus = BTreeSet::new();
        for (pattern, perf_groups) in perf_groups {
            let devices = Device::all(&machine.host.sysfs, pattern);
            let instances = instances(machine, &devices, group.reduce);
            if instances.is_empty() {
                if machine.has_core_pmu() {
                    let why = format!("there is no PMU {pattern} here");
                    self.note(Some(label.as_str()), why, NO_UNCORE);
                } else {
                    self.no_pmu(machine);
                }
                continue;
            }
            if perf_groups.len() > 1 {
                self.note(Some(label.as_str()), TURNS.to_owned(), "");
            }
            let pmu = plain(pattern);
            pmus.insert(pmu.clone());
            for aliases in perf_groups {
                let events = named(table, group, aliases);
                let scale = |event| {
                    devices
                        .first()
                        .and_then(|device: &Device| device.scale(event))
                };
                let order: Arc<[usize]> = events
                    .iter()
                    .map(|(_, name, event)| {
                        self.add_slot(Some(label), name, &Label::from(pmu.clone()), scale(event))
                    })
                    .collect();
                for instance in &instances {
                    let device = &devices[instance.device];
                    let encoded: Result<Vec<_>, _> = events
                        .iter()
                        .map(|(_, _, event)| device.encode(event).map(everywhere))
                        .collect();
                    match encoded {
                        Ok(encoded) => self.parts.push(Part {
                            perf_group: PerfGroup {
                                slots: order.clone(),
                                events: encoded,
                                cpus: None,
                            },
                            cpu: instance.cpu.number,
                            socket: instance.cpu.socket,
                        }),
                        Err(error) => self.note(Some(label.as_str()), error.to_string(), ""),
                    }
                }
                let names = events.iter().map(|(alias, ..)| (*alias).to_owned());
                slots.extend(names.zip(order.iter().copied()));
            }
        }
        if !slots.is_empty() {
            let pmu = pmus.into_iter().collect::<Vec<_>>().join("+");
            self.groups
                .push(group_plan(label, pmu.into(), group, slots, true));
        }
    }
}

impl PerfGroup {
    /// Whether its PMU is that of all CPUs, so that it counts wherever we run.
    fn is_everywhere(&self, machine: &Machine<'_>) -> bool {
        let has = |cpu: &Cpu| {
            self.cpus
                .as_ref()
                .is_none_or(|cpus| cpus.contains(&cpu.number))
        };
        machine.cpus.iter().all(has)
    }

    /// Takes off what comes from `index` on.
    fn split(&mut self, index: usize) -> Self {
        let events = self.events.split_off(index);
        let rest: Arc<[usize]> = self.slots[index..].into();
        self.slots = self.slots[..index].into();
        Self {
            slots: rest,
            events,
            cpus: self.cpus.clone(),
        }
    }

    fn append(&mut self, other: Self) {
        self.events.extend(other.events);
        self.slots = self.slots.iter().chain(&*other.slots).copied().collect();
    }
}

fn named<'a>(
    table: &'a Uarch,
    group: &'a Group,
    aliases: &[&'a str],
) -> Vec<(&'a str, &'a str, &'a Event)> {
    let event = |alias: &&'a str| {
        let name = group.events.get(*alias)?;
        Some((*alias, name.as_str(), table.events.get(name)?))
    };
    aliases.iter().filter_map(event).collect()
}

fn group_plan(
    name: &Label,
    pmu: Label,
    group: &Group,
    slots: BTreeMap<String, usize>,
    node_batches: bool,
) -> GroupPlan {
    let metrics = group.metrics.iter().map(|metric| Metric {
        name: Label::from(metric.name.clone()),
        unit: Catalog::meanings()
            .get(&metric.name)
            .map_or(Label::Static(""), |meaning| {
                Label::from(meaning.unit.clone())
            }),
        formula: metric.formula.clone(),
    });
    GroupPlan {
        name: name.clone(),
        pmu,
        slots,
        metrics: metrics.collect(),
        node_batches,
    }
}

pub(super) fn everywhere(encoding: Encoding) -> Attributes {
    Attributes {
        encoding,
        user: true,
        kernel: true,
    }
}

/// Whether the kernel looks at `config1` of an event: no register takes all bits, so it then refuses them.
pub(super) fn heeds_config1(mut event: Attributes) -> bool {
    event.encoding.config[1] = u64::MAX;
    Counters::open(&[event], Of::Caller).is_err()
}

/// `uncore_imc_*` is `uncore_imc` in the tables.
fn plain(pattern: &str) -> String {
    pattern.replace("_*", "").replace('*', "")
}

pub(super) fn cpus_of(device: &Device) -> Option<Vec<u32>> {
    let cpus = cpu_list(&device.cpus()?)?;
    Some(cpus.into_iter().flat_map(u32::try_from).collect())
}

/// Where the PMUs are opened: on each CPU of their masks, or on one of each NUMA node, socket, or of all.
pub(super) fn instances(
    machine: &Machine<'_>,
    devices: &[Device],
    reduce: Reduce,
) -> Vec<Instance> {
    let mut instances = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, device) in devices.iter().enumerate() {
        let mask = device.cpumask().and_then(|list| cpu_list(&list));
        for number in mask.unwrap_or_else(|| vec![0]) {
            let found = machine
                .cpus
                .iter()
                .find(|cpu| usize::try_from(cpu.number) == Ok(number));
            let Some(cpu) = found.copied() else {
                continue;
            };
            let target = match reduce {
                Reduce::Sum => None,
                Reduce::Numa => Some((cpu.socket, cpu.node)),
                Reduce::Socket => Some((cpu.socket, 0)),
                Reduce::One => Some((0, 0)),
            };
            if target.is_none_or(|target| seen.insert(target)) {
                instances.push(Instance { device: index, cpu });
            }
        }
    }
    instances
}

//! Test of a plan against the kernel: groups that do not fit are split, events that the kernel
//! refuses are omitted.

use std::sync::Arc;

use perf_event_open_sys::bindings::{
    PERF_COUNT_SW_CGROUP_SWITCHES, PERF_COUNT_SW_CONTEXT_SWITCHES, PERF_COUNT_SW_CPU_MIGRATIONS,
    PERF_COUNT_SW_DUMMY, PERF_TYPE_SOFTWARE,
};
use perfevents::Encoding;
use rustix::io::Errno;

use super::{EventIndex, MULTIPLEXED, PerfGroup, Plan};
use crate::{
    perf::{
        machine::{CoreKind, Machine},
        open_error::{explain, remedy},
        open_group::{Attributes, CounterScope, OpenError, OpenGroup},
    },
    schema::Label,
};

impl Plan {
    /// Opens each core group on the calling thread, and adjusts the plan to the result.
    pub fn probe(&mut self, machine: &Machine<'_>) {
        self.omit_kernel_mode(machine);
        let mut accepted = Vec::new();
        let mut pending: Vec<PerfGroup> = std::mem::take(&mut self.core_groups);
        for group in &mut pending {
            self.omit_ignored(group, machine);
        }
        pending.retain(|group| !group.attributes.is_empty());
        pending.reverse();
        while let Some(mut group) = pending.pop() {
            let Err(refused) = try_open(&group, machine) else {
                accepted.push(group);
                continue;
            };
            let does_not_fit = matches!(
                Errno::from_io_error(&refused.error),
                Some(Errno::INVAL | Errno::BUSY | Errno::NOSPC)
            );
            if refused.index > 0 && does_not_fit {
                let rest = group.split_off(refused.index);
                self.note_multiplexed(&rest);
                pending.push(rest);
                pending.push(group);
                continue;
            }
            let mut event = group.split_off(refused.index);
            let rest = event.split_off(1);
            self.note_open_error(&event, &refused.error, machine);
            // The events before it were accepted.
            group.append(rest);
            if !group.attributes.is_empty() {
                pending.push(group);
            }
        }
        self.core_groups = accepted;
    }

    /// Counts only in user mode if this user may not count in the kernel.
    fn omit_kernel_mode(&mut self, machine: &Machine<'_>) {
        let open = |kernel| OpenGroup::open(&[dummy(kernel)], CounterScope::CallingThread);
        let Err(refused) = open(true) else { return };
        let mut events = self.core_groups.iter().flat_map(|group| &group.attributes);
        if open(false).is_err() || !events.any(|event| event.user && event.kernel) {
            return;
        }
        let why = explain(&refused.error, machine.host);
        let remedy = remedy(&refused.error, machine.host);
        self.note(
            None,
            format!("counting in the kernel is {why}: user mode only"),
            &remedy,
        );
        let mut groups = std::mem::take(&mut self.core_groups);
        for group in &mut groups {
            let mut position = 0;
            while position < group.attributes.len() {
                let event = &mut group.attributes[position];
                if !event.user || !is_in_kernel_only(event) {
                    event.kernel &= !event.user;
                    position += 1;
                    continue;
                }
                let mut omitted = group.split_off(position);
                let rest = omitted.split_off(1);
                group.append(rest);
                let event = self.events[omitted.indices[0]].event.clone();
                let reason = format!("happens in the kernel, where counting is {why}");
                self.note(Some(event.as_str()), reason, &remedy);
            }
        }
        groups.retain(|group| !group.attributes.is_empty());
        self.core_groups = groups;
    }

    /// Omits core events with a value for an extra register (offcore responses) if the kernel
    /// ignores the value and would count all responses.
    fn omit_ignored(&mut self, group: &mut PerfGroup, machine: &Machine<'_>) {
        let uses_register = |event: &Attributes| {
            let has_register = |kind: &CoreKind<'_>| {
                kind.device.as_ref().is_some_and(|device| {
                    device.kind == event.encoding.kind
                        && device.formats().contains_key("offcore_rsp")
                })
            };
            event.encoding.config[1] != 0 && machine.kinds.iter().any(has_register)
        };
        let mut position = 0;
        while position < group.attributes.len() {
            let event = group.attributes[position];
            if !uses_register(&event) || checks_config1(event) {
                position += 1;
                continue;
            }
            let mut ignored = group.split_off(position);
            let rest = ignored.split_off(1);
            group.append(rest);
            let event = self.events[ignored.indices[0]].event.clone();
            let reason = "this kernel ignores the value of its register (config1)".to_owned();
            let remedy = "use a kernel with support for this CPU";
            self.note(Some(event.as_str()), reason, remedy);
        }
    }

    fn note_multiplexed(&mut self, group: &PerfGroup) {
        let event = group.indices.first().map(|index| &self.events[*index]);
        let name = event.and_then(|event| event.group.clone());
        let name = name.as_ref().map_or("custom events", Label::as_str);
        self.note(Some(name), MULTIPLEXED.to_owned(), "");
    }
}

/// Whether an event never happens in user mode: switches of the context, the CPU or the cgroup.
fn is_in_kernel_only(event: &Attributes) -> bool {
    let switches = [
        PERF_COUNT_SW_CONTEXT_SWITCHES,
        PERF_COUNT_SW_CPU_MIGRATIONS,
        PERF_COUNT_SW_CGROUP_SWITCHES,
    ];
    event.encoding.kind == PERF_TYPE_SOFTWARE
        && switches
            .iter()
            .any(|switch| u64::from(*switch) == event.encoding.config[0])
}

/// A software event that counts nothing.
fn dummy(kernel: bool) -> Attributes {
    let encoding = Encoding {
        kind: PERF_TYPE_SOFTWARE,
        config: [PERF_COUNT_SW_DUMMY.into(), 0, 0, 0],
    };
    Attributes {
        encoding,
        user: true,
        kernel,
    }
}

/// Opens a group, and waits for its first turn on the PMU. The kernel accepts some groups that it
/// can never count, because other software occupies counters; these are reported as not fitting.
fn try_open(group: &PerfGroup, machine: &Machine<'_>) -> Result<(), OpenError> {
    let mut open = OpenGroup::open(&group.attributes, CounterScope::CallingThread)?;
    if !group.covers_all_cpus(machine) || open.wait_for_turn() {
        return Ok(());
    }
    Err(OpenError {
        index: group.attributes.len() - 1,
        error: Errno::BUSY.into(),
    })
}

/// Whether the kernel checks `config1` of an event: it then refuses a value with all bits, which no
/// register accepts.
pub(super) fn checks_config1(mut event: Attributes) -> bool {
    event.encoding.config[1] = u64::MAX;
    OpenGroup::open(&[event], CounterScope::CallingThread).is_err()
}

impl PerfGroup {
    /// Whether the calling thread is counted on every CPU.
    fn covers_all_cpus(&self, machine: &Machine<'_>) -> bool {
        machine.cpus.iter().all(|cpu| self.covers(cpu.number))
    }

    /// Removes and returns the events from `position` on.
    fn split_off(&mut self, position: usize) -> Self {
        let attributes = self.attributes.split_off(position);
        let rest: Arc<[EventIndex]> = self.indices[position..].into();
        self.indices = self.indices[..position].into();
        Self {
            indices: rest,
            attributes,
            cpus: self.cpus.clone(),
        }
    }

    fn append(&mut self, other: Self) {
        self.attributes.extend(other.attributes);
        self.indices = self
            .indices
            .iter()
            .chain(&*other.indices)
            .copied()
            .collect();
    }
}

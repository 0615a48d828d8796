//! Processes on a GPU: memory and utilization.

use std::collections::BTreeMap;

use nvml_wrapper::{
    Device, enums::device::UsedGpuMemory, error::NvmlError, struct_wrappers::device::ProcessInfo,
};

use super::{
    super::{GpuProcessRow, reading::Usage},
    Facts,
    answers::Answers,
    mig::MigDevice,
    percent,
};
use crate::schema::Label;

/// Position in the driver's samples of utilization.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// Time of the last sample by the clock of the driver, µs.
    seen: Option<u64>,
    /// Whether the last reading found a process on the GPU.
    has_processes: bool,
}

/// A process on a GPU or MIG instance.
#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    pid: u32,
    gpu_instance: Option<u32>,
    compute_instance: Option<u32>,
    memory_used: Option<u64>,
    utilization: [Mean; 4],
}

/// Mean of the samples since the previous reading.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: u64,
    count: u64,
}

impl Mean {
    fn add(&mut self, value: u32) {
        if let Some(value) = percent(value) {
            self.sum += value;
            self.count += 1;
        }
    }

    fn value(self) -> Option<u64> {
        (self.sum + self.count / 2).checked_div(self.count)
    }
}

/// How a process uses a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Compute,
    /// Which no variable restricts.
    Graphics,
}

/// All processes on a device, of all users; those that compute and draw are listed twice.
pub(super) fn listed(device: &Device<'_>, answers: &mut Answers) -> Vec<(Use, ProcessInfo)> {
    type List = Result<Vec<ProcessInfo>, NvmlError>;
    let lists: [(&str, Use, List); 3] = [
        (
            "compute processes",
            Use::Compute,
            device.running_compute_processes(),
        ),
        (
            "graphics processes",
            Use::Graphics,
            device.running_graphics_processes(),
        ),
        (
            "MPS processes",
            Use::Compute,
            device.mps_running_compute_processes(),
        ),
    ];
    let mut all = Vec::new();
    for (what, kind, list) in lists {
        let list = answers.of(what, list).into_iter().flatten();
        all.extend(list.map(|info| (kind, info)));
    }
    all
}

impl Samples {
    /// Reads all processes on the device, of all users.
    pub(super) fn read(&mut self, device: &Device<'_>, answers: &mut Answers) -> Vec<Process> {
        let mut found: BTreeMap<(u32, Option<u32>, Option<u32>), Process> = BTreeMap::new();
        for (_, info) in listed(device, answers) {
            let key = (info.pid, info.gpu_instance_id, info.compute_instance_id);
            let process = found.entry(key).or_default();
            (process.pid, process.gpu_instance, process.compute_instance) = key;
            // A process that computes and draws is in both lists, with the same memory.
            if let UsedGpuMemory::Used(bytes) = info.used_gpu_memory {
                process.memory_used = process.memory_used.max(Some(bytes));
            }
        }
        let had_processes = std::mem::replace(&mut self.has_processes, !found.is_empty());
        if found.is_empty() && !had_processes {
            // The driver takes 1 ms to find no sample.
            return Vec::new();
        }
        let since = self.seen.unwrap_or(0);
        let samples = device.process_utilization_stats(since);
        let samples = answers.of("process utilization", samples);
        for sample in samples.into_iter().flatten() {
            if sample.timestamp <= since {
                continue;
            }
            self.seen = self.seen.max(Some(sample.timestamp));
            let process = found.entry((sample.pid, None, None)).or_default();
            process.pid = sample.pid;
            let values = [
                sample.sm_util,
                sample.mem_util,
                sample.enc_util,
                sample.dec_util,
            ];
            for (mean, value) in process.utilization.iter_mut().zip(values) {
                mean.add(value);
            }
        }
        found.into_values().collect()
    }
}

impl Process {
    /// Row of the process, if its MIG instance is visible to the target.
    pub(super) fn usage(
        self,
        facts: &Facts,
        instances: &[MigDevice],
        interval_ns: u64,
    ) -> Option<Usage> {
        let found = instances.iter().find(|found| {
            found.instance.gpu_instance == self.gpu_instance
                && found.instance.compute_instance == self.compute_instance
        });
        if found.is_some_and(|found| !found.visible) {
            return None;
        }
        let own = found.map(|found| Label::from(found.instance.uuid.clone()));
        let [sm, memory, encoder, decoder] = self.utilization.map(Mean::value);
        Some(Usage {
            pid: self.pid,
            interval_ns,
            row: GpuProcessRow {
                index: Some(facts.index),
                uuid: own.or_else(|| facts.uuid.clone()),
                bdf: facts.bdf.clone(),
                driver: Some(super::NAME.into()),
                gpu_instance: self.gpu_instance,
                compute_instance: self.compute_instance,
                sm_utilization: sm,
                memory_utilization: memory,
                encoder_utilization: encoder,
                decoder_utilization: decoder,
                memory_used: self.memory_used,
                ..GpuProcessRow::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implausible_samples_are_excluded_from_means() {
        let mut mean = Mean::default();
        assert_eq!(mean.value(), None);
        for value in [10, 21, u32::MAX] {
            mean.add(value);
        }
        assert_eq!(mean.value(), Some(16));
    }
}

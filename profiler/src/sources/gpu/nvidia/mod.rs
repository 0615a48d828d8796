//! GPUs and MIG instances of NVIDIA, through NVML.

mod answers;
mod facts;
mod fields;
mod gpm;
mod library;
mod mig;
mod pcie;
mod processes;
pub(super) mod visible;

use std::{collections::HashSet, time::Instant};

use nvml_wrapper::{
    Device, Nvml,
    bitmasks::device::ThrottleReasons,
    enum_wrappers::device::{Clock, EccCounter, MemoryError, PerformanceState, TemperatureSensor},
    error::{Bits, NvmlError},
};

use super::{
    GpuKey, GpuRow, Request,
    reading::{Counters, Reading, named},
    visible::{Known, READ_AGAIN, TargetGpus, Used},
};
use crate::{schema::Label, support::clock::monotonic_ns};

pub(super) use self::library::{LIBRARY, has_gpu, load};
use self::{
    answers::Answers,
    fields::{Value, Violations},
    gpm::Gpm,
    mig::{Instances, MigNames, Present},
    processes::Use,
    visible::{Candidate, Cuda},
};

/// Vendor and driver in the tables.
const NAME: &str = "nvidia";

/// All GPUs. Those that the target may use are read.
pub(super) struct Nvidia {
    nvml: &'static Nvml,
    gpus: Vec<Gpu>,
    visible: TargetGpus<Cuda>,
    counters: Counters,
    /// Whether the pids of the driver, which are those of the node, are those of the profiler.
    knows_pids: bool,
    /// When the driver was last asked for the GPUs of the target.
    asked_at: Option<Instant>,
}

struct Gpu {
    device: Device<'static>,
    facts: Facts,
    /// Whether the row of constant facts was written.
    described: bool,
    /// Capacity of the PCIe link, bytes per second.
    pcie_capacity: Option<f64>,
    pcie_tx: pcie::Direction,
    pcie_rx: pcie::Direction,
    read_at: u64,
    gpm: Gpm,
    instances: Instances,
    samples: processes::Samples,
    /// Whether a process of the target has been on it.
    was_used: bool,
}

/// Constant facts about a GPU.
#[derive(Clone, Debug)]
struct Facts {
    /// Number in NVML and nvidia-smi.
    index: u32,
    /// Minor number of the device file, N of `/dev/nvidiaN`.
    minor: Option<u32>,
    uuid: Option<Label>,
    name: Option<Label>,
    bdf: Option<Label>,
}

impl Nvidia {
    /// Finds the GPUs, except for those that a container or cgroup hides.
    pub(super) fn open(nvml: &'static Nvml, visible: TargetGpus<Cuda>, knows_pids: bool) -> Self {
        let count = nvml.device_count().unwrap_or(0);
        let found = (0..count).filter_map(|index| {
            let device = nvml.device_by_index(index).ok()?;
            Some(Gpu::open(device, index))
        });
        Self {
            nvml,
            gpus: found.collect(),
            visible,
            counters: Counters::new(),
            knows_pids,
            asked_at: None,
        }
    }

    /// Reads all GPUs once, which may take long.
    pub(super) fn read(&mut self, request: &Request) -> Reading {
        let ts = request.tick.ts;
        let mut answers = Answers::default();
        let (mut gpus, mut processes, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        self.counters.begin();
        let seen = self.seen(request.pids.as_deref(), &mut answers);
        let known = self.visible.known();
        let selections: Vec<&Cuda> = known.filter_map(|known| known.selection.as_ref()).collect();
        for (gpu, present) in self.gpus.iter_mut().zip(seen) {
            let Some(present) = present else { continue };
            let now = monotonic_ns();
            let mut row = gpu.read(self.nvml, now, &mut answers);
            if answers.take_lost() {
                continue;
            }
            if !std::mem::replace(&mut gpu.described, true) {
                let key = gpu.facts.key(ts, 0);
                devices.push((key.into(), facts::read(self.nvml, &gpu.device)));
            }
            let name = gpu.facts.index.to_string();
            let known = self.counters.increase(&name, now, &mut row);
            let candidate = gpu.facts.candidate(Vec::new());
            let is_visible = |instance: &MigNames| {
                let mut selections = selections.iter();
                selections.len() == 0 || selections.any(|cuda| cuda.instance(&candidate, instance))
            };
            let instances = &mut gpu.instances;
            let found = instances.read(self.nvml, &gpu.device, present, is_visible, &mut answers);
            if self.knows_pids {
                let used = gpu.samples.read(&gpu.device, &mut answers);
                if let Some(interval_ns) = known {
                    processes.extend(
                        used.into_iter()
                            .filter_map(|process| process.usage(&gpu.facts, &found, interval_ns)),
                    );
                }
            }
            if let Some(interval_ns) = known {
                gpus.push((gpu.facts.key(ts, interval_ns), row));
            }
            for found in found.into_iter().filter(|found| found.visible) {
                let (mut row, instance) = (found.row, found.instance);
                let now = monotonic_ns();
                if let Some(interval_ns) = self.counters.increase(&instance.uuid, now, &mut row) {
                    let mut key = gpu.facts.key(ts, interval_ns);
                    key.index = None;
                    key.parent_uuid = key.uuid.replace(Label::from(instance.uuid));
                    key.name = found.name.or(key.name);
                    key.gpu_instance = instance.gpu_instance;
                    key.compute_instance = instance.compute_instance;
                    gpus.push((key, row));
                }
            }
        }
        Reading {
            ts,
            read_at: monotonic_ns(),
            gpus,
            devices,
            processes,
            error: answers.error,
        }
    }

    /// The present instances of each GPU that is visible to the target: those that its environments
    /// mean, and those that its processes have been on.
    fn seen(&mut self, pids: Option<&[u32]>, answers: &mut Answers) -> Vec<Option<Present>> {
        let used = pids.map_or_else(Used::new, |pids| self.used(pids, answers));
        let mut present = Vec::new();
        let mut candidates: Vec<Candidate<'_>> = Vec::new();
        for gpu in &self.gpus {
            let instances = mig::instances(self.nvml, &gpu.device, answers);
            let names = instances.iter().map(|(instance, _)| instance.clone());
            candidates.push(gpu.facts.candidate(names.collect()));
            present.push(instances);
        }
        // A removed GPU that is not read does not matter.
        answers.take_lost();
        let numbers: Vec<u32> = self.gpus.iter().map(|gpu| gpu.facts.index).collect();
        let meaning = |known: &Known<Cuda>| visible::gpus(known, &candidates);
        let seen = self.visible.gpus(pids, &numbers, &used, meaning);
        let all = seen.iter().zip(&self.gpus).zip(present);
        all.map(|((seen, gpu), present)| (*seen || gpu.was_used).then_some(present))
            .collect()
    }

    /// GPUs on which processes of the target compute, if the driver is to be asked again.
    fn used(&mut self, pids: &[u32], answers: &mut Answers) -> Used {
        let is_due = self.asked_at.is_none_or(|at| at.elapsed() >= READ_AGAIN);
        let mut used = Used::new();
        if !self.knows_pids || !is_due {
            return used;
        }
        self.asked_at = Some(Instant::now());
        let target: HashSet<u32> = pids.iter().copied().collect();
        for (at, gpu) in self.gpus.iter_mut().enumerate() {
            let listed = processes::listed(&gpu.device, answers).into_iter();
            for (kind, info) in listed.filter(|(_, info)| target.contains(&info.pid)) {
                gpu.was_used = true;
                if kind == Use::Compute {
                    used.entry(info.pid).or_default().insert(at);
                }
            }
        }
        used
    }
}

impl Facts {
    fn candidate(&self, instances: Vec<MigNames>) -> Candidate<'_> {
        Candidate {
            minor: self.minor,
            instances,
            uuid: self.uuid.as_ref().map(Label::as_str),
            name: self.name.as_ref().map(Label::as_str),
        }
    }

    fn key(&self, ts: crate::schema::Timestamp, interval_ns: u64) -> GpuKey {
        GpuKey {
            ts,
            interval_ns,
            index: Some(self.index),
            uuid: self.uuid.clone(),
            vendor: NAME.into(),
            driver: NAME.into(),
            name: self.name.clone(),
            bdf: self.bdf.clone(),
            parent_uuid: None,
            gpu_instance: None,
            compute_instance: None,
        }
    }
}

impl Gpu {
    fn open(device: Device<'static>, index: u32) -> Self {
        let pci = device.pci_info().ok();
        let bdf = pci.map(|pci| format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device));
        let link = device
            .max_pcie_link_gen()
            .ok()
            .zip(device.max_pcie_link_width().ok());
        Self {
            facts: Facts {
                index: device.index().unwrap_or(index),
                minor: device.minor_number().ok(),
                uuid: device.uuid().ok().map(Label::from),
                name: device.name().ok().map(Label::from),
                bdf: bdf.map(Label::from),
            },
            described: false,
            pcie_capacity: link.and_then(|(generation, width)| pcie::capacity(generation, width)),
            pcie_tx: pcie::Direction::default(),
            pcie_rx: pcie::Direction::default(),
            read_at: 0,
            gpm: Gpm::default(),
            instances: Instances::default(),
            samples: processes::Samples::default(),
            was_used: false,
            device,
        }
    }

    /// Reads all values separately, so that an error affects only one of them.
    fn read(&mut self, nvml: &'static Nvml, now: u64, answers: &mut Answers) -> GpuRow {
        let device = &self.device;
        let mut row = GpuRow::default();
        if let Some(busy) = answers.of("utilization", device.utilization_rates()) {
            row.utilization = percent(busy.gpu);
            row.memory_utilization = percent(busy.memory);
        }
        let encoder = answers.of("encoder", device.encoder_utilization());
        row.encoder_utilization = encoder.and_then(|encoder| percent(encoder.utilization));
        let decoder = answers.of("decoder", device.decoder_utilization());
        row.decoder_utilization = decoder.and_then(|decoder| percent(decoder.utilization));
        if let Some(memory) = answers.of("memory", device.memory_info()) {
            row.memory_total = Some(memory.total);
            row.memory_used = Some(memory.used);
        }
        let bar1 = answers.of("BAR1", device.bar1_memory_info());
        row.bar1_used = bar1.map(|bar1| bar1.used);
        let processes = device.running_compute_processes_count();
        row.processes = answers.of("processes", processes).map(u64::from);
        let mut clock = |clock| {
            answers
                .of("clock", device.clock_info(clock))
                .and_then(hertz)
        };
        row.graphics_clock_hz = clock(Clock::Graphics);
        row.sm_clock_hz = clock(Clock::SM);
        row.memory_clock_hz = clock(Clock::Memory);
        row.video_clock_hz = clock(Clock::Video);
        let state = answers.of("performance state", device.performance_state());
        row.pstate = state.and_then(p_state);
        let power = answers.of("power", device.power_usage());
        row.power_w = power.and_then(known).map(watts);
        let limit = answers.of("power limit", device.enforced_power_limit());
        row.power_limit_w = limit.and_then(positive).map(watts);
        let energy = answers.of("energy", device.total_energy_consumption());
        row.energy_uj = energy.and_then(|mj| mj.checked_mul(1000));
        let temperature = device.temperature(TemperatureSensor::Gpu);
        row.temperature = answers.of("temperature", temperature).and_then(known);
        row.fan_percent = fastest_fan(device, answers);
        row.pcie_generation = answers
            .of("PCIe generation", device.current_pcie_link_gen())
            .and_then(positive);
        row.pcie_width = answers
            .of("PCIe width", device.current_pcie_link_width())
            .and_then(positive);
        row.pcie_replays = answers
            .of("PCIe replays", device.pcie_replay_counter())
            .and_then(known);
        ecc_errors(device, &mut row, answers);
        row.throttle_reasons = throttle_reasons(device, answers);
        let fields = answers.of("field values", fields::read(nvml, device));
        let fields = fields.unwrap_or_default();
        violations(fields.violations, &mut row);
        row.memory_temperature = fields.memory_temperature.map(Value::number);
        let bytes = |kib: Option<Value>| kib.and_then(|kib| kib.number().checked_mul(1024));
        row.nvlink_tx_bytes = bytes(fields.nvlink_tx);
        row.nvlink_rx_bytes = bytes(fields.nvlink_rx);
        let rates = self.gpm.read(nvml, device, None, &mut row, answers);
        let interval_ns = now.saturating_sub(std::mem::replace(&mut self.read_at, now));
        let capacity = self.pcie_capacity;
        row.pcie_tx_bytes =
            self.pcie_tx
                .advance(fields.pcie_tx, interval_ns, capacity, rates.pcie_tx);
        row.pcie_rx_bytes =
            self.pcie_rx
                .advance(fields.pcie_rx, interval_ns, capacity, rates.pcie_rx);
        row
    }
}

fn ecc_errors(device: &Device<'_>, row: &mut GpuRow, answers: &mut Answers) {
    let mut errors = |kind, since| answers.of("ECC errors", device.total_ecc_errors(kind, since));
    row.ecc_corrected = errors(MemoryError::Corrected, EccCounter::Volatile);
    row.ecc_uncorrected = errors(MemoryError::Uncorrected, EccCounter::Volatile);
    row.ecc_corrected_total = errors(MemoryError::Corrected, EccCounter::Aggregate);
    row.ecc_uncorrected_total = errors(MemoryError::Uncorrected, EccCounter::Aggregate);
}

fn violations(of: Violations, row: &mut GpuRow) {
    let time = |value: Option<Value>| value.map(Value::number);
    row.power_violation_ns = time(of.power);
    row.thermal_violation_ns = time(of.thermal);
    row.board_limit_violation_ns = time(of.board_limit);
    row.reliability_violation_ns = time(of.reliability);
    row.sync_boost_violation_ns = time(of.sync_boost);
    row.low_utilization_violation_ns = time(of.low_utilization);
    row.application_clocks_violation_ns = time(of.application_clocks);
    row.base_clocks_violation_ns = time(of.base_clocks);
}

fn percent(value: u32) -> Option<u64> {
    (value <= 100).then_some(value.into())
}

/// A number of NVML; `None` for `NVML_VALUE_NOT_AVAILABLE`.
fn known(value: u32) -> Option<u64> {
    (value != u32::MAX).then_some(value.into())
}

/// A number of NVML of which 0 is unknown, too.
fn positive(value: u32) -> Option<u64> {
    known(value).filter(|&value| value > 0)
}

/// Converts from mW.
fn watts(milliwatts: u64) -> f64 {
    milliwatts as f64 / 1e3
}

/// Converts from MHz.
fn hertz(mhz: u32) -> Option<u64> {
    Some(known(mhz)? * 1_000_000)
}

fn p_state(state: PerformanceState) -> Option<u64> {
    (state != PerformanceState::Unknown).then(|| state.as_c().into())
}

fn fastest_fan(device: &Device<'_>, answers: &mut Answers) -> Option<u64> {
    let count = answers.of("fans", device.num_fans())?;
    // No board has more fans.
    let fans = (0..count.min(16)).filter_map(|fan| answers.of("fan", device.fan_speed(fan)));
    fans.filter_map(known).max()
}

fn throttle_reasons(device: &Device<'_>, answers: &mut Answers) -> Option<Label> {
    let bits = match device.current_throttle_reasons_strict() {
        Err(NvmlError::IncorrectBits(Bits::U64(bits))) => Ok(bits),
        answer => answer.map(|reasons| reasons.bits()),
    };
    answers.of("throttle reasons", bits).map(reasons)
}

/// Names of `nvmlClocksEventReasons`, in the order of their bits.
fn reasons(bits: u64) -> Label {
    let known = [
        (ThrottleReasons::GPU_IDLE, "gpu_idle"),
        (
            ThrottleReasons::APPLICATIONS_CLOCKS_SETTING,
            "applications_clocks_setting",
        ),
        (ThrottleReasons::SW_POWER_CAP, "sw_power_cap"),
        (ThrottleReasons::HW_SLOWDOWN, "hw_slowdown"),
        (ThrottleReasons::SYNC_BOOST, "sync_boost"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "sw_thermal_slowdown"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hw_thermal_slowdown"),
        (
            ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN,
            "hw_power_brake_slowdown",
        ),
        (
            ThrottleReasons::DISPLAY_CLOCK_SETTING,
            "display_clock_setting",
        ),
    ];
    named(bits, known.map(|(reason, name)| (reason.bits(), name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_names() {
        assert_eq!(reasons(0).as_str(), "none");
        assert_eq!(reasons(0x1).as_str(), "gpu_idle");
        assert_eq!(reasons(0x4 | 0x8).as_str(), "sw_power_cap+hw_slowdown");
        assert_eq!(
            reasons(0x40 | 1 << 40).as_str(),
            "hw_thermal_slowdown+unknown"
        );
    }

    #[test]
    fn implausible_values_are_null() {
        assert_eq!(
            (percent(100), percent(101), percent(u32::MAX)),
            (Some(100), None, None)
        );
        assert_eq!((known(0), known(u32::MAX)), (Some(0), None));
        assert_eq!((positive(16), positive(0)), (Some(16), None));
        assert_eq!(hertz(u32::MAX), None);
        assert_eq!(p_state(PerformanceState::Unknown), None);
        assert_eq!(p_state(PerformanceState::Eight), Some(8));
    }
}

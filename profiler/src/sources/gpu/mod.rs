//! `gpu`: what GPUs do and use, for each GPU and each process that uses one.
//!
//! NVIDIA through its library NVML, AMD and Intel through sysfs and the fdinfo of DRM clients. Each driver is asked in
//! a thread of its own: an answer can take milliseconds, or never come.

mod drm;
mod nvidia;
mod owners;
mod reading;
mod visible;

use std::{
    ffi::OsStr,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};

use super::{Context, Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::Host,
    schema::{Batch, Label, ProcessKey, Table, TableBuilder, Timestamp},
    support::worker::Worker,
};

use self::{
    owners::Owners,
    reading::{Reading, Request},
};

columns! {
    /// Which GPU, and when.
    pub struct GpuKey {
        ts: Timestamp = Label("ns", "Wall clock of the tick at which the reading began, from one monotonic→realtime offset per run"),
        interval_ns: u64 = Gauge("ns", "Measured time since the previous reading of this GPU"),
        index: Option<u32> = Label("", "Number that the driver's tools give it: nvidia-smi's, or N of /sys/class/drm/cardN; null for a MIG instance"),
        uuid: Option<Label> = Label("", "UUID of the GPU or MIG instance (NVIDIA), unique_id (AMD); null where the driver has none"),
        vendor: Label = Label("", "nvidia, amd, intel"),
        driver: Label = Label("", "Driver: nvidia, amdgpu, i915, xe …"),
        name: Option<Label> = Label("", "Product"),
        bdf: Option<Label> = Label("", "PCI address: domain:bus:device.function, as in /sys/bus/pci/devices"),
        parent_uuid: Option<Label> = Label("", "Of a MIG instance, the UUID of its GPU, whose row has the whole; null otherwise"),
        gpu_instance: Option<u32> = Label("", "Of a MIG instance, its GPU instance id"),
        compute_instance: Option<u32> = Label("", "Of a MIG instance, its compute instance id"),
    }
}

columns! {
    /// One GPU over one interval; what its driver does not say is null.
    #[derive(Default)]
    pub struct GpuRow {
        utilization: Option<u64> = Gauge("%", "Time in which a kernel ran, over the driver's last sampling period (NVML utilization.gpu, gpu_busy_percent)"),
        memory_utilization: Option<u64> = Gauge("%", "Time in which device memory was read or written, over the driver's last sampling period"),
        encoder_utilization: Option<u64> = Gauge("%", "Video encoder"),
        decoder_utilization: Option<u64> = Gauge("%", "Video decoder"),
        media_utilization: Option<u64> = Gauge("%", "Video engine that both encodes and decodes (AMD)"),
        memory_total: Option<u64> = Gauge("bytes", "Device memory"),
        memory_used: Option<u64> = Gauge("bytes", "Device memory in use, without what the driver reserves for itself"),
        system_memory_used: Option<u64> = Gauge("bytes", "Memory of the node in use by the GPU (AMD's GTT)"),
        sm_clock: Option<u64> = Gauge("Hz", "Clock of the shader cores (SM, GFX, GT)"),
        memory_clock: Option<u64> = Gauge("Hz", "Clock of device memory"),
        video_clock: Option<u64> = Gauge("Hz", "Clock of the video engines"),
        performance_state: Option<u64> = Gauge("1", "P-state: 0 is fastest (NVIDIA)"),
        power_mw: Option<u64> = Gauge("mW", "Power as the driver says: of NVIDIA since Ampere a mean over a second"),
        power_limit_mw: Option<u64> = Gauge("mW", "Power limit in force"),
        energy_uj: Option<u64> = Counter("µJ", "Energy used; NVML in steps of 1 mJ"),
        temperature: Option<u64> = Gauge("°C", "Of the GPU (AMD: edge, or of parts without an edge sensor junction)"),
        memory_temperature: Option<u64> = Gauge("°C", "Of device memory"),
        fan: Option<u64> = Gauge("%", "Intended speed of the fastest fan"),
        fan_rpm: Option<u64> = Gauge("1/min", "Speed of the first fan"),
        pcie_tx_bytes: Option<u64> = Counter("bytes", "Sent by the GPU over PCIe; null where the driver's counter may have wrapped and nothing else tells"),
        pcie_rx_bytes: Option<u64> = Counter("bytes", "Received by the GPU over PCIe; as pcie_tx_bytes"),
        pcie_replays: Option<u64> = Counter("1", "PCIe packets sent again"),
        pcie_generation: Option<u64> = Gauge("1", "PCIe generation of the link now"),
        pcie_width: Option<u64> = Gauge("1", "PCIe lanes of the link now"),
        nvlink_tx_bytes: Option<u64> = Counter("bytes", "Payload sent over all NVLinks, in steps of 1 KiB"),
        nvlink_rx_bytes: Option<u64> = Counter("bytes", "Payload received over all NVLinks, in steps of 1 KiB"),
        ecc_corrected: Option<u64> = Counter("1", "Memory errors corrected"),
        ecc_uncorrected: Option<u64> = Counter("1", "Memory errors that could not be corrected"),
        throttle_reasons: Option<Label> = Label("", "What holds the clocks down now, joined by +: gpu_idle, sw_power_cap, hw_slowdown …; none; AMD: the kernel's names of throttlers"),
        power_violation_ns: Option<u64> = Counter("ns", "Time in which the power limit held the clocks down"),
        thermal_violation_ns: Option<u64> = Counter("ns", "Time in which the temperature held the clocks down"),
        board_limit_violation_ns: Option<u64> = Counter("ns", "Time in which a limit of the board held the clocks down"),
        reliability_violation_ns: Option<u64> = Counter("ns", "Time in which the voltage limit for reliability held the clocks down"),
        sm_activity: Option<f64> = Gauge("%", "Mean over the interval of the SMs that had a warp (GPM: Hopper and later); of MIG instances too"),
        sm_occupancy: Option<f64> = Gauge("%", "Mean over the interval of warps resident per SM, of what fits (GPM)"),
        tensor_activity: Option<f64> = Gauge("%", "Time in which tensor cores worked, mean of all SMs over the interval (GPM)"),
        dram_activity: Option<f64> = Gauge("%", "Bandwidth of device memory used, of what there is, mean over the interval (GPM)"),
        fp64_activity: Option<f64> = Gauge("%", "Time in which FP64 pipes worked, without tensor cores, mean over the interval (GPM)"),
        fp32_activity: Option<f64> = Gauge("%", "Time in which FP32 pipes worked, mean over the interval (GPM)"),
        fp16_activity: Option<f64> = Gauge("%", "Time in which FP16 pipes worked, without tensor cores, mean over the interval (GPM)"),
    }
}

columns! {
    /// What one process did with one GPU over one interval; what its driver does not say is null.
    #[derive(Default)]
    pub struct GpuProcessRow {
        index: Option<u32> = Label("", "Number of the GPU, as in table gpu; of a MIG instance, that of its GPU"),
        uuid: Option<Label> = Label("", "UUID of the GPU or MIG instance, as in table gpu"),
        bdf: Option<Label> = Label("", "PCI address of the GPU, as in table gpu"),
        driver: Option<Label> = Label("", "Driver: nvidia, amdgpu, i915, xe …"),
        gpu_instance: Option<u32> = Label("", "Of a MIG instance, its GPU instance id"),
        compute_instance: Option<u32> = Label("", "Of a MIG instance, its compute instance id"),
        sm_utilization: Option<u64> = Gauge("%", "SMs used by the process, over the driver's last sampling period; null where it had no sample (NVML)"),
        memory_utilization: Option<u64> = Gauge("%", "Device memory bandwidth used by the process; as sm_utilization"),
        encoder_utilization: Option<u64> = Gauge("%", "Video encoder used by the process; as sm_utilization"),
        decoder_utilization: Option<u64> = Gauge("%", "Video decoder used by the process; as sm_utilization"),
        memory_used: Option<u64> = Gauge("bytes", "Device memory that the process holds; what clients share is in each"),
        system_memory_used: Option<u64> = Gauge("bytes", "Memory of the node that the process holds for the GPU (DRM: gtt, system)"),
        render_ns: Option<u64> = Counter("ns", "Time of engines for graphics (DRM: gfx, render, rcs; on AMD compute of old APIs too)"),
        compute_ns: Option<u64> = Counter("ns", "Time of engines for compute (DRM: compute, ccs); of ROCm, whose queues bypass the DRM driver, nothing"),
        copy_ns: Option<u64> = Counter("ns", "Time of engines for copies (DRM: dma, copy, bcs)"),
        video_ns: Option<u64> = Counter("ns", "Time of engines for video (DRM: enc, dec, jpeg, video, vcs …)"),
        engines_ns: Option<u64> = Counter("ns", "Time of all engines (DRM): more than the interval when several work at once"),
    }
}

static GPUS: Table = Table::new::<GpuKey, GpuRow>(
    "gpu",
    "Each GPU and MIG instance: one row per tick whose reading has ended; at a driver slower than the interval, fewer",
);

static PROCESSES: Table = Table::new::<ProcessKey, GpuProcessRow>(
    "gpu_process",
    "Each process of the target that uses a GPU: one row per tick, process and GPU or MIG instance",
);

/// The entry of the registry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "gpu",
    help: "utilization, memory, clocks, power and links of GPUs, and the processes on them",
    tables: &[&GPUS, &PROCESSES],
    probe: |host| support(host, OsStr::new(nvidia::LIBRARY)),
    tasks: false,
    procfs: false,
    instrumentation: None,
    default: true,
    open: |context: &Context<'_>| open(context, OsStr::new(nvidia::LIBRARY)),
};

/// Whether there is a GPU of a vendor that is known.
pub fn is_there(host: &Host) -> bool {
    nvidia::has_gpu(&host.sysfs) || !drm::cards(host).is_empty()
}

/// What this machine's drivers tell; `library` is NVIDIA's.
pub fn support(host: &Host, library: &OsStr) -> Support {
    let drm = !drm::cards(host).is_empty();
    match nvidia::load(host, library) {
        Ok(_) => Support::Works,
        Err(absent) if drm && !absent.has_gpu => Support::Works,
        Err(absent) if drm => Support::Partly {
            why: absent.why,
            remedy: absent.remedy,
        },
        Err(absent) => Support::No {
            why: absent.why,
            remedy: absent.remedy,
        },
    }
}

/// Opens the drivers that are there; `library` is NVIDIA's.
///
/// # Errors
///
/// When there is none.
pub fn open(context: &Context<'_>, library: &OsStr) -> Result<Box<dyn Source>> {
    let host = context.host;
    let mut drivers = Vec::new();
    let nvidia = nvidia::load(host, library);
    if let Ok(nvml) = nvidia {
        let visible = visible::OfTarget::new(&host.procfs, context.node);
        // The driver names processes as the node does; those of another namespace are not guessed.
        let knows_pids = host.init_pid_namespace == Some(true);
        let driver = move || {
            let mut nvidia = nvidia::Nvidia::open(nvml, visible, knows_pids);
            move |request: Request| nvidia.read(&request)
        };
        drivers.push(Worker::start("nvidia", driver)?);
    }
    if !drm::cards(host).is_empty() {
        let own = host.clone();
        let driver = move || {
            let mut drm = drm::Drm::open(&own);
            move |request: Request| drm.read(&request)
        };
        drivers.push(Worker::start("drm", driver)?);
    }
    if drivers.is_empty() {
        bail!(
            "{}",
            nvidia.err().map_or_else(String::new, |absent| absent.why)
        );
    }
    Ok(Box::new(Gpus {
        drivers,
        host: host.clone(),
        node: context.node,
        rows: TableBuilder::new(&GPUS),
        process_rows: TableBuilder::new(&PROCESSES),
    }))
}

struct Gpus {
    drivers: Vec<Worker<Request, Reading>>,
    host: Host,
    node: bool,
    rows: TableBuilder<GpuKey, GpuRow>,
    process_rows: TableBuilder<ProcessKey, GpuProcessRow>,
}

/// How long the end of a run waits for the last reading of a driver.
const TIMEOUT: Duration = Duration::from_secs(1);

impl Source for Gpus {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let mut owners = Owners::new(&self.host, at, self.node);
        let mut result = Ok(());
        let mut failed = |error: anyhow::Error| result = Err(error);
        for driver in &mut self.drivers {
            let deadline = Instant::now() + TIMEOUT;
            let pids = owners.pids();
            let mut take = |reading: Option<Reading>| {
                let Some(reading) = reading else { return };
                for (key, row) in reading.gpus {
                    self.rows.push(key, row);
                }
                for usage in reading.processes {
                    let Some(id) = owners.of(usage.pid, reading.read_at) else {
                        continue;
                    };
                    let mut key = super::process_key_of(at, id, None, usage.interval_ns);
                    key.ts = reading.ts;
                    self.process_rows.push(key, usage.row);
                }
                if let Some(error) = reading.error {
                    failed(anyhow!(error));
                }
            };
            let left = || {
                if at.last {
                    deadline.saturating_duration_since(Instant::now())
                } else {
                    Duration::ZERO
                }
            };
            take(driver.take(left()));
            let request = Request {
                tick: at.tick,
                pids,
            };
            let asked = driver.ask(request);
            if at.last && asked.is_ok() {
                take(driver.take(left()));
            }
            if let Err(error) = asked {
                failed(error);
            }
        }
        self.rows.finish(out);
        self.process_rows.finish(out);
        result
    }
}

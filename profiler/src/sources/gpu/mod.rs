//! `gpu`: utilization, memory, clocks, power and links of each GPU, and use by each process.
//!
//! NVIDIA GPUs are read through NVML, GPUs of AMD and Intel through sysfs and the fdinfo of DRM
//! clients. Each driver is read in a separate thread, because an answer can take milliseconds or
//! never come.

mod device;
mod drm;
mod numbering;
mod nvidia;
mod owners;
mod reading;
mod variables;
mod visible;

use std::{
    ffi::OsStr,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};

use super::{OpenContext, Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::Host,
    schema::{Batch, Label, ProcessKey, TableBuilder, Timestamp, TypedTable},
    support::worker::Worker,
};

use self::{
    device::{DEVICES, DeviceKey, DeviceRow},
    owners::Owners,
    reading::{Reading, Request},
    visible::TargetGpus,
};

columns! {
    /// GPU and time of a row.
    pub struct GpuKey {
        ts: Timestamp = Label("us", "Wall clock of the sample that started the reading, from one monotonic→realtime offset per run"),
        interval_ns: u64 = Gauge("ns", "Time this row covers"),
        index: Option<u32> = Label("", "Number of the GPU in nvidia-smi, or N of /sys/class/drm/cardN; null for a MIG instance"),
        uuid: Option<Label> = Label("", "UUID of the GPU or MIG instance (NVIDIA), unique_id (AMD); null if the driver has none"),
        vendor: Label = Label("", "Vendor: nvidia, amd, intel"),
        driver: Label = Label("", "Driver: nvidia, amdgpu, i915, xe …"),
        name: Option<Label> = Label("", "Product name"),
        bdf: Option<Label> = Label("", "PCI address: domain:bus:device.function, as in /sys/bus/pci/devices"),
        parent_uuid: Option<Label> = Label("", "UUID of the GPU of a MIG instance, whose row includes the instance; null for a GPU"),
        gpu_instance: Option<u32> = Label("", "GPU instance id of a MIG instance"),
        compute_instance: Option<u32> = Label("", "Compute instance id of a MIG instance"),
    }
}

columns! {
    /// One GPU over one interval; values that its driver does not report are null.
    #[derive(Default)]
    pub struct GpuRow {
        utilization: Option<u64> = Gauge("%", "Share of the driver's last sampling period in which a kernel ran (NVML utilization.gpu, gpu_busy_percent)"),
        memory_utilization: Option<u64> = Gauge("%", "Share of the driver's last sampling period in which device memory was read or written"),
        encoder_utilization: Option<u64> = Gauge("%", "Utilization of the video encoder"),
        decoder_utilization: Option<u64> = Gauge("%", "Utilization of the video decoder"),
        media_utilization: Option<u64> = Gauge("%", "Utilization of the video engine for encoding and decoding (AMD)"),
        memory_total: Option<u64> = Gauge("bytes", "Size of the device memory"),
        memory_used: Option<u64> = Gauge("bytes", "Device memory in use, without the part reserved by the driver"),
        system_memory_used: Option<u64> = Gauge("bytes", "Memory of the node used by the GPU (GTT of AMD)"),
        bar1_used: Option<u64> = Gauge("bytes", "Device memory mapped into the PCI address space through BAR1 (NVIDIA)"),
        processes: Option<u64> = Gauge("1", "Processes that compute on the GPU, also those outside the target (NVIDIA)"),
        graphics_clock_hz: Option<u64> = Gauge("Hz", "Clock of the graphics engine (NVIDIA)"),
        sm_clock_hz: Option<u64> = Gauge("Hz", "Clock of the shader cores (SM, GFX, GT)"),
        memory_clock_hz: Option<u64> = Gauge("Hz", "Clock of the device memory"),
        video_clock_hz: Option<u64> = Gauge("Hz", "Clock of the video engines (AMD: VCLK)"),
        decoder_clock_hz: Option<u64> = Gauge("Hz", "Clock of the video decoder (AMD: DCLK)"),
        soc_clock_hz: Option<u64> = Gauge("Hz", "Clock of the interconnect on the chip (AMD: SOCCLK)"),
        pstate: Option<u64> = Gauge("1", "P-state; 0 is the fastest (NVIDIA)"),
        power_w: Option<f64> = Gauge("W", "Power reported by the driver; a mean over one second on NVIDIA GPUs since Ampere"),
        power_limit_w: Option<f64> = Gauge("W", "Enforced power limit"),
        energy_uj: Option<u64> = Counter("µJ", "Energy used; in steps of 1 mJ with NVML"),
        temperature: Option<u64> = Gauge("°C", "Temperature of the GPU (AMD: edge sensor, otherwise junction)"),
        hotspot_temperature: Option<u64> = Gauge("°C", "Highest temperature on the chip (AMD: junction)"),
        memory_temperature: Option<u64> = Gauge("°C", "Temperature of the device memory"),
        hbm_temperature: Option<u64> = Gauge("°C", "Temperature of the hottest HBM stack (AMD)"),
        vr_gfx_temperature: Option<u64> = Gauge("°C", "Temperature of the voltage regulator of the shader cores (AMD)"),
        vr_soc_temperature: Option<u64> = Gauge("°C", "Temperature of the voltage regulator of the rest of the chip (AMD)"),
        vr_memory_temperature: Option<u64> = Gauge("°C", "Temperature of the voltage regulator of the memory (AMD)"),
        fan_percent: Option<u64> = Gauge("%", "Intended speed of the fastest fan"),
        fan_rpm: Option<u64> = Gauge("1/min", "Speed of the first fan"),
        pcie_tx_bytes: Option<u64> = Counter("bytes", "Bytes sent by the GPU over PCIe, with the headers of packets (NVIDIA); null if the counter of the driver may have wrapped more than once and there is no rate either"),
        pcie_rx_bytes: Option<u64> = Counter("bytes", "Bytes received by the GPU over PCIe, with the headers of packets (NVIDIA); null as in pcie_tx_bytes"),
        pcie_replays: Option<u64> = Counter("1", "Retransmitted PCIe packets"),
        pcie_generation: Option<u64> = Gauge("1", "Current PCIe generation of the link"),
        pcie_width: Option<u64> = Gauge("1", "Current number of PCIe lanes of the link"),
        nvlink_tx_bytes: Option<u64> = Counter("bytes", "Payload bytes sent over all NVLinks, in steps of 1 KiB"),
        nvlink_rx_bytes: Option<u64> = Counter("bytes", "Payload bytes received over all NVLinks, in steps of 1 KiB"),
        ecc_corrected: Option<u64> = Counter("1", "Corrected memory errors"),
        ecc_uncorrected: Option<u64> = Counter("1", "Uncorrected memory errors"),
        ecc_corrected_total: Option<u64> = Gauge("1", "Corrected memory errors over the lifetime of the GPU (NVIDIA)"),
        ecc_uncorrected_total: Option<u64> = Gauge("1", "Uncorrected memory errors over the lifetime of the GPU (NVIDIA)"),
        throttle_reasons: Option<Label> = Gauge("", "Reasons for reduced clocks at the sample, joined by +: gpu_idle, sw_power_cap, hw_slowdown …, or none; on AMD GPUs, names of throttlers in the kernel"),
        power_violation_ns: Option<u64> = Counter("ns", "Time with clocks reduced by the power limit"),
        thermal_violation_ns: Option<u64> = Counter("ns", "Time with clocks reduced because of the temperature"),
        board_limit_violation_ns: Option<u64> = Counter("ns", "Time with clocks reduced by a limit of the board"),
        reliability_violation_ns: Option<u64> = Counter("ns", "Time with clocks reduced by the reliability limit of the voltage"),
        sync_boost_violation_ns: Option<u64> = Counter("ns", "Time with clocks reduced to those of the slowest GPU of a synchronized group"),
        low_utilization_violation_ns: Option<u64> = Counter("ns", "Time with clocks reduced because of low utilization"),
        application_clocks_violation_ns: Option<u64> = Counter("ns", "Time with clocks below the application clocks, for any reason (NVML TOTAL_APP_CLOCKS)"),
        base_clocks_violation_ns: Option<u64> = Counter("ns", "Time with clocks below the base clocks, for any reason (NVML TOTAL_BASE_CLOCKS)"),
        sm_activity_percent: Option<f64> = Gauge("%", "Share of SMs with a warp, mean over the interval (GPM: Hopper and later); also for MIG instances"),
        sm_occupancy_percent: Option<f64> = Gauge("%", "Resident warps per SM as a share of the maximum, mean over the interval (GPM)"),
        tensor_activity_percent: Option<f64> = Gauge("%", "Share of the interval in which tensor cores were active, mean of all SMs (GPM)"),
        dram_activity_percent: Option<f64> = Gauge("%", "Used share of the device memory bandwidth, mean over the interval (GPM)"),
        fp64_activity_percent: Option<f64> = Gauge("%", "Share of the interval in which FP64 pipes were active, without tensor cores (GPM)"),
        fp32_activity_percent: Option<f64> = Gauge("%", "Share of the interval in which FP32 pipes were active (GPM)"),
        fp16_activity_percent: Option<f64> = Gauge("%", "Share of the interval in which FP16 pipes were active, without tensor cores (GPM)"),
    }
}

columns! {
    /// Use of one GPU by one process over one interval; values that the driver does not report are
    /// null.
    #[derive(Default)]
    pub struct GpuProcessRow {
        index: Option<u32> = Label("", "Number of the GPU, or of the GPU of a MIG instance, as in table gpu"),
        uuid: Option<Label> = Label("", "UUID of the GPU or MIG instance, as in table gpu"),
        bdf: Option<Label> = Label("", "PCI address of the GPU, as in table gpu"),
        driver: Option<Label> = Label("", "Driver: nvidia, amdgpu, i915, xe …"),
        gpu_instance: Option<u32> = Label("", "GPU instance id of a MIG instance"),
        compute_instance: Option<u32> = Label("", "Compute instance id of a MIG instance"),
        sm_utilization: Option<u64> = Gauge("%", "Share of the SMs used by the process, mean of the driver's samples in the interval; null without samples (NVML)"),
        memory_utilization: Option<u64> = Gauge("%", "Share of the device memory bandwidth used by the process, mean of the driver's samples in the interval; null without samples (NVML)"),
        encoder_utilization: Option<u64> = Gauge("%", "Share of the video encoder used by the process, mean of the driver's samples in the interval; null without samples (NVML)"),
        decoder_utilization: Option<u64> = Gauge("%", "Share of the video decoder used by the process, mean of the driver's samples in the interval; null without samples (NVML)"),
        memory_used: Option<u64> = Gauge("bytes", "Device memory held by the process; memory shared by clients is counted for each"),
        system_memory_used: Option<u64> = Gauge("bytes", "Memory of the node held by the process for the GPU (DRM: gtt, system)"),
        render_ns: Option<u64> = Counter("ns", "Time of graphics engines (DRM: gfx, render, rcs; on AMD GPUs also compute of old APIs)"),
        compute_ns: Option<u64> = Counter("ns", "Time of compute engines (DRM: compute, ccs), without ROCm, whose queues bypass the DRM driver"),
        copy_ns: Option<u64> = Counter("ns", "Time of copy engines (DRM: dma, copy, bcs)"),
        video_ns: Option<u64> = Counter("ns", "Time of video engines (DRM: enc, dec, jpeg, video, vcs …)"),
        engines_ns: Option<u64> = Counter("ns", "Time of all engines (DRM); exceeds the interval if several are active at once"),
    }
}

pub static GPUS: TypedTable<GpuKey, GpuRow> = TypedTable::new(
    "gpu",
    "One row per sample and GPU or MIG instance, if the reading has ended: fewer rows if the driver is slower than the interval",
);

static PROCESSES: TypedTable<ProcessKey, GpuProcessRow> = TypedTable::new(
    "gpu_process",
    "One row per sample, process of the target and GPU or MIG instance that it uses",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "gpu",
    help: "utilization, memory, clocks, power and links of GPUs, and the processes on them",
    tables: &[GPUS.untyped(), PROCESSES.untyped(), DEVICES.untyped()],
    probe: Some(|host| support(host, OsStr::new(nvidia::LIBRARY))),
    has_hardware: |host| nvidia::has_gpu(&host.sysfs) || !drm::cards(host).is_empty(),
    open: |context| open(context, OsStr::new(nvidia::LIBRARY)),
    ..SourceSpec::DEFAULT
};

/// How far the drivers of this machine can be read; `library` is NVML.
pub fn support(host: &Host, library: &OsStr) -> Support {
    let drm = !drm::cards(host).is_empty();
    match nvidia::load(host, library) {
        Ok(_) => Support::Ok,
        Err(absent) if drm && !absent.has_gpu => Support::Ok,
        Err(absent) if drm => Support::Limited {
            why: absent.why,
            remedy: absent.remedy,
        },
        Err(absent) => Support::Unavailable {
            why: absent.why,
            remedy: absent.remedy,
        },
    }
}

/// Opens the drivers of this machine; `library` is NVML.
///
/// # Errors
///
/// When there are none.
pub fn open(context: &OpenContext<'_>, library: &OsStr) -> Result<Box<dyn Source>> {
    let host = context.host;
    let mut drivers = Vec::new();
    let nvidia = nvidia::load(host, library);
    if let Ok(nvml) = nvidia {
        // The driver reports the pids of the node, which are not those of another namespace.
        let knows_pids = host.init_pid_namespace == Some(true);
        let visible = TargetGpus::new(host, context.node);
        let driver = move || {
            let mut nvidia = nvidia::Nvidia::open(nvml, visible, knows_pids);
            move |request: Request| nvidia.read(&request)
        };
        drivers.push(Worker::start("nvidia", driver)?);
    }
    if !drm::cards(host).is_empty() {
        let own = host.clone();
        let visible = TargetGpus::new(host, context.node);
        let driver = move || {
            let mut drm = drm::Drm::open(&own, visible);
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
        device_rows: TableBuilder::new(&DEVICES),
    }))
}

struct Gpus {
    drivers: Vec<Worker<Request, Reading>>,
    host: Host,
    node: bool,
    rows: TableBuilder<GpuKey, GpuRow>,
    process_rows: TableBuilder<ProcessKey, GpuProcessRow>,
    device_rows: TableBuilder<DeviceKey, DeviceRow>,
}

/// How long the last sample waits for the reading of a driver.
const TIMEOUT: Duration = Duration::from_secs(1);

impl Source for Gpus {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let mut owners = Owners::new(&self.host, ctx, self.node);
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
                for (key, row) in reading.devices {
                    self.device_rows.push(key, row);
                }
                for usage in reading.processes {
                    let Some(id) = owners.of(usage.pid, reading.read_at) else {
                        continue;
                    };
                    let mut key = ctx.key_of_process(id, None, usage.interval_ns);
                    key.ts = reading.ts;
                    self.process_rows.push(key, usage.row);
                }
                if let Some(error) = reading.error {
                    failed(anyhow!(error));
                }
            };
            let left = || {
                if ctx.last {
                    deadline.saturating_duration_since(Instant::now())
                } else {
                    Duration::ZERO
                }
            };
            take(driver.take(left()));
            let request = Request {
                tick: ctx.tick,
                pids,
            };
            let asked = driver.ask(request);
            if ctx.last && asked.is_ok() {
                take(driver.take(left()));
            }
            if let Err(error) = asked {
                failed(error);
            }
        }
        self.rows.finish(out);
        self.process_rows.finish(out);
        self.device_rows.finish(out);
        result
    }
}

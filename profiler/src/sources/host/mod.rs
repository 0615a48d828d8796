//! The machine: what it is made of, how it is set up, and what the batch system said. One row per run.

mod devices;
mod environment;
mod processor;
mod secrets;
mod software;
mod topology;

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel},
    thread,
    time::Duration,
};

use anyhow::{Result, anyhow};
use serde::Serialize;

use super::{Context, Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::Host,
    procfs::{
        meminfo::MemInfo,
        mounts::{NodeMounts, Numbered},
    },
    schema::{Batch, Label, Table, TableBuilder, Timestamp},
};

/// How long the end of a run waits for facts that are still being read.
const TIMEOUT: Duration = Duration::from_secs(2);

columns! {
    /// A run has one row here, and no interval.
    pub struct RunKey {
        ts: Timestamp = Label("ns", "Wall clock of the tick at which the facts were there, usually the first"),
    }
}

columns! {
    /// The machine of one run.
    pub struct HostRow {
        architecture: Option<String> = Label("", "Architecture of the kernel, as in `uname -m`"),
        system_vendor: Option<String> = Label("", "Maker of the machine (DMI)"),
        system_product: Option<String> = Label("", "Product name of the machine (DMI, or the model of the device tree)"),
        hypervisor: Option<String> = Label("", "What runs this virtual machine, `unknown` where only that it is one is known; null on bare metal"),
        cpu_vendor: Option<String> = Label("", "Maker of the CPU, as the CPU says (`/proc/cpuinfo`) or as its microarchitecture is known"),
        cpu_model_name: Option<String> = Label("", "Name of the CPU (`/proc/cpuinfo`); null on arm64"),
        cpu_family: Option<u32> = Label("", "Family of an x86 CPU (`/proc/cpuinfo`)"),
        cpu_model: Option<u32> = Label("", "Model number of an x86 CPU (`/proc/cpuinfo`)"),
        cpu_stepping: Option<u32> = Label("", "Stepping of an x86 CPU (`/proc/cpuinfo`)"),
        cpu_implementer: Option<u32> = Label("", "Implementer of an arm64 CPU (`MIDR_EL1`, bits 31-24)"),
        cpu_variant: Option<u32> = Label("", "Variant of an arm64 CPU (`MIDR_EL1`, bits 23-20)"),
        cpu_part: Option<u32> = Label("", "Part of an arm64 CPU (`MIDR_EL1`, bits 15-4)"),
        cpu_revision: Option<u32> = Label("", "Revision of an arm64 CPU (`MIDR_EL1`, bits 3-0)"),
        cpu_pvr: Option<u32> = Label("", "Processor version register of a POWER CPU (`/proc/cpuinfo`)"),
        microarchitecture: Option<String> = Label("", "Name of the microarchitecture; joined by ` + ` where there are several kinds of cores, by ` or ` where it cannot be told; null when unknown"),
        microcode: Option<String> = Label("", "Revision of the microcode (`/proc/cpuinfo`)"),
        cpu_flags: Option<String> = Label("", "Features of the CPU, separated by spaces (`/proc/cpuinfo`)"),
        sockets: Option<u32> = Label("1", "Processor packages with an online CPU (sysfs topology)"),
        cores: Option<u32> = Label("1", "Cores with an online CPU (sysfs topology)"),
        threads: Option<u32> = Label("1", "Online CPUs, that is hardware threads (sysfs)"),
        possible_cpus: u32 = Label("1", "CPUs that the kernel has made room for (sysfs)"),
        smt: Option<bool> = Label("", "Whether cores run several threads (sysfs `cpu/smt/active`)"),
        base_frequency: Option<u64> = Label("Hz", "Frequency without turbo of CPU 0 (sysfs `cpufreq/base_frequency`, `acpi_cppc/nominal_freq`)"),
        min_frequency: Option<u64> = Label("Hz", "Least frequency of any CPU (sysfs `cpufreq/cpuinfo_min_freq`)"),
        max_frequency: Option<u64> = Label("Hz", "Greatest frequency of any CPU (sysfs `cpufreq/cpuinfo_max_freq`)"),
        cpufreq_driver: Option<String> = Label("", "Driver that sets frequencies (sysfs `cpufreq/scaling_driver`)"),
        cpufreq_governor: Option<String> = Label("", "Policy by which it sets them (sysfs `cpufreq/scaling_governor`)"),
        caches: Option<String> = Label("", "JSON list: each cache once, with level, type, size and line in bytes, ways, and the CPUs that share it (sysfs)"),
        numa_nodes: Option<u32> = Label("1", "NUMA nodes that are online (sysfs)"),
        numa: Option<String> = Label("", "JSON list: each NUMA node with its CPUs, memory in bytes and distances (sysfs)"),
        memory_total: Option<u64> = Label("bytes", "Memory without what the kernel reserved at boot (`/proc/meminfo MemTotal`)"),
        page_size: u64 = Label("bytes", "Size of a page"),
        transparent_hugepages: Option<String> = Label("", "When anonymous memory gets huge pages: `always`, `madvise` or `never` (sysfs)"),
        kernel_release: Option<String> = Label("", "Release of the kernel, as in `uname -r`"),
        kernel_version: Option<String> = Label("", "Build of the kernel, as in `uname -v`"),
        kernel_cmdline: Option<String> = Label("", "Parameters the kernel was booted with, without passwords and keys (`/proc/cmdline`)"),
        distribution: Option<String> = Label("", "Name and version of the distribution (`os-release PRETTY_NAME`)"),
        distribution_id: Option<String> = Label("", "Short name of the distribution (`os-release ID`)"),
        distribution_version: Option<String> = Label("", "Version of the distribution (`os-release VERSION_ID`)"),
        btf: bool = Label("", "Whether the kernel carries type information, which BPF programs need"),
        lockdown: Label = Label("", "Lockdown mode of the kernel: `none`, `integrity` or `confidentiality`"),
        psi: bool = Label("", "Whether the kernel has pressure stall information, switched on"),
        perf_event_paranoid: Option<i64> = Label("", "What unprivileged users may measure (`kernel.perf_event_paranoid`)"),
        mitigations: Option<String> = Label("", "JSON object: hardware vulnerabilities and what the kernel does about them (sysfs `cpu/vulnerabilities`)"),
        clocksource: Option<String> = Label("", "What the kernel reads the time from (sysfs)"),
        cgroup_mode: Option<Label> = Label("", "Version of control groups: `v1`, `hybrid` or `v2`; null when none is mounted"),
        boot_id: Option<String> = Label("", "Changes at each boot (`kernel.random.boot_id`)"),
        pmus: String = Label("", "JSON list: performance monitoring units with perf type and the CPUs they are opened on (sysfs)"),
        mounts: String = Label("", "JSON list: mounts with device, mount point, type and options (`mountinfo`)"),
        nics: String = Label("", "JSON list: network interfaces with driver, speed in Mbit/s, MTU, state and NUMA node (sysfs)"),
        block_devices: String = Label("", "JSON list: block devices with model, size in bytes, whether they rotate, and I/O scheduler (sysfs)"),
        gpus: String = Label("", "JSON list: GPUs and other accelerators on PCI with vendor, device, driver and NUMA node (sysfs)"),
        environment: String = Label("", "JSON object: variables of the batch system, OpenMP, MPI and GPU selection; no secrets, no others"),
    }
}

static TABLE: Table = Table::new::<RunKey, HostRow>(
    "host",
    "The machine of a run: one row, written at the first tick",
);

/// The entry of the registry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "host",
    help: "hardware and software of the node, once per run",
    tables: &[&TABLE],
    probe: |_| Support::Works,
    tasks: false,
    procfs: false,
    instrumentation: None,
    default: true,
    open: |context: &Context<'_>| Ok(Box::new(Facts::open(context.host))),
};

/// Reads beside the loop: a driver may take its time to tell the speed of a link.
struct Facts {
    reading: Option<Receiver<HostRow>>,
    rows: TableBuilder<RunKey, HostRow>,
}

impl Facts {
    fn open(host: &Host) -> Self {
        let (sender, reading) = channel();
        let host = host.clone();
        let read = move || {
            // The run may have ended; then nobody waits for the row.
            let _ = sender.send(read(&host, std::env::vars_os()));
        };
        // Without a thread `read` is dropped, its sender with it, and the first reading says so.
        let _ = thread::Builder::new().name("host".to_owned()).spawn(read);
        Self {
            reading: Some(reading),
            rows: TableBuilder::new(&TABLE),
        }
    }
}

impl Source for Facts {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let Some(reading) = &self.reading else {
            return Ok(());
        };
        let mut row = reading.try_recv();
        if at.last && matches!(row, Err(TryRecvError::Empty)) {
            row = match reading.recv_timeout(TIMEOUT) {
                Ok(row) => Ok(row),
                Err(RecvTimeoutError::Timeout) => Err(TryRecvError::Empty),
                Err(RecvTimeoutError::Disconnected) => Err(TryRecvError::Disconnected),
            };
        }
        match row {
            Ok(row) => {
                self.reading = None;
                self.rows.push(RunKey { ts: at.tick.ts }, row);
                self.rows.finish(out);
                Ok(())
            }
            Err(TryRecvError::Empty) if at.last => Err(anyhow!(
                "a device has not answered: no facts about this host"
            )),
            Err(TryRecvError::Empty) => Ok(()),
            Err(TryRecvError::Disconnected) => {
                self.reading = None;
                Err(anyhow!("reading the facts about this host failed"))
            }
        }
    }
}

/// Everything about the machine; what cannot be read is null.
fn read(
    host: &Host,
    environment: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
) -> HostRow {
    let cpu = processor::Processor::read(host);
    let counts = topology::Counts::read(&host.sysfs);
    let numa = topology::numa(&host.sysfs);
    let caches = topology::caches(&host.sysfs);
    let software = software::Software::read(host, cpu.says_it_is_virtual());
    let meminfo = std::fs::read(host.procfs.join("meminfo"));
    let meminfo = meminfo.map_or_else(|_| MemInfo::default(), |text| MemInfo::parse(&text));
    HostRow {
        architecture: software.architecture,
        system_vendor: software.system_vendor,
        system_product: software.system_product,
        hypervisor: software.hypervisor,
        cpu_vendor: cpu.vendor,
        cpu_model_name: cpu.model_name,
        cpu_family: cpu.family,
        cpu_model: cpu.model,
        cpu_stepping: cpu.stepping,
        cpu_implementer: cpu.midr.map(|midr| midr >> 24),
        cpu_variant: cpu.midr.map(|midr| midr >> 20 & 0xf),
        cpu_part: cpu.midr.map(|midr| midr >> 4 & 0xfff),
        cpu_revision: cpu.midr.map(|midr| midr & 0xf),
        cpu_pvr: cpu.pvr,
        microarchitecture: cpu.microarchitecture,
        microcode: cpu.microcode,
        cpu_flags: cpu.flags,
        sockets: counts.sockets,
        cores: counts.cores,
        threads: counts.threads,
        possible_cpus: u32::try_from(host.possible_cpus).unwrap_or(u32::MAX),
        smt: counts.smt,
        base_frequency: cpu.base_frequency,
        min_frequency: cpu.min_frequency,
        max_frequency: cpu.max_frequency,
        cpufreq_driver: cpu.cpufreq_driver,
        cpufreq_governor: cpu.cpufreq_governor,
        caches: (!caches.is_empty()).then(|| json(&caches)),
        numa_nodes: u32::try_from(numa.len()).ok().filter(|&nodes| nodes > 0),
        numa: (!numa.is_empty()).then(|| json(&numa)),
        memory_total: meminfo.total,
        page_size: host.page_size,
        transparent_hugepages: software.transparent_hugepages,
        kernel_release: host.kernel_release.clone(),
        kernel_version: software.kernel_version,
        kernel_cmdline: software.kernel_cmdline,
        distribution: software.distribution.name,
        distribution_id: software.distribution.id,
        distribution_version: software.distribution.version,
        btf: host.btf.is_some(),
        lockdown: host.lockdown.as_str().into(),
        psi: host.psi,
        perf_event_paranoid: host.perf_event_paranoid,
        mitigations: (!software.mitigations.is_empty()).then(|| json(&software.mitigations)),
        clocksource: software.clocksource,
        cgroup_mode: host.cgroups.mode().map(Into::into),
        boot_id: host.boot_id.clone(),
        pmus: json(&devices::pmus(&host.sysfs)),
        mounts: json(&mounted(host)),
        nics: json(&devices::nics(&host.sysfs)),
        block_devices: json(&devices::block_devices(&host.sysfs)),
        gpus: json(&devices::gpus(&host.sysfs)),
        environment: json(&environment::allowed(environment)),
    }
}

/// One mount in the JSON list.
#[derive(Serialize)]
struct MountJson {
    device: Option<String>,
    mount_point: String,
    fstype: String,
    options: String,
}

fn mounted(host: &Host) -> Vec<MountJson> {
    let all = NodeMounts::new(&host.procfs).all().into_iter();
    all.map(|Numbered { mount, .. }| MountJson {
        device: mount.source.map(|source| secrets::hidden(&source)),
        mount_point: mount.mount_point,
        fstype: mount.fstype,
        options: secrets::hidden(&mount.options.join(",")),
    })
    .collect()
}

/// The text of a list or an object, which has nothing in it that JSON could not say.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("{:?}", error.to_string()))
}

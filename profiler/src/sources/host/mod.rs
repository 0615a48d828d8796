//! `host`: hardware, configuration and batch environment of the node, once per run.

mod addresses;
mod devices;
mod environment;
mod processor;
mod secrets;
mod software;
mod topology;

use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;

pub(crate) use self::topology::{Cache, caches};
use super::{Source, SourceSpec, TickContext};
use crate::{
    columns,
    host::{Host, text},
    procfs::{
        meminfo::MemInfo,
        mounts::{NodeMounts, Numbered},
    },
    schema::{Batch, Label, TableBuilder, Timestamp, TypedTable},
    support::worker::Worker,
};

/// How long the last sample waits for facts that are still being read.
const TIMEOUT: Duration = Duration::from_secs(2);

columns! {
    /// Key of the only row of a run, which has no interval.
    pub struct RunKey {
        ts: Timestamp = Label("us", "Wall clock of the sample at which the facts were available, usually the first"),
    }
}

columns! {
    /// The node of one run.
    pub struct HostRow {
        architecture: Option<String> = Label("", "Architecture of the kernel, as in `uname -m`"),
        system_vendor: Option<String> = Label("", "Manufacturer of the machine (DMI)"),
        system_product: Option<String> = Label("", "Product name of the machine (DMI, or the model of the device tree)"),
        hypervisor: Option<String> = Label("", "Hypervisor of this virtual machine; `unknown` if it cannot be identified, null on bare metal"),
        cpu_vendor: Option<String> = Label("", "Vendor of the CPU (`/proc/cpuinfo`), or of its microarchitecture"),
        cpu_model_name: Option<String> = Label("", "Name of the CPU (`/proc/cpuinfo`); null on arm64"),
        cpu_family: Option<u32> = Label("", "Family of an x86 CPU (`/proc/cpuinfo`)"),
        cpu_model: Option<u32> = Label("", "Model number of an x86 CPU (`/proc/cpuinfo`)"),
        cpu_stepping: Option<u32> = Label("", "Stepping of an x86 CPU (`/proc/cpuinfo`)"),
        cpu_implementer: Option<u32> = Label("", "Implementer of an arm64 CPU (`MIDR_EL1`, bits 31-24)"),
        cpu_variant: Option<u32> = Label("", "Variant of an arm64 CPU (`MIDR_EL1`, bits 23-20)"),
        cpu_part: Option<u32> = Label("", "Part of an arm64 CPU (`MIDR_EL1`, bits 15-4)"),
        cpu_revision: Option<u32> = Label("", "Revision of an arm64 CPU (`MIDR_EL1`, bits 3-0)"),
        cpu_pvr: Option<u32> = Label("", "Processor version register of a POWER CPU (`/proc/cpuinfo`)"),
        microarchitecture: Option<String> = Label("", "Name of the microarchitecture: ` + ` joins those of several kinds of cores, ` or ` those that cannot be distinguished; null if unknown"),
        microcode: Option<String> = Label("", "Revision of the microcode (`/proc/cpuinfo`)"),
        cpu_op_modes: Option<String> = Label("", "Word sizes of programs that an x86 CPU runs: `32-bit, 64-bit`, as in lscpu"),
        byte_order: Label = Label("", "Byte order: `Little Endian` or `Big Endian`, as in lscpu"),
        address_sizes: Option<String> = Label("", "Address sizes of an x86 CPU: `46 bits physical, 48 bits virtual` (`/proc/cpuinfo`)"),
        bogomips: Option<f64> = Label("", "Speed of the delay loop of the first CPU (`/proc/cpuinfo`); not a measure of performance"),
        cpu_flags: Option<String> = Label("", "Features of the CPU, separated by spaces (`/proc/cpuinfo`)"),
        sockets: Option<u32> = Label("1", "Processor packages with an online CPU (sysfs topology)"),
        cores: Option<u32> = Label("1", "Cores with an online CPU (sysfs topology)"),
        threads: Option<u32> = Label("1", "Online CPUs, which are hardware threads (sysfs)"),
        online_cpus: Option<String> = Label("", "List of online CPUs (sysfs)"),
        offline_cpus: Option<String> = Label("", "List of present CPUs that are offline; null if there are none (sysfs)"),
        cores_per_socket: Option<u32> = Label("1", "Cores of each processor package; null if packages differ"),
        threads_per_core: Option<u32> = Label("1", "Hardware threads of each core; null if cores differ"),
        possible_cpus: u32 = Label("1", "Possible CPUs, including those that can be hot-plugged (sysfs)"),
        smt: Option<bool> = Label("", "Whether cores have several hardware threads (sysfs `cpu/smt/active`)"),
        base_frequency_hz: Option<u64> = Label("Hz", "Frequency of CPU 0 without turbo (sysfs `cpufreq/base_frequency`, `acpi_cppc/nominal_freq`)"),
        min_frequency_hz: Option<u64> = Label("Hz", "Lowest frequency of any CPU (sysfs `cpufreq/cpuinfo_min_freq`)"),
        max_frequency_hz: Option<u64> = Label("Hz", "Highest frequency of any CPU (sysfs `cpufreq/cpuinfo_max_freq`)"),
        cpufreq_driver: Option<String> = Label("", "Driver that sets the frequencies (sysfs `cpufreq/scaling_driver`)"),
        cpufreq_governor: Option<String> = Label("", "Policy by which the driver sets the frequencies (sysfs `cpufreq/scaling_governor`)"),
        caches: Option<String> = Label("", "JSON list of caches, with level, type, size and line in bytes, ways, and the CPUs that share the cache (sysfs)"),
        numa_nodes: Option<u32> = Label("1", "Online NUMA nodes (sysfs)"),
        numa: Option<String> = Label("", "JSON list of NUMA nodes, with CPUs, memory in bytes and distances (sysfs)"),
        memory_total: Option<u64> = Label("bytes", "Memory, without the part reserved by the kernel at boot (`/proc/meminfo MemTotal`)"),
        page_size: u64 = Label("bytes", "Size of a page"),
        transparent_hugepages: Option<String> = Label("", "Policy for huge pages in anonymous memory: `always`, `madvise` or `never` (sysfs)"),
        kernel_release: Option<String> = Label("", "Release of the kernel, as in `uname -r`"),
        kernel_version: Option<String> = Label("", "Build of the kernel, as in `uname -v`"),
        kernel_cmdline: Option<String> = Label("", "Boot parameters of the kernel, without passwords and keys (`/proc/cmdline`)"),
        distribution: Option<String> = Label("", "Name and version of the distribution (`os-release PRETTY_NAME`)"),
        distribution_id: Option<String> = Label("", "Short name of the distribution (`os-release ID`)"),
        distribution_version: Option<String> = Label("", "Version of the distribution (`os-release VERSION_ID`)"),
        btf: bool = Label("", "Whether the kernel has BTF type information, which the BPF programs need"),
        lockdown: Option<String> = Label("", "Lockdown mode of the kernel: `none`, `integrity` or `confidentiality`; null if it cannot be read, as without securityfs"),
        psi: bool = Label("", "Whether pressure stall information is enabled"),
        perf_event_paranoid: Option<i64> = Label("", "Restriction of performance events for unprivileged users (`kernel.perf_event_paranoid`)"),
        mitigations: Option<String> = Label("", "JSON object of hardware vulnerabilities and their mitigations (sysfs `cpu/vulnerabilities`)"),
        clocksource: Option<String> = Label("", "Clock source of the kernel (sysfs)"),
        cgroup_mode: Option<Label> = Label("", "Version of control groups: `v1`, `hybrid` or `v2`; null if none is mounted"),
        boot_id: Option<String> = Label("", "Identifier of this boot (`kernel.random.boot_id`)"),
        pmus: String = Label("", "JSON list of performance monitoring units, with perf type and the CPUs on which they are opened (sysfs)"),
        mounts: String = Label("", "JSON list of mounts, with device, mount point, type and options (`mountinfo`)"),
        nics: String = Label("", "JSON list of network interfaces, with driver, speed in Mbit/s, MTU, state and NUMA node (sysfs), and addresses with family, netmask, broadcast address or peer"),
        block_devices: String = Label("", "JSON list of block devices, with model, size in bytes, whether they rotate, and I/O scheduler (sysfs)"),
        gpus: String = Label("", "JSON list of GPUs and other accelerators on PCI, with vendor, device, driver and NUMA node (sysfs)"),
        environment: String = Label("", "JSON object of environment variables: only those of the batch system, OpenMP, MPI and GPU selection, without secrets"),
    }
}

static TABLE: TypedTable<RunKey, HostRow> = TypedTable::new(
    "host",
    "One row per run: the node, written at the first sample",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "host",
    help: "hardware and software of the node, once per run",
    tables: &[TABLE.untyped()],
    open: |context| Ok(Box::new(Facts::open(context.host)?)),
    ..SourceSpec::DEFAULT
};

/// Reads the facts in a worker thread, because a driver may take long to report the speed of a
/// link.
struct Facts {
    worker: Option<Worker<(), HostRow>>,
    rows: TableBuilder<RunKey, HostRow>,
}

impl Facts {
    fn open(host: &Host) -> Result<Self> {
        let host = host.clone();
        let mut worker = Worker::start("host", || move |()| facts(&host))?;
        worker.ask(())?;
        Ok(Self {
            worker: Some(worker),
            rows: TableBuilder::new(&TABLE),
        })
    }
}

impl Source for Facts {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let Some(worker) = &mut self.worker else {
            return Ok(());
        };
        let timeout = if ctx.last { TIMEOUT } else { Duration::ZERO };
        if let Some(row) = worker.take(timeout) {
            self.worker = None;
            self.rows.push(RunKey { ts: ctx.tick.ts }, row);
            self.rows.finish(out);
        } else if worker.has_ended() {
            self.worker = None;
            bail!("reading the facts about this host failed");
        } else if ctx.last {
            bail!("a device has not answered: no facts about this host");
        }
        Ok(())
    }
}

/// The facts about this machine.
pub(crate) fn facts(host: &Host) -> HostRow {
    read(host, std::env::vars_os())
}

/// Reads all facts; those that cannot be read are null.
fn read(
    host: &Host,
    environment: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
) -> HostRow {
    let cpu = processor::Processor::read(host);
    let counts = topology::Counts::read(&host.sysfs);
    let numa = topology::numa(&host.sysfs);
    let caches = caches(&host.sysfs);
    let software = software::Software::read(host, cpu.is_virtual());
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
        cpu_op_modes: cpu.op_modes,
        byte_order: processor::BYTE_ORDER.into(),
        address_sizes: cpu.address_sizes,
        bogomips: cpu.bogomips,
        cpu_flags: cpu.flags,
        sockets: counts.sockets,
        cores: counts.cores,
        threads: counts.threads,
        online_cpus: text(&host.sysfs.join("devices/system/cpu/online")),
        offline_cpus: text(&host.sysfs.join("devices/system/cpu/offline"))
            .filter(|list| !list.is_empty()),
        cores_per_socket: counts.cores_per_socket,
        threads_per_core: counts.threads_per_core,
        possible_cpus: u32::try_from(host.possible_cpus).unwrap_or(u32::MAX),
        smt: counts.smt,
        base_frequency_hz: cpu.base_frequency,
        min_frequency_hz: cpu.min_frequency,
        max_frequency_hz: cpu.max_frequency,
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
        lockdown: host.lockdown.clone(),
        psi: host.psi,
        perf_event_paranoid: host.perf_event_paranoid,
        mitigations: (!software.mitigations.is_empty()).then(|| json(&software.mitigations)),
        clocksource: software.clocksource,
        cgroup_mode: host.cgroups.mode().map(Into::into),
        boot_id: host.boot_id.clone(),
        pmus: json(&devices::pmus(&host.sysfs)),
        mounts: json(&mounted(host)),
        nics: json(&devices::nics(&host.sysfs, addresses::read(&host.sysfs))),
        block_devices: json(&devices::block_devices(&host.sysfs)),
        gpus: json(&devices::gpus(&host.sysfs)),
        environment: json(&environment::allowed(environment)),
    }
}

/// A mount in the JSON list.
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
        device: mount
            .source
            .map(|source| secrets::hidden(&source.to_string_lossy())),
        mount_point: mount.mount_point.to_string_lossy().into_owned(),
        fstype: mount.fstype,
        options: secrets::hidden(&mount.options.join(",")),
    })
    .collect()
}

/// JSON text of a list or an object.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("{:?}", error.to_string()))
}

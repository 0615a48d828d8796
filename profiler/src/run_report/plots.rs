//! The plots over time.

use crate::{
    analysis::{
        catalog::{self, figures},
        figure::{
            Condition::{self, Is, IsNot, IsNull, Zero},
            Figure, OverRows, OverTime, Unit, Value,
        },
    },
    charts::Scale,
};

const ALL: &[&str] = catalog::ALL;
const METRIC: Value = Value::Column("value");
const SHARE: Value = Value::Scaled(100.0, &METRIC);
/// Rows of the target or, if all CPUs are counted, of the node.
const TARGET_OR_NODE: Condition = Condition::IsOneOf("scope", &["target", "node"]);

figures! {
    /// Of the node and the target, besides those of summaries.
    PLOTTED {
        node_user: Percent, "system", Value::Scaled(100.0, &Value::Ratio(catalog::USER, ALL)), &[], over_time: OverTime::Mean;
            "Share of user mode in the time of all CPUs";
        node_system: Percent, "system", Value::Scaled(100.0, &Value::Ratio(&["system_ns", "irq_ns", "softirq_ns"], ALL)), &[], over_time: OverTime::Mean;
            "Share of the kernel in the time of all CPUs";
        node_iowait: Percent, "system", Value::Scaled(100.0, &Value::Ratio(&["iowait_ns"], ALL)), &[], over_time: OverTime::Mean;
            "Share of idle time with outstanding I/O";
        node_steal: Percent, "system", Value::Scaled(100.0, &Value::Ratio(&["steal_ns"], ALL)), &[], over_time: OverTime::Mean;
            "Share in which the hypervisor ran something else";
        pss: Bytes, "timeline", Value::Column("target_pss_sum"), &[], over_time: OverTime::Max;
            "Memory of the target: shared pages are divided among the processes that map them";
        node_memory: Bytes, "system", Value::Column("memory_used"), &[], over_time: OverTime::Max;
            "Memory in use on the node";
        memory_total: Bytes, "system", Value::Column("memory_total"), &[], over_time: OverTime::Max;
            "Memory of the node";
        psi_cpu: Percent, "system", Value::ShareOfInterval("psi_cpu_some_ns"), &[], over_time: OverTime::Mean;
            "Share of the time in which a task waited for a CPU";
        psi_memory: Percent, "system", Value::ShareOfInterval("psi_memory_some_ns"), &[], over_time: OverTime::Mean;
            "Share of the time in which a task waited for memory";
        psi_io: Percent, "system", Value::ShareOfInterval("psi_io_some_ns"), &[], over_time: OverTime::Mean;
            "Share of the time in which a task waited for I/O";
        ipc: Count, "timeline", Value::Column("target_ipc"), &[], over_time: OverTime::Mean;
            "Instructions per cycle";
        flops: Flop, "timeline", Value::Column("target_flop_per_s"), &[], over_time: OverTime::Integral;
            "Floating-point operations per second";
        dp_flops: Flop, "timeline", Value::Column("target_dp_flop_per_s"), &[], over_time: OverTime::Integral;
            "Floating-point operations per second in double precision";
        sp_flops: Flop, "timeline", Value::Column("target_sp_flop_per_s"), &[], over_time: OverTime::Integral;
            "Floating-point operations per second in single precision";
        mem_bw: Bytes, "timeline", Value::Column("node_mem_bw_bytes_per_s"), &[], over_time: OverTime::Integral;
            "Memory bandwidth";
        mem_bw_local: Bytes, "perf_metric", METRIC, &[TARGET_OR_NODE, Is("metric", "llc_miss_local_bw")], over_time: OverTime::Integral;
            "Read by the cores from memory of their own node";
        mem_bw_remote: Bytes, "perf_metric", METRIC, &[TARGET_OR_NODE, Is("metric", "llc_miss_remote_bw")], over_time: OverTime::Integral;
            "Read by the cores from memory of other nodes";
        retiring: Percent, "perf_metric", SHARE, &[TARGET_OR_NODE, Is("metric", "retiring")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Share of pipeline slots that did useful work";
        bad_speculation: Percent, "perf_metric", SHARE, &[TARGET_OR_NODE, Is("metric", "bad_speculation")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Share of pipeline slots whose work was discarded";
        frontend_bound: Percent, "perf_metric", SHARE, &[TARGET_OR_NODE, Is("metric", "frontend_bound")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Share of pipeline slots that waited for instructions";
        backend_bound: Percent, "perf_metric", SHARE, &[TARGET_OR_NODE, Is("metric", "backend_bound")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Share of pipeline slots that waited for data or execution units";
        smt_contention: Percent, "perf_metric", SHARE, &[TARGET_OR_NODE, Is("metric", "smt_contention")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Share of pipeline slots that the other thread of the core used";
        vector_dp: Percent, "perf_metric", SHARE, &[TARGET_OR_NODE, Is("metric", "vec_ratio_dp")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Share of vector instructions in the double-precision arithmetic";
        vector_sp: Percent, "perf_metric", SHARE, &[TARGET_OR_NODE, Is("metric", "vec_ratio_sp")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Share of vector instructions in the single-precision arithmetic";
        package_power: Watts, "timeline", Value::Column("package_power_w"), &[], over_time: OverTime::Mean;
            "Power of all packages";
        dram_power: Watts, "timeline", Value::Column("dram_power_w"), &[], over_time: OverTime::Mean;
            "Power of all memory";
        gpu_power: Watts, "timeline", Value::Column("gpu_power_sum_w"), &[], over_time: OverTime::Mean;
            "Power of all GPUs";
        target_energy: Joules, "timeline", Value::Scaled(1e-6, &Value::Column("target_energy_uj")), &[];
            "Energy of the packages × share of the node's CPU time used by the target: a model";
        profiler_cpu: Seconds, "overhead", Value::Scaled(1e-9, &Value::Column("cpu_ns")), &[Is("component_kind", "profiler")];
            "CPU time of the profiler";
    }

    /// Of each CPU.
    BY_CPU {
        cpu_busy: Percent, "cpu", Value::Scaled(100.0, &Value::Ratio(catalog::BUSY, ALL)), &[], over_time: OverTime::Mean;
            "Share of the time in which the CPU worked";
    }

    /// Of each GPU.
    BY_GPU {
        gpu_utilization: Percent, "gpu", Value::Column("utilization"), &[IsNull("parent_uuid")], over_rows: OverRows::Max, over_time: OverTime::Mean;
            "Share of the time in which a kernel ran";
        gpu_memory: Bytes, "gpu", Value::Column("memory_used"), &[IsNull("parent_uuid")], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Device memory in use";
        gpu_tensor: Percent, "gpu", Value::Column("tensor_activity_percent"), &[IsNull("parent_uuid")], over_rows: OverRows::Max, over_time: OverTime::Mean;
            "Share of the time in which the tensor cores were active";
        gpu_bandwidth: Percent, "gpu", Value::Column("dram_activity_percent"), &[IsNull("parent_uuid")], over_rows: OverRows::Max, over_time: OverTime::Mean;
            "Share of the memory bandwidth in use";
        gpu_pcie_rx: Bytes, "gpu", Value::Column("pcie_rx_bytes"), &[IsNull("parent_uuid")];
            "Bytes received over PCIe";
        gpu_pcie_tx: Bytes, "gpu", Value::Column("pcie_tx_bytes"), &[IsNull("parent_uuid")];
            "Bytes sent over PCIe";
        gpu_watts: Watts, "gpu", Value::Column("power_w"), &[IsNull("parent_uuid")], over_rows: OverRows::Max, over_time: OverTime::Mean;
            "Power";
    }

    /// Of each disk.
    BY_DISK {
        disk_read: Bytes, "disk", Value::Column("read_bytes"), &[Zero("partition")];
            "Read from the disk";
        disk_write: Bytes, "disk", Value::Column("write_bytes"), &[Zero("partition")];
            "Written to the disk";
        disk_busy: Percent, "disk", Value::ShareOfInterval("busy_ns"), &[Zero("partition")], over_time: OverTime::Mean;
            "Share of the time with a request in flight";
    }

    /// Of each mount, by the target.
    BY_MOUNT {
        mount_read: Bytes, "file_io", Value::Column("read_bytes"), &[IsNull("tid"), IsNot("method", "accounting")];
            "Returned by reads of files of the mount";
        mount_write: Bytes, "file_io", Value::Column("write_bytes"), &[IsNull("tid"), IsNot("method", "accounting")];
            "Accepted by writes to files of the mount";
    }

    /// Of each adapter of a high-speed network.
    BY_ADAPTER {
        adapter_rx: Bytes, "fabric", Value::Column("rx_bytes"), &[];
            "Received by the ports of the adapter";
        adapter_tx: Bytes, "fabric", Value::Column("tx_bytes"), &[];
            "Sent by the ports of the adapter";
    }

    /// Of each power domain, on all sockets.
    BY_DOMAIN {
        domain_energy: Joules, "energy", Value::Scaled(1e-6, &Value::Column("energy_uj")), &[];
            "Energy of the domain";
    }

    /// Of each network interface.
    BY_INTERFACE {
        interface_rx: Bytes, "netdev", Value::Column("rx_bytes"), &[IsNot("kind", "loopback")];
            "Received by the interface";
        interface_tx: Bytes, "netdev", Value::Column("tx_bytes"), &[IsNot("kind", "loopback")];
            "Sent by the interface";
    }
}

/// A kind of device, whose figures are plotted device by device.
pub struct DeviceKind {
    /// What a device is called.
    pub noun: &'static str,
    /// Column with its name.
    pub column: &'static str,
    pub figures: &'static [Figure],
    /// Names of the figures, each with the title of its plot.
    pub plots: &'static [(&'static str, &'static str)],
    /// Whether devices without any use are shown.
    pub with_idle: bool,
}

/// All kinds of devices.
pub const DEVICES: &[&DeviceKind] = &[&GPU, &DISK, &MOUNT, &INTERFACE, &ADAPTER, &DOMAIN];

const GPU: DeviceKind = DeviceKind {
    noun: "GPU",
    column: "bdf",
    figures: BY_GPU,
    plots: &[
        ("gpu_utilization", "GPU utilization"),
        ("gpu_memory", "GPU memory"),
        ("gpu_tensor", "GPU tensor-core utilization"),
        ("gpu_bandwidth", "GPU memory-bandwidth utilization"),
        ("gpu_pcie_rx", "GPU PCIe receive throughput"),
        ("gpu_pcie_tx", "GPU PCIe send throughput"),
        ("gpu_watts", "GPU power"),
    ],
    with_idle: true,
};

const DISK: DeviceKind = DeviceKind {
    noun: "disk",
    column: "device",
    figures: BY_DISK,
    plots: &[
        ("disk_read", "Disk reads (node)"),
        ("disk_write", "Disk writes (node)"),
        ("disk_busy", "Disk utilization (%util of iostat)"),
    ],
    with_idle: false,
};

const MOUNT: DeviceKind = DeviceKind {
    noun: "mount",
    column: "mount",
    figures: BY_MOUNT,
    plots: &[
        ("mount_read", "File reads by mount"),
        ("mount_write", "File writes by mount"),
    ],
    with_idle: false,
};

const ADAPTER: DeviceKind = DeviceKind {
    noun: "adapter",
    column: "device",
    figures: BY_ADAPTER,
    plots: &[
        ("adapter_rx", "Fabric receive throughput"),
        ("adapter_tx", "Fabric send throughput"),
    ],
    with_idle: false,
};

const DOMAIN: DeviceKind = DeviceKind {
    noun: "domain",
    column: "domain",
    figures: BY_DOMAIN,
    plots: &[("domain_energy", "Power by domain, all sockets")],
    with_idle: false,
};

const INTERFACE: DeviceKind = DeviceKind {
    noun: "interface",
    column: "device",
    figures: BY_INTERFACE,
    plots: &[
        ("interface_rx", "Interface receive throughput (node)"),
        ("interface_tx", "Interface send throughput (node)"),
    ],
    with_idle: false,
};

/// A plot: figures by name, each with its label.
pub struct PlotOf {
    pub name: &'static str,
    pub title: &'static str,
    pub lines: &'static [(&'static str, &'static str)],
    pub stacked: bool,
    /// Names of figures, the first known of which is drawn as a limit: its total or largest value.
    pub limits: &'static [(&'static str, &'static str)],
}

/// Plots of a topic.
pub struct Topic {
    pub id: &'static str,
    pub title: &'static str,
    pub plots: &'static [PlotOf],
    /// Kinds of latencies, each with the title of its heat map.
    pub latencies: &'static [(&'static str, &'static str)],
    pub devices: &'static [&'static DeviceKind],
}

impl Topic {
    const EMPTY: Self = Self {
        id: "",
        title: "",
        plots: &[],
        latencies: &[],
        devices: &[],
    };
}

const fn lines(
    name: &'static str,
    title: &'static str,
    lines: &'static [(&'static str, &'static str)],
) -> PlotOf {
    PlotOf {
        name,
        title,
        lines,
        stacked: false,
        limits: &[],
    }
}

const fn stack(
    name: &'static str,
    title: &'static str,
    lines: &'static [(&'static str, &'static str)],
) -> PlotOf {
    PlotOf {
        stacked: true,
        ..self::lines(name, title, lines)
    }
}

/// All plots, by topic.
pub const TOPICS: &[Topic] = &[
    Topic {
        id: "time",
        title: "Thread states",
        plots: &[PlotOf {
            limits: &[("allowed_cpus", "allowed CPUs")],
            ..stack(
                "thread-time",
                "Threads of the target by state (sleep not shown)",
                &[
                    ("user mode", "user_s"),
                    ("kernel", "system_s"),
                    ("run queue", "runqueue_s"),
                    ("blocked", "blocked_s"),
                ],
            )
        }],
        ..Topic::EMPTY
    },
    Topic {
        id: "cpu",
        latencies: &[
            ("runqueue", "Run-queue latency"),
            ("wakeup", "Latency from wakeup to running"),
        ],
        title: "CPUs of the node",
        plots: &[
            stack(
                "node-cpu",
                "CPU utilization (node)",
                &[
                    ("user mode", "node_user"),
                    ("kernel", "node_system"),
                    ("waiting for I/O", "node_iowait"),
                    ("stolen", "node_steal"),
                ],
            ),
            lines("ipc", "Instructions per cycle", &[("target", "ipc")]),
            lines(
                "flops",
                "Floating-point operations per second",
                &[
                    ("all", "flops"),
                    ("double", "dp_flops"),
                    ("single", "sp_flops"),
                ],
            ),
            stack(
                "top-down",
                "Top-down analysis (TMA level 1)",
                &[
                    ("useful work", "retiring"),
                    ("discarded work", "bad_speculation"),
                    ("front end: waiting for instructions", "frontend_bound"),
                    ("back end: waiting for data or units", "backend_bound"),
                    ("other thread of the core", "smt_contention"),
                ],
            ),
            lines(
                "vector-share",
                "Vectorization of floating-point arithmetic",
                &[("double", "vector_dp"), ("single", "vector_sp")],
            ),
            lines(
                "switches",
                "Context switches (target)",
                &[
                    ("voluntary", "voluntary_switches"),
                    ("involuntary", "involuntary_switches"),
                ],
            ),
        ],
        ..Topic::EMPTY
    },
    Topic {
        id: "memory",
        title: "Memory",
        plots: &[
            PlotOf {
                limits: &[
                    ("memory_limit_bytes", "limit of the cgroups"),
                    ("memory_total", "memory of the node"),
                ],
                ..lines(
                    "memory",
                    "Memory in use",
                    &[
                        ("target, PSS", "pss"),
                        ("target, sum of RSS", "peak_rss_bytes"),
                        ("node", "node_memory"),
                    ],
                )
            },
            lines(
                "faults",
                "Minor and major faults",
                &[
                    ("without I/O", "minor_faults"),
                    ("with I/O", "major_faults"),
                ],
            ),
            lines(
                "pressure",
                "PSI \"some\" (node)",
                &[
                    ("for a CPU", "psi_cpu"),
                    ("for memory", "psi_memory"),
                    ("for I/O", "psi_io"),
                ],
            ),
            lines("bandwidth", "Memory bandwidth", &[("node", "mem_bw")]),
            lines(
                "numa",
                "Memory reads by locality (NUMA)",
                &[
                    ("of their own NUMA node", "mem_bw_local"),
                    ("of other nodes", "mem_bw_remote"),
                ],
            ),
        ],
        ..Topic::EMPTY
    },
    Topic {
        id: "io",
        devices: &[&DISK, &MOUNT],
        latencies: &[
            ("file_read", "File read latency"),
            ("file_write", "File write latency"),
            ("fsync", "fsync latency"),
            ("block_queue", "Block queue time"),
            ("block_read", "Block read latency"),
            ("block_write", "Block write latency"),
            ("block_flush", "Block flush latency"),
        ],
        title: "Files and storage",
        plots: &[
            lines(
                "files",
                "File reads and writes",
                &[("read", "file_read_bytes"), ("written", "file_write_bytes")],
            ),
            lines(
                "storage",
                "Storage reads and dirtied bytes",
                &[
                    ("fetched", "storage_read_bytes"),
                    ("written or dirtied", "storage_write_bytes"),
                ],
            ),
            lines(
                "block",
                "Block device throughput",
                &[
                    ("read", "block_read_bytes"),
                    ("written", "block_write_bytes"),
                ],
            ),
        ],
    },
    Topic {
        id: "network",
        devices: &[&INTERFACE, &ADAPTER],
        latencies: &[
            ("tcp_rtt", "TCP round-trip time"),
            ("tcp_connect", "TCP connect latency"),
        ],
        title: "Network",
        plots: &[
            lines(
                "network",
                "TCP and UDP throughput",
                &[
                    ("received", "net_rx_bytes"),
                    ("sent", "net_tx_bytes"),
                    ("within the host", "loopback_tx_bytes"),
                ],
            ),
            lines(
                "retransmits",
                "TCP retransmits",
                &[("target", "tcp_retransmits")],
            ),
        ],
    },
    Topic {
        id: "gpu",
        title: "GPUs",
        plots: &[
            lines(
                "gpu-time",
                "GPUs used by the target",
                &[("target", "gpu_sm_seconds")],
            ),
            lines(
                "gpu-target-memory",
                "GPU memory of the target",
                &[("target", "gpu_memory_bytes")],
            ),
        ],
        devices: &[&GPU],
        ..Topic::EMPTY
    },
    Topic {
        id: "energy",
        title: "Power",
        plots: &[
            stack(
                "power",
                "Power",
                &[
                    ("packages", "package_power_w"),
                    ("memory", "dram_power_w"),
                    ("GPUs", "gpu_power"),
                ],
            ),
            lines(
                "target-power",
                "Package power by share of CPU time (model)",
                &[("target", "target_energy")],
            ),
        ],
        devices: &[&DOMAIN],
        ..Topic::EMPTY
    },
];

/// Figures of processes that are in a plot.
pub fn of_processes() -> Vec<Figure> {
    let plots = TOPICS.iter().flat_map(|topic| topic.plots);
    let names: Vec<_> = plots
        .flat_map(|plot| plot.lines)
        .map(|(_, name)| name)
        .collect();
    let all = catalog::PROCESSES
        .iter()
        .filter(|figure| figure.name == "cpu_s" || names.contains(&&figure.name));
    all.copied().collect()
}

/// The figure with this name.
pub fn figure(name: &str) -> Option<&'static Figure> {
    let of_devices = DEVICES.iter().flat_map(|kind| kind.figures);
    let mut all = catalog::PROCESSES
        .iter()
        .chain(PLOTTED)
        .chain(BY_CPU)
        .chain(of_devices);
    all.find(|figure| figure.name == name)
}

/// The scale of a figure over time.
pub fn scale(name: &str) -> Scale {
    let figure = figure(name);
    let unit = figure.map_or(Unit::Count, |figure| figure.unit);
    let over_time = figure.map(|figure| figure.over_time);
    // Integrals are of rates, sums are shown as rates.
    let per_second = matches!(over_time, Some(OverTime::Sum | OverTime::Integral));
    match unit {
        Unit::Joules if per_second => Scale {
            unit: Unit::Watts,
            per_second: false,
        },
        unit => Scale { unit, per_second },
    }
}

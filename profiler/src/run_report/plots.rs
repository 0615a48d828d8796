//! The plots over time.

use crate::analysis::{
    catalog::{self, figures},
    figure::{
        Condition::{Is, IsNull},
        Figure, OverRows, OverTime, Unit, Value,
    },
};

const ALL: &[&str] = catalog::ALL;

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
        psi_cpu: Percent, "system", Value::Scaled(100.0, &Value::Ratio(&["psi_cpu_some_ns"], &["interval_ns"])), &[], over_time: OverTime::Mean;
            "Share of the time in which a task waited for a CPU";
        psi_memory: Percent, "system", Value::Scaled(100.0, &Value::Ratio(&["psi_memory_some_ns"], &["interval_ns"])), &[], over_time: OverTime::Mean;
            "Share of the time in which a task waited for memory";
        psi_io: Percent, "system", Value::Scaled(100.0, &Value::Ratio(&["psi_io_some_ns"], &["interval_ns"])), &[], over_time: OverTime::Mean;
            "Share of the time in which a task waited for I/O";
        node_net_rx: Bytes, "netdev", Value::Column("rx_bytes"), &[Is("kind", "physical")];
            "Received by the physical interfaces of the node";
        node_net_tx: Bytes, "netdev", Value::Column("tx_bytes"), &[Is("kind", "physical")];
            "Sent by the physical interfaces of the node";
        ipc: Count, "timeline", Value::Column("target_ipc"), &[], over_time: OverTime::Mean;
            "Instructions per cycle";
        flops: Flop, "timeline", Value::Column("target_flops"), &[], over_time: OverTime::Mean;
            "Floating-point operations per second";
        dp_flops: Flop, "timeline", Value::Column("target_dp_flops"), &[], over_time: OverTime::Mean;
            "Floating-point operations per second in double precision";
        sp_flops: Flop, "timeline", Value::Column("target_sp_flops"), &[], over_time: OverTime::Mean;
            "Floating-point operations per second in single precision";
        mem_bw: Bytes, "timeline", Value::Column("node_mem_bw"), &[], over_time: OverTime::Mean;
            "Bandwidth of the memory";
        package_power: Watts, "timeline", Value::Column("package_power"), &[], over_time: OverTime::Mean;
            "Power of all packages";
        dram_power: Watts, "timeline", Value::Column("dram_power"), &[], over_time: OverTime::Mean;
            "Power of all memory";
        gpu_power: Watts, "timeline", Value::Column("gpu_power_sum"), &[], over_time: OverTime::Mean;
            "Power of all GPUs";
        profiler_cpu: Seconds, "overhead", Value::Scaled(1e-9, &Value::Column("cpu_ns")), &[Is("part", "controller")];
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
        gpu_watts: Watts, "gpu", Value::Scaled(1e-3, &Value::Column("power_mw")), &[IsNull("parent_uuid")], over_rows: OverRows::Max, over_time: OverTime::Mean;
            "Power";
    }
}

/// A plot: figures by name, each with its label.
pub struct PlotOf {
    pub name: &'static str,
    pub title: &'static str,
    pub lines: &'static [(&'static str, &'static str)],
    pub stacked: bool,
    /// Name of a figure whose largest value is a limit.
    pub limit: Option<(&'static str, &'static str)>,
}

/// Plots of a topic.
pub struct Topic {
    pub id: &'static str,
    pub title: &'static str,
    pub plots: &'static [PlotOf],
    /// Kinds of latencies, each with the title of its heat map.
    pub latencies: &'static [(&'static str, &'static str)],
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
        limit: None,
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
        latencies: &[],
        title: "Where the time of the threads went",
        plots: &[stack(
            "thread-time",
            "Threads of the target on a CPU, in the run queue and blocked (sleep is not shown)",
            &[
                ("user mode", "user_s"),
                ("kernel", "system_s"),
                ("run queue", "runqueue_s"),
                ("blocked", "blocked_s"),
            ],
        )],
    },
    Topic {
        id: "cpu",
        latencies: &[("runqueue", "How long threads waited for a CPU")],
        title: "CPUs of the node",
        plots: &[
            stack(
                "node-cpu",
                "Utilization of all CPUs",
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
            lines(
                "switches",
                "Context switches of the target",
                &[
                    ("voluntary", "voluntary_switches"),
                    ("involuntary", "involuntary_switches"),
                ],
            ),
        ],
    },
    Topic {
        id: "memory",
        latencies: &[],
        title: "Memory",
        plots: &[
            PlotOf {
                limit: Some(("memory_total", "memory of the node")),
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
                "Page faults",
                &[
                    ("without I/O", "minor_faults"),
                    ("with I/O", "major_faults"),
                ],
            ),
            lines(
                "pressure",
                "Pressure: share of the time in which a task of the node waited",
                &[
                    ("for a CPU", "psi_cpu"),
                    ("for memory", "psi_memory"),
                    ("for I/O", "psi_io"),
                ],
            ),
            lines(
                "bandwidth",
                "Bandwidth of the memory",
                &[("node", "mem_bw")],
            ),
        ],
    },
    Topic {
        id: "io",
        latencies: &[
            ("file_read", "How long reads of files took"),
            ("file_write", "How long writes to files took"),
            ("fsync", "How long fsync took"),
            (
                "block_queue",
                "How long requests waited for the block device",
            ),
            ("block_read", "How long the block device took to read"),
            ("block_write", "How long the block device took to write"),
            ("block_flush", "How long the block device took to flush"),
        ],
        title: "Files and storage",
        plots: &[
            lines(
                "files",
                "Bytes read from and written to files",
                &[("read", "file_read_bytes"), ("written", "file_write_bytes")],
            ),
            lines(
                "storage",
                "Bytes fetched from storage and dirtied",
                &[
                    ("fetched", "storage_read_bytes"),
                    ("dirtied", "storage_write_bytes"),
                ],
            ),
            lines(
                "block",
                "Bytes moved by block devices",
                &[
                    ("read", "block_read_bytes"),
                    ("written", "block_write_bytes"),
                ],
            ),
        ],
    },
    Topic {
        id: "network",
        latencies: &[
            ("tcp_rtt", "Round-trip times of TCP connections"),
            (
                "tcp_connect",
                "How long TCP connections took to be established",
            ),
        ],
        title: "Network",
        plots: &[
            lines(
                "network",
                "Bytes over TCP and UDP",
                &[
                    ("received", "net_rx_bytes"),
                    ("sent", "net_tx_bytes"),
                    ("within the host", "loopback_tx_bytes"),
                ],
            ),
            lines(
                "retransmits",
                "TCP segments sent again",
                &[("target", "tcp_retransmits")],
            ),
            lines(
                "interfaces",
                "Bytes over the interfaces of the node",
                &[("received", "node_net_rx"), ("sent", "node_net_tx")],
            ),
        ],
    },
    Topic {
        id: "energy",
        latencies: &[],
        title: "Power",
        plots: &[stack(
            "power",
            "Power",
            &[
                ("packages", "package_power"),
                ("memory", "dram_power"),
                ("GPUs", "gpu_power"),
            ],
        )],
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
    let all = catalog::PROCESSES
        .iter()
        .chain(PLOTTED)
        .chain(BY_CPU)
        .chain(BY_GPU);
    all.into_iter().find(|figure| figure.name == name)
}

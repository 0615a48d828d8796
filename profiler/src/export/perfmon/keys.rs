//! Keys of perfmon, with their figures: exports write them, and imports read them back.

use crate::analysis::{
    figure::Figure,
    perfmon::{OF_NODES, OF_PROCESSES},
};

/// How the value of a sample becomes one of perfmon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Gauge,
    /// A sum since the start of the run; null where the increase is.
    Total,
    /// A sum of processes since the start of the run. Without processes nothing is added.
    TotalOfProcesses,
    /// An increase per second.
    Rate,
    /// The quantity with this number, in percent of the value.
    PercentIs(usize),
    /// The last known value of what is not read at every sample.
    Known,
}

/// Path of keys, header in data frames, figure, kind.
pub type Declared = (&'static str, &'static str, &'static str, Kind);

pub const OF_TARGET: [Declared; 11] = [
    ("cpu_time", "CPU time [s]", "user_s", Kind::TotalOfProcesses),
    ("cpu_percent", "CPU load [%]", "cpu_load", Kind::Gauge),
    (
        "cpu_percent_sys",
        "System CPU load [%]",
        "node_cpu",
        Kind::Gauge,
    ),
    ("memory_info.rss", "Memory RSS [bytes]", "rss", Kind::Gauge),
    ("memory_info.vms", "Memory VMS [bytes]", "vms", Kind::Gauge),
    (
        "memory_info.shared",
        "Memory shared [bytes]",
        "shared",
        Kind::Gauge,
    ),
    (
        "memory_full_info.uss",
        "Memory USS [bytes]",
        "rss",
        Kind::Known,
    ),
    (
        "memory_full_info.swap",
        "Memory swap [bytes]",
        "swap",
        Kind::Gauge,
    ),
    (
        "memory_percent",
        "Memory [%]",
        "memory_total",
        Kind::PercentIs(3),
    ),
    ("num_threads", "Threads", "threads", Kind::Gauge),
    ("num_fds", "File descriptors", "fds", Kind::Gauge),
];

pub const OF_NETWORK: [Declared; 4] = [
    (
        "net_io_counters.bytes_sent",
        "Sent data [bytes]",
        "tx_bytes",
        Kind::Total,
    ),
    (
        "net_io_counters.bytes_recv",
        "Recv data [bytes]",
        "rx_bytes",
        Kind::Total,
    ),
    (
        "net_io_counters.packets_sent",
        "Sent packets",
        "tx_packets",
        Kind::Total,
    ),
    (
        "net_io_counters.packets_recv",
        "Recv packets",
        "rx_packets",
        Kind::Total,
    ),
];

pub const OF_FABRIC: [Declared; 4] = [
    (
        "ib_io_counters.port_xmit_data",
        "IB sent data [bytes]",
        "fabric_tx_bytes",
        Kind::Total,
    ),
    (
        "ib_io_counters.port_rcv_data",
        "IB recv data [bytes]",
        "fabric_rx_bytes",
        Kind::Total,
    ),
    (
        "ib_io_counters.port_xmit_packets",
        "IB sent packets",
        "fabric_tx_packets",
        Kind::Total,
    ),
    (
        "ib_io_counters.port_rcv_packets",
        "IB recv packets",
        "fabric_rx_packets",
        Kind::Total,
    ),
];

pub const OF_FILES: [Declared; 4] = [
    (
        "io_counters.read_bytes",
        "IO read data [bytes]",
        "read_bytes",
        Kind::TotalOfProcesses,
    ),
    (
        "io_counters.write_bytes",
        "IO write data [bytes]",
        "write_bytes",
        Kind::TotalOfProcesses,
    ),
    (
        "io_counters.read_count",
        "IO reads",
        "read_calls",
        Kind::TotalOfProcesses,
    ),
    (
        "io_counters.write_count",
        "IO writes",
        "write_calls",
        Kind::TotalOfProcesses,
    ),
];

/// Figures of a GPU.
pub const OF_GPU: [Declared; 18] = [
    (
        "clock_info.graphics",
        "Clock graphics [MHz]",
        "graphics_clock",
        Kind::Gauge,
    ),
    ("clock_info.sm", "Clock SM [MHz]", "sm_clock", Kind::Gauge),
    (
        "clock_info.memory",
        "Clock memory [MHz]",
        "memory_clock",
        Kind::Gauge,
    ),
    (
        "ecc_errors.sp",
        "ECC corrected errors",
        "ecc_corrected",
        Kind::Gauge,
    ),
    (
        "ecc_errors.dp",
        "ECC uncorrected errors",
        "ecc_uncorrected",
        Kind::Gauge,
    ),
    (
        "memory_used.gpu_memory",
        "GPU memory [bytes]",
        "memory_used",
        Kind::Gauge,
    ),
    (
        "memory_used.bar1_memory",
        "BAR1 memory [bytes]",
        "bar1_used",
        Kind::Gauge,
    ),
    (
        "utilization_rates.gpu",
        "GPU utilization [%]",
        "utilization",
        Kind::Gauge,
    ),
    (
        "utilization_rates.memory",
        "GPU memory utilization [%]",
        "memory_utilization",
        Kind::Gauge,
    ),
    (
        "encoder_util",
        "Encoder utilization [%]",
        "encoder_utilization",
        Kind::Gauge,
    ),
    (
        "decoder_util",
        "Decoder utilization [%]",
        "decoder_utilization",
        Kind::Gauge,
    ),
    ("power_usage", "Power [mW]", "power", Kind::Gauge),
    (
        "violation",
        "Clock violation [ns]",
        "violation",
        Kind::Total,
    ),
    ("temperature", "Temperature [C]", "temperature", Kind::Gauge),
    ("fan_speed", "Fan speed [%]", "fan", Kind::Gauge),
    ("num_procs", "GPU processes", "processes", Kind::Gauge),
    (
        "pci_thgpt.send",
        "PCIe sent [KB/s]",
        "pcie_tx_bytes",
        Kind::Rate,
    ),
    (
        "pci_thgpt.recv",
        "PCIe recv [KB/s]",
        "pcie_rx_bytes",
        Kind::Rate,
    ),
];

/// perfmon's names of events: key, name here, name there.
pub const NAMES: [(&str, &str, &str); 8] = [
    ("hardware_events", "cpu-cycles", "cycles"),
    ("hardware_events", "instructions", "instructions"),
    ("hardware_events", "cache-misses", "cache-misses"),
    ("hardware_events", "cache-references", "cache-references"),
    ("hardware_events", "branch-instructions", "branches"),
    ("hardware_events", "branch-misses", "branch-misses"),
    ("software_events", "context-switches", "context-switches"),
    ("software_events", "cpu-migrations", "cpu-migrations"),
];

/// perfmon's keys of groups, with the groups.
pub const GROUPS: [(&str, &[&str]); 8] = [
    ("hardware_events", &["HW", "HW_CACHE"]),
    ("software_events", &["SW"]),
    ("L2", &["L2"]),
    ("L2cache", &["L2CACHE"]),
    ("L3", &["L3"]),
    ("L3cache", &["L3CACHE"]),
    ("FLOPS_SP", &["FLOPS_SP", "FLOPS"]),
    ("FLOPS_DP", &["FLOPS_DP", "FLOPS"]),
];

/// Software events that are counted without a group.
pub const WITHOUT_GROUP: [(&str, &str); 2] = [
    ("context-switches", "switches"),
    ("cpu-migrations", "migrations"),
];

/// The figure of a node.
pub fn figure(name: &str) -> Figure {
    let is_node = OF_NODES.iter().any(|figure| figure.name == name);
    find(if is_node { OF_NODES } else { OF_PROCESSES }, name)
}

/// A declared figure.
pub fn find(list: &[Figure], name: &str) -> Figure {
    let declared = list.iter().find(|figure| figure.name == name);
    *declared.unwrap_or_else(|| unreachable!("no figure {name}"))
}

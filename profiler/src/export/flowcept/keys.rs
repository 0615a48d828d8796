//! Keys of Flowcept's telemetry, with their values in the tables: exports write them, and imports read
//! them back.

use crate::analysis::{
    catalog::BUSY_PERCENT,
    figure::Value::{self, Column as Of, Scaled, Sum},
};

/// What a value is between two samples of a node, or readings of a process.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// Since the start of the run, s or J.
    Total,
    /// Since the start of the run, without a fraction.
    Count,
    Gauge,
    /// A gauge that not all samples have.
    Kept,
}

use Kind::{Count, Gauge, Kept, Total};

/// Key, kind and value of figures of a table.
pub type Figures = &'static [(&'static str, Kind, Value)];

pub const TIMES: Figures = &[
    ("user", Total, Scaled(1e-9, &Sum(&["user_ns", "guest_ns"]))),
    (
        "nice",
        Total,
        Scaled(1e-9, &Sum(&["nice_ns", "guest_nice_ns"])),
    ),
    ("system", Total, Scaled(1e-9, &Of("system_ns"))),
    ("idle", Total, Scaled(1e-9, &Of("idle_ns"))),
    ("iowait", Total, Scaled(1e-9, &Of("iowait_ns"))),
    ("irq", Total, Scaled(1e-9, &Of("irq_ns"))),
    ("softirq", Total, Scaled(1e-9, &Of("softirq_ns"))),
    ("steal", Total, Scaled(1e-9, &Of("steal_ns"))),
    ("guest", Total, Scaled(1e-9, &Of("guest_ns"))),
    ("guest_nice", Total, Scaled(1e-9, &Of("guest_nice_ns"))),
];
pub const PERCENT: Figures = &[("percent", Gauge, BUSY_PERCENT)];
pub const FREQUENCY: Figures = &[("frequency", Gauge, Scaled(1e-6, &Of("frequency_hz")))];
pub const MEMORY: Figures = &[
    ("virtual.total", Gauge, Of("memory_total")),
    ("virtual.available", Gauge, Of("memory_available")),
    ("virtual.used", Gauge, Of("memory_used")),
    ("virtual.free", Gauge, Of("memory_free")),
    ("virtual.active", Gauge, Of("memory_active")),
    ("virtual.inactive", Gauge, Of("memory_inactive")),
    ("virtual.buffers", Gauge, Of("memory_buffers")),
    ("virtual.cached", Gauge, Of("memory_cached")),
    ("virtual.shared", Gauge, Of("memory_shared")),
    ("virtual.slab", Gauge, Of("memory_slab")),
    (
        "virtual.percent",
        Gauge,
        Scaled(100.0, &Value::Ratio(&["memory_used"], &["memory_total"])),
    ),
    ("swap.total", Gauge, Of("swap_total")),
    ("swap.used", Gauge, Of("swap_used")),
    ("swap.free", Gauge, Of("swap_free")),
    (
        "swap.percent",
        Gauge,
        Scaled(100.0, &Value::Ratio(&["swap_used"], &["swap_total"])),
    ),
    ("swap.sin", Count, Of("swap_in_bytes")),
    ("swap.sout", Count, Of("swap_out_bytes")),
];
/// Times in ms.
pub const DISK: Figures = &[
    ("read_count", Count, Of("read_ops")),
    ("write_count", Count, Of("write_ops")),
    ("read_bytes", Count, Of("read_bytes")),
    ("write_bytes", Count, Of("write_bytes")),
    ("read_time", Count, Scaled(1e-6, &Of("read_ns"))),
    ("write_time", Count, Scaled(1e-6, &Of("write_ns"))),
    ("read_merged_count", Count, Of("read_merged")),
    ("write_merged_count", Count, Of("write_merged")),
    ("busy_time", Count, Scaled(1e-6, &Of("busy_ns"))),
];
pub const FILE_SYSTEM: Figures = &[
    ("total", Kept, Of("total")),
    ("used", Kept, Of("used")),
    ("free", Kept, Of("available")),
    (
        "percent",
        Kept,
        Scaled(100.0, &Value::Ratio(&["used"], &["used", "available"])),
    ),
];
pub const NETWORK: Figures = &[
    ("bytes_sent", Count, Of("tx_bytes")),
    ("bytes_recv", Count, Of("rx_bytes")),
    ("packets_sent", Count, Of("tx_packets")),
    ("packets_recv", Count, Of("rx_packets")),
    ("errin", Count, Of("rx_errors")),
    ("errout", Count, Of("tx_errors")),
    ("dropin", Count, Of("rx_dropped")),
    ("dropout", Count, Of("tx_dropped")),
];
pub const GPU: Figures = &[
    ("used", Gauge, Of("memory_used")),
    ("activity.gfx_activity", Gauge, Of("utilization")),
    ("activity.umc_activity", Gauge, Of("memory_utilization")),
    ("activity.mm_activity", Gauge, Of("media_utilization")),
    ("power.average_socket_power", Gauge, Of("power_w")),
    ("power.energy_accumulator", Count, Of("energy_uj")),
    ("temperature.edge", Gauge, Of("temperature")),
    ("temperature.hotspot", Gauge, Of("hotspot_temperature")),
    ("temperature.mem", Gauge, Of("memory_temperature")),
    ("temperature.vrgfx", Gauge, Of("vr_gfx_temperature")),
    ("temperature.vrmem", Gauge, Of("vr_memory_temperature")),
    ("temperature.hbm", Gauge, Of("hbm_temperature")),
    ("temperature.fan_speed", Gauge, Of("fan_percent")),
    (
        "others.current_gfxclk",
        Gauge,
        Scaled(1e-6, &Of("graphics_clock_hz")),
    ),
    (
        "others.current_socclk",
        Gauge,
        Scaled(1e-6, &Of("soc_clock_hz")),
    ),
    (
        "others.current_uclk",
        Gauge,
        Scaled(1e-6, &Of("memory_clock_hz")),
    ),
    (
        "others.current_vclk0",
        Gauge,
        Scaled(1e-6, &Of("video_clock_hz")),
    ),
    (
        "others.current_dclk0",
        Gauge,
        Scaled(1e-6, &Of("decoder_clock_hz")),
    ),
];
/// J.
pub const ENERGY: Figures = &[("energy", Total, Scaled(1e-6, &Of("energy_uj")))];
pub const FABRIC: Figures = &[
    ("tx_bytes", Count, Of("tx_bytes")),
    ("rx_bytes", Count, Of("rx_bytes")),
    ("tx_packets", Count, Of("tx_packets")),
    ("rx_packets", Count, Of("rx_packets")),
];
pub const PROCESS: Figures = &[
    ("cpu_times.user", Total, Scaled(1e-9, &Of("user_ns"))),
    ("cpu_times.system", Total, Scaled(1e-9, &Of("system_ns"))),
    (
        "cpu_times.children_user",
        Gauge,
        Scaled(1e-9, &Of("children_user_ns")),
    ),
    (
        "cpu_times.children_system",
        Gauge,
        Scaled(1e-9, &Of("children_system_ns")),
    ),
    ("cpu_times.iowait", Gauge, Scaled(1e-9, &Of("iowait_ns"))),
    ("io_counters.read_count", Count, Of("read_syscalls")),
    ("io_counters.write_count", Count, Of("write_syscalls")),
    ("io_counters.read_bytes", Count, Of("read_bytes")),
    ("io_counters.write_bytes", Count, Of("write_bytes")),
    ("io_counters.read_chars", Count, Of("read_chars")),
    ("io_counters.write_chars", Count, Of("write_chars")),
    (
        "num_ctx_switches.voluntary",
        Count,
        Of("voluntary_switches"),
    ),
    (
        "num_ctx_switches.involuntary",
        Count,
        Of("involuntary_switches"),
    ),
    ("memory.rss", Gauge, Of("rss")),
    ("memory.vms", Gauge, Of("vms")),
    ("memory.shared", Gauge, Of("shared")),
    ("memory.text", Gauge, Of("text")),
    ("memory.data", Gauge, Of("data")),
    ("num_threads", Gauge, Of("threads")),
    ("num_connections", Gauge, Of("sockets")),
    ("num_open_files", Gauge, Of("open_files")),
    ("num_open_file_descriptors", Gauge, Of("fds")),
    ("cpu_number", Gauge, Of("cpu")),
];

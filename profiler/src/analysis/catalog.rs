//! All figures of summaries and reports.

use super::figure::{
    Condition::{self, Is, IsNot, IsNull, IsOneOf, NotNull, NotZero, Zero},
    Figure, OverRows, OverTime, Unit, Value,
};
use crate::sources::{disk, netdev};

/// Columns of table `system` and `cpu` in which CPUs work.
pub const BUSY: &[&str] = &[
    "user_ns",
    "nice_ns",
    "system_ns",
    "irq_ns",
    "softirq_ns",
    "steal_ns",
    "guest_ns",
    "guest_nice_ns",
];
const IDLE: &[&str] = &["idle_ns", "iowait_ns"];
pub const USER: &[&str] = &["user_ns", "nice_ns", "guest_ns", "guest_nice_ns"];
/// All columns of CPU time.
pub const ALL: &[&str] = &[
    "user_ns",
    "nice_ns",
    "system_ns",
    "idle_ns",
    "iowait_ns",
    "irq_ns",
    "softirq_ns",
    "steal_ns",
    "guest_ns",
    "guest_nice_ns",
];
pub const BUSY_PERCENT: Value = Value::Scaled(100.0, &Value::Ratio(BUSY, ALL));

/// The disks that add up to the I/O of the node: no partitions, and nothing that is on other disks.
pub const PHYSICAL_DISKS: &[Condition] = &[
    Zero("partition"),
    // Runs of older versions do not have the column.
    IsNot("kind", disk::VIRTUAL),
];

/// The interfaces that add up to the network traffic of the node.
pub const EXTERNAL_INTERFACES: &[Condition] = &[
    IsNot("kind", netdev::LOOPBACK),
    // An import has one row for all interfaces, without a kind.
    IsNot("kind", netdev::VIRTUAL),
];
/// The same and loopback, as in sums of psutil.
pub const INTERFACES: &[Condition] = &[IsNot("kind", netdev::VIRTUAL)];

/// Declares figures: name, unit, table, value, conditions, other aggregates than sums, meaning.
macro_rules! figures {
    ($($(#[$attribute:meta])* $list:ident {
        $($name:ident: $unit:ident, $table:literal, $value:expr, $rows:expr $(, $over:ident: $given:expr)*; $help:literal;)*
    })*) => {$(
        $(#[$attribute])*
        pub const $list: &[Figure] = &[$(
            Figure {
                name: stringify!($name),
                unit: Unit::$unit,
                help: $help,
                table: $table,
                value: $value,
                rows: $rows,
                ..Figure::SUM
            }$(.$over($given))*,
        )*];
    )*};
}

pub(crate) use figures;

figures! {
    /// Of processes: of all, or of those of a job, rank or user.
    PROCESSES {
        cpu_s: Seconds, "usage", Value::Scaled(1e-9, &Value::Sum(&["user_ns", "system_ns"])), &[IsNull("tid")], at_least: "target_cpu_s";
            "CPU time in user mode and in the kernel";
        target_cpu_s: Seconds, "timeline", Value::Scaled(1e-2, &Value::Column("target_cpu_percent")), &[], over_time: OverTime::Integral;
            "CPU time of the whole target. If processes are read from /proc, it includes processes without a sample, and cpu_s has the same value";
        user_s: Seconds, "usage", Value::Scaled(1e-9, &Value::Column("user_ns")), &[IsNull("tid")];
            "CPU time in user mode";
        system_s: Seconds, "usage", Value::Scaled(1e-9, &Value::Column("system_ns")), &[IsNull("tid")];
            "CPU time in the kernel";
        runqueue_s: Seconds, "sched", Value::Scaled(1e-9, &Value::Column("runqueue_ns")), &[IsNull("tid")];
            "Time that threads were runnable and waited for a CPU";
        sleep_s: Seconds, "sched", Value::Scaled(1e-9, &Value::Column("sleep_ns")), &[IsNull("tid")];
            "Time that threads slept interruptibly";
        blocked_s: Seconds, "sched", Value::Scaled(1e-9, &Value::Column("blocked_ns")), &[IsNull("tid")];
            "Time that threads waited uninterruptibly, for disks, locks of the kernel or network file systems";
        voluntary_switches: Count, "usage", Value::Column("voluntary_switches"), &[IsNull("tid")];
            "Context switches because a thread waited";
        involuntary_switches: Count, "usage", Value::Column("involuntary_switches"), &[IsNull("tid")];
            "Context switches because the CPU was given to another thread";
        minor_faults: Count, "usage", Value::Column("minor_faults"), &[IsNull("tid")];
            "Page faults served without I/O";
        major_faults: Count, "usage", Value::Column("major_faults"), &[IsNull("tid")];
            "Page faults that waited for I/O";
        peak_memory_bytes: Bytes, "usage", Value::Column("pss"), &[IsNull("tid")], over_time: OverTime::Max, at_least: "max_process_rss_bytes";
            "Lower bound of the peak memory of the processes of a node: the larger of the largest sum of PSS at a sample, in which shared pages count once, and the peak of the largest process, which includes peaks between samples";
        peak_rss_bytes: Bytes, "usage", Value::Column("rss"), &[IsNull("tid")], over_time: OverTime::Max, at_least: "max_process_rss_bytes";
            "Lower bound of the peak resident memory of the processes of a node: the larger of the largest sum at a sample and the peak of the largest process; shared pages are counted for each process";
        peak_swap_bytes: Bytes, "usage", Value::Column("swap"), &[IsNull("tid")], over_time: OverTime::Max;
            "Largest sum of the swapped out memory of the processes of a node at a sample";
        max_process_rss_bytes: Bytes, "process", Value::Column("peak_rss"), &[], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Largest resident memory of one process during the run, including peaks between samples";
        storage_read_bytes: Bytes, "usage", Value::Column("read_bytes"), &[IsNull("tid")];
            "Bytes fetched from storage";
        storage_write_bytes: Bytes, "usage", Value::Column("write_bytes"), &[IsNull("tid")];
            "Bytes written to storage at once (O_DIRECT), or dirtied in the page cache and written later";
        file_read_bytes: Bytes, "file_io", Value::Column("read_bytes"), &[IsNull("tid"), IsNot("method", "accounting")];
            "Bytes returned by reads of files, cached or not";
        file_write_bytes: Bytes, "file_io", Value::Column("write_bytes"), &[IsNull("tid"), IsNot("method", "accounting")];
            "Bytes accepted by writes to files";
        fsyncs: Count, "file_io", Value::Column("fsyncs"), &[IsNull("tid")];
            "fsync, fdatasync and msync calls";
        block_read_bytes: Bytes, "block_io", Value::Column("bytes"), &[IsNull("tid"), Is("op", "read")];
            "Bytes read from block devices";
        block_write_bytes: Bytes, "block_io", Value::Column("bytes"), &[IsNull("tid"), Is("op", "write")];
            "Bytes written to block devices";
        block_read_requests: Count, "block_io", Value::Column("ops"), &[IsNull("tid"), Is("op", "read")];
            "Read requests of block devices";
        block_write_requests: Count, "block_io", Value::Column("ops"), &[IsNull("tid"), Is("op", "write")];
            "Write requests of block devices";
        block_read_s: Seconds, "block_io", Value::Scaled(1e-9, &Value::Sum(&["queue_ns", "service_ns"])), &[IsNull("tid"), Is("op", "read")];
            "Time of read requests of block devices, summed over requests";
        block_write_s: Seconds, "block_io", Value::Scaled(1e-9, &Value::Sum(&["queue_ns", "service_ns"])), &[IsNull("tid"), Is("op", "write")];
            "Time of write requests of block devices, summed over requests";
        file_s: Seconds, "latency", Value::Scaled(1e-9, &Value::Column("sum_ns")), &[IsNull("tid"), IsOneOf("kind", &["file_read", "file_write", "fsync"])];
            "Time of reads, writes and fsyncs of files, summed over operations";
        net_tx_bytes: Bytes, "net_io", Value::Column("tx_bytes"), &[IsNull("tid"), IsNot("scope", "loopback"), IsNot("protocol", "unix")];
            "Bytes sent over TCP and UDP to other hosts";
        net_rx_bytes: Bytes, "net_io", Value::Column("rx_bytes"), &[IsNull("tid"), IsNot("scope", "loopback"), IsNot("protocol", "unix")];
            "Bytes received over TCP and UDP from other hosts";
        loopback_tx_bytes: Bytes, "net_io", Value::Column("tx_bytes"), &[IsNull("tid"), Is("scope", "loopback")];
            "Bytes sent over TCP and UDP within the host";
        tcp_segments: Count, "net_io", Value::Column("tx_segments"), &[IsNull("tid"), Is("protocol", "tcp")];
            "TCP segments sent";
        tcp_retransmits: Count, "net_io", Value::Column("retransmits"), &[IsNull("tid"), Is("protocol", "tcp")];
            "TCP segments retransmitted";
        read_write_calls: Count, "usage", Value::Sum(&["read_syscalls", "write_syscalls"]), &[IsNull("tid")];
            "Read and write system calls on files, pipes, sockets and devices";
        socket_calls: Count, "net_io", Value::Sum(&["tx_calls", "rx_calls"]), &[IsNull("tid")];
            "Calls that send or receive over TCP, UDP and unix sockets";
        futex_calls: Count, "syscalls", Value::Column("count"), &[IsNull("tid"), Is("syscall", "futex")];
            "futex calls, with which threads wait for locks (with --source +syscalls)";
        syscalls: Count, "syscalls", Value::Column("count"), &[IsNull("tid")];
            "System calls (with --source +syscalls)";
        gpu_sm_seconds: Seconds, "gpu_process", Value::Scaled(1e-2, &Value::Column("sm_utilization")), &[IsNull("tid")], over_time: OverTime::Integral;
            "Share of the SMs of NVIDIA GPUs in use × time, summed over the GPUs";
        gpu_memory_bytes: Bytes, "gpu_process", Value::Column("memory_used"), &[IsNull("tid")], over_time: OverTime::Max;
            "Largest device memory in use on all GPUs of a node at a sample";
        energy_j: Joules, "process", Value::Scaled(1e-6, &Value::Column("energy_uj")), &[];
            "Energy of the packages × share of the node's CPU time used by the processes: a model, not a measurement";
        processes: Count, "process", Value::One, &[];
            "Processes";
        failed_processes: Count, "process", Value::One, &[NotZero("exit_code")];
            "Processes that ended with an exit code other than 0";
        killed_processes: Count, "process", Value::One, &[NotNull("exit_signal")];
            "Processes killed by a signal";
    }

    /// Of all processes of the target, from the table of the node's samples.
    TARGET {
        flop: Flop, "timeline", Value::Column("target_flop_per_s"), &[], over_time: OverTime::Integral;
            "Floating-point operations, on CPUs that do not distinguish precisions";
        flop_dp: Flop, "timeline", Value::Column("target_dp_flop_per_s"), &[], over_time: OverTime::Integral;
            "Floating-point operations in double precision";
        flop_sp: Flop, "timeline", Value::Column("target_sp_flop_per_s"), &[], over_time: OverTime::Integral;
            "Floating-point operations in single precision";
        flop_hp: Flop, "timeline", Value::Column("target_hp_flop_per_s"), &[], over_time: OverTime::Integral;
            "Floating-point operations in half precision";
        cycles: Count, "timeline", Value::Column("target_cycles"), &[];
            "CPU cycles";
        instructions: Count, "timeline", Value::Column("target_instructions"), &[];
            "Completed instructions";
        memory_traffic_bytes: Bytes, "timeline", Value::Column("node_mem_bw_bytes_per_s"), &[], over_time: OverTime::Integral;
            "Bytes read from and written to memory: of the node, or of the target if the CPU can attribute them";
        peak_pss_bytes: Bytes, "timeline", Value::Column("target_pss_sum"), &[], over_time: OverTime::Max;
            "Largest memory of the target on a node at a sample: shared pages are divided among the processes that map them; use peak_memory_bytes, which includes peaks between samples";
        quota_periods: Count, "throttle", Value::Column("periods"), &[];
            "Periods of CPU quotas in samples in which a quota was used up";
        throttled_periods: Count, "throttle", Value::Column("throttled_periods"), &[];
            "Periods in which a CPU quota was used up";
        target_energy_j: Joules, "timeline", Value::Scaled(1e-6, &Value::Column("target_energy_uj")), &[];
            "Energy of the packages × share of the node's CPU time used by the target: a model, not a measurement";
        target_energy_cycle_share_j: Joules, "timeline", Value::Scaled(1e-6, &Value::Column("target_energy_cycle_share_uj")), &[];
            "Energy of the packages × share of the node's cycles used by the target: a model, not a measurement";
    }

    /// Of the node, including processes outside the target.
    NODE {
        node_max_cpu_utilization_percent: Percent, "cpu", BUSY_PERCENT, &[], over_rows: OverRows::Mean, over_time: OverTime::Max;
            "Largest mean utilization of the CPUs in an interval";
        node_cpu_utilization_percent: Percent, "system", BUSY_PERCENT, &[], over_time: OverTime::Mean;
            "Mean utilization of the CPUs";
        node_cpu_hours: Hours, "system", Value::Scaled(1.0 / 3600.0, &Value::Column("cpus")), &[], over_time: OverTime::Integral;
            "Online CPUs × time";
        node_busy_s: Seconds, "system", Value::Scaled(1e-9, &Value::Sum(BUSY)), &[];
            "Time in which CPUs of the node worked, or had work while the hypervisor ran something else";
        steal_s: Seconds, "system", Value::Scaled(1e-9, &Value::Column("steal_ns")), &[];
            "Time in which the hypervisor ran something else while CPUs of the node had work";
        sampled_s: Seconds, "system", Value::One, &[], over_time: OverTime::Integral;
            "Time that the samples cover";
        node_unused_cpu_hours: Hours, "system", Value::Scaled(1.0 / 3600.0, &Value::Part("cpus", IDLE, ALL)), &[], over_time: OverTime::Integral;
            "Idle CPUs × time";
        node_max_memory_percent: Percent, "system", Value::Scaled(100.0, &Value::Ratio(&["memory_used"], &["memory_total"])), &[], over_time: OverTime::Max;
            "Largest share of the memory in use at a sample";
        peak_used_memory_bytes: Bytes, "system", Value::Column("memory_used"), &[], over_time: OverTime::Max;
            "Largest memory of the node in use at a sample";
        peak_dirty_bytes: Bytes, "system", Value::Sum(&["memory_dirty", "memory_writeback"]), &[], over_time: OverTime::Max;
            "Largest size of dirty pages, which are not written yet";
        node_max_root_fs_percent: Percent, "filesystem", Value::Scaled(100.0, &Value::Ratio(&["used"], &["used", "available"])), &[Is("mount", "/")], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Largest share of the root file system in use at a sample";
        node_disk_read_bytes: Bytes, "disk", Value::Column("read_bytes"), PHYSICAL_DISKS;
            "Bytes read from all physical disks";
        node_disk_write_bytes: Bytes, "disk", Value::Column("write_bytes"), PHYSICAL_DISKS;
            "Bytes written to all physical disks";
        node_loopback_tx_bytes: Bytes, "netdev", Value::Column("tx_bytes"), &[Is("kind", netdev::LOOPBACK)];
            "Bytes sent over loopback";
        node_net_tx_bytes: Bytes, "netdev", Value::Column("tx_bytes"), EXTERNAL_INTERFACES;
            "Bytes sent over physical interfaces, in a container over those that lead out of it";
        node_loopback_rx_bytes: Bytes, "netdev", Value::Column("rx_bytes"), &[Is("kind", netdev::LOOPBACK)];
            "Bytes received over loopback";
        node_net_rx_bytes: Bytes, "netdev", Value::Column("rx_bytes"), EXTERNAL_INTERFACES;
            "Bytes received over physical interfaces, in a container over those that lead out of it";
        package_energy_j: Joules, "timeline", Value::Column("package_power_w"), &[], over_time: OverTime::Integral;
            "Energy of all packages";
        dram_energy_j: Joules, "timeline", Value::Column("dram_power_w"), &[], over_time: OverTime::Integral;
            "Energy of all memory";
        gpu_energy_j: Joules, "timeline", Value::Column("gpu_power_sum_w"), &[], over_time: OverTime::Integral;
            "Energy of all GPUs";
        gpu_tensor_mean_percent: Percent, "gpu", Value::Column("tensor_activity_percent"), &[IsNull("parent_uuid")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Mean share of the time in which the tensor cores of the GPUs were active";
        gpu_bandwidth_mean_percent: Percent, "gpu", Value::Column("dram_activity_percent"), &[IsNull("parent_uuid")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Mean share of the memory bandwidth of the GPUs in use";
        gpu_power_limited_percent: Percent, "gpu", Value::Scaled(100.0, &Value::Ratio(&["power_violation_ns"], &["interval_ns"])), &[IsNull("parent_uuid")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Mean share of the time in which the power limit reduced the clocks of the GPUs";
        fabric_tx_bytes: Bytes, "fabric", Value::Column("tx_bytes"), &[];
            "Bytes sent by all ports of the high-speed network";
        fabric_rx_bytes: Bytes, "fabric", Value::Column("rx_bytes"), &[];
            "Bytes received by all ports of the high-speed network";
        oom_kills: Count, "system", Value::Column("oom_kills"), &[];
            "Processes killed for lack of memory";
        profiler_cpu_s: Seconds, "overhead", Value::Scaled(1e-9, &Value::Column("cpu_ns")), &[IsOneOf("component_kind", &["start", "profiler"])];
            "CPU time of the profiler, including its start but not the writing of the last files";
        profiler_start_cpu_s: Seconds, "overhead", Value::Scaled(1e-9, &Value::Column("cpu_ns")), &[Is("component_kind", "start")];
            "CPU time of the profiler up to the baselines, mostly for loading BPF programs";
        profiler_rss_bytes: Bytes, "overhead", Value::Column("rss"), &[Is("component_kind", "profiler")], over_time: OverTime::Max, at_least: "profiler_peak_rss_bytes";
            "Largest resident memory of the profiler";
        profiler_peak_rss_bytes: Bytes, "overhead", Value::Column("peak_rss"), &[Is("component_kind", "profiler")], over_time: OverTime::Max;
            "Largest resident memory of the profiler, including peaks between samples";
    }

    /// Of the GPUs of a node, or of one of them.
    GPUS {
        gpu_max_memory_bytes: Bytes, "gpu", Value::Column("memory_used"), &[IsNull("parent_uuid")], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Largest memory in use on one GPU at a sample";
        gpu_utilization_mean_percent: Percent, "gpu", Value::Column("utilization"), &[IsNull("parent_uuid")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Mean utilization of the GPUs";
        gpu_utilization_max_percent: Percent, "gpu", Value::Column("utilization"), &[IsNull("parent_uuid")], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Largest utilization of a GPU at a sample";
        gpu_memory_utilization_mean_percent: Percent, "gpu", Value::Column("memory_utilization"), &[IsNull("parent_uuid")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Mean utilization of the GPUs' memory";
        gpu_memory_utilization_max_percent: Percent, "gpu", Value::Column("memory_utilization"), &[IsNull("parent_uuid")], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Largest utilization of a GPU's memory at a sample";
        gpu_power_mean_w: Watts, "gpu", Value::Column("power_w"), &[IsNull("parent_uuid")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Mean power of a GPU";
        gpu_power_max_w: Watts, "gpu", Value::Column("power_w"), &[IsNull("parent_uuid")], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Largest power of a GPU at a sample";
        energy_j: Joules, "gpu", Value::Column("power_w"), &[IsNull("parent_uuid")], over_time: OverTime::Integral;
            "Energy of the GPUs: power × time";
    }

    /// perf.py's node metrics, by its names and in its units.
    PERFPY {
        max_t_cpu_pct_per_cpu_avg: Percent, "cpu", BUSY_PERCENT, &[], over_rows: OverRows::Mean, over_time: OverTime::Max;
            "Largest mean utilization of the CPUs in an interval";
        max_t_cpu_pct_per_cpu_max: Percent, "cpu", BUSY_PERCENT, &[], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Largest utilization of the busiest CPU in an interval";
        max_t_cpu_pct_per_cpu_min: Percent, "cpu", BUSY_PERCENT, &[], over_rows: OverRows::Min, over_time: OverTime::Max;
            "Largest utilization of the idlest CPU in an interval";
        cpu_avg_utilization_pct: Percent, "system", BUSY_PERCENT, &[], over_time: OverTime::Mean;
            "Mean utilization of the CPUs";
        cpu_avg_utilization_at100_pct: Percent, "system", BUSY_PERCENT, &[], over_time: OverTime::ShareAtLeast(100.0);
            "Share of the time in which all CPUs were busy";
        cpu_avg_utilization_over80_pct: Percent, "system", BUSY_PERCENT, &[], over_time: OverTime::ShareAtLeast(80.0);
            "Share of the time with a utilization of at least 80 %";
        cpu_avg_utilization_over40_pct: Percent, "system", BUSY_PERCENT, &[], over_time: OverTime::ShareAtLeast(40.0);
            "Share of the time with a utilization of at least 40 %";
        cpu_avg_utilization_over20_pct: Percent, "system", BUSY_PERCENT, &[], over_time: OverTime::ShareAtLeast(20.0);
            "Share of the time with a utilization of at least 20 %";
        max_t_mem_percent: Percent, "system", Value::Scaled(100.0, &Value::Ratio(&["memory_used"], &["memory_total"])), &[], over_time: OverTime::Max;
            "Largest share of the memory in use at a sample";
        max_t_disk_usage_percent: Percent, "filesystem", Value::Scaled(100.0, &Value::Ratio(&["used"], &["used", "available"])), &[Is("mount", "/")], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Largest share of the root file system in use at a sample";
        total_disk_io_read_mb: Mebibytes, "disk", Value::Scaled(1.0 / 1_048_576.0, &Value::Column("read_bytes")), PHYSICAL_DISKS;
            "Read from all physical disks";
        total_disk_io_write_mb: Mebibytes, "disk", Value::Scaled(1.0 / 1_048_576.0, &Value::Column("write_bytes")), PHYSICAL_DISKS;
            "Written to all physical disks";
        total_net_io_lo_sent_mb: Mebibytes, "netdev", Value::Scaled(1.0 / 1_048_576.0, &Value::Column("tx_bytes")), &[Is("kind", netdev::LOOPBACK)];
            "Sent over loopback";
        total_net_io_ext_sent_mb: Mebibytes, "netdev", Value::Scaled(1.0 / 1_048_576.0, &Value::Column("tx_bytes")), EXTERNAL_INTERFACES;
            "Sent over physical interfaces, in a container over those that lead out of it";
        total_net_io_lo_recv_mb: Mebibytes, "netdev", Value::Scaled(1.0 / 1_048_576.0, &Value::Column("rx_bytes")), &[Is("kind", netdev::LOOPBACK)];
            "Received over loopback";
        total_net_io_ext_recv_mb: Mebibytes, "netdev", Value::Scaled(1.0 / 1_048_576.0, &Value::Column("rx_bytes")), EXTERNAL_INTERFACES;
            "Received over physical interfaces, in a container over those that lead out of it";
    }

    /// The keys of pytyche's `ResourceSummary`, by its names and in its units.
    PYTYCHE {
        peak_vram_mb: Mebibytes, "gpu", Value::Scaled(1.0 / 1_048_576.0, &Value::Column("memory_used")), &[IsNull("parent_uuid")], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Largest memory in use on one GPU at a sample";
        gpu_util_mean_pct: Percent, "gpu", Value::Column("utilization"), &[IsNull("parent_uuid")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Mean utilization of the GPUs";
        gpu_util_max_pct: Percent, "gpu", Value::Column("utilization"), &[IsNull("parent_uuid")], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Largest utilization of a GPU at a sample";
        mem_util_mean_pct: Percent, "gpu", Value::Column("memory_utilization"), &[IsNull("parent_uuid")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Mean utilization of the GPUs' memory";
        mem_util_max_pct: Percent, "gpu", Value::Column("memory_utilization"), &[IsNull("parent_uuid")], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Largest utilization of a GPU's memory at a sample";
        power_watts_mean: Watts, "gpu", Value::Column("power_w"), &[IsNull("parent_uuid")], over_rows: OverRows::Mean, over_time: OverTime::Mean;
            "Mean power of a GPU";
        power_watts_max: Watts, "gpu", Value::Column("power_w"), &[IsNull("parent_uuid")], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Largest power of a GPU at a sample";
        cpu_usr_mean_pct: Percent, "system", Value::Scaled(100.0, &Value::Ratio(USER, ALL)), &[], over_time: OverTime::Mean;
            "Mean share of user mode in the time of all CPUs";
        cpu_idle_mean_pct: Percent, "system", Value::Scaled(100.0, &Value::Ratio(&["idle_ns"], ALL)), &[], over_time: OverTime::Mean;
            "Mean share of idle time in the time of all CPUs";
        jax_peak_bytes_mb: Mebibytes, "region_gauge", Value::Scaled(1.0 / 1_048_576.0, &Value::Column("value")), &[Is("name", "jax_peak_bytes")], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Largest value of the gauge `jax_peak_bytes`";
    }

    /// Of processes outside the target, by command name.
    NEIGHBOURS {
        neighbour_cpu_s: Seconds, "neighbour", Value::Scaled(1e-9, &Value::Column("cpu_ns")), &[];
            "CPU time of processes outside the target, while the target waited for CPUs";
    }

    /// Of disks, by device.
    DISKS {
        disk_busy_percent: Percent, "disk", Value::Scaled(100.0, &Value::Ratio(&["busy_ns"], &["interval_ns"])), &[Zero("partition")], over_time: OverTime::Mean;
            "Mean share of the time in which the disk had a request of any process";
        disk_requests: Count, "block_io", Value::Column("ops"), &[IsNull("tid")];
            "Requests of the target";
        disk_request_s: Seconds, "block_io", Value::Scaled(1e-9, &Value::Sum(&["queue_ns", "service_ns"])), &[IsNull("tid")];
            "Time of the requests of the target, summed over requests";
    }

    /// Of operations, by kind.
    LATENCIES {
        latency_count: Count, "latency", Value::Column("count"), &[IsNull("tid")];
            "Operations";
        latency_s: Seconds, "latency", Value::Scaled(1e-9, &Value::Column("sum_ns")), &[IsNull("tid")];
            "Time of the operations, summed over operations";
        latency_max_s: Seconds, "latency", Value::Scaled(1e-9, &Value::Column("max_ns")), &[IsNull("tid")], over_rows: OverRows::Max, over_time: OverTime::Max;
            "The longest operation";
    }

    /// Of system calls, by name (with --source +syscalls).
    SYSCALLS {
        syscall_count: Count, "syscalls", Value::Column("count"), &[IsNull("tid")];
            "Calls that returned";
        syscall_errors: Count, "syscalls", Value::Column("errors"), &[IsNull("tid")];
            "Calls that returned an error";
        syscall_s: Seconds, "syscalls", Value::Scaled(1e-9, &Value::Column("total_ns")), &[IsNull("tid")];
            "Time from entry to return, including waits";
    }

    /// Of threads, by host, process and thread id (with --threads).
    THREADS {
        thread_cpu_s: Seconds, "usage", Value::Scaled(1e-9, &Value::Sum(&["user_ns", "system_ns"])), &[NotNull("tid")];
            "CPU time of the thread";
        thread_runqueue_s: Seconds, "sched", Value::Scaled(1e-9, &Value::Column("runqueue_ns")), &[NotNull("tid")];
            "Time that the thread was runnable and waited for a CPU";
        thread_blocked_s: Seconds, "sched", Value::Scaled(1e-9, &Value::Column("blocked_ns")), &[NotNull("tid")];
            "Time that the thread waited uninterruptibly";
        thread_sleep_s: Seconds, "sched", Value::Scaled(1e-9, &Value::Column("sleep_ns")), &[NotNull("tid")];
            "Time that the thread slept interruptibly";
    }

    /// Of file systems, by mount.
    MOUNTS {
        mount_write_bytes: Bytes, "file_io", Value::Column("write_bytes"), &[IsNull("tid"), IsNot("method", "accounting")];
            "Bytes accepted by writes to files of the mount";
    }

    /// Of regions, by name.
    REGIONS {
        count: Count, "region_usage", Value::One, &[];
            "Regions that ended";
        region_cpu_s: Seconds, "region_usage", Value::Scaled(1e-9, &Value::Sum(&["user_ns", "system_ns"])), &[];
            "CPU time in the regions";
        region_runqueue_s: Seconds, "region_usage", Value::Scaled(1e-9, &Value::Column("runqueue_ns")), &[];
            "Time that threads were runnable and waited for a CPU in the regions";
        region_blocked_s: Seconds, "region_usage", Value::Scaled(1e-9, &Value::Column("blocked_ns")), &[];
            "Time that threads waited uninterruptibly in the regions";
        region_file_read_bytes: Bytes, "region_usage", Value::Column("file_read_bytes"), &[];
            "Bytes returned by reads of files in the regions";
        region_file_write_bytes: Bytes, "region_usage", Value::Column("file_write_bytes"), &[];
            "Bytes accepted by writes to files in the regions";
        region_block_read_bytes: Bytes, "region_usage", Value::Column("block_read_bytes"), &[];
            "Bytes read from block devices in the regions";
        region_block_write_bytes: Bytes, "region_usage", Value::Column("block_write_bytes"), &[];
            "Bytes written to block devices in the regions";
    }

    /// Durations of regions, by name.
    REGION_TIMES {
        region_s: Seconds, "region", Value::Scaled(1e-9, &Value::Column("interval_ns")), &[];
            "Sum of the lengths of the regions";
        region_max_s: Seconds, "region", Value::Scaled(1e-9, &Value::Column("interval_ns")), &[], over_rows: OverRows::Max, over_time: OverTime::Max;
            "Length of the longest region";
    }
}

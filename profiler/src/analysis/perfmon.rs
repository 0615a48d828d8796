//! Figures of SKA SDP's perfmon, for its plots and its files.

use super::{
    catalog::{INTERFACES, figures},
    figure::{
        Condition::{Is, IsNull, IsOneOf, NotNull},
        Figure, OverTime, Unit, Value,
    },
};

figures! {
    /// Of a node.
    OF_NODES {
        cpu_load: Percent, "timeline", Value::Column("target_cpu_percent"), &[], over_time: OverTime::Mean;
            "CPU time of the target over the interval; 100 is one CPU";
        memory: Bytes, "timeline", Value::Column("target_rss_sum"), &[], over_time: OverTime::Max;
            "Sum of the resident memory of the processes";
        llc_bandwidth: Bytes, "perf_metric", Value::Column("value"), &[Is("scope", "target"), IsNull("tid"), Is("metric", "llc_miss_local_bw")], over_time: OverTime::Mean;
            "Bandwidth of misses of the last-level cache served by the own node's memory";
        llc_remote_bandwidth: Bytes, "perf_metric", Value::Column("value"), &[Is("scope", "target"), IsNull("tid"), Is("metric", "llc_miss_remote_bw")], over_time: OverTime::Mean;
            "Bandwidth of misses of the last-level cache served by other memory";
        read_bandwidth: Bytes, "perf_metric", Value::Column("value"), &[Is("scope", "target"), IsNull("tid"), Is("metric", "mem_read_bw_est")], over_time: OverTime::Mean;
            "Estimated bandwidth of reads from memory";
        node_read_bandwidth: Bytes, "perf_metric", Value::Column("value"), &[Is("scope", "node"), Is("metric", "mem_read_bw")], over_time: OverTime::Mean;
            "Bandwidth of reads from memory by the whole node";
        tx_bytes: Bytes, "netdev", Value::Column("tx_bytes"), INTERFACES;
            "Bytes sent by loopback and physical interfaces";
        rx_bytes: Bytes, "netdev", Value::Column("rx_bytes"), INTERFACES;
            "Bytes received by loopback and physical interfaces";
        tx_packets: Count, "netdev", Value::Column("tx_packets"), INTERFACES;
            "Packets sent by loopback and physical interfaces";
        rx_packets: Count, "netdev", Value::Column("rx_packets"), INTERFACES;
            "Packets received by loopback and physical interfaces";
        fabric_tx_bytes: Bytes, "fabric", Value::Column("tx_bytes"), &[];
            "Bytes sent by all ports";
        fabric_rx_bytes: Bytes, "fabric", Value::Column("rx_bytes"), &[];
            "Bytes received by all ports";
        fabric_tx_packets: Count, "fabric", Value::Column("tx_packets"), &[];
            "Packets sent by all ports";
        fabric_rx_packets: Count, "fabric", Value::Column("rx_packets"), &[];
            "Packets received by all ports";
    }

    /// Of a node and socket.
    OF_SOCKETS {
        package: Joules, "energy", Value::Scaled(1e-6, &Value::Column("energy_uj")), &[Is("domain", "package")];
            "Power of the package";
        dram: Joules, "energy", Value::Scaled(1e-6, &Value::Column("energy_uj")), &[Is("domain", "dram")];
            "Power of the memory";
        core: Joules, "energy", Value::Scaled(1e-6, &Value::Column("energy_uj")), &[Is("domain", "core")];
            "Power of the cores";
        uncore: Joules, "energy", Value::Scaled(1e-6, &Value::Column("energy_uj")), &[Is("domain", "uncore")];
            "Power of the uncore";
    }

    /// Of a node, only in the files.
    OF_PROCESSES {
        samples: Count, "timeline", Value::One, &[];
            "1 for each sample";
        user_s: Seconds, "usage", Value::Scaled(1e-9, &Value::Column("user_ns")), &[IsNull("tid")];
            "CPU time in user mode";
        rss: Bytes, "usage", Value::Column("rss"), &[IsNull("tid")], over_time: OverTime::Mean;
            "Resident memory; shared pages are counted for each process";
        vms: Bytes, "usage", Value::Column("vms"), &[IsNull("tid")], over_time: OverTime::Mean;
            "Size of the address spaces";
        shared: Bytes, "usage", Value::Column("shared"), &[IsNull("tid")], over_time: OverTime::Mean;
            "Resident pages of files and shared memory";
        swap: Bytes, "usage", Value::Column("swap"), &[IsNull("tid")], over_time: OverTime::Mean;
            "Swapped out memory";
        threads: Count, "usage", Value::Column("threads"), &[IsNull("tid")], over_time: OverTime::Mean;
            "Threads";
        fds: Count, "usage", Value::Column("fds"), &[IsNull("tid")], over_time: OverTime::Mean;
            "Open file descriptors";
        read_bytes: Bytes, "usage", Value::Column("read_bytes"), &[IsNull("tid")];
            "Bytes fetched from storage";
        write_bytes: Bytes, "usage", Value::Column("write_bytes"), &[IsNull("tid")];
            "Bytes written to storage at once (O_DIRECT), or dirtied in the page cache and written later";
        read_calls: Count, "usage", Value::Column("read_syscalls"), &[IsNull("tid")];
            "Read system calls";
        write_calls: Count, "usage", Value::Column("write_syscalls"), &[IsNull("tid")];
            "Write system calls";
        memory_total: Bytes, "system", Value::Column("memory_total"), &[], over_time: OverTime::Mean;
            "Memory of the node";
        node_cpu: Percent, "system", super::catalog::BUSY_PERCENT, &[], over_time: OverTime::Mean;
            "Utilization of the CPUs";
        llc_all_bandwidth: Bytes, "perf_metric", Value::Column("value"), &[Is("scope", "target"), IsNull("tid"), IsOneOf("metric", &["llc_miss_local_bw", "llc_miss_remote_bw"])], over_time: OverTime::Mean;
            "Bandwidth of misses of the last-level cache";
        switches: Count, "usage", Value::Sum(&["voluntary_switches", "involuntary_switches"]), &[IsNull("tid")];
            "Context switches";
        migrations: Count, "sched", Value::Column("migrations"), &[IsNull("tid")];
            "Moves of threads to another CPU";
    }

    /// Of a power domain.
    OF_DOMAINS {
        energy_uj: Count, "energy", Value::Column("energy_uj"), &[IsOneOf("domain", &["package", "core", "uncore", "dram", "psys"])];
            "Energy of a domain of RAPL";
    }

    /// Of events and metrics of hardware counters.
    OF_COUNTERS {
        count: Count, "perf_event", Value::Column("count"), &[IsNull("tid"), NotNull("group"), IsOneOf("scope", &["process", "cpu"])];
            "Events in the target";
        metric: Count, "perf_metric", Value::Column("value"), &[IsNull("tid"), IsOneOf("scope", &["target", "node"])], over_time: OverTime::Mean;
            "Value computed from counts";
    }

    /// Of a GPU.
    OF_GPUS {
        readings: Count, "gpu", Value::One, &[IsNull("parent_uuid")];
            "1 for each reading";
        graphics_clock: Count, "gpu", Value::Scaled(1e-6, &Value::Column("graphics_clock_hz")), &[IsNull("parent_uuid")], over_time: OverTime::Mean;
            "Clock of the graphics engine, MHz";
        sm_clock: Count, "gpu", Value::Scaled(1e-6, &Value::Column("sm_clock_hz")), &[IsNull("parent_uuid")], over_time: OverTime::Mean;
            "Clock of the SMs, MHz";
        memory_clock: Count, "gpu", Value::Scaled(1e-6, &Value::Column("memory_clock_hz")), &[IsNull("parent_uuid")], over_time: OverTime::Mean;
            "Clock of the memory, MHz";
        ecc_corrected: Count, "gpu", Value::Column("ecc_corrected_total"), &[IsNull("parent_uuid")], over_time: OverTime::Max;
            "Corrected errors in the life of the GPU";
        ecc_uncorrected: Count, "gpu", Value::Column("ecc_uncorrected_total"), &[IsNull("parent_uuid")], over_time: OverTime::Max;
            "Uncorrected errors in the life of the GPU";
        memory_used: Bytes, "gpu", Value::Column("memory_used"), &[IsNull("parent_uuid")], over_time: OverTime::Mean;
            "Memory in use";
        bar1_used: Bytes, "gpu", Value::Column("bar1_used"), &[IsNull("parent_uuid")], over_time: OverTime::Mean;
            "Memory mapped through BAR1";
        utilization: Percent, "gpu", Value::Column("utilization"), &[IsNull("parent_uuid")], over_time: OverTime::Mean;
            "Utilization";
        memory_utilization: Percent, "gpu", Value::Column("memory_utilization"), &[IsNull("parent_uuid")], over_time: OverTime::Mean;
            "Utilization of the memory";
        encoder_utilization: Percent, "gpu", Value::Column("encoder_utilization"), &[IsNull("parent_uuid")], over_time: OverTime::Mean;
            "Utilization of the encoder";
        decoder_utilization: Percent, "gpu", Value::Column("decoder_utilization"), &[IsNull("parent_uuid")], over_time: OverTime::Mean;
            "Utilization of the decoder";
        power: Count, "gpu", Value::Scaled(1e3, &Value::Column("power_w")), &[IsNull("parent_uuid")], over_time: OverTime::Mean;
            "Power";
        violation: Count, "gpu", Value::Column("application_clocks_violation_ns"), &[IsNull("parent_uuid")];
            "Time with clocks below the application clocks";
        temperature: Count, "gpu", Value::Column("temperature"), &[IsNull("parent_uuid")], over_time: OverTime::Mean;
            "Temperature";
        fan: Percent, "gpu", Value::Column("fan_percent"), &[IsNull("parent_uuid")], over_time: OverTime::Mean;
            "Speed of the fan";
        processes: Count, "gpu", Value::Column("processes"), &[IsNull("parent_uuid")], over_time: OverTime::Mean;
            "Processes that compute on the GPU";
        pcie_tx_bytes: Bytes, "gpu", Value::Column("pcie_tx_bytes"), &[IsNull("parent_uuid")];
            "Bytes sent over PCIe";
        pcie_rx_bytes: Bytes, "gpu", Value::Column("pcie_rx_bytes"), &[IsNull("parent_uuid")];
            "Bytes received over PCIe";
    }
}

//! Facts about the node, of a run without processes.

use super::{Summary, facts::transferred, texts::joined};

impl Summary {
    /// Whether the run has nothing about processes.
    pub(super) fn is_of_nodes(&self) -> bool {
        let mut of_processes = ["user_s", "runqueue_s", "file_read_bytes"].iter();
        self.process_count == 0 && of_processes.all(|name| self.target.get(name).is_none())
    }

    fn node_cpus(&self) -> Option<String> {
        let node = &self.target;
        let hours = node.get("node_cpu_hours").zip(node.get("sampled_s"));
        let cpus = hours.filter(|(_, seconds)| *seconds > 0.0);
        let cpus = cpus.map(|(hours, seconds)| format!(" of {:.0} CPUs", hours * 3600.0 / seconds));
        joined([
            node.known("cpu_avg_utilization_pct")
                .map(|share| format!("{share}{} busy", cpus.unwrap_or_default())),
            node.known("max_t_cpu_pct_per_cpu_avg")
                .map(|share| format!("at most {share}")),
            node.positive("steal_s").map(|time| format!("steal {time}")),
        ])
    }

    fn node_memory(&self) -> Option<String> {
        let node = &self.target;
        let share = node.known("max_t_mem_percent");
        joined([
            node.known("peak_used_memory_bytes").map(|used| {
                let share = share.map_or(String::new(), |share| format!(" ({share})"));
                format!("at most {used} in use{share}")
            }),
            node.positive("oom_kills")
                .map(|count| format!("{count} killed for lack of memory")),
        ])
    }

    fn node_disks(&self) -> Option<String> {
        let node = &self.target;
        let disks = ["total_disk_io_read_mb", "total_disk_io_write_mb"];
        joined([
            transferred(node, disks, ["read", "written"]),
            node.known("max_t_disk_usage_percent")
                .map(|share| format!("/ is {share} full")),
        ])
    }

    fn node_network(&self) -> Option<String> {
        let node = &self.target;
        let interfaces = ["total_net_io_ext_recv_mb", "total_net_io_ext_sent_mb"];
        let fabric = ["fabric_rx_bytes", "fabric_tx_bytes"];
        let fabric = transferred(node, fabric, ["in", "out"]);
        joined([
            transferred(node, interfaces, ["received", "sent"]),
            node.positive("total_net_io_lo_sent_mb")
                .map(|bytes| format!("{bytes} over loopback")),
            fabric.map(|fabric| format!("fabric {fabric}")),
        ])
    }

    fn node_gpus(&self) -> Option<String> {
        joined(self.nodes.iter().flat_map(|node| &node.gpus).map(|gpu| {
            let busy = gpu.resources.known("gpu_util_mean_pct")?;
            let index = gpu.index.map_or(String::new(), |index| format!(" {index}"));
            Some(format!("GPU{index} {busy} busy"))
        }))
    }

    /// CPUs, memory, disks, network and GPUs of the nodes.
    pub(super) fn node_facts(&self) -> [(&'static str, Option<String>); 5] {
        [
            ("CPUs", self.node_cpus()),
            ("memory", self.node_memory()),
            ("disks", self.node_disks()),
            ("network", self.node_network()),
            ("GPUs", self.node_gpus()),
        ]
    }
}

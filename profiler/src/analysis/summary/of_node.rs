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
            node.known("node_cpu_utilization_percent")
                .map(|share| format!("{share}{} busy", cpus.unwrap_or_default())),
            node.known("node_max_cpu_utilization_percent")
                .map(|share| format!("at most {share}")),
            node.positive("steal_s").map(|time| format!("steal {time}")),
        ])
    }

    fn node_memory(&self) -> Option<String> {
        let node = &self.target;
        let share = node.known("node_max_memory_percent");
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
        let disks = ["node_disk_read_bytes", "node_disk_write_bytes"];
        joined([
            transferred(node, disks, ["read", "written"]),
            node.known("node_max_root_fs_percent")
                .map(|share| format!("/ is {share} full")),
        ])
    }

    fn node_network(&self) -> Option<String> {
        let node = &self.target;
        let interfaces = ["node_net_rx_bytes", "node_net_tx_bytes"];
        let fabric = ["fabric_rx_bytes", "fabric_tx_bytes"];
        let fabric = transferred(node, fabric, ["in", "out"]);
        joined([
            transferred(node, interfaces, ["received", "sent"]),
            node.positive("node_loopback_tx_bytes")
                .map(|bytes| format!("{bytes} over loopback")),
            fabric.map(|fabric| format!("fabric {fabric}")),
        ])
    }

    fn node_gpus(&self) -> Option<String> {
        joined(self.nodes.iter().flat_map(|node| &node.gpus).map(|gpu| {
            let busy = gpu.figures.known("gpu_utilization_mean_percent")?;
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

//! What a run tells about the delays of its machine, so that no test has to assume a speed.

use crate::{dataset::Dataset, rows::sum};

impl Dataset {
    /// Samples that were due and not taken.
    pub fn missed_samples(&self) -> u64 {
        self.lost("samples")
    }

    /// Time that the hypervisor took from all CPUs, in ns: the CPU time of a running thread can
    /// include it.
    pub fn stolen_ns(&self) -> u64 {
        sum(&self.table("system"), "steal_ns")
    }

    /// Time of interrupts on all CPUs, in ns: perf's task clock includes it, the scheduler's time
    /// may not.
    pub fn interrupt_ns(&self) -> u64 {
        let rows = self.table("system");
        sum(&rows, "irq_ns") + sum(&rows, "softirq_ns")
    }

    /// Asserts that nothing was lost but samples for which the machine was too busy.
    #[track_caller]
    pub fn assert_lossless(&self) {
        let losses = self.manifest()["losses"].clone();
        let other = |loss: &&serde_json::Value| loss["what"] != "samples";
        let found = losses.as_array().expect("a list").iter().find(other);
        assert_eq!(found, None, "{losses}");
    }
}

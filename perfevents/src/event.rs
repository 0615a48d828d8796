//! One hardware event, as a data file says it.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Numbers;

/// What a PMU can count.
///
/// ```toml
/// [event."L2_LINES_IN.ALL"]
/// help = "Lines brought into the L2 cache, by demand and by prefetch"
/// code = { event = 0xf1, umask = 0x1f }
/// sources = ["vendor", "libpfm4", "likwid"]
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// What is counted.
    pub help: String,
    /// Name of the PMU in sysfs; `*` is a number, and all that there are count together. `cpu` is the core's own,
    /// whatever its name.
    #[serde(default = "core_pmu")]
    pub pmu: String,
    /// Values of the fields that the PMU's `format/` folder names.
    #[serde(default)]
    pub code: BTreeMap<String, u64>,
    /// Name in the PMU's `events/` folder, where the kernel knows what a count is worth, or alone knows the code.
    pub alias: Option<String>,
    /// Counters that can count it, from 0 on; all when absent. PMC1 of POWER is 0.
    pub counters: Option<Numbers>,
    /// Fixed counter that counts it as well.
    pub fixed: Option<u32>,
    /// Counters that it takes.
    #[serde(default = "one")]
    pub takes: u32,
    /// Whether it must be the first of those opened together.
    #[serde(default)]
    pub leads: bool,
    /// Who says so, independently of one another.
    pub sources: Vec<Source>,
    /// False when fewer than two say so.
    #[serde(default = "yes")]
    pub validated: bool,
    /// Number of the vendor's erratum.
    pub errata: Option<String>,
}

/// Whose tables have an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Who makes the processor.
    Vendor,
    /// Drivers of the Linux kernel.
    Kernel,
    /// perfmon2's library.
    Libpfm4,
    /// LIKWID.
    Likwid,
}

/// The name that stands for the core's PMU.
pub const CORE_PMU: &str = "cpu";

/// Events that the kernel maps to the core's PMU (`PERF_TYPE_HARDWARE`), by their numbers.
pub const HARDWARE_PMU: &str = "hardware";

/// Cache events that the kernel maps to the core's PMU (`PERF_TYPE_HW_CACHE`), by their numbers.
pub const CACHE_PMU: &str = "hw_cache";

/// Events of the kernel itself (`PERF_TYPE_SOFTWARE`), by their numbers.
pub const SOFTWARE_PMU: &str = "software";

/// PMUs that are the kernel's own: their codes are numbers of its interface, and no processor's.
pub const KERNEL_PMUS: [&str; 3] = [HARDWARE_PMU, CACHE_PMU, SOFTWARE_PMU];

fn core_pmu() -> String {
    CORE_PMU.to_owned()
}

const fn one() -> u32 {
    1
}

const fn yes() -> bool {
    true
}

impl Event {
    /// Whether it is counted for a task or a CPU; otherwise it is of a socket or another part of the node.
    pub fn is_core(&self) -> bool {
        self.pmu == CORE_PMU || KERNEL_PMUS.contains(&&*self.pmu)
    }
}

/// The counters of a PMU.
///
/// ```toml
/// [pmu.cpu]
/// counters = 4
/// counters_without_smt = 8
/// fixed = 3
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pmu {
    /// Programmable counters, for each thread of a core; not known when absent.
    pub counters: Option<u32>,
    /// The same when a core has one thread only, if that makes a difference.
    pub counters_without_smt: Option<u32>,
    /// Counters of one event each.
    pub fixed: u32,
    /// What else to know.
    pub notes: Vec<String>,
}

//! Hardware events and the PMUs that count them.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{
    Numbers, Source, WORDS,
    source::{self, Origins},
};

/// An event that a PMU can count.
///
/// ```toml
/// [event."L2_LINES_IN.ALL"]
/// help = "Lines brought into the L2 cache, by demand and by prefetch"
/// code = { event = 0xf1, umask = 0x1f }
/// config = 0x1ff1
/// sources = ["perfmon", "libpfm4", "likwid"]
/// ```
#[derive(Clone, Debug)]
pub struct Event {
    /// What the event counts.
    pub help: String,
    /// Name of the PMU in sysfs. `*` stands for a number: all such PMUs are counted together. `cpu`
    /// is the core's own PMU, whatever its name.
    pub pmu: String,
    /// Values of the fields in the PMU's `format/` directory.
    pub code: BTreeMap<String, u64>,
    /// The same code as whole words, `config` and `config1`, copied from its sources: a cross-check
    /// of `code`.
    pub config: Option<[u64; WORDS]>,
    /// Name in the PMU's `events/` directory, where only the kernel has the code or the scale.
    pub alias: Option<String>,
    /// Counters that can count the event, from 0 on; all when absent. PMC1 of POWER is 0.
    pub counters: Option<Numbers>,
    /// The fixed counter that counts the event, too.
    pub fixed: Option<u32>,
    /// Counters that the event occupies.
    pub takes: u32,
    /// Whether the event must be the first of its group (Intel's `TOPDOWN.SLOTS`).
    pub leads: bool,
    /// Tables and documents that have the encoding.
    pub origins: Origins,
    /// Publishers of the encoding, independent of one another.
    pub sources: Vec<Source>,
    /// Whether at least two publishers have the encoding.
    pub validated: bool,
    /// The vendor's erratum about this event.
    pub errata: Option<String>,
}

/// Name of the core's PMU in tables, whatever its name in sysfs.
pub const CORE_PMU: &str = "cpu";

/// PMU of the generic events that the kernel maps to the core's PMU (`PERF_TYPE_HARDWARE`).
pub const HARDWARE_PMU: &str = "hardware";

/// PMU of the cache events that the kernel maps to the core's PMU (`PERF_TYPE_HW_CACHE`).
pub const CACHE_PMU: &str = "hw_cache";

/// PMU of the kernel's software events (`PERF_TYPE_SOFTWARE`).
pub const SOFTWARE_PMU: &str = "software";

/// PMUs of the kernel. Their codes are numbers of its interface, not of a processor.
pub const KERNEL_PMUS: [&str; 3] = [HARDWARE_PMU, CACHE_PMU, SOFTWARE_PMU];

impl Event {
    /// Whether the event is counted for a task or a CPU, not for a socket or another part of the
    /// node.
    pub fn is_core(&self) -> bool {
        self.pmu == CORE_PMU || self.is_of_kernel()
    }

    /// Whether the kernel defines the event, not the processor.
    pub fn is_of_kernel(&self) -> bool {
        KERNEL_PMUS.contains(&&*self.pmu)
    }

    /// Whether the event has a code of the processor, which other tables can have, too.
    pub fn has_encoding(&self) -> bool {
        !self.code.is_empty() && !self.is_of_kernel()
    }

    /// Derives `sources` and `validated` from `origins`.
    pub(crate) fn count_sources(&mut self) {
        self.sources = source::sources(&self.origins);
        self.validated = self.sources.len() > 1;
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
    /// Programmable counters, per hardware thread; unknown when absent.
    pub counters: Option<u32>,
    /// Programmable counters when a core has one thread, if their number differs.
    pub counters_without_smt: Option<u32>,
    /// Counters of one event each.
    pub fixed: u32,
    /// Limitations.
    pub notes: Vec<String>,
}

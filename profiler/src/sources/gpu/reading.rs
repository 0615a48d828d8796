//! One reading of a driver, and the increases of its counters since the previous one.

use super::{
    GpuKey, GpuProcessRow, GpuRow,
    device::{DeviceKey, DeviceRow},
};
use crate::{
    schema::{Label, Timestamp},
    support::{clock::Tick, delta::Range, device_counters::Devices},
};

/// Request for a reading.
pub(super) struct Request {
    /// The sample that starts the reading.
    pub(super) tick: Tick,
    /// Processes of the target; `None` for all of /proc.
    pub(super) pids: Option<Vec<u32>>,
}

/// Rows of one reading.
pub(super) struct Reading {
    /// Wall clock of the sample that started the reading.
    pub(super) ts: Timestamp,
    /// End of the reading, `CLOCK_MONOTONIC` in ns.
    pub(super) read_at: u64,
    pub(super) gpus: Vec<(GpuKey, GpuRow)>,
    /// Facts about GPUs that were not read before.
    pub(super) devices: Vec<(DeviceKey, DeviceRow)>,
    /// Use of the GPUs by processes.
    pub(super) processes: Vec<Usage>,
    /// The first error.
    pub(super) error: Option<String>,
}

/// Use of one GPU by one process.
pub(super) struct Usage {
    /// Pid in the profiler's namespace.
    pub(super) pid: u32,
    /// Time since the previous reading, ns.
    pub(super) interval_ns: u64,
    pub(super) row: GpuProcessRow,
}

const COUNTERS: usize = 14;

/// Columns that drivers count since they were loaded.
fn counters(row: &mut GpuRow) -> [&mut Option<u64>; COUNTERS] {
    [
        &mut row.energy_uj,
        &mut row.pcie_replays,
        &mut row.nvlink_tx_bytes,
        &mut row.nvlink_rx_bytes,
        &mut row.ecc_corrected,
        &mut row.ecc_uncorrected,
        &mut row.power_violation_ns,
        &mut row.thermal_violation_ns,
        &mut row.board_limit_violation_ns,
        &mut row.reliability_violation_ns,
        &mut row.sync_boost_violation_ns,
        &mut row.low_utilization_violation_ns,
        &mut row.application_clocks_violation_ns,
        &mut row.base_clocks_violation_ns,
    ]
}

/// Counters of all GPUs with their previous values.
pub(super) struct Counters(Devices<(), COUNTERS>);

impl Counters {
    pub(super) fn new() -> Self {
        Self(Devices::new([Range::Unlimited; COUNTERS]))
    }

    /// Begins a reading. GPUs that were missing in the previous one are forgotten.
    pub(super) fn begin(&mut self) {
        self.0.begin();
    }

    /// Replaces the counters of a row by their increases. Returns the interval, or `None` at the
    /// first reading of a GPU.
    pub(super) fn increase(&mut self, name: &str, now: u64, row: &mut GpuRow) -> Option<u64> {
        let raw = counters(row).map(|counter| *counter);
        let increase = self.0.read(name.as_bytes(), now, raw, || ())?;
        for (counter, count) in counters(row).into_iter().zip(increase.counts) {
            *counter = count;
        }
        Some(increase.interval_ns)
    }
}

/// Names of the set bits, joined: reasons for reduced clocks.
pub(super) fn named(bits: u64, known: impl IntoIterator<Item = (u64, &'static str)>) -> Label {
    let mut names = Vec::new();
    let mut unknown = bits;
    for (mask, name) in known {
        if bits & mask != 0 {
            names.push(name);
        }
        unknown &= !mask;
    }
    if unknown != 0 {
        names.push("unknown");
    }
    if names.is_empty() {
        return "none".into();
    }
    names.join("+").into()
}

//! What a driver said once, and the increase of its counters since it was asked before.

use super::{GpuKey, GpuProcessRow, GpuRow};
use crate::{
    schema::{Label, Timestamp},
    support::{
        clock::Tick,
        device_counters::{Devices, Width},
    },
};

/// What a driver is asked for at a tick.
pub(super) struct Request {
    /// The tick.
    pub(super) tick: Tick,
    /// Processes of the target; all of /proc if none.
    pub(super) pids: Option<Vec<u32>>,
}

/// Rows of one reading.
pub(super) struct Reading {
    /// The tick at which it began.
    pub(super) ts: Timestamp,
    /// When it ended, `CLOCK_MONOTONIC` in ns.
    pub(super) read_at: u64,
    /// Its GPUs.
    pub(super) gpus: Vec<(GpuKey, GpuRow)>,
    /// The processes on them.
    pub(super) processes: Vec<Usage>,
    /// The first thing that failed.
    pub(super) error: Option<String>,
}

/// One process on one GPU.
pub(super) struct Usage {
    /// Its pid in the profiler's namespace.
    pub(super) pid: u32,
    /// Since the reading before, ns.
    pub(super) interval_ns: u64,
    /// What it did.
    pub(super) row: GpuProcessRow,
}

const COUNTERS: usize = 10;

/// The columns that drivers count from their start.
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
    ]
}

/// What was read of each GPU before.
pub(super) struct Before(Devices<(), COUNTERS>);

impl Before {
    pub(super) fn new() -> Self {
        Self(Devices::new([Width::Long; COUNTERS]))
    }

    /// Begins a reading: who was not in the one before is forgotten.
    pub(super) fn begin(&mut self) {
        self.0.begin();
    }

    /// Turns counters into increases; the interval, or `None` at the first sight of a GPU.
    pub(super) fn take(&mut self, name: &str, now: u64, row: &mut GpuRow) -> Option<u64> {
        let raw = counters(row).map(|counter| *counter);
        let increase = self.0.take(name.as_bytes(), now, raw, || ())?;
        for (counter, count) in counters(row).into_iter().zip(increase.counts) {
            *counter = count;
        }
        Some(increase.interval_ns)
    }
}

/// Names of the bits that are set, joined: reasons why the clocks are held down.
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

//! Tables of regions, events and gauges.

use crate::{
    columns,
    schema::{Label, Timestamp, TypedTable},
};

use super::usage::RegionUsageRow;

columns! {
    /// Identity of a region, and time of the row.
    pub struct RegionKey {
        ts: Timestamp = Label("us", "Time of the last update of this row: wall clock of a reading"),
        interval_ns: Option<u64> = Gauge("ns", "Length of the region; null while it is open, and if its start is unknown"),
        pid: u32 = Label("", "Process id (thread group id) in the profiler's pid namespace"),
        start_ts: Timestamp = Label("us", "Start of the process; (pid, start_ts) identifies it"),
        region_id: u64 = Label("", "Number of the region, unique for this host in this run"),
    }
}

columns! {
    /// A region, phase or event.
    pub struct RegionRow {
        name: Option<Label> = Label("", "Name given by the application; null for an end without a start that has no name"),
        op: Label = Label("", "Type of mark: region (start and end), phase (one mark at the end), event (no length)"),
        kind: Option<Label> = Label("", "Kind given by the application"),
        user_id: Option<String> = Label("", "Identifier given by the application"),
        user_parent_id: Option<String> = Label("", "Identifier of the enclosing region, given by the application"),
        parent_region_id: Option<u64> = Label("", "Number of the enclosing region, if it was open in this process or an ancestor"),
        group: Option<Label> = Label("", "Group of regions, given by the application"),
        status: Option<Label> = Label("", "finished, error, or another word chosen by the application; unfinished (the process ended first), run_ended (the run ended first), unmatched (an end without a start); null for events and while the region is open"),
        region_start_ts: Option<Timestamp> = Label("us", "Time at which the start was marked; null for an end without a start"),
        region_end_ts: Option<Timestamp> = Label("us", "Time at which the end was marked, the process ended, or the run ended; null while the region is open"),
        attributes: Option<String> = Label("", "Attributes given by the application, JSON"),
        used: Option<String> = Label("", "Inputs given by the application, JSON"),
        generated: Option<String> = Label("", "Outputs given by the application, JSON"),
        tags: Option<String> = Label("", "Tags given by the application, JSON"),
    }
}

columns! {
    /// Columns of `process` in the view `process_region`.
    pub struct ProcessName {
        comm: Option<Label> = Label("", "Command name of the process"),
        cmdline: Option<String> = Label("", "Arguments of the process, joined by spaces"),
    }
}

columns! {
    /// Process and time of a gauge.
    pub struct GaugeKey {
        ts: Timestamp = Label("us", "Time at which the mark was sent"),
        pid: u32 = Label("", "Process id (thread group id) in the profiler's pid namespace"),
        start_ts: Timestamp = Label("us", "Start of the process; (pid, start_ts) identifies it"),
    }
}

columns! {
    /// A value that the application reported.
    pub struct GaugeRow {
        name: Option<Label> = Label("", "Name of the gauge"),
        value: f64 = Gauge("", "Value in `unit`"),
        unit: Option<Label> = Label("", "Unit given by the application"),
        kind: Option<Label> = Label("", "Kind given by the application"),
        group: Option<Label> = Label("", "Group of gauges and regions, given by the application"),
        user_parent_id: Option<String> = Label("", "Identifier of the region that the gauge belongs to, given by the application"),
        parent_region_id: Option<u64> = Label("", "Number of that region, if it was open in this process or an ancestor"),
        attributes: Option<String> = Label("", "Attributes given by the application, JSON"),
        tags: Option<String> = Label("", "Tags given by the application, JSON"),
    }
}

columns! {
    /// Identity of a region, and the readings at its start and end.
    pub struct UsageKey {
        ts: Timestamp = Label("us", "Wall clock of the reading at the end of the region"),
        interval_ns: Option<u64> = Gauge("ns", "Time between the readings at the start and the end of the region; null if both are the same reading, in which case the usage is unknown"),
        pid: u32 = Label("", "Process id (thread group id) in the profiler's pid namespace"),
        start_ts: Timestamp = Label("us", "Start of the process; (pid, start_ts) identifies it"),
        region_id: u64 = Label("", "Number of the region, unique for this host in this run"),
    }
}

columns! {
    /// A hardware event during a region.
    pub struct RegionEventRow {
        name: Option<Label> = Label("", "Name of the region"),
        pmu: Label = Label("", "PMU of the event"),
        group: Option<Label> = Label("", "Group of the event; null for events selected with --events"),
        event: Label = Label("", "Name of the event in the table of the CPU"),
        count: Option<f64> = Counter("1", "Count, scaled from the time it was counted to the whole time; null if the event was not counted throughout the region"),
        count_raw: u64 = Counter("1", "Count without scaling"),
        enabled_ns: u64 = Counter("ns", "Time for which the event was enabled"),
        running_ns: u64 = Counter("ns", "Time for which the event was on a counter"),
    }
}

pub static REGION: TypedTable<RegionKey, RegionRow> = TypedTable::keyed(
    "region",
    "One row per region, phase or event that the application marked",
);

pub static USAGE: TypedTable<UsageKey, RegionUsageRow> = TypedTable::new(
    "region_usage",
    "One row per ended region: resources used by its process and the descendants between the readings at its start and end",
);

pub static PERF: TypedTable<UsageKey, RegionEventRow> = TypedTable::new(
    "region_perf",
    "One row per ended region and hardware event, if the events of its process are counted",
);

/// Table `region_gauge`.
pub static GAUGE: TypedTable<GaugeKey, GaugeRow> = TypedTable::new(
    "region_gauge",
    "One row per value that the application reported",
);

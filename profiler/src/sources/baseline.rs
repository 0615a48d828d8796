//! `baseline`: cumulative counters of the node at the first sample.
//!
//! Other tables have the increases since then. Their sum and the baseline are the values since boot
//! that `/proc` shows.

use std::path::Path;

use anyhow::Result;
use arrow::{
    array::{Array as _, AsArray as _},
    datatypes::UInt64Type,
};

use super::{Source, SourceSpec, TickContext, cpu, disk, netdev};
use crate::{
    columns,
    host::Host,
    procfs::{
        device_file::ParseLine,
        file::lines,
        meminfo::{Paging, VmStat},
        stat::{self, Increases, ProcStat, STATES, StateTimes, Times, tick_ns},
    },
    schema::{Batch, Columns, Kind, Label, TableBuilder, TickKey, Timestamp, TypedTable},
    support::device_counters::Increase,
};

columns! {
    /// Time of the reading.
    pub struct BaselineKey {
        ts: Timestamp = Label("us", "Wall clock of the first sample"),
    }
}

columns! {
    /// One counter.
    pub struct BaselineRow {
        table_name: Label = Label("", "Table with the increases of the counter: system, cpu, disk or netdev"),
        instance: Label = Label("", "Device, or number of the CPU; empty in rows of the whole node"),
        column_name: Label = Label("", "Column with the increases of the counter"),
        value: u64 = Gauge("", "Value since boot, or since the device appeared, in the unit of that column"),
    }
}

static TABLE: TypedTable<BaselineKey, BaselineRow> = TypedTable::new(
    "baseline",
    "One row per run and cumulative counter of the node: its value at the first sample",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "baseline",
    help: "values since boot of the counters of CPUs, disks and network interfaces, once per run",
    tables: &[TABLE.untyped()],
    open: |context| {
        Ok(Box::new(Baseline {
            host: Some(context.host.clone()),
            rows: TableBuilder::new(&TABLE),
        }))
    },
    ..SourceSpec::DEFAULT
};

struct Baseline {
    /// `None` after the reading.
    host: Option<Host>,
    rows: TableBuilder<BaselineKey, BaselineRow>,
}

/// A counter: table, item, column and value.
type Value = (&'static str, String, &'static str, u64);

impl Source for Baseline {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let Some(host) = self.host.take() else {
            return Ok(());
        };
        let mut values = Vec::new();
        add_times(&host, &mut values);
        add_paging(&host, &mut values);
        add_devices(
            &host.procfs.join("diskstats"),
            disk::parse,
            |name, counts| disk::row(&raw(&disk::Facts::read(&host.sysfs, name), counts)),
            &disk::TABLE,
            &mut values,
        );
        let namespace = netdev::Namespace::of(&host);
        add_devices(
            &host.procfs.join("net/dev"),
            netdev::parse,
            |name, counts| netdev::row(&raw(&namespace.facts(name), counts)),
            &netdev::TABLE,
            &mut values,
        );
        for (table, item, column, value) in values {
            self.rows.push(
                BaselineKey { ts: ctx.tick.ts },
                BaselineRow {
                    table_name: table.into(),
                    instance: item.into(),
                    column_name: column.into(),
                    value,
                },
            );
        }
        self.rows.finish(out);
        Ok(())
    }
}

/// Times per state of the node and of each CPU, and counts of events.
fn add_times(host: &Host, values: &mut Vec<Value>) {
    let Ok(text) = std::fs::read(stat::file(&host.procfs)) else {
        return;
    };
    let mut parsed = ProcStat::default();
    parsed.parse(&text);
    let mut add = |table, item: String, times: &Times| {
        let row = cpu::row(0, since_boot(times), None);
        let known = counters(row, &cpu::TABLE).into_iter();
        values.extend(known.map(|(column, value)| (table, item.clone(), column, value)));
    };
    add("system", String::new(), &parsed.total);
    for (number, times) in &parsed.cpus {
        add("cpu", number.to_string(), times);
    }
    let counts = [
        ("context_switches", parsed.context_switches),
        ("interrupts", parsed.interrupts),
        ("softirqs", parsed.softirqs),
        ("forks", parsed.forks),
    ];
    add_known("system", counts, values);
}

/// Increases since the times were 0.
fn since_boot(times: &Times) -> Increases {
    let mut counters = StateTimes::default();
    let tick_ns = tick_ns();
    counters.increase(&[Some(0); STATES], u64::MAX, tick_ns);
    counters.increase(times, u64::MAX, tick_ns)
}

/// Swapping, paging and page faults.
fn add_paging(host: &Host, values: &mut Vec<Value>) {
    let Ok(text) = std::fs::read(host.procfs.join("vmstat")) else {
        return;
    };
    let zero = b"pgpgin 0\npgpgout 0\npswpin 0\npswpout 0\npgfault 0\npgmajfault 0\noom_kill 0\n";
    let mut paging = Paging::default();
    paging.increase(&VmStat::parse(zero), host.page_size);
    let counts = paging.increase(&VmStat::parse(&text), host.page_size);
    let counts = [
        ("swap_in_bytes", counts.swapped_in),
        ("swap_out_bytes", counts.swapped_out),
        ("minor_faults", counts.minor_faults),
        ("major_faults", counts.major_faults),
        ("page_in_bytes", counts.paged_in),
        ("page_out_bytes", counts.paged_out),
        ("oom_kills", counts.oom_kills),
    ];
    add_known("system", counts, values);
}

fn add_known<const N: usize>(
    table: &'static str,
    counts: [(&'static str, Option<u64>); N],
    values: &mut Vec<Value>,
) {
    let known = counts.into_iter().filter_map(|(column, value)| {
        let value = value?;
        Some((table, String::new(), column, value))
    });
    values.extend(known);
}

/// Counters of all devices of a file, converted by `row` to the units of the columns.
fn add_devices<R: Columns, const N: usize>(
    path: &Path,
    parse: ParseLine<N>,
    row: impl Fn(&str, [Option<u64>; N]) -> R,
    table: &'static TypedTable<TickKey, R>,
    values: &mut Vec<Value>,
) {
    let text = std::fs::read(path).unwrap_or_default();
    for (name, counts) in lines(&text).filter_map(parse) {
        let name = String::from_utf8_lossy(name).into_owned();
        let known = counters(row(&name, counts), table).into_iter();
        values.extend(known.map(|(column, value)| (table.name, name.clone(), column, value)));
    }
}

/// The values of a device as increases.
fn raw<F, const N: usize>(facts: &F, counts: [Option<u64>; N]) -> Increase<'_, F, N> {
    Increase {
        facts,
        interval_ns: 0,
        counts,
        values: counts,
    }
}

/// Counters of a row that are known, by column.
fn counters<R: Columns>(
    row: R,
    table: &'static TypedTable<TickKey, R>,
) -> Vec<(&'static str, u64)> {
    let mut builder = TableBuilder::new(table);
    let key = TickKey {
        ts: Timestamp::from_us(0),
        interval_ns: 0,
    };
    builder.push(key, row);
    let mut batches = Vec::new();
    builder.finish(&mut batches);
    let rows = batches.iter().flat_map(|batch| {
        let columns = batch.table.columns().zip(batch.rows.columns());
        columns.filter(|(column, _)| column.kind == Kind::Counter)
    });
    let known = rows.filter_map(|(column, values)| {
        let values = values.as_primitive_opt::<UInt64Type>()?;
        (!values.is_null(0)).then(|| (column.name, values.value(0)))
    });
    known.collect()
}

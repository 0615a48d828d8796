//! Figures of all hosts over time.

use std::collections::{BTreeMap, HashMap};

use super::{
    latencies::{Latencies, read_latencies},
    plots::{BY_CPU, DEVICES, PLOTTED, of_processes},
};
use crate::analysis::{
    catalog::PROCESSES,
    figure::Figure,
    rows::{ProcessKey, Texts, integers, processes, times},
    scan::{Groups, OverTimes, Request, for_each_host, scan},
    series::{Named, Span},
    stored_run::{StoredHost, StoredRun},
    summary::{Summary, process_subject},
};

/// Intervals of a plot.
const INTERVALS: u64 = 360;
/// Processes of a run whose figures can be selected.
const TOP: usize = 16;
/// Ranks of a run whose figures can be selected.
pub const RANKS: usize = 128;

/// Figures over time.
pub struct OverTime {
    pub span: Span,
    /// Whether an interval of the plots has several samples.
    pub is_reduced: bool,
    pub hosts: Vec<OfHost>,
}

/// Those of one host.
#[derive(Default)]
pub struct OfHost {
    pub name: String,
    /// Of all processes and of the node.
    pub figures: BTreeMap<&'static str, Named>,
    pub cpus: Named,
    /// By name of the device.
    pub devices: BTreeMap<&'static str, Named>,
    /// By rank, with as many digits that names are sorted by number.
    pub ranks: BTreeMap<&'static str, Named>,
    /// Of the processes with most CPU time, by their names in scripts.
    pub top: BTreeMap<&'static str, Named>,
    pub latencies: Latencies,
    pub processes: Vec<Life>,
    pub regions: Vec<Region>,
}

/// A process from its start to its end.
#[derive(Clone, Debug)]
pub struct Life {
    pub host: String,
    /// Name in scripts.
    pub subject: String,
    pub key: ProcessKey,
    pub name: String,
    pub end: Option<i64>,
    pub failed: bool,
    /// CPU time, ns; `None` if it is unknown.
    pub cpu: Option<i64>,
}

/// A region.
#[derive(Clone, Debug)]
pub struct Region {
    pub name: String,
    pub start: i64,
    pub end: Option<i64>,
}

/// The time of the plots of a run.
pub fn span_of(run: &StoredRun, summary: &Summary) -> Span {
    span(run, summary).0
}

/// The time from the first start to the last row of the hosts, and the number of samples in it.
fn span(run: &StoredRun, summary: &Summary) -> (Span, u64) {
    let ends = for_each_host(&run.hosts, |host| {
        let mut range: Option<(i64, i64)> = None;
        for table in ["timeline", "system", "usage", "process"] {
            let _ = run.read(table, host, &["ts"], |batch| {
                for ts in times(batch, "ts").into_iter().flatten() {
                    let (first, last) = range.unwrap_or((ts, ts));
                    range = Some((first.min(ts), last.max(ts)));
                }
            });
            if range.is_some() {
                break;
            }
        }
        range
    });
    let ends: Vec<_> = ends.into_iter().flatten().collect();
    let first = ends.iter().map(|(first, _)| *first).min().unwrap_or(0);
    let last = ends.iter().map(|(_, last)| *last).max().unwrap_or(0);
    let started = summary.identity.start.map_or(first, |ns| ns / 1000);
    // A start that is long before the first row is that of an earlier session or of a wrong clock.
    let start = if (0..60_000_000).contains(&(first - started)) {
        started
    } else {
        first
    };
    let length = u64::try_from(last - start)
        .unwrap_or(0)
        .saturating_mul(1000);
    let ticks = summary
        .identity
        .interval_ns
        .map_or(INTERVALS, |interval| length / interval.max(1));
    let span = Span {
        start,
        end: last.max(start + 1),
        intervals: usize::try_from(ticks.clamp(8, INTERVALS)).unwrap_or(8),
    };
    (span, ticks)
}

/// Reads everything that the plots need.
pub fn read(run: &StoredRun, summary: &Summary, redact: bool) -> OverTime {
    let (span, ticks) = span(run, summary);
    let selectable = of_processes();
    let lives = for_each_host(&run.hosts, |host| lives(run, host, redact));
    let top = top(&lives);
    let hosts = for_each_host(&run.hosts, |host| {
        let ranks = ranks(run, host);
        let top = top.get(&host.name).cloned().unwrap_or_default();
        let mut requests = vec![
            request(span, PROCESSES, Groups::All),
            request(span, PLOTTED, Groups::All),
            request(span, BY_CPU, Groups::Columns(vec!["cpu"])),
            request(span, &selectable, Groups::Process(ranks)),
            request(span, &selectable, Groups::Process(top)),
        ];
        let devices = DEVICES.iter();
        requests
            .extend(devices.map(|of| request(span, of.figures, Groups::Columns(vec![of.column]))));
        scan(run, host, &mut requests);
        fill_idle(&mut requests);
        let mut results = requests.into_iter().map(|request| {
            let names = request.figures.iter().map(|figure| figure.name);
            names.zip(request.values.series).collect::<BTreeMap<_, _>>()
        });
        let mut next = || results.next().unwrap_or_default();
        let [all, plotted, cpus, ranks, top] = std::array::from_fn(|_| next());
        let mut figures = all;
        figures.extend(plotted);
        OfHost {
            name: host.name.clone(),
            figures,
            cpus: cpus.into_values().next().unwrap_or_default(),
            devices: results.flatten().collect(),
            ranks,
            top,
            latencies: read_latencies(run, host, &span),
            processes: Vec::new(),
            regions: regions(run, host),
        }
    });
    let hosts = hosts.into_iter().zip(lives);
    let hosts = hosts.map(|(host, processes)| OfHost { processes, ..host });
    OverTime {
        span,
        is_reduced: ticks > INTERVALS,
        hosts: hosts.collect(),
    }
}

fn request(span: Span, figures: &[Figure], groups: Groups) -> Request<'_, OverTimes> {
    Request::new(figures, groups, OverTimes::new(span, figures))
}

/// The processes of the run with most CPU time, by node, and their names in scripts.
fn top(lives: &[Vec<Life>]) -> HashMap<String, HashMap<ProcessKey, String>> {
    let mut known: Vec<_> = lives.iter().flatten().collect();
    known.sort_by_key(|life| std::cmp::Reverse(life.cpu.unwrap_or(0)));
    let mut top: HashMap<String, HashMap<ProcessKey, String>> = HashMap::new();
    for life in known.into_iter().take(TOP) {
        let of_host = top.entry(life.host.clone()).or_default();
        of_host.insert(life.key, life.subject.clone());
    }
    top
}

/// Tables that have rows only for processes with operations have none while there are none: the
/// value is 0 then, as long as the processes were sampled.
fn fill_idle(requests: &mut [Request<'_, OverTimes>]) {
    const EVENTS: [&str; 4] = ["file_io", "block_io", "net_io", "syscalls"];
    let sampled = |request: &Request<'_, OverTimes>| {
        let place = request
            .figures
            .iter()
            .position(|figure| figure.name == "cpu_s");
        place.map_or_else(Named::new, |place| request.values.series[place].clone())
    };
    let of_host = requests.first().map_or_else(Named::new, sampled);
    for request in requests {
        let of_group = sampled(request);
        let figures = request.figures.iter().zip(&mut request.values.series);
        for (_, named) in figures.filter(|(figure, _)| EVENTS.contains(&figure.table)) {
            for (group, series) in named {
                if let Some(sampled) = of_group.get(group).or_else(|| of_host.get("")) {
                    series.fill(sampled);
                }
            }
        }
    }
}

fn ranks(run: &StoredRun, host: &StoredHost) -> HashMap<ProcessKey, String> {
    let mut ranks = HashMap::new();
    let _ = run.read(
        "process",
        host,
        &["pid", "start_ts", "task_rank"],
        |batch| {
            let found = processes(batch)
                .into_iter()
                .zip(integers(batch, "task_rank"));
            ranks.extend(found.filter_map(|(key, rank)| Some((key?, format!("{:06}", rank?)))));
        },
    );
    ranks
}

fn lives(run: &StoredRun, host: &StoredHost, redact: bool) -> Vec<Life> {
    const COLUMNS: [&str; 8] = [
        "pid",
        "start_ts",
        "comm",
        "cmdline",
        "end_ts",
        "exit_code",
        "exit_signal",
        "oncpu_ns",
    ];
    let mut lives = Vec::new();
    let _ = run.read("process", host, &COLUMNS, |batch| {
        let [comms, cmdlines] = ["comm", "cmdline"].map(|name| Texts::of(batch, name));
        let [codes, signals, cpus] =
            ["exit_code", "exit_signal", "oncpu_ns"].map(|name| integers(batch, name));
        let ends = times(batch, "end_ts");
        for (row, key) in processes(batch).into_iter().enumerate() {
            let Some(key) = key else { continue };
            let cmdline = cmdlines.get(row).filter(|line| !line.is_empty() && !redact);
            lives.push(Life {
                host: host.name.clone(),
                subject: process_subject(&host.name, key),
                key,
                name: cmdline.or(comms.get(row)).unwrap_or_default().to_owned(),
                end: ends[row],
                failed: codes[row].is_some_and(|code| code != 0) || signals[row].is_some(),
                cpu: cpus[row],
            });
        }
    });
    lives
}

fn regions(run: &StoredRun, host: &StoredHost) -> Vec<Region> {
    const COLUMNS: [&str; 3] = ["name", "region_start_ts", "region_end_ts"];
    let mut regions = Vec::new();
    let _ = run.read("region", host, &COLUMNS, |batch| {
        let names = Texts::of(batch, "name");
        let [starts, ends] = ["region_start_ts", "region_end_ts"].map(|name| times(batch, name));
        for row in 0..batch.num_rows() {
            if let Some(start) = starts[row] {
                regions.push(Region {
                    name: names.get(row).unwrap_or_default().to_owned(),
                    start,
                    end: ends[row],
                });
            }
        }
    });
    regions.sort_by_key(|region| region.start);
    regions
}

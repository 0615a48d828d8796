//! Operations and bytes of samples, and their sums by node and region.

use std::collections::BTreeMap;

use crate::{
    analysis::{
        rows::{Texts, numbers, times},
        scan::for_each_host,
        stored_run::{StoredHost, StoredRun},
    },
    ceilings::Precision,
};

/// Columns of `timeline` with the operations of the target: all of them, or by precision.
const ALL: &[&str] = &["target_flop_per_s"];
const BY_PRECISION: &[&str] = &[
    "target_dp_flop_per_s",
    "target_sp_flop_per_s",
    "target_hp_flop_per_s",
];
/// The column with the bandwidth of the memory.
const BANDWIDTH: &str = "node_mem_bw_bytes_per_s";

/// Precisions that can be in a run, with their columns.
const PRECISIONS: &[(&[&str], &str)] = &[
    (ALL, "all precisions"),
    (BY_PRECISION, "double, single and half precision"),
    (
        &["target_dp_flop_per_s", "target_sp_flop_per_s"],
        "double and single precision",
    ),
    (
        &["target_dp_flop_per_s", "target_hp_flop_per_s"],
        "double and half precision",
    ),
    (
        &["target_sp_flop_per_s", "target_hp_flop_per_s"],
        "single and half precision",
    ),
    (
        &["target_dp_flop_per_s"],
        "only double precision was counted",
    ),
    (
        &["target_sp_flop_per_s"],
        "only single precision was counted",
    ),
    (&["target_hp_flop_per_s"], "only half precision was counted"),
];

/// Whose bytes the memory counters count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The target's, because the CPU attributes them, or because the target is the node.
    Target,
    /// Those of all processes of the node.
    Node,
}

/// A sample with both figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tick {
    /// µs since 1970-01-01 UTC.
    pub ts: i64,
    pub seconds: f64,
    pub flop: f64,
    pub bytes: f64,
    /// Operations by precision.
    parts: Parts,
}

/// Operations of unknown, double, single and half precision.
type Parts = [f64; 4];

/// Operations and bytes of a number of samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub name: String,
    pub seconds: f64,
    pub flop: f64,
    pub bytes: f64,
    parts: Parts,
}

impl Point {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            seconds: 0.0,
            flop: 0.0,
            bytes: 0.0,
            parts: Parts::default(),
        }
    }

    fn add(&mut self, tick: &Tick, share: f64) {
        self.seconds += tick.seconds * share;
        self.flop += tick.flop * share;
        self.bytes += tick.bytes * share;
        for (sum, part) in self.parts.iter_mut().zip(tick.parts) {
            *sum += part * share;
        }
    }

    /// Precisions with operations, and how many; `None` is an unknown precision.
    pub fn by_precision(&self) -> impl Iterator<Item = (Option<Precision>, f64)> {
        let precisions = [
            None,
            Some(Precision::Double),
            Some(Precision::Single),
            Some(Precision::Half),
        ];
        let parts = precisions.into_iter().zip(self.parts);
        parts.filter(|(_, flop)| *flop > 0.0)
    }

    /// FLOP/s; `None` without time.
    pub fn flops(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.flop / self.seconds)
    }

    /// Operations per byte; `None` without bytes.
    pub fn intensity(&self) -> Option<f64> {
        (self.bytes > 0.0).then(|| self.flop / self.bytes)
    }
}

/// Values of a row: its time, seconds, operations by column, bandwidth. NaN is null.
struct Row {
    ts: i64,
    seconds: f64,
    flops: Parts,
    bandwidth: f64,
}

/// Start and end, µs since 1970-01-01 UTC.
type Span = (i64, i64);

/// Times by the name of a region, in order and without overlap.
type Regions = BTreeMap<String, Vec<Span>>;

/// What one node contributes.
struct OfHost {
    name: String,
    rows: Vec<Row>,
    regions: Regions,
    of_target: bool,
}

/// Samples and regions of all nodes.
pub(super) struct Points {
    hosts: Vec<(String, Vec<Tick>, Regions)>,
    pub(super) ticks: Vec<Tick>,
    /// Columns that add up to the operations.
    pub(super) columns: &'static [&'static str],
    pub(super) owner: Owner,
}

impl Points {
    /// `None` without a sample that has both figures.
    pub(super) fn read(run: &StoredRun) -> Option<Self> {
        let hosts = for_each_host(&run.hosts, |host| read_host(run, host));
        let known = |column: usize| {
            let rows = hosts.iter().flat_map(|host| &host.rows);
            rows.into_iter().any(|row| !row.flops[column].is_nan())
        };
        let columns: Vec<_> = if known(0) {
            ALL.to_vec()
        } else {
            let by_precision = BY_PRECISION.iter().zip(1..);
            let known = by_precision.filter(|(_, index)| known(*index));
            known.map(|(name, _)| *name).collect()
        };
        let columns = PRECISIONS.iter().find(|(names, _)| *names == columns)?.0;
        let is_node = run.manifests().all(|manifest| {
            let words = manifest.command.iter();
            words
                .take_while(|word| *word != "--")
                .any(|word| word == "--node")
        });
        let of_target = hosts.iter().all(|host| host.of_target) || is_node;
        let hosts: Vec<_> = hosts
            .into_iter()
            .map(|host| {
                let ticks = host.rows.iter().filter_map(|row| row.tick(columns));
                (host.name, ticks.collect::<Vec<_>>(), host.regions)
            })
            .collect();
        let mut ticks: Vec<_> = hosts
            .iter()
            .flat_map(|(_, ticks, _)| ticks)
            .copied()
            .collect();
        ticks.sort_by_key(|tick| tick.ts);
        (!ticks.is_empty()).then_some(Self {
            hosts,
            ticks,
            columns,
            owner: if of_target {
                Owner::Target
            } else {
                Owner::Node
            },
        })
    }

    pub(super) fn precisions(&self) -> &'static str {
        let found = PRECISIONS.iter().find(|(names, _)| *names == self.columns);
        found.map_or("", |(_, text)| *text)
    }

    pub(super) fn whole(&self) -> Point {
        let mut point = Point::new("run");
        for tick in &self.ticks {
            point.add(tick, 1.0);
        }
        point
    }

    pub(super) fn nodes(&self) -> Vec<Point> {
        let with_ticks = self.hosts.iter().filter(|(_, ticks, _)| !ticks.is_empty());
        let points = with_ticks.map(|(name, ticks, _)| {
            let mut point = Point::new(name);
            for tick in ticks {
                point.add(tick, 1.0);
            }
            point
        });
        let points: Vec<_> = points.collect();
        if points.len() > 1 { points } else { Vec::new() }
    }

    pub(super) fn regions(&self) -> Vec<Point> {
        let mut points: BTreeMap<&str, Point> = BTreeMap::new();
        for (_, ticks, regions) in &self.hosts {
            for (name, spans) in regions {
                for tick in ticks {
                    let share = covered(tick, spans);
                    if share > 0.0 {
                        let point = points.entry(name).or_insert_with(|| Point::new(name));
                        point.add(tick, share);
                    }
                }
            }
        }
        points.into_values().collect()
    }
}

impl Row {
    /// The sample, if all columns and the bandwidth are known.
    fn tick(&self, columns: &[&str]) -> Option<Tick> {
        let mut rates = Parts::default();
        let names = ALL.iter().chain(BY_PRECISION);
        for ((rate, name), value) in rates.iter_mut().zip(names).zip(self.flops) {
            if columns.contains(name) {
                *rate = value;
            }
        }
        let flops: f64 = rates.iter().sum();
        let known = !flops.is_nan() && !self.bandwidth.is_nan() && self.seconds > 0.0;
        known.then(|| Tick {
            ts: self.ts,
            seconds: self.seconds,
            flop: flops * self.seconds,
            bytes: self.bandwidth * self.seconds,
            parts: rates.map(|rate| rate * self.seconds),
        })
    }
}

fn read_host(run: &StoredRun, host: &StoredHost) -> OfHost {
    let mut columns = vec!["ts", "interval_ns", BANDWIDTH];
    columns.extend(ALL.iter().chain(BY_PRECISION));
    let mut rows = Vec::new();
    // Files that cannot be read are problems of the summary.
    let _ = run.read("timeline", host, &columns, |batch| {
        let of = |name| numbers(batch, name);
        let (intervals, bandwidths) = (of("interval_ns"), of(BANDWIDTH));
        let flops: Vec<_> = ALL
            .iter()
            .chain(BY_PRECISION)
            .map(|name| of(name))
            .collect();
        for (index, ts) in times(batch, "ts").into_iter().enumerate() {
            let Some(ts) = ts else { continue };
            rows.push(Row {
                ts,
                seconds: intervals[index] / 1e9,
                flops: std::array::from_fn(|column| flops[column][index]),
                bandwidth: bandwidths[index],
            });
        }
    });
    let last = rows.iter().map(|row| row.ts).max();
    let mut of_target = false;
    if rows.iter().any(|row| !row.bandwidth.is_nan()) {
        let _ = run.read(
            "perf_metric",
            host,
            &["metric", "scope", "value"],
            |batch| {
                let [metrics, scopes] = ["metric", "scope"].map(|name| Texts::of(batch, name));
                let values = numbers(batch, "value");
                of_target |= values.iter().enumerate().any(|(row, value)| {
                    metrics.get(row) == Some("mem_bw")
                        && scopes.get(row) == Some("target")
                        && !value.is_nan()
                });
            },
        );
    }
    OfHost {
        name: host.name.clone(),
        regions: regions(run, host, last),
        rows,
        of_target,
    }
}

/// Regions by name. One that has not ended lasts until the last sample.
fn regions(run: &StoredRun, host: &StoredHost, last: Option<i64>) -> Regions {
    const COLUMNS: [&str; 4] = ["name", "op", "region_start_ts", "region_end_ts"];
    let mut regions = Regions::new();
    let _ = run.read("region", host, &COLUMNS, |batch| {
        let [names, ops] = ["name", "op"].map(|name| Texts::of(batch, name));
        let [starts, ends] = ["region_start_ts", "region_end_ts"].map(|name| times(batch, name));
        for row in 0..batch.num_rows() {
            let end = ends[row].or(last);
            if let (Some(name), Some(start), Some(end)) = (names.get(row), starts[row], end)
                && ops.get(row) != Some("event")
            {
                regions
                    .entry(name.to_owned())
                    .or_default()
                    .push((start, end));
            }
        }
    });
    for spans in regions.values_mut() {
        *spans = merged(std::mem::take(spans));
    }
    regions
}

/// Spans without overlap, in order: a time in several regions of a name counts once.
fn merged(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut merged: Vec<Span> = Vec::new();
    for (start, end) in spans {
        match merged.last_mut() {
            Some((_, last)) if start <= *last => *last = end.max(*last),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// Share of the sample's interval that the spans, which are in order, cover.
fn covered(tick: &Tick, spans: &[Span]) -> f64 {
    let end = tick.ts as f64;
    let start = end - tick.seconds * 1e6;
    let from = spans.partition_point(|(_, last)| (*last as f64) < start);
    let spans = spans[from..].iter();
    let inside = spans
        .map(|(first, last)| (*first as f64, *last as f64))
        .take_while(|(first, _)| *first < end)
        .map(|(first, last)| (last.min(end) - first.max(start)).max(0.0));
    inside.sum::<f64>() / (tick.seconds * 1e6)
}

/// Queries for the views of the dataset.
pub(super) fn sql(columns: &[&str]) -> Vec<String> {
    let flops = columns.join(" + ");
    let ticks = format!(
        "SELECT host, ts, interval_ns / 1e9 AS seconds, ({flops}) * interval_ns / 1e9 AS flop, \
         {BANDWIDTH} * interval_ns / 1e9 AS bytes FROM timeline \
         WHERE ({flops}) IS NOT NULL AND {BANDWIDTH} IS NOT NULL AND interval_ns > 0"
    );
    let sums = "sum(flop) AS flop, sum(bytes) AS bytes, sum(seconds) AS seconds";
    let ts = "epoch_us(ts)";
    vec![
        format!("{ticks} ORDER BY host, ts"),
        format!("SELECT {sums} FROM ({ticks})"),
        format!("SELECT host, {sums} FROM ({ticks}) GROUP BY host ORDER BY host"),
        format!(
            "WITH ticks AS ({ticks}), \
             ends AS (SELECT host, max({ts}) AS last_us FROM timeline GROUP BY host), \
             spans AS (SELECT host, name, epoch_us(region_start_ts) AS start_us, \
             coalesce(epoch_us(region_end_ts), last_us) AS end_us FROM region JOIN ends USING (host) \
             WHERE op <> 'event' AND region_start_ts IS NOT NULL), \
             ordered AS (SELECT *, max(end_us) OVER (PARTITION BY host, name ORDER BY start_us, end_us \
             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_us FROM spans), \
             numbered AS (SELECT *, sum(CASE WHEN start_us <= before_us THEN 0 ELSE 1 END) OVER \
             (PARTITION BY host, name ORDER BY start_us, end_us ROWS UNBOUNDED PRECEDING) AS part FROM ordered), \
             merged AS (SELECT host, name, min(start_us) AS start_us, max(end_us) AS end_us FROM numbered \
             GROUP BY host, name, part), \
             shares AS (SELECT name, flop, bytes, seconds, (least(end_us, {ts}) - \
             greatest(start_us, {ts} - seconds * 1e6)) / (seconds * 1e6) AS share FROM merged JOIN ticks USING (host) \
             WHERE start_us < {ts} AND end_us > {ts} - seconds * 1e6) \
             SELECT name, sum(flop * share) AS flop, sum(bytes * share) AS bytes, \
             sum(seconds * share) AS seconds FROM shares GROUP BY name ORDER BY name"
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_have_their_share_of_a_sample() {
        let tick = |ts| Tick {
            ts,
            seconds: 1.0,
            flop: 8.0,
            bytes: 2.0,
            parts: [0.0, 8.0, 0.0, 0.0],
        };
        // Two instances at the same time count once.
        let spans = merged(vec![
            (500_000, 1_250_000),
            (0, 750_000),
            (2_000_000, 2_500_000),
        ]);
        assert_eq!(spans, [(0, 1_250_000), (2_000_000, 2_500_000)]);
        for (ts, share) in [
            (1_000_000, 1.0),
            (2_000_000, 0.25),
            (3_000_000, 0.5),
            (4_000_000, 0.0),
            (0, 0.0),
        ] {
            let found = covered(&tick(ts), &spans);
            assert!((found - share).abs() < 1e-12, "{ts}: {found}");
        }
        let mut point = Point::new("r");
        point.add(&tick(2_000_000), 0.25);
        point.add(&tick(3_000_000), 0.5);
        assert_eq!(point.flops(), Some(8.0));
        assert_eq!(point.intensity(), Some(4.0));
        let parts: Vec<_> = point.by_precision().collect();
        assert_eq!(parts, [(Some(Precision::Double), 6.0)]);
        assert_eq!(Point::new("none").intensity(), None);
    }

    #[test]
    fn a_sample_without_one_of_the_columns_has_no_point() {
        let row = |flops, bandwidth| Row {
            ts: 1,
            seconds: 2.0,
            flops,
            bandwidth,
        };
        let null = f64::NAN;
        let both = ["target_dp_flop_per_s", "target_sp_flop_per_s"];
        let tick = row([null, 3.0, 1.0, null], 8.0).tick(&both).expect("known");
        assert_eq!((tick.flop, tick.bytes), (8.0, 16.0));
        assert_eq!(row([null, 3.0, null, null], 8.0).tick(&both), None);
        assert_eq!(row([null, 3.0, 1.0, null], null).tick(&both), None);
        assert!(row([5.0, null, null, null], 8.0).tick(ALL).is_some());
    }
}

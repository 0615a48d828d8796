//! Comparison of two groups of runs: differences of the machines, figures with statistics, processes
//! and regions that belong together.

mod document;
mod machines;
mod page;
pub mod statistics;
mod thresholds;

use std::{cmp::Ordering, collections::BTreeMap};

use self::statistics::{
    ALPHA, Estimate, benjamini_hochberg, holm, least_measurements, mann_whitney, median,
    needed_measurements, ratio, within_runs,
};
pub use self::{
    document::document,
    machines::{Difference, Machine},
    page::{Tables, page, tables},
    thresholds::Threshold,
};
use super::{
    catalog::{PROCESSES, TARGET},
    figure::Unit,
    rows::numbers,
    stored_run::StoredRun,
    summary::Summary,
};

/// Figures that are tested by themselves, because people look at them first.
pub const PRIMARY: [&str; 5] = [
    "wall_s",
    "cpu_s",
    "target_energy_j",
    "peak_rss_bytes",
    "moved_bytes",
];
/// Differences below this are not interesting, however significant.
pub const LEAST_EFFECT: f64 = 0.02;

/// Share of the CPU time from which a command is tested.
const LEAST_SHARE: f64 = 0.001;

/// A run with what the comparison needs of it.
pub struct Measured {
    pub summary: Summary,
    pub machine: Machine,
    /// Figures per sample, for comparisons of single runs.
    samples: BTreeMap<&'static str, Vec<f64>>,
}

/// A figure on both sides.
#[derive(Clone, Debug)]
pub struct Compared {
    pub name: String,
    pub unit: Unit,
    pub a: Estimate,
    pub b: Estimate,
    /// Number of runs with the figure on each side.
    pub runs: [usize; 2],
    /// Factor from a to b; `None` if a value is 0.
    pub ratio: Option<Estimate>,
    /// p-value, adjusted for the number of tests; `None` with one run on each side.
    pub p: Option<f64>,
    pub is_primary: bool,
    /// Of all runs.
    sum: f64,
    /// Runs on each side that would find a difference of this size.
    pub needed: Option<usize>,
}

/// What a comparison says about a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    More,
    Less,
    /// Not significant, or too small to be interesting.
    Same,
}

/// The result.
pub struct Comparison {
    pub labels: [String; 2],
    pub machines: Vec<Difference>,
    pub figures: Vec<Compared>,
    pub processes: Vec<Compared>,
    pub regions: Vec<Compared>,
    /// Commands, then regions that only one side has, those with most time first.
    pub unmatched: [Vec<String>; 2],
    /// Commands with least CPU time that are not compared: the most of a run of each side.
    pub left_out: [usize; 2],
    /// Runs on each side.
    pub runs: [usize; 2],
    /// What is missing in the runs of each side, with the number of runs.
    pub doubts: [BTreeMap<String, usize>; 2],
}

impl Compared {
    /// Whether the difference is significant and large enough.
    pub fn verdict(&self) -> Verdict {
        let is_significant = match (self.p, self.ratio.and_then(|ratio| ratio.interval)) {
            (Some(p), _) => p <= ALPHA,
            // One run each: the interval within the runs.
            (None, Some((low, high))) => low > 1.0 || high < 1.0,
            (None, None) => false,
        };
        // A value of 0 has no ratio: every difference from it is large.
        let (a, b) = (self.a.value, self.b.value);
        let ratio = match self.ratio {
            Some(ratio) => ratio.value,
            None => match a.total_cmp(&b) {
                Ordering::Less => f64::INFINITY,
                Ordering::Equal => 1.0,
                Ordering::Greater => 0.0,
            },
        };
        if !is_significant || (ratio - 1.0).abs() < LEAST_EFFECT {
            Verdict::Same
        } else if ratio > 1.0 {
            Verdict::More
        } else {
            Verdict::Less
        }
    }
}

impl Measured {
    /// Reads what the comparison needs.
    pub fn new(run: &StoredRun, summary: Summary) -> Self {
        let mut samples: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        for host in run.hosts.iter() {
            let columns = SAMPLED.map(|(_, column)| column);
            // What cannot be read is among the problems of the summary.
            let _ = run.read("timeline", host, &columns, |batch| {
                for (name, column) in SAMPLED {
                    let values = numbers(batch, column)
                        .into_iter()
                        .filter(|value| !value.is_nan());
                    samples.entry(name).or_default().extend(values);
                }
            });
        }
        Self {
            machine: Machine::of(run, &summary),
            summary,
            samples,
        }
    }

    /// Index of the run with the median wall time; of two, the shorter.
    pub fn median(runs: &[Self]) -> usize {
        let mut order: Vec<_> = (0..runs.len()).collect();
        let wall = |index: &usize| runs[*index].summary.seconds().unwrap_or(f64::INFINITY);
        order.sort_by(|a, b| wall(a).total_cmp(&wall(b)));
        order
            .get(runs.len().saturating_sub(1) / 2)
            .copied()
            .unwrap_or(0)
    }

    /// A figure of the run.
    fn get(&self, name: &str) -> Option<f64> {
        let target = &self.summary.target;
        match name {
            "wall_s" => self.summary.seconds(),
            // Bytes of files where they are known, otherwise of storage.
            "moved_bytes" => {
                let sum = |read, write| Some(target.get(read)? + target.get(write)?);
                sum("file_read_bytes", "file_write_bytes")
                    .or_else(|| sum("storage_read_bytes", "storage_write_bytes"))
            }
            name => target.get(name),
        }
    }
}

/// Figures with a value in each row of `timeline`.
const SAMPLED: [(&str, &str); 4] = [
    ("cpu_s", "target_cpu"),
    ("target_energy_j", "target_energy_uj"),
    ("peak_rss_bytes", "target_rss_sum"),
    ("runqueue_s", "target_runqueue_ns"),
];

fn compared(name: String, unit: Unit, a: &[f64], b: &[f64]) -> Option<Compared> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let ratio = ratio(a, b);
    let single = a.len() == 1 && b.len() == 1;
    Some(Compared {
        name,
        unit,
        a: median(a),
        b: median(b),
        runs: [a.len(), b.len()],
        ratio,
        p: (!single).then(|| mann_whitney(a, b)),
        is_primary: false,
        sum: a.iter().chain(b).sum(),
        needed: ratio.and_then(|ratio| needed_measurements(a, b, ratio.value)),
    })
}

/// Adjusts the p-values of figures that are tested together.
fn adjust(figures: &mut [Compared], adjust: fn(&[f64]) -> Vec<f64>) {
    adjust_all(&mut figures.iter_mut().collect::<Vec<_>>(), adjust);
}

fn adjust_all(figures: &mut [&mut Compared], adjust: fn(&[f64]) -> Vec<f64>) {
    let tested = figures.iter_mut().filter(|figure| figure.p.is_some());
    let mut tested: Vec<_> = tested.collect();
    let p: Vec<f64> = tested.iter().filter_map(|figure| figure.p).collect();
    for (figure, p) in tested.iter_mut().zip(adjust(&p)) {
        figure.p = Some(p);
    }
}

/// Compares runs with runs.
pub fn compare(labels: [String; 2], sides: [&[&Measured]; 2]) -> Comparison {
    let values = |side: usize, name: &str| -> Vec<f64> {
        sides[side].iter().filter_map(|run| run.get(name)).collect()
    };
    let of = |name: &str, unit| compared(name.to_owned(), unit, &values(0, name), &values(1, name));
    let primary = PRIMARY.into_iter().filter_map(|name| {
        let mut compared = of(name, unit(name))?;
        compared.is_primary = true;
        if let [[a], [b]] = sides
            && let (Some(of_a), Some(of_b)) = (a.samples.get(name), b.samples.get(name))
        {
            let interval = within_runs(of_a, of_b).and_then(|ratio| ratio.interval);
            compared.ratio = compared.ratio.map(|ratio| Estimate { interval, ..ratio });
        }
        Some(compared)
    });
    let mut figures: Vec<_> = primary.collect();
    adjust(&mut figures, holm);
    let all = PROCESSES.iter().chain(TARGET);
    let others = all.filter(|figure| !PRIMARY.contains(&figure.name));
    let mut others: Vec<_> = others
        .filter_map(|figure| of(figure.name, figure.unit))
        .collect();
    adjust(&mut others, benjamini_hochberg);
    figures.append(&mut others);
    let mut unmatched = [Vec::new(), Vec::new()];
    let mut processes = groups(sides, &mut unmatched, |run| {
        let commands = run.summary.commands.kept.iter();
        commands
            .map(|(command, of)| (command.to_string(), of.cpu_s))
            .collect()
    });
    test_large(&mut processes);
    let mut regions = groups(sides, &mut unmatched, |run| {
        let regions = run.summary.regions.iter();
        regions
            .map(|(name, figures)| (name.clone(), figures.get("region_s")))
            .collect()
    });
    adjust(&mut regions, benjamini_hochberg);
    Comparison {
        labels,
        machines: machines::differences(sides),
        figures,
        processes,
        regions,
        unmatched,
        doubts: sides.map(|runs| {
            let mut doubts = BTreeMap::new();
            for text in runs.iter().flat_map(|run| run.summary.doubts()) {
                *doubts.entry(text).or_insert(0) += 1;
            }
            doubts
        }),
        left_out: sides.map(|runs| {
            let left_out = runs.iter().map(|run| run.summary.commands.left_out);
            left_out.max().unwrap_or(0)
        }),
        runs: sides.map(<[&Measured]>::len),
    }
}

/// Unit of a primary figure.
fn unit(name: &str) -> Unit {
    let all = PROCESSES.iter().chain(TARGET);
    let declared = all
        .clone()
        .find(|figure| figure.name == name)
        .map(|figure| figure.unit);
    declared.unwrap_or(if name == "wall_s" {
        Unit::Seconds
    } else {
        Unit::Bytes
    })
}

/// Matches values by name. Names that only one side has are added to `unmatched`.
fn groups(
    sides: [&[&Measured]; 2],
    unmatched: &mut [Vec<String>; 2],
    values: impl Fn(&Measured) -> BTreeMap<String, Option<f64>>,
) -> Vec<Compared> {
    let named = sides.map(|runs| {
        let mut named: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for run in runs {
            for (name, value) in values(run) {
                named.entry(name).or_default().extend(value);
            }
        }
        named
    });
    for (side, other) in [(0, 1), (1, 0)] {
        let only = named[side]
            .iter()
            .filter(|(name, _)| !named[other].contains_key(*name));
        let mut only: Vec<_> = only
            .map(|(name, values)| (values.iter().sum::<f64>(), name))
            .collect();
        only.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        unmatched[side].extend(only.into_iter().map(|(_, name)| name.clone()));
    }
    let found = named[0].iter();
    found
        .filter_map(|(name, a)| compared(name.clone(), Unit::Seconds, a, named[1].get(name)?))
        .collect()
}

/// Tests the commands with a share of the CPU time of both sides together. The others are so many in
/// some runs that they would hide a difference of the large ones. The selection does not depend on
/// which run is on which side, so that it does not change the rate of false alarms.
fn test_large(processes: &mut [Compared]) {
    let total: f64 = processes.iter().map(|of| of.sum).sum();
    let (mut large, small): (Vec<_>, Vec<_>) = processes
        .iter_mut()
        .partition(|of| of.sum >= LEAST_SHARE * total);
    adjust_all(&mut large, benjamini_hochberg);
    for of in small {
        of.p = None;
        of.ratio = of.ratio.map(|ratio| Estimate {
            interval: None,
            ..ratio
        });
    }
}

impl Comparison {
    /// Runs on each side with which a primary figure can differ significantly; `None` if there are
    /// enough.
    pub fn too_few(&self) -> Option<usize> {
        // With Holm's correction, the first of the tests has the strictest level.
        let tests = self.primary().count();
        let least = least_measurements(ALPHA / tests.max(1) as f64);
        (self.runs.iter().any(|runs| *runs < least)).then_some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(values: &[(&'static str, f64)]) -> Measured {
        let mut summary = Summary::default();
        for (name, value) in values {
            match *name {
                "wall_s" => {
                    summary.identity.start = Some(0);
                    #[expect(clippy::cast_possible_truncation, reason = "some seconds")]
                    let end = (value * 1e9) as i64;
                    summary.identity.end = Some(end);
                }
                name => summary.target = summary.target.with(name, *value),
            }
        }
        Measured {
            summary,
            machine: Machine::default(),
            samples: BTreeMap::new(),
        }
    }

    /// All divisions of 12 runs into two groups of 6. The p-value is the share of divisions that
    /// differ as much, so that by definition a share of at most 5 % of them has one of at most 5 %,
    /// whatever the values are; Holm's correction keeps that for any of the primary figures. Nothing
    /// here is random. For programs that do not differ, and runs whose order does not matter, all
    /// divisions are equally likely: then this share is the rate of false alarms.
    #[test]
    fn alarms_of_all_divisions() {
        let mut state = 1_u64;
        let mut noise = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 40) as f64 / f64::from(1_u32 << 24)
        };
        // Few large values, equal values, and a figure that depends on another one.
        let runs: Vec<_> = (0..12)
            .map(|_| {
                let wall = 1.0 + 0.1 * noise() + 5.0 * noise().powi(20);
                measured(&[
                    ("wall_s", wall),
                    ("cpu_s", 0.9 * wall + 0.01 * noise()),
                    ("peak_rss_bytes", 1e6 * (1.0 + (3.0 * noise()).floor())),
                    ("target_energy_j", 50.0 * noise()),
                ])
            })
            .collect();
        let (mut divisions, mut alarms, mut lowest) = (0, 0, f64::INFINITY);
        for division in (0..1_u32 << 12).filter(|of| of.count_ones() == 6) {
            let side = |bit: u32| -> Vec<&Measured> {
                let runs = runs.iter().zip(0..);
                let chosen = runs.filter(|(_, run)| division >> run & 1 == bit);
                chosen.map(|(run, _)| run).collect()
            };
            let compared = compare(Default::default(), [&side(0), &side(1)]);
            let p = compared.primary().filter_map(|figure| figure.p);
            let smallest = p.fold(1.0, f64::min);
            assert_eq!(compared.primary().count(), 4);
            divisions += 1;
            alarms += u32::from(smallest <= ALPHA);
            lowest = lowest.min(smallest);
        }
        assert_eq!(divisions, 924);
        assert!(f64::from(alarms) <= ALPHA * 924.0, "{alarms}");
        // The two divisions that separate a figure completely are found.
        assert!(alarms >= 2, "{alarms}");
        assert!((lowest - 4.0 * 2.0 / 924.0).abs() < 1e-9, "{lowest}");
    }

    #[test]
    fn a_change_from_zero_is_found() {
        let of =
            |name: &'static str, values: [f64; 6]| values.map(|value| measured(&[(name, value)]));
        let none = of("fsyncs", [0.0; 6]);
        let some = of("fsyncs", [5.0, 6.0, 7.0, 8.0, 9.0, 5.5]);
        let [a, b] = [&none, &some].map(|runs| runs.iter().collect::<Vec<_>>());
        let verdict = |a: &[&Measured], b: &[&Measured]| {
            let found = compare(Default::default(), [a, b]);
            let threshold: Threshold = "fsyncs>+5%".parse().unwrap();
            (
                found.figures[0].verdict(),
                threshold.exceeded(&found).unwrap(),
            )
        };
        let why = "fsyncs>+5%: fsyncs differs: 0 and 6.50".to_owned();
        assert_eq!(verdict(&a, &b), (Verdict::More, Some(why)));
        assert_eq!(verdict(&b, &a), (Verdict::Less, None));
        assert_eq!(verdict(&a, &a), (Verdict::Same, None));
    }

    #[test]
    fn small_commands_are_not_tested() {
        let run = |index: usize, factor: f64| {
            let mut run = measured(&[]);
            let kept = &mut run.summary.commands.kept;
            let mut add = |name: &str, rank, cpu_s| {
                let template = name.to_owned();
                let of = crate::analysis::summary::Use {
                    processes: 1,
                    cpu_s,
                };
                kept.insert(crate::analysis::summary::Command { template, rank }, of);
            };
            let noise = 1.0 + 0.001 * index as f64;
            add("solver", Some(0), Some(10.0 * noise));
            add("solver", Some(1), Some(10.0 * factor * noise));
            add("small", None, Some(1e-4 * factor * noise));
            add("unknown", None, None);
            add(
                if factor > 1.0 { "only b" } else { "only a" },
                None,
                Some(1.0),
            );
            run
        };
        let [a, b] =
            [1.0, 2.0].map(|factor| (0..6).map(|index| run(index, factor)).collect::<Vec<_>>());
        let (a, b): (Vec<_>, Vec<_>) = (a.iter().collect(), b.iter().collect());
        let found = compare(Default::default(), [&a, &b]);
        let verdicts: Vec<_> = found
            .processes
            .iter()
            .map(|of| (of.name.as_str(), of.verdict(), of.p.is_some()))
            .collect();
        assert_eq!(
            verdicts,
            [
                ("small", Verdict::Same, false),
                ("solver (rank 0)", Verdict::Same, true),
                ("solver (rank 1)", Verdict::More, true),
            ]
        );
        assert_eq!(found.unmatched, [["only a"], ["only b"]]);
    }

    #[test]
    fn verdicts_need_significance_and_an_effect() {
        let a = [10.0, 10.1, 9.9, 10.05, 9.95, 10.02];
        let of = |factor: f64| {
            let b = a.map(|value| value * factor);
            compared("x".to_owned(), Unit::Seconds, &a, &b)
                .expect("values")
                .verdict()
        };
        assert_eq!(of(1.1), Verdict::More);
        assert_eq!(of(0.9), Verdict::Less);
        assert_eq!(of(1.015), Verdict::Same, "below the least effect");
        let few = compared("x".to_owned(), Unit::Seconds, &a[..2], &[20.0, 21.0]);
        assert_eq!(
            few.expect("values").verdict(),
            Verdict::Same,
            "too few runs"
        );
    }
}

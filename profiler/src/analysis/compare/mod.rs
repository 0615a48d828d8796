//! Comparison of two groups of runs: differences of the machines, figures with statistics, processes
//! and regions that belong together.

mod document;
mod machines;
mod page;
pub mod statistics;
mod thresholds;

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use self::statistics::{
    ALPHA, Estimate, benjamini_hochberg, holm, least_measurements, least_p, log_variance,
    mann_whitney, median, needed_measurements, ratio,
};
pub use self::{
    document::document,
    machines::{Difference, Machine},
    page::{Tables, page, tables},
    thresholds::{Judgement, Threshold, judge},
};
use super::{
    catalog::{PROCESSES, TARGET},
    figure::Unit,
    stored_run::StoredRun,
    summary::Summary,
};

/// Figures that are tested by themselves, because people look at them first.
const PRIMARY: [&str; 4] = ["wall_s", "cpu_s", "target_energy_j", "peak_rss_bytes"];
/// Bytes read and written: the first that all runs have is primary.
const MOVED: [(&str, [&str; 2]); 2] = [
    ("file_bytes", ["file_read_bytes", "file_write_bytes"]),
    (
        "storage_bytes",
        ["storage_read_bytes", "storage_write_bytes"],
    ),
];
/// Differences below this are not interesting, however significant.
pub const LEAST_EFFECT: f64 = 0.02;

/// What `cpu_s` consists of.
const OF_CPU: [&str; 2] = ["user_s", "system_s"];

/// A run with what the comparison needs of it.
pub struct Measured {
    pub summary: Summary,
    pub machine: Machine,
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
    /// p-value of the Mann–Whitney test.
    pub p: f64,
    /// The p-value, corrected for the figures that are tested together.
    pub corrected_p: f64,
    pub is_primary: bool,
    /// Level at which `p` is significant whatever the other figures are.
    level: f64,
    /// Of all runs.
    sum: f64,
    /// Variance of the logarithms within the sides; `None` if it is unknown.
    log_variance: Option<f64>,
}

/// What a comparison says about a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    More,
    Less,
    /// No significant difference, or one too small to be interesting.
    Same,
    /// No difference of so few runs would be significant.
    Unknown,
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
        let ratio = self.factor();
        if self.corrected_p > ALPHA || !self.is_one_way() {
            if self.can_be_judged() {
                Verdict::Same
            } else {
                Verdict::Unknown
            }
        } else if (ratio - 1.0).abs() < LEAST_EFFECT {
            Verdict::Same
        } else if ratio > 1.0 {
            Verdict::More
        } else {
            Verdict::Less
        }
    }

    /// Factor from a to b. A value of 0 has no ratio: every difference from it is large.
    fn factor(&self) -> f64 {
        match self.ratio {
            Some(ratio) => ratio.value,
            None => match self.a.value.total_cmp(&self.b.value) {
                Ordering::Less => f64::INFINITY,
                Ordering::Equal => 1.0,
                Ordering::Greater => 0.0,
            },
        }
    }

    /// Whether all of the interval is more or all of it less. Medians can differ in the other direction than
    /// most values, or not at all.
    fn is_one_way(&self) -> bool {
        let interval = self.ratio.and_then(|ratio| ratio.interval);
        interval.is_none_or(|(low, high)| low > 1.0 || high < 1.0)
    }

    /// Whether a difference of so many runs can be significant.
    fn can_be_judged(&self) -> bool {
        let [a, b] = self.runs;
        least_p(a, b) <= self.level
    }

    /// Runs on each side that would find a difference of this size; `None` if one is found, if this one is
    /// not interesting, and if the spread is unknown.
    pub fn needed(&self) -> Option<usize> {
        let is_found = matches!(self.verdict(), Verdict::More | Verdict::Less);
        let ratio = self.ratio.filter(|_| !is_found)?.value;
        let is_change = (ratio - 1.0).abs() >= LEAST_EFFECT;
        let variance = self.log_variance.filter(|_| is_change)?;
        let needed = needed_measurements(variance, ratio, self.level)?;
        // Those that were recorded have not sufficed.
        Some(needed.max(self.runs[0].min(self.runs[1]) + 1))
    }
}

impl Measured {
    /// What the comparison needs of a run.
    pub fn new(run: &StoredRun, summary: Summary) -> Self {
        Self {
            machine: Machine::of(run, &summary),
            summary,
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
            name => match MOVED.iter().find(|(moved, _)| *moved == name) {
                Some((_, [read, written])) => Some(target.get(read)? + target.get(written)?),
                None => target.get(name),
            },
        }
    }
}

fn compared(name: String, unit: Unit, a: &[f64], b: &[f64]) -> Option<Compared> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let p = mann_whitney(a, b);
    Some(Compared {
        name,
        unit,
        a: median(a),
        b: median(b),
        runs: [a.len(), b.len()],
        ratio: ratio(a, b),
        p,
        corrected_p: p,
        is_primary: false,
        level: ALPHA,
        sum: a.iter().chain(b).sum(),
        log_variance: log_variance(a, b),
    })
}

/// Corrects the p-values of figures that are tested together, each with the same weight.
fn correct_equal(figures: &mut [Compared]) {
    let weights = vec![1.0; figures.len()];
    correct(figures, &weights);
}

/// Corrects the p-values of parts of a whole. The weight of each is its share of all runs: many small parts
/// do not hide the difference of a large one. A share does not depend on which run is on which side, so
/// that it does not change the rate of false alarms.
fn correct_parts(figures: &mut [Compared]) {
    let weights: Vec<f64> = figures.iter().map(|figure| figure.sum).collect();
    correct(figures, &weights);
}

fn correct(figures: &mut [Compared], weights: &[f64]) {
    let p: Vec<f64> = figures.iter().map(|figure| figure.p).collect();
    let all: f64 = weights.iter().sum();
    let corrected = holm(&p, weights).into_iter().zip(weights);
    for (figure, (p, weight)) in figures.iter_mut().zip(corrected) {
        figure.corrected_p = p;
        figure.level = ALPHA * weight / all;
    }
}

/// Corrects the p-values of figures of which many can differ together.
fn correct_many(figures: &mut [Compared]) {
    let p: Vec<f64> = figures.iter().map(|figure| figure.p).collect();
    for (figure, p) in figures.iter_mut().zip(benjamini_hochberg(&p)) {
        figure.corrected_p = p;
    }
}

/// Compares runs with runs.
pub fn compare(labels: [String; 2], sides: [&[&Measured]; 2]) -> Comparison {
    let values = |side: usize, name: &str| -> Vec<f64> {
        sides[side].iter().filter_map(|run| run.get(name)).collect()
    };
    let of = |name: &str, unit| compared(name.to_owned(), unit, &values(0, name), &values(1, name));
    let is_known = |name: &&str| {
        sides
            .iter()
            .all(|runs| runs.iter().all(|run| run.get(name).is_some()))
    };
    let (moved, other): (Vec<_>, Vec<_>) =
        MOVED.into_iter().map(|(name, _)| name).partition(is_known);
    let mut moved = moved.into_iter();
    let primary = PRIMARY.into_iter().chain(moved.next());
    let primary = primary.filter_map(|name| of(name, unit(name)));
    let mut figures: Vec<_> = primary.collect();
    for figure in &mut figures {
        figure.is_primary = true;
    }
    correct_equal(&mut figures);
    let moved = moved.chain(other).filter_map(|name| of(name, Unit::Bytes));
    let parts = OF_CPU.into_iter().filter_map(|name| of(name, unit(name)));
    let mut parts: Vec<_> = parts.collect();
    correct_parts(&mut parts);
    let all = PROCESSES.iter().chain(TARGET);
    // `cpu_s` includes `target_cpu_s`.
    let apart =
        |name: &str| PRIMARY.contains(&name) || OF_CPU.contains(&name) || name == "target_cpu_s";
    let others = all.filter(|figure| !apart(figure.name));
    let mut others: Vec<_> = others
        .filter_map(|figure| of(figure.name, figure.unit))
        .chain(moved)
        .collect();
    correct_many(&mut others);
    figures.append(&mut parts);
    figures.append(&mut others);
    let mut unmatched = [Vec::new(), Vec::new()];
    let mut processes = groups(sides, &mut unmatched, |run| {
        let commands = &run.summary.commands;
        let named = commands.kept.iter();
        Named {
            values: named
                .map(|(command, of)| (command.to_string(), of.cpu_s))
                .collect(),
            is_complete: commands.left_out == 0,
        }
    });
    correct_parts(&mut processes);
    let mut regions = groups(sides, &mut unmatched, |run| {
        let regions = run.summary.regions.iter();
        Named {
            values: regions
                .map(|(name, figures)| (name.clone(), figures.get("region_s")))
                .collect(),
            is_complete: true,
        }
    });
    correct_parts(&mut regions);
    Comparison {
        labels,
        machines: machines::differences(sides),
        figures,
        processes,
        regions,
        unmatched,
        doubts: sides.map(|runs| {
            let mut doubts = BTreeMap::new();
            let summaries = || runs.iter().map(|run| &run.summary);
            let partial = summaries().flat_map(Summary::partial_sums);
            for text in summaries().flat_map(Summary::doubts).chain(partial) {
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

/// Values of a run by name.
struct Named {
    values: BTreeMap<String, Option<f64>>,
    /// Whether a name without a value has the value 0.
    is_complete: bool,
}

/// Matches values by name. Names that only one side has are added to `unmatched`.
fn groups(
    sides: [&[&Measured]; 2],
    unmatched: &mut [Vec<String>; 2],
    values: impl Fn(&Measured) -> Named,
) -> Vec<Compared> {
    let named = sides.map(|runs| {
        let runs: Vec<_> = runs.iter().map(|run| values(run)).collect();
        let names: BTreeSet<_> = runs.iter().flat_map(|run| run.values.keys()).collect();
        let of = |name: &String| -> Vec<f64> {
            let values = runs.iter().map(|run| match run.values.get(name) {
                Some(value) => *value,
                None => run.is_complete.then_some(0.0),
            });
            values.flatten().collect()
        };
        let named = names.into_iter().map(|name| (name.clone(), of(name)));
        named.collect::<BTreeMap<_, _>>()
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
    use crate::analysis::summary::Session;

    fn measured(values: &[(&'static str, f64)]) -> Measured {
        let mut summary = Summary::default();
        for (name, value) in values {
            match *name {
                "wall_s" => {
                    #[expect(clippy::cast_possible_truncation, reason = "some seconds")]
                    let end = (value * 1e9) as i64;
                    summary.sessions = vec![Session {
                        end,
                        ..Session::default()
                    }];
                }
                name => summary.target = summary.target.with(name, *value),
            }
        }
        Measured {
            summary,
            machine: Machine::default(),
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
            let p = compared.primary().map(|figure| figure.corrected_p);
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
                judge(&[threshold], &found).unwrap().remove(0),
            )
        };
        let why = "fsyncs>+5%: fsyncs differs: 0 and 6.50".to_owned();
        assert_eq!(verdict(&a, &b), (Verdict::More, Judgement::Exceeded(why)));
        assert_eq!(verdict(&b, &a), (Verdict::Less, Judgement::Within));
        assert_eq!(verdict(&a, &a), (Verdict::Same, Judgement::Within));
    }

    #[test]
    fn a_difference_in_both_directions_is_none() {
        // Most values of b are larger than those of a, and their median is smaller.
        let of = |low: [f64; 2], numbers: [usize; 2]| -> Vec<Measured> {
            let values = low.iter().zip(numbers);
            let values = values.flat_map(|(value, number)| vec![*value; number]);
            values.map(|value| measured(&[("fsyncs", value)])).collect()
        };
        let (a, b) = (of([1.0, 10.0], [12, 13]), of([9.5, 20.0], [13, 12]));
        let (a, b): (Vec<_>, Vec<_>) = (a.iter().collect(), b.iter().collect());
        let found = compare(Default::default(), [&a, &b]);
        let figure = &found.figures[0];
        assert!(figure.corrected_p < 0.01 && figure.b.value < figure.a.value);
        assert_eq!(figure.verdict(), Verdict::Same);
        let thresholds = ["fsyncs<-2%", "fsyncs>+2%"].map(|text| text.parse().unwrap());
        let judged = judge(&thresholds, &found).unwrap();
        assert_eq!(judged, [Judgement::Within, Judgement::Within]);
    }

    #[test]
    fn commands_are_tested_by_their_share() {
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
            .map(|of| (of.name.as_str(), of.verdict(), of.needed().is_some()))
            .collect();
        assert_eq!(
            verdicts,
            [
                ("small", Verdict::Unknown, true),
                ("solver (rank 0)", Verdict::Same, false),
                ("solver (rank 1)", Verdict::More, false),
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
            Verdict::Unknown,
            "too few runs"
        );
    }
}

//! Comparison of two groups of runs: differences of the machines, figures with statistics, processes
//! and regions that belong together.

mod document;
mod machines;
mod page;
pub mod statistics;
mod thresholds;

use std::collections::BTreeMap;

use self::statistics::{
    ALPHA, Estimate, benjamini_hochberg, holm, least_measurements, mann_whitney, median,
    needed_measurements, ratio, within_runs,
};
pub use self::{
    document::document,
    machines::{Difference, Machine},
    page::page,
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
    /// Processes and regions that only one side has.
    pub unmatched: [Vec<String>; 2],
    /// Runs on each side.
    pub runs: [usize; 2],
}

impl Compared {
    /// Whether the difference is significant and large enough.
    pub fn verdict(&self) -> Verdict {
        let Some(ratio) = self.ratio else {
            return Verdict::Same;
        };
        let is_significant = match (self.p, ratio.interval) {
            (Some(p), _) => p <= ALPHA,
            // One run each: the interval within the runs.
            (None, Some((low, high))) => low > 1.0 || high < 1.0,
            (None, None) => false,
        };
        if !is_significant || (ratio.value - 1.0).abs() < LEAST_EFFECT {
            Verdict::Same
        } else if ratio.value > 1.0 {
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
        for host in &run.hosts {
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

/// A command line without numbers, by which processes of different runs are matched.
fn template(command: &str) -> String {
    let mut template = String::new();
    let mut in_number = false;
    for c in command.chars() {
        let is_digit = c.is_ascii_digit();
        if !is_digit {
            template.push(c);
        } else if !in_number {
            template.push('#');
        }
        in_number = is_digit;
    }
    template
}

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
        needed: ratio.and_then(|ratio| needed_measurements(a, b, ratio.value)),
    })
}

/// Adjusts the p-values of figures that are tested together.
fn adjust(figures: &mut [Compared], adjust: fn(&[f64]) -> Vec<f64>) {
    let tested = figures.iter_mut().filter(|figure| figure.p.is_some());
    let mut tested: Vec<_> = tested.collect();
    let p: Vec<f64> = tested.iter().filter_map(|figure| figure.p).collect();
    for (figure, p) in tested.iter_mut().zip(adjust(&p)) {
        figure.p = Some(p);
    }
}

/// Compares runs with runs.
pub fn compare(labels: [String; 2], sides: [&[Measured]; 2]) -> Comparison {
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
    let processes = groups(sides, &mut unmatched, |run| {
        let mut sums = BTreeMap::new();
        for top in &run.summary.processes {
            let command = match top.process.cmdline.as_str() {
                "" => &top.process.comm,
                line => line,
            };
            let rank = top
                .process
                .rank
                .map_or(String::new(), |rank| format!(" (rank {rank})"));
            let cpu = top.figures.get("cpu_s").unwrap_or(0.0);
            *sums.entry(template(command) + &rank).or_default() += cpu;
        }
        sums
    });
    let regions = groups(sides, &mut unmatched, |run| {
        let regions = run.summary.regions.iter();
        regions
            .filter_map(|(name, figures)| Some((name.clone(), figures.get("region_s")?)))
            .collect()
    });
    Comparison {
        labels,
        machines: machines::differences(sides),
        figures,
        processes,
        regions,
        unmatched,
        runs: sides.map(<[Measured]>::len),
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

/// Matches values by name. Those that only one side has are added to `unmatched`.
fn groups(
    sides: [&[Measured]; 2],
    unmatched: &mut [Vec<String>; 2],
    values: impl Fn(&Measured) -> BTreeMap<String, f64>,
) -> Vec<Compared> {
    let named = sides.map(|runs| {
        let mut named: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for run in runs {
            for (name, value) in values(run) {
                named.entry(name).or_default().push(value);
            }
        }
        named
    });
    for (side, other) in [(0, 1), (1, 0)] {
        let only = named[side]
            .keys()
            .filter(|name| !named[other].contains_key(*name));
        unmatched[side].extend(only.cloned());
    }
    let mut found: Vec<_> = named[0]
        .iter()
        .filter_map(|(name, a)| compared(name.clone(), Unit::Seconds, a, named[1].get(name)?))
        .collect();
    adjust(&mut found, benjamini_hochberg);
    found
}

impl Comparison {
    /// Runs on each side with which a primary figure can differ significantly; `None` if there are
    /// enough.
    pub fn too_few(&self) -> Option<usize> {
        // With Holm's correction, the first of the tests has the strictest level.
        let tests = self
            .figures
            .iter()
            .filter(|figure| figure.is_primary)
            .count();
        let least = least_measurements(ALPHA / tests.max(1) as f64);
        (self.runs.iter().any(|runs| *runs < least)).then_some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_matched_without_numbers() {
        assert_eq!(
            template("solver --seed 4711 in-003.dat"),
            "solver --seed # in-#.dat"
        );
        assert_eq!(template(""), "");
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

//! Energy of regions: a model, because no counter measures it.
//!
//! A region has as much of the energy of the target as of its CPU time, while the region ran.

use std::collections::BTreeMap;

use super::{DerivedFigure, Figures};
use crate::analysis::{
    figure::{Coverage, Unit},
    rows::{Texts, numbers, times},
    stored_run::{StoredHost, StoredRun},
};

pub(super) const ENERGY: DerivedFigure = DerivedFigure {
    name: "region_energy_j",
    unit: Unit::Joules,
    help: "Energy of the target × share of its CPU time used by the region, while the region ran: a model, not a measurement",
    sql: r"WITH part AS (
  SELECT host, ts AS stop, ts - to_microseconds((interval_ns // 1000)::BIGINT) AS start,
    target_energy_uj / 1e6 AS joules, target_cpu_percent / 100 * interval_ns / 1e9 AS cpu_s
  FROM timeline WHERE target_energy_uj IS NOT NULL AND target_cpu_percent IS NOT NULL
), used AS (
  SELECT host, region_id, name, ts AS stop, ts - to_microseconds((interval_ns // 1000)::BIGINT) AS start,
    (user_ns + system_ns) / 1e9 AS cpu_s
  FROM region_usage WHERE interval_ns IS NOT NULL
), shared AS (
  SELECT any_value(used.name) AS name, any_value(used.cpu_s) AS cpu_s,
    sum(part.joules * share) AS joules, sum(part.cpu_s * share) AS of_s
  FROM (
    SELECT used, part, epoch(least(used.stop, part.stop) - greatest(used.start, part.start))
      / epoch(part.stop - part.start) AS share
    FROM used JOIN part
      ON used.host = part.host AND part.stop > used.start AND part.start < used.stop
  ) GROUP BY used.host, used.region_id
)
SELECT name, sum(cpu_s * joules / nullif(of_s, 0)) AS region_energy_j FROM shared GROUP BY name",
};

/// A sample of the target: its time (µs), energy (J) and CPU time (s).
struct Sample {
    start: i64,
    end: i64,
    used: [f64; 2],
}

/// Energy and CPU time of the target since the start.
#[derive(Default)]
struct Target {
    samples: Vec<Sample>,
    /// Sums before each sample.
    before: Vec<[f64; 2]>,
    sum: [f64; 2],
}

impl Target {
    fn push(&mut self, sample: Sample) {
        self.before.push(self.sum);
        for (sum, used) in self.sum.iter_mut().zip(sample.used) {
            *sum += used;
        }
        self.samples.push(sample);
    }

    fn until(&self, ts: i64) -> [f64; 2] {
        let index = self.samples.partition_point(|sample| sample.end <= ts);
        let Some(sample) = self.samples.get(index) else {
            return self.sum;
        };
        let length = sample.end.saturating_sub(sample.start).max(1) as f64;
        let share = ts.saturating_sub(sample.start).max(0) as f64 / length;
        let before = self.before[index];
        [0, 1].map(|number| before[number] + share * sample.used[number])
    }

    /// Energy per second of CPU time, J/s; `None` without CPU time.
    fn price(&self, start: i64, end: i64) -> Option<f64> {
        let (before, after) = (self.until(start), self.until(end));
        let [energy, cpu] = [0, 1].map(|number| after[number] - before[number]);
        (cpu > 0.0).then(|| energy / cpu)
    }
}

fn microseconds(nanoseconds: f64) -> i64 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "saturates; the length of an interval"
    )]
    let whole = (nanoseconds / 1000.0) as i64;
    whole
}

fn read_target(run: &StoredRun, host: &StoredHost, failures: &mut Vec<String>) -> Target {
    const COLUMNS: [&str; 4] = [
        "ts",
        "interval_ns",
        "target_energy_uj",
        "target_cpu_percent",
    ];
    let mut target = Target::default();
    let read = run.read("timeline", host, &COLUMNS, |batch| {
        let [lengths, energies, cpus] = ["interval_ns", "target_energy_uj", "target_cpu_percent"]
            .map(|name| numbers(batch, name));
        for (row, end) in times(batch, "ts").into_iter().enumerate() {
            let (energy, cpu) = (energies[row] / 1e6, cpus[row] / 100.0 * lengths[row] / 1e9);
            if let Some(end) = end
                && !(energy + cpu).is_nan()
            {
                target.push(Sample {
                    start: end.saturating_sub(microseconds(lengths[row])),
                    end,
                    used: [energy, cpu],
                });
            }
        }
    });
    failures.extend(read.err().into_iter().flatten());
    target
}

/// Energy of the regions with a name.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Energy {
    /// J.
    sum: f64,
    rows: Coverage,
}

impl Energy {
    /// Adds it to the figures of the regions with this name.
    pub(super) fn add_to(&self, figures: &mut Figures) {
        if self.rows.known == 0 {
            return;
        }
        *figures.known.entry(ENERGY.name).or_insert(0.0) += self.sum;
        if self.rows.known < self.rows.of || figures.partial.contains_key(ENERGY.name) {
            figures
                .partial
                .entry(ENERGY.name)
                .or_default()
                .add(self.rows);
        }
    }
}

/// Energies by name of the region.
pub(super) fn read_region_energies(
    run: &StoredRun,
    host: &StoredHost,
    failures: &mut Vec<String>,
) -> BTreeMap<String, Energy> {
    const COLUMNS: [&str; 5] = ["ts", "interval_ns", "name", "user_ns", "system_ns"];
    let target = read_target(run, host, failures);
    let mut energies: BTreeMap<String, Energy> = BTreeMap::new();
    if target.samples.is_empty() {
        return energies;
    }
    let read = run.read("region_usage", host, &COLUMNS, |batch| {
        let names = Texts::of(batch, "name");
        let [lengths, users, systems] =
            ["interval_ns", "user_ns", "system_ns"].map(|name| numbers(batch, name));
        for (row, end) in times(batch, "ts").into_iter().enumerate() {
            let used = (users[row] + systems[row]) / 1e9;
            let (Some(end), Some(name)) = (end, names.get(row)) else {
                continue;
            };
            let energy = energies.entry(name.to_owned()).or_default();
            energy.rows.of += 1;
            if lengths[row].is_nan() || used.is_nan() {
                continue;
            }
            let start = end.saturating_sub(microseconds(lengths[row]));
            if let Some(price) = target.price(start, end) {
                energy.sum += used * price;
                energy.rows.known += 1;
            }
        }
    });
    failures.extend(read.err().into_iter().flatten());
    energies
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(start: i64, end: i64, used: [f64; 2]) -> Sample {
        Sample { start, end, used }
    }

    #[test]
    fn energy_per_second_is_that_of_the_time_of_the_region() {
        let mut target = Target::default();
        target.push(sample(0, 1_000_000, [10.0, 1.0]));
        target.push(sample(1_000_000, 2_000_000, [40.0, 2.0]));
        // After a gap.
        target.push(sample(5_000_000, 6_000_000, [5.0, 0.0]));
        let price = |start, end| {
            target
                .price(start, end)
                .map(|price| (price * 1e6).round() / 1e6)
        };
        assert_eq!(price(0, 500_000), Some(10.0));
        assert_eq!(
            price(500_000, 1_500_000),
            Some((5.0 + 20.0) / 1.5).map(|of: f64| (of * 1e6).round() / 1e6)
        );
        assert_eq!(
            price(-5, 9_000_000),
            Some((55.0_f64 / 3.0 * 1e6).round() / 1e6)
        );
        assert_eq!(price(2_000_000, 4_000_000), None, "no sample");
        assert_eq!(price(5_000_000, 6_000_000), None, "no CPU time");
        assert_eq!(Target::default().price(0, 1), None);
    }
}

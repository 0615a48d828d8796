//! Ranks that wait for each other.

use super::{Evidence, QUIET, percent, seconds};

/// The largest of the values of ranks, and their mean.
struct Spread {
    rank: u64,
    longest: f64,
    mean: f64,
    ranks: usize,
}

impl Spread {
    /// Of a figure; `None` if fewer than two ranks have it.
    fn of(of: &Evidence<'_>, name: &str) -> Option<Self> {
        let ranks = of.summary.ranks.iter();
        let times: Vec<_> = ranks
            .filter_map(|(rank, figures)| Some((*rank, figures.get(name)?)))
            .collect();
        let mean = times.iter().map(|(_, time)| time).sum::<f64>() / times.len().max(1) as f64;
        let (rank, longest) = times.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
        (times.len() >= 2).then_some(Self {
            rank,
            longest,
            mean,
            ranks: times.len(),
        })
    }

    fn ratio(&self) -> f64 {
        self.longest / self.mean
    }

    fn is_uneven(&self, of: &Evidence<'_>) -> bool {
        self.ratio() >= 1.25 && self.mean / of.seconds >= QUIET
    }
}

/// Ranks that wait in MPI use their CPUs, so their CPU time tells nothing if their time in MPI is known.
pub(super) fn imbalance(of: &Evidence<'_>) -> Option<(String, f64)> {
    let outside = Spread::of(of, "outside_mpi_s");
    let is_outside = outside.is_some();
    let spread = outside.or_else(|| Spread::of(of, "cpu_s"))?;
    spread.is_uneven(of).then(|| {
        let ratio = spread.ratio();
        let [longest, mean] = [spread.longest, spread.mean].map(seconds);
        let (rank, ranks) = (spread.rank, spread.ranks);
        let text = if is_outside {
            format!(
                "Rank {rank} was outside MPI for {longest}, {ratio:.2} times the mean of {ranks} ranks ({mean})."
            )
        } else {
            format!(
                "Rank {rank} used {longest} of CPU time, {ratio:.2} times the mean of {ranks} ranks ({mean})."
            )
        };
        (text, 1.0 - 1.0 / ratio)
    })
}

pub(super) fn communication(of: &Evidence<'_>) -> Option<(String, f64)> {
    let (inside, outside) = (Spread::of(of, "mpi_s")?, Spread::of(of, "outside_mpi_s")?);
    let share = inside.mean / (inside.mean + outside.mean);
    let bounds = share >= 0.25 && inside.mean / of.seconds >= QUIET && !outside.is_uneven(of);
    bounds.then(|| {
        let text = format!(
            "{} ranks were in MPI for {} on average, {} of their time, and up to {} (rank {}).",
            inside.ranks,
            seconds(inside.mean),
            percent(share),
            seconds(inside.longest),
            inside.rank
        );
        (text, share)
    })
}

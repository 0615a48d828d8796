//! Roofline: performance against arithmetic intensity, of a run, its nodes, regions and samples, with
//! the ceilings of the machine.

mod ceilings;
mod points;

use self::{
    ceilings::Machines,
    points::{Points, sql},
};
pub use self::{
    ceilings::{Ceiling, Limit, Provenance, Sources},
    points::{Owner, Point, Tick},
};
use super::stored_run::StoredRun;
use crate::ceilings::Precision;

/// The roofline of a run.
#[derive(Clone, Debug)]
pub struct Roofline {
    /// All nodes together: the mean of a node.
    pub run: Point,
    /// By name, if there are several.
    pub nodes: Vec<Point>,
    /// By name.
    pub regions: Vec<Point>,
    pub ticks: Vec<Tick>,
    /// Precisions that were counted, as text.
    pub precisions: &'static str,
    /// Whose bytes were counted.
    pub owner: Owner,
    pub ceilings: Vec<Ceiling>,
    /// Why ceilings are missing, and files that cannot be used.
    pub notes: Vec<String>,
    /// Queries for the points: of samples, the run, nodes and regions.
    pub sql: Vec<String>,
}

/// The roofline of a run; `None` unless it has samples with both operations and bytes.
pub fn roofline(run: &StoredRun, sources: &Sources) -> Option<Roofline> {
    let points = Points::read(run)?;
    let machines = Machines::read(run);
    let whole = points.whole();
    let precisions = whole
        .by_precision()
        .flat_map(|(precision, _)| match precision {
            Some(known) => vec![known],
            None => vec![Precision::Double, Precision::Single],
        });
    let precisions = precisions.collect();
    let (ceilings, notes) = sources.ceilings(&machines, &precisions);
    Some(Roofline {
        run: whole,
        nodes: points.nodes(),
        regions: points.regions(),
        precisions: points.precisions(),
        owner: points.owner,
        sql: sql(points.columns),
        ticks: points.ticks,
        ceilings,
        notes,
    })
}

impl Roofline {
    /// The largest performance of a sample, FLOP/s.
    pub fn best_flops(&self) -> Option<f64> {
        let all = self.ticks.iter().map(|tick| tick.flop / tick.seconds);
        all.reduce(f64::max).filter(|best| *best > 0.0)
    }

    /// The largest bandwidth of a sample, B/s.
    pub fn best_bandwidth(&self) -> Option<f64> {
        let all = self.ticks.iter().map(|tick| tick.bytes / tick.seconds);
        all.reduce(f64::max).filter(|best| *best > 0.0)
    }

    /// Ceilings in the plot, those of operations first.
    pub fn drawn(&self) -> impl Iterator<Item = &Ceiling> {
        self.ceilings.iter().filter(|ceiling| ceiling.drawn)
    }

    /// The largest performance that the ceilings allow for the operations and bytes of a point, FLOP/s,
    /// and whether the memory limits it; `None` unless the ceilings of both are known.
    ///
    /// Operations of several precisions follow one another, each at the ceiling of its precision.
    pub fn attainable(&self, point: &Point) -> Option<(f64, bool)> {
        let highest = |wanted: &dyn Fn(&Limit) -> bool| {
            let drawn = self.drawn().filter(|ceiling| wanted(&ceiling.limit));
            drawn.map(|ceiling| ceiling.per_second).reduce(f64::max)
        };
        let mut seconds = 0.0;
        for (precision, flop) in point.by_precision() {
            seconds += flop
                / highest(&|limit| match limit {
                    Limit::Flops(of, _) => precision.is_none_or(|precision| precision == *of),
                    Limit::Bandwidth(..) => false,
                })?;
        }
        let bandwidth = highest(&|limit| matches!(limit, Limit::Bandwidth(..)))?;
        let memory_seconds = point.bytes / bandwidth;
        let longest = seconds.max(memory_seconds);
        (longest > 0.0).then(|| (point.flop / longest, memory_seconds > seconds))
    }
}

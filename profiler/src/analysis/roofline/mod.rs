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
    let (ceilings, notes) = sources.ceilings(&machines, points.columns);
    Some(Roofline {
        run: points.whole(),
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

    /// The lowest ceiling above an intensity, FLOP/s, and whether it is that of the memory; `None`
    /// without the ceilings of both.
    pub fn attainable(&self, intensity: f64) -> Option<(f64, bool)> {
        let highest = |wanted: fn(&Limit) -> bool| {
            let drawn = self.drawn().filter(|ceiling| wanted(&ceiling.limit));
            drawn.map(|ceiling| ceiling.per_second).reduce(f64::max)
        };
        let compute = highest(|limit| matches!(limit, Limit::Flops(..)))?;
        let memory = highest(|limit| matches!(limit, Limit::Bandwidth(..)))? * intensity;
        Some((compute.min(memory), memory < compute))
    }
}

//! Threads that used most CPU time, of a run with `--threads`.

use super::Figures;
use crate::analysis::{
    catalog::THREADS,
    scan::{Grouped, SEPARATOR},
};

/// A thread with its figures.
#[derive(Clone, Debug)]
pub struct TopThread {
    pub host: String,
    pub pid: u32,
    pub tid: u32,
    pub figures: Figures,
}

/// Columns that divide the rows of a host by thread; rows of processes have no thread.
pub(super) const COLUMNS: [&str; 2] = ["tid", "pid"];

/// The threads of a host.
pub(super) fn threads(host: &str, values: &Grouped) -> impl Iterator<Item = TopThread> {
    values.iter().filter_map(move |(name, values)| {
        let (tid, pid) = name.split_once(SEPARATOR)?;
        Some(TopThread {
            host: host.to_owned(),
            pid: pid.parse().ok()?,
            tid: tid.parse().ok()?,
            figures: Figures::of(THREADS, Some(values)),
        })
    })
}

/// Keeps those that used most CPU time, in this order.
pub(super) fn keep_top(threads: &mut Vec<TopThread>, count: usize) {
    let cpu = |thread: &TopThread| thread.figures.get(THREADS[0].name).unwrap_or(0.0);
    threads.sort_by(|a, b| cpu(b).total_cmp(&cpu(a)));
    threads.truncate(count);
}

//! Waits for CPUs, by their cause.

use std::fmt::Write as _;

use super::{Evidence, percent, seconds};
use crate::analysis::figure::Unit;

/// Names in a sentence.
const NAMES: usize = 3;

/// Whether these waits for CPUs, in s, bound a run.
fn are_waits(of: &Evidence<'_>, waited: f64) -> bool {
    waited / (of.cpu + of.runqueue) >= 0.2 && waited / of.seconds >= 0.1
}

/// A finding about a part of the waits for CPUs, with the text after the waits.
fn part_of_waits(of: &Evidence<'_>, name: &str, because: &str) -> Option<(String, f64)> {
    let waited = of.summary.target.get(name)?;
    are_waits(of, waited).then(|| {
        let text = format!(
            "Threads ran for {}, and waited {} {because}: {} of the time in which they could have run.",
            seconds(of.cpu),
            seconds(waited),
            percent(waited / (of.cpu + of.runqueue))
        );
        (text, waited / of.active())
    })
}

/// ` on 2 allowed CPUs`, if they are known.
fn on_allowed(of: &Evidence<'_>) -> String {
    let cpus = of.summary.target.get("allowed_cpus");
    cpus.map_or(String::new(), |cpus| {
        format!(" on {}", counted_cpus("allowed ", cpus))
    })
}

fn counted_cpus(kind: &str, cpus: f64) -> String {
    let cpus = Unit::Count.format(cpus);
    let plural = if cpus == "1" { "" } else { "s" };
    format!("{cpus} {kind}CPU{plural}")
}

pub(super) fn run_queue(of: &Evidence<'_>) -> Option<(String, f64)> {
    let because = format!("for others of the target{}", on_allowed(of));
    part_of_waits(of, "runqueue_own_s", &because)
}

pub(super) fn cpu_quota(of: &Evidence<'_>) -> Option<(String, f64)> {
    let get = |name| of.summary.target.get(name);
    let periods = get("throttled_periods").zip(get("quota_periods"));
    let periods = periods.map_or(String::new(), |(throttled, all)| {
        format!(" in {throttled:.0} of {all:.0} periods")
    });
    let because = format!("because their CPU quota was used up{periods}");
    part_of_waits(of, "runqueue_quota_s", &because)
}

pub(super) fn other_processes(of: &Evidence<'_>) -> Option<(String, f64)> {
    let because = "for CPUs that other processes used";
    let (mut text, weight) = part_of_waits(of, "runqueue_others_s", because)?;
    let used = of.summary.target.get("others_cpu_s")? / of.seconds;
    let _ = write!(text, " These used {used:.2} CPUs{}", on_allowed(of));
    let names = of.summary.neighbours.iter().filter_map(|(comm, figures)| {
        let cpu = figures.get("neighbour_cpu_s").filter(|cpu| *cpu > 0.0)?;
        Some(format!("{comm} {}", seconds(cpu)))
    });
    let names: Vec<_> = names.take(NAMES).collect();
    if names.is_empty() {
        text += "; their names are not recorded.";
    } else {
        let _ = write!(text, "; on the whole node most: {}.", names.join(", "));
    }
    Some((text, weight))
}

pub(super) fn waits_for_cpus(of: &Evidence<'_>) -> Option<(String, f64)> {
    if of.summary.target.get("runqueue_own_s").is_some() {
        return None;
    }
    part_of_waits(of, "runqueue_s", "for a CPU")
}

pub(super) fn steal(of: &Evidence<'_>) -> Option<(String, f64)> {
    let stolen = of.get("steal_s");
    let share = stolen / of.get("node_busy_s").max(f64::MIN_POSITIVE);
    let bounds = share >= 0.1 && stolen / of.seconds >= 0.1 && of.active() / of.seconds >= 0.1;
    bounds.then(|| {
        let text = format!(
            "The hypervisor ran something else for {} while CPUs of the node had work: {} of their busy time.",
            seconds(stolen),
            percent(share)
        );
        (text, share)
    })
}

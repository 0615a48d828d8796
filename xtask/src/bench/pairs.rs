//! The slowdown of a workload, from interleaved runs with and without the profiler.

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    statistics::{interval, median, minimum},
    tracer::Tracer,
    workload_shell::WorkloadShell,
    workloads::Workload,
};
use crate::shell::progress;

/// Starts a tool for a process and its descendants.
pub type Attach<'a> = dyn Fn(u32) -> Result<Tracer> + 'a;

/// Durations in s of the runs of all pairs.
pub struct Pairs<'a> {
    workload: &'a Workload,
    /// Name of the attached tool.
    tool: &'static str,
    goal: Option<f64>,
    without: Vec<f64>,
    with: Vec<f64>,
}

impl<'a> Pairs<'a> {
    /// Measures the slowdown by the profiler.
    pub fn measure(workload: &'a Workload, pairs: u32, attach: &Attach) -> Result<Self> {
        let goal = workload.goal;
        Self::take("profiler", goal, workload, pairs, attach)
    }

    /// Measures the slowdown by another tool.
    pub fn compare(
        tool: &'static str,
        workload: &'a Workload,
        pairs: u32,
        attach: &Attach,
    ) -> Result<Self> {
        Self::take(tool, None, workload, pairs, attach)
    }

    fn take(
        tool: &'static str,
        goal: Option<f64>,
        workload: &'a Workload,
        pairs: u32,
        attach: &Attach,
    ) -> Result<Self> {
        let mut parent = WorkloadShell::start()?;
        // A warm-up run, which also creates files.
        parent.time(workload)?;
        let mut this = Self {
            workload,
            tool,
            goal,
            without: Vec::new(),
            with: Vec::new(),
        };
        for pair in 0..pairs {
            progress(&format!(
                "{}, {tool}: pair {} of {pairs}",
                workload.title,
                pair + 1
            ));
            // Alternate the order, so that drift affects both equally.
            if pair % 2 == 0 {
                this.without.push(parent.time(workload)?);
                this.with.push(attached(&mut parent, workload, attach)?);
            } else {
                this.with.push(attached(&mut parent, workload, attach)?);
                this.without.push(parent.time(workload)?);
            }
        }
        Ok(this)
    }

    fn ratios(&self) -> Vec<f64> {
        let pairs = self.with.iter().zip(&self.without);
        pairs.map(|(with, without)| with / without).collect()
    }

    /// Ratio of the fastest runs, which have the least noise.
    fn fastest(&self) -> f64 {
        minimum(&self.with) / minimum(&self.without)
    }

    pub fn print_header() {
        println!(
            "{:<27} {:>9} {:>9}  ratio (95 % interval)      fastest  goal",
            "workload", "without", "with"
        );
    }

    pub fn print(&self) {
        let ratios = self.ratios();
        let (low, high) = interval(&ratios);
        let title = match self.tool {
            "profiler" => self.workload.title.to_owned(),
            tool => format!("  {tool}"),
        };
        println!(
            "{title:<27} {:>7.3} s {:>7.3} s  x{:.3} (x{low:.3} to x{high:.3})  x{:.3}   {}",
            median(&self.without),
            median(&self.with),
            median(&ratios),
            self.fastest(),
            self.goal
                .map_or_else(String::new, |goal| verdict(goal, median(&ratios), low)),
        );
    }

    pub fn json(&self) -> Value {
        let ratios = self.ratios();
        let (low, high) = interval(&ratios);
        json!({
            "name": self.workload.title,
            "tool": self.tool,
            "command": self.workload.command,
            "without_s": self.without,
            "with_s": self.with,
            "ratio": median(&ratios),
            "ratio_low": low,
            "ratio_high": high,
            "ratio_fastest": self.fastest(),
            "ratio_goal": self.goal,
        })
    }
}

/// A median above the goal is a miss only if the confidence interval excludes the goal.
fn verdict(goal: f64, median: f64, low: f64) -> String {
    let verdict = if low > goal {
        "  MISSED"
    } else if median > goal {
        "  inconclusive: use more --pairs"
    } else {
        ""
    };
    format!("x{goal:.2}{verdict}")
}

fn attached(parent: &mut WorkloadShell, workload: &Workload, attach: &Attach) -> Result<f64> {
    let attached = attach(parent.pid())?;
    let seconds = parent.time(workload)?;
    attached.stop()?;
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn verdicts() {
        assert_eq!(verdict(1.05, 1.04, 0.9), "x1.05");
        assert_eq!(verdict(1.05, 1.07, 1.06), "x1.05  MISSED");
        assert!(verdict(1.05, 1.07, 1.01).contains("--pairs"));
    }
}

//! The slowdown of a workload by several tools, from interleaved rounds. Each round has one run
//! without a tool and one with each.

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    statistics::{interval, median, minimum},
    tracer::Tracer,
    workload_shell::WorkloadShell,
    workloads::Workload,
};
use crate::shell::progress;

/// A tool that is attached to the workload.
pub struct Contestant<'a> {
    pub name: &'static str,
    /// Maximum ratio.
    pub goal: Option<f64>,
    /// Starts it for a process and its descendants.
    pub attach: Box<dyn Fn(u32) -> Result<Tracer> + 'a>,
}

/// Durations of the runs of all rounds, s.
pub struct Slowdown<'a> {
    workload: &'a Workload,
    tool: &'static str,
    goal: Option<f64>,
    without: Vec<f64>,
    with: Vec<f64>,
}

/// Measures the slowdown by each tool.
pub fn measure<'a>(
    workload: &'a Workload,
    rounds: u32,
    tools: &[Contestant<'_>],
) -> Result<Vec<Slowdown<'a>>> {
    let mut parent = WorkloadShell::start()?;
    // A warm-up run, which also creates files.
    parent.time(workload)?;
    let mut without = Vec::new();
    let mut with = vec![Vec::new(); tools.len()];
    for round in 0..rounds {
        progress(&format!(
            "{}: round {} of {rounds}",
            workload.title,
            round + 1
        ));
        let mut order: Vec<Option<usize>> = vec![None];
        order.extend((0..tools.len()).map(Some));
        // Alternate the order, so that drift affects all equally.
        if round % 2 == 1 {
            order.reverse();
        }
        for tool in order {
            let Some(tool) = tool else {
                without.push(parent.time(workload)?);
                continue;
            };
            let attached = (tools[tool].attach)(parent.pid())?;
            with[tool].push(parent.time(workload)?);
            attached.stop()?;
        }
    }
    let measured = tools.iter().zip(with).map(|(tool, with)| Slowdown {
        workload,
        tool: tool.name,
        goal: tool.goal,
        without: without.clone(),
        with,
    });
    Ok(measured.collect())
}

impl Slowdown<'_> {
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
            "{:<27} {:<23} {:>9} {:>9}  ratio (95 % interval)      fastest  goal",
            "workload", "tool", "without", "with"
        );
    }

    pub fn print(&self) {
        let ratios = self.ratios();
        let (low, high) = interval(&ratios);
        println!(
            "{:<27} {:<23} {:>7.3} s {:>7.3} s  x{:.3} (x{low:.3} to x{high:.3})  x{:.3}   {}",
            self.workload.title,
            self.tool,
            median(&self.without),
            median(&self.with),
            median(&ratios),
            self.fastest(),
            self.goal
                .map_or_else(String::new, |goal| verdict(goal, median(&ratios), low)),
        );
    }

    /// The goal that is missed, if one is: the whole confidence interval is above it.
    pub fn missed(&self) -> Option<String> {
        let ratios = self.ratios();
        let (low, _) = interval(&ratios);
        let goal = self.goal.filter(|goal| low > *goal)?;
        let (ratio, title) = (median(&ratios), self.workload.title);
        Some(format!(
            "{title}, {}: x{ratio:.3}, goal x{goal:.2}",
            self.tool
        ))
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
        "  inconclusive: use more --rounds"
    } else {
        ""
    };
    format!("x{goal:.2}{verdict}")
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn verdicts() {
        assert_eq!(verdict(1.05, 1.04, 0.9), "x1.05");
        assert_eq!(verdict(1.05, 1.07, 1.06), "x1.05  MISSED");
        assert!(verdict(1.05, 1.07, 1.01).contains("--rounds"));
    }
}

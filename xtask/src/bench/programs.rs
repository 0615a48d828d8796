//! Run time of each BPF program, compared with an empty program at the same hook and workload.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    bpf_stats::BpfStats,
    empty_program::EmptyProgram,
    loaded::{self, Hook},
    statistics::median,
    tracer::Profiler,
    workload_shell::WorkloadShell,
    workloads::Workload,
};
use crate::shell::progress;

/// Number of measurements, of which the median is used.
const ROUNDS: u32 = 3;
/// Minimum number of runs; the mean of fewer runs is dominated by cold caches.
const RUNS_MIN: u64 = 100;

/// The programs that ran during one workload.
pub struct Programs<'a> {
    workload: &'a Workload,
    programs: Vec<Program>,
}

struct Program {
    name: String,
    hook: Option<Hook>,
    /// Runs and total ns in each round.
    rounds: Vec<(u64, u64)>,
    /// Runs and total ns of an empty program, or the reason why there is none.
    empty: Result<Vec<(u64, u64)>, String>,
}

impl<'a> Programs<'a> {
    pub fn measure(workload: &'a Workload, profiler: &Profiler) -> Result<Self> {
        let mut parent = WorkloadShell::start()?;
        let mut this = Self {
            workload,
            programs: Vec::new(),
        };
        for round in 0..ROUNDS {
            progress(&format!(
                "programs, {}: round {} of {ROUNDS}",
                workload.title,
                round + 1
            ));
            this.run_ours(&mut parent, profiler)?;
            this.run_empty(&mut parent)?;
        }
        this.programs.sort_by_key(|program| {
            std::cmp::Reverse(program.rounds.iter().map(|(_, ns)| *ns).sum::<u64>())
        });
        Ok(this)
    }

    fn run_ours(&mut self, parent: &mut WorkloadShell, profiler: &Profiler) -> Result<()> {
        let mut args = vec!["--pid".to_owned(), parent.pid().to_string()];
        if let Some(source) = self.workload.source {
            args.extend(["--source".to_owned(), format!("+{source}")]);
        }
        // Started before the programs are loaded, so that their totals are those of this round.
        let measuring = BpfStats::start()?;
        let attached = profiler.attach(&args)?;
        parent.time(self.workload)?;
        let loaded = loaded::read(attached.pid())?;
        drop(measuring);
        attached.stop()?;
        for program in loaded.into_values() {
            let cost = (program.runs, program.run_ns);
            let known = self
                .programs
                .iter_mut()
                .find(|known| known.name == program.name && known.hook == program.hook);
            match known {
                Some(known) => known.rounds.push(cost),
                None => self.programs.push(Program {
                    name: program.name,
                    hook: program.hook,
                    rounds: vec![cost],
                    empty: Ok(Vec::new()),
                }),
            }
        }
        Ok(())
    }

    /// Attaches all empty programs at once, as the profiler does, because programs share the
    /// caches.
    fn run_empty(&mut self, parent: &mut WorkloadShell) -> Result<()> {
        let mut attached = BTreeMap::new();
        for (index, program) in self.programs.iter_mut().enumerate() {
            if let (Some(hook), Ok(_)) = (&program.hook, &program.empty) {
                match EmptyProgram::attach(hook) {
                    Ok(empty) => {
                        attached.insert(index, empty);
                    }
                    Err(error) => program.empty = Err(format!("{error:#}")),
                }
            }
        }
        let measuring = BpfStats::start()?;
        parent.time(self.workload)?;
        drop(measuring);
        for (index, empty) in attached {
            if let Ok(rounds) = &mut self.programs[index].empty {
                rounds.push(empty.cost()?);
            }
        }
        Ok(())
    }

    pub fn print(&self) {
        println!("\n{}", self.workload.title);
        println!(
            "  {:<25} {:>10} {:>8} {:>8} {:>8}",
            "BPF program", "runs", "ns", "empty", "more"
        );
        let often = |program: &&Program| program.runs() >= RUNS_MIN;
        for program in self.programs.iter().filter(often) {
            program.print();
        }
    }

    pub fn json(&self) -> Value {
        let programs: Vec<Value> = self.programs.iter().map(Program::json).collect();
        json!({
            "workload": self.workload.title,
            "command": self.workload.command,
            "programs": programs,
        })
    }
}

impl Program {
    fn runs(&self) -> u64 {
        self.rounds.iter().map(|(runs, _)| runs).sum::<u64>() / u64::from(ROUNDS)
    }

    fn empty_ns(&self) -> Option<f64> {
        self.empty
            .as_ref()
            .ok()
            .and_then(|rounds| ns_per_run(rounds))
    }

    fn print(&self) {
        let (ns, empty) = (ns_per_run(&self.rounds), self.empty_ns());
        let figure = |ns: Option<f64>| ns.map_or("-".to_owned(), |ns| format!("{ns:.0}"));
        let more = ns.zip(empty).map(|(ns, empty)| ns - empty);
        println!(
            "  {:<25} {:>10} {:>8} {:>8} {:>8}{}",
            self.name,
            self.runs(),
            figure(ns),
            figure(empty),
            figure(more),
            self.empty
                .as_ref()
                .err()
                .map_or_else(String::new, |why| format!("  {why}")),
        );
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "runs": self.runs(),
            "ns_per_run": ns_per_run(&self.rounds),
            "empty_ns_per_run": self.empty_ns(),
            "rounds": self.rounds,
            "empty_rounds": self.empty.as_ref().ok(),
        })
    }
}

fn ns_per_run(rounds: &[(u64, u64)]) -> Option<f64> {
    let ran = rounds.iter().filter(|(runs, _)| *runs > 0);
    let means: Vec<f64> = ran.map(|(runs, ns)| *ns as f64 / *runs as f64).collect();
    (!means.is_empty()).then(|| median(&means))
}

#[cfg(test)]
mod tests {
    use super::ns_per_run;

    #[test]
    fn median_ignores_rounds_without_runs() {
        assert_eq!(
            ns_per_run(&[(10, 100), (0, 0), (10, 300), (1, 900)]),
            Some(30.0)
        );
        assert_eq!(ns_per_run(&[(0, 0)]), None);
    }
}

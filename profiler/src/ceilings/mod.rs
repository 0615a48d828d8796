//! Ceilings of a machine, measured with loops of known work: `profiler ceilings`.

mod busy;
mod file;
mod levels;
mod loads;
pub mod loops;
mod machine;
mod threads;

use std::{io, time::Duration};

pub use self::{
    busy::reasons as busy,
    file::{Bandwidth, Ceilings, Flops, Memory, Precision, directories, file_name, stored},
    levels::DRAM as MAIN_MEMORY,
    machine::{COLUMNS as MACHINE_COLUMNS, Machine},
    threads::allowed_cpus,
};
use self::{
    levels::{DRAM, Level, levels},
    loads::Loads,
    loops::Triad,
    threads::{REPETITIONS, Work, measure},
};
use crate::{
    host::Host, procfs::meminfo::MemInfo, sources::host::caches, support::units::format_bytes,
};

/// Length of a repetition. A level of the memory takes 2.5 s, on one CPU and again on all.
const REPETITION: Duration = Duration::from_millis(250);

/// A loop on some of the CPUs.
struct Step {
    cpus: Vec<usize>,
    what: What,
}

enum What {
    Flops(loops::Kernel),
    Load(Level),
    Triad(Level),
}

impl What {
    fn name(&self) -> String {
        match self {
            Self::Flops(kernel) => kernel.name.to_owned(),
            Self::Load(level) => format!("{} load", level.name),
            Self::Triad(level) => format!("{} triad", level.name),
        }
    }
}

/// A measurement that is about to be made.
pub struct Plan {
    steps: Vec<Step>,
    /// What cannot be measured, with the reason.
    pub omitted: Vec<String>,
}

impl Plan {
    /// All loops that the machine supports, on the first of `cpus`, and on all of them.
    pub fn new(host: &Host, cpus: &[usize]) -> Self {
        let caches = caches(&host.sysfs);
        let meminfo = std::fs::read(host.procfs.join("meminfo")).unwrap_or_default();
        let available = MemInfo::parse(&meminfo).available;
        let mut plan = Self {
            steps: Vec::new(),
            omitted: Vec::new(),
        };
        let mut of_cpus = vec![&cpus[..1]];
        if cpus.len() > 1 {
            of_cpus.push(cpus);
        }
        for cpus in of_cpus {
            let mut add = |what| {
                plan.steps.push(Step {
                    cpus: cpus.to_owned(),
                    what,
                });
            };
            loops::kernels().for_each(|kernel| add(What::Flops(kernel)));
            for level in levels(&caches, cpus) {
                // Half of it, so that nothing else is pushed out of memory.
                let needed = 3 * level.bytes * cpus.len() as u64;
                let limit = available.map_or(u64::MAX, |available| available / 2);
                if level.name == DRAM && needed > limit {
                    plan.omitted.push(format!(
                        "DRAM on {} CPUs: needs {} of free memory, {} are available",
                        cpus.len(),
                        format_bytes(2 * needed),
                        format_bytes(2 * limit),
                    ));
                    continue;
                }
                add(What::Load(level.clone()));
                add(What::Triad(level));
            }
        }
        plan
    }

    /// Number of loops.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is nothing to measure.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// About how long it takes.
    pub fn duration(&self) -> Duration {
        let repetitions = u32::try_from(self.len() * REPETITIONS);
        REPETITION * repetitions.unwrap_or(u32::MAX)
    }

    /// Measures. `progress` is called before each loop, with its number and name.
    ///
    /// # Errors
    ///
    /// When a CPU cannot be used.
    pub fn measure(&self, mut progress: impl FnMut(usize, &str)) -> io::Result<Ceilings> {
        let mut ceilings = Ceilings::default();
        for (number, Step { cpus, what }) in self.steps.iter().enumerate() {
            let name = what.name();
            let on = if cpus.len() == 1 { "CPU" } else { "CPUs" };
            progress(number + 1, &format!("{name} on {} {on}", cpus.len()));
            let rate = measure(cpus, REPETITION, || what.prepare())?;
            let (count, spread) = (Some(cpus.len()), Some(rate.spread));
            match what {
                What::Flops(kernel) => ceilings.flops.push(Flops {
                    precision: match kernel.precision {
                        loops::kernel::Precision::Single => Precision::Single,
                        loops::kernel::Precision::Double => Precision::Double,
                    },
                    name: Some(name),
                    cpus: count,
                    per_second: rate.median,
                    spread,
                }),
                What::Load(level) | What::Triad(level) => ceilings.bandwidth.push(Bandwidth {
                    level: level.name.clone(),
                    access: name.split(' ').nth(1).map(str::to_owned),
                    cpus: count,
                    per_second: rate.median,
                    spread,
                    bytes: Some(level.bytes),
                }),
            }
        }
        Ok(ceilings)
    }
}

impl What {
    /// The loop with its memory, which this thread writes first.
    fn prepare(&self) -> Work<'_> {
        match self {
            Self::Flops(kernel) => Work {
                run: Box::new(|iterations| kernel.run(iterations)),
                per_iteration: kernel.flops(),
            },
            Self::Load(level) => {
                let loads = Loads::new(usize::try_from(level.bytes).unwrap_or(usize::MAX));
                Work {
                    per_iteration: loads.bytes(),
                    run: Box::new(move |iterations| loads.run(iterations)),
                }
            }
            Self::Triad(level) => {
                // In a cache, the three arrays together have the size.
                let bytes = if level.name == DRAM {
                    level.bytes
                } else {
                    level.bytes / 3
                };
                // Whole lines of a cache.
                let elements = (bytes / 8).next_multiple_of(8);
                let mut triad = Triad::new(usize::try_from(elements).unwrap_or(usize::MAX));
                Work {
                    per_iteration: elements * Triad::BYTES,
                    run: Box::new(move |iterations| triad.run(iterations)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_loops_run_on_one_cpu_and_on_all() {
        let host = Host::probe("/proc", "/sys", None);
        let cpus = allowed_cpus().expect("the affinity");
        let plan = Plan::new(&host, &cpus);
        let scopes = if cpus.len() == 1 { 1 } else { 2 };
        let kernels = loops::kernels().count();
        let of = |wanted: fn(&What) -> bool| {
            let steps = plan.steps.iter();
            steps.filter(|step| wanted(&step.what)).count()
        };
        assert_eq!(of(|what| matches!(what, What::Flops(_))), scopes * kernels);
        let triads = of(|what| matches!(what, What::Triad(_)));
        assert_eq!(of(|what| matches!(what, What::Load(_))), triads);
        assert!(triads + plan.omitted.len() >= scopes, "{:?}", plan.omitted);
        assert!(!plan.is_empty() && plan.duration() < Duration::from_secs(120));
    }

    #[test]
    fn memory_that_is_not_there_is_not_measured() {
        let directory = tempfile::TempDir::new().expect("a directory");
        std::fs::write(directory.path().join("meminfo"), "MemAvailable: 1000 kB\n")
            .expect("written");
        let host = Host::probe(directory.path(), "/sys", None);
        let plan = Plan::new(&host, &[0]);
        assert_eq!(plan.omitted.len(), 1);
        assert!(
            plan.omitted[0].starts_with("DRAM on 1 CPUs: needs "),
            "{:?}",
            plan.omitted
        );
        let all = plan.steps.iter().map(|step| step.what.name());
        assert!(all.into_iter().all(|name| !name.contains("DRAM")));
    }
}

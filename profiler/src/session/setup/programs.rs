//! Loads the BPF programs and follows the processes that exist.

use std::{collections::HashSet, fmt::Write as _};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{lookup, target::FoundTarget};
use crate::{
    bpf::{self, BpfError, KernelSupport, Programs, Roots, Settings, TaskReader},
    config::{Config, Target},
    failure::{Failure, Reason},
    host::{Host, cpu_list, text},
    privileges,
    support::clock::Clock,
    tasks::{ProcfsReader, Reader},
};

/// Reads the processes of the target.
pub struct OpenReader {
    pub reader: Reader,
    /// Values that the running kernel maintains.
    pub support: KernelSupport,
    /// `None` if BPF programs read the processes.
    pub fallback: Option<Fallback>,
}

/// Reading of the processes from /proc.
pub struct Fallback {
    /// Why BPF programs cannot be used, and the remedy.
    pub problem: String,
    /// Whether starts and ends of all processes are recorded.
    pub is_recorded: bool,
}

/// Opens the BPF programs, or the `/proc` fallback.
pub fn open(
    config: &Config,
    host: &Host,
    clock: Clock,
    found: &FoundTarget,
) -> Result<OpenReader, Failure> {
    if !config.sources.need_tasks() {
        let mut read = read_procfs(config, host, clock, found, "");
        read.fallback = None;
        if matches!(config.target, Target::Node) {
            read.reader = Reader::None;
        }
        return Ok(read);
    }
    if !privileges::may_load_bpf() {
        return Ok(read_procfs(config, host, clock, found, UNPRIVILEGED));
    }
    let loaded = Programs::load(host, &settings(config, found), |tasks| follow(tasks, found));
    match loaded {
        Ok(programs) => {
            check_visible(config, host, found, &programs)?;
            Ok(OpenReader {
                support: programs.support,
                reader: Reader::Bpf(Box::new(programs)),
                fallback: None,
            })
        }
        Err(error) => {
            let problem = format!("{} (remedy: {})", error.describe(), error.remedy());
            Ok(read_procfs(config, host, clock, found, &problem))
        }
    }
}

/// Why an ordinary user has no BPF programs, and the remedy.
const UNPRIVILEGED: &str = "no CAP_BPF and CAP_PERFMON (remedy: sudo, or an administrator runs \
     `setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep` on the profiler)";

/// Opens the `/proc` fallback.
fn read_procfs(
    config: &Config,
    host: &Host,
    clock: Clock,
    found: &FoundTarget,
    problem: &str,
) -> OpenReader {
    let mut reader = ProcfsReader::new(found.procfs_scope.clone(), clock, config.settings.threads);
    let records = reader.record_lifecycle(&cpus_of_target(config));
    let mut fallback = Fallback {
        problem: problem.to_owned(),
        is_recorded: records.is_ok(),
    };
    if let Err(error) = records {
        let level = host.perf_event_paranoid;
        let remedy = match level {
            Some(level) if level > 2 => format!(
                " (kernel.perf_event_paranoid is {level}; remedy: sysctl \
                 kernel.perf_event_paranoid=2)"
            ),
            _ => String::new(),
        };
        let _ = write!(
            fallback.problem,
            "; processes that live less than an interval are missing: perf_event_open: \
             {error}{remedy}"
        );
    }
    OpenReader {
        reader: Reader::Procfs(Box::new(reader)),
        support: KernelSupport {
            run_delay: host.procfs.join("self/schedstat").exists(),
            io: host.procfs.join("self/io").exists(),
            sched: false,
            wakeups: false,
        },
        fallback: Some(fallback),
    }
}

/// CPUs on which the target can run, and whose buffers of task records are read.
pub(super) fn cpus_of_target(config: &Config) -> Vec<u32> {
    let online = || {
        let list = text(&config.settings.sysfs.join("devices/system/cpu/online"))?;
        Some(numbers(cpu_list(&list)?))
    };
    let is_descendant = matches!(config.target, Target::Command(_));
    let allowed = allowed_cpus().filter(|_| is_descendant);
    allowed
        .or_else(online)
        .or_else(allowed_cpus)
        .unwrap_or_default()
}

/// CPUs that this process and its descendants can select with sched_setaffinity(2): those of the
/// cpuset.
fn allowed_cpus() -> Option<Vec<u32>> {
    let selected = sched_getaffinity(None).ok()?;
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    sched_setaffinity(None, &all).ok()?;
    let allowed = sched_getaffinity(None);
    sched_setaffinity(None, &selected).ok()?;
    let allowed = allowed.ok()?;
    Some(numbers(
        (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)),
    ))
}

fn numbers(cpus: impl IntoIterator<Item = usize>) -> Vec<u32> {
    let cpus = cpus.into_iter();
    cpus.filter_map(|cpu| u32::try_from(cpu).ok()).collect()
}

fn settings(config: &Config, found: &FoundTarget) -> Settings {
    Settings {
        scope: found.scope.clone(),
        sched: config.sources.iter().any(|spec| spec.waits),
        threads: config.settings.threads,
        moves: matches!(
            found.scope,
            bpf::Scope::Cgroup { .. } | bpf::Scope::Job { .. }
        ),
        instrumentations: config.sources.instrumentations(),
        max_entries: config.settings.max_entries,
        map_entries: config.settings.map_entries.clone(),
    }
}

/// Checks that the programs have found processes that were given by pid.
fn check_visible(
    config: &Config,
    host: &Host,
    found: &FoundTarget,
    programs: &Programs,
) -> Result<(), Failure> {
    let live = programs
        .tasks
        .counters()
        .map_or(0, |counters| counters.live);
    if live != 0 || !matches!(config.target, Target::Pids(_)) {
        return Ok(());
    }
    let pids: Vec<u32> = found.roots.iter().map(|(pid, _)| *pid).collect();
    let why = match lookup::roots(host, &pids) {
        Ok(_) => "is hidden from BPF programs by this kernel: it cannot be followed",
        Err(_) => "ended before it could be followed",
    };
    let message = format!("{} {why}", found.description);
    Err(Failure::new(Reason::Target, message))
}

/// Follows the processes of the target that exist. All forks are seen already, so that none is missed.
fn follow(tasks: &mut TaskReader, found: &FoundTarget) -> Result<(), BpfError> {
    tasks.add_roots(&found.roots)?;
    tasks.mark()?;
    // A parent that was not followed at the fork, and has ended since, is known only from the
    // event.
    let mut events = Vec::new();
    tasks.drain(&mut events)?;
    let mut forks: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            bpf::Event::OutOfScopeFork(fork) => Some(*fork),
            _ => None,
        })
        .collect();
    let mut family: HashSet<u32> = found.roots.iter().map(|(pid, _)| *pid).collect();
    let mut adopted = Roots::new();
    let mut grown = true;
    while std::mem::take(&mut grown) {
        forks.retain(|fork| {
            let related = family.contains(&fork.ppid);
            if related {
                family.insert(fork.pid);
                adopted.push((fork.pid, fork.start_boottime));
                grown = true;
            }
            !related
        });
    }
    if !adopted.is_empty() {
        tasks.add_roots(&adopted)?;
        tasks.mark()?;
    }
    tasks.end_arming()?;
    if matches!(found.scope, bpf::Scope::Job { .. }) {
        tasks.forget_roots()?;
    }
    Ok(())
}

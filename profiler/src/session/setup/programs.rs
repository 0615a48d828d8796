//! Loads the BPF programs and follows the processes that exist.

use std::collections::HashSet;

use super::{lookup, target::FoundTarget};
use crate::{
    bpf::{self, BpfError, KernelSupport, Programs, Roots, Settings},
    config::{Config, Target},
    failure::{Failure, Reason},
    host::Host,
    tasks::{Reader, Walker},
};

/// Reads the processes of the target.
pub struct OpenReader {
    pub reader: Reader,
    /// Values that the running kernel maintains.
    pub support: KernelSupport,
    /// Why the processes are read from /proc instead of by BPF programs.
    pub problem: Option<String>,
}

/// Opens the BPF programs, or the `/proc` fallback.
pub fn open(config: &Config, host: &Host, found: &FoundTarget) -> Result<OpenReader, Failure> {
    let walker = || Reader::Procfs(Walker::new(found.walk.clone(), config.settings.threads));
    let support = KernelSupport {
        run_delay: false,
        io: true,
        sched: false,
    };
    if !config.sources.need_tasks() {
        let reader = if matches!(config.target, Target::Node) {
            Reader::None
        } else {
            walker()
        };
        return Ok(OpenReader {
            reader,
            support,
            problem: None,
        });
    }
    match follow(host, &settings(config, found), found) {
        Ok(programs) => {
            check_visible(config, host, found, &programs)?;
            Ok(OpenReader {
                support: programs.support,
                reader: Reader::Bpf(Box::new(programs)),
                problem: None,
            })
        }
        Err(error) => Ok(OpenReader {
            reader: walker(),
            support,
            problem: Some(format!("{} (remedy: {})", error.describe(), error.remedy())),
        }),
    }
}

fn settings(config: &Config, found: &FoundTarget) -> Settings {
    Settings {
        scope: found.scope.clone(),
        sched: config.sources.iter().any(|spec| spec.wakeups),
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
    let live = programs.counters().map_or(0, |counters| counters.live);
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

/// Attaches the programs first and marks existing processes then, so that no fork in between is
/// missed.
fn follow(host: &Host, settings: &Settings, found: &FoundTarget) -> Result<Programs, BpfError> {
    let mut programs = Programs::load(host, settings)?;
    programs.add_roots(&found.roots)?;
    programs.mark()?;
    // A parent that was not followed at the fork, and has ended since, is known only from the
    // event.
    let mut events = Vec::new();
    programs.drain(&mut events);
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
        programs.add_roots(&adopted)?;
        programs.mark()?;
    }
    programs.end_arming()?;
    if matches!(found.scope, bpf::Scope::Job { .. }) {
        programs.forget_roots()?;
    }
    Ok(programs)
}

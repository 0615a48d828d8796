//! Everything before the first tick, in the order in which it can fail without leaving anything behind.

mod sources;

use std::{collections::HashSet, path::PathBuf, sync::Arc};

use anyhow::Result;
use caps::Capability;

pub use self::sources::Opened;
use super::{job_watch::JobWatch, retention, target};
use crate::{
    bpf::{self, BpfError, KernelSupport, Programs, Roots, Settings},
    config::{Config, Target},
    failure::{Failure, Reason},
    host::Host,
    job::{self, ROOTS_MAX},
    marks::MarkReceiver,
    output::{
        dataset::{
            self, Manifest, Sink,
            manifest::{SourceState, SourceStatus},
        },
        per_job::Template,
        recovery::{Orphans, Recovery},
    },
    privileges, report,
    sources::{REGISTRY, SourceSpec},
    support::{
        clock::{Clock, Timekeeping, monotonic_ns},
        invoking_user,
    },
    tasks::{PerKeyCounters, Reader, TaskTable, Walker, walk},
};

/// A run that is ready for its first tick.
pub struct Setup {
    pub clock: Clock,
    pub sources: Vec<Opened>,
    pub tasks: TaskTable,
    pub sink: Sink,
    /// Recovers earlier runs once the first tick is over.
    pub recovery: Recovery,
    pub run_dir: PathBuf,
    pub cgroup: Option<PathBuf>,
    /// What looks for more of the job, and for its end.
    pub job: Option<JobWatch>,
    /// The target, for the line that says that profiling has begun.
    pub what: String,
    /// What is missing, to be reported when nothing can fail any more: an error is one line.
    pub missing: Option<String>,
    /// What the runs of jobs have in common, with `--split-by job`.
    pub template: Option<Template>,
    /// What the ticks after the first need besides what they always do.
    pub keeps_capabilities: Vec<Capability>,
    /// Where applications send marks.
    pub marks: Option<Arc<MarkReceiver>>,
}

/// What the target is for the programs and for /proc.
struct Found {
    scope: bpf::Scope,
    roots: Roots,
    walk: walk::Scope,
    cgroup: Option<PathBuf>,
    job: Option<serde_json::Value>,
    what: String,
}

impl Setup {
    /// Finds the target, loads the programs, opens the sources and the output.
    pub fn new(
        config: &Config,
        command_line: Vec<String>,
        job: Option<&job::FoundJob>,
    ) -> Result<Self, Failure> {
        let raised = privileges::raise();
        let host = Host::probe(&config.procfs, &config.sysfs, config.hostname.clone());
        drop(raised);
        let clock = Clock::new();
        let wants_tasks = config.sources.need_tasks();
        if wants_tasks && !privileges::may_load_bpf() {
            return Err(Failure::new(
                Reason::Privilege,
                "not root, and without CAP_BPF and CAP_PERFMON: run with sudo, or choose \
                 sources that need neither (--source system,cpu)",
            ));
        }
        for spec in config.sources.iter() {
            (spec.validate)(&host, &config.perf)?;
        }
        let marks = open_marks(config, clock);
        let found = find(config, &host, job)?;
        let mut setup = Self::attach(config, &host, clock, found, marks, command_line)?;
        if let Some(job) = job {
            setup.tasks.set_job(job);
        }
        setup.job = JobWatch::start(config, &host, job)?;
        Ok(setup)
    }

    fn attach(
        config: &Config,
        host: &Host,
        clock: Clock,
        found: Found,
        marks: Result<Arc<MarkReceiver>, String>,
        command_line: Vec<String>,
    ) -> Result<Self, Failure> {
        let raised = privileges::raise();
        let (mut reader, support, problem) = reader(config, host, &found)?;
        let per_key = match &mut reader {
            Reader::Bpf(programs) => PerKeyCounters::open(programs)
                .map_err(|error| Failure::new(Reason::Internal, error.describe()))?,
            Reader::Procfs(_) | Reader::None => PerKeyCounters::default(),
        };
        let (sources, states) = sources::open(config, host, &reader, problem.as_deref(), &marks);
        drop(raised);
        let missing = missing(config, host, &states, problem.as_deref())?;

        let (sink, recovery, run_dir, template) = open_sink(
            config,
            host,
            clock,
            &found,
            marks.as_ref().ok().map(Arc::as_ref),
            states,
            command_line,
        )?;
        let tasks = TaskTable::new(host, clock, reader, per_key, support, config.threads);
        Ok(Self {
            clock,
            sources,
            tasks,
            sink,
            recovery,
            run_dir,
            template: config.split_by_job.then_some(template),
            cgroup: found.cgroup,
            job: None,
            what: found.what,
            missing,
            keeps_capabilities: keeps_capabilities(config, host),
            marks: marks.ok(),
        })
    }
}

/// Capabilities with which sources open processes that join the target.
fn keeps_capabilities(config: &Config, host: &Host) -> Vec<Capability> {
    match config.target {
        Target::Cgroup(_) | Target::Job(_) => {
            let sources = config.sources.iter();
            sources
                .flat_map(|spec| (spec.capabilities)(host))
                .copied()
                .collect()
        }
        _ => Vec::new(),
    }
}

/// The socket for marks, or why there is none.
fn open_marks(config: &Config, clock: Clock) -> Result<Arc<MarkReceiver>, String> {
    if !config.sources.iter().any(|spec| spec.marks) {
        return Err("not asked for".to_owned());
    }
    // The run's name without the host's: the path of a socket has room for 107 bytes.
    let name = run_id(clock.wall(monotonic_ns()).0, "").replace("--", "-");
    let all = matches!(config.target, Target::Node);
    let receiver = MarkReceiver::open(&name, all);
    receiver
        .map(Arc::new)
        .map_err(|error| format!("no socket for marks: {error}"))
}

fn find(config: &Config, host: &Host, job: Option<&job::FoundJob>) -> Result<Found, Failure> {
    let pids = |roots: Roots, what: String| Found {
        scope: bpf::Scope::Pids,
        walk: walk::Scope::Pids(roots.iter().map(|(pid, _)| *pid).collect::<HashSet<_>>()),
        roots,
        cgroup: None,
        job: None,
        what,
    };
    Ok(match &config.target {
        Target::Pids(list) => {
            let _raised = privileges::raise();
            let names: Vec<_> = list.iter().map(ToString::to_string).collect();
            pids(
                target::roots(host, list)?,
                format!("process {}", names.join(", ")),
            )
        }
        Target::Command(command) => {
            let name = command
                .first()
                .map(|name| name.to_string_lossy())
                .unwrap_or_default();
            // Its process is made last.
            pids(Roots::new(), format!("`{name}`"))
        }
        Target::Cgroup(path) => {
            let (directory, scope) = target::cgroup(host, path)?;
            Found {
                scope,
                roots: Vec::new(),
                walk: walk::Scope::Cgroup(directory.clone()),
                what: format!("cgroup {}", directory.display()),
                cgroup: Some(directory),
                job: None,
            }
        }
        Target::Job(_) => of_job(host, job)?,
        Target::Node => Found {
            scope: bpf::Scope::Node,
            roots: Vec::new(),
            walk: walk::Scope::Node,
            cgroup: None,
            job: None,
            what: format!("node {}", host.hostname),
        },
    })
}

fn of_job(host: &Host, job: Option<&job::FoundJob>) -> Result<Found, Failure> {
    let job = job.ok_or_else(|| Failure::new(Reason::Internal, "the job was not looked for"))?;
    let hierarchy = match job.directories.first() {
        Some(directory) => match target::cgroup(host, &directory.path)? {
            (_, bpf::Scope::Cgroup { hierarchy, .. }) => hierarchy,
            _ => 0,
        },
        None => 0,
    };
    Ok(Found {
        scope: bpf::Scope::Job {
            ids: job
                .directories
                .iter()
                .map(|directory| directory.inode)
                .collect(),
            hierarchy,
        },
        // Those beyond the room of the map are found by the first look of the watcher.
        roots: job
            .pids
            .iter()
            .map(|pid| (*pid, 0))
            .take(ROOTS_MAX)
            .collect(),
        walk: walk::Scope::Job {
            directories: job
                .directories
                .iter()
                .map(|directory| directory.path.clone())
                .collect(),
            pids: job.pids.iter().copied().collect(),
        },
        cgroup: None,
        job: Some(job.to_json()),
        what: job.to_string(),
    })
}

/// The BPF programs, or /proc with the reason why not.
fn reader(
    config: &Config,
    host: &Host,
    found: &Found,
) -> Result<(Reader, KernelSupport, Option<String>), Failure> {
    let walker = || Reader::Procfs(Walker::new(found.walk.clone(), config.threads));
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
        return Ok((reader, support, None));
    }
    let settings = Settings {
        scope: found.scope.clone(),
        sched: config.sources.iter().any(|spec| spec.wakeups),
        threads: config.threads,
        moves: matches!(
            found.scope,
            bpf::Scope::Cgroup { .. } | bpf::Scope::Job { .. }
        ),
        instrumentations: config.sources.instrumentations(),
        max_entries: config.max_entries,
        map_entries: config.map_entries.clone(),
    };
    match follow(host, &settings, found) {
        Ok(programs) => {
            let live = programs.counters().map_or(0, |counters| counters.live);
            if live == 0 && matches!(config.target, Target::Pids(_)) {
                let pids: Vec<u32> = found.roots.iter().map(|(pid, _)| *pid).collect();
                let why = match target::roots(host, &pids) {
                    Ok(_) => "is hidden from BPF programs by this kernel: it cannot be followed",
                    Err(_) => "ended before it could be followed",
                };
                let message = format!("{} {why}", found.what);
                return Err(Failure::new(Reason::Target, message));
            }
            let support = programs.support;
            Ok((Reader::Bpf(Box::new(programs)), support, None))
        }
        Err(error) => {
            let problem = format!("{} (remedy: {})", error.describe(), error.remedy());
            Ok((walker(), support, Some(problem)))
        }
    }
}

/// Attaches first and looks for existing processes then, so that none is born unseen in between.
fn follow(host: &Host, settings: &Settings, found: &Found) -> Result<Programs, BpfError> {
    let mut programs = Programs::load(host, settings)?;
    programs.add_roots(&found.roots)?;
    programs.mark()?;
    // A child whose parent was followed after the fork and has ended since is found by its fork event.
    let mut events = Vec::new();
    programs.drain(&mut events);
    let mut strangers: Vec<_> = events
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
        strangers.retain(|fork| {
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

fn state(name: &str, status: SourceStatus, why: Option<String>) -> SourceState {
    SourceState {
        name: name.to_owned(),
        status,
        why,
    }
}

/// What is missing, in one line; with `--strict` that is the end. `problem` is why the processes are read from /proc.
fn missing(
    config: &Config,
    host: &Host,
    states: &[SourceState],
    problem: Option<&str>,
) -> Result<Option<String>, Failure> {
    let news: Vec<&SourceState> = states
        .iter()
        .filter(|state| match state.status {
            SourceStatus::No => {
                let is_expected = |spec: &SourceSpec| (spec.has_hardware)(host);
                config.sources.names(&state.name) || spec(&state.name).is_some_and(is_expected)
            }
            // A null column is in `profiler check` and run.json; what was found out just now is said.
            SourceStatus::Partly => spec(&state.name).is_some_and(SourceSpec::reads_tasks),
            SourceStatus::Works | SourceStatus::Off => false,
        })
        .collect();
    if config.strict {
        let missing = |state: &&SourceState| {
            let rejects_nulls = |spec: &SourceSpec| spec.rejects_nulls(&config.perf);
            state.status == SourceStatus::No || spec(&state.name).is_some_and(rejects_nulls)
        };
        let all: Vec<_> = news.iter().copied().filter(missing).collect();
        let reasons: Vec<_> = by_reason(&all)
            .iter()
            .map(|(names, why)| format!("{}: {why}", names.join(", ")))
            .collect();
        return if reasons.is_empty() {
            Ok(None)
        } else {
            let message = format!("--strict: not all sources work: {}", reasons.join("; "));
            Err(Failure::new(Reason::Strict, message))
        };
    }
    let with = |status| {
        let names = news.iter().filter(|state| state.status == status);
        names
            .map(|state| state.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let kinds = [
        ("limited", with(SourceStatus::Partly)),
        ("not available", with(SourceStatus::No)),
    ];
    let mut parts: Vec<_> = kinds
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(kind, names)| format!("{kind}: {names}"))
        .collect();
    if parts.is_empty() {
        return Ok(None);
    }
    if let Some(problem) = problem {
        parts.insert(0, format!("processes are read from /proc: {problem}"));
    }
    Ok(Some(format!(
        "{} (reasons: `profiler check`)",
        parts.join("; ")
    )))
}

/// Sources that share a reason.
fn by_reason<'a>(states: &[&'a SourceState]) -> Vec<(Vec<&'a str>, &'a str)> {
    let mut reasons: Vec<(Vec<&str>, &str)> = Vec::new();
    for state in states {
        let why = state.why.as_deref().unwrap_or("not available");
        match reasons.iter_mut().find(|(_, known)| *known == why) {
            Some((names, _)) => names.push(&state.name),
            None => reasons.push((vec![&state.name], why)),
        }
    }
    reasons
}

fn spec(name: &str) -> Option<&'static SourceSpec> {
    REGISTRY.iter().copied().find(|spec| spec.name == name)
}

fn open_sink(
    config: &Config,
    host: &Host,
    clock: Clock,
    found: &Found,
    marks: Option<&MarkReceiver>,
    sources: Vec<SourceState>,
    command_line: Vec<String>,
) -> Result<(Sink, Recovery, PathBuf, Template), Failure> {
    let output = |error: &dyn std::fmt::Display| Failure::new(Reason::Output, error.to_string());
    let start = clock.wall(monotonic_ns());
    if std::fs::metadata(&config.out).is_ok_and(|found| !found.is_dir()) {
        let message = format!(
            "--out {}: not a directory; name a directory, which is made if needed",
            config.out.display()
        );
        return Err(Failure::new(Reason::Output, message));
    }
    let run_id = match &config.run_id {
        Some(name) => name.clone(),
        None => run_id(start.0, &host.hostname),
    };
    let mut manifest = Manifest::new(&run_id, &host.hostname, start.0)
        .map_err(|error| output(&format!("/proc: {error}")))?;
    manifest.command = command_line;
    manifest.config = config.to_json();
    manifest.target = serde_json::json!({
        "what": found.what,
        "pids": found.roots.iter().map(|(pid, _)| pid).collect::<Vec<_>>(),
        "cgroup": found.cgroup,
        "job": found.job,
        "node": matches!(config.target, Target::Node),
    });
    manifest.kernel = host.kernel_release.clone().unwrap_or_default();
    manifest.user = invoking_user::name();
    manifest.sources = sources;
    manifest.clock.start = Some(Timekeeping::of(&clock));
    manifest.socket = marks.map(|marks| marks.path().to_owned());
    let out = std::path::absolute(&config.out).unwrap_or_else(|_| config.out.clone());
    let orphans = Orphans {
        out: out.clone(),
        hostname: host.hostname.clone(),
        owner: invoking_user::sudo_ids(),
        quiet: config.quiet,
    };
    // Its sink would continue it while it is recovered.
    orphans.recover(&run_id);
    let recovery = Recovery::prepare(orphans.clone())
        .map_err(|error| output(&format!("cannot start a thread: {error}")))?;
    let run_dir = config.out.join(&run_id);
    let mut options = dataset::Options::new(run_dir.clone(), &host.hostname, &run_id);
    options.checkpoint = config.checkpoint;
    options.sync = config.sync;
    options.owner = invoking_user::sudo_ids();
    let template = Template {
        options: options.clone(),
        orphans,
        manifest: manifest.clone(),
    };
    options.manifest = Some(manifest);
    let sink = Sink::start(options).map_err(|error| output(&error))?;
    let directory = retention::RunsDirectory {
        out: template.orphans.out.clone(),
        hostname: host.hostname.clone(),
        uid: invoking_user::sudo_ids()
            .map_or_else(|| rustix::process::geteuid().as_raw(), |(uid, _)| uid),
    };
    retention::start(directory, config.retention.clone(), config.quiet)
        .map_err(|error| output(&format!("a thread: {error}")))?;
    let mut sessions = 0;
    sink.describe(|manifest| sessions = manifest.earlier.len());
    if sessions != 0 && !config.quiet {
        report!(
            "profiler: continuing {}: {sessions} earlier session{} of this host",
            run_dir.display(),
            if sessions == 1 { "" } else { "s" },
        );
    }
    Ok((sink, recovery, run_dir, template))
}

/// Sorts by time, and is unique on a shared file system: `20261120T190500Z-node1-4711`.
fn run_id(start_ns: i64, hostname: &str) -> String {
    let time = dataset::manifest::rfc3339(start_ns);
    let time: String = time
        .chars()
        .take_while(|c| *c != '.')
        .filter(|c| c.is_ascii_digit() || *c == 'T')
        .collect();
    format!("{time}Z-{hostname}-{}", std::process::id())
}

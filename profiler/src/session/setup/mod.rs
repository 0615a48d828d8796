//! Everything before the first sample, in an order in which a failure leaves nothing behind.

mod lookup;
mod missing;
pub mod outputs;
mod programs;
mod sources;
mod target;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use caps::Capability;

use self::{
    outputs::{OpenOutputs, default_run_id},
    programs::OpenReader,
    target::FoundTarget,
};
use super::{job_watch::JobWatch, sampler::Sampler};
use crate::{
    config::{Config, Target},
    failure::{Failure, Reason},
    host::Host,
    job::{self, stop_file::StopPath},
    marks::MarkReceiver,
    output::{dataset::Manifest, recovery::RecoveryThread, retention::Retention},
    privileges,
    service::connection::Client,
    support::{
        clock::{Clock, monotonic_ns},
        invoking_user,
        labels::Labels,
        resource_limits::{self, check_descriptors, first_descriptors, last_descriptors},
        timekeeping::Timekeeping,
    },
    tasks::{PerKeyCounters, Reader, TaskTable},
};

/// A session that is ready for its first sample.
pub struct Setup {
    /// The opened sources and outputs.
    pub sampler: Sampler,
    /// Recovers abandoned runs after the first sample.
    pub recovery: Option<RecoveryThread>,
    /// Removes old runs; `None` if nothing limits them.
    pub retention: Option<Retention>,
    /// Directory of the run.
    pub run_dir: PathBuf,
    /// Directory of the cgroup that is the target.
    pub cgroup: Option<PathBuf>,
    /// Finds further processes of the job, and its end.
    pub job: Option<JobWatch>,
    /// The target, for messages.
    pub target: String,
    /// Sources that do not work, for a message after everything that can fail: an error is one
    /// line.
    pub missing: Option<String>,
    /// Capabilities that samples after the first need besides those of all sessions.
    pub keeps_capabilities: Vec<Capability>,
}

impl Setup {
    /// Finds the target, loads the programs, opens the sources and the outputs.
    ///
    /// # Errors
    ///
    /// With the reason that determines the exit code.
    pub fn new(
        config: &Config,
        host: &Host,
        command_line: Vec<String>,
        job: Option<&job::FoundJob>,
        stop_file: Option<StopPath>,
    ) -> Result<Self, Failure> {
        let clock = Clock::new();
        for spec in config.sources.iter() {
            (spec.validate)(host, &config.perf)?;
        }
        let marks = open_marks(config, clock);
        let with_processes;
        let config = match &config.client {
            Some(client) => {
                let marks = marks.as_ref().ok().map(|marks| marks.path());
                with_processes = with_processes_of(client, config, marks)?;
                &with_processes
            }
            None => config,
        };
        let found = FoundTarget::find(config, host, job)?;

        let raised = privileges::raise();
        let OpenReader {
            mut reader,
            support,
            fallback,
        } = programs::open(config, host, clock, &found)?;
        let per_key = match &mut reader {
            Reader::Bpf(programs) => PerKeyCounters::open(programs)
                .map_err(|error| Failure::internal(error.describe()))?,
            Reader::Procfs(_) | Reader::None => PerKeyCounters::default(),
        };
        let problem = fallback.as_ref().map(|fallback| &*fallback.problem);
        let (sources, states) = sources::open(config, host, &reader, problem, &marks);
        drop(raised);
        let missing = missing::report(config, host, &states, fallback.as_ref())?;

        let marks = marks.ok();
        let target = serde_json::json!({
            "what": found.description,
            "pids": found.roots.iter().map(|(pid, _)| pid).collect::<Vec<_>>(),
            "cgroup": found.cgroup,
            "job": found.job,
            "node": matches!(config.target, Target::Node),
        });
        let mut manifest = describe(config, host, clock, target, command_line)?;
        manifest.sources = states;
        manifest.socket = marks.as_ref().map(|marks| marks.path().to_owned());
        let OpenOutputs {
            outputs,
            recovery,
            run_dir,
            directory,
            retention,
        } = outputs::open(config, host, manifest)?;
        let threads = config.settings.threads;
        let mut tasks = TaskTable::new(host, clock, reader, per_key, support, threads);
        if let Some(job) = job {
            tasks.set_job(job);
        }
        if config.is_sparse() {
            tasks.leave_out_sleeping(config.settings.split_by.is_some());
        }
        if let Some(client) = &config.client {
            tasks.show_only_to(client.uid);
        }
        Ok(Self {
            sampler: Sampler::new(clock, sources, tasks, outputs, marks),
            recovery,
            cgroup: found.cgroup,
            job: JobWatch::start(config, host, job, stop_file, directory)?,
            run_dir,
            target: found.description,
            missing,
            retention,
            keeps_capabilities: keeps_capabilities(config, host),
        })
    }
}

/// Descriptors of the programs that follow processes, and of those of all sources.
const BPF_OBJECTS: usize = 96;
/// Descriptors of outputs, which are opened after the events.
const AFTER_EVENTS: u64 = 16;

/// Checks that the resource limits suffice, and keeps descriptors for the tables.
///
/// # Errors
///
/// With the limit that is too low.
pub fn check_limits(config: &Config) -> Result<(), Failure> {
    let loads_programs = config.sources.need_tasks() && privileges::may_load_bpf();
    let objects = if loads_programs {
        BPF_OBJECTS
    } else {
        // Buffers of task records, and the events of a thread.
        2 * programs::cpus_of_target(config).len() + 1
    };
    let sources = config.sources.iter().count();
    let (first, last) = (first_descriptors(sources, objects), of_samples(config));
    check_descriptors(first + last)?;
    resource_limits::reserve(last + AFTER_EVENTS + sources as u64);
    resource_limits::check_memory()
}

/// Descriptors that the session opens from its first sample on.
pub fn of_samples(config: &Config) -> u64 {
    let tables = config.sources.iter().map(|spec| spec.tables.len()).sum();
    last_descriptors(tables)
}

/// The configuration with the processes that a client of the service wants.
fn with_processes_of(
    client: &Client,
    config: &Config,
    marks: Option<&Path>,
) -> Result<Config, Failure> {
    let mut config = config.clone();
    let pids = client.attach(marks)?;
    if let Target::Pids(list) = &mut config.target {
        *list = pids;
    }
    Ok(config)
}

/// Capabilities with which sources open processes that join the target, and CPUs that were offline,
/// and programs after the run become those of the user.
fn keeps_capabilities(config: &Config, host: &Host) -> Vec<Capability> {
    let mut kept = match config.target {
        Target::Cgroup(_) | Target::Job(_) | Target::Node => {
            let sources = config.sources.iter();
            sources
                .flat_map(|spec| (spec.capabilities)(host))
                .copied()
                .collect()
        }
        _ => Vec::new(),
    };
    if config.continues_after_run && invoking_user::sudo_ids().is_some() {
        kept.extend([Capability::CAP_SETUID, Capability::CAP_SETGID]);
    }
    kept
}

/// The socket for marks, or why there is none.
fn open_marks(config: &Config, clock: Clock) -> Result<Arc<MarkReceiver>, String> {
    if !config.sources.iter().any(|spec| spec.marks) {
        return Err("not requested".to_owned());
    }
    // Without the name of the host: the path of a socket is limited to 107 bytes.
    let name = default_run_id(clock.wall_ns(monotonic_ns()), "").replace("--", "-");
    let all = matches!(config.target, Target::Node);
    let receiver = MarkReceiver::open(&name, all);
    receiver
        .map(Arc::new)
        .map_err(|error| format!("no socket for marks: {error}"))
}

/// Content of `run.json` at the start, without sources.
pub fn describe(
    config: &Config,
    host: &Host,
    clock: Clock,
    target: serde_json::Value,
    command_line: Vec<String>,
) -> Result<Manifest, Failure> {
    let start = clock.wall_ns(monotonic_ns());
    let run_id = match &config.settings.run_id {
        Some(name) => name.clone(),
        None => default_run_id(start, &host.hostname),
    };
    let mut manifest = Manifest::new(&run_id, &host.hostname, start)
        .map_err(|error| Failure::new(Reason::Output, format!("/proc: {error}")))?;
    manifest.command = command_line;
    manifest.labels = Labels::merged(&config.settings.labels)
        .map_err(|error| Failure::new(Reason::Usage, error.to_string()))?;
    manifest.config = config.to_json();
    manifest.target = target;
    manifest.kernel = host.kernel_release.clone().unwrap_or_default();
    manifest.user = invoking_user::name();
    manifest.uid = Some(invoking_user::uid());
    manifest.clock.start = Some(Timekeeping::of(&clock));
    Ok(manifest)
}

//! A session of `profiler run`: find the target, attach, sample until it ends, finish the outputs.
//!
//! Only this module knows both sources and outputs. `setup` opens them by name; from then on they
//! are lists. `sampling_loop` waits for the next event, `sampler` reads the sources and hands their
//! rows to the outputs.

mod boundaries;
mod closing;
mod job_watch;
mod launch;
mod readiness;
mod relay;
mod remote;
mod reload;
mod remote_job;
mod sampler;
mod sampling_loop;
mod self_metrics;
mod setup;
mod interval_backoff;
mod ticker;
mod witness;

use std::path::PathBuf;

use self::{
    launch::Launcher,
    readiness::{end_of_client, wait_readable},
    relay::SessionSignals,
    reload::Reload,
    remote::{Answer, RemoteSession},
    sampling_loop::Session,
    setup::Setup,
};
use crate::{
    config::{Config, Reread, Settings, Target},
    failure::{Failure, Reason},
    host::Host,
    job,
    output::instance_lock::{Acquired, InstanceLock},
    privileges, report,
    support::{
        heap, invoking_user,
        log::{self, harmless_message},
        resource_limits,
        service_manager::ServiceManager,
        signals,
    },
    warning,
};

/// How a session has ended.
#[derive(Debug)]
pub struct Ended {
    /// That of the command, or of the session itself.
    pub exit_code: u8,
    /// The run that it has written; `None` if it ended before, or has written one for each job.
    pub run: Option<PathBuf>,
}

impl Ended {
    fn before_the_run(exit_code: u8) -> Self {
        Self {
            exit_code,
            run: None,
        }
    }
}

/// Profiles until the target ends, the duration is over or a signal arrives. SIGHUP reloads the
/// configuration by `reread` if the process has no terminal.
///
/// # Errors
///
/// With the reason that determines the exit code.
pub fn run(
    config: &Config,
    command_line: Vec<String>,
    reread: Option<Reread>,
) -> Result<Ended, Failure> {
    resource_limits::raise(matches!(config.target, Target::Command(_)));
    setup::check_limits(config)?;
    // First, while the profiler is small and has one thread.
    let launcher = match &config.target {
        Target::Command(command) => Some(Launcher::new(command)?),
        _ => None,
    };
    resource_limits::check_threads()?;
    heap::return_large_blocks();
    let host = probe(&config.settings);
    if config.settings.verbose {
        log::be_verbose(&host.hostname);
    }
    if let Some(path) = &config.settings.log {
        log::open(path, &host.hostname, invoking_user::sudo_ids())?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("tokio: {error}")))?;
    runtime.block_on(async {
        // Before anything is written or started, so that a signal always ends the session in order.
        let mut signals = SessionSignals::new(config)
            .map_err(|error| Failure::internal(format!("signals: {error}")))?;
        job_watch::check_stop_file(config)?;
        let client = end_of_client(config)?;
        let job = tokio::select! {
            job = job_watch::find(config, &host) => job?,
            // The search ends with this process.
            () = wait_readable(client.as_ref()) => return Ok(Ended::before_the_run(0)),
            signal = signals.next() => {
                return Ok(Ended::before_the_run(signals::exit_code(signal)));
            }
        };
        drop(client);
        // Before the setup, which takes time: a file written since then counts.
        let stop_file = job_watch::stop_file(config, job.as_ref());
        if let Some(service) = remote::connect(config) {
            let session = RemoteSession {
                config,
                host: &host,
                command_line: &command_line,
                job: job.as_ref(),
            };
            match session.request(service, &mut signals).await {
                Answer::Accepted(accepted) => {
                    return session.run(accepted, stop_file, launcher, signals).await;
                }
                Answer::Refused(why) => {
                    warning!("profiler: the service refuses: {}", harmless_message(&why));
                }
                Answer::Interrupted(signal) => {
                    return Ok(Ended::before_the_run(signals::exit_code(signal)));
                }
            }
        }
        let mut config = config.clone();
        if let (Some(job), Some(client)) = (&job, &config.client)
            && client.uid != 0
            && !job.is_only_of(client.uid)
        {
            let message = format!("job {} is of another user", job.id);
            return Err(Failure::new(Reason::Privilege, message));
        }
        if let Some(job) = &job {
            // All nodes of a job compute the same name.
            let name = || job::run_id(job.scheduler, &job.name());
            config.settings.run_id.get_or_insert_with(name);
        }
        // The client of the service writes the run.
        let lock = match config.client {
            Some(_) => RunLock::Ours(None),
            None => lock(&config.settings, &host)?,
        };
        let RunLock::Ours(_lock) = lock else {
            return Ok(Ended::before_the_run(0));
        };
        let setup = Setup::new(&config, &host, command_line, job.as_ref(), stop_file)?;
        heap::trim();
        let manager = manager(&config);
        Session::start(config, setup, launcher, manager)?
            .run(signals, Reload::new(reread))
            .await
    })
}

/// The service manager that waits for this process. That of a command waits for the command, that of
/// the service of the node for its listener.
fn manager(config: &Config) -> ServiceManager {
    match (&config.target, &config.client) {
        (Target::Command(_), _) | (_, Some(_)) => ServiceManager::default(),
        _ => ServiceManager::from_environment(),
    }
}

fn probe(settings: &Settings) -> Host {
    let _raised = privileges::raise();
    Host::probe(
        &settings.procfs,
        &settings.sysfs,
        settings.hostname.clone().map(String::from),
    )
}

/// Whether this process may write the run.
enum RunLock {
    /// No other profiler of this node writes the run while this is held. A run whose name is not
    /// given needs no lock, because no other profiler can have the same.
    Ours(Option<InstanceLock>),
    /// Another profiler of this node writes the run, and `--once` accepts that.
    OfAnother,
}

fn lock(settings: &Settings, host: &Host) -> Result<RunLock, Failure> {
    let Some(run_id) = &settings.run_id else {
        return Ok(RunLock::Ours(None));
    };
    let acquired = InstanceLock::take(&settings.out, run_id, &host.hostname)
        .map_err(|error| Failure::new(Reason::Output, error.to_string()))?;
    let pid = match acquired {
        Acquired::Locked(lock) => return Ok(RunLock::Ours(Some(lock))),
        Acquired::AlreadyLocked(pid) => pid,
    };
    let message = format!("process {pid} already profiles for run {run_id} here");
    if !settings.once {
        return Err(Failure::new(Reason::Output, message));
    }
    if !settings.quiet {
        report!("profiler: {message}");
    }
    Ok(RunLock::OfAnother)
}

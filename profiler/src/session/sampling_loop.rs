//! The loop of a session: waits for ticks, region boundaries, events, signals and the end of the
//! target.

use std::{io, path::PathBuf, time::Duration};

use caps::Capability;
use rustix::process::Signal;

use super::{
    Ended,
    boundaries::due,
    interval_backoff::{Budget, ClientBackoff, IntervalBackoff},
    job_watch::JobWatch,
    launch::{self, Launcher, Running},
    readiness::{cannot_wait, end_of_client, readable, wait_readable},
    relay::SessionSignals,
    reload::{Reload, adopt},
    sampler::{End, Sampler},
    setup::{self, Setup, outputs},
    ticker::Ticker,
};
use crate::{
    config::{Config, Target},
    failure::{Failure, Reason},
    marks,
    output::{recovery::RecoveryThread, retention::Retention},
    privileges, report,
    support::{
        clock::monotonic_ns, log, resource_limits::check_descriptors,
        service_manager::ServiceManager, signals,
    },
    warning,
};

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Target,
    Duration,
    Signal(Signal),
}

/// A session that samples.
pub struct Session {
    config: Config,
    sampler: Sampler,
    recovery: Option<RecoveryThread>,
    command: Option<Running>,
    job: Option<JobWatch>,
    /// Removes old runs.
    retention: Option<Retention>,
    /// Directory of the cgroup that is the target.
    cgroup: Option<PathBuf>,
    /// Whether a process of the target has been seen.
    seen_live: bool,
    /// Start of sampling, `CLOCK_MONOTONIC` in ns.
    started: u64,
    manager: ServiceManager,
    /// What is profiled, and where it is stored.
    activity: String,
}

impl Session {
    /// Starts the command, if there is one, and takes the baselines.
    ///
    /// # Errors
    ///
    /// When the command cannot be started. Then nothing is left behind.
    pub fn start(
        config: Config,
        setup: Setup,
        launcher: Option<Launcher>,
        manager: ServiceManager,
    ) -> Result<Self, Failure> {
        // Processes given by pid have been found.
        let seen_live = !matches!(config.target, Target::Cgroup(_));
        let mut session = Self {
            config,
            sampler: setup.sampler,
            recovery: setup.recovery,
            command: None,
            job: setup.job,
            retention: setup.retention,
            cgroup: setup.cgroup,
            seen_live,
            started: monotonic_ns(),
            manager,
            activity: String::new(),
        };
        // Events and files of many devices can have taken more than was expected.
        if let Err(failure) = check_descriptors(setup::of_samples(&session.config)) {
            session.sampler.discard();
            return Err(failure);
        }
        let mut target = setup.target;
        if let Some(launcher) = launcher {
            match session.start_command(launcher, &setup.keeps_capabilities) {
                Ok(pid) => target = format!("{target} (process {pid})"),
                Err(failure) => {
                    session.sampler.discard();
                    return Err(failure);
                }
            }
        } else {
            let raised = privileges::raise();
            session.sampler.tick(false);
            drop(raised);
            privileges::keep_for_sampling(&setup.keeps_capabilities);
        }
        session.activity = format!("profiling {target} into {}", setup.run_dir.display());
        if !session.config.settings.quiet {
            if let Some(line) = &setup.missing {
                warning!("profiler: {line}");
            }
            report!("{}", session.activity);
            // A started command finds the variable in its environment.
            if let (Some(path), None) = (session.sampler.marks_socket(), &session.command) {
                report!("marks: set {}={}", marks::VARIABLE, path.display());
            }
        }
        session.manager.ready(&session.activity);
        Ok(session)
    }

    /// Creates the process of the command, takes the baselines and lets it run. Nothing else is
    /// left to do by then, so that the figures are those of the command alone.
    fn start_command(&mut self, launcher: Launcher, keep: &[Capability]) -> Result<u32, Failure> {
        let stopped = launcher.spawn(self.sampler.marks_socket())?;
        let pid = stopped.pid;
        let raised = privileges::raise();
        if let Err(error) = self.sampler.follow_command(pid) {
            stopped.cancel();
            return Err(Failure::internal(format!("{error:#}")));
        }
        self.sampler.tick(false);
        drop(raised);
        privileges::keep_for_sampling(keep);
        self.command = Some(stopped.release()?);
        Ok(pid)
    }

    /// Samples until the session ends, and finishes the outputs. Returns the exit code.
    ///
    /// # Errors
    ///
    /// When rows were lost, or the loop cannot wait.
    pub async fn run(
        mut self,
        mut signals: SessionSignals,
        mut reload: Reload,
    ) -> Result<Ended, Failure> {
        if let Some(command) = &mut self.command {
            signals = signals.relay(command).map_err(cannot_wait)?;
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.begin();
        }
        let mut ticker =
            Ticker::new(self.started, self.config.settings.interval).map_err(cannot_wait)?;
        let mut stop = self
            .sample_until_stopped(&mut signals, &mut reload, &mut ticker)
            .await?;
        self.manager.stopping("writing the last files");
        if let (Some(job), Stop::Target) = (&self.job, stop) {
            job.finish(self.config.settings.quiet);
        }
        if stop == Stop::Target {
            self.wait_for_last_exit().await;
        }
        self.sampler.tasks.read_details();
        let overdue = ticker.pending().map_err(cannot_wait)?;
        let quiet = self.config.settings.quiet;
        let end = End {
            overdue,
            started: self.started,
            exit_code: self.command.as_ref().and_then(Running::exit_code),
        };
        let (run, summary) = self.sampler.finish(end, quiet)?;
        if !quiet {
            log::report_lines(module_path!(), &summary);
        }
        if let (Some(recovery), false) = (self.recovery, matches!(stop, Stop::Signal(_))) {
            tokio::select! {
                () = recovery.finish() => {}
                // The run is complete, and the next one recovers the others.
                signal = signals.next() => stop = stop_by(signal, quiet),
            }
        }
        // A command that outlives its profiling is no longer observed.
        drop(self.sampler);
        let exit_code = exit_code(self.command, stop, &mut signals, quiet).await?;
        Ok(Ended { exit_code, run })
    }

    async fn sample_until_stopped(
        &mut self,
        signals: &mut SessionSignals,
        reload: &mut Reload,
        ticker: &mut Ticker,
    ) -> Result<Stop, Failure> {
        let events = self.sampler.events().map_err(cannot_wait)?;
        let ended = self
            .command
            .as_ref()
            .map(|running| running.pidfd.try_clone().and_then(readable))
            .transpose()
            .map_err(cannot_wait)?;
        let client = end_of_client(&self.config)?;
        let job = self.job.as_ref().map(JobWatch::notifier);
        let job = job.transpose().map_err(cannot_wait)?;
        let spent = Duration::from_nanos(monotonic_ns() - self.started);
        let duration = self.config.settings.duration;
        let deadline = async {
            match duration {
                Some(duration) => tokio::time::sleep(duration.saturating_sub(spent)).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(deadline);
        let mut watchdog = self.manager.watchdog();
        let mut budget = self.budget();
        loop {
            tokio::select! {
                biased;
                () = wait_readable(ended.as_ref()) => return Ok(Stop::Target),
                () = &mut deadline => return Ok(Stop::Duration),
                () = wait_readable(client.as_ref()) => return Ok(Stop::Target),
                signal = signals.next() => {
                    if signals.reloads(signal) && reload.begin() {
                        self.manager.reloading();
                    } else {
                        return Ok(stop_by(signal, self.config.settings.quiet));
                    }
                }
                read = reload.read() => {
                    self.reconfigure(read, ticker).map_err(cannot_wait)?;
                    budget = self.budget();
                }
                () = watchdog.due() => {
                    let status = format!("{}: {}", self.activity, self.sampler.progress());
                    self.manager.alive(&status);
                }
                () = wait_readable(events.as_ref()) => self.sampler.drain_events(),
                () = wait_readable(job.as_ref()) => self.follow_job(),
                () = due(self.sampler.boundaries.as_ref()) => self.sampler.boundary(),
                expired = ticker.next() => {
                    self.sampler.advance(expired.map_err(cannot_wait)?);
                    self.sampler.tick(false);
                    let quiet = self.config.settings.quiet;
                    self.sampler.adapt(&mut budget, ticker, quiet);
                }
            }
            if self.target_has_ended() {
                return Ok(Stop::Target);
            }
            // If samples take longer than the interval, the next one is always due. Signals, timers
            // and ends of processes become known only when the loop has yielded.
            tokio::task::yield_now().await;
        }
    }

    /// The costs that lengthen the interval. Root may take what it wants.
    fn budget(&self) -> Budget {
        let interval = self.config.settings.interval;
        match &self.config.client {
            Some(client) if client.uid != 0 => Budget::Client(ClientBackoff::new(interval)),
            _ => Budget::Reading(IntervalBackoff::new(interval)),
        }
    }

    /// Applies settings that were read again.
    fn reconfigure(
        &mut self,
        read: Result<Config, Failure>,
        ticker: &mut Ticker,
    ) -> io::Result<()> {
        let interval = self.config.settings.interval;
        if adopt(&mut self.config, read) {
            let settings = &self.config.settings;
            if settings.interval != interval {
                let new = Ticker::new(monotonic_ns(), settings.interval)?;
                if let Some(expired) = std::mem::replace(ticker, new).expired()? {
                    self.sampler.advance(expired);
                    self.sampler.tick(false);
                }
            }
            if let Some(retention) = &self.retention {
                retention.set(outputs::limits(settings));
            }
            self.sampler.reconfigured(&self.config.to_json());
        }
        self.manager.ready(&self.activity);
        Ok(())
    }

    /// Follows processes of the job that have been found since.
    fn follow_job(&mut self) {
        if let Some(job) = &self.job {
            self.sampler.follow(|tasks| job.follow(tasks));
        }
    }

    fn target_has_ended(&mut self) -> bool {
        let tasks = &self.sampler.tasks;
        if let Some(job) = &self.job
            && let Some(ended) = job.has_ended(tasks)
        {
            return ended;
        }
        if matches!(self.config.target, Target::Node | Target::Command(_)) {
            return false;
        }
        let live = tasks.live().unwrap_or(0);
        self.seen_live |= live != 0;
        let cgroup_gone = self
            .cgroup
            .as_ref()
            .is_some_and(|directory| !directory.exists());
        live == 0 && (self.seen_live || cgroup_gone)
    }

    /// Waits until the last threads of the target have left the CPU. The pidfd of the command is
    /// readable, and its descendants have been waited for, a little earlier; on a busy machine,
    /// long before. Processes that continue to run are not waited for.
    async fn wait_for_last_exit(&mut self) {
        for waited in 0..1000 {
            let live = self.sampler.tasks.live().unwrap_or(0);
            if live == 0 || waited >= 20 && !self.sampler.tasks.any_exiting() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// How a signal ends a session. The limit of CPU time of the profiler is not that of its command.
pub fn stop_by(signal: Signal, quiet: bool) -> Stop {
    if signal != Signal::XCPU {
        return Stop::Signal(signal);
    }
    if !quiet {
        warning!("profiler: the limit of CPU time (ulimit -t) is reached: profiling ends");
    }
    Stop::Duration
}

/// The exit code of the command, or that of a session without one. A command that outlives its
/// profiling is waited for.
pub async fn exit_code(
    command: Option<Running>,
    mut stop: Stop,
    signals: &mut SessionSignals,
    quiet: bool,
) -> Result<u8, Failure> {
    let Some(running) = command else {
        return Ok(0);
    };
    if stop == Stop::Duration {
        if !quiet && !running.has_ended() {
            report!("waiting for the command to end");
        }
        let ended = running.pidfd.try_clone().and_then(readable);
        let ended = ended.map_err(cannot_wait)?;
        while !running.has_ended() {
            tokio::select! {
                () = wait_readable(Some(&ended)) => {}
                signal = signals.next() => if signal != Signal::XCPU {
                    stop = Stop::Signal(signal);
                    break;
                }
            }
        }
    }
    if let Stop::Signal(signal) = stop {
        if !quiet && !running.has_ended() {
            report!(
                "profiler: the command (process {}) has not ended: it continues without the \
                 profiler",
                running.pid.as_raw_nonzero()
            );
        }
        return Ok(signals::exit_code(signal));
    }
    let status = running
        .wait()
        .map_err(|error| Failure::new(Reason::Internal, format!("wait: {error}")))?;
    Ok(launch::exit_code(status))
}

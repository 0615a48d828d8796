//! Opens the outputs. The only place of the session that names them.

use std::{fmt, os::fd::OwnedFd, path::PathBuf};

use crate::{
    config::{Config, Settings, Target},
    failure::{Failure, Reason},
    host::Host,
    output::{
        Outputs,
        dataset::{Dataset, DatasetOptions, Manifest, OutputError},
        job_router::{JobRouter, RunTemplate},
        memory_guard::MemoryGuard,
        recovery::{AbandonedRuns, RecoveryThread},
        retention::{Limits, Retention, RunsDirectory},
        status::StatusOutput,
        status_file::Status,
    },
    report,
    service::output::ClientOutput,
    sources::{LATENCY, dataset_schema},
    support::{invoking_user, units::rfc3339},
};

/// The outputs of a session.
pub struct OpenOutputs {
    pub outputs: Outputs,
    /// `None` for a client of the service, which writes the dataset itself.
    pub recovery: Option<RecoveryThread>,
    pub run_dir: PathBuf,
    /// The same, held open.
    pub directory: Option<OwnedFd>,
    /// Removes old runs; `None` if nothing limits them.
    pub retention: Option<Retention>,
}

/// Opens the outputs of a run, and starts the threads that maintain the other runs of the
/// directory.
pub fn open(config: &Config, host: &Host, manifest: Manifest) -> Result<OpenOutputs, Failure> {
    let settings = &config.settings;
    if let Some(client) = &config.client {
        let mut outputs = guarded(host);
        let status = Status {
            client_uid: Some(client.uid),
            run_id: None,
            ..status(config, &manifest)
        };
        outputs.push(StatusOutput::start(status, None));
        outputs.push(ClientOutput::start(client, manifest).map_err(no_thread)?);
        return Ok(OpenOutputs {
            outputs,
            recovery: None,
            run_dir: PathBuf::new(),
            directory: None,
            retention: None,
        });
    }
    if std::fs::metadata(&settings.out).is_ok_and(|found| !found.is_dir()) {
        return Err(failure(format_args!(
            "--out {}: not a directory; name a directory, which is made if needed",
            settings.out.display()
        )));
    }
    let abandoned = AbandonedRuns {
        out: std::path::absolute(&settings.out).unwrap_or_else(|_| settings.out.clone()),
        hostname: manifest.hostname.clone(),
        owner: invoking_user::sudo_ids(),
        quiet: settings.quiet,
        schema: dataset_schema(),
    };
    // Before the writer continues the run.
    abandoned.recover(&manifest.run_id);
    let recovery = RecoveryThread::prepare(abandoned.clone()).map_err(no_thread)?;

    let run_dir = settings.out.join(&manifest.run_id);
    let mut options = DatasetOptions::new(run_dir.clone(), &manifest.hostname, &manifest.run_id);
    options.checkpoint = settings.checkpoint;
    options.sync = settings.sync;
    options.sparse = config.is_sparse();
    options.owner = invoking_user::sudo_ids();
    options.schema = dataset_schema();
    let router = match settings.split_by {
        Some(_) => {
            let template = RunTemplate {
                options: DatasetOptions {
                    // Processes of jobs have all rows.
                    sparse: false,
                    ..options.clone()
                },
                abandoned: abandoned.clone(),
                manifest: manifest.clone(),
            };
            let router = JobRouter::open(template, settings.interval, settings.quiet);
            Some(router.map_err(no_thread)?)
        }
        None => None,
    };
    let status = Status {
        run_dir: Some(std::path::absolute(&run_dir).unwrap_or_else(|_| run_dir.clone())),
        ..status(config, &manifest)
    };
    options.manifest = Some(manifest);
    // Creates the directory of the runs, which the first check of the limits reads.
    let dataset = Dataset::open(options, settings.run_id.is_some()).map_err(not_created)?;
    let retention = start_retention(config, &abandoned)?;

    let mut outputs = guarded(host);
    outputs.push(StatusOutput::start(status, retention.clone()));
    if let Some(router) = router {
        outputs.push(router);
    }
    let directory = dataset.directory();
    let earlier = dataset.earlier_sessions();
    if earlier != 0 && !settings.quiet {
        report!(
            "profiler: continuing {}: {earlier} earlier session{} of this host",
            run_dir.display(),
            if earlier == 1 { "" } else { "s" },
        );
    }
    outputs.push(dataset);
    Ok(OpenOutputs {
        outputs,
        recovery: Some(recovery),
        run_dir,
        directory,
        retention,
    })
}

/// A chain that begins with the guard of the memory.
fn guarded(host: &Host) -> Outputs {
    let mut outputs = Outputs::default();
    if let Some(guard) = MemoryGuard::new(host, LATENCY.untyped()) {
        outputs.push(guard);
    }
    outputs
}

/// The status of a session at its start.
fn status(config: &Config, manifest: &Manifest) -> Status {
    let interval = config.settings.interval.as_nanos();
    Status {
        process: manifest.process.clone(),
        version: manifest.version.clone(),
        target: manifest.target["what"].as_str().map(str::to_owned),
        run_id: Some(manifest.run_id.clone()),
        clock_offset_ns: manifest.clock.start.map_or(0, |clock| clock.offset_ns),
        start_ts: manifest.start_ts,
        interval_ns: u64::try_from(interval).ok(),
        ..Status::default()
    }
}

/// The limits of the space for runs.
pub fn limits(settings: &Settings) -> Limits {
    Limits {
        keep_free: settings.keep_free,
        max_age: settings.max_age,
        max_size: settings.max_size,
    }
}

/// Starts the thread that removes old runs, if there are limits, or a reload can set some.
fn start_retention(config: &Config, runs: &AbandonedRuns) -> Result<Option<Retention>, Failure> {
    let settings = &config.settings;
    let limits = limits(settings);
    if limits == Limits::default() && matches!(config.target, Target::Command(_)) {
        return Ok(None);
    }
    let directory = RunsDirectory {
        out: runs.out.clone(),
        hostname: runs.hostname.clone(),
        uid: invoking_user::sudo_ids()
            .map_or_else(|| rustix::process::geteuid().as_raw(), |(uid, _)| uid),
    };
    let retention = Retention::start(directory, limits, settings.quiet);
    retention.map(Some).map_err(no_thread)
}

fn failure(error: impl fmt::Display) -> Failure {
    Failure::new(Reason::Output, error.to_string())
}

/// Why the directory of a run cannot be created, and the remedy.
fn not_created(error: OutputError) -> Failure {
    let (path, why) = match error {
        OutputError::NotWritable { path, source } | OutputError::Other { path, source } => {
            (path, source.to_string())
        }
        OutputError::NotADirectory { path } => (path, "not a directory".to_owned()),
        other => return failure(other),
    };
    failure(format_args!(
        "cannot create output directory {}: {why}; use --out DIR",
        path.display()
    ))
}

fn no_thread(error: impl fmt::Display) -> Failure {
    failure(format_args!("cannot start a thread: {error}"))
}

/// Name of a run, which sorts by time and is unique on a shared file system:
/// `20261120T190500Z-node1-4711`.
pub fn default_run_id(start_ns: i64, hostname: &str) -> String {
    let time = rfc3339(start_ns);
    let time: String = time
        .chars()
        .take_while(|c| *c != '.')
        .filter(|c| c.is_ascii_digit() || *c == 'T')
        .collect();
    format!("{time}Z-{hostname}-{}", std::process::id())
}

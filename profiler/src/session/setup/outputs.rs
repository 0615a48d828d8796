//! Opens the outputs. The only place of the session that names them.

use std::{fmt, path::PathBuf};

use crate::{
    config::Config,
    failure::{Failure, Reason},
    output::{
        Outputs,
        dataset::{Dataset, DatasetOptions, Manifest},
        job_router::{JobRouter, RunTemplate},
        recovery::{AbandonedRuns, RecoveryThread},
        retention::{self, Limits, RunsDirectory},
    },
    report,
    service::output::ClientOutput,
    sources::dataset_schema,
    support::{invoking_user, units::rfc3339},
};

/// The outputs of a session.
pub struct OpenOutputs {
    pub outputs: Outputs,
    /// `None` for a client of the service, which writes the dataset itself.
    pub recovery: Option<RecoveryThread>,
    pub run_dir: PathBuf,
}

/// Opens the outputs of a run, and starts the threads that maintain the other runs of the
/// directory.
pub fn open(config: &Config, manifest: Manifest) -> Result<OpenOutputs, Failure> {
    let settings = &config.settings;
    if let Some(client) = &config.client {
        let mut outputs = Outputs::default();
        outputs.push(ClientOutput::start(client, manifest).map_err(no_thread)?);
        return Ok(OpenOutputs {
            outputs,
            recovery: None,
            run_dir: PathBuf::new(),
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
    options.owner = invoking_user::sudo_ids();
    options.schema = dataset_schema();
    start_retention(config, &abandoned)?;

    let mut outputs = Outputs::default();
    if settings.split_by.is_some() {
        let template = RunTemplate {
            options: options.clone(),
            abandoned,
            manifest: manifest.clone(),
        };
        let router =
            JobRouter::open(template, settings.interval, settings.quiet).map_err(no_thread)?;
        outputs.push(router);
    }
    options.manifest = Some(manifest);
    let dataset = Dataset::open(options, settings.run_id.is_some()).map_err(failure)?;
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
    })
}

fn start_retention(config: &Config, runs: &AbandonedRuns) -> Result<(), Failure> {
    let settings = &config.settings;
    let limits = Limits {
        keep_free: settings.keep_free,
        max_age: settings.max_age,
        max_size: settings.max_size,
    };
    let directory = RunsDirectory {
        out: runs.out.clone(),
        hostname: runs.hostname.clone(),
        uid: invoking_user::sudo_ids()
            .map_or_else(|| rustix::process::geteuid().as_raw(), |(uid, _)| uid),
    };
    retention::start(directory, limits, settings.quiet).map_err(no_thread)
}

fn failure(error: impl fmt::Display) -> Failure {
    Failure::new(Reason::Output, error.to_string())
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

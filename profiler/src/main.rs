//! The `profiler` command: parse, run, exit code.

use std::{io::Write as _, path::Path, process::ExitCode};

use profiler::{
    cli::{self, Command},
    commands::{check, events, schema},
    failure::{Failure, Reason},
    host::Host,
    output::dataset::recover::{Hosts, Outcome, recover},
    perf,
    privileges::{self, raise},
    report, session,
    support::log::harmless,
};

fn main() -> ExitCode {
    match privileges::begin().and_then(|()| dispatch(cli::parse().command)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            report!("profiler: {failure}");
            ExitCode::from(failure.reason as u8)
        }
    }
}

fn dispatch(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(args) => {
            let command_line = std::env::args_os()
                .map(|arg| arg.to_string_lossy().into_owned())
                .collect();
            return session::run(&args.into_config()?, command_line);
        }
        Command::Check { json } => {
            let _raised = raise();
            let host = Host::probe("/proc", "/sys", None);
            if json {
                print(&format!("{:#}\n", check::json(&host)));
            } else {
                print(&check::table(&host));
            }
        }
        Command::Events {
            cpu,
            cpus,
            validate,
            perfevents,
            json,
        } => {
            let catalog = perf::catalog(perfevents.as_deref())?;
            if cpus {
                print(&events::cpus(&catalog));
                return Ok(0);
            }
            if validate {
                let _raised = raise();
                let host = Host::probe("/proc", "/sys", None);
                print(&perf::validate(&host, &catalog));
                return Ok(0);
            }
            let selection = events::Selection::new(&catalog, cpu.as_deref())?;
            if json {
                print(&format!("{:#}\n", selection.json()));
            } else {
                print(&selection.text());
            }
        }
        Command::Verify { run, json } => return verify(&run, json),
        Command::Mark(mark) => return mark.send(),
        Command::Recover { run } => return recover_all(&run),
        Command::Schema { markdown: true, .. } => print(&schema::markdown()),
        Command::Schema { json: true, .. } => print(&format!("{:#}\n", schema::json())),
        Command::Schema { .. } => print(&schema::text()),
        Command::Completions { shell } => cli::completions(shell),
        Command::Man => {
            cli::man().map_err(|error| Failure::new(Reason::Internal, error.to_string()))?;
        }
    }
    Ok(0)
}

/// Writes to stdout; a reader that has gone is no error.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn verify(runs: &[std::path::PathBuf], json: bool) -> Result<u8, Failure> {
    // What a decoder says of a damaged file is a line of the report.
    std::panic::set_hook(Box::new(|_| {}));
    let reports = runs.iter().map(|run| {
        profiler::commands::verify::verify(run)
            .map_err(|error| Failure::new(Reason::Target, format!("{}: {error}", run.display())))
    });
    let reports = reports.collect::<Result<Vec<_>, _>>()?;
    let _ = std::panic::take_hook();
    for report in &reports {
        if !json {
            print(&report.text());
        }
    }
    if json {
        let text = serde_json::to_string_pretty(&reports)
            .map_err(|error| Failure::new(Reason::Internal, error.to_string()))?;
        print(&format!("{text}\n"));
    }
    let well = reports.iter().all(|report| report.well);
    Ok(if well { 0 } else { Reason::VerifyFailed as u8 })
}

fn recover_all(runs: &[std::path::PathBuf]) -> Result<u8, Failure> {
    let shown = |path: &Path| harmless(&path.to_string_lossy());
    let mut complete = true;
    for run in runs {
        if !run.join("run.json").exists() {
            let message = format!("{}: not the directory of a run: no run.json", run.display());
            return Err(Failure::new(Reason::Target, message));
        }
        let report = recover(run, Hosts::All)
            .map_err(|error| Failure::new(Reason::Output, error.to_string()))?;
        let rows: u64 = report.rows.values().sum();
        report!("{}: {rows} rows recovered", run.display());
        for (path, outcome) in &report.journals {
            match outcome {
                Outcome::Corrupt {
                    path: kept,
                    rows,
                    error,
                } => report!(
                    "  {}: {rows} rows before the damage ({}); kept as {}",
                    shown(path),
                    harmless(error),
                    shown(kept)
                ),
                Outcome::Failed { error } => report!("  {}: {}", shown(path), harmless(error)),
                Outcome::InUse => report!("  {}: is being written", shown(path)),
                Outcome::Part { .. } | Outcome::Stale | Outcome::Empty => {}
            }
        }
        for error in &report.errors {
            report!("  {}", harmless(error));
        }
        complete &= report.is_complete();
    }
    Ok(if complete { 0 } else { Reason::Output as u8 })
}

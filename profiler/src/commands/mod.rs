//! The subcommands, one module each.

mod at_end;
pub mod ceilings;
pub mod check;
pub mod compact;
pub mod compare;
pub mod config;
pub mod events;
pub mod export;
mod find_run;
pub mod help;
pub mod import;
pub mod man;
pub mod mark;
mod own_file;
pub mod recover;
pub mod report;
pub mod run;
pub mod schema;
pub mod serve;
pub mod status;
pub mod summary;
pub mod upload;
pub mod verify;

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use clap::{
    Args, ValueHint,
    builder::{OsStringValueParser, TypedValueParser as _},
};
use serde::Serialize;

use crate::{
    analysis::stored_run::StoredRun,
    config::file,
    download::Run,
    failure::{Failure, Reason},
    output::dataset::{dictionary, foreign_file::Trust},
    report,
    service::SOCKET,
    support::log,
};

/// Option of the commands that look for the service of the node.
#[derive(Args, Clone, Debug)]
pub struct ServiceOption {
    /// Socket of `profiler serve`; `--service ""` disables it [default: that of the settings, or
    /// /run/profiler-serve/socket]
    #[arg(
        long,
        env = "PROFILER_SERVICE",
        value_name = "PATH",
        // A PathBuf could not be empty.
        value_parser = OsStringValueParser::new().map(PathBuf::from),
        value_hint = ValueHint::FilePath
    )]
    service: Option<PathBuf>,
}

impl ServiceOption {
    /// The socket; `None` for no service.
    fn socket(&self) -> Result<Option<PathBuf>, Failure> {
        let socket = match &self.service {
            Some(socket) => socket.clone(),
            None => file::service()?.unwrap_or_else(|| SOCKET.into()),
        };
        Ok((!socket.as_os_str().is_empty()).then_some(socket))
    }
}

/// Option of the commands that read runs.
#[derive(Args, Clone, Copy, Debug)]
pub struct TrustOption {
    /// Read runs of other users without limits on their size
    #[arg(long)]
    trust: bool,
}

impl TrustOption {
    /// Whose files in a directory are read without limits.
    fn trust(self) -> Trust {
        if self.trust {
            Trust::Everyone
        } else {
            Trust::default()
        }
    }

    /// The run in a directory or on a server, and whose files of it are read without limits.
    fn resolve(self, name: &Path) -> Result<Run, Failure> {
        let mut run = Run::resolve(name)?;
        if self.trust {
            run.trust = Trust::Everyone;
        }
        Ok(run)
    }

    fn resolve_all(self, names: &[PathBuf]) -> Result<Vec<Run>, Failure> {
        runs_among(names).map(|name| self.resolve(name)).collect()
    }
}

/// Option of the commands that `profiler run` executes after a run that several nodes write: two of them
/// can find that all have ended.
#[derive(Args, Clone, Debug)]
pub struct ClaimOption {
    /// Do nothing if this directory exists; otherwise create it first
    #[arg(long, hide = true, value_name = "DIR")]
    claim: Option<PathBuf>,
}

impl ClaimOption {
    /// Whether another process has created the directory.
    ///
    /// # Errors
    ///
    /// When it cannot be created.
    fn is_taken(&self) -> Result<bool, Failure> {
        let Some(path) = &self.claim else {
            return Ok(false);
        };
        let created = fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))
            .and_then(|()| fs::create_dir(path));
        match created {
            Ok(()) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(true),
            Err(error) => Err(not_written(path, &error)),
        }
    }
}

/// Writes text to stdout, in which nothing changes the display but its lines.
///
/// # Errors
///
/// When the file system is full, for example.
pub fn print(text: impl AsRef<str>) -> Result<(), Failure> {
    print_content(log::lines(text.as_ref()).as_bytes())
}

/// Writes the content of a file to stdout. A pipe that its reader has closed is no error.
pub fn print_content(content: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout();
    let written = stdout.write_all(content);
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(
            Reason::Output,
            format!("cannot write to the standard output: {error}"),
        )),
        _ => Ok(()),
    }
}

fn open_run(run: &Run) -> Result<StoredRun, Failure> {
    let mut stored =
        StoredRun::open(&run.directory, run.trust).map_err(|error| no_run(run, &error))?;
    stored.path.clone_from(&run.name);
    stored.problems.extend_from_slice(&run.problems);
    Ok(stored)
}

fn no_run(run: &Run, error: &io::Error) -> Failure {
    let mut message = format!("cannot read run {}: {error}", run.name.display());
    if error.kind() == io::ErrorKind::NotFound {
        message += &find_run::named_below(&run.name);
    }
    Failure::new(Reason::Target, message)
}

/// Reads stored data. A decoder that panics on a damaged file is a problem of the run, and says
/// nothing else.
fn quietly<T>(read: impl FnOnce() -> T) -> T {
    std::panic::set_hook(Box::new(|_| {}));
    let result = read();
    let _ = std::panic::take_hook();
    result
}

/// Opens a run and passes it on.
fn read_run<T>(run: &Run, read: impl Fn(&StoredRun) -> T) -> Result<T, Failure> {
    quietly(|| Ok(read(&open_run(run)?)))
}

/// The runs among several arguments: `profiles/*` also names the files that describe the runs.
fn runs_among(names: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    let is_run = |name: &&PathBuf| names.len() == 1 || !dictionary::is_at(name);
    names.iter().filter(is_run)
}

/// Opens runs and passes each of them on. One copy of a run on a server exists at a time.
fn read_runs<T>(
    names: &[PathBuf],
    trust: TrustOption,
    read: impl Fn(&StoredRun) -> T,
) -> Result<Vec<T>, Failure> {
    let results = runs_among(names).map(|name| read_run(&trust.resolve(name)?, &read));
    results.collect()
}

/// Writes a file and reports its name; `-` is stdout.
fn write(output: &Path, content: &[u8]) -> Result<(), Failure> {
    if output.as_os_str() == "-" {
        return print_content(content);
    }
    fs::write(output, content).map_err(|error| not_written(output, &error))?;
    report!("{}", output.display());
    Ok(())
}

fn not_written(path: &Path, error: &io::Error) -> Failure {
    let message = format!("cannot write {}: {error}", path.display());
    Failure::new(Reason::Output, message)
}

/// Writes JSON to stdout, one line per value.
fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::internal)?;
    print(log::json(&text) + "\n")
}

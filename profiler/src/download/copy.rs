//! Copies a run.

use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::{Mutex, PoisonError},
};

use super::{
    origin::Origin,
    plan::{self, Files},
    progress::Progress,
};
use crate::{
    failure::{Failure, Reason},
    object_store::{MAX_BYTES, Object, at_once},
    output::dataset::{
        compacted::{self, CompactedRun},
        files::{Directory, host_directory},
        manifest::{self, Manifest},
        parquet_file,
    },
    report,
    support::log::{escaped, harmless, harmless_message},
};

/// Missing numbers of Parquet files after which no others are looked for. A journal without rows leaves
/// a gap.
const GAP: u32 = 4;
/// Largest `run.json` and `compacted.json` in bytes.
const MAX_DESCRIPTION: u64 = 64 << 20;

/// Copies a run into a directory, as `RUN` and `compacted`. Returns the files that are damaged or missing.
///
/// # Errors
///
/// When there is no such run, its files have names that lead elsewhere, the server cannot be reached or
/// refuses, or the copy cannot be written.
pub fn copy(
    origin: &Origin,
    run: &str,
    into: &Path,
    progress: &Progress,
) -> Result<Vec<String>, Failure> {
    let copy = Copy {
        origin,
        run,
        into,
        progress,
        problems: Mutex::default(),
    };
    let no_run = |path: &str, why: &dyn std::fmt::Display| {
        let message = format!(
            "{}: {}",
            origin.name(path),
            harmless_message(&why.to_string())
        );
        Failure::new(Reason::Target, message)
    };
    let path = format!("{run}/{}", manifest::FILE);
    if !copy.fetch(&path, MAX_DESCRIPTION)? {
        let why = "no such object: not the address of a run, or the run is not stored completely";
        return Err(no_run(&path, &why));
    }
    let directory = Directory::open(&into.join(run), None);
    let directory = directory.map_err(|error| copy.not_written(&path, &error))?;
    let listed = origin.list(run)?;
    let of_compacted = format!("{run}/{}", compacted::FILE);
    let has_list = |name: &str| listed.as_ref().is_none_or(|paths| paths.contains(name));
    if has_list(compacted::FILE) {
        copy.fetch(&of_compacted, MAX_DESCRIPTION)?;
    }
    let compacted =
        CompactedRun::read(&directory).map_err(|error| no_run(&of_compacted, &error))?;
    let files = match &listed {
        Some(paths) => plan::listed(run, paths),
        None => Manifest::read(&directory, manifest::FILE)
            .map_err(|error| error.to_string())
            .and_then(|manifest| {
                report!(
                    "{}: without a list of files, only those of {} are read",
                    origin.name(run),
                    harmless(&manifest.hostname)
                );
                plan::described(run, &manifest, compacted.as_ref())
            }),
    };
    let mut files = files.map_err(|why| no_run(&path, &why))?;
    if let Some(compacted) = &compacted {
        let more = plan::of_compacted(compacted);
        files.extend(more.map_err(|why| no_run(&of_compacted, &why))?);
    }
    at_once(&files, |files| copy.fetch_all(files))?;
    if let Some(compacted) = &compacted {
        let removed = remove_replaced(&into.join(run), compacted);
        removed.map_err(|error| copy.not_written(&of_compacted, &error))?;
    }
    let mut problems = copy
        .problems
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    problems.sort_unstable();
    Ok(problems)
}

struct Copy<'a> {
    origin: &'a Origin,
    run: &'a str,
    into: &'a Path,
    progress: &'a Progress,
    problems: Mutex<Vec<String>>,
}

impl Copy<'_> {
    fn fetch_all(&self, files: &Files) -> Result<(), Failure> {
        let (directory, count, can_be_fewer) = match files {
            Files::One(path) => {
                if !self.fetch(path, MAX_BYTES)? {
                    self.problem(path, "missing on the server");
                }
                return Ok(());
            }
            Files::Parts {
                directory,
                count,
                can_be_fewer,
            } => (directory, *count, *can_be_fewer),
        };
        let (mut found, mut missing) = (0, 0);
        for number in 0.. {
            if found == count || missing > GAP {
                break;
            }
            let path = format!("{directory}/{}", parquet_file::name(number));
            if self.fetch(&path, MAX_BYTES)? {
                (found, missing) = (found + 1, 0);
            } else {
                missing += 1;
            }
        }
        if found < count && !can_be_fewer {
            let what = format!("{found} of {count} Parquet files are on the server");
            self.problem(directory, &what);
        }
        Ok(())
    }

    /// Copies a file. Returns whether it exists. A damaged file is not copied.
    fn fetch(&self, path: &str, limit: u64) -> Result<bool, Failure> {
        let copy = self.into.join(path);
        let created = copy.parent().map_or(Ok(()), fs::create_dir_all);
        let file = created.and_then(|()| File::create_new(&copy));
        let file = file.map_err(|error| self.not_written(path, &error))?;
        let received = self.origin.get(path, &file, limit, &self.progress.bytes)?;
        if received != Some(Object::Whole) {
            fs::remove_file(&copy).map_err(|error| self.not_written(path, &error))?;
        }
        if received == Some(Object::Damaged) {
            self.problem(
                path,
                "damaged on the server: its SHA-256 differs; its rows are left out",
            );
        }
        if received.is_some() {
            self.progress.add_file();
        }
        Ok(received.is_some())
    }

    fn problem(&self, path: &str, what: &str) {
        let of_run = path
            .strip_prefix(self.run)
            .and_then(|path| path.strip_prefix('/'));
        let problem = format!("{}: {what}", escaped(of_run.unwrap_or(path)));
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        problems.push(problem);
    }

    fn not_written(&self, path: &str, error: &io::Error) -> Failure {
        let copy = self.into.join(path);
        let message = format!("{}: {error}", escaped(&copy.to_string_lossy()));
        Failure::new(Reason::Output, message)
    }
}

/// Removes Parquet files whose rows are in compacted files too: a compaction was interrupted. The copies
/// have other times than the files.
fn remove_replaced(run: &Path, compacted: &CompactedRun) -> io::Result<()> {
    for (table, hosts) in &compacted.tables {
        for (host, rows) in hosts {
            for part in &rows.replaced {
                let directory = run.join(table).join(host_directory(host));
                let copy = directory.join(parquet_file::name(part.number));
                match fs::symlink_metadata(&copy) {
                    Ok(found) if found.len() == part.bytes => fs::remove_file(&copy)?,
                    _ => {}
                }
            }
        }
    }
    Ok(())
}

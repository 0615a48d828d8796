//! Runs that the user has not named: the newest one, and those below a directory.

use std::{
    borrow::Cow,
    cmp::Reverse,
    env, fs, io,
    path::{Path, PathBuf},
};

use crate::{
    config::{OUT, file},
    failure::{Failure, Reason},
    output::dataset::{Manifest, files::Directory, manifest::is_manifest},
    report,
    support::log,
};

/// Variable with the directory of runs.
const VARIABLE: &str = "PROFILER_OUT";

/// Most runs in a message.
const MOST_NAMED: usize = 3;

/// Most directories in which runs are searched for a message.
const MOST_SEARCHED: usize = 100;

/// The given runs. Without any, the newest run in the output directory, which is reported.
///
/// # Errors
///
/// When there is none, or the settings cannot be read.
pub(super) fn given_or_newest(given: &[PathBuf]) -> Result<Cow<'_, [PathBuf]>, Failure> {
    if !given.is_empty() {
        return Ok(Cow::Borrowed(given));
    }
    let variable = env::var_os(VARIABLE).filter(|out| !out.is_empty());
    let out = match variable {
        Some(out) => out.into(),
        None => file::out()?.unwrap_or_else(|| OUT.into()),
    };
    let newest = newest(&out)?;
    report!("profiler: newest run: {}", log::path(&newest));
    Ok(Cow::Owned(vec![newest]))
}

fn newest(out: &Path) -> Result<PathBuf, Failure> {
    let runs = match runs_in(out) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let message = format!("cannot read {}: {error}; name a run", out.display());
            return Err(Failure::new(Reason::Target, message));
        }
        runs => runs.unwrap_or_default(),
    };
    runs.into_iter().next().ok_or_else(|| {
        let message = format!(
            "no run in {}; give the directory of a run, or record one: profiler run -- COMMAND",
            out.display()
        );
        Failure::new(Reason::Target, message)
    })
}

/// The end of a message about a directory that is no run: a few runs below it, or nothing.
pub(super) fn named_below(directory: &Path) -> String {
    let names: Vec<String> = runs_below(directory)
        .iter()
        .map(|run| run.display().to_string())
        .collect();
    if names.is_empty() {
        return String::new();
    }
    format!("; runs below it: {}", names.join(", "))
}

/// A few runs in a directory, or in the directories in it, the newest first.
fn runs_below(directory: &Path) -> Vec<PathBuf> {
    let mut runs = runs_in(directory).unwrap_or_default();
    if runs.is_empty() {
        let directories = directories(directory).unwrap_or_default();
        for below in directories.iter().take(MOST_SEARCHED) {
            runs.extend(runs_in(below).unwrap_or_default());
            if runs.len() >= MOST_NAMED {
                break;
            }
        }
    }
    runs.truncate(MOST_NAMED);
    runs
}

/// All runs in a directory, the newest first by the start in their `run.json`.
fn runs_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let directories = directories(directory)?.into_iter();
    let mut runs: Vec<(i64, PathBuf)> = directories
        .filter_map(|run| Some((start(&run)?, run)))
        .collect();
    runs.sort_by_key(|(start, path)| Reverse((*start, path.clone())));
    Ok(runs.into_iter().map(|(_, path)| path).collect())
}

fn directories(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut directories = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !is_hidden && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            directories.push(entry.path());
        }
    }
    directories.sort();
    Ok(directories)
}

/// Start of the last session of a run on any host; `None` if the directory is not that of a run.
fn start(run: &Path) -> Option<i64> {
    let directory = Directory::open(run, None).ok()?;
    let names = directory.names().ok()?;
    let manifests = names.iter().filter(|name| is_manifest(name));
    let starts = manifests.filter_map(|name| {
        let manifest = Manifest::read(&directory, name).ok()?;
        Some(manifest.start_ts)
    });
    starts.max()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn add(out: &Path, name: &str, start_ts: i64) -> PathBuf {
        let run = out.join(name);
        fs::create_dir_all(&run).expect("made");
        let manifest = Manifest::new(name, "node", start_ts).expect("a manifest");
        let text = serde_json::to_string(&manifest).expect("JSON");
        fs::write(run.join("run.json"), text).expect("written");
        run
    }

    #[test]
    fn newest_run_is_that_with_the_last_start() {
        let out = TempDir::new().expect("a directory");
        let refused = newest(out.path()).expect_err("no run");
        assert!(refused.message.starts_with("no run in "), "{refused}");
        let absent = newest(&out.path().join("absent")).expect_err("no run");
        assert!(absent.message.contains("profiler run -- "), "{absent}");
        let last = add(out.path(), "a", 3_000);
        // Written later, and later in the order of names.
        add(out.path(), "b", 1_000);
        add(out.path(), ".hidden", 9_000);
        fs::create_dir(out.path().join("compacted")).expect("made");
        let damaged = add(out.path(), "damaged", 9_000);
        fs::write(damaged.join("run.json"), "{").expect("written");
        fs::write(out.path().join("README.md"), "").expect("written");
        std::os::unix::fs::symlink("b", out.path().join("link")).expect("a link");
        assert_eq!(newest(out.path()).expect("a run"), last);
        // Another host of the run joined last.
        let other = Manifest::new("b", "other", 4_000).expect("a manifest");
        let text = serde_json::to_string(&other).expect("JSON");
        fs::write(out.path().join("b/run.other.json"), text).expect("written");
        assert_eq!(newest(out.path()).expect("a run"), out.path().join("b"));
    }

    #[test]
    fn runs_below_a_directory_are_found() {
        let above = TempDir::new().expect("a directory");
        assert!(runs_below(above.path()).is_empty());
        let out = above.path().join("profiles");
        for (name, start) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
            add(&out, name, start);
        }
        let expected = ["d", "c", "b"].map(|name| out.join(name));
        assert_eq!(runs_below(&out), expected);
        assert_eq!(runs_below(above.path()), expected);
    }
}

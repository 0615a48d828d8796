//! `profiler upload`: copies finished runs to S3.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use clap::{Args, ValueHint};
use sha2::{Digest as _, Sha256};

use super::print;
use crate::{
    failure::{Failure, Reason},
    object_store::{Location, MAX_BYTES, Settings, Store, at_once, hexadecimal},
    output::dataset::{
        compacted, dictionary,
        files::{Directory, host_of_directory, is_temporary},
        listing::Listing,
        manifest, views,
    },
    report,
    support::{
        invoking_user,
        log::{self, escaped, harmless, harmless_message},
        units::{counted, format_bytes},
    },
};

/// Depth of the directories of a run and of compacted files: table, and host or day.
const DEPTH: usize = 2;

/// Arguments of `profiler upload`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Runs, or directories with runs (--out of `profiler run`)
    #[arg(required = true, value_name = "DATASET", value_hint = ValueHint::DirPath)]
    dataset: Vec<PathBuf>,
    /// Destination of the runs: s3://BUCKET/PREFIX
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    to: Location,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When a directory cannot be read, or the server cannot be reached or refuses.
    pub fn run(&self) -> Result<u8, Failure> {
        let store = Store::new(self.to.clone(), Settings::of_environment()?)?;
        for dataset in &self.dataset {
            let done = upload(dataset, &store)?;
            let text = done.text();
            print(format!("{} -> {}: {text}\n", log::path(dataset), self.to))?;
        }
        Ok(0)
    }
}

/// What was done, by several threads.
#[derive(Debug, Default)]
struct Done {
    runs: AtomicU64,
    files: AtomicU64,
    bytes: AtomicU64,
    /// Files that were stored before.
    known: AtomicU64,
    /// Objects of files that are no longer there.
    removed: AtomicU64,
}

impl Done {
    fn text(&self) -> String {
        let number = |counter: &AtomicU64, one| counted(counter.load(Relaxed), one);
        let mut text = format!(
            "{}, {} ({}) sent, {} were there",
            number(&self.runs, "run"),
            number(&self.files, "file"),
            format_bytes(self.bytes.load(Relaxed)),
            number(&self.known, "file"),
        );
        if self.removed.load(Relaxed) != 0 {
            let _ = write!(text, ", {} removed", number(&self.removed, "object"));
        }
        text
    }
}

fn upload(dataset: &Path, store: &Store) -> Result<Done, Failure> {
    let failed = |error: io::Error| {
        let reason = match error.kind() {
            io::ErrorKind::NotFound => Reason::Target,
            _ => Reason::Output,
        };
        Failure::new(
            reason,
            format!("cannot read {}: {error}", dataset.display()),
        )
    };
    // A name for the objects, also of `.`.
    let path = dataset.canonicalize().map_err(failed)?;
    let open = || Directory::open_run(&path, invoking_user::sudo_ids());
    let directory = open().map_err(failed)?;
    let done = Done::default();
    if Listing::read(&directory).is_ok_and(|listing| !listing.manifests.is_empty()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let out = directory.sub("..").map_err(failed)?;
        let run = Files::of_run(directory, &name);
        run.map_err(|why| failed(io::Error::other(why)))?
            .send(store, &done)?;
        Files::beside_runs(out).send_last(store, None, &done)?;
        return Ok(done);
    }
    let names = directory.names().map_err(failed)?;
    // Runs refer to compacted files: new ones come first, and old ones are removed last.
    let compacted = names.iter().find(|name| *name == compacted::DIRECTORY);
    let compacted = compacted.map(|name| Files::in_directory(directory.sub(name)?, name));
    let compacted = compacted.transpose().map_err(failed)?;
    if let Some(compacted) = &compacted {
        compacted.send_rows(store, store.list(&compacted.name)?.as_ref(), &done)?;
    }
    for name in &names {
        // The names of removed runs begin with a dot.
        if name.starts_with('.') || name == compacted::DIRECTORY {
            continue;
        }
        let Ok(run) = directory.sub(name) else {
            continue;
        };
        match Files::of_run(run, name) {
            Ok(run) => run.send(store, &done)?,
            Err(why) => report!("left alone: {}: {}", harmless(name), harmless_message(&why)),
        }
    }
    if done.runs.load(Relaxed) != 0 {
        let out = open().map_err(failed)?;
        Files::beside_runs(out).send_last(store, None, &done)?;
    }
    if let Some(compacted) = &compacted {
        let stale = compacted.stale(store.list(&compacted.name)?.as_ref());
        compacted.remove(store, &stale, &done)?;
    }
    Ok(done)
}

/// Files of a directory.
struct Files {
    directory: Directory,
    /// Name of the directory in the store; empty for that of the runs.
    name: String,
    /// Hosts of a run; empty for compacted files.
    hosts: BTreeSet<String>,
    /// Directories and name of each file with rows.
    rows: Vec<Vec<String>>,
    /// Files that say what is complete, in the order in which they are sent.
    last: Vec<Vec<String>>,
}

impl Files {
    /// The files of a run, or the reason why it is left alone.
    fn of_run(run: Directory, name: &str) -> Result<Self, String> {
        let text = |error: io::Error| error.to_string();
        let listing = Listing::read(&run).map_err(text)?;
        listing.require_finished()?;
        let names = run.names().map_err(text)?;
        let mut files = Self::in_directory(run, name).map_err(text)?;
        files.hosts = listing.manifests.into_keys().collect();
        // Of a compacted run, `run.json` alone would hide rows.
        let rank = |name: &String| match name.as_str() {
            compacted::FILE => Some(1),
            name if manifest::is_manifest(name) => Some(2),
            name if views::is_description(name) => Some(0),
            _ => None,
        };
        let mut last = Vec::new();
        for file in names {
            if !views::is_description(&file) || files.directory.has_file(&file).map_err(text)? {
                last.extend(rank(&file).map(|_| file));
            } else {
                report!("left out: {}/{file}: not a regular file", harmless(name));
            }
        }
        last.sort_by_key(rank);
        files.last = last.into_iter().map(|name| vec![name]).collect();
        Ok(files)
    }

    /// The files that describe all runs of a directory.
    fn beside_runs(out: Directory) -> Self {
        let names = dictionary::files_in(&out);
        Self {
            last: names.iter().map(|name| vec![(*name).to_owned()]).collect(),
            directory: out,
            name: String::new(),
            hosts: BTreeSet::new(),
            rows: Vec::new(),
        }
    }

    fn in_directory(directory: Directory, name: &str) -> io::Result<Self> {
        let mut rows = Vec::new();
        add_rows(&directory, &mut Vec::new(), &mut rows)?;
        Ok(Self {
            directory,
            name: name.to_owned(),
            hosts: BTreeSet::new(),
            rows,
            last: Vec::new(),
        })
    }

    /// Sends the files of a run. While objects are replaced, it has no `run.json`, so that no reader finds
    /// rows twice.
    fn send(&self, store: &Store, done: &Done) -> Result<(), Failure> {
        done.runs.fetch_add(1, Relaxed);
        let stored = store.list(&self.name)?;
        let stale = self.stale(stored.as_ref());
        if stale.is_empty() && self.is_complete(store, stored.as_ref())? {
            let known = self.rows.len() + self.last.len();
            done.known.fetch_add(known as u64, Relaxed);
            return Ok(());
        }
        self.send_rows(store, stored.as_ref(), done)?;
        if !stale.is_empty() {
            for path in self
                .last
                .iter()
                .filter(|path| manifest::is_manifest(&path[0]))
            {
                store.remove(&self.place(&path[0]))?;
            }
            self.remove(store, &stale, done)?;
        }
        self.send_last(store, stored.as_ref(), done)
    }

    fn send_last(
        &self,
        store: &Store,
        stored: Option<&BTreeSet<String>>,
        done: &Done,
    ) -> Result<(), Failure> {
        let send = |path: &Vec<String>| self.send_file(path, store, stored, done);
        self.last.iter().try_for_each(send)
    }

    fn send_rows(
        &self,
        store: &Store,
        stored: Option<&BTreeSet<String>>,
        done: &Done,
    ) -> Result<(), Failure> {
        at_once(&self.rows, |path| self.send_file(path, store, stored, done))
    }

    /// Sends a file, unless it is stored.
    fn send_file(
        &self,
        path: &[String],
        store: &Store,
        stored: Option<&BTreeSet<String>>,
        done: &Done,
    ) -> Result<(), Failure> {
        let file = self.open(path)?;
        let can_be_stored = stored.is_none_or(|stored| stored.contains(&path.join("/")));
        if can_be_stored && file.is_stored(store)? {
            done.known.fetch_add(1, Relaxed);
            return Ok(());
        }
        store.put(&file.path, &file.file, file.bytes, file.sha256)?;
        done.files.fetch_add(1, Relaxed);
        done.bytes.fetch_add(file.bytes, Relaxed);
        Ok(())
    }

    /// Whether all files of a run are stored: those that come last are the same.
    fn is_complete(
        &self,
        store: &Store,
        stored: Option<&BTreeSet<String>>,
    ) -> Result<bool, Failure> {
        let has = |path: &Vec<String>| stored.is_some_and(|all| all.contains(&path.join("/")));
        if !self.rows.iter().chain(&self.last).all(has) {
            return Ok(false);
        }
        for path in &self.last {
            if !self.open(path)?.is_stored(store)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Objects with rows of these hosts, or with compacted rows, whose files are no longer there. Another
    /// node can have stored other hosts of the run.
    fn stale(&self, stored: Option<&BTreeSet<String>>) -> Vec<String> {
        let here: BTreeSet<_> = self.rows.iter().map(|path| path.join("/")).collect();
        let is_ours = |path: &str| match *path.split('/').collect::<Vec<_>>() {
            [_, directory, file] => {
                let host = host_of_directory(directory);
                let ours = host.map_or(self.hosts.is_empty(), |host| self.hosts.contains(host));
                ours && file.ends_with(".parquet")
            }
            _ => false,
        };
        let stored = stored.into_iter().flatten();
        let stale = stored.filter(|path| !here.contains(*path) && is_ours(path));
        stale.cloned().collect()
    }

    fn remove(&self, store: &Store, paths: &[String], done: &Done) -> Result<(), Failure> {
        for path in paths {
            store.remove(&self.place(path))?;
            done.removed.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Path in the store.
    fn place(&self, path: &str) -> String {
        match &*self.name {
            "" => path.to_owned(),
            name => format!("{name}/{path}"),
        }
    }

    fn open(&self, path: &[String]) -> Result<LocalFile, Failure> {
        let place = self.place(&path.join("/"));
        let open = || {
            let (name, directories) = path.split_last().ok_or(io::ErrorKind::NotFound)?;
            let mut inner = None::<Directory>;
            for directory in directories {
                inner = Some(inner.as_ref().unwrap_or(&self.directory).sub(directory)?);
            }
            let mut file = inner.as_ref().unwrap_or(&self.directory).read(name)?;
            let mut hash = Sha256::new();
            let (mut buffer, mut bytes) = (vec![0; 1 << 20], 0);
            loop {
                let count = file.read(&mut buffer)?;
                if count == 0 {
                    break;
                }
                hash.update(&buffer[..count]);
                bytes += count as u64;
            }
            if bytes > MAX_BYTES {
                return Err(io::Error::other("larger than 5 GiB"));
            }
            Ok(LocalFile {
                path: place.clone(),
                file,
                bytes,
                sha256: hash.finalize().into(),
            })
        };
        open()
            .map_err(|error| Failure::new(Reason::Output, format!("{}: {error}", escaped(&place))))
    }
}

/// Files with rows below a directory.
fn add_rows(
    directory: &Directory,
    above: &mut Vec<String>,
    rows: &mut Vec<Vec<String>>,
) -> io::Result<()> {
    for name in directory.names()? {
        if above.len() < DEPTH
            && let Ok(inner) = directory.sub(&name)
        {
            above.push(name);
            add_rows(&inner, above, rows)?;
            above.pop();
        } else if !above.is_empty() && name.ends_with(".parquet") && !is_temporary(&name) {
            rows.push([&above[..], &[name]].concat());
        }
    }
    Ok(())
}

/// A file to send.
struct LocalFile {
    /// Path in the store.
    path: String,
    file: std::fs::File,
    bytes: u64,
    sha256: [u8; 32],
}

impl LocalFile {
    fn is_stored(&self, store: &Store) -> Result<bool, Failure> {
        let stored = store.sha256(&self.path)?;
        Ok(stored.is_some_and(|stored| stored == hexadecimal(&self.sha256)))
    }
}

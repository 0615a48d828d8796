//! Settings of a run, from the command line, `PROFILER_*` variables and a TOML file, in this order of precedence.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use serde::Deserialize;

use crate::{
    bpf::Requested,
    failure::{Failure, Reason},
    job,
    perf::Selection,
    session::retention::Limits,
    sources::{REGISTRY, SourceSpec},
    support::units,
};

/// Where settings are read from when no `--config` is given and the file is there.
pub const SYSTEM_FILE: &str = "/etc/profiler.toml";

/// What is profiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// These processes and their descendants.
    Pids(Vec<u32>),
    /// A command that is started for it.
    Command(Vec<OsString>),
    /// Members of a cgroup.
    Cgroup(PathBuf),
    /// The processes of a batch job on this node.
    Job(job::Request),
    /// Everything.
    Node,
}

/// All settings of a run.
#[derive(Clone)]
pub struct Config {
    /// What is profiled.
    pub target: Target,
    /// Time between ticks.
    pub interval: Duration,
    /// When to stop, if not with the target.
    pub duration: Option<Duration>,
    /// A file that says when the work is done.
    pub ipc_file: Option<PathBuf>,
    /// Directory of the runs.
    pub out: PathBuf,
    /// Sources to read.
    pub sources: Sources,
    /// Hardware events to count.
    pub perf: Selection,
    /// Entries of each BPF map of flows, if not as many as the node's size suggests.
    pub max_entries: Option<u32>,
    /// Entries of single BPF maps.
    pub map_entries: Vec<(String, u32)>,
    /// Whether to add rows per thread.
    pub threads: bool,
    /// Time between Parquet parts.
    pub checkpoint: Duration,
    /// Whether every tick survives a power cut.
    pub sync: bool,
    /// Whether a missing source is an error.
    pub strict: bool,
    /// Whether to print nothing but errors.
    pub quiet: bool,
    /// Where procfs is mounted.
    pub procfs: PathBuf,
    /// Where sysfs is mounted.
    pub sysfs: PathBuf,
    /// Name of this node, if not the system's.
    pub hostname: Option<String>,
    /// Name of the run, which it shares with other nodes and starts, if not one of its own.
    pub run_id: Option<String>,
    /// Whether it is no error that this node already has a profiler of the run.
    pub once: bool,
    /// Whether each batch job gets a run of its own.
    pub split_by_job: bool,
    /// Where to say what would go to stderr.
    pub log: Option<PathBuf>,
    /// When old runs are removed.
    pub retention: Limits,
}

/// The settings that a file can hold.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// As `--interval`.
    pub interval: Option<String>,
    /// As `--duration`.
    pub duration: Option<String>,
    /// As `--out`.
    pub out: Option<PathBuf>,
    /// As `--source`.
    pub source: Option<String>,
    /// As `--groups`.
    pub groups: Option<String>,
    /// As `--events`.
    pub events: Option<String>,
    /// As `--perfevents`.
    pub perfevents: Option<PathBuf>,
    /// As `--max-entries`.
    pub max_entries: Option<u32>,
    /// As `--threads`.
    pub threads: Option<bool>,
    /// As `--checkpoint`.
    pub checkpoint: Option<String>,
    /// As `--sync`.
    pub sync: Option<bool>,
    /// As `--strict`.
    pub strict: Option<bool>,
    /// As `--quiet`.
    pub quiet: Option<bool>,
    /// As `--log`.
    pub log: Option<PathBuf>,
    /// As `--keep-free`.
    pub keep_free: Option<String>,
    /// As `--max-age`.
    pub max_age: Option<String>,
    /// As `--max-size`.
    pub max_size: Option<String>,
}

impl File {
    /// Reads the named file, or the system's if it is there.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or holds what no setting is.
    pub fn read(path: Option<&std::path::Path>) -> Result<Self, Failure> {
        let (path, required) = match path {
            Some(path) => (path, true),
            None => (std::path::Path::new(SYSTEM_FILE), false),
        };
        let fail =
            |what: String| Failure::new(Reason::Usage, format!("{}: {what}", path.display()));
        match std::fs::read_to_string(path) {
            Ok(text) => toml::from_str(&text).map_err(|error| {
                // Its own text shows the line, which may hold anything.
                let line = error
                    .span()
                    .and_then(|span| text.get(..span.start))
                    .map_or(1, |before| before.matches('\n').count() + 1);
                fail(format!("line {line}: {}", error.message()))
            }),
            Err(error) if !required && error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self::default())
            }
            Err(error) => Err(fail(error.to_string())),
        }
    }

    /// Reads a duration or size of the file.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub fn parse<T>(
        name: &str,
        text: Option<&String>,
        parse: fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Failure> {
        text.map(|text| parse(text))
            .transpose()
            .map_err(|error| Failure::new(Reason::Usage, format!("setting `{name}`: {error}")))
    }
}

/// The sources of a run, in the order of the registry.
#[derive(Clone)]
pub struct Sources(Vec<Selected>);

#[derive(Clone)]
struct Selected {
    spec: &'static SourceSpec,
    wanted: bool,
    /// Not only as one of those that are on when nothing else is said.
    by_name: bool,
    method: Option<&'static str>,
}

impl Sources {
    /// Each source.
    pub fn iter(&self) -> impl Iterator<Item = &'static SourceSpec> {
        self.0.iter().map(|selected| selected.spec)
    }

    /// Whether a source is among them.
    pub fn has(&self, name: &str) -> bool {
        self.iter().any(|spec| spec.name == name)
    }

    /// Whether a source was named.
    pub fn names(&self, name: &str) -> bool {
        let mut named = self.0.iter().filter(|selected| selected.by_name);
        named.any(|selected| selected.spec.name == name)
    }

    /// Whether one of them needs the processes of the target.
    pub fn need_tasks(&self) -> bool {
        self.iter().any(SourceSpec::reads_tasks)
    }

    /// What they want accounted in the kernel.
    pub fn instrumentations(&self) -> Vec<Requested> {
        self.0
            .iter()
            .filter_map(|selected| {
                Some(Requested {
                    instrumentation: selected.spec.instrumentation?,
                    method: selected.method,
                })
            })
            .collect()
    }
}

/// Which sources a list such as `sched,usage`, `+energy,-system` or `+file_io=syscalls` names.
///
/// # Errors
///
/// When a name is not known, or the two forms are mixed.
pub fn select_sources(list: Option<&str>) -> Result<Sources, Failure> {
    let default = list.is_none();
    let list = list.unwrap_or("+process");
    let fail = |what: String| Failure::new(Reason::Usage, format!("--source {list}: {what}"));
    let names: Vec<&str> = list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    let relative = names
        .iter()
        .filter(|name| name.starts_with(['+', '-']))
        .count();
    if relative != 0 && relative != names.len() {
        return Err(fail(
            "either name all sources, or add (+) and remove (-) some".to_owned(),
        ));
    }
    let mut selected: Vec<_> = REGISTRY
        .iter()
        .map(|spec| Selected {
            spec,
            wanted: relative != 0 && spec.default,
            by_name: false,
            method: None,
        })
        .collect();
    for name in &names {
        let bare = name.trim_start_matches(['+', '-']);
        let (bare, method) = bare
            .split_once('=')
            .map_or((bare, None), |(bare, method)| (bare, Some(method)));
        let Some(selected) = selected
            .iter_mut()
            .find(|selected| selected.spec.name == bare)
        else {
            let known: Vec<_> = REGISTRY.iter().map(|spec| spec.name).collect();
            return Err(fail(format!(
                "no source `{bare}`; there are {}",
                known.join(", ")
            )));
        };
        selected.wanted = !name.starts_with('-');
        selected.by_name = !default;
        if let Some(method) = method {
            let methods = selected
                .spec
                .instrumentation
                .map_or(&[][..], |instrumentation| instrumentation.methods);
            let Some(known) = methods.iter().find(|known| known.name == method) else {
                let names: Vec<_> = methods.iter().map(|method| method.name).collect();
                return Err(fail(format!(
                    "source `{bare}` has no method `{method}`; {}",
                    if names.is_empty() {
                        "there is only one".to_owned()
                    } else {
                        format!("there are {}", names.join(", "))
                    }
                )));
            };
            selected.method = Some(known.name);
        }
    }
    let sources: Vec<_> = selected
        .into_iter()
        .filter(|selected| selected.wanted)
        .collect();
    if sources.is_empty() {
        Err(fail("names no source".to_owned()))
    } else {
        Ok(Sources(sources))
    }
}

impl Config {
    /// The settings as `run.json` keeps them.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "interval_ns": u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX),
            "duration_ns": self.duration.map(|duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
            "ipc_file": self.ipc_file,
            "out": self.out,
            "max_entries": self.max_entries,
            "sources": self.sources.iter().map(|spec| spec.name).collect::<Vec<_>>(),
            "groups": self.perf.groups,
            "events": self.perf.events.names(),
            "perfevents": self.perf.tables,
            "threads": self.threads,
            "checkpoint": units::format_ns(u64::try_from(self.checkpoint.as_nanos()).unwrap_or(u64::MAX)),
            "sync": self.sync,
            "strict": self.strict,
            "split_by": self.split_by_job.then_some("job"),
            "keep_free": self.retention.keep_free,
            "max_age_ns": self.retention.max_age.map(|age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
            "max_size": self.retention.max_size,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Result<Vec<&'static str>, Failure> {
        Ok(select_sources(Some(list))?
            .iter()
            .map(|spec| spec.name)
            .collect())
    }

    #[test]
    fn sources_by_name() {
        assert_eq!(names("usage,sched").expect("known"), ["sched", "usage"]);
        let all = select_sources(None).expect("all").iter().count();
        assert_eq!(names("-usage").expect("known").len(), all - 1);
        let named = |list, name| select_sources(list).expect("known").names(name);
        assert!(named(Some("gpu"), "gpu") && named(Some("+gpu"), "gpu"));
        assert!(!named(Some("-usage"), "gpu") && !named(None, "process"));
        for wrong in ["nonsense", "usage,-sched", "", "-usage,sched"] {
            assert!(names(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn settings_from_a_file() {
        let file: File = toml::from_str("interval = '100ms'\nout = '/data'").expect("valid");
        assert_eq!(file.out, Some(PathBuf::from("/data")));
        assert!(toml::from_str::<File>("intervall = '1s'").is_err());
        let parsed = File::parse("interval", file.interval.as_ref(), units::interval);
        assert_eq!(parsed.expect("valid"), Some(Duration::from_millis(100)));
    }
}

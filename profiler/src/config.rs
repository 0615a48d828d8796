//! Settings of a run, from the command line, `PROFILER_*` variables and a TOML file, in this order of precedence.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use serde::Deserialize;

use crate::{
    bpf::Wanted,
    failure::{Failure, Reason},
    sources::{REGISTRY, SourceSpec},
    units,
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
    /// Directory of the runs.
    pub out: PathBuf,
    /// Sources to read.
    pub sources: Sources,
    /// Entries of each BPF map of flows, if not as many as the node's size suggests.
    pub max_entries: Option<u32>,
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
            Ok(text) => {
                toml::from_str(&text).map_err(|error| fail(error.to_string().trim().to_owned()))
            }
            Err(error) if !required && error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self::default())
            }
            Err(error) => Err(fail(error.to_string())),
        }
    }

    /// Reads a duration setting of the file.
    ///
    /// # Errors
    ///
    /// When it is no duration.
    pub fn parse(
        name: &str,
        text: Option<&String>,
        parse: fn(&str) -> Result<Duration, String>,
    ) -> Result<Option<Duration>, Failure> {
        text.map(|text| parse(text))
            .transpose()
            .map_err(|error| Failure::new(Reason::Usage, format!("setting `{name}`: {error}")))
    }
}

/// The sources of a run, in the order of the registry.
#[derive(Clone)]
pub struct Sources(Vec<(&'static SourceSpec, Option<&'static str>)>);

impl Sources {
    /// Each source.
    pub fn iter(&self) -> impl Iterator<Item = &'static SourceSpec> {
        self.0.iter().map(|(spec, _)| *spec)
    }

    /// Whether a source is among them.
    pub fn has(&self, name: &str) -> bool {
        self.iter().any(|spec| spec.name == name)
    }

    /// Whether one of them needs the processes of the target.
    pub fn need_tasks(&self) -> bool {
        self.iter().any(|spec| spec.tasks)
    }

    /// What they want accounted in the kernel.
    pub fn features(&self) -> Vec<Wanted> {
        self.0
            .iter()
            .filter_map(|(spec, way)| {
                Some(Wanted {
                    feature: spec.feature?,
                    way: *way,
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
        .map(|spec| (*spec, relative != 0 && spec.default, None))
        .collect();
    for name in &names {
        let bare = name.trim_start_matches(['+', '-']);
        let (bare, way) = bare
            .split_once('=')
            .map_or((bare, None), |(bare, way)| (bare, Some(way)));
        let Some((spec, wanted, taken)) = selected.iter_mut().find(|(spec, ..)| spec.name == bare)
        else {
            let known: Vec<_> = REGISTRY.iter().map(|spec| spec.name).collect();
            return Err(fail(format!(
                "no source `{bare}`; there are {}",
                known.join(", ")
            )));
        };
        *wanted = !name.starts_with('-');
        if let Some(way) = way {
            let ways = spec.feature.map_or(&[][..], |feature| feature.ways);
            let Some(known) = ways.iter().find(|known| known.name == way) else {
                let names: Vec<_> = ways.iter().map(|way| way.name).collect();
                return Err(fail(format!(
                    "source `{bare}` has no way `{way}`; {}",
                    if names.is_empty() {
                        "there is only one".to_owned()
                    } else {
                        format!("there are {}", names.join(", "))
                    }
                )));
            };
            *taken = Some(known.name);
        }
    }
    let sources: Vec<_> = selected
        .into_iter()
        .filter(|(_, wanted, _)| *wanted)
        .map(|(spec, _, way)| (spec, way))
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
            "out": self.out,
            "max_entries": self.max_entries,
            "sources": self.sources.iter().map(|spec| spec.name).collect::<Vec<_>>(),
            "threads": self.threads,
            "checkpoint": units::format_ns(u64::try_from(self.checkpoint.as_nanos()).unwrap_or(u64::MAX)),
            "sync": self.sync,
            "strict": self.strict,
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

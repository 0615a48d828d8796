//! Selection of sources (`--source`).

use thiserror::Error;

use crate::{
    bpf::Requested,
    failure::{Failure, Reason},
    sources::{REGISTRY, SourceSpec},
    support::names,
};

/// The sources of a run, in the order of the registry.
#[derive(Clone)]
pub struct Sources(Vec<Selected>);

#[derive(Clone)]
struct Selected {
    spec: &'static SourceSpec,
    /// Named by the user, not only part of the default.
    by_name: bool,
    method: Option<&'static str>,
}

impl Sources {
    /// Reads a list such as `sched,usage`, `+energy,-system` or `+file_io=syscalls`. Without a
    /// list, the default sources are selected.
    ///
    /// # Errors
    ///
    /// When a name is unknown, or the two forms are mixed.
    pub fn select(list: Option<&str>) -> Result<Self, Failure> {
        let Some(list) = list else {
            return Ok(Self(default().collect()));
        };
        Self::from_list(list)
            .map_err(|error| Failure::new(Reason::Usage, format!("--source {list}: {error}")))
    }

    fn from_list(list: &str) -> Result<Self, SelectionError> {
        let entries = list.split(',').map(str::trim);
        let entries: Vec<&str> = entries.filter(|entry| !entry.is_empty()).collect();
        let is_relative = |entry: &&str| entry.starts_with(['+', '-']);
        let mut selected: Vec<Selected> = if entries.iter().all(is_relative) {
            default().collect()
        } else if entries.iter().any(is_relative) {
            return Err(SelectionError::Mixed);
        } else {
            Vec::new()
        };
        for entry in &entries {
            let named = named(entry.trim_start_matches(['+', '-']))?;
            selected.retain(|known| known.spec.name != named.spec.name);
            if !entry.starts_with('-') {
                selected.push(named);
            }
        }
        if entries.is_empty() || selected.is_empty() {
            return Err(SelectionError::Empty);
        }
        let place = |selected: &Selected| {
            let mut specs = REGISTRY.iter();
            specs.position(|spec| spec.name == selected.spec.name)
        };
        selected.sort_by_key(place);
        Ok(Self(selected))
    }

    /// Declarations of the sources.
    pub fn iter(&self) -> impl Iterator<Item = &'static SourceSpec> {
        self.0.iter().map(|selected| selected.spec)
    }

    /// Whether a source is selected.
    pub fn has(&self, name: &str) -> bool {
        self.iter().any(|spec| spec.name == name)
    }

    /// Whether the user named a source.
    pub fn names(&self, name: &str) -> bool {
        let mut named = self.0.iter().filter(|selected| selected.by_name);
        named.any(|selected| selected.spec.name == name)
    }

    /// Whether any of the sources reads the processes of the target.
    pub fn need_tasks(&self) -> bool {
        self.iter().any(SourceSpec::reads_tasks)
    }

    /// BPF programs that the sources need.
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

fn default() -> impl Iterator<Item = Selected> {
    let specs = REGISTRY.iter().filter(|spec| spec.default);
    specs.map(|spec| Selected {
        spec,
        by_name: false,
        method: None,
    })
}

/// The source of an entry `NAME` or `NAME=METHOD`.
fn named(entry: &str) -> Result<Selected, SelectionError> {
    let (name, method) = match entry.split_once('=') {
        Some((name, method)) => (name, Some(method)),
        None => (entry, None),
    };
    let spec = REGISTRY.iter().find(|spec| spec.name == name);
    let spec = spec.ok_or_else(|| SelectionError::Source(name.to_owned()))?;
    let methods = spec
        .instrumentation
        .map_or(&[][..], |instrumentation| instrumentation.methods);
    let find = |method: &str| {
        let known = methods.iter().find(|known| known.name == method);
        known.ok_or_else(|| SelectionError::Method {
            source_name: name.to_owned(),
            method: method.to_owned(),
            known: names::listed(method, methods.iter().map(|known| known.name)),
        })
    };
    let method = method.map(find).transpose()?.map(|method| method.name);
    Ok(Selected {
        spec,
        by_name: true,
        method,
    })
}

/// Why a list does not select sources.
#[derive(Debug, Error)]
enum SelectionError {
    #[error("either name all sources, or add (+) and remove (-) some")]
    Mixed,
    #[error("selects no source")]
    Empty,
    #[error("{}", names::unknown("source", .0, REGISTRY.iter().map(|spec| spec.name)))]
    Source(String),
    #[error(
        "source `{source_name}`: unknown method `{method}`; {}",
        available(known)
    )]
    Method {
        source_name: String,
        method: String,
        known: String,
    },
}

fn available(methods: &str) -> String {
    if methods.is_empty() {
        "it has only one".to_owned()
    } else {
        format!("methods are {methods}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Result<Vec<&'static str>, Failure> {
        Ok(Sources::select(Some(list))?
            .iter()
            .map(|spec| spec.name)
            .collect())
    }

    #[test]
    fn sources_by_name() {
        assert_eq!(names("usage,sched").expect("known"), ["sched", "usage"]);
        let all = Sources::select(None).expect("all").iter().count();
        assert_eq!(names("-usage").expect("known").len(), all - 1);
        let named = |list, name| Sources::select(list).expect("known").names(name);
        assert!(named(Some("gpu"), "gpu") && named(Some("+gpu"), "gpu"));
        assert!(!named(Some("-usage"), "gpu") && !named(None, "process"));
        for wrong in ["nonsense", "usage,-sched", "", "-usage,sched", "usage=x"] {
            assert!(names(wrong).is_err(), "{wrong}");
        }
    }
}

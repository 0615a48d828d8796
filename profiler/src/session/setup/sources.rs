//! Opening the sources, and how far each works.

use std::sync::Arc;

use super::state;
use crate::{
    config::{Config, Target},
    host::Host,
    marks::MarkReceiver,
    output::dataset::manifest::{SourceState, SourceStatus},
    sources::{Context, DERIVED, REGISTRY, Source, Support, outcome_support},
    tasks::Reader,
};

/// A source by its name, and whether an error of it has been said.
pub type Opened = (&'static str, Box<dyn Source>, bool);

/// Opens those that are wanted and can work, in the order in which they are read; `problem` is why the processes are
/// read from /proc.
pub fn open(
    config: &Config,
    host: &Host,
    reader: &Reader,
    problem: Option<&str>,
    marks: &Result<Arc<MarkReceiver>, String>,
) -> (Vec<Opened>, Vec<SourceState>) {
    let mut states = Vec::new();
    let mut sources = Vec::new();
    for spec in REGISTRY {
        if !config.sources.has(spec.name) {
            states.push(state(spec.name, SourceStatus::Off, None));
            continue;
        }
        let result = match reader {
            Reader::Bpf(programs) => programs
                .instrumentations
                .iter()
                .find(|result| result.source == spec.name),
            Reader::Procfs(_) | Reader::None => None,
        };
        let support = match (problem, reader) {
            (Some(problem), _) if spec.tasks => {
                let why = problem.to_owned();
                let remedy = String::new();
                if spec.procfs {
                    Support::Partly { why, remedy }
                } else {
                    Support::No { why, remedy }
                }
            }
            (None, Reader::Bpf(_)) if spec.tasks => match (result, spec.instrumentation) {
                (Some(result), Some(instrumentation)) => outcome_support(result, instrumentation),
                _ => Support::Works,
            },
            _ => (spec.probe)(host),
        };
        let (support, why) = match support {
            Support::Works => (SourceStatus::Works, None),
            Support::Partly { why, .. } => (SourceStatus::Partly, Some(why)),
            Support::No { why, .. } => (SourceStatus::No, Some(why)),
        };
        states.push(state(spec.name, support, why));
        if support == SourceStatus::No {
            continue;
        }
        match (spec.open)(&Context {
            host,
            interval: config.interval,
            threads: config.threads,
            result,
            node: matches!(config.target, Target::Node),
            joins_without_fork: matches!(config.target, Target::Cgroup(_) | Target::Job(_)),
            perf: &config.perf,
            marks: marks.as_ref().map_err(String::as_str),
        }) {
            Ok(source) => {
                if let Support::Partly { why, .. } = source.support() {
                    states.pop();
                    states.push(state(spec.name, SourceStatus::Partly, Some(why)));
                }
                sources.push((spec.name, source, false));
            }
            Err(error) => {
                states.pop();
                states.push(state(
                    spec.name,
                    SourceStatus::No,
                    Some(format!("{error:#}")),
                ));
            }
        }
    }
    sources.sort_by_key(|(name, ..)| {
        let derived = DERIVED.iter().position(|spec| spec.name == *name);
        derived.map_or(0, |place| place + 1)
    });
    (sources, states)
}

//! Opens the sources and finds out how far each works.

use std::sync::Arc;

use crate::{
    config::{Config, Target},
    debug,
    failure::os_error::without_code,
    host::Host,
    marks::MarkReceiver,
    output::dataset::manifest::{SourceState, SourceStatus},
    privileges,
    session::sampler::Opened,
    sources::{Input, OpenContext, REGISTRY, Support, of_result},
    tasks::Reader,
};

/// Opens the requested sources that can work, in the order in which they are read. `problem` is why
/// the processes are read from /proc.
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
            states.push(state(spec.name, SourceStatus::Disabled, None));
            continue;
        }
        let result = match reader {
            Reader::Bpf(programs) => programs
                .instrumentations
                .iter()
                .find(|result| result.source == spec.name),
            Reader::Procfs(_) | Reader::None => None,
        };
        let support = match (spec.input, problem, reader) {
            (Input::Tasks { procfs }, Some(problem), _) => {
                let why = problem.to_owned();
                let remedy = String::new();
                if procfs {
                    Support::Limited { why, remedy }
                } else {
                    Support::Unavailable { why, remedy }
                }
            }
            (Input::Tasks { .. }, None, Reader::Bpf(_)) => match (result, spec.instrumentation) {
                (Some(result), Some(instrumentation)) => of_result(result, instrumentation),
                _ => Support::Ok,
            },
            _ => spec.support(host),
        };
        let (support, why) = match support {
            Support::Ok => (SourceStatus::Ok, None),
            Support::Limited { why, .. } => (SourceStatus::Limited, Some(why)),
            Support::Unavailable { why, .. } => (SourceStatus::Unavailable, Some(why)),
        };
        states.push(state(spec.name, support, why));
        if support == SourceStatus::Unavailable {
            continue;
        }
        match (spec.open)(&OpenContext {
            host,
            interval: config.settings.interval,
            for_user: is_for_user(config),
            threads: config.settings.threads,
            result,
            node: matches!(config.target, Target::Node),
            joins_without_fork: matches!(config.target, Target::Cgroup(_) | Target::Job(_)),
            perf: &config.perf,
            marks: marks.as_ref().map_err(String::as_str),
        }) {
            Ok(source) => {
                if let Support::Limited { why, .. } = source.support() {
                    states.pop();
                    states.push(state(spec.name, SourceStatus::Limited, Some(why)));
                }
                sources.push((*spec, source, false));
            }
            Err(error) => {
                states.pop();
                states.push(state(
                    spec.name,
                    SourceStatus::Unavailable,
                    Some(format!("{error:#}")),
                ));
            }
        }
    }
    for SourceState { name, status, why } in &states {
        let why = why.as_deref().unwrap_or_default();
        debug!("source {name}: {status:?} {why}");
    }
    sources.sort_by_key(|(spec, ..)| spec.stage);
    (sources, states)
}

/// Whether an ordinary user gets values that only the privileges of the profiler can read.
fn is_for_user(config: &Config) -> bool {
    let of_client = config.client.as_ref().is_some_and(|client| client.uid != 0);
    of_client || privileges::is_secure_execution()
}

fn state(name: &str, status: SourceStatus, why: Option<String>) -> SourceState {
    SourceState {
        name: name.to_owned(),
        status,
        why: why.map(|why| without_code(&why).into_owned()),
    }
}

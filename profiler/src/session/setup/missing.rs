//! Report on sources that do not work.

use super::programs::Fallback;
use crate::{
    config::Config,
    failure::{Failure, Reason},
    host::Host,
    output::dataset::manifest::{SourceState, SourceStatus},
    sources::{REGISTRY, SourceSpec},
};

/// One line about sources that do not work.
///
/// # Errors
///
/// With `--strict`, when a source does not work.
pub fn report(
    config: &Config,
    host: &Host,
    states: &[SourceState],
    fallback: Option<&Fallback>,
) -> Result<Option<String>, Failure> {
    let news: Vec<&SourceState> = states
        .iter()
        .filter(|state| match state.status {
            SourceStatus::Unavailable => {
                let is_expected = |spec: &SourceSpec| (spec.has_hardware)(host);
                config.sources.names(&state.name) || spec(&state.name).is_some_and(is_expected)
            }
            // Null columns are in `profiler check` and run.json; results of loading programs are
            // new.
            SourceStatus::Limited => spec(&state.name).is_some_and(SourceSpec::reads_tasks),
            SourceStatus::Ok | SourceStatus::Disabled => false,
        })
        .collect();
    if config.settings.strict {
        let is_recorded = fallback.is_none_or(|fallback| fallback.is_recorded);
        let missing = |state: &&SourceState| {
            let rejects_nulls = |spec: &SourceSpec| {
                spec.rejects_nulls(&config.perf) || spec.reads_tasks() && !is_recorded
            };
            state.status == SourceStatus::Unavailable
                || spec(&state.name).is_some_and(rejects_nulls)
        };
        let all: Vec<_> = news.iter().copied().filter(missing).collect();
        let reasons: Vec<_> = by_reason(&all)
            .iter()
            .map(|(names, why)| format!("{}: {why}", names.join(", ")))
            .collect();
        return if reasons.is_empty() {
            Ok(None)
        } else {
            let message = format!("--strict: not all sources work: {}", reasons.join("; "));
            Err(Failure::new(Reason::Strict, message))
        };
    }
    let with = |status| {
        let names = news.iter().filter(|state| state.status == status);
        names
            .map(|state| state.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let kinds = [
        ("limited", with(SourceStatus::Limited)),
        ("not available", with(SourceStatus::Unavailable)),
    ];
    let mut parts: Vec<_> = kinds
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(kind, names)| format!("{kind}: {names}"))
        .collect();
    if parts.is_empty() {
        return Ok(None);
    }
    if let Some(Fallback { problem, .. }) = fallback {
        parts.insert(0, format!("processes are read from /proc: {problem}"));
    }
    Ok(Some(format!(
        "{} (reasons: `profiler check`)",
        parts.join("; ")
    )))
}

/// Sources that share a reason.
fn by_reason<'a>(states: &[&'a SourceState]) -> Vec<(Vec<&'a str>, &'a str)> {
    let mut reasons: Vec<(Vec<&str>, &str)> = Vec::new();
    for state in states {
        let why = state.why.as_deref().unwrap_or("not available");
        match reasons.iter_mut().find(|(_, known)| *known == why) {
            Some((names, _)) => names.push(&state.name),
            None => reasons.push((vec![&state.name], why)),
        }
    }
    reasons
}

fn spec(name: &str) -> Option<&'static SourceSpec> {
    REGISTRY.iter().copied().find(|spec| spec.name == name)
}

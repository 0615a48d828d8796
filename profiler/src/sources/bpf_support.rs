//! How far sources of processes work on this machine, found by loading their BPF programs.

use std::sync::OnceLock;

use super::{REGISTRY, Support};
use crate::{
    bpf::{
        AttachResult, Attached, BpfError, HookError, Instrumentation, Programs, Requested, Scope,
        Settings,
    },
    host::{Host, refusal},
    privileges,
};

/// Result of loading all programs.
pub struct LoadTrial {
    /// Programs that are attached.
    pub attached: Vec<Attached>,
    /// Attach result of each source with programs.
    pub instrumentations: Vec<AttachResult>,
}

/// Loads all programs once, to find out what this kernel allows.
pub fn trial(host: &Host) -> &'static Result<LoadTrial, BpfError> {
    static TRIAL: OnceLock<Result<LoadTrial, BpfError>> = OnceLock::new();
    TRIAL.get_or_init(|| {
        let requested = |instrumentation| Requested {
            instrumentation,
            method: None,
        };
        let settings = Settings {
            scope: Scope::Pids,
            sched: true,
            threads: false,
            moves: true,
            instrumentations: REGISTRY
                .iter()
                .filter_map(|spec| spec.instrumentation.map(requested))
                .collect(),
            max_entries: Some(1),
            map_entries: Vec::new(),
        };
        Programs::load(host, &settings, |_| Ok(())).map(|programs| LoadTrial {
            attached: programs.attached,
            instrumentations: programs.instrumentations,
        })
    })
}

/// How far a source works that reads processes; `procfs`: also with processes read from `/proc`.
pub fn of_tasks(
    host: &Host,
    procfs: bool,
    instrumentation: Option<&'static Instrumentation>,
) -> Support {
    if !privileges::may_load_bpf() {
        let remedy =
            "sudo, or: setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep profiler"
                .to_owned();
        let why = "not root, and without CAP_BPF and CAP_PERFMON".to_owned();
        return if procfs {
            Support::Limited {
                why: format!("{why}: own processes only, read from /proc"),
                remedy,
            }
        } else {
            Support::Unavailable { why, remedy }
        };
    }
    match trial(host) {
        Ok(trial) => match instrumentation {
            Some(instrumentation) => of_programs(trial, instrumentation, procfs),
            None => Support::Ok,
        },
        Err(error) if procfs => Support::Limited {
            why: format!(
                "{}; processes are read from /proc: short-lived ones are missing",
                error.describe()
            ),
            remedy: error.remedy(),
        },
        Err(error) => Support::Unavailable {
            why: error.describe(),
            remedy: error.remedy(),
        },
    }
}

fn of_programs(
    trial: &LoadTrial,
    instrumentation: &'static Instrumentation,
    procfs: bool,
) -> Support {
    let mut results = trial.instrumentations.iter();
    let result = results.find(|result| result.source == instrumentation.source);
    let support = result.map_or(Support::Ok, |result| of_result(result, instrumentation));
    match support {
        Support::Unavailable { .. } if procfs => Support::Ok,
        support => support,
    }
}

/// How far a source works whose programs had this attach result. The preferred method fills all
/// columns; the limits of another method, and missing optional hooks, are listed.
pub fn of_result(result: &AttachResult, instrumentation: &Instrumentation) -> Support {
    let Some(method) = result.method else {
        let why: Vec<_> = result
            .missing
            .iter()
            .map(|missing| format!("no {}: {}", missing.hook.name(), missing.error))
            .collect();
        return Support::Unavailable {
            why: why.join("; "),
            remedy: remedy(result),
        };
    };
    let mut why = limits(result, instrumentation, method);
    why.extend(missing_hooks(result, method));
    if why.is_empty() {
        Support::Ok
    } else {
        Support::Limited {
            why: why.join("; "),
            remedy: remedy(result),
        }
    }
}

/// Limits of the attached method, with the reason why a better one was not attached.
fn limits(result: &AttachResult, instrumentation: &Instrumentation, attached: &str) -> Vec<String> {
    let mut methods = instrumentation.methods.iter();
    let without = methods
        .find(|method| method.name == attached)
        .map_or("", |method| method.without);
    if without.is_empty() {
        return Vec::new();
    }
    let mut missing = result.missing.iter();
    let better = missing.find(|missing| missing.method != attached);
    vec![match better {
        Some(better) => format!("{without} (no {}: {})", better.hook.name(), better.error),
        None => without.to_owned(),
    }]
}

/// Optional hooks of the attached method that are missing, grouped by reason.
fn missing_hooks(result: &AttachResult, attached: &str) -> Vec<String> {
    let mut by_reason: Vec<(&HookError, Vec<String>)> = Vec::new();
    let missing = result.missing.iter();
    for missing in missing.filter(|missing| missing.method == attached) {
        let hook = missing.hook.name();
        match by_reason
            .iter_mut()
            .find(|(error, _)| **error == missing.error)
        {
            Some((_, hooks)) => hooks.push(hook),
            None => by_reason.push((&missing.error, vec![hook])),
        }
    }
    let lines = by_reason.into_iter();
    lines
        .map(|(error, hooks)| format!("no {}: {error}", hooks.join(", ")))
        .collect()
}

/// How to enable the missing hooks.
fn remedy(result: &AttachResult) -> String {
    let any = |is: fn(&HookError) -> bool| {
        let mut missing = result.missing.iter();
        missing.any(|missing| is(&missing.error))
    };
    let mut remedies = Vec::new();
    if any(|error| matches!(error, HookError::NotPermitted(_))) {
        let cause = refusal("/proc".as_ref(), "/sys".as_ref());
        remedies.push(format!("denied: {cause}"));
    }
    if any(|error| *error == HookError::NotSupported) {
        remedies.push(
            "a kernel with CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS (arm64: Linux 6.4 or later)"
                .to_owned(),
        );
    } else if any(|error| matches!(error, HookError::Absent | HookError::Failed(_))) {
        remedies.push(
            "a kernel with these functions in its BTF, and with CONFIG_FUNCTION_TRACER".to_owned(),
        );
    }
    remedies.join("; ")
}

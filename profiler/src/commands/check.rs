//! `profiler check`: which sources work here, and how to enable the others.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use clap::Args;
use rustix::net::UCred;
use serde_json::{Value, json};

use super::{
    ServiceOption, print, print_json,
    status::{uid_of, user_name},
};
use crate::{
    failure::Failure,
    host::Host,
    output::status_file::{Status, running},
    privileges,
    service::client::{Connection, Unavailable},
    sources::{LoadTrial, REGISTRY, Support, trial},
    support::{
        log::{escaped, harmless},
        resource_limits,
        units::wall_clock,
    },
};

/// Arguments of `profiler check`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Print JSON, with the attach result of each BPF program
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: ServiceOption,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When the result cannot be encoded.
    pub fn run(&self) -> Result<u8, Failure> {
        // Before this process can be root: clients are known by their user.
        let service = self.service.socket()?.and_then(NodeService::find);
        let _raised = privileges::raise();
        resource_limits::raise(false);
        let host = Host::probe("/proc", "/sys", None);
        if self.json {
            print_json(&json(&host, service.as_ref()))?;
        } else {
            print(table(&host, service.as_ref()))?;
        }
        Ok(0)
    }
}

/// The service of the node, or what is in its place.
struct NodeService {
    socket: PathBuf,
    /// Its process and user.
    peer: Result<UCred, Unavailable>,
    /// What it tells.
    status: Option<Status>,
}

impl NodeService {
    /// `None` if there is no socket.
    fn find(socket: PathBuf) -> Option<Self> {
        let peer = match Connection::open(&socket) {
            Err(Unavailable::Absent) => return None,
            connection => connection.map(|connection| connection.peer()),
        };
        let status = peer.as_ref().ok().and_then(|peer| {
            let pid = peer.pid.as_raw_pid();
            let all = running(Path::new("/"), uid_of).found.into_iter();
            let mut all = all.map(|found| found.status);
            all.find(|status| status.process.pid == pid)
        });
        Some(Self {
            socket,
            peer,
            status,
        })
    }

    fn text(&self) -> String {
        let socket = escaped(&self.socket.to_string_lossy());
        let peer = match &self.peer {
            Ok(peer) => peer,
            Err(why) => return format!("service {socket}: {why}\n"),
        };
        let mut text = format!(
            "service {socket}: running, process {}, user {}",
            peer.pid.as_raw_pid(),
            user_name(peer.uid.as_raw())
        );
        if let Some(status) = &self.status {
            let (version, since) = (harmless(&status.version), wall_clock(status.start_ts));
            let _ = write!(text, ", version {version}, since {since}");
        }
        text.push('\n');
        if !privileges::may_load_bpf() {
            text.push_str(
                "  `profiler run` of your processes, commands and jobs is recorded by the service, with what \
                 it may do;\n  the table shows what is recorded without it\n",
            );
        }
        text
    }

    fn json(&self) -> Value {
        let peer = self.peer.as_ref().ok();
        let status = self.status.as_ref();
        json!({
            "socket": self.socket.to_string_lossy(),
            "running": peer.is_some(),
            "pid": peer.map(|peer| peer.pid.as_raw_pid()),
            "uid": peer.map(|peer| peer.uid.as_raw()),
            "version": status.map(|status| &status.version),
            "start_ts": status.map(|status| status.start_ts),
            "why": self.peer.as_ref().err().map(Unavailable::to_string),
        })
    }
}

fn parts(support: &Support) -> (&'static str, &str, &str) {
    match support {
        Support::Ok => ("ok", "", ""),
        Support::Limited { why, remedy } => ("limited", why, remedy),
        Support::Unavailable { why, remedy } => ("unavailable", why, remedy),
    }
}

/// Reasons that have the same remedy, each with the sources that share it.
struct Cause {
    remedy: String,
    reasons: Vec<(Vec<&'static str>, String)>,
}

/// One line per source, then each reason and each remedy once.
fn table(host: &Host, service: Option<&NodeService>) -> String {
    let width = REGISTRY
        .iter()
        .map(|spec| spec.name.len())
        .max()
        .unwrap_or(0);
    let mut text = format!(
        "{}, Linux {}, {}\n{}\n",
        host.hostname,
        host.kernel_release.as_deref().unwrap_or("?"),
        if privileges::may_load_bpf() {
            "may load BPF programs"
        } else {
            "may not load BPF programs"
        },
        service.map(NodeService::text).unwrap_or_default(),
    );
    let _ = writeln!(
        text,
        "{:width$}  {:11}  default  collects",
        "source", "status"
    );
    let mut causes: Vec<Cause> = Vec::new();
    for spec in REGISTRY {
        let support = spec.support(host);
        let (status, why, remedy) = parts(&support);
        let default = if spec.default { "yes" } else { "no" };
        let (name, help) = (spec.name, spec.help);
        let _ = writeln!(text, "{name:width$}  {status:11}  {default:7}  {help}");
        if why.is_empty() {
            continue;
        }
        let known = causes.iter_mut().find(|cause| {
            let mut reasons = cause.reasons.iter();
            cause.remedy == remedy && (!remedy.is_empty() || reasons.any(|(_, known)| known == why))
        });
        let reason = (vec![spec.name], why.to_owned());
        let Some(cause) = known else {
            causes.push(Cause {
                remedy: remedy.to_owned(),
                reasons: vec![reason],
            });
            continue;
        };
        let mut reasons = cause.reasons.iter_mut();
        match reasons.find(|(_, known)| known == why) {
            Some((names, _)) => names.push(spec.name),
            None => cause.reasons.push(reason),
        }
    }
    for Cause { remedy, reasons } in causes {
        text.push('\n');
        for (names, why) in reasons {
            let _ = writeln!(text, "{}: {why}", names.join(", "));
        }
        if !remedy.is_empty() {
            let _ = writeln!(text, "  → {remedy}");
        }
    }
    text
}

fn json(host: &Host, service: Option<&NodeService>) -> Value {
    let sources: Vec<_> = REGISTRY
        .iter()
        .map(|spec| {
            let support = spec.support(host);
            let (status, why, remedy) = parts(&support);
            let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            json!({
                "source": spec.name,
                "status": status,
                "default": spec.default,
                "help": spec.help,
                "why": text(why),
                "remedy": text(remedy),
                "tables": spec.tables.iter().map(|table| table.name).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "hostname": host.hostname,
        "kernel": host.kernel_release,
        "service": service.map(NodeService::json),
        "sources": sources,
        "programs": programs(host),
    })
}

/// Every BPF program with its hook on this kernel or the reason why it has none; null if BPF
/// programs cannot be loaded.
fn programs(host: &Host) -> Value {
    if !privileges::may_load_bpf() {
        return Value::Null;
    }
    let Ok(LoadTrial {
        attached,
        instrumentations,
    }) = trial(host)
    else {
        return Value::Null;
    };
    let mut programs: Vec<_> = attached
        .iter()
        .map(|attached| json!({ "program": attached.program, "hook": attached.hook, "why": null }))
        .collect();
    for missing in instrumentations
        .iter()
        .flat_map(|instrumentation| &instrumentation.missing)
    {
        let why = format!("{}: {}", missing.hook.name(), missing.error);
        programs.push(json!({ "program": missing.hook.program, "hook": null, "why": why }));
    }
    programs.into()
}

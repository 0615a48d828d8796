//! `profiler status`: the running profilers and services of this node.

use std::{fmt::Write as _, path::Path};

use clap::Args;
use nix::unistd::{Uid, User};
use serde::Serialize;

use super::{ServiceOption, print, print_json};
use crate::{
    failure::{Failure, Reason},
    output::status_file::{Found, Status, running},
    procfs::{process_stat, process_status, stat::tick_ns},
    report,
    service::client::{Connection, Unavailable},
    support::{
        log::{escaped, harmless, harmless_message},
        units::{counted, format_bytes, format_ns, wall_clock},
    },
    warning,
};

const PROCFS: &str = "/proc";
/// Time from which the cost is shown as a share of it, ns. Before, the start is most of it.
const SHARE_FROM: u64 = 60_000_000_000;

/// Arguments of `profiler status`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: ServiceOption,
}

/// A running profiler or service, with its cost as the kernel counts it.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    status: Status,
    uid: u32,
    user: Option<String>,
    /// Time since its start, ns.
    age_ns: Option<u64>,
    /// CPU time of all threads, ns.
    cpu_ns: Option<u64>,
    /// Resident memory, bytes.
    rss: Option<u64>,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When nothing runs, or stdout cannot be written.
    pub fn run(&self) -> Result<u8, Failure> {
        let all = running(Path::new("/"), uid_of);
        let rows: Vec<Row> = all.found.into_iter().map(Row::new).collect();
        if self.json {
            print_json(&rows)?;
        } else {
            print(rows.iter().map(Row::text).collect::<Vec<_>>().join("\n"))?;
        }
        let socket = self.service.socket()?;
        let unavailable =
            socket.and_then(|socket| Some((Connection::open(&socket).err()?, socket)));
        match unavailable {
            None | Some((Unavailable::Absent, _)) => {}
            Some((why, socket)) => {
                let socket = escaped(&socket.to_string_lossy());
                warning!("profiler: service {socket}: {why}");
            }
        }
        if all.unreadable != 0 {
            report!(
                "profiler: {} of other users not shown: run as root to see all",
                counted(all.unreadable as u64, "profiler")
            );
        } else if rows.is_empty() {
            let message = "no profiler or service is running on this node";
            return Err(Failure::new(Reason::Target, message));
        }
        Ok(0)
    }
}

/// The effective user of a process.
pub fn uid_of(pid: u32) -> Option<u32> {
    process_status::effective_uid(Path::new(PROCFS), pid)
}

/// The name of a user, or its number.
pub fn user_name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

impl Row {
    fn new(found: Found) -> Self {
        let pid = found.status.process.pid.cast_unsigned();
        let stat = process_stat::of_process(Path::new(PROCFS), pid);
        let cpu_ns = stat
            .as_ref()
            .map(|stat| (stat.utime + stat.stime) * tick_ns());
        let rss = stat.map(|stat| stat.rss * rustix::param::page_size() as u64);
        let user = User::from_uid(Uid::from_raw(found.uid)).ok().flatten();
        Self {
            age_ns: found.status.since(found.status.start_ts),
            status: found.status,
            uid: found.uid,
            user: user.map(|user| user.name),
            cpu_ns,
            rss,
        }
    }

    fn text(&self) -> String {
        let status = &self.status;
        let what = match (&status.target, &status.socket) {
            (Some(target), _) => harmless(target),
            (None, Some(socket)) => format!("service {}", escaped(&socket.to_string_lossy())),
            (None, None) => String::new(),
        };
        let mut text = what;
        text.push('\n');
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "  {name:<8}{value}");
        };
        let user = self.user.clone().unwrap_or_else(|| self.uid.to_string());
        let version = harmless(&status.version);
        line(
            "process",
            format!("{}, user {user}, version {version}", status.process.pid),
        );
        line(
            "since",
            format!(
                "{} ({})",
                wall_clock(status.start_ts),
                duration(self.age_ns)
            ),
        );
        match (&status.run_dir, status.client_uid) {
            (Some(run), _) => line("run", escaped(&run.to_string_lossy())),
            (None, Some(uid)) => line("run", format!("of a client, user {uid}")),
            (None, None) => {}
        }
        if let Some(sample) = status.sample_ts {
            let count = status
                .samples
                .map_or(String::new(), |n| counted(n, "sample") + ", ");
            let every = duration(status.interval_ns);
            line(
                "samples",
                format!(
                    "{count}every {every}, the last {} ago",
                    duration(status.since(sample))
                ),
            );
        }
        if let Some(file) = status.file_ts {
            line(
                "files",
                format!("the last {} ago", duration(status.since(file))),
            );
        }
        let share = match (self.cpu_ns, self.age_ns) {
            (Some(cpu), Some(age)) if age >= SHARE_FROM => {
                let share = cpu as f64 / age as f64 * 100.0;
                format!("{} of CPU time ({share:.2} % of a core)", format_ns(cpu))
            }
            // Mostly the start.
            (Some(cpu), _) => format!("{} of CPU time", format_ns(cpu)),
            _ => "CPU unknown".to_owned(),
        };
        let memory = self.rss.map_or("memory unknown".to_owned(), format_bytes);
        line("cost", format!("{share}, {memory}"));
        for loss in &status.losses {
            line("loss", harmless_message(&loss.to_string()));
        }
        if let Some(disk) = &status.disk {
            let limits = [
                disk.keep_free
                    .map(|free| format!("keep {} free", format_bytes(free))),
                disk.max_size
                    .map(|size| format!("at most {}", format_bytes(size))),
                disk.max_age_ns.map(|age| format!("for {}", format_ns(age))),
            ];
            let limits: Vec<String> = limits.into_iter().flatten().collect();
            let (runs, free) = (format_bytes(disk.runs), format_bytes(disk.free));
            line(
                "disk",
                format!("{runs} of runs, {free} free ({})", limits.join(", ")),
            );
        }
        text
    }
}

fn duration(ns: Option<u64>) -> String {
    ns.map_or("?".to_owned(), format_ns)
}

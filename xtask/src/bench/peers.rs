//! Other tools, measured in the same rounds as the profiler. Each does part of what it does.

use std::process::{Command, Stdio};

use anyhow::Result;

use super::{
    rounds::Contestant,
    tools::{ATOP, BPFTRACE, NODE_EXPORTER, PERF, PIDSTAT, RUNQLAT, Tool},
    tracer::Tracer,
    workloads::Name,
};
use crate::shell::progress;

/// Workloads that are also measured with other tools.
pub const WORKLOADS: [Name; 3] = [Name::PipeOneCpu, Name::Messaging, Name::TcpOneCpu];

/// Run-queue waits, latency of block devices, and bytes on sockets by process.
const BPFTRACE_PROGRAM: &str = r#"
tracepoint:sched:sched_wakeup, tracepoint:sched:sched_wakeup_new { @queued[args->pid] = nsecs; }
tracepoint:sched:sched_switch {
    if (args->prev_state == 0) { @queued[args->prev_pid] = nsecs; }
    if (@queued[args->next_pid]) {
        @wait = hist(nsecs - @queued[args->next_pid]);
        delete(@queued[args->next_pid]);
    }
}
tracepoint:block:block_rq_issue { @issued[args->dev, args->sector] = nsecs; }
tracepoint:block:block_rq_complete {
    if (@issued[args->dev, args->sector]) {
        @block = hist(nsecs - @issued[args->dev, args->sector]);
        delete(@issued[args->dev, args->sector]);
    }
}
tracepoint:sock:sock_send_length { @sent[pid] = sum(args->ret); }
tracepoint:sock:sock_recv_length { @got[pid] = sum(args->ret); }
interval:s:1 { printf("attached\n"); }
"#;

/// Tracepoints need tracefs, which is mounted in a private mount namespace if it is missing.
const WITH_TRACEFS: &str = "\
    test -e /sys/kernel/tracing/events || mount -t tracefs none /sys/kernel/tracing || exit; \
    exec bpftrace -B line -e \"$1\" >&2";

/// A tool that follows a workload.
pub struct Peer {
    name: &'static str,
    tool: &'static Tool,
    /// Its command for a process.
    command: fn(pid: u32) -> Command,
    /// Part of the line that it prints when it is attached.
    ready: &'static str,
}

static PEERS: [Peer; 3] = [
    Peer {
        name: "perf stat -p",
        tool: &PERF,
        command: |pid| {
            let mut command = Command::new("perf");
            command
                .args(["stat", "-I", "1000", "-e", "cpu-clock,context-switches"])
                .args(["-p", &pid.to_string()]);
            command
        },
        ready: "cpu-clock",
    },
    Peer {
        name: "runqlat (bcc)",
        tool: &RUNQLAT,
        command: |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "exec stdbuf -oL runqlat 1000 >&2"]);
            command
        },
        ready: "Tracing run queue latency",
    },
    Peer {
        name: "bpftrace, three sources",
        tool: &BPFTRACE,
        command: |_| {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", WITH_TRACEFS, "sh", BPFTRACE_PROGRAM]);
            command
        },
        ready: "attached",
    },
];

/// Those that can be installed here.
pub fn available() -> Vec<&'static Peer> {
    let peers = PEERS.iter();
    peers.filter(|peer| is_available(peer.tool)).collect()
}

impl Peer {
    pub fn contestant(&'static self) -> Contestant<'static> {
        Contestant {
            name: self.name,
            goal: None,
            attach: Box::new(|pid| {
                Tracer::start((self.command)(pid), None, |line| line.contains(self.ready))
            }),
        }
    }
}

/// A tool that reads all processes once per second.
pub struct Monitor {
    pub name: &'static str,
    tool: &'static Tool,
    arguments: &'static [&'static str],
    /// Port on which it has to be asked for its values.
    pub port: Option<u16>,
}

static MONITORS: [Monitor; 3] = [
    Monitor {
        name: "pidstat",
        tool: &PIDSTAT,
        arguments: &["-udrwh", "-p", "ALL", "1"],
        port: None,
    },
    Monitor {
        name: "atop",
        tool: &ATOP,
        arguments: &["-P", "PRC,PRM,PRD", "1"],
        port: None,
    },
    Monitor {
        name: "node_exporter",
        tool: &NODE_EXPORTER,
        arguments: &[
            "--collector.processes",
            "--web.listen-address=127.0.0.1:19100",
        ],
        port: Some(19100),
    },
];

/// Those that can be installed here.
pub fn monitors() -> impl Iterator<Item = &'static Monitor> {
    MONITORS.iter().filter(|monitor| is_available(monitor.tool))
}

impl Monitor {
    pub fn start(&self) -> Result<Tracer> {
        let mut command = Command::new(self.tool.program);
        command.args(self.arguments).stderr(Stdio::null());
        // atop would leave process accounting on for the whole system when it is killed.
        Tracer::spawn(command.env("ATOPACCT", ""), None)
    }
}

fn is_available(tool: &Tool) -> bool {
    let obtained = tool.obtain();
    if let Err(error) = &obtained {
        progress(&format!("without {}: {error:#}", tool.program));
    }
    obtained.is_ok()
}

//! bpftrace in the place of the profiler.

use std::process::Command;

use anyhow::Result;

use super::attached::Attached;

/// Bytes that each process sent and got; a line once a second, from the first second in which all is attached.
const SOCKET_BYTES: &str = r#"
tracepoint:sock:sock_send_length { @sent[pid] = sum(args->ret) }
tracepoint:sock:sock_recv_length { @got[pid] = sum(args->ret) }
interval:s:1 { printf("attached\n") }
"#;

/// Its tracepoints need tracefs; where that is not mounted, it is for bpftrace alone.
const START: &str = "\
    test -e /sys/kernel/tracing/events || mount -t tracefs none /sys/kernel/tracing || exit; \
    exec bpftrace -B line -e \"$1\" >&2";

/// Counts the bytes of all sockets of the node.
pub fn socket_bytes() -> Result<Attached> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", START, "sh", SOCKET_BYTES]);
    Attached::start(command, None, |line| line == "attached")
}

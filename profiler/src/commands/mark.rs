//! `profiler mark`: sends a mark from a shell script.

use std::{ffi::OsString, io, os::unix::net::UnixDatagram, path::PathBuf};

use clap::{Args, Subcommand, ValueHint};
use serde_json::{Map, Value, json};

use crate::{
    failure::{Failure, Reason},
    marks::{MAX_BYTES, VARIABLE},
    report,
};

const EXAMPLES: &str = "\
Examples:
  profiler mark start fit --attr epoch=3
  profiler mark end fit --status error
  profiler mark phase compile 3.2
  profiler mark gauge peak_memory 1073741824 --unit bytes

Other languages need no library: send one JSON object per datagram to the Unix
socket in $PROFILER_SOCKET, which `profiler run -- COMMAND` sets; without the
variable, send nothing. At most 8 KiB, for example
  {\"op\": \"start\", \"name\": \"fit\", \"id\": 7, \"attrs\": {\"epoch\": 3}}

  op          required fields      meaning
  start       name                 a region starts
  end                              the innermost region with this id or name ends
  event       name                 an event without duration
  phase       name, seconds        a region of this length ends now
  gauge       name, value          the current value of a quantity, in `unit`
  Optional: id, parent (id of the enclosing region), group, kind, status (finished,
  error), attrs (object), used, generated, tags (lists), pid, dropped

See `profiler man mark`, or `man profiler-mark` if the pages are installed.";

/// Arguments of `profiler mark`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    op: Operation,
    /// Exit with 3 if no profiler receives the mark
    #[arg(long, global = true)]
    strict: bool,
    /// Process that the mark belongs to [default: the parent of this command, such as the shell]
    #[arg(
        long,
        global = true,
        value_name = "PID",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pid: Option<u32>,
    /// Socket of the profiler; set in the environment of commands that it starts
    #[arg(long, global = true, env = VARIABLE, value_hint = ValueHint::FilePath)]
    socket: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Operation {
    /// Start a region
    Start {
        /// Name of the region
        name: String,
        #[command(flatten)]
        details: Details,
    },
    /// End the innermost open region, or the one with this name or --id
    End {
        /// Name of the region
        name: Option<String>,
        /// Result: finished, error
        #[arg(long, default_value = "finished")]
        status: String,
        #[command(flatten)]
        details: Details,
    },
    /// Record an event
    Event {
        /// Name of the event
        name: String,
        #[command(flatten)]
        details: Details,
    },
    /// Record a region that ends now and took this many seconds
    Phase {
        /// Name of the region
        name: String,
        /// Duration in seconds: 3.2
        seconds: f64,
        /// Result: finished, error
        #[arg(long, default_value = "finished")]
        status: String,
        #[command(flatten)]
        details: Details,
    },
    /// Record the current value of a quantity
    Gauge {
        /// Name of the gauge
        name: String,
        /// The value
        #[arg(allow_negative_numbers = true)]
        value: f64,
        /// Unit of the value: bytes, s, 1 for a count
        #[arg(long)]
        unit: Option<String>,
        #[command(flatten)]
        details: Details,
    },
}

#[derive(Args, Debug)]
struct Details {
    /// Identifier of the region, to distinguish open regions of one name
    #[arg(long)]
    id: Option<String>,
    /// --id of the enclosing region
    #[arg(long, value_name = "ID")]
    parent: Option<String>,
    /// Group that the region belongs to, such as a training run
    #[arg(long)]
    group: Option<String>,
    /// Kind of region or event, in your terms: epoch, checkpoint
    #[arg(long)]
    kind: Option<String>,
    /// Attribute, such as epoch=3; a JSON value keeps its type; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = attribute)]
    attr: Vec<(String, Value)>,
    /// Input that was read, such as a file; repeatable
    #[arg(long, value_name = "THING")]
    used: Vec<String>,
    /// Output that was produced; repeatable
    #[arg(long, value_name = "THING")]
    generated: Vec<String>,
    /// Keyword; repeatable
    #[arg(long)]
    tag: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("expected NAME=VALUE")]
struct NotAnAttribute;

fn attribute(text: &str) -> Result<(String, Value), NotAnAttribute> {
    let (name, value) = text.split_once('=').ok_or(NotAnAttribute)?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    Ok((name.to_owned(), value))
}

impl Operation {
    /// Name in the grammar, details, and the fields that only this operation has.
    fn parts(&self) -> (&'static str, &Details, Value) {
        match self {
            Self::Start { name, details } => ("start", details, json!({"name": name})),
            Self::End {
                name,
                status,
                details,
            } => ("end", details, json!({"name": name, "status": status})),
            Self::Event { name, details } => ("event", details, json!({"name": name})),
            Self::Phase {
                name,
                seconds,
                status,
                details,
            } => (
                "phase",
                details,
                json!({"name": name, "seconds": seconds, "status": status}),
            ),
            Self::Gauge {
                name,
                value,
                unit,
                details,
            } => (
                "gauge",
                details,
                json!({"name": name, "value": value, "unit": unit}),
            ),
        }
    }
}

impl Arguments {
    fn mark(&self) -> Value {
        let (op, details, rest) = self.op.parts();
        let list = |things: &[String]| (!things.is_empty()).then(|| json!(things));
        let attributes: Map<_, _> = details.attr.iter().cloned().collect();
        let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
        let mut mark = json!({
            "op": op,
            "id": details.id,
            "parent": details.parent,
            "group": details.group,
            "kind": details.kind,
            "attrs": attributes,
            "used": list(&details.used),
            "generated": list(&details.generated),
            "tags": list(&details.tag),
            "pid": self.pid.map_or(json!(parent), |pid| json!(pid)),
        });
        if let (Value::Object(mark), Value::Object(rest)) = (&mut mark, rest) {
            mark.extend(rest);
            mark.retain(|_, value| !value.is_null());
        }
        mark
    }

    /// Sends the mark and returns the exit code. Without `--strict` it is 0 even if no profiler
    /// receives the mark, so that a script does not fail because it is not profiled.
    ///
    /// # Errors
    ///
    /// When the mark is too large or, with `--strict`, when no profiler receives it.
    pub fn run(&self) -> Result<u8, Failure> {
        let mark = self.mark().to_string();
        if mark.len() > MAX_BYTES {
            let message = format!(
                "the mark has {} bytes; the limit is {MAX_BYTES}",
                mark.len()
            );
            return Err(Failure::new(Reason::Usage, message));
        }
        let why = match self.socket.clone().map(OsString::from) {
            None => format!("{VARIABLE} is not set: this process is not profiled"),
            Some(socket) => match send(&socket, mark.as_bytes()) {
                Ok(()) => return Ok(0),
                Err(error) => format!("{}: {}", socket.to_string_lossy(), reason(&error)),
            },
        };
        if self.strict {
            return Err(Failure::new(Reason::Target, format!("no mark: {why}")));
        }
        report!("profiler: no mark: {why}");
        Ok(0)
    }
}

fn send(socket: &OsString, mark: &[u8]) -> io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    // A script must not wait for a profiler.
    sender.set_nonblocking(true)?;
    sender.send_to(mark, socket).map(drop)
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "the profiler has ended".to_owned()
        }
        io::ErrorKind::WouldBlock => "the profiler is busy; the mark is dropped".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "only users of the target may send marks (permission denied)".to_owned()
        }
        _ => error.to_string(),
    }
}

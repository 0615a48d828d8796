//! `profiler mark`: a mark from a shell.

use std::{ffi::OsString, io, os::unix::net::UnixDatagram, path::PathBuf};

use clap::{Args, Subcommand, ValueHint};
use serde_json::{Map, Value, json};

use crate::{
    failure::{Failure, Reason},
    marks::{MAX_BYTES, VARIABLE},
    report,
};

/// Arguments of `profiler mark`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  profiler mark start fit --attr epoch=3\n  profiler mark end fit --status error\n  profiler mark phase compile 3.2\n  profiler mark gauge peak_memory 1073741824 --unit bytes\n\nThe grammar, and other languages: docs/regions.md"
)]
pub struct Arguments {
    #[command(subcommand)]
    op: What,
    /// Fail (exit code 3) if nobody takes the mark
    #[arg(long, global = true)]
    strict: bool,
    /// The process that the mark is of [default: the one that called]
    #[arg(long, global = true, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// Socket of the profiler, set in the environment of a command that it has started
    #[arg(long, global = true, env = VARIABLE, value_hint = ValueHint::FilePath)]
    socket: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A region begins
    Start {
        /// Of the region
        name: String,
        #[command(flatten)]
        more: More,
    },
    /// The innermost region ends, or the one with this name or --id
    End {
        /// Of the region
        name: Option<String>,
        /// How it ended: finished, error
        #[arg(long, default_value = "finished")]
        status: String,
        #[command(flatten)]
        more: More,
    },
    /// Something happens now
    Event {
        /// Of the event
        name: String,
        #[command(flatten)]
        more: More,
    },
    /// A region that took so many seconds ends now
    Phase {
        /// Of the region
        name: String,
        /// Its length
        seconds: f64,
        /// How it ended: finished, error
        #[arg(long, default_value = "finished")]
        status: String,
        #[command(flatten)]
        more: More,
    },
    /// A value of now
    Gauge {
        /// Of the gauge
        name: String,
        /// Its value
        #[arg(allow_negative_numbers = true)]
        value: f64,
        /// Of the value: bytes, 1, …
        #[arg(long)]
        unit: Option<String>,
        #[command(flatten)]
        more: More,
    },
}

#[derive(Args, Debug)]
struct More {
    /// Identifies the region among those that are open
    #[arg(long)]
    id: Option<String>,
    /// --id of the region that it is part of
    #[arg(long, value_name = "ID")]
    parent: Option<String>,
    /// Regions that belong together
    #[arg(long)]
    group: Option<String>,
    /// Kind of thing, in your words
    #[arg(long)]
    kind: Option<String>,
    /// An attribute; a value that is JSON is taken as such; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = attribute)]
    attr: Vec<(String, Value)>,
    /// What was read; repeatable
    #[arg(long, value_name = "THING")]
    used: Vec<String>,
    /// What was made; repeatable
    #[arg(long, value_name = "THING")]
    generated: Vec<String>,
    /// A word; repeatable
    #[arg(long)]
    tag: Vec<String>,
}

fn attribute(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is expected")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    Ok((name.to_owned(), value))
}

impl Arguments {
    fn mark(&self) -> Value {
        let (op, more, rest) = match &self.op {
            What::Start { name, more } => ("start", more, json!({"name": name})),
            What::End { name, status, more } => {
                ("end", more, json!({"name": name, "status": status}))
            }
            What::Event { name, more } => ("event", more, json!({"name": name})),
            What::Phase {
                name,
                seconds,
                status,
                more,
            } => (
                "phase",
                more,
                json!({"name": name, "seconds": seconds, "status": status}),
            ),
            What::Gauge {
                name,
                value,
                unit,
                more,
            } => (
                "gauge",
                more,
                json!({"name": name, "value": value, "unit": unit}),
            ),
        };
        let list = |things: &[String]| (!things.is_empty()).then(|| json!(things));
        let attributes: Map<_, _> = more.attr.iter().cloned().collect();
        let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
        let mut mark = json!({
            "op": op,
            "id": more.id,
            "parent": more.parent,
            "group": more.group,
            "kind": more.kind,
            "attrs": attributes,
            "used": list(&more.used),
            "generated": list(&more.generated),
            "tags": list(&more.tag),
            "pid": self.pid.map_or(json!(parent), |pid| json!(pid)),
        });
        if let (Value::Object(mark), Value::Object(rest)) = (&mut mark, rest) {
            mark.extend(rest);
            mark.retain(|_, value| !value.is_null());
        }
        mark
    }

    /// Sends the mark. That nobody takes it is no failure of the script that marks, unless it wants it to be.
    ///
    /// # Errors
    ///
    /// When the mark is too large; with `--strict`, when nobody took it.
    pub fn send(&self) -> Result<u8, Failure> {
        let mark = self.mark().to_string();
        if mark.len() > MAX_BYTES {
            let message = format!(
                "a mark of {} bytes: at most {MAX_BYTES} are taken",
                mark.len()
            );
            return Err(Failure::new(Reason::Usage, message));
        }
        let why = match self.socket.clone().map(OsString::from) {
            None => format!("{VARIABLE} is not set: nobody profiles this"),
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
    // Nobody waits for a profiler.
    sender.set_nonblocking(true)?;
    sender.send_to(mark, socket).map(drop)
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "the profiler has ended".to_owned()
        }
        io::ErrorKind::WouldBlock => "the profiler is busy, the mark is dropped".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "only the target's users may send marks (permission denied)".to_owned()
        }
        _ => error.to_string(),
    }
}

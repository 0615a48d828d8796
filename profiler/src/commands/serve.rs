//! `profiler serve`: profiles for the users of the node who ask.

use std::{
    ffi::OsString,
    io::IsTerminal as _,
    os::{fd::AsFd as _, unix::net::UnixStream},
    path::PathBuf,
    process::Command,
    sync::Arc,
};

use clap::{Args, ValueHint};

use super::run;
use crate::{
    config::{Config, Target},
    failure::{Failure, Reason},
    job, privileges,
    service::{
        self,
        connection::{Client, refuse},
        listener::{self, Quota},
        protocol::{Request, RequestedTarget},
    },
    session,
};

/// Arguments of `profiler serve`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Path of the socket
    #[arg(long, default_value = service::SOCKET, value_hint = ValueHint::FilePath)]
    socket: PathBuf,
    /// Profiles at the same time
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_sessions: usize,
    /// Profiles at the same time for each user
    #[arg(long, value_name = "N", default_value_t = 4)]
    max_sessions_per_user: usize,
    /// Profile for the client at the standard input
    #[arg(long, hide = true)]
    connection: bool,
}

impl Arguments {
    /// Runs the subcommand and returns the exit code.
    ///
    /// # Errors
    ///
    /// When the service cannot start.
    pub fn run(self) -> Result<u8, Failure> {
        if self.connection {
            return serve_client();
        }
        if !privileges::may_load_bpf() {
            let message = "the service needs CAP_BPF and CAP_PERFMON: start it as root";
            return Err(Failure::new(Reason::Privilege, message));
        }
        let quota = Quota {
            sessions: self.max_sessions,
            sessions_per_user: self.max_sessions_per_user,
        };
        listener::listen(&self.socket, quota, &|| {
            let mut command = Command::new("/proc/self/exe");
            command.args(["serve", "--connection"]);
            command
        })?;
        Ok(0)
    }
}

/// Profiles for the client at the standard input.
fn serve_client() -> Result<u8, Failure> {
    if std::io::stdin().is_terminal() {
        return Err(Failure::new(
            Reason::Usage,
            "--connection is for the service itself",
        ));
    }
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = UnixStream::from(socket.map_err(Failure::internal)?);
    let client = Arc::new(Client::accept(socket)?);
    let ended = config(&client).and_then(|config| session::run(&config, Vec::new()));
    ended.inspect_err(|failure| refuse(&client.socket, failure))
}

fn config(client: &Arc<Client>) -> Result<Config, Failure> {
    let request = &client.request;
    let target = match &request.target {
        // They come when the socket for marks is open.
        RequestedTarget::Processes => Target::Pids(Vec::new()),
        RequestedTarget::Job {
            scheduler,
            id,
            step,
        } => Target::Job(job::Request {
            id: Some(id.clone()),
            scheduler: Some(*scheduler),
            step: step.clone(),
            wait: run::WAIT,
        }),
    };
    let mut config = Config::new(target, run::settings(words(request))?)?;
    config.client = Some(client.clone());
    Ok(config)
}

/// The options of `profiler run` for a request. Each value is one word, whatever it contains.
fn words(request: &Request) -> Vec<OsString> {
    let mut words = vec![
        "--quiet".into(),
        format!("--interval={}ms", request.interval_ns / 1_000_000),
    ];
    let values = [
        ("source", &request.source),
        ("groups", &request.groups),
        ("events", &request.events),
        ("hostname", &request.hostname),
    ];
    for (option, value) in values {
        words.extend(value.as_ref().map(|value| format!("--{option}={value}")));
    }
    for (option, given) in [("threads", request.threads), ("strict", request.strict)] {
        words.extend(given.then(|| format!("--{option}")));
    }
    words.into_iter().map(Into::into).collect()
}

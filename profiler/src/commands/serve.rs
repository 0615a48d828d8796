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
use serde::Deserialize;

use super::run;
use crate::{
    config::{
        Config, Target,
        file::{Configuration, SERVE},
    },
    failure::{Failure, Reason},
    job, privileges,
    service::{
        self,
        connection::{Client, refuse},
        listener,
        protocol::{Request, RequestedTarget},
        users::Quota,
    },
    session,
    support::{host_name::HostName, log::harmless_message, resource_limits, service_manager},
};

/// Arguments of `profiler serve`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Path of the socket
    #[arg(long, default_value = service::SOCKET, value_hint = ValueHint::FilePath)]
    socket: PathBuf,
    /// Limit of concurrent profiles [default: 64]
    #[arg(long, value_name = "N")]
    max_sessions: Option<usize>,
    /// Limit of concurrent profiles per user [default: 4]
    #[arg(long, value_name = "N")]
    max_sessions_per_user: Option<usize>,
    /// File with the table [serve]: these limits, with `_` for `-` [default: the files that
    /// `profiler config` reads]
    ///
    /// SIGHUP rereads the file. The command line takes precedence over it.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
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
        // Those of the processes for clients, too.
        resource_limits::raise(false);
        resource_limits::check_descriptors(DESCRIPTORS)?;
        resource_limits::check_memory()?;
        listener::listen(&self.socket, &|| self.quota(), &|request| {
            let mut command = Command::new("/proc/self/exe");
            command.args(["serve", "--connection"]);
            // Other users cannot read it there.
            command.env(REQUEST, serde_json::to_string(request).unwrap_or_default());
            // The service manager waits for the listener.
            command.env_remove(service_manager::SOCKET);
            command
        })?;
        Ok(0)
    }

    /// The limits of the command line, then those of the configuration.
    fn quota(&self) -> Result<Quota, Failure> {
        let file: Limits = Configuration::read(self.config.as_deref())?.table(SERVE)?;
        Ok(Quota {
            sessions: self.max_sessions.or(file.max_sessions).unwrap_or(64),
            sessions_per_user: self
                .max_sessions_per_user
                .or(file.max_sessions_per_user)
                .unwrap_or(4),
        })
    }
}

/// The table `[serve]` of the configuration.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Limits {
    max_sessions: Option<usize>,
    max_sessions_per_user: Option<usize>,
}

/// Checks the table.
///
/// # Errors
///
/// When it has an unknown entry or an invalid value.
pub fn check(configuration: &Configuration) -> Result<(), Failure> {
    configuration.table::<Limits>(SERVE).map(drop)
}

/// Descriptors with which a process for a client can profile, and the service can serve the usual number of
/// clients.
const DESCRIPTORS: u64 = 256;

/// Variable with the request of the client at the standard input, as JSON.
const REQUEST: &str = "PROFILER_SERVE_REQUEST";

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
    let request = std::env::var(REQUEST).map_err(Failure::internal)?;
    let request = serde_json::from_str(&request).map_err(Failure::internal)?;
    let client = Arc::new(Client::new(socket, request)?);
    let ended = config(&client).and_then(|config| session::run(&config, Vec::new(), None));
    ended.map(|ended| ended.exit_code).map_err(|failure| {
        refuse(&client.socket, &failure);
        // One line of the log, whatever the request has in it.
        Failure::new(failure.reason, harmless_message(&failure.message))
    })
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
        format!("--interval={}us", request.interval_ns / 1000),
    ];
    let hostname = request.hostname.as_ref().map(HostName::to_string);
    let values = [
        ("source", &request.source),
        ("groups", &request.groups),
        ("events", &request.events),
        ("hostname", &hostname),
    ];
    for (option, value) in values {
        words.extend(value.as_ref().map(|value| format!("--{option}={value}")));
    }
    for (option, given) in [("threads", request.threads), ("strict", request.strict)] {
        words.extend(given.then(|| format!("--{option}")));
    }
    words.into_iter().map(Into::into).collect()
}

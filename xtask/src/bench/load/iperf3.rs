//! iperf3: server and client.

use std::{
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, TcpListener},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::shell;

#[derive(clap::Args)]
pub struct Args {
    /// Amount to send
    #[arg(long)]
    mib: u64,
}

/// Duration of the transfer in s.
pub fn run(args: &Args) -> Result<f64> {
    // A free port; it is unlikely that another process takes it meanwhile.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port()
        .to_string();
    let mut server = serve(&port)?;
    let sent = send(args.mib, &port);
    // The server ends after one client, but not without one.
    if sent.is_err() {
        let _ = server.kill();
    }
    server.wait()?;
    sent
}

fn serve(port: &str) -> Result<Child> {
    let mut server = Command::new("iperf3")
        .args(["--server", "--one-off", "--forceflush", "--bind=127.0.0.1"])
        .args(["--port", port])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting `iperf3`")?;
    let stdout = server.stdout.take().context("no pipe from iperf3")?;
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let is_ready = lines.any(|line| line.contains("listening"));
    // The server keeps printing, and would be killed by SIGPIPE on a closed pipe.
    std::thread::spawn(move || lines.for_each(drop));
    if !is_ready {
        let status = server.wait()?;
        ensure!(status.success(), "`iperf3 --server` failed ({status})");
    }
    Ok(server)
}

fn send(mib: u64, port: &str) -> Result<f64> {
    let mut client = Command::new("iperf3");
    client
        .args(["--client", "127.0.0.1", "--port", port, "--json"])
        .arg(format!("--bytes={mib}M"));
    let report: Value = serde_json::from_str(&shell::stdout(&mut client)?)
        .context("reading the report of iperf3")?;
    report["end"]["sum_sent"]["seconds"]
        .as_f64()
        .with_context(|| format!("iperf3 reported no time: {}", report["error"]))
}

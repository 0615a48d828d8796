//! iperf3, both ends.

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
    /// How much to send
    #[arg(long)]
    mib: u64,
}

/// Seconds that it took to send that much.
pub fn run(args: &Args) -> Result<f64> {
    // The kernel knows a free port; nobody else asks for it in the moment between.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port()
        .to_string();
    let mut server = serve(&port)?;
    let sent = send(args.mib, &port);
    // It ends by itself after one client, but not without any.
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
    let listens = lines.any(|line| line.contains("listening"));
    // It goes on printing: into a closed pipe that would be its end.
    std::thread::spawn(move || lines.for_each(drop));
    if !listens {
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
        .with_context(|| format!("iperf3 told no time: {}", report["error"]))
}

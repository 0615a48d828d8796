//! Loads without a suitable packaged program: `xtask load …` runs one and prints its duration in s.
//!
//! All processes of a load are descendants of this one, so that they are in the target.

mod fio;
mod iperf3;
mod ping_pong;
mod processes;
mod tcp;

use std::process::Child;

use anyhow::{Result, ensure};
use clap::Subcommand;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    load: Load,
}

#[derive(Subcommand)]
enum Load {
    /// Round trips over loopback
    Tcp(tcp::Args),
    /// Round trips over UDP or a unix socket
    PingPong(ping_pong::Args),
    /// One-way traffic over loopback
    Iperf3(iperf3::Args),
    /// Reads and writes with fio
    Fio(fio::Args),
    /// Processes that start and end
    Processes(processes::Args),
}

pub fn serve(args: &Args) -> Result<()> {
    let seconds = match &args.load {
        // The far end of a ping-pong does not measure.
        Load::Tcp(args) => tcp::run(args)?,
        Load::PingPong(args) => ping_pong::run(args)?,
        Load::Iperf3(args) => Some(iperf3::run(args)?),
        Load::Fio(args) => Some(fio::run(args)?),
        Load::Processes(args) => Some(processes::run(args)?),
    };
    if let Some(seconds) = seconds {
        println!("{seconds:.6}");
    }
    Ok(())
}

/// Waits for the far end, and returns the duration at this end.
fn finish(mut far_end: Child, asked: Result<f64>) -> Result<f64> {
    // After an error, the far end would wait forever.
    if asked.is_err() {
        let _ = far_end.kill();
    }
    let status = far_end.wait()?;
    let seconds = asked?;
    ensure!(status.success(), "the far end failed ({status})");
    Ok(seconds)
}

//! Loads without a suitable packaged program: `xtask load …` runs one and prints its duration in s.
//!
//! All processes of a load are descendants of this one, so that they are in the target.

mod fio;
mod iperf3;
mod processes;
mod tcp;

use anyhow::Result;
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
    /// One-way traffic over loopback
    Iperf3(iperf3::Args),
    /// Reads and writes with fio
    Fio(fio::Args),
    /// Processes that start and end
    Processes(processes::Args),
}

pub fn serve(args: &Args) -> Result<()> {
    let seconds = match &args.load {
        Load::Tcp(args) => match tcp::run(args)? {
            Some(seconds) => seconds,
            // The far end does not measure.
            None => return Ok(()),
        },
        Load::Iperf3(args) => iperf3::run(args)?,
        Load::Fio(args) => fio::run(args)?,
        Load::Processes(args) => processes::run(args)?,
    };
    println!("{seconds:.6}");
    Ok(())
}

//! A sequence of processes that end immediately.

use std::{process::Command, time::Instant};

use anyhow::Result;

use crate::shell;

#[derive(clap::Args)]
pub struct Args {
    /// Number of processes
    #[arg(long)]
    count: u32,
}

pub fn run(args: &Args) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..args.count {
        shell::run(&mut Command::new("true"))?;
    }
    Ok(started.elapsed().as_secs_f64())
}

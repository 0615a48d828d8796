//! Builds, runs, tests and measures the project: `cargo xtask help`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod apt;
mod bpf;
mod linker;
mod shell;
mod toolchain;
mod workspace;

use workspace::Workspace;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Builds, runs, tests and measures the project"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the BPF object, and with --release or --debug the controller too
    Build(bpf::Args),
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::find()?;
    match command {
        Command::Build(args) => bpf::run(&workspace, &args).map(|()| ExitCode::SUCCESS),
    }
}

//! Builds, runs, tests and measures the project: `cargo xtask help`.

use std::{env, ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};

mod apt;
mod arch;
mod bench;
mod bpf;
mod calibrate;
mod cargo_tool;
mod cross;
mod dist;
mod docs;
mod doctor;
mod fleet;
mod linker;
mod perfevents;
mod preparation;
mod python;
mod run;
mod shell;
mod test;
mod toolchain;
mod vm;
mod words;
mod workspace;

use workspace::Workspace;

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask",
    about = "Builds, runs, tests and measures the project"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the BPF object, and with --release or --debug the profiler too
    Build(bpf::Args),
    /// Build what is missing and run `profiler run` with all following arguments
    #[command(disable_help_flag = true)]
    Run {
        /// For example `--pid 4711`, or `-- COMMAND ARGS…`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Run the tests: those of CI, all, or the given tiers
    Test(test::Args),
    /// Run one test and remove what it leaves
    #[command(hide = true)]
    Guard(test::guard::Args),
    /// Check spelling and terms; `test lint` includes it
    Lint,
    /// Run the kernel tests on other kernels, each in a virtual machine
    Vm(vm::Args),
    /// List installed and missing prerequisites
    Doctor,
    /// Generate the reference pages under docs/
    Docs(docs::Args),
    /// Make packages: Debian, RPM, an archive, Python wheels, an image, crates
    Dist(dist::Args),
    /// Make the Python wheels: the package alone, and with the program
    Wheel(dist::WheelArgs),
    /// Publish the crates on crates.io, with the BPF objects
    Publish(dist::crates::Args),
    /// Measure the overhead of the profiler
    Bench(bench::Args),
    /// Write the dataset of many nodes, for measurements of queries
    Fleet(fleet::Args),
    /// Check the event tables
    Perfevents(perfevents::Args),
    /// Compare this CPU's counters and event tables with programs of known work
    Calibrate(calibrate::Args),
    /// Sleeping processes, the load for measurements of the profiler
    #[command(hide = true)]
    Sleepers(bench::sleepers::Args),
    /// A workload that is timed with and without the profiler
    #[command(hide = true)]
    Load(bench::load::Args),
}

fn main() -> ExitCode {
    match dispatch(parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// clap would consume the first `--`, which belongs to `profiler run`.
fn parse() -> Command {
    let mut args = env::args_os().skip(1);
    if args.next().is_some_and(|first| first == "run") {
        return Command::Run {
            args: args.collect(),
        };
    }
    Cli::parse().command
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::find;
    match command {
        Command::Build(args) => bpf::run(&workspace()?, &args)?,
        Command::Run { args } => run::run(&workspace()?, &args)?,
        Command::Test(args) => return Ok(test::run(&workspace()?, &args)),
        Command::Guard(args) => return test::guard::run(&args),
        Command::Lint => words::run(&workspace()?)?,
        Command::Vm(args) => vm::run(&workspace()?, &args)?,
        Command::Doctor => return Ok(doctor::run(&workspace()?)),
        Command::Docs(args) => docs::run(&workspace()?, &args)?,
        Command::Dist(args) => dist::run(&workspace()?, &args)?,
        Command::Wheel(args) => dist::run(&workspace()?, &args.into())?,
        Command::Publish(args) => dist::crates::publish(&workspace()?, &args)?,
        Command::Bench(args) => bench::run(&workspace()?, &args)?,
        Command::Fleet(args) => fleet::run(&workspace()?, &args)?,
        Command::Perfevents(args) => perfevents::run(&args)?,
        Command::Calibrate(args) => calibrate::run(&workspace()?, &args)?,
        Command::Load(args) => bench::load::serve(&args)?,
        Command::Sleepers(args) => bench::sleepers::serve(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

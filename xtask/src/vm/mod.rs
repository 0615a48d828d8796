//! `cargo xtask vm`: the kernel tests on kernels other than the one that runs.

mod cpio;
mod guests;
mod hooks;
mod initramfs;
mod kernel;
mod modules;
mod page;
mod programs;
pub mod qemu;
mod tree;
mod verdict;

use std::{path::PathBuf, time::Duration};

use anyhow::Result;

use self::{guests::Guests, qemu::Machine};
use crate::workspace::Workspace;

/// The kernels that every change is tested with, besides the one that runs.
const KERNELS: &[&str] = &["6.1", "6.12"];
/// The tests take a minute or two; emulation on a busy machine several times that.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// `cargo xtask vm`
#[derive(clap::Args)]
pub struct Args {
    /// Versions of Debian's cloud kernels (6.1), or files of kernel images
    #[arg(required = true, value_name = "KERNEL")]
    kernels: Vec<String>,
    /// Modules of the kernels given as files: their /lib/modules/RELEASE
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Memory of the machine, as qemu takes it
    #[arg(long, default_value = Machine::MEMORY)]
    memory: String,
    /// CPUs of the machine
    #[arg(long, default_value_t = Machine::CPUS, value_parser = clap::value_parser!(u32).range(1..))]
    cpus: u32,
    /// How qemu runs it: tcg (emulation) works everywhere, kvm where /dev/kvm does
    #[arg(long, default_value = Machine::ACCELERATOR)]
    accelerator: String,
    /// Seconds after which a guest is taken to hang
    #[arg(long, default_value_t = TIMEOUT.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Write what was found, here and in the guests, to docs/kernels.md
    #[arg(long, conflicts_with = "filter")]
    write_table: bool,
    /// Passed to the tests: names, for example
    #[arg(last = true)]
    filter: Vec<String>,
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let machine = Machine {
        memory: args.memory.clone(),
        cpus: args.cpus,
        accelerator: args.accelerator.clone(),
        timeout: Duration::from_secs(args.timeout),
    };
    let names: Vec<&str> = args.kernels.iter().map(String::as_str).collect();
    let guests = Guests {
        machine,
        modules: args.modules.as_deref(),
        filter: &args.filter,
    };
    let session = guests.test(workspace, &names)?;
    let result = session.result();
    if args.write_table {
        page::write(workspace, &session.hooks()?)?;
    }
    result.map(drop)
}

/// The tier `kernels` of `cargo xtask test`.
pub fn test(workspace: &Workspace, filter: &[String]) -> Result<String> {
    let guests = Guests {
        machine: Machine {
            memory: Machine::MEMORY.into(),
            cpus: Machine::CPUS,
            accelerator: Machine::ACCELERATOR.into(),
            timeout: TIMEOUT,
        },
        modules: None,
        filter,
    };
    let session = guests.test(workspace, KERNELS)?;
    let tests = session.result()?;
    page::check(workspace, &session.hooks()?)?;
    Ok(format!("{tests} tests on {}", KERNELS.join(", ")))
}

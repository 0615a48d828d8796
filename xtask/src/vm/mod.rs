//! `cargo xtask vm`: the kernel tests on other kernels, in virtual machines.

mod drivers;
mod guests;
mod hooks;
mod initramfs;
mod kernel;
mod kernels_page;
mod modules;
mod programs;
pub mod qemu;
pub mod system;
mod tree;
mod userland;
mod verdict;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};

use self::{
    guests::{Guests, Hardware},
    qemu::Machine,
};
use crate::{arch::Arch, workspace::Workspace};

/// Kernels of the tier `kernels`.
const KERNELS: &[&str] = &["6.1", "6.12"];
/// Architecture and kernel of the guest with a PMU.
const WITH_COUNTERS: (&str, &str) = ("aarch64", "6.12");
/// Tests that need a PMU.
pub const NEED_COUNTERS: &str = "pmu::";
/// Tests that need a second CPU.
const NEED_CPUS: &str = "two_cpus::";
/// Tests that take a CPU away, and so need a guest with two.
pub const NEED_HOTPLUG: &str = "hotplug::";
/// Kernel of the tier `devices`.
const WITH_DEVICES: &str = "6.1";
/// Tests that need simulated devices.
pub const NEED_DEVICES: &str = "devices::";
/// Tests that need a complete system.
pub const NEED_SYSTEM: &str = "system::";
/// The tests take a minute or two, several times more in emulation on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// `cargo xtask vm`
#[derive(clap::Args)]
pub struct Args {
    /// Versions of Debian's cloud kernels, such as 6.1, or paths of kernel images
    #[arg(required_unless_present = "system", value_name = "KERNEL")]
    kernels: Vec<String>,
    /// Architecture of the machine [default: this machine's]; the emulated CPU of aarch64 has a PMU
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(Arch::names()))]
    arch: Option<String>,
    /// Boot Debian's standard kernel with modules that simulate devices, and run the tests that
    /// need them
    #[arg(long, conflicts_with_all = ["modules", "cpus", "write_table"])]
    devices: bool,
    /// Boot a complete Debian with systemd and cgroup v2, and run the tests that need it
    #[arg(long, conflicts_with_all = ["kernels", "arch", "devices", "modules", "write_table"])]
    system: bool,
    /// Modules of kernels given as files: their /lib/modules/RELEASE
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Memory of the machine, in QEMU's syntax
    #[arg(long, default_value = Machine::MEMORY)]
    memory: String,
    /// CPUs of the machine
    #[arg(long, default_value_t = Machine::CPUS, value_parser = clap::value_parser!(u32).range(1..))]
    cpus: u32,
    /// QEMU's accelerator: tcg (emulation) works on every host, kvm requires /dev/kvm
    #[arg(long, default_value = Machine::ACCELERATOR)]
    accelerator: String,
    /// Timeout of a guest in seconds
    #[arg(long, default_value_t = TIMEOUT.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Write the hooks found here and in the guests to docs/kernels.md
    #[arg(long, conflicts_with_all = ["filter", "arch"])]
    write_table: bool,
    /// Filters, such as names of tests
    #[arg(last = true)]
    filter: Vec<String>,
}

pub fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let arch = args.arch.as_deref().and_then(Arch::parse);
    let machine = Machine {
        memory: args.memory.clone(),
        cpus: if args.devices { 1 } else { args.cpus },
        counted: args.devices,
        disk: None,
        accelerator: args.accelerator.clone(),
        timeout: Duration::from_secs(args.timeout),
    };
    if args.system {
        return system::run(workspace, machine, &args.filter).map(drop);
    }
    let names: Vec<&str> = args.kernels.iter().map(String::as_str).collect();
    let (hardware, default) = if args.devices {
        (Hardware::Simulated, vec![NEED_DEVICES.to_owned()])
    } else {
        (Hardware::Common, Vec::new())
    };
    let guests = Guests {
        arch: arch.map_or_else(Arch::host, Ok)?,
        machine,
        hardware,
        modules: args.modules.as_deref(),
        filter: if args.filter.is_empty() {
            &default
        } else {
            &args.filter
        },
    };
    let session = guests.test(workspace, &names)?;
    let result = session.result();
    if args.write_table {
        kernels_page::write(workspace, &session.hooks()?)?;
    }
    result.map(drop)
}

/// The tier `kernels` of `cargo xtask test`.
pub fn test(workspace: &Workspace, filter: &[String]) -> Result<String> {
    let guests = Guests {
        arch: Arch::host()?,
        machine: Machine::new(Machine::CPUS, TIMEOUT),
        hardware: Hardware::Common,
        modules: None,
        filter,
    };
    let session = guests.test(workspace, KERNELS)?;
    let tests = session.result()?;
    kernels_page::check(workspace, &session.hooks()?)?;
    Ok(format!("{tests} tests on {}", KERNELS.join(", ")))
}

/// The tier `devices` of `cargo xtask test`.
pub fn devices(workspace: &Workspace, filter: &[String]) -> Result<String> {
    let all = [NEED_DEVICES.to_owned()];
    let guests = Guests {
        arch: Arch::host()?,
        machine: Machine::counted(TIMEOUT),
        hardware: Hardware::Simulated,
        modules: None,
        filter: if filter.is_empty() { &all } else { filter },
    };
    let tests = guests.test(workspace, &[WITH_DEVICES])?.result()?;
    Ok(format!("{tests} tests on {WITH_DEVICES}"))
}

/// The tier `counters` without a PMU: all tests on an emulated machine with one.
pub fn counters(workspace: &Workspace, filter: &[String]) -> Result<String> {
    let (arch, kernel) = WITH_COUNTERS;
    let arch = Arch::parse(arch).with_context(|| format!("unknown architecture {arch}"))?;
    let guests = Guests {
        arch,
        // With several CPUs, QEMU adds the instructions of all CPUs to each.
        machine: Machine::new(1, 2 * TIMEOUT),
        hardware: Hardware::Common,
        modules: None,
        filter,
    };
    let tests = guests.test(workspace, &[kernel])?.result()?;
    Ok(format!("{tests} tests on {kernel} ({})", arch.name))
}

//! Boots a guest and reads its serial console.

use std::{
    io::{BufRead as _, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::{kernel::Kernel, verdict::End};
use crate::{apt, arch::Arch, shell};

/// A virtual machine.
pub struct Machine {
    pub memory: String,
    pub cpus: u32,
    pub accelerator: String,
    /// Derive the guest's time from its instructions (1 ns each), so that other load on the host
    /// does not affect it. Requires a single CPU.
    pub counted: bool,
    /// Disk image with a complete system. Writes of the guest are discarded.
    pub disk: Option<PathBuf>,
    pub timeout: Duration,
}

impl Machine {
    pub const MEMORY: &str = "1G";
    pub const CPUS: u32 = 2;
    /// Emulation, which works on every host. All CPUs run in one thread: with several threads, QEMU
    /// 7.2 sometimes keeps executing the breakpoint with which the kernel patches its code, and
    /// hangs.
    pub const ACCELERATOR: &str = "tcg,thread=single";

    /// The machine of the test tiers.
    pub fn new(cpus: u32, timeout: Duration) -> Self {
        Self {
            memory: Self::MEMORY.into(),
            cpus,
            accelerator: Self::ACCELERATOR.into(),
            counted: false,
            disk: None,
            timeout,
        }
    }

    /// The machine of tests that compare with time.
    pub fn counted(timeout: Duration) -> Self {
        Self {
            counted: true,
            ..Self::new(1, timeout)
        }
    }
}

/// Installs the emulator if it is missing.
pub fn obtain(arch: &Arch) -> Result<()> {
    let (program, package) = arch.qemu;
    if shell::which(program).is_some() {
        return Ok(());
    }
    let packages = [package.to_owned()];
    if !apt::available() {
        bail!("no {program}: run `{}`", apt::command(&packages));
    }
    apt::install(&packages, "boots guests with other kernels")
}

/// Output of a guest, and how it ended.
pub struct Console {
    pub lines: Vec<String>,
    pub end: End,
}

/// A running emulator, killed when it is dropped.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots a guest and prints each line as `kernel | line`.
pub fn boot(arch: &Arch, kernel: &Kernel, initramfs: &Path, machine: &Machine) -> Result<Console> {
    let (program, _) = arch.qemu;
    let mut command = Command::new(program);
    command.args(arch.machine);
    if machine.accelerator.starts_with("tcg") {
        command.args(arch.emulation);
        if machine.counted && !arch.emulation.contains(&"-icount") {
            command.args(["-icount", "shift=0,sleep=off"]);
            // The default CPU is one of AMD, which has no energy counter for the cores of a
            // package.
            command.args(["-cpu", "max,vendor=GenuineIntel"]);
        }
    }
    command
        .args(["-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-display", "none", "-serial", "stdio"])
        .args(["-accel", &machine.accelerator, "-m", &machine.memory])
        .args(["-smp", &machine.cpus.to_string()])
        .args(["-append", &command_line(arch, machine)])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(initramfs)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    if let Some(disk) = &machine.disk {
        let image = disk.display();
        let drive = format!("file={image},format=raw,if=virtio,snapshot=on,cache=unsafe");
        command.args(["-drive", &drive]);
        // Directory of the temporary file with the guest's writes.
        command.envs(disk.parent().map(|directory| ("TMPDIR", directory)));
    }
    let child = command
        .spawn()
        .with_context(|| format!("starting `{}`", shell::display(&command)))?;
    let mut guest = Guest(child);
    let stdout = guest.0.stdout.take().context("no pipe from the emulator")?;
    let (sender, receiver) = channel();
    thread::spawn(move || relay(stdout, |line| sender.send(line).is_ok()));
    let mut deadline = Instant::now() + machine.timeout;
    let mut lines = Vec::new();
    let mut end = End::PoweredOff;
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        match receiver.recv_timeout(rest) {
            Ok(line) => {
                println!("{} | {line}", kernel.name);
                lines.push(line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if end == End::TimedOut => break,
            Err(RecvTimeoutError::Timeout) => {
                end = End::TimedOut;
                guest.0.kill().context("ending the emulator")?;
                // The incomplete line, which names the hanging test, is still to be read.
                deadline = Instant::now() + Duration::from_secs(1);
            }
        }
    }
    let status = guest.0.wait().context("waiting for the emulator")?;
    if end == End::PoweredOff && !status.success() {
        bail!("`{}` failed ({status})", shell::display(&command));
    }
    Ok(Console { lines, end })
}

/// An oops causes a panic, a panic a reboot, and a reboot ends QEMU. Only errors are printed.
const CMDLINE: &str = "quiet oops=panic panic=-1 rdinit=/init";

/// Keeps systemd from printing on the console, and starts the tests.
const SYSTEM_CMDLINE: &str =
    "systemd.show_status=no systemd.getty_auto=no systemd.wants=profiler-tests.service";

fn command_line(arch: &Arch, machine: &Machine) -> String {
    let system = if machine.disk.is_some() {
        SYSTEM_CMDLINE
    } else {
        ""
    };
    format!(
        "console={} {} {CMDLINE} {system}",
        arch.console, arch.kernel_options
    )
}

fn relay(console: impl Read, mut each: impl FnMut(String) -> bool) {
    let lines = BufReader::new(console).split(b'\n');
    for line in lines.map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        // Remove the escape sequences with which firmware clears the screen.
        let line = line.trim_end_matches('\r').replace('\x1b', "");
        if !each(line) {
            return;
        }
    }
}

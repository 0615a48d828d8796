//! The machine: file systems, modules, loopback interface, kernel warnings, power off.

use std::{
    fs::{self, File},
    io::{Read as _, stdout},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::{Command, exit},
};

use rustix::{
    fs::{OFlags, sync},
    io::Result,
    mount::{MountFlags, mount},
    system::{RebootCommand, finit_module, reboot, sethostname, uname},
    termios::tcdrain,
};

use crate::verdict::Verdict;

/// The kernel gives init no PATH, and the default of the C library lacks the administrator's tools.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Source, type and mount point, in order. `/tmp` is not mounted: the root file system is in memory
/// already, and the checkout may be below `/tmp`.
const MOUNTS: &[(&str, &str, &str)] = &[
    ("proc", "proc", "/proc"),
    ("sysfs", "sysfs", "/sys"),
    ("devtmpfs", "devtmpfs", "/dev"),
    ("devpts", "devpts", "/dev/pts"),
    ("tmpfs", "tmpfs", "/dev/shm"),
    ("tmpfs", "tmpfs", "/run"),
    ("cgroup2", "cgroup2", "/sys/fs/cgroup"),
];

pub fn prepare(verdict: &mut Verdict) {
    println!("guest: Linux {}", uname().release().to_string_lossy());
    for (source, fstype, mount_point) in MOUNTS {
        let made = fs::create_dir_all(mount_point);
        let mounted = mount(*source, *mount_point, *fstype, MountFlags::empty(), None);
        if let (Err(error), _) | (Ok(()), Err(error)) = (made, mounted.map_err(Into::into)) {
            verdict.fail(&format!("mounting {mount_point}: {error}"));
        }
    }
    let _ = sethostname(b"guest");
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status();
    if !up.is_ok_and(|status| status.success()) {
        verdict.fail("`ip link set lo up` failed");
    }
    if let Err(error) = load_modules() {
        verdict.fail(&error.to_string());
    }
}

/// Loads all modules of the initramfs; continues after a failure.
pub fn load_modules() -> std::io::Result<()> {
    let mut result = Ok(());
    for module in listed("/modules", ".ko") {
        if let Err(error) = load(&module) {
            result = Err(std::io::Error::other(format!("loading {module}: {error}")));
        }
    }
    result
}

/// Paths in a directory with this suffix, sorted.
fn listed(directory: &str, suffix: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let paths = entries.filter_map(|entry| entry.ok()?.path().into_os_string().into_string().ok());
    let mut paths: Vec<String> = paths.filter(|path| path.ends_with(suffix)).collect();
    paths.sort_unstable();
    paths
}

/// Loads a module with the parameters of its `.args` file.
fn load(module: &str) -> std::io::Result<()> {
    let parameters = fs::read_to_string(Path::new(module).with_extension("args"))?;
    let parameters = std::ffi::CString::new(parameters)?;
    finit_module(File::open(module)?, &parameters, 0)?;
    Ok(())
}

/// The bits of `kernel.tainted` that a run must not set: oops and warning.
pub fn taint() -> u64 {
    const DIED: u64 = 1 << 7;
    const WARNED: u64 = 1 << 9;
    let text = fs::read_to_string("/proc/sys/kernel/tainted").unwrap_or_default();
    text.trim().parse().unwrap_or(0) & (DIED | WARNED)
}

/// Prints the kernel log from the first warning.
pub fn show_warnings() {
    const MARKERS: &[&str] = &["WARNING: ", "BUG: ", "Oops", "------------[ cut here"];
    const MAX_LINES: usize = 60;
    let lines = log();
    let is_warning = |line: &String| MARKERS.iter().any(|word| line.contains(word));
    let begin = lines.iter().position(is_warning).unwrap_or(0);
    for line in lines.iter().skip(begin).take(MAX_LINES) {
        println!("guest: {line}");
    }
}

/// The present kernel log.
fn log() -> Vec<String> {
    let log = fs::OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open("/dev/kmsg");
    let mut lines = Vec::new();
    let Ok(mut log) = log else { return lines };
    let mut record = [0; 8192];
    // One record per read; an error means that there is no further one.
    while let Ok(length @ 1..) = log.read(&mut record) {
        let text = String::from_utf8_lossy(&record[..length]);
        let text = text.split_once(';').map_or("", |(_, text)| text);
        lines.extend(text.lines().next().map(str::to_owned));
    }
    lines
}

/// Prints the PMU and its events; fails if this guest should have a PMU and has none.
pub fn show_counters(device: &str, verdict: &mut Verdict) {
    let directory = Path::new("/sys/bus/event_source/devices").join(device);
    let Ok(cpus) = fs::read_to_string(directory.join("cpus")) else {
        return verdict.fail(&format!("no counters: {} is missing", directory.display()));
    };
    let mut events = Vec::new();
    for entry in fs::read_dir(directory.join("events"))
        .into_iter()
        .flatten()
        .flatten()
    {
        events.push(entry.file_name().to_string_lossy().into_owned());
    }
    events.sort_unstable();
    println!(
        "guest: {device} on CPUs {}: {}",
        cpus.trim(),
        events.join(", ")
    );
    for line in log().iter().filter(|line| line.contains(device)) {
        println!("guest: {line}");
    }
}

/// Silences kernel messages other than panics, so that the verdict is on a line of its own.
pub fn silence() {
    let _ = fs::write("/proc/sys/kernel/printk", "1");
}

pub fn power_off() -> ! {
    let _: Result<()> = tcdrain(stdout());
    sync();
    let error = reboot(RebootCommand::PowerOff);
    println!("guest: powering off: {error:?}");
    exit(1)
}

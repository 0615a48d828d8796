//! The machine: file systems, modules, the network's loopback, the kernel's complaints, the switch.

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

use crate::tally::Tally;

/// Where tools lie: the kernel gives its first process none, and the C library's own has no administrator's tools.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What, of which kind, where, in this order. Not `/tmp`: the root is in memory already, and the project may lie there.
const MOUNTS: &[(&str, &str, &str)] = &[
    ("proc", "proc", "/proc"),
    ("sysfs", "sysfs", "/sys"),
    ("devtmpfs", "devtmpfs", "/dev"),
    ("devpts", "devpts", "/dev/pts"),
    ("tmpfs", "tmpfs", "/dev/shm"),
    ("tmpfs", "tmpfs", "/run"),
    ("cgroup2", "cgroup2", "/sys/fs/cgroup"),
];

pub fn prepare(tally: &mut Tally) {
    println!("guest: Linux {}", uname().release().to_string_lossy());
    for (source, kind, place) in MOUNTS {
        let made = fs::create_dir_all(place);
        let mounted = mount(*source, *place, *kind, MountFlags::empty(), None);
        if let (Err(error), _) | (Ok(()), Err(error)) = (made, mounted.map_err(Into::into)) {
            tally.fail(&format!("mounting {place}: {error}"));
        }
    }
    let _ = sethostname(b"guest");
    let up = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status();
    if !up.is_ok_and(|status| status.success()) {
        tally.fail("`ip link set lo up` failed");
    }
    if let Err(error) = load_modules() {
        tally.fail(&error.to_string());
    }
}

/// Loads all modules that came with the initramfs; what fails does not keep the others from being loaded.
pub fn load_modules() -> std::io::Result<()> {
    let mut result = Ok(());
    for module in listed("/modules", ".ko") {
        if let Err(error) = load(&module) {
            result = Err(std::io::Error::other(format!("loading {module}: {error}")));
        }
    }
    result
}

/// Paths in a directory with this ending, in their order.
fn listed(directory: &str, ending: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let paths = entries.filter_map(|entry| entry.ok()?.path().into_os_string().into_string().ok());
    let mut paths: Vec<String> = paths.filter(|path| path.ends_with(ending)).collect();
    paths.sort_unstable();
    paths
}

/// With the parameters in the file beside it.
fn load(module: &str) -> std::io::Result<()> {
    let parameters = fs::read_to_string(Path::new(module).with_extension("args"))?;
    let parameters = std::ffi::CString::new(parameters)?;
    finit_module(File::open(module)?, &parameters, 0)?;
    Ok(())
}

/// The bits of `kernel.tainted` that a run must not set: died, warned.
pub fn taint() -> u64 {
    const DIED: u64 = 1 << 7;
    const WARNED: u64 = 1 << 9;
    let text = fs::read_to_string("/proc/sys/kernel/tainted").unwrap_or_default();
    text.trim().parse().unwrap_or(0) & (DIED | WARNED)
}

/// What the kernel's log has from the first complaint on.
pub fn show_complaints() {
    const COMPLAINTS: &[&str] = &["WARNING: ", "BUG: ", "Oops", "------------[ cut here"];
    const MOST_LINES: usize = 60;
    let lines = log();
    let complains = |line: &String| COMPLAINTS.iter().any(|word| line.contains(word));
    let begin = lines.iter().position(complains).unwrap_or(0);
    for line in lines.iter().skip(begin).take(MOST_LINES) {
        println!("guest: {line}");
    }
}

/// The kernel's log so far.
fn log() -> Vec<String> {
    let log = fs::OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open("/dev/kmsg");
    let mut lines = Vec::new();
    let Ok(mut log) = log else { return lines };
    let mut record = [0; 8192];
    // One record per read; an error means that there is none yet.
    while let Ok(length @ 1..) = log.read(&mut record) {
        let text = String::from_utf8_lossy(&record[..length]);
        let text = text.split_once(';').map_or("", |(_, text)| text);
        lines.extend(text.lines().next().map(str::to_owned));
    }
    lines
}

/// Says what the counters of hardware events are that this machine was to have.
pub fn show_counters(device: &str, tally: &mut Tally) {
    let directory = Path::new("/sys/bus/event_source/devices").join(device);
    let Ok(cpus) = fs::read_to_string(directory.join("cpus")) else {
        return tally.fail(&format!("no counters: {} is missing", directory.display()));
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

/// From now on the kernel says nothing short of its own end: the verdict has a line to itself.
pub fn silence() {
    let _ = fs::write("/proc/sys/kernel/printk", "1");
}

pub fn off() -> ! {
    let _: Result<()> = tcdrain(stdout());
    sync();
    let error = reboot(RebootCommand::PowerOff);
    println!("guest: switching off: {error:?}");
    exit(1)
}

//! Booting a whole system: the root file system is on a disk, the programs under test come with the initramfs.

use std::{
    fs, io,
    os::unix::{fs::chroot, process::CommandExt as _},
    path::Path,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::mount::{MountFlags, mount, mount_move};

use crate::machine;

/// Where the disk is mounted before it becomes the root.
const ROOT: &str = "/mnt";
/// Directory of the initramfs with the files that are copied to the disk.
const PAYLOAD: &str = "/payload";

/// Becomes the init of the system on `device`; returns only on failure.
pub fn boot(device: &str) -> io::Error {
    prepare(device).map_or_else(
        |error| error,
        |()| {
            Command::new("/sbin/init")
                .env_clear()
                .env("PATH", machine::PATH)
                .exec()
        },
    )
}

fn prepare(device: &str) -> io::Result<()> {
    mount("devtmpfs", "/dev", "devtmpfs", MountFlags::empty(), None)?;
    machine::load_modules()?;
    wait_for(device)?;
    mount(device, ROOT, "ext4", MountFlags::empty(), None)?;
    let payload = Path::new(PAYLOAD);
    copy(payload, Path::new(ROOT))?;
    // They would occupy memory for as long as the machine runs.
    fs::remove_dir_all(payload)?;
    mount_move("/dev", Path::new(ROOT).join("dev"))?;
    std::env::set_current_dir(ROOT)?;
    mount_move(".", "/")?;
    chroot(".")?;
    std::env::set_current_dir("/")
}

fn wait_for(device: &str) -> io::Result<()> {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let begin = Instant::now();
    while !fs::exists(device)? {
        if begin.elapsed() > TIMEOUT {
            return Err(io::Error::other(format!("no {device}")));
        }
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Copies what is in a directory, with permissions.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir_all(&place)?;
            copy(&entry.path(), &place)?;
        } else {
            fs::copy(entry.path(), &place)?;
        }
    }
    Ok(())
}

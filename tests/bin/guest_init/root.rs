//! Boots a complete system. Its root file system is on a disk; the programs under test are in the
//! initramfs.

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

/// Mount point of the disk before it becomes the root.
const ROOT: &str = "/mnt";
/// Directory of the initramfs whose files are copied to the disk.
const PAYLOAD: &str = "/payload";

/// Executes the init of the system on `device`; returns only on failure.
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
    // They would occupy memory until the machine powers off.
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

/// Copies the contents of a directory recursively, with permissions.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir_all(&target)?;
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

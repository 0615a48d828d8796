//! File systems and block devices that exist for the duration of a test.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use tempfile::TempDir;

/// A mount, removed when it is dropped.
pub struct Mounted {
    point: PathBuf,
    source: String,
}

/// A temporary directory for mount points.
pub fn directory() -> TempDir {
    TempDir::new().expect("a temporary directory")
}

impl Mounted {
    fn at(point: &Path, source: &str) -> Self {
        Self {
            point: point.to_owned(),
            source: source.to_owned(),
        }
    }

    fn new(point: &Path, kind: &str, options: &str) -> Self {
        fs::create_dir_all(point).expect("made");
        let options = std::ffi::CString::new(options).expect("text");
        mount("e2e", point, kind, MountFlags::empty(), options.as_c_str())
            .unwrap_or_else(|error| panic!("mounting {kind}: {error}"));
        Self::at(point, "e2e")
    }

    /// Mounts a tmpfs.
    pub fn tmpfs(point: &Path) -> Self {
        Self::new(point, "tmpfs", "size=256m")
    }

    /// Bind-mounts a directory.
    pub fn bind(directory: &str, point: &Path) -> Self {
        fs::create_dir_all(point).expect("made");
        mount_bind(directory, point).expect("bound");
        Self::at(point, "e2e")
    }

    /// Mounts an overlay whose layers are the directories `lower` and `upper` below `layers`.
    pub fn overlay(point: &Path, layers: &str) -> Self {
        for layer in ["lower", "upper", "work"] {
            fs::create_dir_all(format!("{layers}/{layer}")).expect("made");
        }
        let options =
            format!("lowerdir={layers}/lower,upperdir={layers}/upper,workdir={layers}/work");
        Self::new(point, "overlay", &options)
    }

    /// Mounts an ext4 file system of `mib` MiB, in an image file on a loop device.
    pub fn ext4(point: &Path, image: &Path, mib: u64) -> Self {
        fs::create_dir_all(point).expect("made");
        let file = fs::File::create(image).expect("made");
        file.set_len(mib << 20).expect("sparse");
        run(Command::new("mke2fs").args(["-q", "-t", "ext4"]).arg(image));
        run(Command::new("mount")
            .args(["-o", "loop"])
            .args([image, point]));
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let place = format!(" {} ", point.display());
        let line = mounts.lines().find(|line| line.contains(&place));
        let source = line.and_then(|line| line.split(' ').next());
        Self::at(point, source.expect("mounted"))
    }

    /// The mount point.
    pub fn point(&self) -> &str {
        self.point.to_str().expect("UTF-8")
    }

    /// The mounted device, or `e2e`.
    pub fn source(&self) -> &str {
        &self.source
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.point, UnmountFlags::DETACH);
    }
}

/// A loop device on a new image file, detached when it is dropped.
pub struct LoopDevice {
    path: String,
}

impl LoopDevice {
    /// Creates an image of `mib` MiB and attaches it.
    pub fn new(image: &Path, mib: u64) -> Self {
        let file = fs::File::create(image).expect("made");
        file.set_len(mib << 20).expect("sparse");
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(image)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .output()
            .expect("losetup starts");
        assert!(output.status.success(), "{output:?}");
        let path = String::from_utf8(output.stdout).expect("text");
        Self {
            path: path.trim().to_owned(),
        }
    }

    /// Path of the device node.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Name of the device, such as `loop0`.
    pub fn name(&self) -> &str {
        self.path.trim_start_matches("/dev/")
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        run(Command::new("losetup").args(["--detach", &self.path]));
    }
}

fn run(command: &mut Command) {
    // A user's PATH may lack the administrator's tools.
    let status = command
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .status()
        .expect("it starts");
    assert!(status.success(), "{command:?}: {status}");
}

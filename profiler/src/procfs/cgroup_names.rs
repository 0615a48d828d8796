//! Paths of cgroups by the inode of their directory.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsRawFd as _, FromRawFd as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::cgroup_mounts::Cgroups;
use crate::support::cache::Cache;

/// Cached paths. Every service, container and job creates cgroups.
const CACHED_MAX: usize = 4096;

/// Looks up cgroups of the controller `blkio` or `io`.
pub struct CgroupNames {
    /// Mount point of the hierarchy, and its directory opened.
    mount: Option<(PathBuf, File)>,
    /// Includes removed cgroups, whose pages can still be written back.
    names: Cache<u64, Arc<str>>,
}

impl CgroupNames {
    /// Opens the hierarchy of the controller.
    pub fn new(cgroups: &Cgroups) -> Self {
        let v1 = cgroups.v1.iter().find(|hierarchy| {
            let mut controllers = hierarchy.controllers.iter();
            controllers.any(|controller| controller == "blkio")
        });
        let mount = v1.or(cgroups.v2.as_ref()).and_then(|hierarchy| {
            let directory = File::open(&hierarchy.mount_point).ok()?;
            Some((hierarchy.mount_point.clone(), directory))
        });
        Self {
            mount,
            names: Cache::new(CACHED_MAX),
        }
    }

    /// Path below the mount, `/` for the root; `None` if the cgroup was removed before it
    /// was looked up.
    pub fn path(&mut self, id: u64) -> Option<Arc<str>> {
        if let Some(name) = self.names.get(&id) {
            return Some(name.clone());
        }
        let (mount, directory) = self.mount.as_ref()?;
        let path = directory_path(directory, id).ok()?;
        let below = path.strip_prefix(mount).ok()?;
        let name: Arc<str> = Path::new("/").join(below).to_string_lossy().into();
        self.names.insert(id, name.clone());
        Some(name)
    }
}

/// File handle of kernfs for open_by_handle_at(2) (fs/kernfs/mount.c).
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    id: u64,
}

/// `FILEID_KERNFS`.
const KERNFS: i32 = 0xfe;

/// Path of the kernfs directory with this inode.
fn directory_path(mount: &File, id: u64) -> io::Result<PathBuf> {
    let mut handle = Handle {
        bytes: 8,
        kind: KERNFS,
        id,
    };
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the handle is as long as `bytes` states, and the kernel does not write to it.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw mut handle,
            flags,
        )
    };
    let descriptor = i32::try_from(descriptor).unwrap_or(-1);
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and owned by nothing else.
    let file = unsafe { File::from_raw_fd(descriptor) };
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn cgroups_are_found_by_inode() {
        let cgroups = Cgroups::read(Path::new("/proc"));
        let mut names = CgroupNames::new(&cgroups);
        let Some((mount, _)) = &names.mount else {
            panic!("no cgroups are mounted");
        };
        let id = |path: &Path| fs::metadata(path).expect("a directory").ino();
        let root = id(mount);
        let below = mount.join(format!("profiler-names-{}", std::process::id()));
        fs::create_dir(&below).expect("root may");
        let number = id(&below);
        let found = names.path(number);
        fs::remove_dir(&below).expect("it is empty");
        let name = below.file_name().and_then(|name| name.to_str());
        assert_eq!(
            found.as_deref(),
            name.map(|name| format!("/{name}")).as_deref()
        );
        assert_eq!(names.path(root).as_deref(), Some("/"));
        assert_eq!(names.path(u64::MAX), None);
        assert_eq!(names.path(number), found);
    }
}

//! Mounts of a process's mount namespace, from `mountinfo` alone: a `statfs` of a hung NFS server would hang.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use procfs::process::MountInfo;

use super::process_file::{Content, bounded};

/// Limit of our own `mountinfo`, and of that of pid 1: mounts by the thousand.
const OWN_MAX: usize = 16 << 20;
/// Limit of that of others: any user can make a namespace with 100,000 mounts.
const OTHERS_MAX: usize = 1 << 20;

/// One mount (`proc_pid_mountinfo(5)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// What is mounted: a device, `server:/export`; `None` for `none`.
    pub source: Option<String>,
    /// Which directory of the file system is mounted; `/` for all of it.
    pub root: String,
    /// Where.
    pub mount_point: String,
    /// Type of the file system.
    pub fstype: String,
    /// Options of the mount and of the file system, sorted.
    pub options: Vec<String>,
}

/// A mount with the numbers that the kernel knows it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// Id of the mount.
    pub id: u32,
    /// Device number of the file system, as the kernel holds it: major << 20 | minor.
    pub dev: u32,
    /// The mount.
    pub mount: Mount,
}

/// Mounts of our own mount namespace, in the order of `mountinfo`. Lines that cannot be parsed are skipped.
pub fn mounts(procfs: &Path) -> Vec<Mount> {
    let all = lines(&procfs.join("self"), OWN_MAX).into_iter();
    all.map(|numbered| numbered.mount).collect()
}

/// The node's view of its mounts. A service manager may give us a mount namespace of our own, in which everything is read-only
/// or elsewhere (`ProtectSystem=strict`, `PrivateTmp=yes`): the node's is that of pid 1.
#[derive(Clone, Debug)]
pub struct NodeMounts {
    process: PathBuf,
    /// Prefix under which we reach its mount points.
    root: PathBuf,
}

impl NodeMounts {
    /// Pid 1's namespace if it is another one than ours and we may enter its root; ours otherwise.
    pub fn new(procfs: &Path) -> Self {
        let (own, first) = (procfs.join("self"), procfs.join("1"));
        let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
        let differs = namespace(&first).is_some_and(|found| namespace(&own) != Some(found));
        if differs {
            return Self {
                root: first.join("root"),
                process: first,
            };
        }
        Self {
            process: own,
            root: PathBuf::from("/"),
        }
    }

    /// All mounts in the order of `mountinfo`.
    pub fn all(&self) -> Vec<Numbered> {
        lines(&self.process, OWN_MAX)
    }

    /// Path by which we can open a mount point.
    pub fn reachable(&self, mount: &Mount) -> PathBuf {
        let below = mount.mount_point.trim_start_matches('/');
        self.root.join(below)
    }

    /// File that lists the mounts.
    pub fn file(&self) -> PathBuf {
        self.process.join("mountinfo")
    }
}

/// Mounts in the namespace of a process; none when it is gone.
pub fn mounts_of(procfs: &Path, pid: u32) -> Vec<Numbered> {
    lines(&procfs.join(pid.to_string()), OTHERS_MAX)
}

fn lines(process: &Path, limit: usize) -> Vec<Numbered> {
    let Ok(Content { bytes, truncated }) = bounded(&process.join("mountinfo"), limit) else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&bytes);
    // Half a line can be another mount.
    let whole = if truncated {
        text.rsplit_once('\n').map_or("", |(whole, _)| whole)
    } else {
        &text
    };
    whole.lines().filter_map(mount).collect()
}

fn mount(line: &str) -> Option<Numbered> {
    let info = MountInfo::from_line(line).ok()?;
    let (major, minor) = info.majmin.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    let id = u32::try_from(info.mnt_id).ok()?;
    let all: HashMap<_, _> = info
        .mount_options
        .into_iter()
        .chain(info.super_options)
        .collect();
    let mut options: Vec<_> = all
        .into_iter()
        .map(|(name, value)| match value {
            Some(value) => format!("{name}={}", plain(&value)),
            None => name,
        })
        .collect();
    options.sort_unstable();
    Some(Numbered {
        id,
        dev: major << 20 | minor,
        mount: Mount {
            source: info.mount_source.map(|source| plain(&source)),
            root: plain(&info.root),
            mount_point: plain(&info.mount_point.to_string_lossy()),
            fstype: info.fs_type,
            options,
        },
    })
}

/// Takes back the kernel's escapes: `\040` for a space, `\011`, `\012`, `\134`, `\043` (`mangle_path`).
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let code = after
            .get(..3)
            .and_then(|code| u8::from_str_radix(code, 8).ok());
        if let Some(code) = code.filter(u8::is_ascii) {
            plain.push(char::from(code));
            rest = &after[3..];
        } else {
            plain.push('\\');
            rest = after;
        }
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_becomes_a_mount() {
        let line = r"36 35 98:0 /mnt1 /mnt/my\040disk rw,noatime master:1 - nfs4 srv:/ex\134port rw,vers=4.2";
        let Numbered { id, dev, mount } = mount(line).unwrap();
        assert_eq!((id, dev), (36, 98 << 20));
        assert_eq!(mount.source.as_deref(), Some(r"srv:/ex\port"));
        assert_eq!(
            (&mount.root[..], &mount.mount_point[..]),
            ("/mnt1", "/mnt/my disk")
        );
        assert_eq!(mount.options, ["noatime", "rw", "vers=4.2"]);
    }

    #[test]
    fn the_nodes_mounts_are_those_of_pid_1() {
        let procfs = tempfile::tempdir().unwrap();
        let process = |name: &str, namespace: &str, options: &str| {
            let path = procfs.path().join(name);
            fs::create_dir_all(path.join("ns")).unwrap();
            std::os::unix::fs::symlink(namespace, path.join("ns/mnt")).unwrap();
            let line = format!("36 35 8:1 / /home {options} - ext4 /dev/sda1 rw\n");
            fs::write(path.join("mountinfo"), line).unwrap();
        };
        process("self", "mnt:[2]", "ro");
        // Nothing is known of pid 1: a container, or no privilege.
        let own = NodeMounts::new(procfs.path());
        assert_eq!(own.all()[0].mount.options, ["ro", "rw"]);
        assert_eq!(own.reachable(&own.all()[0].mount), Path::new("/home"));
        process("1", "mnt:[1]", "rw");
        let node = NodeMounts::new(procfs.path());
        assert_eq!(node.all()[0].mount.options, ["rw"]);
        let reachable = procfs.path().join("1/root/home");
        assert_eq!(node.reachable(&node.all()[0].mount), reachable);
    }

    #[test]
    fn what_is_no_mount_is_left_out() {
        for bad in [
            "",
            "36",
            "36 35 98:0 / /mnt rw",
            "x 35 98:0 / /m rw - t s rw",
            "36 35 98:0 / /m rw - t",
        ] {
            assert_eq!(mount(bad), None, "{bad}");
        }
        assert_eq!(plain(r"a\04\é\777\"), r"a\04\é\777\");
    }
}

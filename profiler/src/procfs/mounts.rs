//! Mounts of a mount namespace, from `mountinfo` alone: `statfs(2)` would hang with an NFS server.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use procfs::process::MountInfo;

use super::process_file::{Content, bounded};

/// Limit of the profiler's own `mountinfo` and of that of pid 1, which may have thousands of
/// mounts.
const OWN_MAX: usize = 16 << 20;
/// Limit of other files: any user can create a namespace with 100,000 mounts.
const OTHERS_MAX: usize = 1 << 20;

/// One mount (`proc_pid_mountinfo(5)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Mounted device or `server:/export`; `None` for `none`.
    pub source: Option<String>,
    /// Mounted directory of the file system; `/` for all of it.
    pub root: String,
    /// Directory on which it is mounted.
    pub mount_point: String,
    /// Type of the file system.
    pub fstype: String,
    /// Options of the mount and of the file system, in alphabetical order.
    pub options: Vec<String>,
}

/// A mount with the numbers by which the kernel identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// Mount id, unique in the node at a time.
    pub id: u32,
    /// Device number of the file system as the kernel stores it: `major << 20 | minor`.
    pub dev: u32,
    /// Names and options.
    pub mount: Mount,
}

/// Mounts of the profiler's own mount namespace, in the order of `mountinfo`. Malformed lines are
/// skipped.
pub fn mounts(procfs: &Path) -> Vec<Mount> {
    let all = lines(&procfs.join("self"), OWN_MAX).into_iter();
    all.map(|numbered| numbered.mount).collect()
}

/// Mounts of the node. A service manager may give the profiler its own mount namespace, in which
/// everything is read-only or elsewhere (`ProtectSystem=strict`, `PrivateTmp=yes`). The mounts of
/// the node are those of pid 1.
#[derive(Clone, Debug)]
pub struct NodeMounts {
    process: PathBuf,
    /// Directory under which the profiler can open its mount points.
    root: PathBuf,
}

impl NodeMounts {
    /// Uses the namespace of pid 1 if it differs from the profiler's own and its root may be
    /// entered, else the profiler's own.
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

    /// Path by which the profiler can open a mount point.
    pub fn reachable(&self, mount: &Mount) -> PathBuf {
        let below = mount.mount_point.trim_start_matches('/');
        self.root.join(below)
    }

    /// File that lists the mounts.
    pub fn file(&self) -> PathBuf {
        self.process.join("mountinfo")
    }
}

/// Mounts in the namespace of a process; none if the process has ended.
pub fn mounts_of(procfs: &Path, pid: u32) -> Vec<Numbered> {
    lines(&procfs.join(pid.to_string()), OTHERS_MAX)
}

fn lines(process: &Path, limit: usize) -> Vec<Numbered> {
    let Ok(Content { bytes, truncated }) = bounded(&process.join("mountinfo"), limit) else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&bytes);
    // A truncated line could be taken for another mount.
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

/// Decodes the octal escapes of the kernel: `\040` for a space, `\011`, `\012`, `\134`, `\043`
/// (`mangle_path`).
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
    fn mounts_of_the_node_are_those_of_pid_1() {
        let procfs = tempfile::tempdir().unwrap();
        let process = |name: &str, namespace: &str, options: &str| {
            let path = procfs.path().join(name);
            fs::create_dir_all(path.join("ns")).unwrap();
            std::os::unix::fs::symlink(namespace, path.join("ns/mnt")).unwrap();
            let line = format!("36 35 8:1 / /home {options} - ext4 /dev/sda1 rw\n");
            fs::write(path.join("mountinfo"), line).unwrap();
        };
        process("self", "mnt:[2]", "ro");
        // Pid 1 cannot be read: a container, or no privilege.
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
    fn malformed_lines_are_skipped() {
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

//! Mounts of a mount namespace, from `mountinfo` alone: `statfs(2)` would hang with an NFS server.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ffi::OsString,
    fs, iter,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use super::process_file::{Content, bounded};

/// Limit of the profiler's own `mountinfo` and of that of pid 1, which may have thousands of
/// mounts.
const OWN_MAX: usize = 16 << 20;
/// Limit of other files: any user can create a namespace with 100,000 mounts.
const OTHERS_MAX: usize = 1 << 20;

/// One mount (`proc_pid_mountinfo(5)`). Paths are any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Mounted device or `server:/export`; `None` for `none`.
    pub source: Option<OsString>,
    /// Mounted directory of the file system; `/` for all of it.
    pub root: PathBuf,
    /// Directory on which it is mounted.
    pub mount_point: PathBuf,
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
    /// Id of the mount that has the directory on which it is mounted.
    pub parent: u32,
    /// Device number of the file system as the kernel stores it: `major << 20 | minor`.
    pub dev: u32,
    /// Names and options.
    pub mount: Mount,
}

/// Mounts of the profiler's own mount namespace to which their names lead, in the order of
/// `mountinfo`. Malformed lines are skipped.
pub fn mounts(procfs: &Path) -> Vec<Mount> {
    let visible = visible(lines(&procfs.join("self"), OWN_MAX)).into_iter();
    visible.map(|numbered| numbered.mount).collect()
}

/// Those of the mounts of a namespace to which their names lead. Others are below a mount on the same
/// directory or on one that contains it.
pub fn visible(mut all: Vec<Numbered>) -> Vec<Numbered> {
    let mut ids = HashSet::new();
    // A mount that moves while the file is read can be in it twice, and on itself.
    all.retain(|mounted| ids.insert(mounted.id));
    // The root is mounted on what the namespace does not show, or on itself.
    let parent_of = |mounted: &Numbered| {
        let is_known = mounted.parent != mounted.id && ids.contains(&mounted.parent);
        is_known.then_some(mounted.parent)
    };
    // A mount on the directory of another one has that one as its parent.
    let on: HashMap<(Option<u32>, &Path), u32> = all
        .iter()
        .map(|mounted| {
            let point = mounted.mount.mount_point.as_path();
            ((parent_of(mounted), point), mounted.id)
        })
        .collect();
    let found_at = |point: &Path| {
        let directories: Vec<&Path> = point.ancestors().collect();
        let mut found = None;
        for directory in directories.into_iter().rev() {
            while let Some(next) = on.get(&(found, directory)) {
                found = Some(*next);
            }
        }
        found
    };
    let is_visible: Vec<bool> = all
        .iter()
        .map(|mounted| found_at(&mounted.mount.mount_point) == Some(mounted.id))
        .collect();
    let mut is_visible = is_visible.into_iter();
    all.retain(|_| is_visible.next() == Some(true));
    all
}

/// Types whose directories the kernel mounts when they are entered: exports, referrals and volumes.
const WITH_SUBMOUNTS: [&str; 5] = ["afs", "cifs", "nfs", "nfs4", "smb3"];

/// Ids of the mounts that are made when their directory is entered and removed when it has not been
/// entered for some time: those on a mount of autofs, those below another mount of such a network
/// file system, and what is mounted on them. Every path through them counts as use.
pub fn on_demand(all: &[Numbered]) -> HashSet<u32> {
    let by_id: HashMap<u32, &Numbered> = all.iter().map(|found| (found.id, found)).collect();
    let parent_of = |found: &Numbered| {
        // The root can be mounted on itself.
        let parent = by_id.get(&found.parent).copied();
        parent.filter(|parent| parent.id != found.id)
    };
    let is_on_demand = |found: &Numbered| {
        parent_of(found).is_some_and(|parent| {
            let (on, own) = (&parent.mount.fstype[..], &found.mount.fstype[..]);
            on == "autofs" || (on == own && WITH_SUBMOUNTS.contains(&own))
        })
    };
    let ids = all.iter().filter(|found| {
        let above = iter::successors(Some(*found), |found| parent_of(found));
        // Those that move while the file is read can be above each other in it.
        above.take(all.len()).any(is_on_demand)
    });
    ids.map(|found| found.id).collect()
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
        let point = &mount.mount_point;
        self.root.join(point.strip_prefix("/").unwrap_or(point))
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
    // A truncated line could be taken for another mount.
    let whole = if truncated {
        let last = bytes.iter().rposition(|byte| *byte == b'\n');
        &bytes[..last.unwrap_or(0)]
    } else {
        &bytes
    };
    let all = whole.split(|byte| *byte == b'\n');
    all.filter_map(mount).collect()
}

fn mount(line: &[u8]) -> Option<Numbered> {
    let text = |field: Option<&[u8]>| Some(String::from_utf8_lossy(&plain(field?)).into_owned());
    let mut fields = line.split(|byte| *byte == b' ');
    let id = text(fields.next())?.parse().ok()?;
    let parent = text(fields.next())?.parse().ok()?;
    let device = text(fields.next())?;
    let (major, minor) = device.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    let root = path(fields.next()?);
    let mount_point = path(fields.next()?);
    let of_mount = fields.next()?;
    fields.find(|field| *field == b"-")?;
    let fstype = text(fields.next())?;
    let source = fields.next()?;
    let of_file_system = fields.next()?;
    let all = [of_mount, of_file_system].into_iter();
    let all = all.flat_map(|options| options.split(|byte| *byte == b','));
    let options: BTreeMap<_, _> = all
        .filter_map(|option| {
            let option = text(Some(option))?;
            let name = option.split_once('=').map_or(&option[..], |(name, _)| name);
            Some((name.to_owned(), option))
        })
        .collect();
    Some(Numbered {
        id,
        parent,
        dev: major << 20 | minor,
        mount: Mount {
            source: (source != b"none").then(|| OsString::from_vec(plain(source))),
            root,
            mount_point,
            fstype,
            options: options.into_values().collect(),
        },
    })
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(plain(field)).into()
}

/// Decodes the octal escapes of the kernel: `\040` for a space, `\011`, `\012`, `\134`, `\043`
/// (`mangle_path`).
fn plain(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| byte == b'\\');
        let code = code.and_then(|code| u8::from_str_radix(str::from_utf8(code).ok()?, 8).ok());
        plain.push(code.unwrap_or(byte));
        rest = code.map_or(after, |_| &after[3..]);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_becomes_a_mount() {
        let line = r"36 35 98:0 /mnt1 /mnt/my\040disk rw,noatime master:1 - nfs4 srv:/ex\134port rw,vers=4.2";
        let Numbered {
            id,
            parent,
            dev,
            mount,
        } = mount(line.as_bytes()).unwrap();
        assert_eq!((id, parent, dev), (36, 35, 98 << 20));
        assert_eq!(mount.source, Some(OsString::from(r"srv:/ex\port")));
        assert_eq!(
            (mount.root, mount.mount_point),
            ("/mnt1".into(), "/mnt/my disk".into())
        );
        assert_eq!(mount.options, ["noatime", "rw", "vers=4.2"]);
    }

    #[test]
    fn paths_are_bytes() {
        let Numbered { mount, .. } =
            mount(b"36 35 0:9 /a\xe9 /b\\011\xff\\377 rw,x=\xe9 - tmpfs /c\xe9 rw").unwrap();
        let bytes = |text: &[u8]| OsString::from_vec(text.to_vec());
        assert_eq!(mount.root, PathBuf::from(bytes(b"/a\xe9")));
        assert_eq!(mount.mount_point, PathBuf::from(bytes(b"/b\t\xff\xff")));
        assert_eq!(mount.source, Some(bytes(b"/c\xe9")));
        assert_eq!(mount.options, ["rw", "x=\u{fffd}"]);
    }

    fn numbered(text: &str) -> Vec<Numbered> {
        let lines = text.lines();
        lines.filter_map(|line| mount(line.as_bytes())).collect()
    }

    #[test]
    fn idle_mounts_are_recognized() {
        // A mount of a unit (3), of a map (5) with a mount below (6), a local one (7), an export below
        // another one (9), and a local one on it (10).
        let text = "\
            1 1 8:1 / / rw - ext4 /dev/a rw\n\
            2 1 0:2 / /boot rw - autofs systemd-1 rw\n\
            3 2 8:2 / /boot rw - vfat /dev/b rw\n\
            4 1 0:4 / /home rw - autofs /etc/auto.home rw\n\
            5 4 0:5 / /home/a rw - nfs4 srv:/a rw\n\
            6 5 0:6 / /home/a/b rw - tmpfs none rw\n\
            7 1 0:7 / /tmp rw - tmpfs none rw\n\
            8 1 0:8 / /nfs rw - nfs4 srv:/ rw\n\
            9 8 0:9 / /nfs/c rw - nfs4 srv:/c rw\n\
            10 9 0:10 / /nfs/c/d rw - tmpfs none rw\n\
            11 7 0:11 / /tmp/e rw - tmpfs none rw\n";
        let ids = on_demand(&numbered(text));
        assert_eq!(ids, HashSet::from([3, 5, 6, 9, 10]));
        let circle = "3 4 0:3 / /a rw - tmpfs none rw\n4 3 0:4 / /b rw - tmpfs none rw\n";
        assert!(on_demand(&numbered(circle)).is_empty());
    }

    #[test]
    fn names_lead_to_visible_mounts() {
        // Of 1 and 2, which are on the same directory, the latter is visible; so is not what was
        // below /a when 5 was mounted on it, but for 7, which was mounted on it later.
        let text = "\
            1 1 0:1 / / rw - rootfs rootfs rw\n\
            2 1 8:1 / / rw - ext4 /dev/a rw\n\
            3 2 0:3 / /a/b rw - tmpfs none rw\n\
            4 3 0:4 / /a/b/c rw - tmpfs none rw\n\
            5 2 0:5 / /a rw - tmpfs none rw\n\
            6 2 0:4 / /d rw - tmpfs none rw\n\
            7 5 0:7 / /a/b rw - tmpfs none rw\n\
            8 6 0:8 / /d rw - tmpfs none rw\n\
            9 8 0:9 / /d rw - tmpfs none rw\n";
        let ids = |text: &str| -> Vec<u32> {
            let all = text.lines().filter_map(|line| mount(line.as_bytes()));
            visible(all.collect())
                .iter()
                .map(|found| found.id)
                .collect()
        };
        assert_eq!(ids(text), [2, 5, 7, 9]);
        // In a changed root that is no mount.
        assert_eq!(ids("3 2 0:3 / /a rw - tmpfs none rw\n"), [3]);
        // Mounts on each other do not exist.
        let circle = "3 4 0:3 / /a rw - tmpfs none rw\n4 3 0:4 / /a rw - tmpfs none rw\n";
        assert_eq!(ids(circle), [] as [u32; 0]);
    }

    #[test]
    fn a_truncated_line_is_no_mount() {
        let process = tempfile::tempdir().unwrap();
        let line = "36 35 8:1 / /home rw - ext4 /dev/sda1 rw\n";
        fs::write(process.path().join("mountinfo"), line.repeat(2)).unwrap();
        assert_eq!(lines(process.path(), 2 * line.len()).len(), 2);
        assert_eq!(lines(process.path(), 2 * line.len() - 1).len(), 1);
        assert_eq!(lines(process.path(), line.len() - 1).len(), 0);
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
            assert_eq!(mount(bad.as_bytes()), None, "{bad}");
        }
        let text = r"a\04\é\777\";
        assert_eq!(plain(text.as_bytes()), text.as_bytes());
    }
}

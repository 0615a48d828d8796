//! Mounts of a process's mount namespace, from `mountinfo` alone: a `statfs` of a hung NFS server would hang.

use std::{collections::HashMap, path::Path};

use procfs::process::MountInfo;

/// One mount (`proc_pid_mountinfo(5)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// What is mounted: a device, `server:/export`; `None` for `none`.
    pub source: Option<String>,
    /// Which folder of the file system is mounted; `/` for all of it.
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

/// All mounts in the order of `mountinfo`. A line that cannot be read leaves the others.
pub fn mounts(procfs: &Path) -> Vec<Mount> {
    let all = own_mounts(procfs).into_iter();
    all.map(|numbered| numbered.mount).collect()
}

/// The same with their numbers.
pub fn own_mounts(procfs: &Path) -> Vec<Numbered> {
    lines(&procfs.join("self"))
}

/// The same as a process sees them; none when it is gone.
pub fn mounts_of(procfs: &Path, pid: u32) -> Vec<Numbered> {
    lines(&procfs.join(pid.to_string()))
}

fn lines(process: &Path) -> Vec<Numbered> {
    let Ok(text) = super::content(&process.join("mountinfo")) else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&text);
    text.lines().filter_map(mount).collect()
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

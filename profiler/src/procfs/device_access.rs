//! Device files that a process can open: those of its `/dev`, and those that its device cgroup of
//! version 1 allows. The BPF programs of version 2 cannot be read.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};

use super::{
    cgroup_mounts::Cgroups,
    memory_file::{self, MemoryFile},
    process_cgroup,
    process_file::{self, SMALL_MAX},
};

/// Major and minor number of a device.
pub(crate) type Device = (u32, u32);

/// What is known of the devices that a process can open; the default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct DeviceAccess {
    /// GPUs in the `/dev` of the process, if it is not that of the profiler.
    files: Option<BTreeSet<Device>>,
    /// Rules of the cgroup, if it denies the rest.
    rules: Option<Vec<Rule>>,
}

/// A line of `devices.list`; `None` for all numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Rule {
    major: Option<u32>,
    minor: Option<u32>,
}

impl DeviceAccess {
    /// That of a process with these files alone.
    #[cfg(test)]
    pub(crate) fn to_files(files: impl IntoIterator<Item = Device>) -> Self {
        Self {
            files: Some(files.into_iter().collect()),
            rules: None,
        }
    }

    /// Whether the process has a `/dev` of its own, as in a container.
    pub(crate) fn is_of_container(&self) -> bool {
        self.files.is_some()
    }

    /// Whether nothing forbids to open a GPU.
    pub(crate) fn allows(&self, device: Device) -> bool {
        let allows = |rule: &Rule| {
            rule.major.is_none_or(|major| major == device.0)
                && rule.minor.is_none_or(|minor| minor == device.1)
        };
        self.files
            .as_ref()
            .is_none_or(|files| files.contains(&device))
            && self
                .rules
                .as_ref()
                .is_none_or(|rules| rules.iter().any(allows))
    }
}

/// Reads the access of processes.
pub(crate) struct Reader {
    procfs: PathBuf,
    cgroups: Cgroups,
    /// Mount namespace of the profiler.
    own: Option<PathBuf>,
}

impl Reader {
    pub(crate) fn new(procfs: &Path, cgroups: &Cgroups) -> Self {
        Self {
            procfs: procfs.to_owned(),
            cgroups: cgroups.clone(),
            own: fs::read_link(procfs.join("self/ns/mnt")).ok(),
        }
    }

    /// Access of each of these processes.
    pub(crate) fn read(&self, pids: &[u32]) -> Vec<DeviceAccess> {
        // Processes of a container have the same.
        let mut by_namespace = HashMap::new();
        let access = pids.iter().map(|pid| {
            let namespace = fs::read_link(self.procfs.join(format!("{pid}/ns/mnt"))).ok();
            let other = namespace.filter(|namespace| Some(namespace) != self.own.as_ref());
            let files = other.and_then(|namespace| {
                let files = by_namespace.entry(namespace);
                files.or_insert_with(|| self.files(*pid)).clone()
            });
            let rules = self.rules(*pid);
            DeviceAccess { files, rules }
        });
        access.collect()
    }

    fn files(&self, pid: u32) -> Option<BTreeSet<Device>> {
        let content = memory_file::read(&self.procfs, pid, MemoryFile::Gpus).ok()?;
        let number = |bytes: &[u8]| Some(u32::from_ne_bytes(bytes.try_into().ok()?));
        let pairs = content.bytes.chunks_exact(8);
        let devices = pairs.filter_map(|pair| Some((number(&pair[..4])?, number(&pair[4..])?)));
        Some(devices.collect())
    }

    fn rules(&self, pid: u32) -> Option<Vec<Rule>> {
        let is_devices = |controllers: &str| controllers.split(',').any(|name| name == "devices");
        let mut hierarchies = self.cgroups.v1.iter();
        let hierarchy = hierarchies.find(|hierarchy| {
            let mut names = hierarchy.controllers.iter();
            names.any(|name| name == "devices")
        })?;
        let content = process_file::read(&self.procfs, pid, "cgroup", SMALL_MAX).ok()?;
        let mut lines = process_cgroup::lines(&content.bytes);
        let path = lines.find(|line| is_devices(line.controllers))?.path;
        let list = hierarchy.directory(path)?.join("devices.list");
        let content = process_file::bounded(&list, SMALL_MAX).ok()?;
        rules(std::str::from_utf8(&content.bytes).ok()?).filter(|_| !content.truncated)
    }
}

/// Rules for character devices; `None` if everything is allowed but what the file does not show.
fn rules(list: &str) -> Option<Vec<Rule>> {
    let mut rules = Vec::new();
    for line in list.lines() {
        let mut words = line.split([' ', ':']);
        let (kind, major, minor) = (words.next()?, words.next()?, words.next()?);
        let access = words.next()?;
        if kind == "a" {
            return None;
        }
        if kind == "c" && access.contains('r') && access.contains('w') {
            let number = |text: &str| match text {
                "*" => Some(None),
                text => Some(Some(text.parse().ok()?)),
            };
            rules.push(Rule {
                major: number(major)?,
                minor: number(minor)?,
            });
        }
    }
    Some(rules)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::{
        super::gpu_files::{DRM, NVIDIA},
        *,
    };

    #[test]
    fn lists_that_deny_the_rest_are_rules() {
        let access = |list| DeviceAccess {
            files: None,
            rules: rules(list),
        };
        let list = "c 1:3 rwm\nb *:* m\nc 195:1 rw\nc 195:0 m\nc 226:* rwm\n";
        let allowed = [(NVIDIA, 0), (NVIDIA, 1), (DRM, 128), (1, 3), (1, 4)];
        let allowed = allowed.map(|device| access(list).allows(device));
        assert_eq!(allowed, [false, true, true, true, false]);
        assert!(!access("").allows((NVIDIA, 0)));
        // Denied devices are not shown.
        assert_eq!(rules("a *:* rwm\n"), None);
        assert_eq!(rules("c 195\n"), None);
        assert_eq!(rules("c x:1 rwm\n"), None);
    }

    #[test]
    fn only_devices_of_drivers_are_gpus() {
        let procfs = tempfile::tempdir().expect("a directory");
        let gpus = |pid| memory_file::read(procfs.path(), pid, MemoryFile::Gpus);
        let dev = procfs.path().join("1/root/dev");
        fs::create_dir_all(dev.join("dri")).expect("made");
        fs::write(dev.join("nvidia0"), "").expect("written");
        symlink("/dev/null", dev.join("nvidia1")).expect("a link");
        fs::create_dir(dev.join("dri/renderD128")).expect("made");
        assert!(gpus(1).expect("a directory").bytes.is_empty());
        // Links lead out of the root directory.
        fs::create_dir_all(procfs.path().join("2/root")).expect("made");
        symlink("/dev", procfs.path().join("2/root/dev")).expect("a link");
        gpus(2).expect_err("a link");
        gpus(3).expect_err("no process");
        if rustix::process::geteuid().is_root() {
            let put = |name: &str, major, minor| {
                let device = rustix::fs::makedev(major, minor);
                mknodat(
                    CWD,
                    dev.join(name),
                    FileType::CharacterDevice,
                    Mode::RWXU,
                    device,
                )
            };
            put("nvidia9", NVIDIA, 9).expect("made");
            put("nvidia10", NVIDIA, 11).expect("made");
            put("dri/renderD191", DRM, 191).expect("made");
            let expected = [NVIDIA, 9, DRM, 191].map(u32::to_ne_bytes).concat();
            assert_eq!(gpus(1).expect("a directory").bytes, expected);
        }
    }

    #[test]
    fn files_are_those_of_another_mount_namespace() {
        let procfs = tempfile::tempdir().expect("a directory");
        let process = |pid: &str, namespace: &str, has_dev: bool| {
            let directory = procfs.path().join(pid);
            fs::create_dir_all(directory.join("ns")).expect("made");
            symlink(namespace, directory.join("ns/mnt")).expect("a link");
            let dev = directory
                .join("root")
                .join(if has_dev { "dev" } else { "etc" });
            fs::create_dir_all(dev).expect("made");
        };
        process("self", "mnt:[1]", true);
        process("2", "mnt:[1]", true);
        process("3", "mnt:[2]", true);
        process("4", "mnt:[3]", false);
        let access = Reader::new(procfs.path(), &Cgroups::default()).read(&[2, 3, 4, 5]);
        let first = access.iter().map(|access| access.allows((NVIDIA, 0)));
        assert_eq!(first.collect::<Vec<_>>(), [true, false, true, true]);
    }

    #[test]
    fn rules_are_those_of_the_cgroup() {
        let directory = tempfile::tempdir().expect("a directory");
        let procfs = directory.path().join("proc");
        let put = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        };
        let mount = directory.path().join("cgroup");
        put(mount.join("job/devices.list"), "c 195:1 rwm\n");
        put(mount.join("devices.list"), "a *:* rwm\n");
        let mut cgroups = Cgroups::default();
        cgroups
            .v1
            .push(super::super::cgroup_mounts::fixture::hierarchy(
                &["devices"],
                &mount,
                "/",
            ));
        for (pid, path) in [(1, "/job"), (2, "/"), (3, "/../job"), (4, "/none")] {
            let text = format!("4:cpu:/other\n3:devices:{path}\n0::/\n");
            put(procfs.join(format!("{pid}/cgroup")), &text);
        }
        let access = Reader::new(&procfs, &cgroups).read(&[1, 2, 3, 4, 5]);
        let first = access.iter().map(|access| access.allows((NVIDIA, 0)));
        let first: Vec<bool> = first.collect();
        assert_eq!(first, [false, true, true, true, true]);
        assert!(access[0].allows((NVIDIA, 1)));
    }
}

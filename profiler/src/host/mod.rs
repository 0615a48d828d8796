//! Facts about the machine that decide what can be measured.
//!
//! Plain data, read once at start; what cannot be read is `None`, and costs nothing else. Nothing here waits: no
//! `statfs`, no device is asked.

mod cgroups;
mod cpu_id;
mod cpu_list;
mod refusal;

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use caps::{CapSet, Capability};

pub(crate) use self::cpu_id::cpuinfo;
pub use self::{
    cgroups::{Cgroups, Hierarchy},
    cpu_id::cpu_ids,
    cpu_list::{cpu_list, cpu_list_text},
    refusal::refusal,
};
pub use crate::procfs::mounts::{Mount, mounts};
pub(crate) use crate::procfs::read::{content, names, number, text};

/// Inode of the pid namespace that the kernel boots with (`PROC_PID_INIT_INO`, `include/linux/proc_ns.h`).
const INIT_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Roots and facts, read once at start.
#[derive(Clone, Debug)]
pub struct Host {
    /// Where procfs is mounted.
    pub procfs: PathBuf,
    /// Where sysfs is mounted.
    pub sysfs: PathBuf,
    /// Name of this node, as in the dataset's `host=` directories.
    pub hostname: String,
    /// `uname -r`, for example `6.12.41+deb13-amd64`.
    pub kernel_release: Option<String>,
    /// Type information of the running kernel, if it has any.
    pub btf: Option<PathBuf>,
    /// What this process may do now.
    pub capabilities: HashSet<Capability>,
    /// What the kernel refuses even to root.
    pub lockdown: Lockdown,
    /// `kernel.perf_event_paranoid`: above 2 nobody without `CAP_PERFMON` opens an event, above -1 none of the CPUs.
    pub perf_event_paranoid: Option<i64>,
    /// `kernel.unprivileged_bpf_disabled`: 0 allowed, 1 forbidden until boot, 2 forbidden.
    pub unprivileged_bpf_disabled: Option<i64>,
    /// CPUs that the kernel has made room for: the length of per-CPU BPF values, and more than are online.
    pub possible_cpus: usize,
    /// Bytes of a page.
    pub page_size: u64,
    /// Changes at each boot.
    pub boot_id: Option<String>,
    /// Where control groups are mounted.
    pub cgroups: Cgroups,
    /// Whether this process sees the pids of the whole node; in a container usually not.
    pub init_pid_namespace: Option<bool>,
    /// Whether the kernel has pressure stall information, switched on.
    pub psi: bool,
}

/// Mode of the lockdown security module (`kernel_lockdown(7)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lockdown {
    /// Off, or not there, or not readable (securityfs is often not mounted in containers).
    #[default]
    None,
    /// The kernel may not be changed from user space.
    Integrity,
    /// Nor its memory be read: BPF programs cannot use `bpf_probe_read_kernel`.
    Confidentiality,
}

impl Host {
    /// Reads the facts; `hostname` where the user gives one.
    pub fn probe(
        procfs: impl Into<PathBuf>,
        sysfs: impl Into<PathBuf>,
        hostname: Option<String>,
    ) -> Self {
        let (procfs, sysfs) = (procfs.into(), sysfs.into());
        let kernel = procfs.join("sys/kernel");
        let btf = sysfs.join("kernel/btf/vmlinux");
        Self {
            hostname: hostname.unwrap_or_else(|| own_name(&procfs)),
            kernel_release: text(&kernel.join("osrelease")),
            btf: btf.exists().then_some(btf),
            capabilities: caps::read(None, CapSet::Effective).unwrap_or_default(),
            lockdown: text(&sysfs.join("kernel/security/lockdown"))
                .map_or(Lockdown::None, |modes| Lockdown::parse(&modes)),
            perf_event_paranoid: number(&kernel.join("perf_event_paranoid")),
            unprivileged_bpf_disabled: number(&kernel.join("unprivileged_bpf_disabled")),
            possible_cpus: possible_cpus(&sysfs),
            page_size: rustix::param::page_size() as u64,
            boot_id: text(&kernel.join("random/boot_id")),
            cgroups: Cgroups::of(&mounts(&procfs)),
            init_pid_namespace: fs::read_link(procfs.join("self/ns/pid"))
                .ok()
                .map(|namespace| namespace.as_os_str() == INIT_PID_NAMESPACE),
            psi: text(&procfs.join("pressure/cpu")).is_some(),
            procfs,
            sysfs,
        }
    }

    /// Whether this process has a capability. `CAP_SYS_ADMIN` stands for those that were split off from it.
    pub fn has(&self, capability: Capability) -> bool {
        let split_off = [
            Capability::CAP_BPF,
            Capability::CAP_PERFMON,
            Capability::CAP_CHECKPOINT_RESTORE,
        ];
        self.capabilities.contains(&capability)
            || split_off.contains(&capability)
                && self.capabilities.contains(&Capability::CAP_SYS_ADMIN)
    }
}

impl Lockdown {
    /// The mode in brackets: `none [integrity] confidentiality`.
    fn parse(modes: &str) -> Self {
        match selected(modes) {
            Some("integrity") => Self::Integrity,
            Some("confidentiality") => Self::Confidentiality,
            _ => Self::None,
        }
    }

    /// The kernel's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Integrity => "integrity",
            Self::Confidentiality => "confidentiality",
        }
    }
}

/// The word in brackets, as the kernel marks one of several.
pub(crate) fn selected(words: &str) -> Option<&str> {
    let (_, rest) = words.split_once('[')?;
    Some(rest.split_once(']')?.0)
}

/// The kernel's name of this node, fit for a directory.
pub fn own_name(procfs: &Path) -> String {
    let name = text(&procfs.join("sys/kernel/hostname")).unwrap_or_else(|| {
        rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned()
    });
    let unfit = |c: char| c == '/' || c.is_control();
    let name = name.replace(unfit, "_");
    if name.trim_matches('.').is_empty() {
        "localhost".to_owned()
    } else {
        name
    }
}

/// How many CPUs can ever be online.
fn possible_cpus(sysfs: &Path) -> usize {
    text(&sysfs.join("devices/system/cpu/possible"))
        .and_then(|list| cpu_list(&list))
        .filter(|cpus| !cpus.is_empty())
        .map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            |cpus| cpus.len(),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lockdown_is_the_word_in_brackets() {
        assert_eq!(
            Lockdown::parse("none [integrity] confidentiality"),
            Lockdown::Integrity
        );
        assert_eq!(
            Lockdown::parse("[none] integrity confidentiality"),
            Lockdown::None
        );
        for bad in ["", "[", "]x[", "none integrity"] {
            assert_eq!(Lockdown::parse(bad), Lockdown::None);
        }
    }

    #[test]
    fn this_machine_is_known() {
        let host = Host::probe("/proc", "/sys", None);
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        assert_eq!(host.kernel_release, Some(release));
        assert_eq!(
            host.btf.is_some(),
            Path::new("/sys/kernel/btf/vmlinux").exists()
        );
        assert!(host.possible_cpus >= 1 && host.page_size >= 4096);
        assert!(host.boot_id.is_some_and(|id| id.len() == 36));
        assert!(!host.hostname.is_empty());
        let given = Host::probe("/none", "/none", Some("x".to_owned()));
        assert_eq!((&given.hostname[..], given.psi), ("x", false));
        assert_eq!((given.btf, given.kernel_release), (None, None));
    }
}

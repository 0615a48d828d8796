//! Facts about the machine that decide what can be measured.
//!
//! The facts are read once at the start. A fact that cannot be read is `None`. Nothing here blocks:
//! no `statfs`, no access to devices.

mod cpu_id;
mod refusal;

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use caps::{CapSet, Capability};

pub use self::{cpu_id::cpu_ids, refusal::refusal};
pub use crate::procfs::{
    cgroup_mounts::{Cgroups, Hierarchy},
    cpu_list::{cpu_list, cpu_list_text},
    mounts::{Mount, mounts},
};
pub(crate) use crate::procfs::{
    cpuinfo::{Fields, read as cpuinfo},
    read::{content, names, number, text},
};

/// Inode of the initial pid namespace (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
const INIT_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Mount points of procfs and sysfs, and facts.
#[derive(Clone, Debug)]
pub struct Host {
    /// Mount point of procfs.
    pub procfs: PathBuf,
    /// Mount point of sysfs.
    pub sysfs: PathBuf,
    /// Name of this node, as in the dataset's `host=` directories.
    pub hostname: String,
    /// `uname -r`, for example `6.12.41+deb13-amd64`.
    pub kernel_release: Option<String>,
    /// BTF of the running kernel, if available.
    pub btf: Option<PathBuf>,
    /// Effective capabilities of this process.
    pub capabilities: HashSet<Capability>,
    /// Mode of the lockdown security module (`kernel_lockdown(7)`); `None` if it cannot be read
    /// (securityfs is often not mounted in containers).
    pub lockdown: Option<String>,
    /// `kernel.perf_event_paranoid`. Without `CAP_PERFMON`, no events above 2 (Debian, Ubuntu), and
    /// no events of CPUs above 0.
    pub perf_event_paranoid: Option<i64>,
    /// `kernel.unprivileged_bpf_disabled`: 0 allowed, 1 forbidden until boot, 2 forbidden.
    pub unprivileged_bpf_disabled: Option<i64>,
    /// CPUs that can be online at any time: the length of per-CPU BPF values.
    pub possible_cpus: usize,
    /// Page size, bytes.
    pub page_size: u64,
    /// Random id of this boot.
    pub boot_id: Option<String>,
    /// Mounted control group hierarchies.
    pub cgroups: Cgroups,
    /// Whether this process is in the initial pid namespace, and so sees all processes of the node.
    pub init_pid_namespace: Option<bool>,
    /// Whether pressure stall information is available.
    pub psi: bool,
}

impl Host {
    /// Reads the facts. `hostname` replaces the kernel's name of the node.
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
                .and_then(|modes| Some(selected(&modes)?.to_owned())),
            perf_event_paranoid: number(&kernel.join("perf_event_paranoid")),
            unprivileged_bpf_disabled: number(&kernel.join("unprivileged_bpf_disabled")),
            possible_cpus: possible_cpus(&sysfs),
            page_size: rustix::param::page_size() as u64,
            boot_id: text(&kernel.join("random/boot_id")),
            cgroups: Cgroups::read(&procfs),
            init_pid_namespace: fs::read_link(procfs.join("self/ns/pid"))
                .ok()
                .map(|namespace| namespace.as_os_str() == INIT_PID_NAMESPACE),
            psi: text(&procfs.join("pressure/cpu")).is_some(),
            procfs,
            sysfs,
        }
    }

    /// Whether the scheduler's clocks of the CPUs are known to agree. They are the CPUs' own counters,
    /// which the kernel has found to differ if it takes its time from a timer of the chipset instead.
    /// Time stamp counters without a constant rate can differ even if it uses them.
    pub fn cpu_clocks_agree(&self) -> bool {
        if self.possible_cpus == 1 {
            return true;
        }
        let sources = self.sysfs.join("devices/system/clocksource");
        let current = text(&sources.join("clocksource0/current_clocksource"));
        match current.as_deref().map(str::trim) {
            None | Some("hpet" | "acpi_pm" | "pit" | "jiffies" | "refined-jiffies") => false,
            Some("tsc") => cpuinfo(&self.procfs).first().is_some_and(|fields| {
                let flags = fields.get("flags");
                flags.is_some_and(|flags| flags.split(' ').any(|flag| flag == "constant_tsc"))
            }),
            Some(_) => true,
        }
    }

    /// Whether this process has a capability. `CAP_SYS_ADMIN` includes those split off from it.
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

/// The word in brackets, by which the kernel marks the selected one of several.
pub(crate) fn selected(words: &str) -> Option<&str> {
    let (_, rest) = words.split_once('[')?;
    Some(rest.split_once(']')?.0)
}

/// The kernel's name of this node, made usable as a directory name.
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

fn possible_cpus(sysfs: &Path) -> usize {
    text(&sysfs.join("devices/system/cpu/possible"))
        .and_then(|list| cpu_list(&list))
        .filter(|cpus| !cpus.is_empty())
        .map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            |cpus| cpus.len(),
        )
}

/// Whether a PCI device has such a vendor and class, as in `vendor` and `class` of sysfs.
pub(crate) fn has_pci_device(sysfs: &Path, is_it: impl Fn(&str, &str) -> bool) -> bool {
    let devices = sysfs.join("bus/pci/devices");
    names(&devices, "").iter().any(|name| {
        let fact = |file: &str| text(&devices.join(name).join(file)).unwrap_or_default();
        is_it(&fact("vendor"), &fact("class"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selected_word_is_the_one_in_brackets() {
        for (words, word) in [
            ("none [integrity] confidentiality", Some("integrity")),
            ("[none] integrity confidentiality", Some("none")),
            ("none integrity [new]", Some("new")),
            ("", None),
            ("[", None),
            ("]x[", None),
            ("none integrity", None),
        ] {
            assert_eq!(selected(words), word);
        }
    }

    #[test]
    fn clocks_agree_where_their_source_does() {
        let directory = tempfile::tempdir().expect("a directory");
        let (procfs, sysfs) = (directory.path().join("proc"), directory.path().join("sys"));
        let source = sysfs.join("devices/system/clocksource/clocksource0");
        fs::create_dir_all(&source).expect("a directory");
        fs::create_dir_all(&procfs).expect("a directory");
        let agree = |clock: &str, flags: &str| {
            fs::write(source.join("current_clocksource"), clock).expect("written");
            let info = format!(
                "processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: {flags}\n"
            );
            fs::write(procfs.join("cpuinfo"), info).expect("written");
            let possible_cpus = 2;
            let host = Host::probe(&procfs, &sysfs, None);
            Host {
                possible_cpus,
                ..host
            }
            .cpu_clocks_agree()
        };
        assert!(agree("tsc\n", "fpu tsc constant_tsc") && agree("kvm-clock\n", "fpu"));
        assert!(!agree("tsc\n", "fpu tsc tsc_adjust") && !agree("hpet\n", "constant_tsc"));
    }

    #[test]
    fn reads_the_facts_of_this_machine() {
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
        let missing = Host::probe("/none", "/none", Some("x".to_owned()));
        assert_eq!((&missing.hostname[..], missing.psi), ("x", false));
        assert_eq!((missing.btf, missing.kernel_release), (None, None));
    }
}

//! Causes of EPERM from the kernel although the process has the capabilities.

use std::path::Path;

use caps::Capability;

use super::selected;
use crate::procfs::{process_status::field, read::text};

/// The likely cause, the file that shows it, and the remedy. `procfs` and `sysfs` are mount points.
pub fn refusal(procfs: &Path, sysfs: &Path) -> String {
    let modes = text(&sysfs.join("kernel/security/lockdown"));
    let status = text(&procfs.join("self/status")).unwrap_or_default();
    if let Some(modes) = &modes
        && selected(modes).is_some_and(|mode| mode != "none")
    {
        return format!(
            "kernel lockdown ({modes} in /sys/kernel/security/lockdown), enabled by Secure Boot or \
             by lockdown= on the kernel command line"
        );
    }
    if field(&status, "Seccomp").is_some_and(|mode| mode != "0") {
        return "a seccomp filter (Seccomp in /proc/self/status), usually of a container: allow \
                bpf() in its profile (docker, podman: --security-opt seccomp=unconfined)"
            .to_owned();
    }
    let bounding = field(&status, "CapBnd").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    if let Some(bounding) = bounding {
        let needed = [
            Capability::CAP_BPF,
            Capability::CAP_PERFMON,
            Capability::CAP_SYS_ADMIN,
        ];
        let missing: Vec<_> = needed
            .iter()
            .filter(|capability| bounding & capability.bitmask() == 0)
            .map(ToString::to_string)
            .collect();
        if !missing.is_empty() {
            return format!(
                "the capability bounding set (CapBnd in /proc/self/status) of a container or a \
                 service lacks {}: add them (docker, podman: --cap-add)",
                missing.join(", ")
            );
        }
    }
    match modes {
        Some(_) => "cause unknown (a security module, or the host of a virtual machine?); see: \
                    dmesg | grep -iE 'bpf|lockdown|denied'"
            .to_owned(),
        None => "cause unknown (kernel lockdown?); see: mount -t securityfs none \
                 /sys/kernel/security; cat /sys/kernel/security/lockdown"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "000001ffffffffff";

    fn refusal_with(lockdown: Option<&str>, seccomp: u32, bounding: &str) -> String {
        let root = tempfile::TempDir::new().expect("a directory");
        let (proc, sys) = (root.path().join("proc"), root.path().join("sys"));
        std::fs::create_dir_all(proc.join("self")).expect("made");
        std::fs::create_dir_all(sys.join("kernel/security")).expect("made");
        let status = format!("CapBnd:\t{bounding}\nSeccomp:\t{seccomp}\nSeccomp_filters:\t1\n");
        std::fs::write(proc.join("self/status"), status).expect("written");
        if let Some(modes) = lockdown {
            std::fs::write(sys.join("kernel/security/lockdown"), modes).expect("written");
        }
        refusal(&proc, &sys)
    }

    #[test]
    fn names_the_cause_that_can_be_read() {
        let open = Some("[none] integrity confidentiality\n");
        let integrity = Some("none [integrity] confidentiality\n");
        for (cause, lockdown, seccomp, bounding) in [
            ("kernel lockdown (none [integrity]", integrity, 2, ALL),
            ("kernel lockdown (none [new]", Some("none [new]\n"), 2, ALL),
            ("a seccomp filter", open, 2, ALL),
            ("lacks CAP_BPF, CAP_PERFMON", open, 0, "0000003fffffffff"),
            ("lacks CAP_SYS_ADMIN", None, 0, "000001ffffdfffff"),
            ("cause unknown (a security module", open, 0, ALL),
            ("cause unknown (kernel lockdown?)", None, 0, ALL),
        ] {
            let found = refusal_with(lockdown, seccomp, bounding);
            assert!(found.contains(cause), "{cause}: {found}");
        }
    }
}

//! Why the kernel answers EPERM to a process that has the capabilities, as far as that can be read.

use std::path::Path;

use caps::Capability;

use super::Lockdown;
use crate::procfs::read::text;

/// The likely cause, where it was read, and what lifts it. `procfs` and `sysfs` are where these are mounted.
pub fn refusal(procfs: &Path, sysfs: &Path) -> String {
    let modes = text(&sysfs.join("kernel/security/lockdown"));
    let status = text(&procfs.join("self/status")).unwrap_or_default();
    let field = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
    };
    if let Some(modes) = &modes
        && Lockdown::parse(modes) != Lockdown::None
    {
        return format!(
            "kernel lockdown ({modes} in /sys/kernel/security/lockdown): it is on with Secure Boot, or by lockdown= on the \
             kernel command line"
        );
    }
    if field("Seccomp:").is_some_and(|mode| mode != "0") {
        return "a seccomp filter (Seccomp in /proc/self/status), usually of a container: allow bpf() in its profile \
                (docker, podman: --security-opt seccomp=unconfined)"
            .to_owned();
    }
    let bounds = field("CapBnd:").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    if let Some(bounds) = bounds {
        let needed = [
            Capability::CAP_BPF,
            Capability::CAP_PERFMON,
            Capability::CAP_SYS_ADMIN,
        ];
        let lacking: Vec<_> = needed
            .iter()
            .filter(|capability| bounds & capability.bitmask() == 0)
            .map(ToString::to_string)
            .collect();
        if !lacking.is_empty() {
            return format!(
                "the capability bounding set (CapBnd in /proc/self/status) of a container or a service lacks {}: add them \
                 (docker, podman: --cap-add)",
                lacking.join(", ")
            );
        }
    }
    let excluded = "no seccomp filter, and no capability is missing (/proc/self/status)";
    match modes {
        Some(_) => format!(
            "not lockdown (/sys/kernel/security/lockdown), {excluded}: a security module (/sys/kernel/security/lsm) or the \
             host of a virtual machine; see dmesg"
        ),
        None => format!(
            "{excluded}; whether kernel lockdown is on cannot be read: mount -t securityfs none /sys/kernel/security, then \
             read lockdown and lsm there"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "000001ffffffffff";

    fn of(lockdown: Option<&str>, seccomp: u32, bounds: &str) -> String {
        let root = tempfile::TempDir::new().expect("a directory");
        let (proc, sys) = (root.path().join("proc"), root.path().join("sys"));
        std::fs::create_dir_all(proc.join("self")).expect("made");
        std::fs::create_dir_all(sys.join("kernel/security")).expect("made");
        let status = format!("CapBnd:\t{bounds}\nSeccomp:\t{seccomp}\nSeccomp_filters:\t1\n");
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
        for (cause, lockdown, seccomp, bounds) in [
            ("kernel lockdown (none [integrity]", integrity, 2, ALL),
            ("a seccomp filter", open, 2, ALL),
            ("lacks CAP_BPF, CAP_PERFMON", open, 0, "0000003fffffffff"),
            ("lacks CAP_SYS_ADMIN", None, 0, "000001ffffdfffff"),
            ("not lockdown", open, 0, ALL),
            ("lockdown is on cannot be read", None, 0, ALL),
        ] {
            let said = of(lockdown, seccomp, bounds);
            assert!(said.contains(cause), "{cause}: {said}");
        }
    }
}

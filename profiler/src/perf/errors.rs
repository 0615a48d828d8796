//! What perf_event_open(2)'s errors mean, and what helps.

use std::io;

use rustix::io::Errno;

use crate::host::Host;

/// The error in the words of whoever reads it.
pub fn explain(error: &io::Error, host: &Host) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::ACCESS | Errno::PERM) => host.perf_event_paranoid.map_or_else(
            || "not permitted".to_owned(),
            |level| format!("not permitted (kernel.perf_event_paranoid is {level})"),
        ),
        Some(Errno::NOENT) => "this CPU has no such event".to_owned(),
        Some(Errno::NODEV | Errno::OPNOTSUPP | Errno::NXIO) => {
            "there is no PMU for it here".to_owned()
        }
        Some(Errno::INVAL) => "the PMU cannot count it like this".to_owned(),
        Some(Errno::BUSY) => "somebody else has taken the counters".to_owned(),
        Some(Errno::MFILE | Errno::NFILE) => "too many open files".to_owned(),
        Some(Errno::NOSYS) => "the kernel has no perf events (CONFIG_PERF_EVENTS)".to_owned(),
        Some(Errno::NOSPC) => "all hardware registers for it are taken".to_owned(),
        _ => error.to_string(),
    }
}

/// The command that would help; empty where none does.
pub fn remedy(error: &io::Error, host: &Host) -> &'static str {
    match Errno::from_io_error(error) {
        // A level that only kernels of Debian and Ubuntu have: CAP_PERFMON is not enough.
        Some(Errno::ACCESS | Errno::PERM)
            if host.perf_event_paranoid.is_some_and(|level| level > 2) =>
        {
            "sudo, or: sysctl kernel.perf_event_paranoid=2"
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            "sudo, or: setcap cap_perfmon+ep profiler, or: sysctl kernel.perf_event_paranoid=-1"
        }
        Some(Errno::BUSY | Errno::NOSPC) => {
            "end other profilers (perf, likwid, vtune); sysctl kernel.nmi_watchdog=0 frees a counter"
        }
        Some(Errno::MFILE) => "a higher limit: ulimit -n, or LimitNOFILE= of the service",
        Some(Errno::NFILE) => "a higher limit: sysctl fs.file-max",
        Some(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP | Errno::NXIO) => {
            "a virtual machine has one only if its host passes it on; libvirt: <cpu mode='host-passthrough'/> and <pmu state='on'/>"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errors_that_people_meet_have_a_remedy() {
        let mut host = Host::probe("/none", "/none", Some("x".to_owned()));
        host.perf_event_paranoid = Some(2);
        for (errno, said, helps) in [
            (Errno::ACCESS, "perf_event_paranoid is 2", "cap_perfmon"),
            (Errno::NOENT, "no such event", "virtual machine"),
            (Errno::BUSY, "taken", "nmi_watchdog=0"),
            (Errno::MFILE, "too many open files", "ulimit -n"),
        ] {
            let error = io::Error::from(errno);
            assert!(explain(&error, &host).contains(said), "{errno:?}");
            assert!(remedy(&error, &host).contains(helps), "{errno:?}");
        }
        host.perf_event_paranoid = Some(3);
        assert!(!remedy(&Errno::ACCESS.into(), &host).contains("cap_perfmon"));
        assert_eq!(remedy(&Errno::INVAL.into(), &host), "");
    }
}

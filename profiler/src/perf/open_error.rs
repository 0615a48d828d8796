//! Explanations and remedies of the errors of perf_event_open(2).

use std::io;

use rustix::io::Errno;

use crate::host::Host;

/// Explanation of an error.
pub fn explain(error: &io::Error, host: &Host) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::ACCESS | Errno::PERM) => host.perf_event_paranoid.map_or_else(
            || "not permitted".to_owned(),
            |level| format!("not permitted (kernel.perf_event_paranoid is {level})"),
        ),
        Some(Errno::NOENT) => "this CPU has no such event".to_owned(),
        Some(Errno::NODEV | Errno::OPNOTSUPP | Errno::NXIO) => "no PMU for this event".to_owned(),
        Some(Errno::INVAL) => "invalid for the PMU".to_owned(),
        Some(Errno::BUSY) => "the counters are in use by other software".to_owned(),
        Some(Errno::MFILE | Errno::NFILE) => "too many open files".to_owned(),
        Some(Errno::NOSYS) => "the kernel has no perf events (CONFIG_PERF_EVENTS)".to_owned(),
        Some(Errno::NOSPC) => "no hardware register is left for this event".to_owned(),
        _ => error.to_string(),
    }
}

/// Remedy of an error; empty if there is none.
pub fn remedy(error: &io::Error, host: &Host) -> &'static str {
    match Errno::from_io_error(error) {
        // Only kernels of Debian and Ubuntu have this level, at which CAP_PERFMON does not suffice.
        Some(Errno::ACCESS | Errno::PERM)
            if host.perf_event_paranoid.is_some_and(|level| level > 2) =>
        {
            "sudo, or: sysctl kernel.perf_event_paranoid=2"
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            "sudo, or: setcap cap_perfmon+ep profiler, or: sysctl kernel.perf_event_paranoid=-1"
        }
        Some(Errno::BUSY | Errno::NOSPC) => {
            "stop other profilers (perf, likwid, vtune); sysctl kernel.nmi_watchdog=0 frees a \
             counter"
        }
        Some(Errno::MFILE) => "raise the limit: ulimit -n, or LimitNOFILE= of the service",
        Some(Errno::NFILE) => "raise the limit: sysctl fs.file-max",
        Some(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP | Errno::NXIO) => {
            "on a virtual machine, enable vPMU passthrough on the host (libvirt: \
             <cpu mode='host-passthrough'/> and <pmu state='on'/>)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_errors_have_a_remedy() {
        let mut host = Host::probe("/none", "/none", Some("x".to_owned()));
        host.perf_event_paranoid = Some(2);
        for (errno, explanation, expected) in [
            (Errno::ACCESS, "perf_event_paranoid is 2", "cap_perfmon"),
            (Errno::NOENT, "no such event", "virtual machine"),
            (Errno::BUSY, "in use", "nmi_watchdog=0"),
            (Errno::MFILE, "too many open files", "ulimit -n"),
        ] {
            let error = io::Error::from(errno);
            assert!(explain(&error, &host).contains(explanation), "{errno:?}");
            assert!(remedy(&error, &host).contains(expected), "{errno:?}");
        }
        host.perf_event_paranoid = Some(3);
        assert!(!remedy(&Errno::ACCESS.into(), &host).contains("cap_perfmon"));
        assert_eq!(remedy(&Errno::INVAL.into(), &host), "");
    }
}

//! Explanations and remedies of the errors of perf_event_open(2).

use std::{borrow::Cow, io};

use rustix::io::Errno;

use crate::{failure::os_error::without_code, host::Host, procfs::read::text};

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
        _ => without_code(&error.to_string()).into_owned(),
    }
}

/// Remedy of an error; empty if there is none.
pub fn remedy(error: &io::Error, host: &Host) -> Cow<'static, str> {
    Cow::Borrowed(match Errno::from_io_error(error) {
        // Only kernels of Debian and Ubuntu have this level, at which CAP_PERFMON does not suffice.
        Some(Errno::ACCESS | Errno::PERM)
            if host.perf_event_paranoid.is_some_and(|level| level > 2) =>
        {
            "sudo, or: sysctl kernel.perf_event_paranoid=2"
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            "sudo, or: setcap cap_perfmon+ep profiler, or: sysctl kernel.perf_event_paranoid=-1"
        }
        Some(Errno::BUSY | Errno::NOSPC) => return in_use(host).into(),
        Some(Errno::MFILE) => "raise the limit: ulimit -n, or LimitNOFILE= of the service",
        Some(Errno::NFILE) => "raise the limit: sysctl fs.file-max",
        Some(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP | Errno::NXIO) => {
            "on a virtual machine, enable vPMU passthrough on the host (libvirt: \
             <cpu mode='host-passthrough'/> and <pmu state='on'/>)"
        }
        _ => "",
    })
}

/// How to free counters: the watchdog holds one if it is on.
fn in_use(host: &Host) -> String {
    let watchdog = text(&host.procfs.join("sys/kernel/nmi_watchdog"));
    let watchdog = if watchdog.is_some_and(|state| state.trim() == "1") {
        "the NMI watchdog holds a counter: sysctl kernel.nmi_watchdog=0; otherwise "
    } else {
        ""
    };
    format!(
        "{watchdog}stop other profilers (perf, likwid, vtune); to list them: \
         find /proc/[0-9]*/fd -lname '*perf_event*'"
    )
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
            (Errno::BUSY, "in use", "perf_event"),
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

    #[test]
    fn watchdog_is_named_if_it_is_on() {
        let procfs = tempfile::TempDir::new().expect("a directory");
        let file = procfs.path().join("sys/kernel/nmi_watchdog");
        std::fs::create_dir_all(file.parent().expect("a parent")).expect("made");
        let host = Host::probe(procfs.path(), "/none", Some("x".to_owned()));
        for (state, is_named) in [("0\n", false), ("1\n", true)] {
            std::fs::write(&file, state).expect("written");
            let remedy = remedy(&Errno::BUSY.into(), &host);
            assert_eq!(remedy.contains("nmi_watchdog=0"), is_named, "{remedy}");
        }
    }
}

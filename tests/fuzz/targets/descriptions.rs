//! `cmdline`, `environ`, `stat` and `cgroup` below /proc/PID, separated by lines `==`.
//!
//! The first byte is the number of repetitions of the first two, as a power of two, because reads
//! of them are limited.

#![no_main]

use std::os::unix::fs::symlink;

use fuzz::processes;
use libfuzzer_sys::fuzz_target;
use profiler::{
    host::Host,
    job::{JobEnvironment, JobId, Scheduler, slurm_job_number},
    support::clock::{Clock, Tick, monotonic_ns},
    tasks::Description,
};
use test_support::Tree;

const PID: u32 = 4242;
const CMDLINE_MAX: usize = 64 << 10;
const ENVIRON_MAX: usize = 256 << 10;

/// Separator of the files.
const SEPARATOR: &[u8] = b"==\n";

struct Machine {
    tree: Tree,
    host: Host,
}

thread_local! {
    static MACHINE: Machine = machine();
}

/// A machine with one process, of root and of a program that is trusted to be Slurm's.
fn machine() -> Machine {
    let tree = Tree::of("vm", "fuzz-descriptions");
    processes::put(&tree, PID, 0, 100);
    symlink("/usr/sbin/slurmstepd", tree.path(format!("proc/{PID}/exe"))).unwrap();
    tree.put("members/cgroup.procs", format!("{PID}\n"));
    Machine {
        host: tree.host(),
        tree,
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((times, mut rest)) = data.split_first() else {
        return;
    };
    let mut next = || {
        let mark = rest
            .windows(SEPARATOR.len())
            .position(|window| window == SEPARATOR);
        let (file, after) = mark.map_or((rest, &[][..]), |mark| {
            (&rest[..mark], &rest[mark + SEPARATOR.len()..])
        });
        rest = after;
        file
    };
    let times = 1 << (times % 12);
    let [cmdline, environ] = [next(), next()].map(|content| content.repeat(times));
    let [stat, cgroup] = [next(), next()];
    MACHINE.with(|machine| {
        let files = [
            ("cmdline", &cmdline[..]),
            ("environ", &environ),
            ("stat", stat),
            ("cgroup", cgroup),
        ];
        for (name, content) in files {
            machine.tree.put(format!("proc/{PID}/{name}"), content);
        }
        check(machine, &cmdline, &environ, cgroup);
    });
});

fn check(machine: &Machine, cmdline: &[u8], environ: &[u8], cgroup: &[u8]) {
    let clock = Clock::new();
    let mut tasks = processes::table(&machine.host, clock);
    for number in 0..2 {
        let monotonic_ns = monotonic_ns();
        let tick = Tick {
            number,
            monotonic_ns,
            ts: clock.wall(monotonic_ns),
        };
        let _ = tasks.refresh(&tick, number == 1);
        tasks.deliver(None);
    }
    for process in tasks.iter() {
        described(&process.description, cmdline, cgroup);
    }
    let environment = JobEnvironment::read_all(&machine.host.procfs, &[PID]).next();
    let environment = environment.flatten().expect("an environment");
    let job = environment.job_id(Scheduler::Slurm);
    assert_eq!(
        job,
        variable(environ, "SLURM_JOB_ID").filter(|id| JobId::try_from((*id).to_owned()).is_ok())
    );
    let members = machine.tree.path("members");
    if let Some(number) = slurm_job_number(&machine.host.procfs, &members) {
        let title = format!("slurmstepd: [{number}");
        assert!(cmdline.starts_with(title.as_bytes()));
    }
}

fn described(description: &Description, cmdline: &[u8], cgroup: &[u8]) {
    if let Some(shown) = &description.cmdline {
        let text = shown.joined();
        assert!(text.len() <= CMDLINE_MAX);
        let whole = String::from_utf8_lossy(cmdline).replace('\0', " ");
        // An incomplete character at the end.
        let begin = text.trim_end_matches('\u{fffd}');
        assert!(whole.starts_with(begin), "{begin:?}");
        if !shown.truncated {
            assert!(whole.len() <= text.len() + 1);
        }
        assert!(shown.truncated || cmdline.len() <= CMDLINE_MAX);
    }
    if let Some(path) = &description.cgroup {
        let lines = String::from_utf8_lossy(cgroup);
        assert!(lines.lines().any(|line| line.ends_with(&**path)));
    }
}

/// The value of a variable: its last string within the limit.
fn variable<'a>(environ: &'a [u8], name: &str) -> Option<&'a str> {
    let whole = match environ.get(..ENVIRON_MAX) {
        Some(begin) if environ.len() > ENVIRON_MAX => {
            let end = begin.iter().rposition(|byte| *byte == 0)?;
            &begin[..end]
        }
        _ => environ,
    };
    let mut strings = whole.rsplit(|byte| *byte == 0);
    let value = strings.find_map(|string| {
        let value = string.strip_prefix(name.as_bytes())?;
        value.strip_prefix(b"=")
    })?;
    std::str::from_utf8(value)
        .ok()
        .filter(|value| !value.is_empty())
}

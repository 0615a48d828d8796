//! `profiler check` and `profiler events` on this kernel.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::fd::{FromRawFd as _, RawFd},
    process::Command,
};

use e2e::{runs::Profiler, setting};
use serde_json::Value;

use crate::kernel_release;

/// Variable with helpers of the kernel that are not to be used.
pub const UNUSED_HELPERS: &str = "PROFILER_UNUSED_HELPERS";

/// Sources that every kernel supports.
const EVERYWHERE: &[&str] = &["process", "usage", "sched"];

/// Linux with `bpf_loop`.
const LOOPS: [u32; 2] = [5, 17];
/// Programs that every kernel has: those that follow tasks, and those of block requests and sockets.
const PROGRAMS_MIN: usize = 16;
/// Limit of the instructions that the verifier may follow in a program: it takes some 0.4 µs for each.
const VERIFIED_MAX: u64 = 20_000;

/// Has the kernel count the runs of BPF programs until the file is closed (`BPF_ENABLE_STATS`).
pub fn count_runs() -> File {
    const ENABLE_STATS: libc::c_long = 32;
    let run_time = 0_u32;
    // SAFETY: the attributes of the command, and a descriptor that nothing else owns.
    unsafe {
        let length = size_of_val(&run_time);
        let fd = libc::syscall(libc::SYS_bpf, ENABLE_STATS, &raw const run_time, length);
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        File::from_raw_fd(RawFd::try_from(fd).expect("a descriptor"))
    }
}

#[test]
fn portable_programs_load() {
    let refused = |source: &&Value| {
        let name = source["source"].as_str().expect("a name");
        EVERYWHERE.contains(&name) && source["status"] != "ok"
    };
    let sources = check(&[]);
    let Some(first) = sources.iter().find(refused) else {
        return;
    };
    // Repeated for the log of the verifier, whose end has the reason.
    let again = check(&[("PROFILER_VERIFIER_LOG", "1")]);
    let again = again.iter().find(refused).unwrap_or(first);
    let why = again["why"].as_str().unwrap_or("without a reason");
    let lines: Vec<&str> = why.lines().collect();
    let end = &lines[lines.len().saturating_sub(60)..];
    panic!("{}: {}", first["source"], end.join("\n"));
}

/// Kernels before 5.17, 5.18 and 5.19 lack these helpers, and the same sources work.
#[test]
fn programs_load_without_helpers_of_later_kernels() {
    let helpers = [
        "BPF_FUNC_loop",
        "BPF_FUNC_map_lookup_percpu_elem",
        "BPF_FUNC_copy_from_user_task",
    ];
    let helpers = helpers.join(",");
    let unused = [(UNUSED_HELPERS, &*helpers)];
    let [all, without] = [&[][..], &unused].map(|environment| {
        let sources = check(environment).into_iter();
        let status = sources.map(|source| (source["source"].clone(), source["status"].clone()));
        status.collect::<Vec<_>>()
    });
    assert_eq!(without, all);
}

/// The verifier follows the paths of each program whenever the profiler starts.
#[test]
fn programs_are_cheap_to_verify() {
    // Older kernels have no `bpf_loop`, and before 5.16 no count.
    if kernel_release() < LOOPS {
        return;
    }
    let run = Profiler::new().args(["--node"]).start();
    let descriptors = format!("/proc/{}/fdinfo", run.pid());
    let descriptors = fs::read_dir(descriptors).expect("the profiler runs");
    let verified = descriptors.filter_map(|entry| {
        // A descriptor may have been closed meanwhile.
        let text = fs::read_to_string(entry.ok()?.path()).ok()?;
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let instructions = value("verified_insns:")?.trim().parse();
        let program = value("prog_id:")?.trim().to_owned();
        Some((program, instructions.expect("a number")))
    });
    let verified: BTreeMap<String, u64> = verified.collect();
    run.interrupt();
    let most = verified.values().max().copied().unwrap_or(0);
    assert!(verified.len() >= PROGRAMS_MIN, "{verified:?}");
    assert!(most <= VERIFIED_MAX, "{verified:?}");
}

/// An emulated CPU has no event table.
#[test]
fn raw_events_can_be_requested_on_any_cpu() {
    let text = profiler(&["events"], &[]);
    assert!(!text.trim().is_empty(), "the CPU or a note");
    let json: Value = serde_json::from_str(&profiler(&["events", "--json"], &[])).expect("JSON");
    let known = json.as_array().expect("a list").iter();
    for cpu in known {
        let name = cpu["name"].as_str().expect("a name");
        assert!(text.contains(name), "{name} is only in one of the outputs");
    }
}

/// The sources in `profiler check --json`.
fn check(environment: &[(&str, &str)]) -> Vec<Value> {
    let text = profiler(&["check", "--json"], environment);
    let check: Value = serde_json::from_str(&text).expect("JSON");
    check["sources"].as_array().expect("sources").clone()
}

/// Stdout of the profiler.
fn profiler(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let output = Command::new(setting("PROFILER_BIN"))
        .args(arguments)
        .envs(environment.iter().copied())
        .output()
        .expect("the profiler starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).expect("text")
}

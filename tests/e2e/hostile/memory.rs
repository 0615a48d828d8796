//! Processes whose memory, or whose many descriptors, the profiler would read without end.

use std::{fs, process::Command};

use e2e::{
    attacker::{UID, VICTIM, command_as, directory_of},
    dataset::Dataset,
    runs::{Profiler, wait_until},
    setting,
};
use rustix::fs::{CWD, FileType, Mode, chmod, makedev, mknodat};
use serde_json::Value;
use tempfile::TempDir;

use super::process_names::{Waiting, workload};

const TARGET: i32 = 3;

/// A process of the attacker that blocks every process that reads its memory.
struct Blocker {
    process: Waiting,
    _directory: TempDir,
}

impl Blocker {
    fn start(program: &std::path::Path) -> Self {
        let directory = directory_of(UID);
        // Distributions allow all users to open /dev/fuse.
        let device = directory.path().join("device");
        mknodat(
            CWD,
            &device,
            FileType::CharacterDevice,
            Mode::empty(),
            makedev(10, 229),
        )
        .expect("root makes devices");
        chmod(&device, Mode::from_raw_mode(0o666)).expect("our own");
        let file = directory.path().join("file");
        fs::write(&file, "").expect("written");
        let mut command = command_as(UID, program);
        let process = Waiting::start(command.arg("fuse").args([&device, &file]));
        let threads = format!("/proc/{}/task", process.pid());
        wait_until("a thread waits for the lock of the address space", || {
            let threads = fs::read_dir(&threads).expect("it is alive").flatten();
            let mut stats = threads.map(|thread| fs::read_to_string(thread.path().join("stat")));
            stats.any(|stat| stat.is_ok_and(|stat| stat.contains(") D ")))
        });
        Self {
            process,
            _directory: directory,
        }
    }
}

/// Losses of this kind by `run.json`: user and number.
fn lost(data: &Dataset, what: &str) -> Vec<(u64, u64)> {
    let losses = data.manifest()["losses"].clone();
    let losses = losses.as_array().expect("a list").iter();
    let losses = losses.filter(|loss| loss["what"] == what);
    let number = |loss: &Value, name: &str| loss[name].as_u64().expect("a number");
    losses
        .map(|loss| (number(loss, "uid"), number(loss, "count")))
        .collect()
}

/// Whether `profiler verify` shows a loss of the attacker, and finds nothing wrong.
#[track_caller]
fn assert_verified(data: &Dataset, what: &str) {
    let output = Command::new(setting("PROFILER_BIN"))
        .arg("verify")
        .arg(data.path())
        .output()
        .expect("the profiler starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let line = format!("{what} of user {UID} lost");
    assert!(
        output.status.success() && stdout.contains(&line),
        "{stdout}"
    );
}

#[test]
fn memory_that_blocks_hides_only_its_process() {
    let (_directory, program) = workload();
    let blocker = Blocker::start(&program);
    let victim = Waiting::start(command_as(VICTIM, &program).arg("0"));
    let mut running = Profiler::new()
        .args([
            "--node",
            "--source",
            "process,usage,overhead",
            "-i",
            "200ms",
        ])
        .start();
    let run = Dataset::new(running.run_dir());
    run.wait_for_row("overhead", "the loss", |row| {
        row.text("component") == Some("tasks") && row.u64("dropped").is_some_and(|lost| lost > 0)
    });
    run.wait_for_row("usage", "the footprint of the victim", |row| {
        row.u64("pid") == Some(victim.pid().into()) && row.u64("pss").is_some()
    });
    assert!(!running.has_ended());
    let finished = running.interrupt();
    let (pid, victim) = (blocker.process.pid(), victim.pid());
    drop(blocker);
    let data = finished.dataset();
    let named: Vec<(u32, bool)> = data.rows(&format!(
        "SELECT pid, cmdline IS NOT NULL FROM process WHERE pid IN ({pid}, {victim}) ORDER BY pid"
    ));
    let mut expected = vec![(pid, false), (victim, true)];
    expected.sort_unstable();
    assert_eq!(named, expected);
    // Of those that have memory, are in all samples, and started before the profiler, whose helpers start
    // with the first reading.
    let unknown: Vec<(u32,)> = data.rows(&format!(
        "SELECT pid FROM usage SEMI JOIN (SELECT pid FROM process WHERE start_ts <= \
         (SELECT start_ts FROM process WHERE pid = {victim})) USING (pid) \
         GROUP BY pid HAVING min(rss) > 0 AND count(pss) = 0 AND \
         min(ts) = (SELECT min(ts) FROM usage) AND max(ts) = (SELECT max(ts) FROM usage)"
    ));
    // The footprint of the attacker can be read until its command line is.
    assert!(
        unknown.iter().all(|(other,)| *other == pid),
        "{unknown:?}: {}",
        finished.stderr
    );
    assert_eq!(lost(&data, "memory readings"), [(UID.into(), 1)]);
    assert!(
        finished
            .stderr
            .contains(&format!("1 memory reading of user {UID} lost")),
        "{}",
        finished.stderr
    );
    assert_verified(&data, "memory reading");
}

#[test]
fn memory_that_blocks_does_not_delay_the_search_for_a_job() {
    let (_directory, program) = workload();
    let _blocker = Blocker::start(&program);
    let search = || {
        Profiler::new()
            .args(["--job", "900108", "--scheduler", "slurm", "--wait", "1s"])
            .env("PATH", "/nowhere")
    };
    // Also a user whose processes cannot be of the job is not read.
    let refused = search().finish();
    refused.assert_refused(TARGET, "job 900108 (Slurm) has no process on this node");
    let mut command = command_as(VICTIM, &program);
    let job = Waiting::start(command.arg("0").env("SLURM_JOB_ID", "900108"));
    let running = search().start();
    let finished = running.interrupt();
    let pids: Vec<(u32,)> = finished.dataset().rows("SELECT pid FROM process");
    assert_eq!(pids, [(job.pid(),)], "{}", finished.stderr);
}

#[test]
fn descriptors_of_a_user_have_a_budget() {
    const PROCESSES: usize = 24;
    const EACH: u64 = 4000;
    // Limit of docs/architecture.md.
    const OF_USER: u64 = 32768;
    let (_directory, program) = workload();
    let hoarder = || {
        let script = "ulimit -n 4096; exec \"$0\" descriptors \"$1\"";
        let mut command = command_as(UID, "sh");
        command.args(["-c", script]).arg(&program);
        Waiting::start(command.arg(EACH.to_string()))
    };
    let hoarders: Vec<Waiting> = (0..PROCESSES).map(|_| hoarder()).collect();
    let victim = Waiting::start(command_as(VICTIM, &program).args(["descriptors", "100"]));
    let mut pids: Vec<u32> = hoarders.iter().map(Waiting::pid).collect();
    pids.push(victim.pid());
    let pids = pids
        .iter()
        .flat_map(|pid| ["--pid".to_owned(), pid.to_string()]);
    let running = Profiler::new()
        .args(["--source", "process,usage", "-i", "200ms"])
        .args(pids)
        .start();
    let run = Dataset::new(running.run_dir());
    run.wait_for_row("usage", "the footprint of the victim", |row| {
        row.u64("pid") == Some(victim.pid().into()) && row.u64("pss").is_some()
    });
    let finished = running.interrupt();
    let data = finished.dataset();
    // Each reading of a footprint has those of the descriptors.
    let readings: Vec<(u64, u64)> = data.rows(&format!(
        "SELECT count(pss), count(open_files) FROM usage WHERE pid != {} AND pss IS NOT NULL \
         GROUP BY ts",
        victim.pid()
    ));
    assert!(!readings.is_empty());
    for (read, counted) in &readings {
        assert_eq!(*read, PROCESSES as u64);
        assert!((1..=OF_USER / EACH).contains(counted), "{readings:?}");
    }
    let (read, counted): (u64, u64) = data.row(&format!(
        "SELECT count(pss), count(open_files) FROM usage WHERE pid = {}",
        victim.pid()
    ));
    assert!(read > 0 && read == counted, "{read} and {counted}");
    let lost = lost(&data, "descriptor readings");
    let least = PROCESSES as u64 - OF_USER / EACH;
    assert!(
        matches!(lost[..], [(uid, count)] if uid == u64::from(UID) && count >= least),
        "{lost:?}"
    );
    assert_verified(&data, "descriptor readings");
}

//! `process`: each process has one row, from fork to exit, however short-lived it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
};

use e2e::{
    dataset::Dataset,
    procfs,
    runs::{ProcessGroup, Profiler, wait_until},
};
use rustix::process::{Pid, Signal, kill_process};

/// Asserts properties of every correct run.
#[track_caller]
pub fn assert_sound(data: &Dataset) {
    let double: u64 = data.value(
        "SELECT count(*) FROM (SELECT 1 FROM process GROUP BY pid, start_ts HAVING count(*) > 1)",
    );
    assert_eq!(double, 0, "processes with more than one row");
    let disordered: u64 = data.value(
        "SELECT count(*) FROM process WHERE start_ts > ts OR end_ts < start_ts OR end_ts > ts",
    );
    assert_eq!(disordered, 0, "ends before starts");
    let both: u64 = data.value(
        "SELECT count(*) FROM process WHERE (exit_code IS NOT NULL AND exit_signal IS NOT NULL) \
         OR (end_ts IS NULL AND (exit_code IS NOT NULL OR exit_signal IS NOT NULL))",
    );
    assert_eq!(both, 0, "contradictory ends");
}

#[test]
fn short_lived_processes_are_all_recorded() {
    let script = "i=0; while [ $i -lt 2000 ]; do /bin/true; i=$((i+1)); done";
    let finished = Profiler::new().command(&["sh", "-c", script]).finish();
    let data = finished.dataset();
    assert_sound(&data);
    let shell: u32 = data.value("SELECT pid FROM process WHERE comm = 'sh'");
    // The path as passed to exec: most processes end before `/proc/PID/exe` can be read.
    let exe = fs::canonicalize("/bin/true").expect("/bin/true");
    let exe = exe.to_str().expect("UTF-8");
    let good: u64 = data.value(&format!(
        "SELECT count(*) FROM process WHERE comm = 'true' AND exit_code = 0 AND oncpu_ns > 0 \
         AND user_ns + system_ns > 0 AND minor_faults > 0 AND peak_rss > 0 AND ppid = {shell} \
         AND cmdline = '/bin/true' AND exe IN ('/bin/true', '{exe}') AND end_ts > start_ts AND uid = 0"
    ));
    let rows: u64 = data.value("SELECT count(*) FROM process");
    assert_eq!((good, rows), (2000, 2001));
}

/// The increases of all samples add up to the lifetime total.
#[test]
fn usage_rows_of_a_short_lived_process_sum_to_its_totals() {
    let script = "i=0; while [ $i -lt 50 ]; do /bin/true; sleep 0.013; i=$((i+1)); done";
    let finished = Profiler::new()
        .args(["-i", "50ms"])
        .command(&["sh", "-c", script])
        .finish();
    let rows: Vec<(u32, u64, u64)> = finished.dataset().rows(
        "SELECT pid, any_value(p.oncpu_ns), sum(s.oncpu_ns) FROM process p JOIN sched s USING (pid, start_ts) \
         WHERE p.comm <> 'sh' GROUP BY pid, start_ts",
    );
    assert_eq!(rows.len(), 100);
    for (pid, life, ticks) in rows {
        assert_eq!(life, ticks, "process {pid}");
    }
}

#[test]
fn exit_codes_and_signals_are_distinct() {
    let script = "echo crash | $0; echo exit 42 | $0; sh -c 'kill -TERM $$'; true";
    let finished = Profiler::new()
        .command(&["sh", "-c", script, crate::WORKLOAD])
        .finish();
    let data = finished.dataset();
    assert_sound(&data);
    let mut ends: Vec<(String, Option<i32>, Option<i32>)> = data.rows(
        "SELECT comm, exit_code, exit_signal FROM process WHERE cmdline NOT LIKE '%crash%' \
         AND (exit_code > 0 OR exit_signal > 0)",
    );
    ends.sort();
    let end = |comm: &str, code, signal| (comm.to_owned(), code, signal);
    let expected = [
        end("sh", None, Some(15)),
        end("workload", None, Some(11)),
        end("workload", Some(42), None),
    ];
    assert_eq!(ends, expected);
}

/// A binary tree of processes. Of the two children of a process of root, `$2` starts one as user
/// nobody. The exit code of a process is its level.
const TREE: &str = r#"
    if [ "$1" -gt 0 ]; then
        $2 sh -c "$TREE" sh $(($1 - 1)) "" &
        sh -c "$TREE" sh $(($1 - 1)) "$2" &
        wait
    fi
    exit "$1""#;

#[test]
fn process_tree_of_five_levels_and_two_users_is_complete() {
    let become_nobody = "setpriv --reuid 65534 --clear-groups";
    let finished = Profiler::new()
        .env("TREE", TREE)
        .command(&["sh", "-c", TREE, "sh", "5", become_nobody])
        .finish();
    assert_eq!(finished.code(), 5, "{}", finished.stderr);
    let data = finished.any_dataset();
    assert_sound(&data);
    let rows: Vec<(u32, u32, u32, i32)> =
        data.rows("SELECT pid, ppid, uid, exit_code FROM process");
    let level = |pid| rows.iter().find(|row| row.0 == pid).map(|row| row.3);
    let mut count = BTreeMap::new();
    for (_, ppid, uid, code) in &rows {
        *count.entry((*code, *uid)).or_insert(0) += 1;
        assert!(*code == 5 || level(*ppid) == Some(code + 1), "under {ppid}");
    }
    // One of the 2^n processes of a level runs as root.
    let mut expected = BTreeMap::from([((5, 0), 1)]);
    for level in 0..5 {
        expected.insert((level, 0), 1);
        expected.insert((level, 65534), (1 << (5 - level)) - 1);
    }
    assert_eq!(count, expected);
}

#[test]
fn exec_keeps_the_row_and_updates_the_program() {
    let script = "exec sh -c 'exec sleep 0.1'";
    let finished = Profiler::new().command(&["sh", "-c", script]).finish();
    let data = finished.dataset();
    let exe = fs::canonicalize("/bin/sleep").expect("sleep");
    let row: (String, String, String) = data.row("SELECT comm, cmdline, exe FROM process");
    let expected = ("sleep", "sleep 0.1", exe.to_str().expect("UTF-8"));
    assert_eq!((&*row.0, &*row.1, &*row.2), expected);
}

#[test]
fn processes_started_before_the_profiler_are_followed() {
    let shell = ProcessGroup::spawn(&[
        "sh",
        "-c",
        "exec 2>/dev/null; (sleep 1000; exit 3) & (sleep 1001; exit 4) & wait",
    ]);
    let of = procfs::children;
    let sleeps = || of(shell.pid()).into_iter().flat_map(of).collect::<Vec<_>>();
    wait_until("the tree is complete", || {
        let named = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "sleep\n")
        };
        sleeps().iter().filter(|pid| named(pid)).count() == 2
    });
    let mut expected: BTreeSet<u32> = of(shell.pid()).into_iter().chain(sleeps()).collect();
    expected.insert(shell.pid());
    let profiler = Profiler::new().pid(shell.pid()).start();
    for pid in sleeps() {
        let pid = Pid::from_raw(pid.cast_signed()).expect("not 0");
        kill_process(pid, Signal::TERM).expect("our process");
    }
    let finished = profiler.finish();
    let data = finished.dataset();
    assert_sound(&data);
    let rows: Vec<(u32, String, Option<i32>, Option<i32>)> =
        data.rows("SELECT pid, comm, exit_code, exit_signal FROM process");
    let pids: BTreeSet<u32> = rows.iter().map(|row| row.0).collect();
    assert_eq!(pids, expected);
    let mut ends: Vec<_> = rows
        .iter()
        .map(|(_, comm, code, signal)| (comm.as_str(), *code, *signal))
        .collect();
    ends.sort_unstable();
    let killed = ("sleep", None, Some(15));
    let expected = [
        ("sh", Some(0), None),
        ("sh", Some(3), None),
        ("sh", Some(4), None),
        killed,
        killed,
    ];
    assert_eq!(ends, expected);
}

/// Forks continuously, on two levels; each child logs its pid.
const STORM: &str = r#"
    storm() { while :; do sh -c 'echo $$ >>"$0"; sh -c "echo \$\$ >>$0" & wait' "$1"; done; }
    storm "$0" & storm "$0" & storm "$0""#;

#[test]
fn no_fork_is_lost_while_attaching() {
    for _ in 0..5 {
        let directory = tempfile::TempDir::new().expect("a directory");
        let log = directory.path().join("log");
        let name = log.to_str().expect("UTF-8");
        let storm = ProcessGroup::spawn(&["sh", "-c", STORM, name]);
        let size = || fs::metadata(&log).map_or(0, |log| log.size());
        wait_until("processes are being forked", || size() > 200);
        let profiler = Profiler::new().pid(storm.pid()).start();
        let begin = size();
        wait_until("there are 4000 more processes", || size() > begin + 4000);
        // All processes in the log live, or have ended after the profiler attached.
        let text = fs::read_to_string(&log).expect("the log");
        let finished = profiler.interrupt();
        let family: BTreeSet<u32> = {
            let begin = usize::try_from(begin).expect("small");
            let lines = text[begin..].lines();
            lines.map(|pid| pid.parse().expect("pid")).collect()
        };
        drop(storm);
        let data = finished.dataset();
        assert_sound(&data);
        let pids: Vec<(u32,)> = data.rows("SELECT pid FROM process");
        let pids: BTreeSet<u32> = pids.into_iter().map(|row| row.0).collect();
        let lost: Vec<_> = family.difference(&pids).collect();
        assert!(
            lost.is_empty(),
            "{} of {} lost: {lost:?}",
            lost.len(),
            family.len()
        );
    }
}

//! `process`: one row per process, with its exit status.

use std::collections::{BTreeMap, BTreeSet};

use e2e::{rows::Row, runs::Profiler};

use crate::programs::UNUSED_HELPERS;

const PROCESSES: u64 = 120;
const CODES: u64 = 7;

#[test]
fn short_lived_processes_have_one_row_with_exit_code() {
    let script = format!(
        "i=0; while [ $i -lt {PROCESSES} ]; do (exit $((i % {CODES}))); i=$((i+1)); done; exit 0"
    );
    let finished = Profiler::new().command(&["sh", "-c", &script]).finish();
    let rows = finished.dataset().table("process");
    let pids: BTreeSet<_> = rows.iter().map(|row| row.u64("pid")).collect();
    let is_shell = |row: &&Row| !pids.contains(&row.u64("ppid"));
    let shell = rows.iter().find(is_shell).expect("the shell").u64("pid");
    let mut ends = BTreeMap::new();
    let mut lives = BTreeMap::new();
    for row in &rows {
        let life = (row.u64("pid"), row.i64("start_ts"));
        *lives.entry(life).or_insert(0) += 1;
        assert!(row.i64("end_ts") >= row.i64("start_ts"), "{row:?}");
        assert_eq!(row.i64("exit_signal"), None, "{row:?}");
        if row.u64("ppid") == shell {
            *ends.entry(row.i64("exit_code")).or_insert(0) += 1;
        }
    }
    assert!(lives.values().all(|rows| *rows == 1), "{lives:?}");
    let mut expected = BTreeMap::new();
    for process in 0..PROCESSES {
        let code = i64::try_from(process % CODES).ok();
        *expected.entry(code).or_insert(0) += 1;
    }
    assert_eq!(ends, expected);
}

/// The variables come with the exec: the process ends before anyone reads its environment.
#[test]
fn rank_of_a_short_lived_program_is_known() {
    // 200 other variables come first.
    let script = "for n in $(seq 200); do export OTHER_$n=$n; done; \
                  for rank in 0 1 2; do env SLURM_JOB_ID=4000020 SLURM_PROCID=$rank true; done; true";
    for unused in ["", "BPF_FUNC_loop"] {
        let finished = Profiler::new()
            .env(UNUSED_HELPERS, unused)
            .command(&["env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", script])
            .finish();
        let mut rows = finished.dataset().table("process");
        rows.retain(|row| row.text("comm") == Some("true"));
        let ranks: BTreeSet<_> = rows.iter().map(|row| row.u64("task_rank")).collect();
        assert_eq!(ranks, [Some(0), Some(1), Some(2)].into(), "{rows:?}");
        let is_of_job = |row: &Row| row.text("job_id") == Some("4000020");
        assert!(rows.iter().all(is_of_job), "{rows:?}");
    }
}

#[test]
fn killed_process_has_signal_and_no_exit_code() {
    let script = "sh -c 'kill -TERM $$'; echo crash | $0; exit 3";
    let finished = Profiler::new()
        .command(&["sh", "-c", script, crate::WORKLOAD])
        .finish();
    assert_eq!(finished.code(), 3, "{}", finished.stderr);
    let rows = finished.any_dataset().table("process");
    let ends = |comm: &str| {
        let rows = rows.iter().filter(|row| row.text("comm") == Some(comm));
        let mut ends: Vec<_> = rows
            .map(|row| (row.i64("exit_code"), row.i64("exit_signal")))
            .collect();
        ends.sort_unstable();
        ends
    };
    assert_eq!(ends("workload"), [(None, Some(11))]);
    // The two shells, and the subshell of the pipe.
    let shells = [(None, Some(15)), (Some(0), None), (Some(3), None)];
    assert_eq!(ends("sh"), shells);
}

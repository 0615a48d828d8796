//! Recovery in an output directory with malicious files in place of runs of killed profilers.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt as _, chown},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
};

use arrow::{
    array::{ArrayRef, Int32Array, RecordBatch, UInt64Array, UnionArray},
    buffer::ScalarBuffer,
    datatypes::{DataType, Field, Schema, UnionFields},
    ipc::writer::StreamWriter,
};
use e2e::{
    attacker::UID,
    dataset::Dataset,
    runs::{ProcessGroup, Profiler, wait_until},
    setting,
};
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::Signal,
};
use tempfile::TempDir;

/// Creates a run whose profiler appears to have been killed, with a journal of table `usage`.
fn killed_run(out: &Path, name: &str, journal: &[u8]) -> PathBuf {
    let node = rustix::system::uname();
    let hostname = node.nodename().to_str().expect("text");
    let run = out.join(name);
    let directory = run.join("usage").join(format!("host={hostname}"));
    fs::create_dir_all(&directory).expect("directories");
    let manifest = serde_json::json!({
        "run_id": name,
        "hostname": hostname,
        "state": "running",
        "process": { "pid": 1, "start_ticks": 1, "boot_id": "another" },
    });
    fs::write(run.join("run.json"), manifest.to_string()).expect("written");
    let path = directory.join("_part-00000.arrows");
    fs::write(&path, journal).expect("written");
    path
}

fn stream(batch: &RecordBatch) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::try_new(&mut bytes, &batch.schema()).expect("a stream");
    writer.write(batch).expect("a batch");
    drop(writer);
    bytes
}

/// A journal with a column of a type that Parquet lacks.
fn journal_with_union() -> Vec<u8> {
    let fields =
        UnionFields::try_new([0], [Field::new("a", DataType::Int32, true)]).expect("fields");
    let types = ScalarBuffer::from(vec![0_i8; 3]);
    let values: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
    let union = UnionArray::try_new(fields, types, None, vec![values]).expect("a union");
    let batch = RecordBatch::try_from_iter([("u", Arc::new(union) as ArrayRef)]);
    stream(&batch.expect("a batch"))
}

/// A journal whose batch has a header with a body length of 1 TiB, in a sparse file of `length`
/// bytes.
fn journal_with_huge_body(path: &Path, length: u64) {
    let values = |value| Arc::new(UInt64Array::from(vec![value; 1000])) as ArrayRef;
    let schema = Arc::new(Schema::new(vec![
        Field::new("a", DataType::UInt64, false),
        Field::new("b", DataType::UInt64, false),
    ]));
    let batch = RecordBatch::try_new(schema, vec![values(7), values(8)]).expect("a batch");
    let mut bytes = stream(&batch);
    let body = bytes.windows(8).position(|at| at == 7_u64.to_le_bytes());
    let body = body.expect("the first value");
    let claimed = (bytes.len() - body).next_multiple_of(64);
    // The length of the body is the only number of this size in the header.
    let claims: Vec<usize> = (0..body)
        .step_by(8)
        .filter(|at| {
            let number = bytes[*at..*at + 8].try_into().map(u64::from_le_bytes);
            number.is_ok_and(|number| number.abs_diff(claimed as u64) < 512)
        })
        .collect();
    assert_eq!(claims.len(), 1, "{claims:?}");
    bytes[claims[0]..claims[0] + 8].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    let file = File::create(path).expect("a file");
    file.write_all_at(&bytes, 0).expect("written");
    file.set_len(length).expect("a sparse file");
}

/// Runs `profiler COMMAND RUN` with a memory limit in KiB.
fn with_memory(kib: u32, command: &str, run: &Path) -> Output {
    Command::new("sh")
        .args(["-c", &format!("ulimit -v {kib}; exec \"$0\" \"$@\"")])
        .arg(setting("PROFILER_BIN"))
        .arg(command)
        .arg(run)
        .output()
        .expect("a shell")
}

/// Asserts that new runs in the same directory end soon and are complete: one of a command that
/// ends, and one that is interrupted.
#[track_caller]
fn assert_new_runs_complete(out: &Path) {
    let interrupted = Profiler::writing_to(out)
        .args(["--run-id", "interrupted", "--source", "system,process"])
        .command(&["sleep", "600"])
        .start();
    interrupted.signal(Signal::TERM);
    // Fails if it hangs.
    interrupted.finish();
    Dataset::new(out.join("interrupted")).assert_complete();
    let finished = Profiler::writing_to(out)
        .args(["--run-id", "own", "--source", "system,process"])
        .command(&["true"])
        .finish();
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    Dataset::new(out.join("own")).assert_complete();
}

#[test]
fn fifo_as_run_json_does_not_hang() {
    for owner in [0, UID] {
        let out = TempDir::new().expect("a temporary directory");
        let trap = out.path().join("trap");
        fs::create_dir(&trap).expect("a directory");
        mknodat(
            CWD,
            trap.join("run.json"),
            FileType::Fifo,
            Mode::from_raw_mode(0o666),
            0,
        )
        .expect("a pipe");
        chown(&trap, Some(owner), Some(owner)).expect("root gives files away");
        assert_new_runs_complete(out.path());
        for command in ["recover", "verify"] {
            let output = with_memory(4 << 20, command, &trap);
            assert_ne!(output.status.code(), None, "{command}: {output:?}");
        }
    }
}

/// A profiler does not decode files of other users.
#[test]
fn runs_of_other_users_are_left_alone() {
    let out = TempDir::new().expect("a temporary directory");
    let journal = killed_run(out.path(), "trap", b"anything");
    chown(out.path().join("trap"), Some(UID), Some(UID)).expect("root gives files away");
    assert_new_runs_complete(out.path());
    assert_eq!(fs::read(journal).expect("still there"), b"anything");
}

#[test]
fn columns_of_unexpected_types_are_not_decoded() {
    let out = TempDir::new().expect("a temporary directory");
    let journal = killed_run(out.path(), "trap", &journal_with_union());
    let run = out.path().join("trap");
    let verified = with_memory(4 << 20, "verify", &run);
    assert_eq!(verified.status.code(), Some(7), "{verified:?}");
    assert_new_runs_complete(out.path());
    let kept = journal.with_extension("arrows.corrupt");
    assert!(
        !journal.exists() && kept.exists(),
        "the journal is kept under another name"
    );
}

/// A sparse file of 8 GiB is not read into memory.
#[test]
fn oversized_ipc_message_is_rejected() {
    let out = TempDir::new().expect("a temporary directory");
    let journal = killed_run(out.path(), "trap", b"");
    journal_with_huge_body(&journal, 8 << 30);
    let run = out.path().join("trap");
    for command in ["verify", "recover"] {
        let output = with_memory(2 << 20, command, &run);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code().is_some_and(|code| code != 101),
            "{command}: {stderr}"
        );
        let all = format!("{}{stderr}", String::from_utf8_lossy(&output.stdout));
        assert!(all.contains("a message is too long"), "{command}: {all}");
    }
    assert!(
        journal.with_extension("arrows.corrupt").exists(),
        "the journal is kept under another name"
    );
}

/// The first sample does not wait for the recovery of other runs.
#[test]
fn recovery_starts_after_the_first_sample() {
    let out = TempDir::new().expect("a temporary directory");
    let command = ProcessGroup::spawn(&["sleep", "600"]);
    let killed = Profiler::writing_to(out.path())
        .args(["--run-id", "killed", "-i", "100ms"])
        .pid(command.pid())
        .start();
    Dataset::new(killed.run_dir()).wait_for_samples("system", 3);
    killed.kill();
    let mut next = Profiler::writing_to(out.path())
        .args(["--run-id", "next", "-i", "100ms"])
        .pid(command.pid())
        .start();
    assert!(!next.stderr().contains("recovered"), "{}", next.stderr());
    next.wait_for("recovered ");
    wait_until("run.json has the state", || {
        Dataset::new(out.path().join("killed")).manifest()["state"] == "recovered"
    });
    assert_eq!(next.interrupt().code(), 0);
}

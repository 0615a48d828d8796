//! A sample reads only the counters that have changed since the last one.

use e2e::{
    dataset::Dataset,
    mounts::directory,
    rows::Row,
    runs::{Profiler, wait_until},
    writer::Writer,
};

const ROUNDS: usize = 4;
const BYTES: [u8; 1000] = [b'x'; 1000];

/// Each write is in a row of its own: not in that of an earlier sample, and not in that of the last one,
/// which reads all counters.
fn check(writers: usize, args: &[&str]) {
    let directory = directory();
    let path = |number: usize| directory.path().join(number.to_string());
    let mut writers: Vec<Writer> = (0..writers).map(|n| Writer::start(path(n))).collect();
    let pids = writers.iter().map(Writer::pid);
    let mut profiler =
        Profiler::new().args(["-i", "20ms", "--source", "file_io=syscalls,process,system"]);
    for pid in pids.clone() {
        profiler = profiler.pid(pid);
    }
    let pids: Vec<u64> = pids.map(u64::from).collect();
    let run = profiler.args(args).start();
    let data = Dataset::new(run.run_dir());
    for round in 1..=ROUNDS {
        for writer in &mut writers {
            writer.write(&BYTES);
        }
        wait_until("the bytes are in the files", || {
            let bytes = (round * BYTES.len()) as u64;
            writers.iter().all(|writer| writer.written() == bytes)
        });
        // A write that ends during the first one is in the second one.
        data.wait_for_samples("system", 2);
    }
    writers.into_iter().for_each(Writer::end);
    let finished = run.finish();
    let rows = finished.dataset().table("file_io");
    for pid in pids {
        let written = |row: &Row| {
            let bytes = row.u64("write_bytes").filter(|bytes| *bytes != 0);
            bytes.filter(|_| row.u64("pid") == Some(pid))
        };
        let written: Vec<u64> = rows.iter().filter_map(written).collect();
        assert_eq!(written, [BYTES.len() as u64; ROUNDS], "{pid}");
    }
}

#[test]
fn each_change_is_in_the_next_sample() {
    check(3, &[]);
}

/// The list has space for 102 keys. Without space, all counters are read.
#[test]
fn changes_that_are_not_listed_are_read_too() {
    check(120, &["--map-entries", "CHANGED=4096"]);
}

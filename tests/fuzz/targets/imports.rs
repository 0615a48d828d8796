//! Files of perfmon and Flowcept, up to rows with the types of their tables.

#![no_main]

use std::{fs, path::PathBuf};

use libfuzzer_sys::fuzz_target;
use profiler::{
    failure::Reason,
    import::{batches, flowcept, perfmon},
};

thread_local! {
    static DIRECTORY: PathBuf = {
        let name = format!("profiler-fuzz-imports-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        directory
    };
}

const NAMES: [&str; 4] = [
    "cpu_metrics.json",
    "perf_metrics.json",
    "nv_gpu_metrics.json",
    "flowcept.jsonl",
];

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else {
        return;
    };
    let name = NAMES[usize::from(*kind) % NAMES.len()];
    let hosts = DIRECTORY.with(|directory| {
        let path = directory.join(name);
        fs::write(&path, data).unwrap();
        match name {
            "flowcept.jsonl" => flowcept::hosts(&path),
            _ => perfmon::hosts(&path),
        }
    });
    match hosts {
        Ok(hosts) => {
            for host in hosts.into_values() {
                let rows: usize = host.tables.values().map(Vec::len).sum();
                let batches = batches(host.tables).unwrap();
                let stored: usize = batches.iter().map(|batch| batch.rows.num_rows()).sum();
                assert_eq!(stored, rows);
            }
        }
        Err(failure) => {
            assert_eq!(failure.reason, Reason::Target);
            assert_eq!(failure.message.lines().count(), 1, "{failure}");
        }
    }
});

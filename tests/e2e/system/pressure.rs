//! Pressure stall information of the node.

use std::{fs, path::Path};

use e2e::{
    rows::sum,
    runs::{ProcessGroup, Profiler},
};

use super::commands::sh;

/// `total=` of a line of a pressure file, in ns.
pub fn pressure(file: &Path, line: &str) -> u64 {
    let text = fs::read_to_string(file).expect("PSI");
    let line = text.lines().find_map(|text| text.strip_prefix(line));
    let total = line.and_then(|line| line.split_once("total="));
    let total: u64 = total.expect("a total").1.parse().expect("a number");
    total * 1000
}

const PRESSURES: [(&str, &str, &str); 4] = [
    ("psi_cpu_some_ns", "cpu", "some"),
    ("psi_io_some_ns", "io", "some"),
    ("psi_io_full_ns", "io", "full"),
    ("psi_memory_some_ns", "memory", "some"),
];

#[test]
fn pressure_matches_the_kernel() {
    let directory = Path::new("/proc/pressure");
    let read = || PRESSURES.map(|(_, kind, line)| pressure(&directory.join(kind), line));
    let before = read();
    let profiler = Profiler::new()
        .args(["--node", "--source", "system", "-i", "500ms"])
        .start();
    let after_start = read();
    // More threads than CPUs, and a process that waits for the disk.
    let _load: Vec<_> = (0..4)
        .map(|_| ProcessGroup::spawn(&["sh", "-c", "while :; do :; done"]))
        .collect();
    sh("dd if=/dev/zero of=/srv/pressure bs=64k count=64 oflag=direct,sync");
    let before_end = read();
    let ended = profiler.interrupt();
    let data = ended.dataset();
    let after = read();
    let rows = data.table("system");
    for (index, (column, ..)) in PRESSURES.iter().enumerate() {
        let least = before_end[index] - after_start[index];
        let most = after[index] - before[index];
        let counted = sum(&rows, column);
        assert!(
            least <= counted && counted <= most,
            "{column}: {counted} is not in {least}..={most}"
        );
    }
    let cpu = sum(&rows, "psi_cpu_some_ns");
    assert!(cpu > 100_000_000, "no pressure: {cpu}");
}

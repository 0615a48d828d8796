//! What counters of instructions and cycles tell about the bound of a run, and what they do not.

use e2e::runs::{Finished, Profiler};

use super::timeline::table;
use crate::WORKLOAD;

/// The names of the findings, and the instructions per cycle.
fn found(run: &Finished) -> (Vec<String>, f64) {
    let data = run.dataset();
    let findings = data.findings();
    let names = findings
        .iter()
        .map(|one| one["name"].as_str().expect("a name").to_owned());
    let timeline = data.table("timeline");
    let sum = |column| {
        timeline
            .iter()
            .filter_map(|row| row.f64(column))
            .sum::<f64>()
    };
    (
        names.collect(),
        sum("target_instructions") / sum("target_cycles"),
    )
}

/// The emulated PMU counts instructions and cycles, one for each other, and neither stalls nor
/// misses: a loop that computes and one that waits for memory look the same. With a table whose
/// `mem_bw` is 17 bytes per instruction, much seems to be read from memory, but no CPU waits for it.
#[test]
fn busy_pipelines_do_not_wait_for_memory() {
    for table in [None, table()] {
        let mut profiler = Profiler::new().args(["-i", "200ms"]);
        if let Some(table) = &table {
            let directory = table.path().to_str().expect("UTF-8");
            profiler = profiler.args(["--perfevents", directory, "--groups", "HW,MEM"]);
        }
        let run = profiler.command(&[WORKLOAD, "cpu", "2000"]).finish();
        let (names, ipc) = found(&run);
        assert!(ipc > 0.7, "{ipc} instructions per cycle");
        // Beside other work, it waits for a CPU.
        let has = |name: &str| names.iter().any(|found| found == name);
        assert!(
            (has("compute") || has("run queue")) && !has("memory access"),
            "{ipc} instructions per cycle: {names:?}"
        );
    }
}

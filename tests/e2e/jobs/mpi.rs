//! The PMPI layer of `clients/mpi`, on four ranks.

use e2e::{
    dataset::Dataset,
    runs::{Finished, Profiler},
};
use tempfile::TempDir;

use super::MPIRUN;
use crate::clients::compile;

/// Runs a test program with the layer, which marks calls of 30 ms or more.
fn run(compiler: &str, source: &str) -> Finished {
    run_with(compiler, source, 4, None)
}

/// Runs a test program with this argument instead of a file.
fn run_with(compiler: &str, source: &str, ranks: u32, argument: Option<&str>) -> Finished {
    let directory = TempDir::new().expect("a directory");
    let path = |name| directory.path().join(name).display().to_string();
    let [layer, program, data] = ["layer.so", "program", "data"].map(path);
    let data = argument.map_or(data, str::to_owned);
    let options = ["-std=gnu11", "-fPIC", "-shared"];
    compile("mpicc", &options, "mpi/profiler_mpi.c", &layer);
    // mpif.h declares hundreds.
    compile(compiler, &["-Wno-unused-parameter"], source, &program);
    let command = format!("{MPIRUN} -n {ranks} -x LD_PRELOAD={layer} {program} {data}");
    let command: Vec<_> = command.split(' ').collect();
    Profiler::new()
        .env("PROFILER_MPI_MIN_US", "30000")
        .command(&command)
        .finish()
}

/// Function, calls and bytes of all ranks.
fn totals(data: &Dataset) -> Vec<(String, u64, u64)> {
    data.rows(
        "SELECT f.key, sum((f.value->>'calls')::BIGINT)::BIGINT, sum((f.value->>'bytes')::BIGINT)::BIGINT \
         FROM region, json_each(attributes, '$.functions') f WHERE name = 'MPI_totals' \
         GROUP BY 1 ORDER BY 1",
    )
}

fn total(function: &str, calls: u64, bytes: u64) -> (String, u64, u64) {
    (format!("MPI_{function}"), calls, bytes)
}

/// Asserts that each rank has its regions, and that the phases are those that the totals count.
/// Other calls than those for which the program waits are long only on a busy machine.
fn check(data: &Dataset) {
    data.assert_complete();
    let each: Vec<(String, String, u64, u64)> = data.rows(
        "SELECT name, op, count(*), count(DISTINCT attributes->>'rank') FROM region \
         WHERE kind = 'mpi' AND op <> 'phase' GROUP BY ALL ORDER BY name",
    );
    let row = |name: &str, op: &str, ranks| (name.to_owned(), op.to_owned(), 4, ranks);
    let expected = [
        row("MPI_Finalize", "region", 0),
        row("MPI_Init", "region", 4),
        row("MPI_totals", "event", 4),
    ];
    assert_eq!(each, expected);
    let [phases, marked]: [u64; 2] = data.row(
        "SELECT (SELECT count(*) FROM region WHERE kind = 'mpi' AND op = 'phase'), \
         sum((f.value->>'marked')::BIGINT)::BIGINT \
         FROM region, json_each(attributes, '$.functions') f WHERE name = 'MPI_totals'",
    );
    assert_eq!(phases, marked);
}

/// Number of ranks with a phase of this function and these attributes.
fn waiting(data: &Dataset, function: &str, attributes: &str) -> u64 {
    data.value(&format!(
        "SELECT count(DISTINCT attributes->>'rank') FROM region WHERE op = 'phase' \
         AND name = 'MPI_{function}' AND region_end_ts - region_start_ts >= INTERVAL 30 milliseconds \
         AND json_contains(attributes, '{attributes}')"
    ))
}

#[test]
fn collectives_of_c_are_marked_and_counted() {
    let run = run("mpicc", "mpi/test.c");
    let data = run.dataset();
    check(&data);
    assert_eq!(
        totals(&data),
        [
            total("Allgather", 4, 4 * 8),
            total("Allgatherv", 4, 4 * 8),
            total("Allreduce", 4000, 4000 * 16),
            total("Alltoall", 4, 4 * 4 * 8),
            total("Alltoallv", 4, 4 * 4 * 8),
            total("Alltoallw", 4, 4 * 4 * 8),
            total("Barrier", 8, 0),
            // Two of them receive 4 bytes from another group.
            total("Bcast", 8, 4 * 64 + 2 * 4),
            total("Exscan", 4, 4 * 16),
            total("File_read_all", 4, 4 * 4096),
            total("File_read_at_all", 4, 4 * 4096),
            total("File_write_all", 4, 4 * 4096),
            total("File_write_at_all", 4, 4 * 4096),
            total("Gather", 4, 4 * 8),
            total("Gatherv", 4, 4 * 8),
            total("Reduce", 4, 4 * 16),
            total("Reduce_scatter", 4, 4 * 4 * 8),
            total("Reduce_scatter_block", 4, 4 * 4 * 8),
            total("Scan", 4, 4 * 16),
            total("Scatter", 4, 4 * 8),
            total("Scatterv", 4, 4 * 8),
        ]
    );
    assert!(waiting(&data, "Barrier", r#"{"size":4}"#) >= 3);
    assert!(waiting(&data, "Bcast", r#"{"size":4,"bytes":64,"root":1}"#) >= 3);
}

#[test]
fn collectives_of_fortran_are_marked_and_counted() {
    let run = run("mpifort", "mpi/test.f90");
    let data = run.dataset();
    check(&data);
    assert_eq!(
        totals(&data),
        [
            total("Allgather", 4, 4 * 8),
            total("Allreduce", 4, 4 * 16),
            total("Barrier", 4, 0),
            total("Bcast", 4, 4 * 8),
            total("Gather", 4, 4 * 4),
        ]
    );
    assert!(waiting(&data, "Allreduce", r#"{"size":4,"bytes":16}"#) >= 3);
}

/// Waits in MPI use the CPU: without the marks, all ranks look the same.
#[test]
fn uneven_ranks_are_told_from_ranks_that_wait() {
    for (argument, expected, other) in [
        ("uneven", "imbalance", "MPI"),
        ("turns", "MPI", "imbalance"),
    ] {
        let run = run_with("mpicc", "mpi/test.c", 2, Some(argument));
        let found = run.dataset().findings();
        let named = |name: &str| found.iter().find(|finding| finding["name"] == name);
        let text = named(expected).map(|finding| finding["text"].as_str().expect("a text"));
        assert!(
            text.is_some() && named(other).is_none(),
            "{argument}: {found:#?}"
        );
        let starts = text.is_some_and(|text| text.starts_with("Rank 0 was outside MPI for "));
        assert_eq!(starts, argument == "uneven", "{text:?}");
    }
}

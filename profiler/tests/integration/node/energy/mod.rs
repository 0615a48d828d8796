//! `energy` on fixtures with the files of the drivers.

mod board;
mod gauges;
mod perf;
mod powercap;

use std::{
    thread,
    time::{Duration, Instant},
};

use profiler::sources::{Support, energy};

use test_support::{Reader, Rows, Tree};

/// Socket, die, domain, provider, energy.
type Found = (Option<u64>, Option<u64>, String, String, Option<u64>);

fn found(rows: &Rows) -> Vec<Found> {
    (0..rows.len())
        .map(|row| {
            let text = |name| rows.text(row, name).expect("a name");
            let (socket, die) = (rows.get(row, "socket"), rows.get(row, "die"));
            let energy = rows.get(row, "energy_uj");
            (socket, die, text("domain"), text("provider"), energy)
        })
        .collect()
}

/// A row without a die.
fn row(socket: Option<u64>, domain: &str, provider: &str, energy: Option<u64>) -> Found {
    (socket, None, domain.to_owned(), provider.to_owned(), energy)
}

/// Reads until a domain has a new value.
fn next_rows(reader: &mut Reader) -> Rows {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(120) {
        thread::sleep(Duration::from_millis(20));
        let rows = reader.rows();
        if rows.len() != 0 {
            return rows;
        }
    }
    panic!("no row for 120 s");
}

/// Why the source is not complete, and the remedy.
fn limitation(tree: &Tree) -> (String, String) {
    match energy::SPEC.support(&tree.host()) {
        Support::Ok => panic!("complete"),
        Support::Limited { why, remedy } | Support::Unavailable { why, remedy } => (why, remedy),
    }
}

#[test]
fn a_machine_without_a_meter_has_no_rows() {
    let tree = Tree::of("vm", "energy-none");
    // A PMU without events, as on hypervisors.
    let power = "sys/bus/event_source/devices/power";
    tree.put(format!("{power}/type"), "11\n");
    tree.put(format!("{power}/cpumask"), "0\n");
    tree.put(format!("{power}/format/event"), "config:0-7\n");
    std::fs::create_dir_all(tree.path(format!("{power}/events"))).unwrap();
    let support = energy::SPEC.support(&tree.host());
    assert!(
        matches!(support, Support::Unavailable { .. }),
        "{support:?}"
    );
    let (why, remedy) = limitation(&tree);
    assert!(why.contains("no energy meter"), "{why}");
    assert!(remedy.contains("virtual machine"), "{remedy}");
    let mut reader = Reader::open(&energy::SPEC, &tree.host());
    for _ in 0..2 {
        assert_eq!(reader.rows().len(), 0);
    }
}

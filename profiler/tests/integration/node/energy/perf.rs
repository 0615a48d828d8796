//! Fixtures of the PMUs `power` and `power_core`. Their type is that of software events, so that
//! the kernel opens and reads a real event: the clock of each CPU, as 1 W.

use std::{
    thread,
    time::{Duration, Instant},
};

use profiler::sources::energy;

use super::{found, limitation};
use test_support::{Reader, Rows, Tree};

/// `PERF_TYPE_SOFTWARE`, whose event 0 is the clock of a CPU in ns.
const SOFTWARE: &str = "1\n";

struct Pmu<'a>(&'a Tree, &'static str);

impl Pmu<'_> {
    fn put(&self, name: &str, text: &str) {
        let path = format!("sys/bus/event_source/devices/{}/{name}", self.1);
        self.0.put(path, text);
    }

    fn machine(&self, cpumask: &str, kind: &str) {
        self.put("type", kind);
        self.put("cpumask", cpumask);
        self.put("format/event", "config:0-7\n");
    }

    fn event(&self, name: &str, scale: &str) {
        self.put(&format!("events/{name}"), "event=0x00\n");
        self.put(&format!("events/{name}.scale"), scale);
        self.put(&format!("events/{name}.unit"), "Joules\n");
    }
}

fn tree(user: &str) -> Tree {
    let tree = Tree::of("vm", user);
    let second = "sys/devices/system/cpu/cpu1/topology/physical_package_id";
    tree.put(second, "1\n");
    tree
}

/// Two readings; returns the rows of the second, and the shortest and the longest time between the
/// readings of a clock, in µs.
fn measured(tree: &Tree) -> (Rows, u64, u64) {
    let mut reader = Reader::open(&energy::SPEC, &tree.host());
    let outer = Instant::now();
    reader.rows();
    let inner = Instant::now();
    thread::sleep(Duration::from_millis(200));
    let shortest = inner.elapsed();
    let rows = reader.rows();
    let longest = outer.elapsed();
    // The clock of the event is not slewed by NTP.
    let us = |time: Duration| u64::try_from(time.as_micros()).expect("short");
    (rows, us(shortest) * 999 / 1000, us(longest) * 1001 / 1000)
}

#[test]
fn events_are_opened_read_and_scaled() {
    let tree = tree("energy-perf");
    let pmu = Pmu(&tree, "power");
    pmu.machine("0-1\n", SOFTWARE);
    pmu.event("energy-pkg", "1.0e-09\n");
    pmu.event("energy-ram", "2.0e-09\n");
    pmu.event("energy-psys", "5.0e-09\n");
    // Events without a valid scale and unit are ignored.
    pmu.put("events/energy-gpu", "event=0x00\n");
    pmu.event("energy-cores", "1\n");
    pmu.put("events/energy-cores.unit", "Degrees\n");
    pmu.event("energy-broken", "nan\n");
    let core = Pmu(&tree, "power_core");
    core.machine("0-1\n", SOFTWARE);
    core.event("energy-core", "1.0e-09\n");
    // A package that powercap measures is not opened again.
    tree.put("sys/class/powercap/intel-rapl:0/name", "package-1\n");
    tree.put("sys/class/powercap/intel-rapl:0/energy_uj", "5\n");

    let (why, _) = limitation(&tree);
    assert!(
        why.starts_with("package of socket 1 (powercap)") && !why.contains("more"),
        "{why}"
    );
    let (rows, shortest, longest) = measured(&tree);
    let names: Vec<_> = found(&rows)
        .into_iter()
        .map(|(socket, die, domain, provider, _)| {
            assert_eq!(die, None);
            (socket, domain, provider)
        })
        .collect();
    let expected = [
        (None, "psys", "perf", 5),
        (Some(0), "core", "perf", 1),
        (Some(0), "dram", "perf", 2),
        (Some(0), "package", "perf", 1),
        (Some(1), "core", "perf", 1),
        (Some(1), "dram", "perf", 2),
        (Some(1), "package", "powercap", 0),
    ];
    assert_eq!(names.len(), expected.len(), "{names:?}");
    for (row, (socket, domain, provider, watts)) in expected.into_iter().enumerate() {
        assert_eq!(names[row], (socket, domain.to_owned(), provider.to_owned()));
        let energy = rows.get(row, "energy_uj");
        if provider == "powercap" {
            assert_eq!(energy, None, "it does not rise");
            continue;
        }
        let is = energy.expect("known");
        let known = shortest * watts..=longest * watts;
        assert!(known.contains(&is), "{domain}: {is} µJ, not {known:?}");
    }
}

#[test]
fn cores_of_a_socket_add_up_and_dies_do_not() {
    let tree = Tree::of("vm", "energy-dies");
    for cpu in 0..2 {
        let die = format!("sys/devices/system/cpu/cpu{cpu}/topology/die_id");
        tree.put(die, format!("{cpu}\n"));
    }
    let pmu = Pmu(&tree, "power");
    pmu.machine("0-1\n", SOFTWARE);
    pmu.event("energy-pkg", "1.0e-09\n");
    let core = Pmu(&tree, "power_core");
    core.machine("0-1\n", SOFTWARE);
    core.event("energy-core", "1.0e-09\n");
    let (rows, shortest, longest) = measured(&tree);
    let names: Vec<_> = (found(&rows).into_iter())
        .map(|(socket, die, domain, ..)| (socket, die, domain))
        .collect();
    let expected = [
        (Some(0), None, "core".to_owned()),
        (Some(0), Some(0), "package".to_owned()),
        (Some(0), Some(1), "package".to_owned()),
    ];
    assert_eq!(names, expected);
    for (row, watts) in [2, 1, 1].into_iter().enumerate() {
        let is = rows.get(row, "energy_uj").expect("known");
        let known = shortest * watts..=longest * watts;
        assert!(known.contains(&is), "{is} µJ, not {known:?}");
    }
}

#[test]
fn a_refused_event_is_null_and_reported() {
    let tree = tree("energy-refused");
    let pmu = Pmu(&tree, "power");
    // No PMU has this type.
    pmu.machine("0\n", "987654\n");
    pmu.event("energy-pkg", "1.0e-09\n");
    let (why, _) = limitation(&tree);
    assert!(why.starts_with("energy-pkg on CPU 0: "), "{why}");
    let mut reader = Reader::open(&energy::SPEC, &tree.host());
    reader.rows_and_error();
    let (rows, error) = reader.rows_and_error();
    assert!(error.is_some_and(|error| error.contains("energy-pkg")));
    assert_eq!(rows.get(0, "energy_uj"), None);
}

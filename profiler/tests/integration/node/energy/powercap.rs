//! Fixtures of the powercap framework.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    thread,
    time::Duration,
};

use caps::{CapSet, Capability};
use profiler::sources::{Support, energy};

use super::{Found, found, limitation, row};
use test_support::{Reader, Tree};

const RANGE: u64 = 262_143_328_850;

struct Zones(Tree);

impl Zones {
    fn put(&self, zone: &str, name: &str, energy: u64) {
        let directory = format!("sys/class/powercap/{zone}");
        self.0.put(format!("{directory}/name"), format!("{name}\n"));
        self.0.put(
            format!("{directory}/max_energy_range_uj"),
            format!("{RANGE}\n"),
        );
        self.energy(zone, &format!("{energy}\n"));
    }

    fn energy(&self, zone: &str, text: &str) {
        self.0
            .put(format!("sys/class/powercap/{zone}/energy_uj"), text);
    }
}

fn of_powercap(socket: Option<u64>, domain: &str, energy: Option<u64>) -> Found {
    row(socket, domain, "powercap", energy)
}

#[test]
fn each_domain_is_reported_once() {
    let zones = Zones(Tree::of("server", "energy"));
    // The control type itself is a directory as well, and zones may appear in any order.
    zones.0.put("sys/class/powercap/intel-rapl/enabled", "1\n");
    zones.put("intel-rapl:1", "package-0", 100);
    zones.put("intel-rapl:1:0", "core", 50);
    zones.put("intel-rapl:1:1", "dram", RANGE - 10);
    zones.put("intel-rapl:0", "package-1-die-1", 7);
    zones.put("intel-rapl:2", "psys", 1000);
    zones.put("intel-rapl-mmio:0", "package-0", 90);
    zones.put("dtpm:0", "package-0", 1);
    let mut reader = Reader::open(&energy::SPEC, &zones.0.host());
    assert_eq!(reader.rows().len(), 0);
    for (zone, energy) in [
        ("intel-rapl:1", 165),
        ("intel-rapl:1:0", 90),
        ("intel-rapl:1:1", 5),
        ("intel-rapl:0", 8),
        ("intel-rapl:2", 1100),
    ] {
        zones.energy(zone, &format!("{energy}\n"));
    }
    let mut of_die = of_powercap(Some(1), "package", Some(1));
    of_die.1 = Some(1);
    let expected = [
        of_powercap(None, "psys", Some(100)),
        of_powercap(Some(0), "core", Some(40)),
        of_powercap(Some(0), "dram", Some(15)),
        of_powercap(Some(0), "package", Some(65)),
        of_die,
    ];
    assert_eq!(found(&reader.rows()), expected);
}

#[test]
fn the_zone_of_a_single_core_is_excluded() {
    let zones = Zones(Tree::of("vm", "energy-amd"));
    zones.put("intel-rapl:0", "package-0", 100);
    zones.put("intel-rapl:0:0", "core", 50);
    let mut reader = Reader::open(&energy::SPEC, &zones.0.host());
    reader.rows();
    zones.energy("intel-rapl:0", "101\n");
    let expected = [of_powercap(Some(0), "package", Some(1))];
    assert_eq!(found(&reader.rows()), expected);
}

/// In virtual machines, and psys of boards without its sensor.
#[test]
fn counters_that_never_rise_are_null() {
    let zones = Zones(Tree::of("server", "energy-still"));
    zones.put("intel-rapl:0", "package-0", 0);
    zones.put("intel-rapl:1", "package-1", 5000);
    zones.put("intel-rapl:2", "psys", 7000);
    let (why, _) = limitation(&zones.0);
    assert!(
        why.starts_with("psys (powercap) does not rise") && why.ends_with("and 2 more"),
        "{why}"
    );
    let mut reader = Reader::open(&energy::SPEC, &zones.0.host());
    reader.rows();
    let still = |domain, socket| of_powercap(socket, domain, None);
    let expected = [
        still("psys", None),
        still("package", Some(0)),
        still("package", Some(1)),
    ];
    assert_eq!(found(&reader.rows()), expected);
    // One that has risen was connected, and stays so.
    zones.energy("intel-rapl:1", "5040\n");
    let rows = found(&reader.rows());
    assert_eq!(rows[2], of_powercap(Some(1), "package", Some(40)));
    assert_eq!(rows[..2], expected[..2]);
    assert_eq!(found(&reader.rows())[2].4, Some(0));
}

#[test]
fn invalid_counters_are_null() {
    let zones = Zones(Tree::of("vm", "energy-invalid"));
    for socket in 0..16 {
        zones.put(
            &format!("intel-rapl:{socket}"),
            &format!("package-{}", 15 - socket),
            1000,
        );
    }
    let mut reader = Reader::open(&energy::SPEC, &zones.0.host());
    reader.rows();
    for (zone, text) in [
        (0, "1100\n"),
        (1, "900\n"),
        (2, ""),
        (3, "-5\n"),
        (4, "much\n"),
        (6, "18446744073709551615\n"),
        (7, "99999999999999999999\n"),
    ] {
        zones.energy(&format!("intel-rapl:{zone}"), text);
    }
    let (rows, error) = reader.rows_and_error();
    assert!(error.is_some_and(|error| error.contains("energy_uj: no number")));
    let after = found(&rows);
    assert_eq!(after.len(), 16);
    let of = |zone: usize| after[15 - zone].4;
    assert_eq!(of(0), Some(100));
    // The fifth has never risen.
    for zone in 1..8 {
        assert_eq!(of(zone), None, "{zone}");
    }
    // Readable again: the increase over the failure stays unknown.
    zones.energy("intel-rapl:2", "2000\n");
    let (rows, error) = reader.rows_and_error();
    assert!(error.is_some(), "the others are counted again");
    assert_eq!(found(&rows)[13].4, None);
    zones.energy("intel-rapl:2", "2010\n");
    let (rows, _) = reader.rows_and_error();
    assert_eq!(found(&rows)[13].4, Some(10));
}

#[test]
fn directories_loops_and_missing_files_are_null_and_reported() {
    let zones = Zones(Tree::of("vm", "energy-files"));
    for (zone, name) in [(0, "package-0"), (1, "package-1"), (2, "package-2")] {
        zones.put(&format!("intel-rapl:{zone}"), name, 1000);
    }
    let file = |zone: u32| {
        let path = zones
            .0
            .path(format!("sys/class/powercap/intel-rapl:{zone}"));
        let path = path.join("energy_uj");
        fs::remove_file(&path).unwrap();
        path
    };
    fs::create_dir(file(0)).unwrap();
    symlink("energy_uj", file(1)).unwrap();
    let (why, _) = limitation(&zones.0);
    assert!(
        why.contains("Is a directory") && why.contains("2 more"),
        "{why}"
    );
    let mut reader = Reader::open(&energy::SPEC, &zones.0.host());
    reader.rows_and_error();
    zones.energy("intel-rapl:2", "1500\n");
    let (rows, error) = reader.rows_and_error();
    assert!(error.is_some_and(|error| error.contains("symbolic links")));
    let expected = [
        of_powercap(Some(0), "package", None),
        of_powercap(Some(1), "package", None),
        of_powercap(Some(2), "package", Some(500)),
    ];
    assert_eq!(found(&rows), expected);
}

#[test]
fn unreadable_files_are_null_and_reported() {
    let zones = Zones(Tree::of("vm", "energy-permission"));
    zones.put("intel-rapl:0", "package-0", 1000);
    zones.put("intel-rapl:1", "package-1", 1000);
    let path = "sys/class/powercap/intel-rapl:0/energy_uj";
    let closed = fs::Permissions::from_mode(0o000);
    fs::set_permissions(zones.0.path(path), closed).unwrap();
    // Affects only this thread.
    for capability in [
        Capability::CAP_DAC_OVERRIDE,
        Capability::CAP_DAC_READ_SEARCH,
    ] {
        caps::drop(None, CapSet::Effective, capability).unwrap();
    }
    let (why, remedy) = limitation(&zones.0);
    assert!(
        why.contains("intel-rapl:0/energy_uj: Permission denied"),
        "{why}"
    );
    assert!(remedy.contains("chmod a+r"), "{remedy}");
    let support = energy::SPEC.support(&zones.0.host());
    assert!(matches!(support, Support::Limited { .. }), "{support:?}");
    let mut reader = Reader::open(&energy::SPEC, &zones.0.host());
    reader.rows_and_error();
    zones.energy("intel-rapl:1", "1005\n");
    let (rows, error) = reader.rows_and_error();
    assert!(error.is_some_and(|error| error.contains("Permission denied")));
    let expected = [
        of_powercap(Some(0), "package", None),
        of_powercap(Some(1), "package", Some(5)),
    ];
    assert_eq!(found(&rows), expected);
    // Another provider takes its place.
    zones.0.put("sys/class/hwmon/hwmon0/name", "amd_energy\n");
    let of_chip = |name: &str| format!("sys/class/hwmon/hwmon0/{name}");
    zones.0.put(of_chip("energy3_label"), "Esocket0\n");
    zones.0.put(of_chip("energy3_input"), "77\n");
    let (why, _) = limitation(&zones.0);
    assert!(
        why.starts_with("package of socket 1 (powercap) does not rise"),
        "{why}"
    );
    let mut reader = Reader::open(&energy::SPEC, &zones.0.host());
    reader.rows();
    let providers: Vec<_> = found(&reader.rows()).into_iter().map(|row| row.3).collect();
    assert_eq!(providers, ["hwmon", "powercap"]);
}

#[test]
fn several_wraps_in_an_interval() {
    // Wraps within a second at the maximum power of a package.
    const SMALL: u64 = 2_000_000_000;
    const STEP: u64 = 25_000_000;
    let wide = |energy: u64| format!("{:012}\n", energy % SMALL);
    for (interval, steps, expected) in [
        (Duration::from_secs(3), 120, Some(120 * STEP)),
        (Duration::from_millis(100), 45, None),
    ] {
        let zones = Zones(Tree::of("vm", "energy-wraps"));
        zones.put("intel-rapl:0", "package-0", 0);
        let range = "sys/class/powercap/intel-rapl:0/max_energy_range_uj";
        zones.0.put(range, format!("{SMALL}\n"));
        let start = SMALL - 3 * STEP;
        zones.energy("intel-rapl:0", &wide(start));
        let mut reader = Reader::open_for(&energy::SPEC, &zones.0.host(), interval);
        reader.rows();
        for step in 1..=steps {
            thread::sleep(Duration::from_millis(25));
            zones.energy("intel-rapl:0", &wide(start + step * STEP));
        }
        let rows = found(&reader.rows());
        // A run with short intervals does not read between ticks, and this one missed its ticks.
        assert_eq!(rows[0].4, expected, "{interval:?}");
    }
}

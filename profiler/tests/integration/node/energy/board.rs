//! Counters outside the processor: hwmon and Cray's.

use profiler::sources::energy;

use super::{found, row};
use test_support::{Reader, Tree};

fn put(tree: &Tree, directory: &str, files: &[(&str, &str)]) {
    for (name, text) in files {
        tree.put(format!("{directory}/{name}"), format!("{text}\n"));
    }
}

const AMD: &str = "sys/class/hwmon/hwmon2";

#[test]
fn sockets_and_cores_of_amd_energy() {
    let tree = Tree::of("vm", "energy-hwmon");
    put(
        &tree,
        AMD,
        &[
            ("name", "amd_energy"),
            ("energy1_label", "Ecore000"),
            ("energy1_input", "1000"),
            ("energy2_label", "Ecore001"),
            ("energy2_input", "2000"),
            // A missing CPU, and an invalid label.
            ("energy4_label", "Ecore900"),
            ("energy4_input", "9000"),
            ("energy5_label", "Etwo"),
            ("energy5_input", "9000"),
            ("energy3_label", "Esocket0"),
            ("energy3_input", "3000"),
        ],
    );
    // GPUs are in table `gpu`.
    put(
        &tree,
        "sys/class/hwmon/hwmon0",
        &[("name", "xe"), ("energy1_input", "1")],
    );
    put(
        &tree,
        "sys/class/hwmon/hwmon1",
        &[
            ("name", "new"),
            ("device/class", "0x030000"),
            ("energy1_input", "1"),
        ],
    );
    let mut reader = Reader::open(&energy::SPEC, &tree.host());
    reader.rows();
    put(
        &tree,
        AMD,
        &[
            ("energy1_input", "1010"),
            ("energy2_input", "2005"),
            ("energy3_input", "3100"),
        ],
    );
    let expected = [
        row(Some(0), "core", "hwmon", Some(15)),
        row(Some(0), "package", "hwmon", Some(100)),
    ];
    assert_eq!(found(&reader.rows()), expected);
    // One core cannot be read: the sum is unknown.
    tree.put(format!("{AMD}/energy2_input"), "");
    let (rows, error) = reader.rows_and_error();
    assert!(error.is_some());
    assert_eq!(rows.get(0, "energy_uj"), None);
    assert_eq!(rows.get(1, "energy_uj"), Some(0));
}

#[test]
fn sensors_of_other_chips_have_distinct_names() {
    let tree = Tree::of("vm", "energy-chips");
    let chip = |number: u32| format!("sys/class/hwmon/hwmon{number}");
    put(
        &tree,
        &chip(0),
        &[
            ("name", "ibmaem"),
            ("energy1_input", "100"),
            // Not used, because the chip counts energy.
            ("power1_average", "5000000"),
            ("power/control", "auto"),
        ],
    );
    for number in [1, 2] {
        put(
            &tree,
            &chip(number),
            &[
                ("name", "scmi_sensors"),
                ("energy1_label", "package"),
                ("energy1_input", "100"),
            ],
        );
    }
    put(
        &tree,
        &chip(3),
        &[("name", "nvme"), ("temp1_input", "30000")],
    );
    let mut reader = Reader::open(&energy::SPEC, &tree.host());
    reader.rows();
    tree.put(format!("{}/energy1_input", chip(2)), "130\n");
    let expected = [
        row(None, "ibmaem 1", "hwmon", Some(0)),
        row(None, "scmi_sensors hwmon1 package", "hwmon", Some(0)),
        row(None, "scmi_sensors hwmon2 package", "hwmon", Some(30)),
    ];
    assert_eq!(found(&reader.rows()), expected);
}

const CRAY: &str = "sys/cray/pm_counters";

/// Writes the counters with a time of `tenths` tenths of a second.
fn cray(tree: &Tree, tenths: u64, energies: &[(&str, u64)]) {
    let time = 1_700_061_210_920_464 + tenths * 100_000;
    for (name, joules) in energies {
        let text = format!("{joules} J {time} us\n");
        tree.put(format!("{CRAY}/{name}"), text);
    }
}

#[test]
fn counters_of_a_cray_node() {
    let tree = Tree::of("vm", "energy-cray");
    let other = [
        ("freshness", "2893521"),
        ("generation", "27"),
        ("power_cap", "0 W"),
        ("raw_scan_hz", "10"),
        ("startup", "1467316021000000"),
        ("version", "2"),
        ("power", "520 W 1700061210920464 us"),
        ("accel_energy", "900 J 1700061210920464 us"),
    ];
    put(&tree, CRAY, &other);
    put(
        &tree,
        "sys/class/powercap/intel-rapl:0",
        &[("name", "package-0"), ("energy_uj", "5")],
    );
    let energies = |offset: u64| {
        [
            ("energy", 1000 + 10 * offset),
            ("cpu_energy", 300 + 3 * offset),
            ("memory_energy", 100 + offset),
            ("accel0_energy", 500 + 5 * offset),
            ("accel1_energy", 400),
        ]
    };
    cray(&tree, 0, &energies(0));
    let mut reader = Reader::open(&energy::SPEC, &tree.host());
    reader.rows();
    cray(&tree, 10, &energies(40));
    let of_cray = |name, joules: Option<u64>| {
        let energy = joules.map(|joules| joules * 1_000_000);
        row(None, name, "cray", energy)
    };
    let package = || row(Some(0), "package", "powercap", None);
    let expected = [
        of_cray("accel0", Some(200)),
        of_cray("accel1", Some(0)),
        of_cray("dram", Some(40)),
        of_cray("node", Some(400)),
        package(),
    ];
    let rows = reader.rows();
    assert_eq!(found(&rows), expected);
    assert_eq!(rows.get(3, "interval_ns"), Some(1_000_000_000), "of Cray");
    // A counter without a new value has no row, rather than a zero.
    assert_eq!(found(&reader.rows()), [package()]);
    // All counters are reset.
    tree.put(format!("{CRAY}/startup"), "1467319999000000\n");
    cray(&tree, 20, &energies(80));
    let nulls = ["accel0", "accel1", "dram", "node"].map(|name| of_cray(name, None));
    assert_eq!(found(&reader.rows())[..4], nulls);
    cray(&tree, 30, &energies(90));
    assert_eq!(found(&reader.rows())[..4], nulls, "increase unknown");
    cray(&tree, 40, &energies(91));
    assert_eq!(found(&reader.rows())[3], of_cray("node", Some(10)));
    tree.put(format!("{CRAY}/energy"), "1990 J");
    let (rows, error) = reader.rows_and_error();
    assert_eq!(error, None, "old versions write no time");
    assert_eq!(found(&rows)[0], of_cray("node", None), "another clock");
    tree.put(format!("{CRAY}/energy"), "1990 W\n");
    let (rows, error) = reader.rows_and_error();
    assert!(error.is_some_and(|error| error.contains("malformed")));
    assert_eq!(found(&rows)[0], of_cray("node", None));
}

#[test]
fn cpus_of_cray_are_packages_without_a_better_provider() {
    let tree = Tree::of("vm", "energy-cray-cpu");
    let energies = [
        ("cpu_energy", 300),
        ("cpu0_energy", 100),
        ("cpu1_energy", 200),
    ];
    cray(&tree, 0, &energies);
    let mut reader = Reader::open(&energy::SPEC, &tree.host());
    reader.rows();
    cray(&tree, 10, &energies);
    let expected = [0, 1].map(|socket| row(Some(socket), "package", "cray", Some(0)));
    assert_eq!(found(&reader.rows()), expected);
}

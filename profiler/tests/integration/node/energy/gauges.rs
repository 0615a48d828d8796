//! Gauges of power: ACPI's, sensors, batteries.

use std::collections::BTreeMap;

use profiler::sources::energy;

use super::{found, next_rows};
use test_support::{Reader, Rows, Tree};

fn put(tree: &Tree, directory: &str, files: &[(&str, &str)]) {
    for (name, text) in files {
        tree.put(format!("sys/class/{directory}/{name}"), format!("{text}\n"));
    }
}

/// Socket, domain, provider and power in W.
type Power = (Option<u64>, String, String, Option<f64>);

fn powers(rows: &Rows) -> Vec<Power> {
    let with_power = found(rows).into_iter().enumerate();
    with_power
        .map(|(row, (socket, _, domain, provider, energy))| {
            let interval = rows.get(row, "interval_ns").expect("known") as f64;
            let watts = energy.map(|energy| (energy as f64 * 1e3 / interval * 10.0).round() / 10.0);
            (socket, domain, provider, watts)
        })
        .collect()
}

/// Reads until each of `count` meters has a row, because each has its own thread; returns the first
/// row of each, sorted, and the errors.
fn first_powers(reader: &mut Reader, count: usize) -> (Vec<Power>, Vec<String>) {
    let (mut first, mut errors) = (BTreeMap::new(), Vec::new());
    while first.len() < count {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let (rows, error) = reader.rows_and_error();
        errors.extend(error);
        if rows.len() != 0 {
            for (socket, domain, provider, watts) in powers(&rows) {
                first.entry((socket, domain, provider)).or_insert(watts);
            }
        }
    }
    let first = first.into_iter();
    let first = first.map(|((socket, domain, provider), watts)| (socket, domain, provider, watts));
    (first.collect(), errors)
}

#[test]
fn sockets_of_grace() {
    let tree = Tree::of("arm64", "energy-grace");
    // On older kernels the attributes, and in some the name, are files of the ACPI device.
    for (number, oem_info, microwatts) in [
        (1, "Module Power Socket 0", "200000000"),
        (2, "Grace Power Socket 0", "90000000"),
        (3, "CPU Power Socket 0", "40000000"),
        (4, "SysIO Power Socket 0", "10000000"),
        (5, "Grace Power Socket 1", "80000000"),
        // A firmware error
        (6, "CPU Power Socket 1", "4294967295000"),
    ] {
        put(
            &tree,
            &format!("hwmon/hwmon{number}/device"),
            &[
                ("power1_average", microwatts),
                ("power1_average_interval", "1000"),
                ("power1_is_battery", "0"),
                ("power1_oem_info", oem_info),
            ],
        );
        let of_name = ["", "device/"][number % 2];
        let name = format!("sys/class/hwmon/hwmon{number}/{of_name}name");
        tree.put(name, "power_meter\n");
    }
    let mut reader = Reader::open(&energy::SPEC, &tree.host());
    reader.rows_and_error();
    let (found, errors) = first_powers(&mut reader, 6);
    let is_implausible = |error: &String| error.contains("implausible power");
    assert!(errors.iter().any(is_implausible), "{errors:?}");
    let acpi = |socket, domain: &str, watts| {
        let (domain, provider) = (domain.to_owned(), "acpi_power".to_owned());
        (Some(socket), domain, provider, watts)
    };
    let expected = [
        acpi(0, "core", Some(40.0)),
        acpi(0, "module", Some(200.0)),
        acpi(0, "package", Some(90.0)),
        acpi(0, "sysio", Some(10.0)),
        acpi(1, "core", None),
        acpi(1, "package", Some(80.0)),
    ];
    assert_eq!(found, expected);
}

#[test]
fn acpi_and_sensors_measure_the_node() {
    let tree = Tree::of("server", "energy-acpi");
    let meter = [
        ("name", "power_meter"),
        ("power1_average", "350000000"),
        ("power1_model_number", "model"),
        ("power1_oem_info", "Intel(R) Node Manager"),
    ];
    put(&tree, "hwmon/hwmon3", &meter);
    put(
        &tree,
        "hwmon/hwmon4",
        &[
            ("name", "corsairpsu"),
            ("power1_input", "400000000"),
            ("power1_label", "power total"),
        ],
    );
    // A battery is not used if the node has a meter.
    put(&tree, "power_supply/BAT0", &DISCHARGING);
    let mut reader = Reader::open(&energy::SPEC, &tree.host());
    reader.rows();
    let named = |domain: &str, provider: &str, watts| {
        (None, domain.to_owned(), provider.to_owned(), Some(watts))
    };
    let expected = [
        named("corsairpsu power total", "hwmon_power", 400.0),
        named("node", "acpi_power", 350.0),
    ];
    assert_eq!(first_powers(&mut reader, 2).0, expected);
    drop(reader);
    // Of two meters without a description, neither is taken for the node.
    put(&tree, "hwmon/hwmon5", &meter);
    let mut reader = Reader::open(&energy::SPEC, &tree.host());
    reader.rows();
    let providers: Vec<_> = (found(&next_rows(&mut reader)).into_iter())
        .map(|row| row.3)
        .collect();
    assert!(
        !providers.contains(&"acpi_power".to_owned()),
        "{providers:?}"
    );
}

const DISCHARGING: [(&str, &str); 4] = [
    ("type", "Battery"),
    ("status", "Discharging"),
    ("power_now", "12500000"),
    ("energy_now", "41230000"),
];

#[test]
fn batteries_measure_a_laptop() {
    let tree = Tree::of("server", "energy-battery");
    put(&tree, "power_supply/BAT0", &DISCHARGING);
    put(
        &tree,
        "power_supply/BAT1",
        &[
            ("type", "Battery"),
            ("status", "Discharging"),
            // Some drivers report a signed current; µA and µV.
            ("current_now", "-500000"),
            ("voltage_now", "11000000"),
        ],
    );
    put(
        &tree,
        "power_supply/BAT2",
        &[
            ("type", "Battery"),
            ("status", "Not charging"),
            ("power_now", "0"),
        ],
    );
    // A mouse
    put(
        &tree,
        "power_supply/hidpp_battery_0",
        &[
            ("type", "Battery"),
            ("scope", "Device"),
            ("status", "Discharging"),
            ("power_now", "1000000"),
        ],
    );
    put(
        &tree,
        "power_supply/AC",
        &[("type", "Mains"), ("online", "0")],
    );
    let watts = |reader: &mut Reader| {
        let rows = powers(&next_rows(reader));
        assert_eq!(rows.len(), 1);
        let (socket, domain, provider, watts) = rows[0].clone();
        assert_eq!(
            (socket, &*domain, &*provider),
            (None, "node", "battery_power")
        );
        watts
    };
    let mut reader = Reader::open(&energy::SPEC, &tree.host());
    reader.rows();
    std::thread::sleep(std::time::Duration::from_millis(600));
    assert_eq!(watts(&mut reader), Some(18.0));
    drop(reader);
    for (file, text) in [
        ("AC/online", "1"),
        ("BAT1/status", "Charging"),
        ("BAT1/status", "Unknown"),
    ] {
        let path = format!("sys/class/power_supply/{file}");
        let before = tree.get(&path);
        tree.put(&path, format!("{text}\n"));
        let mut reader = Reader::open(&energy::SPEC, &tree.host());
        std::thread::sleep(std::time::Duration::from_millis(100));
        reader.rows();
        assert_eq!(watts(&mut reader), None, "{file} {text}");
        tree.put(&path, before);
    }
}

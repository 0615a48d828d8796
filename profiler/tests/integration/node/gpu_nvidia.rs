//! `gpu` and `gpu_process` for NVIDIA: the real NVML wrapper with a stub library
//! (tests/nvml/stub.c).

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use profiler::sources::{
    Support,
    gpu::{open, support},
};

use test_support::{Reader, Rows, Tree, stat};

/// A fixture with NVIDIA's driver and the stub library.
struct Machine {
    tree: Tree,
    library: PathBuf,
}

const GPU0: &str = "\
nvml count 1
gpu0 uuid GPU-00000000-1111-2222-3333-444444444444
gpu0 name NVIDIA H100 80GB HBM3
gpu0 pci 1 59 0
gpu0 max_pcie_generation 5
gpu0 max_pcie_width 16
";

impl Machine {
    fn new(user: &str) -> Self {
        let tree = Tree::of("vm", user);
        tree.put("sys/module/nvidia/version", "550.54.15\n");
        let _ = fs::remove_file(tree.path("proc/self/ns/pid"));
        fs::create_dir_all(tree.path("proc/self/ns")).unwrap();
        symlink("pid:[4026531836]", tree.path("proc/self/ns/pid")).unwrap();
        let library = tree.path("libnvidia-ml.so.1");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvml/stub.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(source)
            .status();
        assert!(built.expect("a C compiler").success());
        Self { tree, library }
    }

    /// Sets the results of the library.
    fn set_script(&self, script: &str) {
        let path = self.tree.path("libnvidia-ml.so.1.new");
        fs::write(&path, script).unwrap();
        // Replaced atomically.
        fs::rename(path, self.tree.path("libnvidia-ml.so.1.script")).unwrap();
    }

    fn reader(&self) -> Reader {
        let host = self.tree.host();
        Reader::opened(&host, Duration::from_secs(1), |context| {
            open(context, self.library.as_os_str())
        })
    }

    fn support(&self) -> Support {
        support(&self.tree.host(), self.library.as_os_str())
    }

    /// Adds a process to the fixture.
    fn start(&self, pid: u32) {
        self.tree
            .put(format!("proc/{pid}/stat"), stat(pid, "a) b", 500));
    }
}

/// Waits for the rows of both tables and the error, as at the end of a run.
fn read(reader: &mut Reader) -> (Rows, Rows, Option<String>) {
    let (batches, result) = reader.attempt(true);
    let of = |table: &str| {
        let found = batches.iter().find(|batch| batch.table.name == table);
        Rows(found.cloned())
    };
    let error = result.err().map(|error| error.to_string());
    (of("gpu"), of("gpu_process"), error)
}

const BEFORE: &str = "\
gpu0 energy 1000
gpu0 pcie_replays 3
gpu0 ecc_corrected 10
gpu0 ecc_uncorrected 1
gpu0 field74.0 3 1000000
gpu0 field75.0 3 2000000
gpu0 field77.0 3 3000000
gpu0 field79.0 3 4000000
gpu0 field76.0 3 10
gpu0 field78.0 3 20
gpu0 field80.0 3 30
gpu0 field81.0 3 40
gpu0 field138.4294967295 3 100
gpu0 field139.4294967295 3 200
gpu0 field197.0 3 5000
gpu0 field198.0 3 6000
gpu0 gpm 1
";

const AFTER: &str = "\
gpu0 utilization 97 41
gpu0 memory 85520809984 623902720 1073741824
gpu0 clocks 1980 1975 2619 1560
gpu0 bar1 137438953472 2097152
gpu0 compute 4001 4096 4294967295 4294967295 4002 8192 4294967295 4294967295
gpu0 ecc_corrected_total 1234
gpu0 ecc_uncorrected_total 5
gpu0 encoder 5
gpu0 decoder 6
gpu0 p_state 0
gpu0 power 312345
gpu0 power_limit 700000
gpu0 temperature 45
gpu0 fans 2
gpu0 fan0 30
gpu0 fan1 33
gpu0 pcie_generation 5
gpu0 pcie_width 16
gpu0 throttle 12
gpu0 energy 1250
gpu0 pcie_replays 4
gpu0 ecc_corrected 12
gpu0 ecc_uncorrected 1
gpu0 field74.0 3 1500000
gpu0 field75.0 3 2000007
gpu0 field77.0 3 3000000
gpu0 field79.0 3 4000001
gpu0 field76.0 3 12
gpu0 field78.0 3 24
gpu0 field80.0 3 38
gpu0 field81.0 3 56
gpu0 field82.0 1 52
gpu0 field138.4294967295 3 110
gpu0 field139.4294967295 3 201
gpu0 field197.0 3 5500
gpu0 field198.0 3 6006
gpu0 gpm 1
gpu0 gpm2 81.5
gpu0 gpm3 47.25
gpu0 gpm5 60.5
gpu0 gpm10 33.5
gpu0 gpm11 0
gpu0 gpm12 12.5
gpu0 gpm13 101
";

#[test]
fn values_are_converted_to_the_units_of_their_columns() {
    let machine = Machine::new("gpu-values");
    machine.set_script(&format!("{GPU0}{BEFORE}"));
    assert_eq!(machine.support(), Support::Ok);
    let mut reader = machine.reader();
    let (gpus, _, error) = read(&mut reader);
    assert_eq!((gpus.len(), error), (0, None), "the baseline");
    machine.set_script(&format!("{GPU0}{AFTER}"));
    let (gpus, processes, error) = read(&mut reader);
    assert_eq!((gpus.len(), processes.len(), error), (1, 0, None));
    for (column, value) in [
        ("index", 0),
        ("utilization", 97),
        ("memory_utilization", 41),
        ("encoder_utilization", 5),
        ("decoder_utilization", 6),
        ("memory_total", 85_520_809_984),
        ("memory_used", 1_073_741_824),
        ("bar1_used", 2_097_152),
        ("processes", 2),
        ("graphics_clock_hz", 1_980_000_000),
        ("sm_clock_hz", 1_975_000_000),
        ("memory_clock_hz", 2_619_000_000),
        ("video_clock_hz", 1_560_000_000),
        ("pstate", 0),
        ("energy_uj", 250_000),
        ("temperature", 45),
        ("memory_temperature", 52),
        ("fan_percent", 33),
        ("pcie_tx_bytes", 500),
        ("pcie_rx_bytes", 6),
        ("pcie_replays", 1),
        ("pcie_generation", 5),
        ("pcie_width", 16),
        ("nvlink_tx_bytes", 10 * 1024),
        ("nvlink_rx_bytes", 1024),
        ("ecc_corrected", 2),
        ("ecc_uncorrected", 0),
        ("ecc_corrected_total", 1234),
        ("ecc_uncorrected_total", 5),
        ("power_violation_ns", 500_000),
        ("thermal_violation_ns", 7),
        ("board_limit_violation_ns", 0),
        ("reliability_violation_ns", 1),
        ("sync_boost_violation_ns", 2),
        ("low_utilization_violation_ns", 4),
        ("application_clocks_violation_ns", 8),
        ("base_clocks_violation_ns", 16),
    ] {
        assert_eq!(gpus.get(0, column), Some(value), "{column}");
    }
    for (column, value) in [
        ("uuid", "GPU-00000000-1111-2222-3333-444444444444"),
        ("vendor", "nvidia"),
        ("driver", "nvidia"),
        ("name", "NVIDIA H100 80GB HBM3"),
        ("bdf", "0001:3b:00.0"),
        ("throttle_reasons", "sw_power_cap+hw_slowdown"),
    ] {
        assert_eq!(gpus.text(0, column).as_deref(), Some(value), "{column}");
    }
    for (column, value) in [
        ("power_w", Some(312.345)),
        ("power_limit_w", Some(700.0)),
        ("sm_activity_percent", Some(81.5)),
        ("sm_occupancy_percent", Some(47.25)),
        ("tensor_activity_percent", Some(60.5)),
        ("dram_activity_percent", Some(33.5)),
        ("fp64_activity_percent", Some(0.0)),
        ("fp32_activity_percent", Some(12.5)),
        ("fp16_activity_percent", None),
    ] {
        assert_eq!(gpus.fraction(0, column), value, "{column}");
    }
    let nulls = gpus.nulls(0);
    let others = [
        "parent_uuid",
        "gpu_instance",
        "compute_instance",
        "media_utilization",
        "system_memory_used",
        "decoder_clock_hz",
        "soc_clock_hz",
        "hotspot_temperature",
        "hbm_temperature",
        "vr_gfx_temperature",
        "vr_soc_temperature",
        "vr_memory_temperature",
        "fan_rpm",
        "fp16_activity_percent",
    ];
    assert_eq!(nulls, others);
}

/// Keys of the script, and the columns that are null if the query fails.
const FAILURES: [(&str, &[&str]); 17] = [
    ("utilization", &["memory_utilization", "utilization"]),
    ("memory", &["memory_total", "memory_used"]),
    (
        "clocks",
        &[
            "graphics_clock_hz",
            "memory_clock_hz",
            "sm_clock_hz",
            "video_clock_hz",
        ],
    ),
    ("bar1", &["bar1_used"]),
    ("compute", &["processes"]),
    ("ecc_corrected_total", &["ecc_corrected_total"]),
    ("field81.0", &["base_clocks_violation_ns"]),
    ("encoder", &["encoder_utilization"]),
    ("power", &["power_w"]),
    ("power_limit", &["power_limit_w"]),
    ("energy", &["energy_uj"]),
    ("temperature", &["temperature"]),
    ("throttle", &["throttle_reasons"]),
    ("field74.0", &["power_violation_ns"]),
    ("ecc_corrected", &["ecc_corrected"]),
    ("field138.4294967295", &["nvlink_tx_bytes"]),
    ("gpm3", &["sm_occupancy_percent"]),
];

#[test]
fn a_failed_query_makes_only_its_own_columns_null() {
    let machine = Machine::new("gpu-failures");
    machine.set_script(&format!("{GPU0}{BEFORE}"));
    let mut reader = machine.reader();
    read(&mut reader);
    machine.set_script(&format!("{GPU0}{AFTER}"));
    let whole = read(&mut reader).0.nulls(0);
    for (key, columns) in FAILURES {
        // 999: unknown; 3: not supported; 4: no permission.
        for code in [999, 3, 4] {
            machine.set_script(&format!("{GPU0}{AFTER}gpu0 {key} error {code}\n"));
            let (gpus, _, error) = read(&mut reader);
            assert_eq!(gpus.len(), 1, "{key}");
            let mut nulls = gpus.nulls(0);
            nulls.retain(|column| !whole.contains(column));
            nulls.sort();
            assert_eq!(nulls, columns, "{key}");
            // A failed field does not fail the call, which reads several fields.
            let counted = code == 999 && !key.starts_with("field");
            assert_eq!(error.is_some(), counted, "{key} {code}: {error:?}");
            machine.set_script(&format!("{GPU0}{AFTER}"));
            read(&mut reader);
        }
    }
}

/// Facts of the script, as NVML returns them.
const FACTS: &str = "\
gpu0 memory 85520809984 623902720 1073741824
gpu0 bar1 137438953472 2097152
gpu0 max_clocks 1980 1990 2619 1545
gpu0 vbios 96.00.74.00.1C
gpu0 serial 1650123000123
gpu0 part 900-21010-0000-000
gpu0 architecture 9
gpu0 compute_mode 3
gpu0 persistence 1
gpu0 ecc_mode 0
gpu0 power_limits 200000 700000
";

#[test]
fn facts_have_one_row_per_gpu() {
    let machine = Machine::new("gpu-facts");
    machine.set_script(&format!(
        "{GPU0}{FACTS}nvml count 2\ngpu1 uuid GPU-1\ngpu1 vbios error 3\n"
    ));
    let mut reader = machine.reader();
    let (batches, _) = reader.attempt(true);
    let found = batches
        .iter()
        .find(|batch| batch.table.name == "gpu_device");
    let devices = Rows(found.cloned());
    assert_eq!(devices.len(), 2);
    for (column, value) in [
        ("driver_version", "550.54.15"),
        ("cuda_version", "12.4"),
        ("vbios_version", "96.00.74.00.1C"),
        ("serial", "1650123000123"),
        ("part_number", "900-21010-0000-000"),
        ("architecture", "Hopper"),
        ("compute_mode", "exclusive_process"),
        ("bdf", "0001:3b:00.0"),
    ] {
        assert_eq!(devices.text(0, column).as_deref(), Some(value), "{column}");
    }
    for (column, value) in [
        ("index", 0),
        ("memory_total", 85_520_809_984),
        ("bar1_total", 137_438_953_472),
        ("max_graphics_clock_hz", 1_980_000_000),
        ("max_sm_clock_hz", 1_990_000_000),
        ("max_memory_clock_hz", 2_619_000_000),
        ("max_video_clock_hz", 1_545_000_000),
        ("max_pcie_generation", 5),
        ("max_pcie_width", 16),
    ] {
        assert_eq!(devices.get(0, column), Some(value), "{column}");
    }
    assert_eq!(devices.fraction(0, "max_power_limit_w"), Some(700.0));
    assert_eq!(devices.get(0, "persistence_mode"), Some(1));
    assert_eq!(devices.get(0, "ecc"), Some(0));
    assert_eq!(devices.text(1, "vbios_version"), None);
    assert_eq!(
        devices.text(1, "driver_version").as_deref(),
        Some("550.54.15")
    );
    let (batches, _) = reader.attempt(true);
    assert!(!batches.iter().any(|batch| batch.table.name == "gpu_device"));
}

#[test]
fn implausible_values_are_null() {
    let machine = Machine::new("gpu-nonsense");
    machine.set_script(&format!("{GPU0}{BEFORE}"));
    let mut reader = machine.reader();
    read(&mut reader);
    machine.set_script(&format!(
        "{GPU0}{AFTER}gpu0 utilization 101 4294967295\ngpu0 p_state 32\ngpu0 p_state 77\n\
         gpu0 energy 18446744073709551615\ngpu0 gpm3 nan\ngpu0 gpm2 -1\ngpu0 field82.0 9 1\n\
         gpu0 throttle 9223372036854775808\n"
    ));
    let (gpus, _, _) = read(&mut reader);
    for column in [
        "utilization",
        "memory_utilization",
        "pstate",
        "energy_uj",
        "sm_occupancy_percent",
        "sm_activity_percent",
        "memory_temperature",
    ] {
        assert!(gpus.nulls(0).contains(&column.to_owned()), "{column}");
    }
    let reasons = gpus.text(0, "throttle_reasons");
    assert_eq!(reasons.as_deref(), Some("unknown"));
    assert_eq!(gpus.get(0, "temperature"), Some(45));
    // The driver was reloaded, which resets the counters.
    machine.set_script(&format!("{GPU0}{BEFORE}"));
    read(&mut reader);
    machine.set_script(&format!("{GPU0}gpu0 energy 7\ngpu0 ecc_corrected 0\n"));
    let (gpus, _, _) = read(&mut reader);
    assert_eq!(gpus.get(0, "energy_uj"), None);
    machine.set_script(&format!("{GPU0}gpu0 energy 9\ngpu0 ecc_corrected 0\n"));
    let (gpus, _, _) = read(&mut reader);
    assert_eq!(gpus.get(0, "energy_uj"), Some(2000));
}

#[test]
fn a_lost_gpu_does_not_affect_the_others() {
    let machine = Machine::new("gpu-lost");
    let two = "nvml count 2\ngpu0 uuid GPU-0\ngpu1 uuid GPU-1\ngpu0 power 1\ngpu1 power 2\n";
    machine.set_script(two);
    let mut reader = machine.reader();
    read(&mut reader);
    assert_eq!(read(&mut reader).0.len(), 2);
    // 15: fallen off the bus.
    machine.set_script(&format!("{two}gpu0 power error 15\n"));
    let (gpus, _, error) = read(&mut reader);
    assert_eq!(gpus.len(), 1);
    assert_eq!(gpus.text(0, "uuid").as_deref(), Some("GPU-1"));
    let error = error.expect("reported");
    assert!(error.contains("power"), "{error}");
    machine.set_script(two);
    assert_eq!(read(&mut reader).0.len(), 1, "its baseline");
    assert_eq!(read(&mut reader).0.len(), 2);
}

#[test]
fn gpus_that_a_cgroup_denies_have_no_rows() {
    let machine = Machine::new("gpu-cgroup");
    // 4: no permission.
    machine.set_script("nvml count 2\ngpu0 handle error 4\ngpu1 uuid GPU-1\n");
    let mut reader = machine.reader();
    read(&mut reader);
    let (gpus, _, error) = read(&mut reader);
    assert_eq!((gpus.len(), error), (1, None));
    assert_eq!(gpus.get(0, "index"), Some(1));
}

#[test]
fn rates_replace_pcie_counters_that_may_wrap_twice() {
    let machine = Machine::new("gpu-pcie");
    let script = |link: (u32, u32), counter: u64, rate: &str| {
        machine.set_script(&format!(
            "{GPU0}gpu0 max_pcie_generation {}\ngpu0 max_pcie_width {}\ngpu0 gpm 1\n\
             gpu0 field197.0 1 {counter}\ngpu0 field198.0 1 5\n{rate}",
            link.0, link.1
        ));
    };
    // 250 MB/s: 2^32 bytes take 17 s.
    let slow = (1, 1);
    script(slow, 4_294_967_290, "");
    let mut reader = machine.reader();
    read(&mut reader);
    script(slow, 10, "");
    let (gpus, _, _) = read(&mut reader);
    assert_eq!(gpus.get(0, "pcie_tx_bytes"), Some(16), "wrapped once");
    // 63 GB/s: 68 ms.
    let fast = (5, 16);
    script(fast, 10, "");
    let mut reader = machine.reader();
    read(&mut reader);
    sleep(Duration::from_millis(100));
    script(fast, 20, "");
    let (gpus, _, _) = read(&mut reader);
    assert_eq!(gpus.get(0, "pcie_tx_bytes"), None);
    sleep(Duration::from_millis(100));
    script(fast, 30, "gpu0 gpm20 1000\n");
    let (gpus, _, _) = read(&mut reader);
    let seconds = gpus.get(0, "interval_ns").unwrap() as f64 / 1e9;
    let bytes = gpus
        .get(0, "pcie_tx_bytes")
        .expect("computed from the rate") as f64;
    let expected = 1000.0 * f64::from(1 << 20) * seconds;
    assert!(
        (bytes - expected).abs() < 0.05 * expected,
        "{bytes} {expected}"
    );
    assert_eq!(gpus.get(0, "pcie_rx_bytes"), None);
}

#[test]
fn processes_are_matched_by_pid() {
    let machine = Machine::new("gpu-processes");
    machine.start(41);
    machine.start(42);
    let none = "18446744073709551615 4294967295 4294967295";
    let lists = format!(
        "gpu0 compute 41 4096 4294967295 4294967295 42 {none} 43 1 4294967295 4294967295\n\
         gpu0 graphics 41 4096 4294967295 4294967295\n"
    );
    machine.set_script(&format!("{GPU0}{lists}gpu0 samples 41 100 99 99 99 99\n"));
    let mut reader = machine.reader();
    read(&mut reader);
    machine.set_script(&format!(
        "{GPU0}{lists}gpu0 samples 41 100 99 99 99 99 41 200 10 20 0 1 41 300 20 21 0 4294967295\n"
    ));
    let (gpus, processes, error) = read(&mut reader);
    assert_eq!((gpus.len(), error), (1, None));
    // Process 43 has ended.
    assert_eq!(processes.len(), 2);
    for (column, value) in [
        ("pid", 41),
        ("index", 0),
        ("memory_used", 4096),
        ("sm_utilization", 15),
        ("memory_utilization", 21),
        ("encoder_utilization", 0),
        ("decoder_utilization", 1),
    ] {
        assert_eq!(processes.get(0, column), Some(value), "{column}");
    }
    assert_eq!(processes.get(0, "interval_ns"), gpus.get(0, "interval_ns"));
    assert_eq!(processes.text(0, "bdf").as_deref(), Some("0001:3b:00.0"));
    assert_eq!(processes.get(1, "pid"), Some(42));
    for column in ["memory_used", "sm_utilization", "tid", "engines_ns"] {
        assert_eq!(processes.get(1, column), None, "{column}");
    }
    // Null without a new sample, not the previous value.
    let (_, processes, _) = read(&mut reader);
    assert_eq!(processes.get(0, "sm_utilization"), None);
    assert_eq!(processes.get(0, "memory_used"), Some(4096));
}

#[test]
fn processes_are_omitted_in_another_pid_namespace() {
    let machine = Machine::new("gpu-namespace");
    fs::remove_file(machine.tree.path("proc/self/ns/pid")).unwrap();
    symlink("pid:[4026532000]", machine.tree.path("proc/self/ns/pid")).unwrap();
    machine.start(41);
    machine.set_script(&format!(
        "{GPU0}gpu0 compute 41 4096 4294967295 4294967295\n"
    ));
    let mut reader = machine.reader();
    read(&mut reader);
    let (gpus, processes, _) = read(&mut reader);
    assert_eq!((gpus.len(), processes.len()), (1, 0));
}

#[test]
fn mig_instances_appear_and_disappear() {
    let machine = Machine::new("gpu-mig");
    machine.start(41);
    let first = "gpu0 mig_instance0 0\nmig0 uuid MIG-aaaa\nmig0 name NVIDIA H100 MIG 1g.10gb\n\
        mig0 memory 1000 10 100\nmig0 gpu_instance 7\nmig0 compute_instance 0\ngpu0 gpm3.7 25\n";
    let second = "gpu0 mig_instance3 1\nmig1 uuid MIG-bbbb\nmig1 memory 2000 20 200\n\
        mig1 gpu_instance 9\nmig1 compute_instance 1\n";
    let asked = "gpu0 mig log 1\ngpu0 mig_count log 7\ngpu0 power log 5\n";
    let gpu = format!("{GPU0}{asked}gpu0 gpm 1\n");
    let process = "gpu0 compute 41 64 7 0\n";
    machine.set_script(&format!("{gpu}{first}{process}"));
    let mut reader = machine.reader();
    read(&mut reader);
    machine.set_script(&format!("{gpu}{first}{second}{process}"));
    let (gpus, processes, error) = read(&mut reader);
    assert_eq!((gpus.len(), error), (2, None), "a baseline for the second");
    assert_eq!(gpus.fraction(0, "power_w"), Some(0.005));
    for (column, value) in [
        ("gpu_instance", 7),
        ("compute_instance", 0),
        ("memory_total", 1000),
        ("memory_used", 100),
    ] {
        assert_eq!(gpus.get(1, column), Some(value), "{column}");
    }
    assert_eq!(
        (gpus.get(1, "index"), gpus.fraction(1, "power_w")),
        (None, None)
    );
    let parent = gpus.text(1, "parent_uuid");
    assert_eq!(parent, gpus.text(0, "uuid"));
    assert_eq!(gpus.text(1, "uuid").as_deref(), Some("MIG-aaaa"));
    assert_eq!(gpus.fraction(1, "sm_occupancy_percent"), Some(25.0));
    assert_eq!(processes.text(0, "uuid").as_deref(), Some("MIG-aaaa"));
    assert_eq!(processes.get(0, "gpu_instance"), Some(7));
    machine.set_script(&format!("{gpu}{second}"));
    let (gpus, processes, _) = read(&mut reader);
    assert_eq!((gpus.len(), processes.len()), (2, 0));
    assert_eq!(gpus.text(1, "uuid").as_deref(), Some("MIG-bbbb"));
    let log = fs::read_to_string(machine.tree.path("libnvidia-ml.so.1.script.log")).unwrap();
    for value in ["power", "mig", "mig_count"] {
        let asked = log.lines().filter(|line| *line == format!("gpu0 {value}"));
        assert_eq!(asked.count(), 3, "once per reading: {log}");
    }
}

/// Samples until there are rows of GPUs.
fn next_rows(reader: &mut Reader) -> Rows {
    loop {
        if let Some(batch) = reader.attempt(false).0.into_iter().next() {
            return Rows(Some(batch));
        }
        sleep(Duration::from_millis(1));
    }
}

/// Shortest time of some samples that have no rows. Other processes delay some of them.
fn shortest_sample(reader: &mut Reader) -> Duration {
    let times = (0..10).map(|_| {
        let begun = Instant::now();
        let (batches, result) = reader.attempt(false);
        let took = begun.elapsed();
        assert!(batches.is_empty());
        let error = result.expect_err("reported").to_string();
        assert!(error.contains("has not ended"), "{error}");
        took
    });
    times.min().expect("ten samples")
}

#[test]
fn a_slow_library_does_not_delay_ticks() {
    let machine = Machine::new("gpu-slow");
    let held = machine.tree.path("libnvidia-ml.so.1.script.held");
    machine.set_script(&format!("{GPU0}gpu0 energy 1000\n"));
    let mut reader = machine.reader();
    let begun = Instant::now();
    read(&mut reader);
    // The reading that the last one has begun.
    while reader.attempt(false).0.is_empty() {}
    machine.set_script(&format!("{GPU0}gpu0 energy hold 3000\n"));
    while !held.exists() {
        let _ = reader.attempt(false);
    }
    let read_at = begun.elapsed();
    let shortest = shortest_sample(&mut reader);
    assert!(shortest < Duration::from_millis(500), "{shortest:?}");
    sleep(Duration::from_millis(200));
    machine.set_script(&format!("{GPU0}gpu0 energy 9000\n"));
    fs::remove_file(held).unwrap();
    let gpus = next_rows(&mut reader);
    assert_eq!(gpus.get(0, "energy_uj"), Some(2_000_000));
    // The interval ends with the query, not with the tick that took its result.
    let interval = gpus.get(0, "interval_ns").map(Duration::from_nanos);
    assert!(interval < Some(read_at), "{interval:?}, {read_at:?}");
    let gpus = next_rows(&mut reader);
    assert_eq!(gpus.get(0, "energy_uj"), Some(6_000_000), "counted once");
}

#[test]
fn a_hung_library_does_not_delay_the_end() {
    let machine = Machine::new("gpu-hang");
    let held = machine.tree.path("libnvidia-ml.so.1.script.held");
    machine.set_script(GPU0);
    let mut reader = machine.reader();
    read(&mut reader);
    machine.set_script(&format!("{GPU0}gpu0 power hold 1\n"));
    while !held.exists() {
        let _ = reader.attempt(false);
    }
    let shortest = shortest_sample(&mut reader);
    assert!(shortest < Duration::from_millis(500), "{shortest:?}");
    let (gpus, _, error) = read(&mut reader);
    assert_eq!(gpus.len(), 0);
    assert!(error.is_some());
    // Neither waits for the library, which never answers.
    drop(reader);
}

/// Why the source is not available.
fn refusal(support: Support) -> String {
    match support {
        Support::Unavailable { why, .. } => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn unavailability_is_explained() {
    let machine = Machine::new("gpu-missing");
    machine.tree.remove("sys/module/nvidia");
    machine.set_script(GPU0);
    assert!(refusal(machine.support()).contains("no supported GPU driver"));
    let device = "sys/bus/pci/devices/0000:3b:00.0";
    machine.tree.put(format!("{device}/vendor"), "0x10de\n");
    machine.tree.put(format!("{device}/class"), "0x030200\n");
    assert!(refusal(machine.support()).contains("not loaded"));
    machine.tree.put("sys/module/nvidia/version", "1\n");
    // A path is loaded only once, so that each script needs a copy of the library.
    let mut libraries = 0;
    let mut with = |script: &str| {
        libraries += 1;
        let library = machine.tree.path(format!("{libraries}.so"));
        fs::copy(&machine.library, &library).unwrap();
        fs::write(machine.tree.path(format!("{libraries}.so.script")), script).unwrap();
        refusal(support(&machine.tree.host(), library.as_os_str()))
    };
    assert!(with("nvml count 0\n").contains("finds no GPU"));
    // 9: driver not loaded; 18: the kernel module is of another version; 999: unknown.
    for (code, why) in [(9, "driver"), (18, "mismatch"), (999, "internal")] {
        let message = with(&format!("nvml init error {code}\n"));
        assert!(message.contains(why), "{message}");
    }
    assert!(with("nvml count error 4\n").contains("permission"));
    let absent = machine.tree.path("none.so");
    let message = refusal(support(&machine.tree.host(), absent.as_os_str()));
    assert!(message.contains("none.so"), "{message}");
    machine.tree.put("text.so", "not a library");
    let text = machine.tree.path("text.so");
    refusal(support(&machine.tree.host(), text.as_os_str()));
}

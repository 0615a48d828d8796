//! `host` and `Host`, on fixtures and on the present machine.

use std::{
    fs,
    time::{Duration, Instant},
};

use profiler::{host::Host, sources::host::SPEC, support::clock::thread_cpu_ns};
use serde_json::{Value, json};

use test_support::{Reader, Rows, Tree, this_host};

/// Returns damaged contents of a file.
type Damage = fn(&[u8]) -> Vec<u8>;

/// The row of table `host`.
fn facts(host: &Host) -> Rows {
    let mut reader = Reader::open(&SPEC, host);
    let began = Instant::now();
    loop {
        let rows = reader.rows();
        if rows.len() > 0 {
            assert_eq!(rows.len(), 1);
            assert_eq!(reader.rows().len(), 0, "one row per run");
            assert!(reader.last().unwrap().is_empty());
            return rows;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "no row");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A JSON column.
fn list(rows: &Rows, column: &str) -> Value {
    serde_json::from_str(&rows.text(0, column).unwrap()).unwrap()
}

fn texts(rows: &Rows, expected: &[(&str, Option<&str>)]) {
    for (column, text) in expected {
        assert_eq!(rows.text(0, column).as_deref(), *text, "{column}");
    }
}

fn numbers(rows: &Rows, expected: &[(&str, Option<u64>)]) {
    for (column, number) in expected {
        assert_eq!(rows.get(0, column), *number, "{column}");
    }
}

#[test]
fn facts_of_a_server() {
    let tree = Tree::of("server", "facts-server");
    let host = tree.host();
    assert_eq!(
        (host.lockdown.as_deref(), host.psi, host.possible_cpus),
        (Some("integrity"), false, 8)
    );
    assert_eq!(host.cgroups.mode(), Some("v2"));
    assert_eq!(host.init_pid_namespace, Some(true));
    assert_eq!(
        (host.perf_event_paranoid, host.unprivileged_bpf_disabled),
        (Some(2), Some(2))
    );
    let rows = facts(&host);
    texts(
        &rows,
        &[
            ("cpu_vendor", Some("GenuineIntel")),
            (
                "cpu_model_name",
                Some("Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz"),
            ),
            ("microarchitecture", Some("Ice Lake-SP")),
            ("microcode", Some("0xd0003d1")),
            ("hypervisor", None),
            ("system_product", Some("PowerEdge R750")),
            ("distribution", Some("Rocky Linux 9.4 (Blue Onyx)")),
            ("distribution_id", Some("rocky")),
            ("kernel_release", Some("5.14.0-427.13.1.el9_4.x86_64")),
            ("cpufreq_driver", Some("intel_pstate")),
            ("cpufreq_governor", Some("performance")),
            ("transparent_hugepages", Some("always")),
            ("lockdown", Some("integrity")),
            ("cgroup_mode", Some("v2")),
            ("clocksource", Some("tsc")),
            ("boot_id", Some("0f6f8f0e-9d5c-4c43-9a3e-0b6f2f7b6a10")),
            ("smt", Some("true")),
            ("btf", Some("true")),
            ("psi", Some("false")),
        ],
    );
    numbers(
        &rows,
        &[
            ("cpu_family", Some(6)),
            ("cpu_model", Some(106)),
            ("cpu_stepping", Some(6)),
            ("cpu_part", None),
            ("sockets", Some(2)),
            ("cores", Some(4)),
            ("threads", Some(8)),
            ("numa_nodes", Some(2)),
            ("base_frequency_hz", Some(2_000_000_000)),
            ("min_frequency_hz", Some(800_000_000)),
            ("max_frequency_hz", Some(3_200_000_000)),
            ("memory_total", Some(527_896_012 * 1024)),
            ("perf_event_paranoid", Some(2)),
        ],
    );
}

#[test]
fn devices_and_mounts_of_a_server() {
    let tree = Tree::of("server", "devices-server");
    let rows = facts(&tree.host());
    let caches = list(&rows, "caches");
    assert_eq!(caches.as_array().unwrap().len(), 4 + 4 + 4 + 2);
    assert_eq!(
        caches[0],
        json!({"level": 1, "type": "Data", "size": 49152, "line": 64, "ways": 12, "shared_cpus": "0,4"})
    );
    assert_eq!(caches[13]["shared_cpus"], "2-3,6-7");
    assert_eq!(
        list(&rows, "numa")[1],
        json!({"node": 1, "cpus": "2-3,6-7", "memory": 263_948_006u64 * 1024, "distances": [20, 10]})
    );
    let gpus = list(&rows, "gpus");
    assert_eq!(gpus.as_array().unwrap().len(), 4);
    assert_eq!(
        gpus[1],
        json!({"address": "0000:17:00.0", "vendor": "0x10de", "device": "0x20b2", "class": "0x030200",
               "driver": "nvidia", "numa_node": 0})
    );
    let nics = list(&rows, "nics");
    let infiniband = nics
        .as_array()
        .unwrap()
        .iter()
        .find(|nic| nic["name"] == "ib0");
    assert_eq!(
        infiniband.unwrap(),
        &json!({"name": "ib0", "driver": "mlx5_core", "speed_mbit": 200_000, "mtu": 4092, "state": "up",
                "numa_node": 1, "addresses": []})
    );
    assert_eq!(
        list(&rows, "block_devices")[0],
        json!({"name": "nvme0n1", "model": "SAMSUNG MZQL23T8HCLS-00A07", "size": 7_501_476_528u64 * 512,
               "rotational": false, "scheduler": "none"})
    );
    assert_eq!(
        list(&rows, "pmus")[3],
        json!({"name": "uncore_imc_0", "type": 20, "cpumask": "0,2"})
    );
    assert_eq!(list(&rows, "mitigations")["meltdown"], "Not affected");
    let mounts = list(&rows, "mounts");
    assert_eq!(mounts[4]["device"], "10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch");
    assert_eq!(mounts[5]["mount_point"], "/home/my group");
    let everything = format!("{:?}", rows.0.as_ref().unwrap().rows);
    assert!(!everything.contains("hunter2"), "a password");
    assert!(
        rows.text(0, "kernel_cmdline")
            .unwrap()
            .contains("rd.iscsi.password=*** mitigations=auto")
    );
}

#[test]
fn unequal_packages_and_cores_have_no_common_number() {
    let tree = Tree::of("server", "facts-unequal");
    let per = |tree: &Tree| {
        let rows = facts(&tree.host());
        let columns = ["sockets", "cores", "cores_per_socket", "threads_per_core"];
        columns.map(|column| rows.get(0, column))
    };
    assert_eq!(per(&tree), [Some(2), Some(4), Some(2), Some(2)]);
    for cpu in [2, 6] {
        let file = format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        tree.put(file, "0\n");
    }
    assert_eq!(per(&tree), [Some(2), Some(4), None, Some(2)], "3 + 1 cores");
    tree.put("sys/devices/system/cpu/online", "0-5,7\n");
    assert_eq!(per(&tree), [Some(2), Some(4), None, None], "2 + 2 + 1 + 2");
    tree.put("sys/devices/system/cpu/online", "0-1,3\n");
    for cpu in 0..8 {
        let file = format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        tree.put(file, "-1\n");
    }
    assert_eq!(per(&tree), [None, Some(3), None, Some(1)], "unknown");
}

#[test]
fn values_with_colons_are_whole() {
    let tree = Tree::of("server", "facts-colons");
    let cpuinfo = String::from_utf8(tree.get("proc/cpuinfo")).unwrap();
    let name = "AMD Eng Sample: 100-000000163-43_29/17_Y";
    let named = cpuinfo.replace("Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz", name);
    assert_ne!(named, cpuinfo);
    tree.put("proc/cpuinfo", named);
    texts(
        &facts(&tree.host()),
        &[
            ("cpu_model_name", Some(name)),
            ("microarchitecture", Some("Ice Lake-SP")),
        ],
    );
}

#[test]
fn numbers_that_mean_unknown_are_null() {
    let tree = Tree::of("server", "facts-unknown");
    tree.put("sys/class/net/ib0/device/numa_node", "-1\n");
    tree.put("sys/devices/system/cpu/cpu0/cache/index0/size", "0K\n");
    tree.put(
        "sys/devices/system/cpu/cpu0/cache/index0/ways_of_associativity",
        "0\n",
    );
    for (speed, expected) in [
        ("65535", Value::Null),
        ("4294967295", Value::Null),
        ("0", Value::Null),
        ("-1", Value::Null),
        ("800000", json!(800_000)),
    ] {
        tree.put("sys/class/net/ib0/speed", format!("{speed}\n"));
        let nics = list(&facts(&tree.host()), "nics");
        let nics = nics.as_array().unwrap();
        let nic = nics.iter().find(|nic| nic["name"] == "ib0").unwrap();
        assert_eq!(nic["speed_mbit"], expected, "{speed}");
        assert_eq!(nic["numa_node"], Value::Null);
    }
    let caches = list(&facts(&tree.host()), "caches");
    assert_eq!(
        (&caches[0]["size"], &caches[0]["ways"]),
        (&Value::Null, &Value::Null)
    );
}

#[test]
fn facts_of_a_virtual_machine() {
    let tree = Tree::of("vm", "facts-vm");
    let host = tree.host();
    assert_eq!((host.lockdown.as_deref(), host.psi), (None, true));
    assert_eq!(host.cgroups.v1.len(), 3);
    assert_eq!(
        host.cgroups.v2.as_ref().unwrap().mount_point.to_str(),
        Some("/sys/fs/cgroup/unified")
    );
    let rows = facts(&host);
    texts(
        &rows,
        &[
            ("hypervisor", Some("kvm")),
            ("microarchitecture", Some("Zen 4")),
            ("cgroup_mode", Some("hybrid")),
            ("lockdown", None),
            ("architecture", Some("x86_64")),
            ("system_vendor", None),
            ("cpufreq_driver", None),
            ("smt", Some("false")),
        ],
    );
    numbers(
        &rows,
        &[
            ("base_frequency_hz", None),
            ("max_frequency_hz", None),
            ("sockets", Some(1)),
            ("cores", Some(2)),
        ],
    );
    assert_eq!(list(&rows, "gpus"), json!([]));
    assert_eq!(
        list(&rows, "block_devices").as_array().unwrap().len(),
        1,
        "no loop device without a size"
    );
    assert_eq!(list(&rows, "nics")[0]["speed_mbit"], Value::Null);
}

#[test]
fn facts_of_an_arm64_node() {
    let tree = Tree::of("arm64", "facts-arm64");
    let rows = facts(&tree.host());
    texts(
        &rows,
        &[
            ("architecture", Some("aarch64")),
            ("cpu_vendor", Some("Arm")),
            ("cpu_model_name", None),
            ("microarchitecture", Some("Neoverse N1")),
            ("hypervisor", None),
            ("btf", Some("false")),
            (
                "cpu_flags",
                Some(
                    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp",
                ),
            ),
        ],
    );
    numbers(
        &rows,
        &[
            ("cpu_family", None),
            ("cpu_implementer", Some(0x41)),
            ("cpu_variant", Some(3)),
            ("cpu_part", Some(0xd0c)),
            ("cpu_revision", Some(1)),
            ("base_frequency_hz", Some(2_800_000_000)),
        ],
    );
    assert_eq!(list(&rows, "pmus")[1]["cpumask"], "0-3");
}

#[test]
fn hybrid_cpus_have_both_names() {
    let tree = Tree::of("server", "facts-hybrid");
    let cpuinfo = String::from_utf8(tree.get("proc/cpuinfo")).unwrap();
    tree.put(
        "proc/cpuinfo",
        cpuinfo.replace("model\t\t: 106", "model\t\t: 151"),
    );
    tree.remove("sys/bus/event_source/devices/cpu");
    let name = |tree: &Tree| facts(&tree.host()).text(0, "microarchitecture");
    let [p, e] = [
        "Alder Lake P-core (Golden Cove)",
        "Alder Lake E-core (Gracemont)",
    ];
    assert_eq!(name(&tree), Some(format!("{e} or {p}")));
    tree.put("sys/bus/event_source/devices/cpu_core/type", "4");
    tree.put("sys/bus/event_source/devices/cpu_atom/type", "10");
    assert_eq!(name(&tree), Some(format!("{p} + {e}")));
}

#[test]
fn damaged_files_become_nulls() {
    for fixture in ["vm", "server", "arm64"] {
        let damages: [Damage; 5] = [
            |_| Vec::new(),
            |text| text[..text.len() / 2].to_vec(),
            |text| {
                text.iter()
                    .map(|byte| if byte.is_ascii_digit() { b'x' } else { *byte })
                    .collect()
            },
            |text| {
                text.iter()
                    .flat_map(|byte| {
                        if *byte == b'1' {
                            b"-99999999999999999999".to_vec()
                        } else {
                            vec![*byte]
                        }
                    })
                    .collect()
            },
            |text| text.iter().map(|byte| byte ^ 0xff).collect(),
        ];
        for (number, damage) in damages.iter().enumerate() {
            let tree = Tree::of(fixture, &format!("damaged-facts-{fixture}-{number}"));
            let files = tree.files();
            for file in &files {
                tree.put(file, damage(&tree.get(file)));
            }
            let rows = facts(&tree.host());
            for column in [
                "mounts",
                "nics",
                "block_devices",
                "gpus",
                "pmus",
                "environment",
            ] {
                list(&rows, column);
            }
            for file in &files {
                fs::remove_file(tree.path(file)).unwrap();
            }
            facts(&tree.host());
        }
    }
    let nothing = facts(&Host::probe(
        "/none/proc",
        "/none/sys",
        Some("x".to_owned()),
    ));
    assert_eq!(nothing.text(0, "kernel_release"), None);
    assert_eq!(list(&nothing, "mounts"), json!([]));
}

#[test]
fn facts_of_the_present_machine() {
    let rows = facts(&this_host());
    let uname = rustix::system::uname();
    let of = |text: &std::ffi::CStr| Some(text.to_string_lossy().into_owned());
    assert_eq!(rows.text(0, "architecture"), of(uname.machine()));
    assert_eq!(rows.text(0, "kernel_release"), of(uname.release()));
    assert_eq!(rows.text(0, "kernel_version"), of(uname.version()));
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap();
    let cpus = cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    assert_eq!(rows.get(0, "threads"), Some(cpus as u64));
    assert!(rows.get(0, "cores").unwrap() <= cpus as u64);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert_eq!(
        list(&rows, "mounts").as_array().unwrap().len(),
        mounts.lines().count()
    );
    let interfaces = fs::read_dir("/sys/class/net")
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().is_dir());
    assert_eq!(
        list(&rows, "nics").as_array().unwrap().len(),
        interfaces.count()
    );
    let variables = list(&rows, "environment");
    assert!(variables.get("PATH").is_none() && variables.get("HOME").is_none());
}

#[test]
fn opening_and_probing_are_fast() {
    // In CPU time, because other tests share the CPUs.
    let took = (0..5).map(|_| {
        let began = thread_cpu_ns();
        Reader::open(&SPEC, &this_host());
        thread_cpu_ns() - began
    });
    let fastest = took.min().expect("five runs");
    println!("probe and open: {fastest} ns");
    assert!(fastest < 200_000_000, "{fastest} ns");
    let mut reader = Reader::open(&SPEC, &this_host());
    assert_eq!(reader.last().unwrap().len(), 1, "the end waits for the row");
}

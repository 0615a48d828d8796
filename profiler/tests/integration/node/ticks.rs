//! `system` and `cpu` on fixtures: exact increases, hotplug, resets and damaged files.

use profiler::sources::{cpu, system};

use test_support::{DAMAGES, Reader, Rows, Tree, check};

const TICK: u64 = 10_000_000;

fn is_psi(name: &str) -> bool {
    name.starts_with("psi_")
}

#[test]
fn increases_and_gauges_of_a_virtual_machine() {
    let vm = Tree::of("vm", "vm-system");
    let mut reader = Reader::open(&system::SPEC, &vm.host());
    assert_eq!(reader.rows().len(), 0);
    vm.edit(
        "proc/stat",
        "cpu  95696 0 10364 226602 747 0 172 103",
        "cpu  95700 1 10366 226607 748 0 172 103",
    );
    vm.edit("proc/stat", "ctxt 864474", "ctxt 864574");
    vm.edit("proc/stat", "intr 684977", "intr 684980");
    vm.edit("proc/stat", "processes 13966", "processes 13967");
    vm.edit("proc/stat", "softirq 353762", "softirq 353768");
    vm.edit("proc/vmstat", "pgfault 19967909", "pgfault 19968009");
    vm.edit("proc/vmstat", "pgmajfault 4851", "pgmajfault 4861");
    vm.edit("proc/vmstat", "pgpgout 3556856", "pgpgout 3556860");
    vm.edit("proc/pressure/io", "total=8580267", "total=8580270");
    let rows = reader.rows();
    assert_eq!(rows.len(), 1);
    let nulls = rows.nulls(0);
    assert!(nulls.iter().all(|name| name == "processes"), "{nulls:?}");
    let interval = rows.get(0, "interval_ns").unwrap();
    assert!((1..60_000_000_000).contains(&interval));
    for (column, value) in [
        ("user_ns", 4 * TICK),
        ("nice_ns", TICK),
        ("system_ns", 2 * TICK),
        ("idle_ns", 5 * TICK),
        ("iowait_ns", TICK),
        ("irq_ns", 0),
        ("steal_ns", 0),
        ("guest_ns", 0),
        ("cpus", 2),
        ("runnable", 4),
        ("blocked", 0),
        ("threads", 84),
        ("context_switches", 100),
        ("interrupts", 3),
        ("softirqs", 6),
        ("forks", 1),
        ("memory_total", 24_684_084 * 1024),
        ("memory_available", 24_154_676 * 1024),
        ("memory_used", (24_684_084 - 24_154_676) * 1024),
        ("memory_free", 22_583_216 * 1024),
        ("memory_cached", (1_626_208 + 248_248) * 1024),
        ("memory_buffers", 4868 * 1024),
        ("memory_shared", 8872 * 1024),
        ("memory_slab", 278_052 * 1024),
        ("memory_dirty", 350_360 * 1024),
        ("swap_total", 0),
        ("swap_used", 0),
        ("hugepages_total", 0),
        ("hugepage_size", 2 << 20),
        ("minor_faults", 90),
        ("major_faults", 10),
        ("page_in_bytes", 0),
        ("page_out_bytes", 4096),
        ("oom_kills", 0),
        ("psi_io_some_ns", 3000),
        ("psi_io_full_ns", 0),
    ] {
        assert_eq!(rows.get(0, column), Some(value), "{column}");
    }
    // Null unless the file system of the fixtures counts links like procfs.
    assert!(
        rows.get(0, "processes")
            .is_none_or(|processes| processes == 3)
    );
    assert_eq!(rows.fraction(0, "load5"), Some(1.63));
    assert_eq!(rows.fraction(0, "psi_cpu_some_avg10"), Some(2.38));
}

#[test]
fn guests_and_huge_pages_of_a_server() {
    let server = Tree::of("server", "server-system");
    let host = server.host();
    let mut reader = Reader::open(&system::SPEC, &host);
    reader.rows();
    // 30 ticks in guests, which `user` includes, and 10 outside; 5 in guests at low priority, and 1
    // outside.
    server.edit("proc/stat", "cpu  7228000 988", "cpu  7228040 994");
    server.edit("proc/stat", " 20000 80\n", " 20030 85\n");
    server.edit("proc/vmstat", "pswpin 1234", "pswpin 1236");
    server.edit("proc/vmstat", "oom_kill 2", "oom_kill 3");
    let rows = reader.rows();
    for (column, value) in [
        ("user_ns", 10 * TICK),
        ("guest_ns", 30 * TICK),
        ("nice_ns", TICK),
        ("guest_nice_ns", 5 * TICK),
        ("cpus", 8),
        ("swap_total", 16_777_212 * 1024),
        ("swap_used", 777_212 * 1024),
        ("swap_in_bytes", 2 * host.page_size),
        ("swap_out_bytes", 0),
        ("hugepages_total", 128),
        ("hugepages_free", 64),
        ("oom_kills", 1),
    ] {
        assert_eq!(rows.get(0, column), Some(value), "{column}");
    }
    assert!(
        rows.nulls(0).iter().all(|name| is_psi(name)),
        "{:?}",
        rows.nulls(0)
    );
    assert_eq!(
        rows.nulls(0).len(),
        12,
        "only PSI, which is disabled, is null"
    );
}

#[test]
fn pressure_before_kernel_5_13_has_no_full_for_the_cpu() {
    let node = Tree::of("arm64", "psi");
    node.put(
        "proc/pressure/cpu",
        "some avg10=1.00 avg60=0.75 avg300=0.40 total=1000\n",
    );
    let mut reader = Reader::open(&system::SPEC, &node.host());
    reader.rows();
    let rows = reader.rows();
    let psi: Vec<_> = rows
        .nulls(0)
        .into_iter()
        .filter(|name| is_psi(name))
        .collect();
    assert_eq!(psi, ["psi_cpu_full_avg10", "psi_cpu_full_ns"]);
    assert_eq!(rows.get(0, "hugepage_size"), Some(512 << 20));
}

#[test]
fn counters_that_wrap_or_reset() {
    let server = Tree::of("server", "wrap");
    let mut reader = Reader::open(&system::SPEC, &server.host());
    reader.rows();
    // One CPU's 32-bit counter wrapped: 9876543210 + 100 - 2^32.
    server.edit("proc/stat", "intr 9876543210", "intr 5581576014");
    server.edit("proc/stat", "ctxt 12345678901", "ctxt 17");
    server.edit(
        "proc/vmstat",
        "pgfault 8000100200",
        "pgfault 18446744073709551615",
    );
    let rows = reader.rows();
    assert_eq!(rows.get(0, "interrupts"), Some(100));
    assert_eq!(rows.get(0, "context_switches"), None);
    assert_eq!(rows.get(0, "minor_faults"), None);
    server.edit("proc/stat", "ctxt 17", "ctxt 20");
    let rows = reader.rows();
    assert_eq!(rows.get(0, "context_switches"), Some(3));
    assert_eq!(rows.get(0, "interrupts"), Some(0));
}

#[test]
fn a_corrected_iowait_increases_by_zero() {
    let vm = Tree::of("vm", "iowait");
    let mut reader = Reader::open(&cpu::SPEC, &vm.host());
    reader.rows();
    vm.edit(
        "proc/stat",
        "cpu1 48019 0 6033 111984 639",
        "cpu1 48019 0 6033 112000 600",
    );
    let rows = reader.rows();
    assert_eq!(rows.get(1, "iowait_ns"), Some(0));
    assert_eq!(rows.get(1, "idle_ns"), Some(16 * TICK));
    vm.edit("proc/stat", "112000 600", "112000 650");
    assert_eq!(
        reader.rows().get(1, "iowait_ns"),
        Some(11 * TICK),
        "650 - 639: corrected time counts once"
    );
}

/// Numbers of the CPUs in the rows.
fn cpus(rows: &Rows) -> Vec<u64> {
    (0..rows.len())
        .map(|row| rows.get(row, "cpu").unwrap())
        .collect()
}

#[test]
fn cpus_come_and_go() {
    let server = Tree::of("server", "hotplug");
    let mut reader = Reader::open(&cpu::SPEC, &server.host());
    assert_eq!(reader.rows().len(), 0);
    let rows = reader.rows();
    assert_eq!(cpus(&rows), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(rows.get(3, "frequency_hz"), Some(2_597_000_000));

    let whole = String::from_utf8(server.get("proc/stat")).unwrap();
    let line = whole
        .lines()
        .find(|line| line.starts_with("cpu3 "))
        .unwrap()
        .to_owned();
    server.edit("proc/stat", &format!("{line}\n"), "");
    server.remove("sys/devices/system/cpu/cpu3/cpufreq");
    assert_eq!(cpus(&reader.rows()), [0, 1, 2, 4, 5, 6, 7]);

    // Online again, with reset counters.
    server.edit("proc/stat", "cpu4 ", "cpu3 1 2 3 4 5 6 7 8 0 0\ncpu4 ");
    assert_eq!(cpus(&reader.rows()), [0, 1, 2, 4, 5, 6, 7], "its baseline");
    server.edit("proc/stat", "cpu3 1 ", "cpu3 4 ");
    let rows = reader.rows();
    assert_eq!(cpus(&rows), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(rows.get(3, "user_ns"), Some(3 * TICK));

    // Offline and online between two readings: before kernel 6.8 only idle is reset.
    server.edit(
        "proc/stat",
        "cpu5 905000 125 40005 4999950",
        "cpu5 905001 125 40005 10",
    );
    let rows = reader.rows();
    assert_eq!(
        (rows.get(5, "idle_ns"), rows.get(5, "user_ns")),
        (None, Some(TICK))
    );

    // A new CPU.
    server.edit("proc/stat", "intr ", "cpu1000 1 0 1 1 0 0 0 0 0 0\nintr ");
    assert_eq!(reader.rows().len(), 8);
    let rows = reader.rows();
    assert_eq!((rows.len(), rows.get(8, "cpu")), (9, Some(1000)));
    assert_eq!(
        (rows.get(8, "idle_ns"), rows.get(8, "frequency_hz")),
        (Some(0), None)
    );
}

#[test]
fn a_missing_file_makes_only_its_own_columns_null() {
    for (file, gone) in [
        ("stat", vec!["user_ns", "forks", "cpus", "blocked"]),
        ("meminfo", vec!["memory_total", "memory_used", "swap_free"]),
        ("vmstat", vec!["major_faults", "swap_in_bytes", "oom_kills"]),
        ("loadavg", vec!["load1", "load15", "threads"]),
        ("pressure/io", vec!["psi_io_some_avg10", "psi_io_full_ns"]),
    ] {
        let vm = Tree::of("vm", &format!("missing-{}", file.replace('/', "-")));
        let path = format!("proc/{file}");
        let text = vm.get(&path);
        let mut reader = Reader::open(&system::SPEC, &vm.host());
        reader.rows();
        let before = reader.rows().nulls(0).len();
        vm.put(&path, "");
        let nulls = reader.rows().nulls(0);
        assert!(
            before < nulls.len() && nulls.len() <= 30,
            "{file}: {nulls:?}"
        );
        assert!(
            gone.iter()
                .all(|gone| nulls.iter().any(|null| null == gone)),
            "{file}: {nulls:?}"
        );
        vm.put(&path, text);
        let baseline = reader.rows();
        assert!(baseline.nulls(0).len() <= nulls.len());
        let counters = ["forks", "major_faults", "psi_io_some_ns"];
        let back = counters.iter().filter(|name| gone.contains(name));
        assert!(
            back.clone().all(|name| baseline.get(0, name).is_none()),
            "{file}: two intervals in one"
        );
        assert_eq!(reader.rows().nulls(0).len(), before, "{file} restored");
    }
}

#[test]
fn a_failed_reading_is_followed_by_a_baseline() {
    let vm = Tree::of("vm", "nothing");
    for spec in [&system::SPEC, &cpu::SPEC] {
        let host = vm.host();
        std::fs::rename(host.procfs.join("stat"), host.procfs.join("stat.away")).unwrap();
        let mut reader = Reader::open(spec, &host);
        let others = ["meminfo", "vmstat", "loadavg"];
        let texts = others.map(|file| vm.get(format!("proc/{file}")));
        for file in others {
            vm.remove(&format!("proc/{file}"));
        }
        let error = format!("{:#}", reader.sample().unwrap_err());
        assert!(error.contains("stat"), "{error}");
        std::fs::rename(host.procfs.join("stat.away"), host.procfs.join("stat")).unwrap();
        for (file, text) in others.iter().zip(texts) {
            vm.put(format!("proc/{file}"), text);
        }
        assert_eq!(reader.rows().len(), 0, "{}: baseline", spec.name);
        assert!(reader.rows().len() > 0);
    }
}

#[test]
fn damaged_files_cause_no_panic_and_no_wrong_values() {
    for fixture in ["vm", "server", "arm64"] {
        let tree = Tree::of(fixture, &format!("damaged-{fixture}"));
        for path in tree.files() {
            let name = path.to_str().unwrap();
            let read = [
                "proc/stat",
                "proc/meminfo",
                "proc/vmstat",
                "proc/loadavg",
                "proc/pressure",
                "cpu0/cpufreq/scaling_cur",
            ];
            if !read.iter().any(|read| name.contains(read)) {
                continue;
            }
            let text = tree.get(&path);
            for (number, damage) in DAMAGES.iter().enumerate() {
                let what = format!("{fixture}: {name}, damage {number}");
                for spec in [&system::SPEC, &cpu::SPEC] {
                    let mut reader = Reader::open(spec, &tree.host());
                    for damaged in [false, true, false, true, true, false, false] {
                        let whole = String::from_utf8(text.clone()).unwrap();
                        tree.put(
                            &path,
                            if damaged {
                                damage(&whole)
                            } else {
                                text.clone()
                            },
                        );
                        if let Ok(mut batches) = reader.sample() {
                            check(&Rows(batches.pop()), &what);
                        }
                    }
                    assert!(reader.rows().len() > 0, "{what}: restored");
                }
            }
        }
    }
}

#[test]
fn random_bytes_cause_no_panic_and_no_wrong_values() {
    let tree = Tree::of("server", "random");
    let files = ["stat", "meminfo", "vmstat", "loadavg"].map(|file| format!("proc/{file}"));
    let texts = files.clone().map(|file| tree.get(file));
    let mut readers = [&system::SPEC, &cpu::SPEC].map(|spec| Reader::open(spec, &tree.host()));
    // A linear congruential generator: the same bytes in every run.
    let mut state = 12345u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap()
    };
    for _ in 0..300 {
        for (file, text) in files.iter().zip(&texts) {
            let mut text = text.clone();
            for _ in 0..random() % 8 {
                let place = random() % text.len();
                text[place] = b"0123456789 -\n\xff:cpu"[random() % 18];
            }
            tree.put(file, text);
        }
        for reader in &mut readers {
            if let Ok(mut batches) = reader.sample() {
                check(&Rows(batches.pop()), "random bytes");
            }
        }
    }
}

#[test]
fn each_of_512_cpus_has_a_row() {
    let tree = Tree::of("server", "large");
    let lines = (0..512)
        .map(|number| format!("cpu{number} 900000 120 40000 5000000 300 2000 1500 0 0 0\n"));
    let stat: String = lines.collect();
    for number in 0..512 {
        let file = format!("sys/devices/system/cpu/cpu{number}/cpufreq/scaling_cur_freq");
        tree.put(file, "2600000\n");
    }
    let interrupts = " 0".repeat(9000);
    tree.put("proc/stat", format!("{stat}intr 5{interrupts}\nctxt 1\n"));
    let mut reader = Reader::open(&cpu::SPEC, &tree.host());
    reader.rows();
    reader.rows();
    let began = std::time::Instant::now();
    let rows = reader.rows();
    println!("cpu: 512 CPUs in {:?}", began.elapsed());
    assert_eq!(rows.len(), 512);
    assert_eq!(rows.get(511, "idle_ns"), Some(0));
}

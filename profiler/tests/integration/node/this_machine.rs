//! `system` and `cpu` on the present machine, compared with readings of the same files before and
//! after.

use std::{fs, thread::sleep, time::Duration};

use profiler::{
    sources::{cpu, system},
    support::clock::{monotonic_ns, thread_cpu_ns},
};

use test_support::{Reader, Rows, this_host};

/// The `n`th word of the first line with this key; word 0 is the key.
fn value(path: &str, key: &str, n: usize) -> u64 {
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find(|line| {
        let word = line.split_whitespace().next();
        word.map(|word| word.trim_end_matches(':')) == Some(key)
    });
    let word = line.and_then(|line| line.split_whitespace().nth(n));
    word.unwrap_or_else(|| panic!("{path}: {key}"))
        .parse()
        .unwrap()
}

/// Increases the counters: CPU time, forks, page faults.
fn work() {
    for _ in 0..20 {
        assert!(
            std::process::Command::new("/bin/true")
                .status()
                .unwrap()
                .success()
        );
    }
    let mut memory = vec![0u8; 32 << 20];
    for page in memory.chunks_mut(4096) {
        page[0] = 1;
    }
    let began = thread_cpu_ns();
    while thread_cpu_ns() - began < 300_000_000 {
        // The clock is a system call: without this, half of the time is the kernel's.
        for _ in 0..100_000 {
            std::hint::black_box(&memory);
        }
    }
    sleep(Duration::from_millis(100));
}

#[test]
fn counters_lie_between_plain_readings() {
    const TICK: u64 = 10_000_000;
    let page = this_host().page_size;
    // Column, file, key, word, factor. These never decrease.
    let counters = [
        ("system_ns", "/proc/stat", "cpu", 3, TICK),
        ("irq_ns", "/proc/stat", "cpu", 6, TICK),
        ("softirq_ns", "/proc/stat", "cpu", 7, TICK),
        ("steal_ns", "/proc/stat", "cpu", 8, TICK),
        ("context_switches", "/proc/stat", "ctxt", 1, 1),
        ("interrupts", "/proc/stat", "intr", 1, 1),
        ("softirqs", "/proc/stat", "softirq", 1, 1),
        ("forks", "/proc/stat", "processes", 1, 1),
        ("major_faults", "/proc/vmstat", "pgmajfault", 1, 1),
        ("page_in_bytes", "/proc/vmstat", "pgpgin", 1, 1024),
        ("page_out_bytes", "/proc/vmstat", "pgpgout", 1, 1024),
        ("swap_in_bytes", "/proc/vmstat", "pswpin", 1, page),
        ("swap_out_bytes", "/proc/vmstat", "pswpout", 1, page),
        ("oom_kills", "/proc/vmstat", "oom_kill", 1, 1),
    ];
    let all = || counters.map(|(_, path, key, n, factor)| value(path, key, n) * factor);
    let faults = || value("/proc/vmstat", "pgfault", 1) - value("/proc/vmstat", "pgmajfault", 1);
    // Without guest time, which the kernel rounds separately: the difference is up to a tick.
    let user = || (value("/proc/stat", "cpu", 1) - value("/proc/stat", "cpu", 9)) * TICK;
    let mut reader = Reader::open(&system::SPEC, &this_host());

    let begin = monotonic_ns();
    let outer_user = user();
    let (outer, outer_faults) = (all(), faults());
    assert_eq!(reader.rows().len(), 0, "the first reading is the baseline");
    let inner_begin = monotonic_ns();
    let (inner, inner_faults) = (all(), faults());
    let inner_user = user();
    work();
    let inner_end_ns = monotonic_ns();
    let inner_user_end = user();
    let (inner_end, inner_faults_end) = (all(), faults());
    let rows = reader.rows();
    let end = monotonic_ns();
    let (outer_end, outer_faults_end) = (all(), faults());
    let outer_user_end = user();

    assert_eq!(rows.len(), 1);
    for (i, (column, ..)) in counters.iter().enumerate() {
        let found = rows.get(0, column).unwrap();
        let [least, most] = [inner_end[i] - inner[i], outer_end[i] - outer[i]];
        assert!(
            least <= found && found <= most,
            "{column}: {least} <= {found} <= {most}"
        );
    }
    let found = rows.get(0, "minor_faults").unwrap();
    let [least, most] = [
        inner_faults_end - inner_faults,
        outer_faults_end - outer_faults,
    ];
    assert!(
        least <= found && found <= most,
        "{least} <= {found} <= {most}"
    );
    assert!(found >= 8192 && rows.get(0, "forks").unwrap() >= 20);
    let found = rows.get(0, "user_ns").unwrap();
    assert!(inner_user_end <= inner_user + found + TICK, "{found}");
    assert!(found <= outer_user_end - outer_user + TICK, "{found}");
    assert!(rows.get(0, "user_ns").unwrap() >= 200_000_000);
    let interval = rows.get(0, "interval_ns").unwrap();
    let (least, most) = (inner_end_ns - inner_begin, end - begin);
    assert!(
        (least..=most).contains(&interval),
        "{least} <= {interval} <= {most}"
    );
}

#[test]
fn gauges_equal_meminfo_and_loadavg() {
    let kib = |key| value("/proc/meminfo", key, 1) * 1024;
    let mut reader = Reader::open(&system::SPEC, &this_host());
    reader.rows();
    let rows = reader.rows();
    let get = |name| rows.get(0, name).unwrap();
    for (column, key) in [
        ("memory_total", "MemTotal"),
        ("swap_total", "SwapTotal"),
        ("memory_commit_limit", "CommitLimit"),
        ("hugepage_size", "Hugepagesize"),
    ] {
        assert_eq!(get(column), kib(key), "{column}");
    }
    assert_eq!(
        get("memory_used"),
        get("memory_total") - get("memory_available")
    );
    assert_eq!(get("swap_used"), get("swap_total") - get("swap_free"));
    assert!(get("processes") > 1 && get("threads") >= 1 && get("runnable") >= 1);
    assert!(rows.fraction(0, "load1").unwrap() >= 0.0);
    let online = fs::read_to_string("/proc/stat").unwrap();
    let online = online
        .lines()
        .filter(|line| line.starts_with("cpu"))
        .count()
        - 1;
    assert_eq!(get("cpus"), online as u64);
}

/// These values also decrease, so that one may lie outside two readings of the file now and then. A
/// value of another line, or in another unit, is always outside.
#[test]
fn memory_lies_between_two_readings_of_meminfo() {
    const ROUNDS: usize = 50;
    let kib = |key| value("/proc/meminfo", key, 1) * 1024;
    let columns: [(&str, &[&str]); 11] = [
        ("memory_free", &["MemFree"]),
        ("memory_available", &["MemAvailable"]),
        ("memory_cached", &["Cached", "SReclaimable"]),
        ("memory_buffers", &["Buffers"]),
        ("memory_slab", &["Slab"]),
        ("memory_active", &["Active"]),
        ("memory_inactive", &["Inactive"]),
        ("memory_dirty", &["Dirty"]),
        ("memory_shared", &["Shmem"]),
        ("memory_committed", &["Committed_AS"]),
        ("memory_anon_huge", &["AnonHugePages"]),
    ];
    let all = || columns.map(|(_, keys)| keys.iter().copied().map(kib).sum::<u64>());
    let mut reader = Reader::open(&system::SPEC, &this_host());
    reader.rows();
    let mut within = columns.map(|_| 0);
    let mut memory = Vec::new();
    for _ in 0..ROUNDS {
        let before = all();
        let rows = reader.rows();
        let after = all();
        for (index, (column, _)) in columns.iter().enumerate() {
            let (before, after) = (before[index], after[index]);
            let found = rows.get(0, column).unwrap();
            within[index] += usize::from((before.min(after)..=before.max(after)).contains(&found));
        }
        // Changes the values between rounds.
        memory.push(vec![1_u8; 1 << 20]);
    }
    for (times, (column, _)) in within.iter().zip(columns) {
        assert!(times * 2 > ROUNDS, "{column}: {times} of {ROUNDS} times");
    }
}

#[test]
fn pressure_is_null_only_without_kernel_support() {
    let mut reader = Reader::open(&system::SPEC, &this_host());
    reader.rows();
    let rows = reader.rows();
    for resource in ["cpu", "memory", "io"] {
        let text = fs::read_to_string(format!("/proc/pressure/{resource}")).unwrap_or_default();
        for line in ["some", "full"] {
            let supported = text.contains(line);
            let average = rows.fraction(0, &format!("psi_{resource}_{line}_avg10"));
            assert_eq!(average.is_some(), supported, "{resource} {line}");
            let ns = rows.get(0, &format!("psi_{resource}_{line}_ns"));
            assert_eq!(ns.is_some(), supported, "{resource} {line}");
        }
    }
}

/// Time in all states of one row, ns.
fn states(rows: &Rows, row: usize) -> u64 {
    let states = [
        "user",
        "nice",
        "system",
        "idle",
        "iowait",
        "irq",
        "softirq",
        "steal",
        "guest",
        "guest_nice",
    ];
    let state = |state| rows.get(row, &format!("{state}_ns")).unwrap();
    states.into_iter().map(state).sum()
}

/// Time in all states of each CPU since boot, ns: the first eight fields, because user time
/// includes guest time.
fn time_per_cpu() -> Vec<u64> {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    stat.lines()
        .filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "))
        .map(|line| {
            let ticks = line.split_whitespace().skip(1).take(8);
            ticks
                .map(|ticks| ticks.parse::<u64>().unwrap())
                .sum::<u64>()
                * 10_000_000
        })
        .collect()
}

/// Compares with the kernel's sum, which differs from the interval by more than a tenth under a
/// hypervisor.
#[test]
fn the_states_of_a_cpu_add_up_to_the_total_of_the_kernel() {
    let mut reader = Reader::open(&cpu::SPEC, &this_host());
    let first = time_per_cpu();
    assert_eq!(reader.rows().len(), 0);
    let second = time_per_cpu();
    sleep(Duration::from_secs(2));
    let third = time_per_cpu();
    let rows = reader.rows();
    let fourth = time_per_cpu();
    assert_eq!(rows.len(), first.len());
    for row in 0..rows.len() {
        let spent = states(&rows, row);
        // The kernel may correct iowait by a few ticks in either of the readings.
        let least = (third[row] - second[row]).saturating_sub(50_000_000);
        let most = fourth[row] - first[row] + 50_000_000;
        assert!(
            (least..=most).contains(&spent),
            "CPU {row}: {spent}, not {least} to {most} ns"
        );
    }
}

#[test]
fn reading_the_node_is_cheap() {
    for spec in [&system::SPEC, &cpu::SPEC] {
        let mut reader = Reader::open(spec, &this_host());
        reader.rows();
        let mut times: Vec<_> = (0..201)
            .map(|_| {
                let began = thread_cpu_ns();
                reader.rows();
                thread_cpu_ns() - began
            })
            .collect();
        times.sort_unstable();
        println!(
            "{}: median {} ns, slowest {} ns",
            spec.name, times[100], times[200]
        );
        // A wide limit, for unoptimised builds.
        assert!(times[100] < 20_000_000);
    }
}

//! `--cgroup` with memory limits, compared with the files of the cgroup.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use e2e::{
    rows::{Row, sum},
    runs::{Profiler, Running, wait_until},
    workload_driver::WorkloadDriver,
};

use crate::{WORKLOAD, cgroup::put};

use super::{
    commands::{Gated, Service, sh},
    pressure::pressure,
};

const LIMIT: u64 = 64 << 20;
const TOUCHED: u64 = 32 << 20;
const WRITTEN: u64 = 4 << 20;
/// Bytes that each CPU may have charged in advance or not counted yet (`MEMCG_CHARGE_BATCH` pages).
const BATCH: u64 = 64 * 4096;

/// A scope with a limit, and a workload in it.
struct Limited {
    path: PathBuf,
    workload: WorkloadDriver,
}

impl Limited {
    /// `limit` is a property of the scope, such as `MemoryMax`.
    fn start(name: &str, limit: &str) -> Self {
        let mut command = Command::new("systemd-run");
        command.args(["--scope", "--quiet", "--property=IOAccounting=yes"]);
        command.args(["--property=CPUAccounting=yes", "--property=MemorySwapMax=0"]);
        // More than the workload uses.
        command.arg("--property=CPUQuota=150%");
        command.arg(format!("--property={limit}={LIMIT}"));
        command.arg(format!("--unit={name}")).arg(WORKLOAD);
        let workload = WorkloadDriver::start(command, 1);
        let path = format!("/sys/fs/cgroup/system.slice/{name}.scope").into();
        Self { path, workload }
    }

    fn file(&self, name: &str) -> String {
        let path = self.path.join(name);
        let text = fs::read_to_string(&path);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.trim().to_owned()
    }

    /// Sum of all values with this name in a file of the cgroup.
    fn value(&self, file: &str, name: &str) -> u64 {
        let text = self.file(file).replace('=', " ");
        let words: Vec<&str> = text.split_whitespace().collect();
        let values = words.windows(2).filter(|pair| pair[0] == name);
        values
            .map(|pair| pair[1].parse::<u64>().expect("a number"))
            .sum()
    }

    fn profile(&self, sources: &str) -> Running {
        let below = self.path.strip_prefix("/sys/fs/cgroup").expect("a cgroup");
        Profiler::new()
            .args(["-i", "500ms", "--cgroup"])
            .args([Path::new("/").join(below)])
            .args(["--source", sources])
            .start()
    }
}

/// The last row of a process.
fn last(rows: &[Row], pid: u32) -> &Row {
    let mut rows = rows.iter().rev();
    rows.find(|row| row.u64("pid") == Some(pid.into()))
        .expect("a row of the process")
}

fn anonymous(row: &Row) -> u64 {
    row.u64("rss").expect("resident") - row.u64("shared").expect("known")
}

/// All members are idle during the readings.
#[test]
fn limited_cgroup_matches_kernel_accounting() {
    let mut limited = Limited::start("limited", "MemoryMax");
    assert_eq!(limited.file("memory.max"), LIMIT.to_string());
    let gated = Gated::start(&format!(
        "dd if=/dev/zero of=/srv/limited bs=64k count={0} conv=fsync; \
         dd if=/dev/zero of=/srv/limited bs=64k count={0} oflag=direct conv=notrunc",
        WRITTEN >> 16
    ));
    put(gated.pid(), &limited.path);
    let counters = |limited: &Limited| {
        [
            ("cpu.stat", "usage_usec"),
            ("io.stat", "rbytes"),
            ("io.stat", "wbytes"),
        ]
        .map(|(file, name)| limited.value(file, name))
    };
    let before = counters(&limited);
    let profiler = limited.profile("process,usage,sched,block_io");
    limited.workload.run("burn 300");
    limited.workload.run(&format!("touch {TOUCHED}"));
    gated.release();
    let anon = limited.value("memory.stat", "anon");
    let current: u64 = limited.file("memory.current").parse().expect("bytes");
    let after = counters(&limited);
    let ended = profiler.interrupt();
    let data = ended.dataset();
    data.assert_complete();

    let processes = data.table("process");
    let allowed = last(&processes, limited.workload.pid());
    let online = fs::read_to_string("/sys/devices/system/cpu/online").expect("sysfs");
    assert_eq!(allowed.text("allowed_cpus"), Some(online.trim()));
    assert_eq!(allowed.f64("quota_cpus"), Some(1.5));
    assert_eq!(allowed.u64("memory_limit"), Some(LIMIT));
    let usage = data.table("usage");
    let resident = anonymous(last(&usage, limited.workload.pid()));
    assert!(resident > TOUCHED, "{resident}");
    assert!(
        resident.abs_diff(anon) <= 2 * BATCH,
        "{resident}, not {anon}"
    );
    assert!(resident <= current, "{resident}, of {current}");

    let [usec, read, written] = [0, 1, 2].map(|index| after[index] - before[index]);
    let oncpu = sum(&data.table("sched"), "oncpu_ns");
    assert!(usec > 300_000, "{usec}");
    assert!(
        (oncpu / 1000).abs_diff(usec) <= 1,
        "{oncpu} ns, not {usec} us"
    );
    let blocks = data.table("block_io");
    let bytes = |op: &str| {
        let rows = blocks.iter().filter(|row| row.text("op") == Some(op));
        sum(&rows.cloned().collect::<Vec<_>>(), "bytes")
    };
    assert!(written >= 2 * WRITTEN, "{written}");
    assert_eq!((bytes("read"), bytes("write")), (read, written));
}

/// Above `memory.high` the kernel stalls the process, and counts the stalls including reclaim.
#[test]
fn memory_high_throttling_counts_as_blocked() {
    let mut limited = Limited::start("throttled", "MemoryHigh");
    assert_eq!(limited.file("memory.high"), LIMIT.to_string());
    // The kernel updates the file every two seconds.
    let stalled = |limited: &Limited| {
        sleep(Duration::from_secs(3));
        pressure(&limited.path.join("memory.pressure"), "full")
    };
    let before = stalled(&limited);
    let profiler = limited.profile("process,sched");
    let begin = Instant::now();
    limited
        .workload
        .run(&format!("touch {}", LIMIT + (4 << 20)));
    let took = u64::try_from(begin.elapsed().as_nanos()).expect("short");
    let stalled = stalled(&limited) - before;
    let data = profiler.interrupt();
    let data = data.dataset();
    data.assert_complete();

    assert!(limited.value("memory.events", "high") > 0);
    let sched = data.table("sched");
    let [blocked, oncpu] = ["blocked_ns", "oncpu_ns"].map(|name| sum(&sched, name));
    assert!(stalled > 100_000_000, "{stalled} ns");
    // PSI is an average of the CPUs, weighted by their busy time, so it is no upper limit.
    assert!(
        blocked + oncpu <= took,
        "{blocked} and {oncpu} ns, of {took}"
    );
    assert!(
        blocked + oncpu >= stalled,
        "{blocked} and {oncpu} ns, of {stalled}"
    );
}

#[test]
fn oom_kills_are_recorded() {
    // This process keeps the cgroup after the other has been killed.
    let limit = format!("MemoryMax={LIMIT}");
    let properties = [&*limit, "MemorySwapMax=0", "OOMPolicy=continue"];
    let service = Service::start("killed", &properties, "exec sleep infinity");
    let mut limited = Limited {
        path: format!("/sys/fs/cgroup{}", service.cgroup()).into(),
        workload: WorkloadDriver::new(WORKLOAD, 1),
    };
    put(limited.workload.pid(), &limited.path);
    let keeper = sh("systemctl show --property=MainPID --value killed");
    let keeper = keeper.parse().expect("a pid");
    let profiler = limited.profile("process,system");
    limited.workload.send(&format!("touch {}", 2 * LIMIT));
    wait_until("the process is killed", || {
        limited.value("memory.events", "oom_kill") > 0
    });
    let kills = limited.value("memory.events", "oom_kill");
    let peak: u64 = limited.file("memory.peak").parse().expect("bytes");
    drop(service);
    let ended = profiler.finish();
    let data = ended.dataset();
    data.assert_complete();

    assert_eq!(kills, 1);
    assert_eq!(sum(&data.table("system"), "oom_kills"), kills);
    let processes = data.table("process");
    let killed = last(&processes, limited.workload.pid());
    assert_eq!(killed.i64("exit_signal"), Some(9), "{killed:?}");
    assert_eq!(killed.i64("exit_code"), None);
    assert_eq!(last(&processes, keeper).i64("exit_signal"), Some(15));

    let resident = killed.u64("peak_rss").expect("known");
    // File pages are charged to the cgroup that read them first.
    let image = fs::metadata(WORKLOAD).expect("the program").len() + (4 << 20);
    assert!(peak <= LIMIT, "{peak}");
    assert!(resident > LIMIT * 9 / 10, "{resident}");
    assert!(resident <= peak + image, "{resident}, {peak} at most");
}

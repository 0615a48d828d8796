//! `--cgroup` with a limit of memory, against the files of the cgroup.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

use e2e::{
    puppet::Puppet,
    rows::{Row, sum},
    runs::{Profiler, Running, wait_until},
};

use crate::{WORKLOAD, cgroup::put};

use super::{
    pressure::pressure,
    shell::{Gated, Service, sh},
};

const LIMIT: u64 = 64 << 20;
const TOUCHED: u64 = 32 << 20;
const WRITTEN: u64 = 4 << 20;
/// Pages that each CPU may have charged in advance or not counted yet (`MEMCG_CHARGE_BATCH`).
const BATCH: u64 = 64 * 4096;

/// A scope with the limit, and a workload in it.
struct Limited {
    path: PathBuf,
    puppet: Puppet,
}

impl Limited {
    /// `limit` is a property of the scope: `MemoryMax`.
    fn start(name: &str, limit: &str) -> Self {
        let mut command = Command::new("systemd-run");
        command.args(["--scope", "--quiet", "--property=IOAccounting=yes"]);
        command.args(["--property=CPUAccounting=yes", "--property=MemorySwapMax=0"]);
        command.arg(format!("--property={limit}={LIMIT}"));
        command.arg(format!("--unit={name}")).arg(WORKLOAD);
        let puppet = Puppet::start(command, 1);
        let path = format!("/sys/fs/cgroup/system.slice/{name}.scope").into();
        Self { path, puppet }
    }

    fn file(&self, name: &str) -> String {
        let path = self.path.join(name);
        let text = fs::read_to_string(&path);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.trim().to_owned()
    }

    /// The sum of all values of this name in a file.
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

/// The last reading of a process.
fn last(rows: &[Row], pid: u32) -> &Row {
    let mut rows = rows.iter().rev();
    rows.find(|row| row.u64("pid") == Some(pid.into()))
        .expect("a row of the process")
}

fn anonymous(row: &Row) -> u64 {
    row.u64("rss").expect("resident") - row.u64("shared").expect("known")
}

/// All members rest while anything is read.
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
    limited.puppet.tell("burn 300");
    limited.puppet.tell(&format!("touch {TOUCHED}"));
    gated.release();
    let anon = limited.value("memory.stat", "anon");
    let current: u64 = limited.file("memory.current").parse().expect("bytes");
    let after = counters(&limited);
    let ended = profiler.interrupt();
    let data = ended.dataset();
    data.assert_complete();

    let usage = data.table("usage");
    let resident = anonymous(last(&usage, limited.puppet.pid()));
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

/// Above `memory.high` the kernel makes a process wait for memory; it counts these stalls itself, reclaim included.
#[test]
fn memory_high_throttling_counts_as_blocked() {
    let mut limited = Limited::start("throttled", "MemoryHigh");
    assert_eq!(limited.file("memory.high"), LIMIT.to_string());
    // The file has what had happened when averages were last taken, every two seconds.
    let stalled = |limited: &Limited| {
        sleep(Duration::from_secs(3));
        pressure(&limited.path.join("memory.pressure"), "full")
    };
    let before = stalled(&limited);
    let profiler = limited.profile("process,sched");
    limited.puppet.tell(&format!("touch {}", LIMIT + (4 << 20)));
    let stalled = stalled(&limited) - before;
    let data = profiler.interrupt();
    let data = data.dataset();
    data.assert_complete();

    assert!(limited.value("memory.events", "high") > 0);
    let sched = data.table("sched");
    let [blocked, oncpu] = ["blocked_ns", "oncpu_ns"].map(|name| sum(&sched, name));
    assert!(stalled > 100_000_000, "{stalled} ns");
    assert!(blocked <= stalled, "{blocked} ns, of {stalled}");
    assert!(
        blocked + oncpu >= stalled,
        "{blocked} and {oncpu} ns, of {stalled}"
    );
}

#[test]
fn oom_kills_are_recorded() {
    // It keeps the cgroup when the other has been killed.
    let limit = format!("MemoryMax={LIMIT}");
    let properties = [&*limit, "MemorySwapMax=0", "OOMPolicy=continue"];
    let service = Service::start("killed", &properties, "exec sleep infinity");
    let mut limited = Limited {
        path: format!("/sys/fs/cgroup{}", service.cgroup()).into(),
        puppet: Puppet::new(WORKLOAD, 1),
    };
    put(limited.puppet.pid(), &limited.path);
    let keeper = sh("systemctl show --property=MainPID --value killed");
    let keeper = keeper.parse().expect("a pid");
    let profiler = limited.profile("process,system");
    limited.puppet.order(&format!("touch {}", 2 * LIMIT));
    wait_until("it is killed", || {
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
    let killed = last(&processes, limited.puppet.pid());
    assert_eq!(killed.i64("exit_signal"), Some(9), "{killed:?}");
    assert_eq!(killed.i64("exit_code"), None);
    assert_eq!(last(&processes, keeper).i64("exit_signal"), Some(15));

    let resident = killed.u64("peak_rss").expect("known");
    // Pages of its files were charged to whoever has read them first.
    let image = fs::metadata(WORKLOAD).expect("the program").len() + (4 << 20);
    assert!(peak <= LIMIT, "{peak}");
    assert!(resident > LIMIT * 9 / 10, "{resident}");
    assert!(resident <= peak + image, "{resident}, {peak} at most");
}

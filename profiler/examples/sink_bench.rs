//! What the writer costs: CPU time of its thread per tick, bytes on disk, memory.
//!
//! `cargo run --release --example sink_bench -- [PROCESSES [TICKS [DIRECTORY]]]` stores per-process
//! counters as `--node` would, most processes idle as on a real node. With 0 processes: many tables
//! with one row per tick.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use profiler::{
    columns,
    output::dataset::{DatasetOptions, DatasetWriter},
    schema::{Batch, Label, ProcessKey, TableBuilder, TickKey, Timestamp, TypedTable},
};

columns! {
    /// As wide as the table `usage`.
    pub struct Usage {
        user_ns: u64 = Counter("ns", "Active processes only"),
        system_ns: u64 = Counter("ns", "Active processes only"),
        minor_faults: u64 = Counter("1", "Active processes only"),
        major_faults: u64 = Counter("1", "Zero"),
        rss: u64 = Gauge("bytes", "Changes with activity"),
        pss: Option<u64> = Gauge("bytes", "Null"),
        uss: Option<u64> = Gauge("bytes", "Null"),
        vms: u64 = Gauge("bytes", "Constant"),
        shared: u64 = Gauge("bytes", "Constant"),
        text: u64 = Gauge("bytes", "Constant"),
        data: u64 = Gauge("bytes", "Constant"),
        swap: Option<u64> = Gauge("bytes", "Null"),
        threads: u64 = Gauge("1", "Constant"),
        fds: Option<u64> = Gauge("1", "Null"),
        voluntary_switches: u64 = Counter("1", "Active processes only"),
        involuntary_switches: u64 = Counter("1", "Active processes only"),
        read_chars: u64 = Counter("bytes", "Active processes only"),
        write_chars: u64 = Counter("bytes", "Active processes only"),
        read_syscalls: u64 = Counter("1", "Active processes only"),
        write_syscalls: u64 = Counter("1", "Active processes only"),
        read_bytes: u64 = Counter("bytes", "Zero"),
        write_bytes: u64 = Counter("bytes", "Active processes only"),
        cancelled_write_bytes: u64 = Counter("bytes", "Zero"),
        cpu: u64 = Gauge("", "CPU"),
        state: Label = Label("", "State"),
    }
}

columns! {
    /// As wide as the table `sched`.
    pub struct Sched {
        oncpu_ns: u64 = Counter("ns", "Active processes only"),
        runqueue_ns: u64 = Counter("ns", "Active processes only"),
        runqueue_count: u64 = Counter("1", "Active processes only"),
        sleep_ns: u64 = Counter("ns", "All but active time"),
        blocked_ns: u64 = Counter("ns", "Zero"),
        voluntary_switches: u64 = Counter("1", "Active processes only"),
        involuntary_switches: u64 = Counter("1", "Zero"),
        wakeups: u64 = Counter("1", "Active processes only"),
        migrations: u64 = Counter("1", "Zero"),
    }
}

static USAGE: TypedTable<ProcessKey, Usage> = TypedTable::new("usage", "Tick × process");
static SCHED: TypedTable<ProcessKey, Sched> = TypedTable::new("sched", "Tick × process");
static SMALL: [TypedTable<TickKey, Usage>; 15] = {
    const fn table(name: &'static str) -> TypedTable<TickKey, Usage> {
        TypedTable::new(name, "Tick")
    }
    [
        table("t00"),
        table("t01"),
        table("t02"),
        table("t03"),
        table("t04"),
        table("t05"),
        table("t06"),
        table("t07"),
        table("t08"),
        table("t09"),
        table("t10"),
        table("t11"),
        table("t12"),
        table("t13"),
        table("t14"),
    ]
};

const SECOND: u64 = 1_000_000_000;
/// One process in this many does something during a tick.
const ACTIVE: u64 = 10;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit
    }
}

fn hash(number: u64) -> u64 {
    Random(number + 1).below(u64::MAX)
}

fn start(pid: u64) -> u64 {
    if pid < 500 {
        pid * 10_000_000 + hash(pid) % 10_000_000
    } else {
        pid * 120 * SECOND + hash(pid) % (1000 * SECOND)
    }
}

fn usage(pid: u64, active: bool, random: &mut Random) -> Usage {
    let mut counter = |limit| if active { random.below(limit) } else { 0 };
    Usage {
        user_ns: counter(SECOND),
        system_ns: counter(SECOND / 4),
        minor_faults: counter(1000),
        major_faults: 0,
        rss: (hash(pid) % 100_000 + counter(64)) * 4096,
        pss: None,
        uss: None,
        vms: (hash(pid) % 1_000_003) * 4096,
        shared: (hash(pid) % 5003) * 4096,
        text: (hash(pid) % 801) * 4096,
        data: (hash(pid) % 50_021) * 4096,
        swap: None,
        threads: 1 + hash(pid) % 8 / 6,
        fds: None,
        voluntary_switches: counter(1000),
        involuntary_switches: counter(50),
        read_chars: counter(1 << 20),
        write_chars: counter(1 << 16),
        read_syscalls: counter(500),
        write_syscalls: counter(100),
        read_bytes: 0,
        write_bytes: counter(64) * 4096,
        cancelled_write_bytes: 0,
        cpu: hash(pid) % 64,
        state: if active { "R".into() } else { "S".into() },
    }
}

fn sched(active: bool, interval: u64, random: &mut Random) -> Sched {
    let mut counter = |limit| if active { random.below(limit) } else { 0 };
    let oncpu_ns = counter(interval);
    Sched {
        oncpu_ns,
        runqueue_ns: counter(interval / 100),
        runqueue_count: counter(1000),
        sleep_ns: interval - oncpu_ns,
        blocked_ns: 0,
        voluntary_switches: counter(1000),
        involuntary_switches: 0,
        wakeups: counter(1000),
        migrations: 0,
    }
}

fn tick(processes: u64, n: u64, random: &mut Random) -> Vec<Batch> {
    let ts = Timestamp::from_ns((1_700_000_000 + n).cast_signed() * SECOND.cast_signed());
    let interval_ns = SECOND + random.below(20_000);
    let mut out = Vec::new();
    if processes == 0 {
        for table in &SMALL {
            let mut builder = TableBuilder::new(table);
            builder.push(TickKey { ts, interval_ns }, usage(n, true, random));
            builder.finish(&mut out);
        }
        return out;
    }
    let mut usages = TableBuilder::new(&USAGE);
    let mut scheds = TableBuilder::new(&SCHED);
    for pid in 1..=processes {
        let active = random.below(ACTIVE) == 0;
        let key = || ProcessKey {
            ts,
            interval_ns,
            pid: u32::try_from(pid * 13 + hash(pid) % 13).unwrap_or(u32::MAX),
            // A node that boots with many processes, and starts the others over a week.
            start_ts: Timestamp::from_ns((1_699_000_000 * SECOND + start(pid)).cast_signed()),
            tid: None,
        };
        usages.push(key(), usage(pid, active, random));
        scheds.push(key(), sched(active, interval_ns, random));
    }
    usages.finish(&mut out);
    scheds.finish(&mut out);
    out
}

/// A line of `/proc/self/status` in MB.
fn memory_mb(line: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|text| {
            text.strip_prefix(line)?
                .trim_start_matches(':')
                .split_whitespace()
                .next()
        })
        .and_then(|kb| kb.parse::<f64>().ok())
        .unwrap_or(f64::NAN)
        / 1024.0
}

fn size(path: &Path) -> u64 {
    if path.is_dir() {
        let entries = path.read_dir().into_iter().flatten().flatten();
        entries.map(|entry| size(&entry.path())).sum()
    } else {
        path.metadata().map_or(0, |metadata| metadata.len())
    }
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| {
        arguments
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or(default)
    };
    let (processes, ticks) = (number(5000), number(180));
    let out = std::env::args()
        .nth(3)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let run_dir = out.join(format!("sink_bench.{}", std::process::id()));
    let mut options = DatasetOptions::new(run_dir.clone(), "bench", "bench");
    options.checkpoint = Duration::from_secs(3600);
    let before = memory_mb("VmRSS");
    let writer = DatasetWriter::start(options)?;
    let mut random = Random(88_172_645_463_325_252);
    let mut raw = 0;
    let mut rows = 0;
    for n in 0..ticks {
        let batches = tick(processes, n, &mut random);
        for batch in &batches {
            rows += batch.rows.num_rows();
            raw += batch.rows.num_rows() * batch.rows.num_columns() * 8;
        }
        writer.write(batches);
        while writer.stats().ticks <= n {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let running = writer.stats();
    let held = memory_mb("VmRSS");
    let journal = size(&run_dir);
    let ended = writer.finish()?;
    let per_tick = |ns: u64| ns as f64 / ticks as f64 / 1e6;
    println!("processes            {processes}, {ticks} ticks, {rows} rows");
    println!(
        "CPU per tick         {:.2} ms while running, {:.2} ms with the end",
        per_tick(running.cpu_ns),
        per_tick(ended.cpu_ns)
    );
    println!(
        "time per tick        {:.2} ms while running, {:.2} ms with the end",
        per_tick(running.write_ns),
        per_tick(ended.write_ns)
    );
    println!(
        "memory               {before:.1} MB before, {held:.1} MB while running, {:.1} MB at the most",
        memory_mb("VmHWM")
    );
    println!(
        "raw, journal, parts  {:.1} MB, {:.1} MB, {:.1} MB",
        raw as f64 / 1e6,
        journal as f64 / 1e6,
        size(&run_dir) as f64 / 1e6
    );
    if std::env::var_os("KEEP").is_none() {
        std::fs::remove_dir_all(&run_dir)?;
    }
    Ok(())
}

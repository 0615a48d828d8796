//! Columns of counters in derived tables, compared with `perf_event` and `perf_metric`.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use e2e::{
    rows::Row,
    runs::{Finished, ProcessGroup, Profiler},
    sysfs::Sysfs,
};

use crate::WORKLOAD;

/// µJ per µs.
const WATTS: u64 = 50;

/// Metrics that few CPUs support, and the factor by which an instruction counts.
const METRICS: [(&str, &str, u32); 7] = [
    ("FLOPS", "flops", 2),
    ("FLOPS_DP", "dp_flops", 3),
    ("FLOPS_SP", "sp_flops", 5),
    ("FLOPS_HP", "hp_flops", 7),
    ("L2", "l2_bw", 11),
    ("L3", "l3_bw", 13),
    ("MEM", "mem_bw", 17),
];

/// An event table for this CPU with all metrics, if the CPU has none.
pub fn table() -> Option<tempfile::TempDir> {
    let register = "/sys/devices/system/cpu/cpu0/regs/identification/midr_el1";
    let midr = fs::read_to_string(register).ok()?;
    let midr = u32::from_str_radix(midr.trim().trim_start_matches("0x"), 16).expect("a number");
    let (implementer, part) = (midr >> 24, midr >> 4 & 0xfff);
    let mut toml = format!(
        "name = \"This one\"\nvendor = \"Nobody\"\nsource = \"made up\"\n\
         [[match.midr]]\nimplementer = {implementer}\nparts = [{part}]\n\
         [pmu.cpu]\ncounters = 6\nfixed = 1\n\
         [event.INST_RETIRED]\nhelp = \"Instructions\"\ncode = {{ event = 8 }}\nsources = [\"kernel\", \"vendor\"]\n"
    );
    for (group, metric, factor) in METRICS {
        let _ = write!(
            toml,
            "[group.{group}]\nhelp = \"{metric}\"\nevents = {{ i = \"INST_RETIRED\" }}\n\
             metrics = [{{ name = \"{metric}\", formula = \"{factor} * i / time\" }}]\n"
        );
    }
    let directory = tempfile::TempDir::new().expect("a directory");
    fs::write(directory.path().join("this.toml"), toml).expect("written");
    Some(directory)
}

/// Rows of one sample.
fn by_sample(rows: &[Row]) -> BTreeMap<i64, Vec<&Row>> {
    let mut samples: BTreeMap<i64, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        samples
            .entry(row.i64("ts").expect("a time"))
            .or_default()
            .push(row);
    }
    samples
}

fn total(rows: Option<&Vec<&Row>>, wanted: impl Fn(&Row) -> bool, column: &str) -> Option<f64> {
    let chosen = rows.into_iter().flatten().filter(|row| wanted(row));
    let mut known = chosen.filter_map(|row| row.f64(column)).peekable();
    known.peek()?;
    Some(known.sum())
}

fn assert_equal(what: &str, ours: Option<f64>, theirs: Option<f64>) {
    let equal = match (ours, theirs) {
        (Some(ours), Some(theirs)) => (ours - theirs).abs() <= 1e-9 * theirs.abs(),
        (ours, theirs) => ours == theirs,
    };
    assert!(equal, "{what}: {ours:?}, not {theirs:?}");
}

/// Runs a workload while a second process competes for the CPU, so that the energy is shared.
fn run_with_competitor(table: Option<&tempfile::TempDir>) -> Finished {
    let mut sysfs = Sysfs::without(&["powercap"]);
    sysfs.zone("intel-rapl:0", "package-0", WATTS);
    let powered = sysfs.start();
    let groups = METRICS.map(|(group, ..)| group).join(",");
    let mut other = ProcessGroup::spawn(&[WORKLOAD, "spin", "1000000000000"]);
    let mut profiler = Profiler::new().args(["-i", "200ms", "--sysfs", powered.path()]);
    if let Some(table) = table {
        let directory = table.path().to_str().expect("UTF-8");
        profiler = profiler.args([
            "--perfevents",
            directory,
            "--groups",
            &format!("HW,{groups}"),
        ]);
    }
    let finished = profiler.command(&[WORKLOAD, "cpu", "1500"]).finish();
    assert!(other.0.try_wait().expect("our child").is_none());
    finished
}

/// The column of `timeline` with a metric.
fn column_of(metric: &str) -> String {
    let scope = if metric == "mem_bw" { "node" } else { "target" };
    let unit = if metric.ends_with("_bw") {
        "bytes_per_s"
    } else {
        "per_s"
    };
    let metric = metric.strip_suffix('s').unwrap_or(metric);
    format!("{scope}_{metric}_{unit}")
}

#[test]
fn timeline_counters_match_the_perf_tables() {
    let table = table();
    let finished = run_with_competitor(table.as_ref());
    let data = finished.dataset();
    let [timeline, events, metrics, energy, processes] =
        ["timeline", "perf_event", "perf_metric", "energy", "process"].map(|name| data.table(name));
    let [events, metrics, energy] = [&events, &metrics, &energy].map(|rows| by_sample(rows));
    let due = timeline.len() as u64 + data.missed_samples();
    assert!(due >= 7 && timeline.len() >= 2, "{due} samples");
    let (mut target, mut node, mut sum) = (0.0, 0.0, 0.0);
    for row in &timeline {
        let ts = row.i64("ts").expect("a time");
        let count = |group: &str, event: &str| {
            let wanted =
                |row: &Row| row.text("group") == Some(group) && row.text("event") == Some(event);
            total(events.get(&ts), wanted, "count")
        };
        let cycles = count("HW", "cpu-cycles");
        let instructions = count("HW", "instructions");
        let of_node = count("NODE", "cycles");
        assert_equal("target_cycles", row.f64("target_cycles"), cycles);
        assert_equal(
            "target_instructions",
            row.f64("target_instructions"),
            instructions,
        );
        assert_equal("node_cycles", row.f64("node_cycles"), of_node);
        let ipc = instructions.zip(cycles).filter(|(_, cycles)| *cycles > 0.0);
        assert_equal("target_ipc", row.f64("target_ipc"), ipc.map(|(i, c)| i / c));
        for (_, metric, _) in METRICS {
            let of = |scope| {
                let wanted = |row: &Row| {
                    row.text("metric") == Some(metric) && row.text("scope") == Some(scope)
                };
                total(metrics.get(&ts), wanted, "value")
            };
            let column = column_of(metric);
            assert_equal(&column, row.f64(&column), of("target").or(of("node")));
        }
        let of_package = energy.get(&ts).into_iter().flatten();
        let mut of_package = of_package.filter(|row| row.text("domain") == Some("package"));
        let package = of_package.next().and_then(|row| row.u64("energy_uj"));
        let share = row.f64("target_energy_cycle_share_uj");
        let expected = package.zip(cycles.zip(of_node));
        let expected = expected.map(|(uj, (cycles, all))| uj as f64 * cycles / all.max(cycles));
        assert_equal("target_energy_cycle_share_uj", share, expected);
        target += cycles.unwrap_or(0.0);
        node += of_node.unwrap_or(0.0);
        sum += share.unwrap_or(0.0);
    }
    // The other process uses at least as much CPU time.
    let share = target / node;
    assert!((0.01..0.8).contains(&share), "{share} of the node's cycles");
    let of_processes: Vec<f64> = processes
        .iter()
        .filter_map(|row| row.f64("energy_cycle_share_uj"))
        .collect();
    let all: f64 = of_processes.iter().sum();
    assert!(
        !of_processes.is_empty() && (all - sum).abs() <= 1e-6 * sum,
        "{all}, not {sum}"
    );
    if table.is_some() {
        for (_, metric, _) in METRICS {
            let column = column_of(metric);
            let known = timeline.iter().filter(|row| row.f64(&column) > Some(0.0));
            assert!(known.count() >= 2, "{column}");
        }
    }
}

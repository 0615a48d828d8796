//! Points of a loop with known operations. Few virtual PMUs count operations or bytes of memory: an
//! event table for this CPU derives both from the instructions of the loop, which every PMU counts.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use e2e::{runs::Profiler, setting};

const LOOPS: &str = env!("CARGO_BIN_EXE_workload-flops");
/// A loop of each architecture, and its instructions per iteration: 24 with numbers, and two for the
/// loop.
const KERNEL: &str = if cfg!(target_arch = "aarch64") {
    "fma-scalar-dp"
} else {
    "scalar-dp"
};
const INSTRUCTIONS: u64 = 26;
/// Bytes per iteration, made up.
const BYTES: u64 = 8;

/// Selects this CPU in an event table, with the code of retired instructions.
fn this_cpu() -> (String, &'static str) {
    if cfg!(target_arch = "aarch64") {
        let register = "/sys/devices/system/cpu/cpu0/regs/identification/midr_el1";
        let midr = fs::read_to_string(register).expect("an arm64 CPU");
        let midr = u32::from_str_radix(midr.trim().trim_start_matches("0x"), 16).expect("a number");
        let (implementer, part) = (midr >> 24, midr >> 4 & 0xfff);
        let cpu = format!("[[match.midr]]\nimplementer = {implementer}\nparts = [{part}]");
        return (cpu, "0x8");
    }
    let info = fs::read_to_string("/proc/cpuinfo").expect("procfs");
    let field = |name: &str| {
        let line = info
            .lines()
            .find(|line| line.split(':').next().map(str::trim) == Some(name));
        let value = line.and_then(|line| line.split(": ").nth(1));
        value
            .unwrap_or_else(|| panic!("{name}: {info}"))
            .trim()
            .to_owned()
    };
    let cpu = format!(
        "[[match.cpuid]]\nvendor = \"{}\"\nfamily = {}\nmodels = [{}]",
        field("vendor_id"),
        field("cpu family"),
        field("model")
    );
    (cpu, "0xc0")
}

/// Iterations that take about a second here.
fn iterations() -> u64 {
    let mut iterations: u64 = 1_000_000;
    loop {
        let begin = Instant::now();
        let status = Command::new(LOOPS)
            .args([KERNEL, &iterations.to_string()])
            .status();
        assert!(status.expect("it starts").success());
        let took = begin.elapsed().as_nanos();
        if took >= Duration::from_millis(200).as_nanos() {
            let wanted = u128::from(iterations) * 1_000_000_000 / took;
            return u64::try_from(wanted).expect("few");
        }
        iterations *= 2;
    }
}

/// Operations per iteration, as the program reports them.
fn flops_per_iteration() -> u64 {
    let list = Command::new(LOOPS)
        .arg("--list")
        .output()
        .expect("it starts");
    let list = String::from_utf8(list.stdout).expect("UTF-8");
    let line = list
        .lines()
        .find(|line| line.split('\t').next() == Some(KERNEL));
    let flops = line.and_then(|line| line.split('\t').nth(2));
    flops.expect("the kernel").parse().expect("a number")
}

#[test]
fn point_of_a_loop_is_where_arithmetic_places_it() {
    let flops = flops_per_iteration();
    let (cpu, code) = this_cpu();
    let table = format!(
        "name = \"This one\"\nvendor = \"Nobody\"\nsource = \"made up\"\n{cpu}\n\
         [pmu.cpu]\ncounters = 4\n\
         [event.INST]\nhelp = \"Instructions\"\ncode = {{ event = {code} }}\nsources = [\"kernel\", \"vendor\"]\n\
         [group.FLOPS_DP]\nhelp = \"Operations\"\nevents = {{ i = \"INST\" }}\n\
         metrics = [{{ name = \"dp_flops\", formula = \"{flops} * i / {INSTRUCTIONS} / time\" }}]\n\
         [group.MEM]\nhelp = \"Bytes\"\nevents = {{ i = \"INST\" }}\n\
         metrics = [{{ name = \"mem_bw\", formula = \"{BYTES} * i / {INSTRUCTIONS} / time\" }}]\n"
    );
    let directory = tempfile::TempDir::new().expect("a directory");
    fs::write(directory.path().join("this.toml"), table).expect("written");
    let iterations = iterations();
    let finished = Profiler::new()
        .args(["-i", "50ms", "--groups", "FLOPS_DP,MEM", "--perfevents"])
        .args([directory.path().to_str().expect("UTF-8")])
        .command(&[LOOPS, KERNEL, &iterations.to_string()])
        .finish();
    let data = finished.dataset();
    let rows = data.table("timeline");
    let known = rows.iter().filter(|row| {
        row.f64("target_dp_flop_per_s").is_some() && row.f64("node_mem_bw_bytes_per_s").is_some()
    });
    let ns: u64 = known
        .map(|row| row.u64("interval_ns").expect("known"))
        .sum();
    let report = Command::new(setting("PROFILER_BIN"))
        .args(["report", "-o", "-"])
        .arg(data.path())
        .output();
    let html = String::from_utf8(report.expect("it starts").stdout).expect("UTF-8");
    let run = html.split("data-name=\"run\"").nth(1).expect("a point");
    let value = |name: &str| -> f64 {
        let rest = run.split(&format!("data-{name}=\"")).nth(1).expect("it");
        let text = rest.split('"').next().expect("an end");
        text.parse().expect("a number")
    };
    let intensity = flops as f64 / BYTES as f64;
    let found = value("intensity");
    assert!(
        (found - intensity).abs() < 0.02 * intensity,
        "{found}, not {intensity}"
    );
    let done = (flops * iterations) as f64;
    let found = value("flops") * ns as f64 / 1e9;
    // The start of the program has instructions too.
    assert!(
        (0.98 * done..1.05 * done).contains(&found),
        "{found}, not {done}"
    );
    // The core counts for one process.
    assert!(html.contains("of the target.</p>"), "{html}");
}

//! CPUs that go offline and come back. They are taken away from the other tests as well: only in a
//! guest, one test at a time.

use std::fs;

use e2e::{dataset::Dataset, runs::Profiler};

/// The CPU that goes offline, which is online again when this is dropped.
struct Switch(&'static str);

impl Switch {
    fn set(&self, online: bool) {
        fs::write(self.0, if online { "1" } else { "0" }).expect("a CPU that can go offline");
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = fs::write(self.0, "1");
    }
}

fn perf_of_node() -> Profiler {
    Profiler::new()
        .args(["--node", "-i", "100ms", "--source", "perf,cpu,overhead"])
        .args(["--groups", "SW", "--events", "cpu-clock"])
}

/// Groups of one event and of several, which the kernel detaches in different ways.
#[test]
fn cpus_that_come_back_are_counted_again() {
    let cpu = Switch("/sys/devices/system/cpu/cpu1/online");
    let profiler = perf_of_node().start();
    let data = Dataset::new(profiler.run_dir());
    data.wait_for_samples("perf_event", 3);
    cpu.set(false);
    // The sample that is being taken may have read the CPU before.
    data.wait_for_samples("overhead", 2);
    let gone = data.so_far("perf_event");
    let gone = gone.iter().filter_map(|row| row.i64("ts")).max();
    data.wait_for_samples("overhead", 3);
    let back = data.so_far("overhead");
    let back = back.iter().filter_map(|row| row.i64("ts")).max();
    cpu.set(true);
    data.wait_for_samples("overhead", 5);
    let finished = profiler.interrupt();
    assert!(
        !finished.stderr.contains("source perf"),
        "{}",
        finished.stderr
    );
    let (gone, back) = (gone.expect("a sample"), back.expect("a sample"));
    assert!(gone < back);
    let rows = finished.dataset().table("perf_event");
    for event in ["context-switches", "minor-faults", "cpu-clock"] {
        let mut of_cpu = rows.clone();
        of_cpu.retain(|row| {
            let is_of = |column, text| row.text(column) == Some(text);
            is_of("scope", "cpu") && row.u64("id") == Some(1) && is_of("event", event)
        });
        let within = |first: i64, last: i64| {
            let ts = of_cpu.iter().filter_map(|row| row.i64("ts"));
            ts.filter(|ts| (first..=last).contains(ts)).count()
        };
        assert!(within(0, gone) >= 2, "{event} before");
        assert_eq!(within(gone + 1, back), 0, "{event} while it is offline");
        assert!(within(back + 1, i64::MAX) >= 2, "{event} afterwards");
        let last = of_cpu.last().expect("rows");
        assert!(last.u64("enabled_ns") > Some(0), "{event}: {last:?}");
    }
    // CPU 0 has a row of each sample.
    let samples = |cpu: u64| {
        let of_cpu = rows.iter().filter(|row| {
            row.text("event") == Some("context-switches") && row.u64("id") == Some(cpu)
        });
        of_cpu.count()
    };
    assert!(
        samples(0) >= samples(1) + 3,
        "{} {}",
        samples(0),
        samples(1)
    );
}

#[test]
fn cpus_that_are_offline_at_the_start_are_counted_later() {
    let cpu = Switch("/sys/devices/system/cpu/cpu1/online");
    cpu.set(false);
    let profiler = perf_of_node().start();
    let data = Dataset::new(profiler.run_dir());
    data.wait_for_samples("perf_event", 3);
    let offline = data.so_far("overhead");
    let offline = offline.iter().filter_map(|row| row.i64("ts")).max();
    cpu.set(true);
    data.wait_for_row("perf_event", "counts of CPU 1", |row| {
        row.text("scope") == Some("cpu")
            && row.u64("id") == Some(1)
            && row.text("event") == Some("cpu-clock")
    });
    let finished = profiler.interrupt();
    assert!(
        !finished.stderr.contains("source perf"),
        "{}",
        finished.stderr
    );
    let rows = finished.dataset().table("perf_event");
    for event in ["context-switches", "minor-faults", "cpu-clock"] {
        let of_event = rows.iter().filter(|row| {
            let is_of = |column, text| row.text(column) == Some(text);
            is_of("scope", "cpu") && row.u64("id") == Some(1) && is_of("event", event)
        });
        let first = of_event.filter_map(|row| row.i64("ts")).min();
        assert!(first > offline, "{event}: {first:?} {offline:?}");
    }
}

//! Power zones of the powercap framework with known power (`fakerapl.c`).

use std::{fs, thread::sleep, time::Duration};

use e2e::runs::Profiler;

use super::{Driver, assert_rate};

const ZONES: &str = "/sys/class/powercap/intel-rapl:0";
/// Domain and watts.
const DOMAINS: [(&str, f64); 3] = [("package", 65.0), ("core", 40.0), ("dram", 8.0)];

fn energy() -> u64 {
    let text = fs::read_to_string(format!("{ZONES}/energy_uj")).expect("a zone");
    text.trim().parse().expect("a number")
}

#[test]
fn power_is_right_across_a_counter_wrap() {
    let _driver = Driver::load("fakerapl");
    let first = energy();
    let profiler = Profiler::realtime().args(["--node", "--source", "energy", "-i", "1s"]);
    let profiler = profiler.start();
    // The counters wrap after four seconds.
    sleep(Duration::from_secs(7));
    let finished = profiler.interrupt();
    assert!(energy() < first, "it has not wrapped");
    let rows = finished.dataset().table("energy");
    for (domain, watts) in DOMAINS {
        let of_domain = rows.iter().filter(|row| row.text("domain") == Some(domain));
        let mut intervals = 0;
        for row in of_domain {
            assert_eq!(row.text("provider"), Some("powercap"));
            assert_eq!(row.u64("socket"), Some(0));
            let interval_ns = row.u64("interval_ns").expect("known");
            // The last reading may follow immediately.
            if interval_ns < 500_000_000 {
                continue;
            }
            let energy = row.u64("energy_uj").expect("known, also across the wrap");
            assert_rate(domain, energy, interval_ns, watts * 1e6);
            intervals += 1;
        }
        assert!(intervals >= 6, "{domain}: {intervals}");
    }
    assert_eq!(finished.stderr.matches("source energy").count(), 0);
}

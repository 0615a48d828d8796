//! `sched` against the kernel's own account.

use e2e::{
    procfs::{Field, Reading},
    puppet::Puppet,
    rows::sum,
    runs::Profiler,
};

use crate::WORKLOAD;

/// A target that rests when the profiler starts and when it stops leaves nothing under way: no tolerance at all.
#[track_caller]
fn exact(mut puppet: Puppet, order: &str) {
    let before = Reading::now(puppet.pid());
    let profiler = Profiler::new().args(["-i", "1s"]).pid(puppet.pid()).start();
    puppet.tell(order);
    let finished = profiler.interrupt();
    let after = Reading::now(puppet.pid());
    let rows = finished.dataset().table("sched");
    let fields: [(&str, Field); 5] = [
        ("oncpu_ns", |thread| thread.oncpu_ns),
        ("runqueue_ns", |thread| thread.runqueue_ns),
        ("runqueue_count", |thread| thread.arrivals),
        ("voluntary_switches", |thread| thread.voluntary),
        ("involuntary_switches", |thread| thread.involuntary),
    ];
    for (name, field) in fields {
        let growth = after.sum(field) - before.sum(field);
        assert_eq!(sum(&rows, name), growth, "{name}");
    }
}

#[test]
fn a_process_that_naps_is_accounted_to_the_nanosecond() {
    exact(Puppet::new(WORKLOAD, 0), "nap 300");
}

#[test]
fn threads_that_compute_are_accounted_to_the_nanosecond() {
    exact(Puppet::new(WORKLOAD, 3), "burn 2000");
}

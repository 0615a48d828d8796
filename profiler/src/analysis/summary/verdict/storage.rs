//! Waits for storage, and the page cache.

use std::fmt::Write as _;

use super::{Evidence, percent, seconds};
use crate::analysis::figure::{Unit, scaled};

pub(super) fn storage(of: &Evidence<'_>) -> Option<(String, f64)> {
    blocked_by_storage(of).or_else(|| asynchronous_storage(of))
}

fn blocked_by_storage(of: &Evidence<'_>) -> Option<(String, f64)> {
    let share = of.blocked / of.active();
    let bytes = of.get("storage_read_bytes") + of.get("storage_write_bytes");
    (share >= 0.25 && of.blocked / of.seconds >= 0.1).then(|| {
        let fsyncs = of.rate("fsyncs");
        let synced = if fsyncs >= 10.0 {
            format!(" {fsyncs:.0} fsyncs per second force data to the device.")
        } else {
            String::new()
        };
        let text = format!(
            "Threads were blocked for {}, {} of their active time, while {} were moved from and to \
             storage.{synced}",
            seconds(of.blocked),
            percent(share),
            Unit::Bytes.format(bytes)
        );
        let disk = busiest_disk(of).map_or(String::new(), |(disk, _)| format!(" {disk}."));
        (text + &disk, share)
    })
}

/// The disk with most requests of the target: what it did, and the share of the time in which it was
/// busy.
fn busiest_disk(of: &Evidence<'_>) -> Option<(String, f64)> {
    let disks = of.summary.disks.iter().filter_map(|(device, figures)| {
        let time = figures.get("disk_request_s").filter(|time| *time > 0.0)?;
        Some((device, time, figures.get("disk_busy_percent")?))
    });
    let (device, _, busy) = disks.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let requests = of.get("block_read_requests") + of.get("block_write_requests");
    let mut text = format!("Disk {device} was busy {busy:.0} % of the time");
    for (kind, name) in [("block_read", "reads"), ("block_write", "writes")] {
        let latency = of.summary.latencies.get(kind);
        let get = |name: &str| latency.and_then(|figures| figures.get(name));
        if let (Some(count), Some(median), Some(longest)) = (
            get("latency_count"),
            get("latency_p50_s"),
            get("latency_p99_s"),
        ) && count >= 0.1 * requests
        {
            let _ = write!(
                text,
                ", with {} {name}/s of the target (median {}, p99 {})",
                scaled(count / of.seconds, ""),
                seconds(median),
                seconds(longest)
            );
        }
    }
    Some((text, busy / 100.0))
}

/// Whether what is written becomes dirty pages; not with O_DIRECT. `None` if that is unknown.
fn leaves_dirty_pages(of: &Evidence<'_>) -> Option<bool> {
    let get = |name| of.summary.target.get(name);
    let (written, dirty) = (get("storage_write_bytes")?, get("peak_dirty_bytes")?);
    // What no disk has written is, or was, in the page cache.
    let is_unwritten = get("block_write_bytes").is_some_and(|blocks| blocks <= 0.9 * written);
    Some(is_unwritten || dirty >= 0.05 * written / of.seconds)
}

/// A thread that waits for asynchronous I/O (libaio, io_uring) sleeps interruptibly. Requests alone do
/// not tell that: the kernel writes dirty pages back while no thread waits. Reads are made for someone, and
/// so are writes that leave no dirty pages.
fn asynchronous_storage(of: &Evidence<'_>) -> Option<(String, f64)> {
    let disk = busiest_disk(of);
    let is_busy = disk.as_ref().is_some_and(|(_, busy)| *busy >= 0.25);
    of.summary.processes.iter().find_map(|process| {
        let known = |name| process.figures.get(name).unwrap_or(0.0);
        let sleep = known("sleep_s");
        let active = known("cpu_s") + known("runqueue_s") + known("blocked_s");
        let share = sleep / (active + sleep);
        let mut waits = known("block_read_s");
        if leaves_dirty_pages(of) == Some(false) {
            waits += known("block_write_s");
        }
        let requests = if is_busy { waits / of.seconds } else { 0.0 };
        // Operations of threads that are active in them are not asynchronous.
        let operations = (known("file_s") - active) / of.seconds;
        (share >= 0.25 && requests.max(operations) >= 0.5).then(|| {
            let (in_flight, what) = if requests >= 0.5 {
                (requests, "requests")
            } else {
                (operations, "operations on files")
            };
            let mut text = format!(
                "The threads of {} slept {} of their time, while {in_flight:.1} of its {what} were in flight \
                 on average.",
                process.process.comm,
                percent(share)
            );
            if let Some((disk, _)) = &disk {
                let _ = write!(text, " {disk}.");
            }
            let busy = disk.as_ref().filter(|_| requests >= 0.5);
            (text, busy.map_or(share, |(_, busy)| busy.min(share)))
        })
    })
}

pub(super) fn page_cache(of: &Evidence<'_>) -> Option<(String, f64)> {
    let rate = of.rate("storage_write_bytes");
    let share = of.get("system_s") / of.cpu.max(f64::MIN_POSITIVE);
    let is_cached = leaves_dirty_pages(of) != Some(false);
    (rate >= 100e6 && is_cached && share >= 0.5).then(|| {
        let text = format!(
            "{}/s were written to the page cache; {} of the CPU time was spent in the kernel.",
            Unit::Bytes.format(rate),
            percent(share)
        );
        (text, of.get("system_s") / of.active())
    })
}

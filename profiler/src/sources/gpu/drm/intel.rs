//! The files of i915 and xe (Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon, -xe-hwmon,
//! -xe-throttle).

use std::path::Path;

use super::{
    super::{GpuRow, device::DeviceRow},
    card::Card,
    hwmon::Hwmon,
    sysfs::Sysfs,
};
use crate::{host::names, schema::Label};

pub(super) fn read(card: &Card, sysfs: &mut Sysfs) -> GpuRow {
    let mut row = GpuRow::default();
    if let Some(hwmon) = Hwmon::of(&card.device) {
        hwmon.read(sysfs, &mut row);
        // xe has a counter of the card and one of the package.
        let energy = hwmon.labelled("energy", &["card", "pkg"]).unwrap_or(1);
        row.energy_uj = hwmon.number(sysfs, &format!("energy{energy}_input"));
        let sensor = hwmon.labelled("temp", &["pkg"]).unwrap_or(1);
        row.temperature = hwmon.temperature(sysfs, sensor);
        let memory = hwmon.labelled("temp", &["vram"]);
        row.memory_temperature = memory.and_then(|sensor| hwmon.temperature(sysfs, sensor));
    }
    let (clock, throttle) = if card.driver == "xe" {
        let gt = card.device.join("tile0/gt0/freq0");
        (gt.join("act_freq"), (gt.join("throttle"), "reason_"))
    } else {
        let gt = card.directory.join("gt/gt0");
        (gt.join("rps_act_freq_mhz"), (gt, "throttle_reason_"))
    };
    let mhz = sysfs.number(&clock);
    // Kernels before 5.19.
    let mhz = mhz.or_else(|| sysfs.number(&card.directory.join("gt_act_freq_mhz")));
    row.sm_clock_hz = mhz.and_then(|mhz| mhz.checked_mul(1_000_000));
    row.throttle_reasons = reasons(sysfs, &throttle.0, throttle.1);
    row
}

/// Constant facts.
pub(super) fn facts(card: &Card, sysfs: &mut Sysfs) -> DeviceRow {
    let clock = if card.driver == "xe" {
        card.device.join("tile0/gt0/freq0/rp0_freq")
    } else {
        card.directory.join("gt/gt0/rps_RP0_freq_mhz")
    };
    let mhz = sysfs.number(&clock);
    // Kernels before 5.19.
    let mhz = mhz.or_else(|| sysfs.number(&card.directory.join("gt_RP0_freq_mhz")));
    let mhz = mhz.filter(|&mhz| mhz > 0);
    DeviceRow {
        max_sm_clock_hz: mhz.and_then(|mhz| mhz.checked_mul(1_000_000)),
        ..DeviceRow::default()
    }
}

/// Names of the files that contain 1, joined. `status` is 1 if any of them is.
fn reasons(sysfs: &mut Sysfs, directory: &Path, prefix: &str) -> Option<Label> {
    let mut known = false;
    let mut found = Vec::new();
    for file in names(directory, prefix) {
        let Some(value) = sysfs.number(&directory.join(&file)) else {
            continue;
        };
        known = true;
        let name = &file[prefix.len()..];
        if value != 0 && name != "status" {
            found.push(name.to_owned());
        }
    }
    if found.is_empty() {
        return known.then_some("none".into());
    }
    Some(found.join("+").into())
}

//! Sensors of a card (Documentation/hwmon/sysfs-interface.rst).

use std::path::{Path, PathBuf};

use super::{super::GpuRow, sysfs::Sysfs};
use crate::host::{names, text};

/// Directory of the sensors of a card.
#[derive(Debug)]
pub(super) struct Hwmon(PathBuf);

impl Hwmon {
    pub(super) fn of(device: &Path) -> Option<Self> {
        let directory = device.join("hwmon");
        let name = names(&directory, "hwmon").into_iter().next()?;
        Some(Self(directory.join(name)))
    }

    pub(super) fn number(&self, sysfs: &mut Sysfs, file: &str) -> Option<u64> {
        sysfs.number(&self.0.join(file))
    }

    /// Number of the first sensor of this kind with one of these labels, in the order of the
    /// labels.
    pub(super) fn labelled(&self, kind: &str, labels: &[&str]) -> Option<u32> {
        let label = |number: &u32| text(&self.0.join(format!("{kind}{number}_label")));
        let found: Vec<_> = (1..=8).filter_map(|n| Some((n, label(&n)?))).collect();
        labels.iter().find_map(|wanted| {
            let sensor = found.iter().find(|(_, label)| label == wanted)?;
            Some(sensor.0)
        })
    }

    /// Reads the sensors that cards of AMD and Intel have in common.
    pub(super) fn read(&self, sysfs: &mut Sysfs, row: &mut GpuRow) {
        // µW.
        let power = self.number(sysfs, "power1_average");
        let power = power.or_else(|| self.number(sysfs, "power1_input"));
        row.power_w = power.map(watts);
        let limit = self.number(sysfs, "power1_cap");
        let limit = limit.or_else(|| self.number(sysfs, "power1_max"));
        // 0 is no limit.
        row.power_limit_w = limit.filter(|&limit| limit > 0).map(watts);
        row.fan_rpm = self.number(sysfs, "fan1_input");
        // 255 is the full speed.
        let duty = self.number(sysfs, "pwm1").filter(|duty| *duty <= 255);
        row.fan_percent = duty.map(|duty| (duty * 100 + 127) / 255);
    }

    /// A temperature in °C.
    pub(super) fn temperature(&self, sysfs: &mut Sysfs, sensor: u32) -> Option<u64> {
        let thousandths = self.number(sysfs, &format!("temp{sensor}_input"))?;
        Some(thousandths / 1000)
    }
}

/// Converts from µW.
fn watts(microwatts: u64) -> f64 {
    microwatts as f64 / 1e6
}

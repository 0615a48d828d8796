//! The files of amdgpu (Documentation/gpu/amdgpu/thermal.rst).

use super::{
    super::GpuRow,
    card::Card,
    gpu_metrics::{self, Metrics},
    hwmon::Hwmon,
    sysfs::Sysfs,
};

pub(super) fn read(card: &Card, sysfs: &mut Sysfs) -> GpuRow {
    let device = &card.device;
    let mut row = GpuRow {
        utilization: sysfs.percent(&device.join("gpu_busy_percent")),
        memory_utilization: sysfs.percent(&device.join("mem_busy_percent")),
        memory_total: sysfs.number(&device.join("mem_info_vram_total")),
        memory_used: sysfs.number(&device.join("mem_info_vram_used")),
        system_memory_used: sysfs.number(&device.join("mem_info_gtt_used")),
        pcie_replays: sysfs.number(&device.join("pcie_replay_count")),
        ..GpuRow::default()
    };
    if let Some(hwmon) = Hwmon::of(device) {
        hwmon.read(sysfs, &mut row);
        let sensor = hwmon.labelled("temp", &["edge", "junction"]);
        row.temperature = sensor.and_then(|sensor| hwmon.temperature(sysfs, sensor));
        let memory = hwmon.labelled("temp", &["mem"]);
        row.memory_temperature = memory.and_then(|sensor| hwmon.temperature(sysfs, sensor));
        let mut clock = |label| {
            let sensor = hwmon.labelled("freq", &[label])?;
            hwmon.number(sysfs, &format!("freq{sensor}_input"))
        };
        row.sm_clock = clock("sclk");
        row.memory_clock = clock("mclk");
    }
    // "ue: 0", "ce: 0".
    if let Some(errors) = sysfs.text(&device.join("ras/umc_err_count")) {
        let count = |key: &str| {
            let line = errors.lines().find_map(|line| line.strip_prefix(key))?;
            line.trim().parse().ok()
        };
        row.ecc_uncorrected = count("ue:");
        row.ecc_corrected = count("ce:");
    }
    if let Some(table) = sysfs.bytes(&device.join("gpu_metrics")) {
        let metrics = gpu_metrics::parse(&table).unwrap_or_default();
        fill(&mut row, metrics);
    }
    row
}

/// Fills in the values that the other files do not have.
fn fill(row: &mut GpuRow, metrics: Metrics) {
    row.utilization = row.utilization.or(metrics.utilization);
    row.memory_utilization = row.memory_utilization.or(metrics.memory_utilization);
    row.media_utilization = metrics.media_utilization;
    row.temperature = row.temperature.or(metrics.temperature);
    row.energy_uj = metrics.energy_uj;
    row.throttle_reasons = metrics.throttlers.map(gpu_metrics::throttlers);
}

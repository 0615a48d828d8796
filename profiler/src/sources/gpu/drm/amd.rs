//! The files of amdgpu (Documentation/gpu/amdgpu/thermal.rst).

use super::{
    super::{GpuRow, device::DeviceRow},
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
        let hotspot = hwmon.labelled("temp", &["junction"]);
        row.hotspot_temperature = hotspot.and_then(|sensor| hwmon.temperature(sysfs, sensor));
        let memory = hwmon.labelled("temp", &["mem"]);
        row.memory_temperature = memory.and_then(|sensor| hwmon.temperature(sysfs, sensor));
        let mut clock = |label| {
            let sensor = hwmon.labelled("freq", &[label])?;
            hwmon.number(sysfs, &format!("freq{sensor}_input"))
        };
        row.sm_clock_hz = clock("sclk");
        row.memory_clock_hz = clock("mclk");
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

/// Constant facts.
pub(super) fn facts(card: &Card, sysfs: &mut Sysfs) -> DeviceRow {
    let device = &card.device;
    // "2: 2100Mhz *", in ascending order.
    let max = |sysfs: &mut Sysfs, file: &str| {
        let levels = sysfs.text(&device.join(file))?;
        let (_, level) = levels.lines().last()?.split_once(':')?;
        let mhz = level.trim().to_ascii_lowercase();
        let mhz: u64 = mhz.split("mhz").next()?.parse().ok()?;
        mhz.checked_mul(1_000_000)
    };
    DeviceRow {
        vbios_version: sysfs.text(&device.join("vbios_version")),
        serial: sysfs.text(&device.join("serial_number")),
        memory_total: sysfs.number(&device.join("mem_info_vram_total")),
        max_sm_clock_hz: max(sysfs, "pp_dpm_sclk"),
        max_memory_clock_hz: max(sysfs, "pp_dpm_mclk"),
        ..DeviceRow::default()
    }
}

/// Fills in the values that the other files do not have.
fn fill(row: &mut GpuRow, metrics: Metrics) {
    row.utilization = row.utilization.or(metrics.utilization);
    row.memory_utilization = row.memory_utilization.or(metrics.memory_utilization);
    row.media_utilization = metrics.media_utilization;
    row.temperature = row.temperature.or(metrics.temperature);
    row.hotspot_temperature = row.hotspot_temperature.or(metrics.hotspot);
    row.memory_temperature = row.memory_temperature.or(metrics.memory);
    row.hbm_temperature = metrics.hbm;
    [
        row.vr_gfx_temperature,
        row.vr_soc_temperature,
        row.vr_memory_temperature,
    ] = metrics.regulators;
    [row.soc_clock_hz, row.video_clock_hz, row.decoder_clock_hz] = metrics.clocks;
    row.energy_uj = metrics.energy_uj;
    row.throttle_reasons = metrics.throttlers.map(gpu_metrics::throttlers);
}

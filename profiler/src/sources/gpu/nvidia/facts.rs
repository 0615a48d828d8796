//! Constant facts about a GPU.

use nvml_wrapper::{
    Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor,
    enum_wrappers::device::{Clock, ComputeMode},
    enums::device::DeviceArchitecture,
};

use super::{super::device::DeviceRow, hertz, positive, watts};
use crate::schema::Label;

/// Reads all facts; those that the GPU or its driver does not have are null.
pub(super) fn read(nvml: &Nvml, device: &Device<'_>) -> DeviceRow {
    let max = |clock| device.max_clock_info(clock).ok().and_then(hertz);
    let cuda = nvml.sys_cuda_driver_version().ok();
    let architecture = device.architecture().ok();
    let limits = device.power_management_limit_constraints().ok();
    DeviceRow {
        driver_version: nvml.sys_driver_version().ok(),
        cuda_version: cuda.map(|version| {
            let major = cuda_driver_version_major(version);
            format!("{major}.{}", cuda_driver_version_minor(version))
        }),
        vbios_version: device.vbios_version().ok(),
        serial: device.serial().ok(),
        part_number: device.board_part_number().ok(),
        architecture: architecture
            .filter(|known| *known != DeviceArchitecture::Unknown)
            .map(|known| known.to_string()),
        compute_mode: device.compute_mode().ok().map(compute_mode),
        persistence_mode: device.is_in_persistent_mode().ok(),
        ecc: device
            .is_ecc_enabled()
            .ok()
            .map(|mode| mode.currently_enabled),
        memory_total: device.memory_info().ok().map(|memory| memory.total),
        bar1_total: device.bar1_memory_info().ok().map(|bar1| bar1.total),
        max_graphics_clock_hz: max(Clock::Graphics),
        max_sm_clock_hz: max(Clock::SM),
        max_memory_clock_hz: max(Clock::Memory),
        max_video_clock_hz: max(Clock::Video),
        max_power_limit_w: limits
            .and_then(|limits| positive(limits.max_limit))
            .map(watts),
        max_pcie_generation: device.max_pcie_link_gen().ok().and_then(positive),
        max_pcie_width: device.max_pcie_link_width().ok().and_then(positive),
    }
}

fn compute_mode(mode: ComputeMode) -> Label {
    match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveThread => "exclusive_thread",
        ComputeMode::ExclusiveProcess => "exclusive_process",
        ComputeMode::Prohibited => "prohibited",
    }
    .into()
}

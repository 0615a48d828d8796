//! `gpu_device`: constant facts about a GPU, once per run.

use crate::{
    columns,
    schema::{Label, Timestamp, TypedTable},
};

use super::GpuKey;

columns! {
    /// GPU of a row.
    pub struct DeviceKey {
        ts: Timestamp = Label("us", "Wall clock of the sample that started the first reading of the GPU"),
        index: Option<u32> = Label("", "Number of the GPU, as in table gpu"),
        uuid: Option<Label> = Label("", "UUID (NVIDIA), unique_id (AMD); null if the driver has none"),
        vendor: Label = Label("", "Vendor: nvidia, amd, intel"),
        driver: Label = Label("", "Driver: nvidia, amdgpu, i915, xe …"),
        name: Option<Label> = Label("", "Product name"),
        bdf: Option<Label> = Label("", "PCI address: domain:bus:device.function, as in /sys/bus/pci/devices"),
    }
}

columns! {
    /// Constant facts; those that the driver does not report are null.
    #[derive(Default)]
    pub struct DeviceRow {
        driver_version: Option<String> = Label("", "Version of the driver (NVML; /sys/module/…/version for drivers outside the kernel)"),
        cuda_version: Option<String> = Label("", "Latest version of CUDA that the driver supports (NVIDIA)"),
        vbios_version: Option<String> = Label("", "Version of the firmware on the board"),
        serial: Option<String> = Label("", "Serial number of the board"),
        part_number: Option<String> = Label("", "Part number of the board (NVIDIA)"),
        architecture: Option<String> = Label("", "Architecture of the chip (NVIDIA: Ampere, Hopper …)"),
        compute_mode: Option<Label> = Label("", "Compute mode (NVIDIA): default, exclusive_process or prohibited"),
        persistence_mode: Option<bool> = Label("", "Whether the driver stays initialized without clients (NVIDIA)"),
        ecc: Option<bool> = Label("", "Whether the memory uses error correction (NVIDIA)"),
        memory_total: Option<u64> = Label("bytes", "Size of the device memory"),
        bar1_total: Option<u64> = Label("bytes", "Size of the window BAR1 in the PCI address space (NVIDIA)"),
        max_graphics_clock_hz: Option<u64> = Label("Hz", "Highest clock of the graphics engine (NVIDIA)"),
        max_sm_clock_hz: Option<u64> = Label("Hz", "Highest clock of the shader cores (SM, GFX, GT)"),
        max_memory_clock_hz: Option<u64> = Label("Hz", "Highest clock of the device memory"),
        max_video_clock_hz: Option<u64> = Label("Hz", "Highest clock of the video engines (NVIDIA)"),
        max_power_limit_w: Option<f64> = Label("W", "Highest power limit that can be set"),
        max_pcie_generation: Option<u64> = Label("1", "PCIe generation that GPU and slot support"),
        max_pcie_width: Option<u64> = Label("1", "PCIe lanes that GPU and slot support"),
    }
}

pub(super) static DEVICES: TypedTable<DeviceKey, DeviceRow> = TypedTable::new(
    "gpu_device",
    "One row per GPU of the run, at its first reading",
);

impl From<GpuKey> for DeviceKey {
    fn from(key: GpuKey) -> Self {
        Self {
            ts: key.ts,
            index: key.index,
            uuid: key.uuid,
            vendor: key.vendor,
            driver: key.driver,
            name: key.name,
            bdf: key.bdf,
        }
    }
}

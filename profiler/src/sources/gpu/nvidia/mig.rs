//! MIG instances of a GPU, which can be created and removed at any time.

use std::collections::HashMap;

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_enum_NVML_SUCCESS, nvmlReturn_t};

use super::{super::GpuRow, answers::Answers, gpm::Gpm, visible::Cuda};
use crate::schema::Label;

/// Previous samples of the instances of a GPU, by UUID.
#[derive(Debug, Default)]
pub(super) struct Instances(HashMap<String, Gpm>);

/// An instance at one reading.
#[derive(Debug)]
pub(super) struct MigDevice {
    pub(super) uuid: String,
    pub(super) name: Option<Label>,
    pub(super) gpu_instance: Option<u32>,
    pub(super) compute_instance: Option<u32>,
    /// Whether the target may use it.
    pub(super) visible: bool,
    pub(super) row: GpuRow,
}

const ENABLED: u32 = 1;

impl Instances {
    /// Reads the present instances.
    pub(super) fn read(
        &mut self,
        nvml: &'static Nvml,
        parent: &Device<'static>,
        visible: &[Cuda],
        answers: &mut Answers,
    ) -> Vec<MigDevice> {
        let mode = answers.of("MIG mode", parent.mig_mode());
        if mode.is_none_or(|mode| mode.current != ENABLED) {
            self.0.clear();
            return Vec::new();
        }
        let most = answers.of("MIG instances", parent.mig_device_count());
        let mut found = Vec::new();
        for index in 0..most.unwrap_or(0).min(64) {
            // An index without an instance is no error.
            let device = answers.of("MIG instance", parent.mig_device_by_index(index));
            let Some(device) = device else { continue };
            let Some(uuid) = answers.of("MIG UUID", device.uuid()) else {
                continue;
            };
            let lib = nvml.lib();
            let gpu_instance = id(&device, lib.nvmlDeviceGetGpuInstanceId.as_ref().ok());
            let compute_instance = id(&device, lib.nvmlDeviceGetComputeInstanceId.as_ref().ok());
            let mut row = GpuRow::default();
            if let Some(memory) = answers.of("MIG memory", device.memory_info()) {
                row.memory_total = Some(memory.total);
                row.memory_used = Some(memory.used);
            }
            if let Some(instance) = gpu_instance {
                let gpm = self.0.entry(uuid.clone()).or_default();
                gpm.read(nvml, parent, Some(instance), &mut row, answers);
            }
            found.push(MigDevice {
                visible: visible.iter().any(|visible| visible.instance(&uuid)),
                name: answers.of("MIG name", device.name()).map(Label::from),
                uuid,
                gpu_instance,
                compute_instance,
                row,
            });
        }
        self.0
            .retain(|uuid, _| found.iter().any(|instance| instance.uuid == *uuid));
        found
    }
}

type GetId = unsafe extern "C" fn(nvmlDevice_t, *mut u32) -> nvmlReturn_t;

/// An id of an instance, for which the wrapper has no call.
fn id(device: &Device<'_>, call: Option<&GetId>) -> Option<u32> {
    let mut id = 0;
    // SAFETY: the handle belongs to this library, which stays loaded; the call writes one number.
    let code = unsafe { call?(device.handle(), &raw mut id) };
    (code == nvmlReturn_enum_NVML_SUCCESS).then_some(id)
}

//! MIG instances of a GPU, which can be created and removed at any time.

use std::collections::HashMap;

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_enum_NVML_SUCCESS, nvmlReturn_t};

use super::{super::GpuRow, answers::Answers, gpm::Gpm};
use crate::schema::Label;

/// Previous samples of the instances of a GPU, by UUID.
#[derive(Debug, Default)]
pub(super) struct Instances(HashMap<String, Gpm>);

/// Names of an instance.
#[derive(Clone, Debug, Default)]
pub(super) struct MigNames {
    /// Its number on the GPU in nvidia-smi.
    pub(super) number: u32,
    pub(super) uuid: String,
    pub(super) gpu_instance: Option<u32>,
    pub(super) compute_instance: Option<u32>,
}

/// An instance at one reading.
#[derive(Debug)]
pub(super) struct MigDevice {
    pub(super) instance: MigNames,
    pub(super) name: Option<Label>,
    /// Whether the target may use it.
    pub(super) visible: bool,
    pub(super) row: GpuRow,
}

/// The present instances of a GPU.
pub(super) type Present = Vec<(MigNames, Device<'static>)>;

const ENABLED: u32 = 1;

/// Asks for the present instances of a GPU.
pub(super) fn instances(
    nvml: &'static Nvml,
    parent: &Device<'static>,
    answers: &mut Answers,
) -> Present {
    let mode = answers.of("MIG mode", parent.mig_mode());
    if mode.is_none_or(|mode| mode.current != ENABLED) {
        return Vec::new();
    }
    let most = answers.of("MIG instances", parent.mig_device_count());
    let lib = nvml.lib();
    let mut found = Vec::new();
    for number in 0..most.unwrap_or(0).min(64) {
        // A number without an instance is no error.
        let device = answers.of("MIG instance", parent.mig_device_by_index(number));
        let Some(device) = device else { continue };
        let Some(uuid) = answers.of("MIG UUID", device.uuid()) else {
            continue;
        };
        let instance = MigNames {
            number,
            uuid,
            gpu_instance: id(&device, lib.nvmlDeviceGetGpuInstanceId.as_ref().ok()),
            compute_instance: id(&device, lib.nvmlDeviceGetComputeInstanceId.as_ref().ok()),
        };
        found.push((instance, device));
    }
    found
}

impl Instances {
    /// Reads the present instances of `parent`.
    pub(super) fn read(
        &mut self,
        nvml: &'static Nvml,
        parent: &Device<'static>,
        present: Present,
        is_visible: impl Fn(&MigNames) -> bool,
        answers: &mut Answers,
    ) -> Vec<MigDevice> {
        let mut found = Vec::new();
        for (instance, device) in present {
            let mut row = GpuRow::default();
            if let Some(memory) = answers.of("MIG memory", device.memory_info()) {
                row.memory_total = Some(memory.total);
                row.memory_used = Some(memory.used);
            }
            if let Some(id) = instance.gpu_instance {
                let gpm = self.0.entry(instance.uuid.clone()).or_default();
                gpm.read(nvml, parent, Some(id), &mut row, answers);
            }
            found.push(MigDevice {
                visible: is_visible(&instance),
                name: answers.of("MIG name", device.name()).map(Label::from),
                instance,
                row,
            });
        }
        self.0
            .retain(|uuid, _| found.iter().any(|found| found.instance.uuid == *uuid));
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

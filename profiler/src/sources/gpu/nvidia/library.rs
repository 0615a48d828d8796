//! Loads NVML, once per process.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use nvml_wrapper::{Nvml, error::NvmlError};

use crate::{
    host::{Host, has_pci_device},
    support::worker::Worker,
};

/// File name of NVML for the dynamic loader.
pub(in super::super) const LIBRARY: &str = "libnvidia-ml.so.1";

/// Initialization takes seconds if no process keeps the GPUs initialized (no persistence mode).
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why NVML cannot be used.
#[derive(Clone, Debug)]
pub(in super::super) struct Absent {
    pub(in super::super) why: String,
    pub(in super::super) remedy: String,
    /// Whether the machine has a GPU of NVIDIA.
    pub(in super::super) has_gpu: bool,
}

/// Loads and initializes NVML, with a timeout.
pub(in super::super) fn load(host: &Host, library: &OsStr) -> Result<&'static Nvml, Absent> {
    type Known = HashMap<OsString, Result<&'static Nvml, Absent>>;
    static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
    // NVML would load the kernel module, which the profiler must not do.
    if !host.sysfs.join("module/nvidia").exists() {
        return Err(without_module(&host.sysfs));
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known
        .get_or_insert_default()
        .entry(library.to_owned())
        .or_insert_with(|| initialize(library))
        .clone()
}

fn without_module(sysfs: &Path) -> Absent {
    let has_gpu = has_gpu(sysfs);
    let (why, remedy) = if has_gpu {
        let why = "the NVIDIA driver is not loaded (no /sys/module/nvidia)";
        (why, "modprobe nvidia, or install NVIDIA's driver")
    } else {
        let why = "no supported GPU driver: neither NVIDIA's (/sys/module/nvidia) nor amdgpu, i915 or xe (/sys/class/drm)";
        (why, "no action needed without a GPU")
    };
    Absent {
        why: why.to_owned(),
        remedy: remedy.to_owned(),
        has_gpu,
    }
}

/// Whether the machine has a display controller of NVIDIA.
pub(in super::super) fn has_gpu(sysfs: &Path) -> bool {
    has_pci_device(sysfs, |vendor, class| {
        vendor == "0x10de" && class.starts_with("0x03")
    })
}

fn initialize(library: &OsStr) -> Result<&'static Nvml, Absent> {
    let absent = |why: String, remedy: &str| Absent {
        why,
        remedy: remedy.to_owned(),
        has_gpu: true,
    };
    let name = library.to_owned();
    let open = || {
        move |()| -> Result<(u32, Nvml), NvmlError> {
            let nvml = Nvml::builder().lib_path(&name).init()?;
            Ok((nvml.device_count()?, nvml))
        }
    };
    let worker = Worker::start("gpu-nvml", open);
    let mut worker = worker.map_err(|error| absent(format!("{error:#}"), ""))?;
    let asked = worker.ask(());
    asked.map_err(|error| absent(format!("{error:#}"), ""))?;
    Err(match worker.take(TIMEOUT) {
        // Never unloaded: the thread that reads may be in a call when the run ends.
        Some(Ok((1.., nvml))) => return Ok(Box::leak(Box::new(nvml))),
        Some(Ok((0, _))) => absent(
            "NVML finds no GPU".to_owned(),
            "nvidia-smi -L; in a container, pass the devices through",
        ),
        Some(Err(NvmlError::LibloadingError(error))) => absent(
            format!("{}: {error}", library.display()),
            "install the library of NVIDIA's driver (Debian: libnvidia-ml1)",
        ),
        Some(Err(error @ NvmlError::LibRmVersionMismatch)) => absent(
            format!("NVML: {error}"),
            "reboot, or load the kernel module of the installed driver",
        ),
        Some(Err(error)) => absent(format!("NVML: {error}"), "nvidia-smi shows details"),
        None => absent(
            format!("NVML did not answer within {} s", TIMEOUT.as_secs()),
            "nvidia-smi; dmesg | grep NVRM",
        ),
    })
}

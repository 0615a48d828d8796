//! Loading NVML, once per process.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    path::Path,
    sync::{Mutex, PoisonError, mpsc::channel},
    thread,
    time::Duration,
};

use nvml_wrapper::{Nvml, error::NvmlError};

use crate::host::{Host, names, text};

/// NVML's name for the dynamic loader.
pub(in super::super) const LIBRARY: &str = "libnvidia-ml.so.1";

/// Initialising takes seconds where no process keeps the GPUs awake (no persistence mode).
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no NVML.
#[derive(Clone, Debug)]
pub(in super::super) struct Absent {
    pub(in super::super) why: String,
    pub(in super::super) remedy: String,
    /// Whether there is a GPU that it would tell of.
    pub(in super::super) has_gpu: bool,
}

/// Loads and initialises it, in the time that a person waits.
pub(in super::super) fn load(host: &Host, library: &OsStr) -> Result<&'static Nvml, Absent> {
    type Known = HashMap<OsString, Result<&'static Nvml, Absent>>;
    static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
    // NVML would load the kernel module, which is not ours to do.
    if !host.sysfs.join("module/nvidia").exists() {
        return Err(without_module(&host.sysfs));
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known
        .get_or_insert_default()
        .entry(library.to_owned())
        .or_insert_with(|| initialise(library))
        .clone()
}

fn without_module(sysfs: &Path) -> Absent {
    let has_gpu = has_gpu(sysfs);
    let (why, remedy) = if has_gpu {
        let why = "the NVIDIA driver is not loaded (no /sys/module/nvidia)";
        (why, "modprobe nvidia, or install NVIDIA's driver")
    } else {
        let why = "no GPU that can be read: neither NVIDIA's driver (/sys/module/nvidia) nor amdgpu, i915 or xe (/sys/class/drm)";
        (why, "a GPU, and the driver for it")
    };
    Absent {
        why: why.to_owned(),
        remedy: remedy.to_owned(),
        has_gpu,
    }
}

/// Whether there is a display controller of NVIDIA.
pub(in super::super) fn has_gpu(sysfs: &Path) -> bool {
    let devices = sysfs.join("bus/pci/devices");
    names(&devices, "").iter().any(|name| {
        let is = |file: &str, prefix: &str| {
            text(&devices.join(name).join(file)).is_some_and(|text| text.starts_with(prefix))
        };
        is("vendor", "0x10de") && is("class", "0x03")
    })
}

fn initialise(library: &OsStr) -> Result<&'static Nvml, Absent> {
    let name = library.to_owned();
    let (sender, receiver) = channel();
    let work = move || {
        let loaded = Nvml::builder().lib_path(&name).init();
        let counted = loaded.and_then(|nvml| Ok((nvml.device_count()?, nvml)));
        let _ = sender.send(counted);
    };
    let started = thread::Builder::new()
        .name("gpu-nvml".to_owned())
        .spawn(work);
    let answer = started.ok().map(|_| receiver.recv_timeout(TIMEOUT));
    let (why, remedy) = match answer {
        Some(Ok(Ok((0, _)))) => (
            "NVML knows no GPU".to_owned(),
            "nvidia-smi -L; in a container, let it have the devices",
        ),
        // For ever: readings go on in a thread that nobody waits for.
        Some(Ok(Ok((_, nvml)))) => return Ok(Box::leak(Box::new(nvml))),
        Some(Ok(Err(NvmlError::LibloadingError(error)))) => (
            format!("{}: {error}", library.display()),
            "install the library of NVIDIA's driver (Debian: libnvidia-ml1)",
        ),
        Some(Ok(Err(error @ NvmlError::LibRmVersionMismatch))) => (
            format!("NVML: {error}"),
            "reboot, or load the kernel module of the driver that is installed",
        ),
        Some(Ok(Err(error))) => (format!("NVML: {error}"), "nvidia-smi says more"),
        Some(Err(_)) => (
            format!("NVML did not answer within {} s", TIMEOUT.as_secs()),
            "nvidia-smi; dmesg | grep NVRM",
        ),
        None => ("cannot start a thread".to_owned(), ""),
    };
    Err(Absent {
        why,
        remedy: remedy.to_owned(),
        has_gpu: true,
    })
}

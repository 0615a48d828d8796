//! Devices in sysfs: PMUs, network interfaces, block devices, accelerators.

use std::{collections::HashMap, path::Path};

use serde::Serialize;

use super::addresses::NicAddress;
use crate::host::{names, number, selected, text};

/// A performance monitoring unit (Documentation/ABI/testing/sysfs-bus-event_source-devices).
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Pmu {
    name: String,
    r#type: Option<u32>,
    cpumask: Option<String>,
}

pub(super) fn pmus(sysfs: &Path) -> Vec<Pmu> {
    let directory = sysfs.join("bus/event_source/devices");
    let all = names(&directory, "").into_iter().map(|name| {
        let device = directory.join(&name);
        Pmu {
            r#type: number(&device.join("type")),
            // PMUs of one kind of core have `cpus`.
            cpumask: text(&device.join("cpumask")).or_else(|| text(&device.join("cpus"))),
            name,
        }
    });
    all.collect()
}

/// A network interface (Documentation/ABI/testing/sysfs-class-net).
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Nic {
    name: String,
    driver: Option<String>,
    speed_mbit: Option<u64>,
    mtu: Option<u64>,
    state: Option<String>,
    numa_node: Option<u32>,
    addresses: Vec<NicAddress>,
}

/// Speeds of drivers that do not know it, apart from -1: the same number without its sign in the two
/// widths of `struct ethtool_cmd`.
const UNKNOWN_SPEEDS: [u64; 3] = [0, u16::MAX as u64, u32::MAX as u64];

/// Network interfaces; `addresses` are those of all interfaces, by name.
pub(super) fn nics(sysfs: &Path, mut addresses: HashMap<String, Vec<NicAddress>>) -> Vec<Nic> {
    let directory = sysfs.join("class/net");
    let all = names(&directory, "")
        .into_iter()
        .filter(|name| directory.join(name).is_dir());
    let all = all.map(|name| {
        let device = directory.join(&name);
        Nic {
            driver: driver(&device.join("device")),
            // Cannot be read while the interface is down.
            speed_mbit: number(&device.join("speed"))
                .filter(|speed| !UNKNOWN_SPEEDS.contains(speed)),
            mtu: number(&device.join("mtu")),
            state: text(&device.join("operstate")),
            // -1 if there is only one node.
            numa_node: number(&device.join("device/numa_node")),
            addresses: addresses.remove(&name).unwrap_or_default(),
            name,
        }
    });
    all.collect()
}

/// A block device (Documentation/ABI/stable/sysfs-block).
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct BlockDevice {
    name: String,
    model: Option<String>,
    size: Option<u64>,
    rotational: Option<bool>,
    scheduler: Option<String>,
}

/// Block devices with a size, which unused loop devices do not have.
pub(super) fn block_devices(sysfs: &Path) -> Vec<BlockDevice> {
    /// Unit of sizes in sysfs, whatever the sector size of the device.
    const SECTOR: u64 = 512;
    let directory = sysfs.join("block");
    let all = names(&directory, "").into_iter().map(|name| {
        let device = directory.join(&name);
        let sectors = number::<u64>(&device.join("size"));
        BlockDevice {
            model: text(&device.join("device/model")),
            size: sectors.and_then(|sectors| sectors.checked_mul(SECTOR)),
            rotational: number::<u32>(&device.join("queue/rotational")).map(|yes| yes != 0),
            scheduler: text(&device.join("queue/scheduler"))
                .map(|all| selected(&all).unwrap_or(&all).to_owned()),
            name,
        }
    });
    all.filter(|device| device.size != Some(0)).collect()
}

/// A GPU or another accelerator.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Gpu {
    address: String,
    vendor: Option<String>,
    device: Option<String>,
    class: String,
    driver: Option<String>,
    numa_node: Option<u32>,
}

/// Display controllers and processing accelerators, by PCI class.
pub(super) fn gpus(sysfs: &Path) -> Vec<Gpu> {
    let directory = sysfs.join("bus/pci/devices");
    let all = names(&directory, "").into_iter().filter_map(|address| {
        let device = directory.join(&address);
        let class = text(&device.join("class"))?;
        let accelerates = class.starts_with("0x03") || class.starts_with("0x12");
        accelerates.then(|| Gpu {
            vendor: text(&device.join("vendor")),
            device: text(&device.join("device")),
            driver: driver(&device),
            numa_node: number(&device.join("numa_node")),
            address,
            class,
        })
    });
    all.collect()
}

/// Driver to which a device is bound.
fn driver(device: &Path) -> Option<String> {
    let driver = std::fs::read_link(device.join("driver")).ok()?;
    Some(driver.file_name()?.to_string_lossy().into_owned())
}

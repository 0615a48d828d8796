//! What of this machine decides how events are counted.

use std::path::Path;

use perfevents::{CORE_PMU, Catalog, CpuId, Device, Room, Uarch};

use crate::host::{Host, cpu_ids, cpu_list, number, text};

use super::constants::Constants;

/// A CPU that is online.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub number: u32,
    /// Its package; 0 where the kernel does not say.
    pub socket: u32,
    /// Its core within the package.
    pub core: u32,
    /// Its NUMA node; 0 where there is none.
    pub node: u32,
}

/// A kind of core: its table, if there is one, and its PMU.
#[derive(Clone, Debug)]
pub struct Kind<'a> {
    /// What is known of it.
    pub table: &'a Uarch,
    /// The core's PMU; `None` where the kernel has none.
    pub device: Option<Device>,
}

/// This machine, for plans.
pub struct Machine<'a> {
    /// Where files are.
    pub host: &'a Host,
    /// CPUs that are online.
    pub cpus: Vec<Cpu>,
    /// The kinds of cores that are in a table.
    pub kinds: Vec<Kind<'a>>,
    /// The kernel's generic events.
    pub generic: Option<&'a Uarch>,
    /// What takes counters.
    pub room: Room,
    /// Constants of formulas.
    pub constants: Constants,
}

impl<'a> Machine<'a> {
    /// Looks at the machine.
    pub fn read(host: &'a Host, catalog: &'a Catalog) -> Self {
        let cpus = online(host);
        let constants = Constants::read(host, &cpus);
        let mut kinds: Vec<Kind<'a>> = Vec::new();
        for id in cpu_ids(&host.procfs, &host.sysfs) {
            let device = core_pmu(&host.sysfs, &id);
            for table in catalog.candidates(&id) {
                if !kinds.iter().any(|kind| kind.table.id == table.id) {
                    let device = device.clone();
                    kinds.push(Kind { table, device });
                }
            }
        }
        let watchdog = host.procfs.join("sys/kernel/nmi_watchdog");
        Self {
            host,
            kinds,
            generic: catalog.generic(),
            room: Room {
                smt: constants.has_smt(),
                watchdog: number::<u32>(&watchdog) == Some(1),
            },
            cpus,
            constants,
        }
    }

    /// Its tables, the kernel's generic one last.
    pub fn tables(&self) -> Vec<&'a Uarch> {
        let own = self.kinds.iter().map(|kind| kind.table);
        own.chain(self.generic).collect()
    }

    /// Whether the kernel has a PMU of the cores.
    pub fn has_core_pmu(&self) -> bool {
        !Device::all(&self.host.sysfs, CORE_PMU).is_empty()
    }
}

fn online(host: &Host) -> Vec<Cpu> {
    let directory = host.sysfs.join("devices/system/cpu");
    let list = text(&directory.join("online")).and_then(|list| cpu_list(&list));
    let numbers = list.unwrap_or_default().into_iter();
    let cpus = numbers.filter_map(|cpu| {
        let topology = directory.join(format!("cpu{cpu}/topology"));
        // -1 where the firmware does not say.
        let file = |name| number::<u32>(&topology.join(name)).unwrap_or(0);
        Some(Cpu {
            number: u32::try_from(cpu).ok()?,
            socket: file("physical_package_id"),
            core: file("core_id"),
            node: node_of(&directory.join(format!("cpu{cpu}"))),
        })
    });
    cpus.collect()
}

/// A CPU's directory has a link to its NUMA node's.
fn node_of(directory: &Path) -> u32 {
    let links = crate::host::names(directory, "node");
    links
        .iter()
        .find_map(|name| name.strip_prefix("node")?.parse().ok())
        .unwrap_or(0)
}

/// The PMU of this kind of core: by its name on x86, on arm64 by the CPUs that it counts.
fn core_pmu(sysfs: &Path, id: &CpuId) -> Option<Device> {
    let mut devices = Device::all(sysfs, CORE_PMU);
    if devices.len() > 1 {
        devices.retain(|device| match id {
            CpuId::X86 { pmu, .. } => pmu.as_ref() == Some(&device.name),
            CpuId::Arm64 { midr } => is_of_midr(sysfs, device, *midr),
            CpuId::Power { .. } => true,
        });
    }
    devices.into_iter().next()
}

fn is_of_midr(sysfs: &Path, device: &Device, midr: u32) -> bool {
    let cpus = device.cpus().and_then(|list| cpu_list(&list));
    let first = cpus.and_then(|cpus| cpus.first().copied());
    let register = first.and_then(|cpu| {
        let file = format!("devices/system/cpu/cpu{cpu}/regs/identification/midr_el1");
        u64::from_str_radix(text(&sysfs.join(file))?.strip_prefix("0x")?, 16).ok()
    });
    register == Some(midr.into())
}

//! Properties of this machine that determine how events are counted.

use std::path::Path;

use perfevents::{CORE_PMU, Catalog, CpuId, Device, Room, Uarch};

use crate::host::{Host, cpu_ids, cpu_list, number, text};

use super::{
    constants::Constants,
    cpus::{Cpu, offline, online},
};

#[derive(Clone, Debug)]
pub struct CoreKind<'a> {
    /// Its event table.
    pub table: &'a Uarch,
    /// Its PMU; `None` if the kernel has none.
    pub device: Option<Device>,
}

pub struct Machine<'a> {
    /// Mount points and facts.
    pub host: &'a Host,
    /// Online CPUs.
    pub cpus: Vec<Cpu>,
    /// Present CPUs that are offline.
    pub offline: Vec<u32>,
    /// Kinds of cores with an event table; several on hybrid processors.
    pub kinds: Vec<CoreKind<'a>>,
    /// Table of the kernel's generic events.
    pub generic: Option<&'a Uarch>,
    /// Circumstances that reduce the number of free counters.
    pub room: Room,
    /// Constants of formulas.
    pub constants: Constants,
}

impl<'a> Machine<'a> {
    /// Reads the properties, and selects the tables of the catalog.
    pub fn read(host: &'a Host, catalog: &'a Catalog) -> Self {
        let cpus = online(host);
        let constants = Constants::read(host, &cpus);
        let mut kinds: Vec<CoreKind<'a>> = Vec::new();
        for id in cpu_ids(&host.procfs, &host.sysfs) {
            let device = core_pmu(&host.sysfs, &id);
            for table in catalog.candidates(&id) {
                if !kinds.iter().any(|kind| kind.table.id == table.id) {
                    let device = device.clone();
                    kinds.push(CoreKind { table, device });
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
            offline: offline(host),
            constants,
        }
    }

    /// The tables of the cores, then that of the generic events.
    pub fn tables(&self) -> Vec<&'a Uarch> {
        let own = self.kinds.iter().map(|kind| kind.table);
        own.chain(self.generic).collect()
    }

    /// Whether the kernel has a PMU for the cores.
    pub fn has_core_pmu(&self) -> bool {
        !Device::all(&self.host.sysfs, CORE_PMU).is_empty()
    }
}

/// The PMU of a kind of core: on x86 by its name, on arm64 by the CPUs that it covers.
fn core_pmu(sysfs: &Path, id: &CpuId) -> Option<Device> {
    let mut devices = Device::all(sysfs, CORE_PMU);
    if devices.len() > 1 {
        devices.retain(|device| match id {
            CpuId::X86 { pmu, .. } => pmu.as_ref() == Some(&device.name),
            CpuId::Arm64 { midr } => has_midr(sysfs, device, *midr),
            CpuId::Power { .. } => true,
        });
    }
    devices.into_iter().next()
}

/// Whether the first CPU of a PMU has this `MIDR_EL1`.
fn has_midr(sysfs: &Path, device: &Device, midr: u32) -> bool {
    let cpus = device.cpus().and_then(|list| cpu_list(&list));
    let first = cpus.and_then(|cpus| cpus.first().copied());
    let register = first.and_then(|cpu| {
        let file = format!("devices/system/cpu/cpu{cpu}/regs/identification/midr_el1");
        u64::from_str_radix(text(&sysfs.join(file))?.strip_prefix("0x")?, 16).ok()
    });
    register == Some(midr.into())
}

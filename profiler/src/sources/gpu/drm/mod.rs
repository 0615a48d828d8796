//! GPUs of AMD and Intel, through sysfs and the fdinfo of DRM clients.

mod amd;
mod card;
mod clients;
mod engines;
mod fdinfo;
mod gpu_metrics;
mod hwmon;
mod intel;
mod sysfs;

use super::{
    GpuRow, Request,
    reading::{Counters, Reading},
};
use crate::{host::Host, support::clock::monotonic_ns};

pub(super) use self::card::cards;
use self::{card::Card, clients::Clients, sysfs::Sysfs};

/// All cards of supported drivers.
pub(super) struct Drm {
    host: Host,
    counters: Counters,
    clients: Clients,
}

impl Drm {
    pub(super) fn open(host: &Host) -> Self {
        Self {
            host: host.clone(),
            counters: Counters::new(),
            clients: Clients::new(&host.procfs),
        }
    }

    /// Reads all GPUs once, which may take long.
    pub(super) fn read(&mut self, request: &Request) -> Reading {
        let ts = request.tick.ts;
        let mut sysfs = Sysfs::default();
        let mut gpus = Vec::new();
        self.counters.begin();
        // Cards can be added and removed.
        let cards = cards(&self.host);
        for card in &cards {
            let now = monotonic_ns();
            let mut row = read(card, &mut sysfs);
            if let Some(interval_ns) = self.counters.increase(&card.id(), now, &mut row) {
                gpus.push((card.key(ts, interval_ns), row));
            }
        }
        let processes = self.clients.read(request.pids.as_deref(), &cards);
        Reading {
            ts,
            read_at: monotonic_ns(),
            gpus,
            processes,
            error: sysfs.error,
        }
    }
}

fn read(card: &Card, sysfs: &mut Sysfs) -> GpuRow {
    // Reading a suspended GPU would wake it.
    if card.is_suspended() {
        return GpuRow::default();
    }
    let mut row = match card.driver.as_str() {
        "amdgpu" => amd::read(card, sysfs),
        _ => intel::read(card, sysfs),
    };
    // The file contains "16.0 GT/s PCIe".
    let speed = sysfs.text(&card.device.join("current_link_speed"));
    row.pcie_generation = speed.as_deref().and_then(generation);
    row.pcie_width = sysfs.number(&card.device.join("current_link_width"));
    row
}

fn generation(speed: &str) -> Option<u64> {
    let rate = speed.split_whitespace().next()?;
    let rates = ["2.5", "5.0", "8.0", "16.0", "32.0", "64.0"];
    let index = rates.iter().position(|known| *known == rate)?;
    u64::try_from(index + 1).ok()
}

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
mod visible;

use std::{collections::HashSet, path::Path};

use super::{
    GpuRow, Request,
    device::DeviceRow,
    reading::{Counters, Reading, Usage},
    visible::{Known, TargetGpus, Used},
};
use crate::{host::Host, support::clock::monotonic_ns};

pub(super) use self::card::cards;
use self::{card::Card, clients::Clients, sysfs::Sysfs, visible::Selection};

/// All cards of supported drivers.
pub(super) struct Drm {
    host: Host,
    counters: Counters,
    clients: Clients,
    visible: TargetGpus<Selection>,
    /// Cards with a row of constant facts.
    described: HashSet<String>,
    /// Cards that a process of the target has used.
    was_used: HashSet<String>,
}

impl Drm {
    pub(super) fn open(host: &Host, visible: TargetGpus<Selection>) -> Self {
        Self {
            host: host.clone(),
            counters: Counters::new(),
            clients: Clients::new(&host.procfs),
            visible,
            described: HashSet::new(),
            was_used: HashSet::new(),
        }
    }

    /// Reads all GPUs once, which may take long.
    pub(super) fn read(&mut self, request: &Request) -> Reading {
        let ts = request.tick.ts;
        let mut sysfs = Sysfs::default();
        let (mut gpus, mut devices) = (Vec::new(), Vec::new());
        self.counters.begin();
        // Cards can be added and removed.
        let cards = cards(&self.host);
        let pids = request.pids.as_deref();
        let processes = self.clients.read(pids, &cards);
        let used = cards.iter().filter(|card| is_used(card, &processes));
        self.was_used.extend(used.map(Card::id));
        let order = visible::Order::read(&self.host.sysfs, &cards);
        let numbers: Vec<u32> = cards.iter().map(|card| card.index).collect();
        let meaning = |known: &Known<Selection>| visible::cards(known, &cards, &order);
        let seen = self.visible.gpus(pids, &numbers, &Used::new(), meaning);
        let all = cards.iter().zip(seen);
        let all = all.filter(|(card, seen)| *seen || self.was_used.contains(&card.id()));
        for (card, _) in all {
            if !card.is_suspended() && self.described.insert(card.id()) {
                devices.push((card.key(ts, 0).into(), facts(card, &mut sysfs)));
            }
            let now = monotonic_ns();
            let mut row = read(card, &mut sysfs);
            if let Some(interval_ns) = self.counters.increase(&card.id(), now, &mut row) {
                gpus.push((card.key(ts, interval_ns), row));
            }
        }
        Reading {
            ts,
            read_at: monotonic_ns(),
            gpus,
            devices,
            processes,
            error: sysfs.error,
        }
    }
}

/// Whether processes have used an engine of a card. They can have opened it without: libraries open
/// all. What they draw is not restricted by variables, and says nothing about them.
fn is_used(card: &Card, processes: &[Usage]) -> bool {
    processes.iter().any(|usage| {
        let is_busy = usage.row.engines_ns.is_some_and(|time| time > 0);
        is_busy && usage.row.index == Some(card.index)
    })
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
    row.pcie_width = width(sysfs, &card.device.join("current_link_width"));
    row
}

fn facts(card: &Card, sysfs: &mut Sysfs) -> DeviceRow {
    let row = match card.driver.as_str() {
        "amdgpu" => amd::facts(card, sysfs),
        _ => intel::facts(card, sysfs),
    };
    let speed = sysfs.text(&card.device.join("max_link_speed"));
    DeviceRow {
        driver_version: card.driver_version.clone(),
        max_pcie_generation: speed.as_deref().and_then(generation),
        max_pcie_width: width(sysfs, &card.device.join("max_link_width")),
        ..row
    }
}

/// Number of lanes of a link; 0 and 255 are a link that is down or unknown.
fn width(sysfs: &mut Sysfs, file: &Path) -> Option<u64> {
    let lanes = sysfs.number(file)?;
    (1..=32).contains(&lanes).then_some(lanes)
}

fn generation(speed: &str) -> Option<u64> {
    let rate = speed.split_whitespace().next()?;
    let rates = ["2.5", "5.0", "8.0", "16.0", "32.0", "64.0"];
    let index = rates.iter().position(|known| *known == rate)?;
    u64::try_from(index + 1).ok()
}

#[cfg(test)]
mod tests {
    use super::{super::GpuProcessRow, *};

    #[test]
    fn an_open_file_is_no_use() {
        let directory = tempfile::TempDir::new().unwrap();
        let device = directory.path().join("sys/class/drm/card1/device");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("uevent"), "DRIVER=xe\n").unwrap();
        let path = |name| directory.path().join(name);
        let cards = cards(&Host::probe(path("proc"), path("sys"), None));
        let is_used = |index, engines_ns| {
            let row = GpuProcessRow {
                index: Some(index),
                engines_ns,
                ..GpuProcessRow::default()
            };
            let (pid, interval_ns) = (1, 1);
            is_used(
                &cards[0],
                &[Usage {
                    pid,
                    interval_ns,
                    row,
                }],
            )
        };
        let found = [(1, None), (1, Some(0)), (0, Some(1)), (1, Some(1))];
        let found = found.map(|(index, engines_ns)| is_used(index, engines_ns));
        assert_eq!(found, [false, false, false, true]);
    }
}

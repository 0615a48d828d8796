//! Clients of DRM drivers: processes with an open file of `/dev/dri`.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use super::{
    super::{GpuProcessRow, reading::Usage},
    card::Card,
    engines::Times,
    fdinfo::{self, Client, Engine},
};
use crate::{
    procfs::process_file::{SMALL_MAX, bounded},
    schema::Label,
    support::{clock::monotonic_ns, delta::Interval},
};

/// Identity of a client.
type Id = (String, Option<String>, u64);

/// Clients of the inspected processes.
pub(super) struct Clients {
    procfs: PathBuf,
    /// Engine counters of each client at the previous reading.
    before: HashMap<Id, BTreeMap<String, Engine>>,
    interval: Interval,
    /// Inspections of each process.
    known: HashMap<u32, Inspections>,
    reading: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Inspections {
    count: u8,
    /// Whether the process had clients at the last one.
    is_client: bool,
}

/// A process without clients is inspected at its first readings, then at every eighth: listing the
/// open files of all processes of a node takes longer than everything else.
const FIRST_READINGS: u8 = 3;
const EVERY: u32 = 8;

impl Clients {
    pub(super) fn new(procfs: &Path) -> Self {
        Self {
            procfs: procfs.to_owned(),
            before: HashMap::new(),
            interval: Interval::default(),
            known: HashMap::new(),
            reading: 0,
        }
    }

    /// Reads the clients of these processes, or of all.
    pub(super) fn read(&mut self, pids: Option<&[u32]>, cards: &[Card]) -> Vec<Usage> {
        let now = monotonic_ns();
        let interval_ns = self.interval.end(now);
        self.reading = self.reading.wrapping_add(1);
        let mut pids = pids.map_or_else(|| self.all(), <[u32]>::to_vec);
        // A client that several processes have open is attributed to the first one.
        pids.sort_unstable();
        self.known.retain(|pid, _| pids.binary_search(pid).is_ok());
        let mut before = std::mem::take(&mut self.before);
        let mut used = Vec::new();
        for pid in pids {
            let Some(found) = self.inspect(pid) else {
                continue;
            };
            let mut devices: BTreeMap<(String, Option<String>), (Times, GpuProcessRow)> =
                BTreeMap::new();
            for client in found {
                let id = (client.driver.clone(), client.pdev.clone(), client.id);
                if self.before.contains_key(&id) {
                    continue;
                }
                let device = (client.driver, client.pdev);
                let (times, row) = devices.entry(device).or_default();
                let earlier = before.remove(&id);
                times.add(earlier.as_ref(), &client.engines, interval_ns);
                add(&mut row.memory_used, client.device_memory);
                add(&mut row.system_memory_used, client.system_memory);
                let engines = highest(earlier.as_ref(), client.engines);
                self.before.insert(id, engines);
            }
            for ((driver, pdev), (times, mut row)) in devices {
                // The first reading sets the baselines.
                let Some(interval_ns) = interval_ns else {
                    continue;
                };
                times.fill(&mut row);
                let card = cards
                    .iter()
                    .find(|card| card.bdf.is_some() && card.bdf == pdev);
                row.index = card.map(|card| card.index);
                row.uuid = card.and_then(|card| card.uuid.clone()).map(Label::from);
                row.bdf = pdev.map(Label::from);
                row.driver = Some(driver.into());
                used.push(Usage {
                    pid,
                    interval_ns,
                    row,
                });
            }
        }
        used
    }

    fn all(&self) -> Vec<u32> {
        let entries = fs::read_dir(&self.procfs).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        names.collect()
    }

    /// Clients of a process, unless it is not due.
    fn inspect(&mut self, pid: u32) -> Option<Vec<Client>> {
        let before = self.known.get(&pid).copied().unwrap_or_default();
        let is_due = before.is_client
            || before.count < FIRST_READINGS
            || pid.wrapping_add(self.reading).is_multiple_of(EVERY);
        if !is_due {
            return None;
        }
        let clients = self.of(pid);
        let inspections = Inspections {
            count: before.count.saturating_add(1),
            is_client: !clients.is_empty(),
        };
        self.known.insert(pid, inspections);
        Some(clients)
    }

    /// The clients of a process.
    fn of(&self, pid: u32) -> Vec<Client> {
        let directory = self.procfs.join(pid.to_string());
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        for entry in fs::read_dir(directory.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let is_dri = fs::read_link(entry.path())
                .is_ok_and(|target| target.as_os_str().as_bytes().starts_with(b"/dev/dri/"));
            if !is_dri {
                continue;
            }
            let text = bounded(&directory.join("fdinfo").join(entry.file_name()), SMALL_MAX);
            let Some(client) = text.ok().and_then(|text| fdinfo::parse(&text.bytes)) else {
                continue;
            };
            if seen.insert((client.pdev.clone(), client.id)) {
                found.push(client);
            }
        }
        found
    }
}

fn add(sum: &mut Option<u64>, bytes: Option<u64>) {
    if let Some(bytes) = bytes {
        *sum = Some(sum.unwrap_or(0).saturating_add(bytes));
    }
}

/// The larger of both values of each counter, because a driver may report a smaller one for a
/// while.
fn highest(
    before: Option<&BTreeMap<String, Engine>>,
    mut now: BTreeMap<String, Engine>,
) -> BTreeMap<String, Engine> {
    for (name, engine) in &mut now {
        if let Some(before) = before.and_then(|before| before.get(name)) {
            engine.busy_ns = engine.busy_ns.max(before.busy_ns);
            engine.cycles = engine.cycles.max(before.cycles);
        }
    }
    now
}

//! Which processes are clients of a DRM driver: those with a file of `/dev/dri` open.

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
    support::clock::monotonic_ns,
};

/// A client among all.
type Id = (String, Option<String>, u64);

/// All clients of the processes that are looked at.
pub(super) struct Clients {
    procfs: PathBuf,
    /// What the engines had done for each at the reading before.
    before: HashMap<Id, BTreeMap<String, Engine>>,
    read_at: Option<u64>,
    /// How often a process was looked at, and whether it had clients the last time.
    known: HashMap<u32, Look>,
    reading: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Look {
    times: u8,
    client: bool,
}

/// A process without clients is looked at each time while it is young, then once in so many readings: going through
/// the open files of all processes of a node takes longer than everything else.
const SELDOM: u32 = 8;
const YOUNG: u8 = 3;

impl Clients {
    pub(super) fn new(procfs: &Path) -> Self {
        Self {
            procfs: procfs.to_owned(),
            before: HashMap::new(),
            read_at: None,
            known: HashMap::new(),
            reading: 0,
        }
    }

    /// Reads the clients of these processes, or of all.
    pub(super) fn read(&mut self, pids: Option<&[u32]>, cards: &[Card]) -> Vec<Usage> {
        let now = monotonic_ns();
        let interval_ns = self
            .read_at
            .replace(now)
            .map(|before| now.saturating_sub(before));
        self.reading = self.reading.wrapping_add(1);
        let mut pids = pids.map_or_else(|| self.all(), <[u32]>::to_vec);
        // Files of a client that several processes have open are of the first.
        pids.sort_unstable();
        self.known.retain(|pid, _| pids.binary_search(pid).is_ok());
        let mut before = std::mem::take(&mut self.before);
        let mut used = Vec::new();
        for pid in pids {
            let look = self.known.get(&pid).copied().unwrap_or_default();
            let due = look.client
                || look.times < YOUNG
                || pid.wrapping_add(self.reading).is_multiple_of(SELDOM);
            if !due {
                continue;
            }
            let found = self.of(pid);
            let look = Look {
                times: look.times.saturating_add(1),
                client: !found.is_empty(),
            };
            self.known.insert(pid, look);
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
                let engines = rising(earlier.as_ref(), client.engines);
                self.before.insert(id, engines);
            }
            for ((driver, pdev), (times, mut row)) in devices {
                // The first reading is the baseline.
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

    /// The clients of one process, each once.
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

/// What is remembered never falls.
fn rising(
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

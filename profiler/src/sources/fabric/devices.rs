//! All devices with their ports, and one reading of them.

use std::collections::{BTreeMap, btree_map::Entry};

use super::{
    super::file_limit,
    CounterRow, FabricRow,
    counters::{Kind, Reading},
    port::{Class, Port},
};
use crate::{
    clock::{Tick, monotonic_ns},
    host::Host,
    schema::{Label, TickKey},
};

/// Rows of one reading.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) ports: Vec<(TickKey, FabricRow)>,
    pub(super) counters: Vec<(TickKey, CounterRow)>,
    /// The first thing that failed.
    pub(super) error: Option<anyhow::Error>,
}

/// Those that are there.
pub(super) struct Devices {
    host: Host,
    by_name: BTreeMap<(Class, String), Device>,
    reading: Reading,
}

struct Device {
    name: Label,
    ports: Vec<Port>,
    /// Found when devices were looked for last.
    is_there: bool,
}

impl Devices {
    pub(super) fn new(host: &Host) -> Self {
        Self {
            host: host.clone(),
            by_name: BTreeMap::new(),
            reading: Reading::default(),
        }
    }

    /// Takes up devices that are new, and forgets those that have gone.
    fn find(&mut self) {
        let known = self.by_name.len();
        for device in self.by_name.values_mut() {
            device.is_there = false;
        }
        for class in Class::ALL {
            for name in class.devices(&self.host.sysfs) {
                let ports = || class.ports(&self.host.sysfs, &name);
                match self.by_name.entry((class, name.clone())) {
                    Entry::Vacant(place) => {
                        place.insert(Device {
                            ports: ports(),
                            name: Label::from(name),
                            is_there: true,
                        });
                    }
                    Entry::Occupied(mut place) => {
                        let device = place.get_mut();
                        if device.ports.is_empty() {
                            device.ports = ports();
                        }
                        device.is_there = true;
                    }
                }
            }
        }
        self.by_name.retain(|_, device| device.is_there);
        if self.by_name.len() > known {
            let ports = self.by_name.values().flat_map(|device| &device.ports);
            if ports.map(Port::files).sum::<usize>() > FEW_FILES {
                file_limit::raise();
            }
        }
    }

    /// Reads all ports once, for a tick.
    pub(super) fn read(&mut self, tick: &Tick) -> Answer {
        let mut answer = Answer::default();
        self.find();
        for device in self.by_name.values_mut() {
            self.reading.gone = false;
            for port in &mut device.ports {
                let now = monotonic_ns();
                for folder in &mut port.folders {
                    folder.read(&mut self.reading);
                }
                let link = port.link.as_mut().map(|link| link.read(&mut self.reading));
                let Some(read_at) = port.read_at.replace(now) else {
                    continue;
                };
                let key = || TickKey {
                    ts: tick.ts,
                    interval_ns: now.saturating_sub(read_at),
                };
                if let Some((state, rate)) = link {
                    let row = row(&device.name, port, state, rate);
                    answer.ports.push((key(), row));
                }
                further(&device.name, port, |row| answer.counters.push((key(), row)));
            }
            if self.reading.gone {
                // What has its name at the next reading is another.
                device.ports.clear();
            }
        }
        answer.error = self.reading.error.take();
        answer
    }
}

/// As many as there is room for beside all else.
const FEW_FILES: usize = 256;

fn row(device: &Label, port: &Port, state: Option<Label>, rate: Option<u64>) -> FabricRow {
    let [
        tx_bytes,
        rx_bytes,
        tx_packets,
        rx_packets,
        xmit_wait,
        errors,
        discards,
    ] = port.increases();
    FabricRow {
        device: device.clone(),
        port: port.number,
        link_layer: port.link.as_ref().and_then(|link| link.layer.clone()),
        state,
        rate,
        tx_bytes,
        rx_bytes,
        tx_packets,
        rx_packets,
        xmit_wait,
        errors,
        discards,
    }
}

/// The counters that are no column. Those of drivers are all here, so that each is found by its name.
fn further(device: &Label, port: &Port, mut each: impl FnMut(CounterRow)) {
    for (index, folder) in port.folders.iter().enumerate() {
        for (place, counter) in folder.counters.iter().enumerate() {
            if folder.kind == Kind::Counters && port.is_column(index, place) {
                continue;
            }
            each(CounterRow {
                device: device.clone(),
                port: port.number,
                folder: Label::Static(folder.kind.name()),
                counter: counter.name.clone(),
                increase: counter.increase,
            });
        }
    }
}

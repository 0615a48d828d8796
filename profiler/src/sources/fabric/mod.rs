//! `fabric`: ports of InfiniBand, RoCE, Omni-Path and Slingshot, which the kernel's network interfaces do not show.

mod counters;
mod port;

use std::collections::{BTreeMap, btree_map::Entry};

use anyhow::Result;

use super::{Context, Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::Host,
    schema::{Batch, Label, Table, TableBuilder, TickKey},
    support::{clock::monotonic_ns, file_limit},
};

use self::{
    counters::{Kind, Reading},
    port::{Class, Port},
};

columns! {
    /// One port over one interval.
    pub struct FabricRow {
        device: Label = Label("", "Name of the device, as in /sys/class/infiniband or /sys/class/cxi"),
        port: Option<u32> = Label("", "Number of the port; null for Slingshot, where a device is a port"),
        link_layer: Option<Label> = Label("", "InfiniBand, Ethernet (RoCE, iWARP), OmniPath, Slingshot; Unspecified for others, such as EFA"),
        state: Option<Label> = Label("", "State of the link as the driver calls it: ACTIVE, DOWN, INIT, ARMED …; of Slingshot up, down, starting …"),
        rate: Option<u64> = Gauge("bit/s", "What the link can carry in each direction, all lanes together"),
        tx_bytes: Option<u64> = Counter("bytes", "Sent: 4 × port_xmit_data (Omni-Path: 8 ×), tx_bytes or hni_sts_tx_ok_octets; null where the driver counts none (soft RoCE), and when the counter was reset or is full"),
        rx_bytes: Option<u64> = Counter("bytes", "Received: 4 × port_rcv_data (Omni-Path: 8 ×), rx_bytes or hni_sts_rx_ok_octets"),
        tx_packets: Option<u64> = Counter("1", "Packets sent: port_xmit_packets, tx_pkts, sent_pkts or the sum of hni_pkts_sent_by_tc_N"),
        rx_packets: Option<u64> = Counter("1", "Packets received: port_rcv_packets, rx_pkts, rcvd_pkts or the sum of hni_pkts_recv_by_tc_N"),
        xmit_wait: Option<u64> = Counter("1", "port_xmit_wait: ticks of the device in which it had data and could not send, for want of credits or of its turn"),
        errors: Option<u64> = Counter("1", "port_rcv_errors: packets received with an error"),
        discards: Option<u64> = Counter("1", "Packets not sent because the port was down or congested: port_xmit_discards; of Slingshot the sum of hni_discard_cntr_N"),
    }
}

columns! {
    /// One further counter over one interval.
    pub struct CounterRow {
        device: Label = Label("", "Name of the device, as in table fabric"),
        port: Option<u32> = Label("", "Number of the port; null for the device as a whole"),
        folder: Label = Label("", "Where sysfs has it: counters, hw_counters (which the kernel reads anew after their lifespan, mostly 10 ms), telemetry"),
        counter: Label = Label("", "Its name there; what it counts is the driver's word"),
        increase: Option<u64> = Counter("1", "What was added, in the counter's own unit; null after a reset, when it is full, and when it could not be read"),
    }
}

static TABLE: Table = Table::new::<TickKey, FabricRow>(
    "fabric",
    "Each port of a high-speed network: one row per tick and port; the first a tick after it appears",
);

static COUNTERS: Table = Table::new::<TickKey, CounterRow>(
    "fabric_counter",
    "The counters of such ports and devices that are no column of table fabric: one row per tick and counter",
);

/// The entry of the registry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "fabric",
    help: "ports of InfiniBand, RoCE, Omni-Path and Slingshot",
    tables: &[&TABLE, &COUNTERS],
    probe,
    tasks: false,
    procfs: false,
    instrumentation: None,
    default: true,
    open: |context: &Context<'_>| Ok(Box::new(Fabric::open(context.host))),
};

fn probe(host: &Host) -> Support {
    let mut classes = Class::ALL.into_iter();
    if classes.any(|class| !class.devices(&host.sysfs).is_empty()) {
        return Support::Works;
    }
    Support::No {
        why: "no port of a fabric (nothing in /sys/class/infiniband and /sys/class/cxi)".to_owned(),
        remedy: "load the adapter's driver: modprobe mlx5_ib (irdma, efa, hfi1, cxi_ss1 …)"
            .to_owned(),
    }
}

struct Fabric {
    host: Host,
    devices: BTreeMap<(Class, String), Device>,
    reading: Reading,
    rows: TableBuilder<TickKey, FabricRow>,
    counters: TableBuilder<TickKey, CounterRow>,
}

struct Device {
    name: Label,
    ports: Vec<Port>,
    /// Found when devices were looked for last.
    is_there: bool,
}

impl Fabric {
    fn open(host: &Host) -> Self {
        Self {
            host: host.clone(),
            devices: BTreeMap::new(),
            reading: Reading::default(),
            rows: TableBuilder::new(&TABLE),
            counters: TableBuilder::new(&COUNTERS),
        }
    }

    /// Takes up devices that are new, and forgets those that have gone.
    fn find(&mut self) {
        let known = self.devices.len();
        for device in self.devices.values_mut() {
            device.is_there = false;
        }
        for class in Class::ALL {
            for name in class.devices(&self.host.sysfs) {
                let ports = || class.ports(&self.host.sysfs, &name);
                match self.devices.entry((class, name.clone())) {
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
        self.devices.retain(|_, device| device.is_there);
        if self.devices.len() > known {
            let ports = self.devices.values().flat_map(|device| &device.ports);
            if ports.map(Port::files).sum::<usize>() > FEW_FILES {
                file_limit::raise();
            }
        }
    }
}

/// As many as there is room for beside all else.
const FEW_FILES: usize = 256;

impl Source for Fabric {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        self.find();
        for device in self.devices.values_mut() {
            self.reading.gone = false;
            for port in &mut device.ports {
                let now = monotonic_ns();
                for directory in &mut port.directories {
                    directory.read(&mut self.reading);
                }
                let link = port.link.as_mut().map(|link| link.read(&mut self.reading));
                let Some(read_at) = port.read_at.replace(now) else {
                    continue;
                };
                let key = || TickKey {
                    ts: at.tick.ts,
                    interval_ns: now.saturating_sub(read_at),
                };
                if let Some((state, rate)) = link {
                    self.rows.push(key(), row(&device.name, port, state, rate));
                }
                further(&device.name, port, |row| self.counters.push(key(), row));
            }
            if self.reading.gone {
                // What has its name at the next reading is another.
                device.ports.clear();
            }
        }
        self.rows.finish(out);
        self.counters.finish(out);
        self.reading.error.take().map_or(Ok(()), Err)
    }
}

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
    for (index, directory) in port.directories.iter().enumerate() {
        for (place, counter) in directory.counters.iter().enumerate() {
            if directory.kind == Kind::Counters && port.is_column(index, place) {
                continue;
            }
            each(CounterRow {
                device: device.clone(),
                port: port.number,
                folder: Label::Static(directory.kind.name()),
                counter: counter.name.clone(),
                increase: counter.increase,
            });
        }
    }
}

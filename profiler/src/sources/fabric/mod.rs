//! `fabric`: ports of InfiniBand, RoCE, Omni-Path and Slingshot, whose traffic bypasses the network
//! interfaces of the kernel.

mod counters;
mod port;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    path::Path,
};

use anyhow::Result;

use super::{Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::{Host, has_pci_device},
    schema::{Batch, Label, TableBuilder, TickKey, TypedTable},
    support::clock::monotonic_ns,
};

use self::{
    counters::Reading,
    port::{Class, Port},
};

columns! {
    /// One port over one interval.
    pub struct FabricRow {
        device: Label = Label("", "Name of the device, as in /sys/class/infiniband or /sys/class/cxi"),
        port: Option<u32> = Label("", "Number of the port; null for Slingshot, whose devices have one port"),
        link_layer: Option<Label> = Label("", "Link layer: InfiniBand, Ethernet (RoCE, iWARP), OmniPath, Slingshot; Unspecified for others, such as EFA"),
        state: Option<Label> = Gauge("", "State of the link, as named by the driver: ACTIVE, DOWN, INIT, ARMED …; for Slingshot up, down, starting …"),
        rate_bits_per_s: Option<u64> = Gauge("bit/s", "Capacity of the link in each direction, over all lanes"),
        tx_bytes: Option<u64> = Counter("bytes", "Bytes sent: 4 × port_xmit_data (Omni-Path: 8 ×), tx_bytes or hni_sts_tx_ok_octets; null if the driver has no such counter (soft RoCE), after a reset, and while the counter is at its maximum"),
        rx_bytes: Option<u64> = Counter("bytes", "Bytes received: 4 × port_rcv_data (Omni-Path: 8 ×), rx_bytes or hni_sts_rx_ok_octets"),
        tx_packets: Option<u64> = Counter("1", "Packets sent: port_xmit_packets, tx_pkts, sent_pkts or the sum of hni_pkts_sent_by_tc_N"),
        rx_packets: Option<u64> = Counter("1", "Packets received: port_rcv_packets, rx_pkts, rcvd_pkts or the sum of hni_pkts_recv_by_tc_N"),
        xmit_wait: Option<u64> = Counter("1", "Device clock ticks in which data waited to be sent, for lack of credits or because of arbitration: port_xmit_wait"),
        errors: Option<u64> = Counter("1", "Packets received with an error: port_rcv_errors"),
        discards: Option<u64> = Counter("1", "Packets not sent because the port was down or congested: port_xmit_discards or the sum of hni_discard_cntr_N"),
    }
}

columns! {
    /// One other counter over one interval.
    pub struct CounterRow {
        device: Label = Label("", "Name of the device, as in table fabric"),
        port: Option<u32> = Label("", "Number of the port; null for counters of the device"),
        group: Label = Label("", "Directory in sysfs: counters, hw_counters (cached by the kernel for their lifespan, usually 10 ms), telemetry"),
        counter: Label = Label("", "Name of the counter in this directory, defined by the driver"),
        value: Option<u64> = Counter("1", "Increase in the unit of the counter; null after a reset, while the counter is at its maximum, and if it could not be read"),
    }
}

pub static TABLE: TypedTable<TickKey, FabricRow> = TypedTable::new(
    "fabric",
    "One row per sample and port of a high-speed network, from the second sample after it appears",
);

static COUNTERS: TypedTable<TickKey, CounterRow> = TypedTable::new(
    "fabric_counter",
    "One row per sample and counter of such a port or device that is not a column of table fabric",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "fabric",
    help: "ports of InfiniBand, RoCE, Omni-Path and Slingshot",
    tables: &[TABLE.untyped(), COUNTERS.untyped()],
    probe: Some(probe),
    has_hardware,
    open: |context| Ok(Box::new(Fabric::open(context.host))),
    ..SourceSpec::DEFAULT
};

fn has_hardware(host: &Host) -> bool {
    let mut classes = Class::ALL.into_iter();
    classes.any(|class| !class.devices(&host.sysfs).is_empty())
}

fn probe(host: &Host) -> Support {
    if has_hardware(host) {
        return Support::Ok;
    }
    let (what, remedy) = if has_adapter(&host.sysfs) {
        let remedy =
            "load the driver of the adapter: modprobe mlx5_ib (irdma, efa, hfi1, cxi_ss1 …)";
        ("no driver of the fabric adapter is loaded", remedy)
    } else {
        ("no fabric adapter", "no action needed without one")
    };
    Support::Unavailable {
        why: format!("{what} (/sys/class/infiniband and /sys/class/cxi are empty)"),
        remedy: remedy.to_owned(),
    }
}

/// Whether the machine has a controller of InfiniBand or of another fabric, or an adapter of a vendor
/// whose adapters also have the class of Ethernet: Mellanox, Cray.
fn has_adapter(sysfs: &Path) -> bool {
    has_pci_device(sysfs, |vendor, class| {
        let is_fabric = ["0x0207", "0x0208"].iter().any(|of| class.starts_with(of));
        is_fabric || class.starts_with("0x02") && ["0x15b3", "0x17db"].contains(&vendor)
    })
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
    /// Whether the last search found it.
    is_present: bool,
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

    /// Finds new devices, and forgets removed ones.
    fn find(&mut self) {
        for device in self.devices.values_mut() {
            device.is_present = false;
        }
        for class in Class::ALL {
            for name in class.devices(&self.host.sysfs) {
                let ports = || class.ports(&self.host.sysfs, &name);
                match self.devices.entry((class, name.clone())) {
                    Entry::Vacant(entry) => {
                        entry.insert(Device {
                            ports: ports(),
                            name: Label::from(name),
                            is_present: true,
                        });
                    }
                    Entry::Occupied(mut entry) => {
                        let device = entry.get_mut();
                        if device.ports.is_empty() {
                            device.ports = ports();
                        }
                        device.is_present = true;
                    }
                }
            }
        }
        self.devices.retain(|_, device| device.is_present);
    }
}

impl Source for Fabric {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        self.find();
        for device in self.devices.values_mut() {
            self.reading.gone = false;
            for port in &mut device.ports {
                let now = monotonic_ns();
                for directory in &mut port.directories {
                    directory.read(&mut self.reading);
                }
                let link = port.link.as_mut().map(|link| link.read(&mut self.reading));
                let Some(interval_ns) = port.interval.end(now) else {
                    continue;
                };
                let key = || ctx.key(interval_ns);
                if let Some((state, rate)) = link {
                    self.rows.push(key(), row(&device.name, port, state, rate));
                }
                for row in counter_rows(&device.name, port) {
                    self.counters.push(key(), row);
                }
            }
            if self.reading.gone {
                // A device with this name at the next sample is another one.
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
        rate_bits_per_s: rate,
        tx_bytes,
        rx_bytes,
        tx_packets,
        rx_packets,
        xmit_wait,
        errors,
        discards,
    }
}

/// Rows of the counters that are not columns. Those of drivers are all included, so that each can
/// be found by its name.
fn counter_rows(device: &Label, port: &Port) -> impl Iterator<Item = CounterRow> {
    port.other_counters().map(|(kind, counter)| CounterRow {
        device: device.clone(),
        port: port.number,
        group: Label::Static(kind.name()),
        counter: counter.name.clone(),
        value: counter.increase,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn adapters_without_a_driver_are_found_by_their_class_or_vendor() {
        for (vendor, class, expected) in [
            ("0x15b3", "0x020700", true),
            ("0x15b3", "0x020000", true),
            ("0x8086", "0x020800", true),
            ("0x17db", "0x020000", true),
            ("0x8086", "0x020000", false),
            ("0x15b3", "0x010802", false),
        ] {
            let sysfs = tempfile::TempDir::new().expect("a directory");
            let device = sysfs.path().join("bus/pci/devices/0000:01:00.0");
            assert!(!has_adapter(sysfs.path()));
            fs::create_dir_all(&device).expect("made");
            fs::write(device.join("vendor"), format!("{vendor}\n")).expect("written");
            fs::write(device.join("class"), format!("{class}\n")).expect("written");
            assert_eq!(has_adapter(sysfs.path()), expected, "{vendor} {class}");
        }
    }
}

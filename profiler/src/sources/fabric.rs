//! `fabric`: ports of InfiniBand, RoCE, Omni-Path and Slingshot, which the kernel's network interfaces do not show.

use std::time::Duration;

use anyhow::Result;

use super::{Context, Sample, Source, SourceSpec, Support, beside::Beside};
use crate::{
    clock::Tick,
    columns,
    host::Host,
    schema::{Batch, Label, Table, TableBuilder, TickKey},
};

mod counters;
mod devices;
mod port;

use self::{
    devices::{Answer, Devices},
    port::Class,
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
    "Each port of a high-speed network: one row per tick and port, the first a tick after it appears; of adapters that take long to answer, a tick later",
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
    feature: None,
    default: true,
    open: |context: &Context<'_>| Ok(Box::new(Fabric::open(context.host)?)),
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
    beside: Beside<Tick, Answer>,
    rows: TableBuilder<TickKey, FabricRow>,
    counters: TableBuilder<TickKey, CounterRow>,
}

/// How long a tick waits: counters that the driver keeps are read in microseconds; some firmware takes a millisecond for
/// each port.
const PATIENCE: Duration = Duration::from_millis(2);
/// How long the end of a run waits.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

impl Fabric {
    fn open(host: &Host) -> Result<Self> {
        let host = host.clone();
        let reading = move || {
            let mut devices = Devices::new(&host);
            move |tick: Tick| devices.read(&tick)
        };
        Ok(Self {
            beside: Beside::start("fabric", reading)?,
            rows: TableBuilder::new(&TABLE),
            counters: TableBuilder::new(&COUNTERS),
        })
    }

    /// The rows of the reading that is under way, if it ends in time.
    fn take(&mut self, patience: Duration) -> Result<()> {
        let Some(answer) = self.beside.take(patience) else {
            return Ok(());
        };
        for (key, row) in answer.ports {
            self.rows.push(key, row);
        }
        for (key, row) in answer.counters {
            self.counters.push(key, row);
        }
        answer.error.map_or(Ok(()), Err)
    }
}

impl Source for Fabric {
    fn sample(&mut self, at: &Sample<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let (before, now) = if at.last {
            (LAST_PATIENCE, LAST_PATIENCE)
        } else {
            (Duration::ZERO, PATIENCE)
        };
        let result = self.take(before);
        let asked = self.beside.ask(at.tick);
        let result = result.and(asked).and(self.take(now));
        self.rows.finish(out);
        self.counters.finish(out);
        result
    }
}

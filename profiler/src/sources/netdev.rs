//! `netdev`: each network interface, from `/proc/net/dev`.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::{Context, Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::{self, Host},
    procfs::file::{KernelFile, lines, number, words},
    schema::{Batch, Label, Table, TableBuilder, TickKey},
    support::{
        clock::monotonic_ns,
        device_counters::{Devices, Width},
    },
};

columns! {
    /// One network interface over one interval.
    pub struct NetdevRow {
        device: Label = Label("", "Name of the interface"),
        kind: Label = Label("", "loopback; physical: with a device of its own; virtual: bridges, bonds, VLANs, tunnels, whose bytes may be those of others too"),
        rx_bytes: Option<u64> = Counter("bytes", "Received, with the headers that the driver counts: Ethernet's on most, none on loopback"),
        rx_packets: Option<u64> = Counter("1", "Packets received"),
        rx_errors: Option<u64> = Counter("1", "Received, but damaged; psutil's errin"),
        rx_dropped: Option<u64> = Counter("1", "Received, but not passed on for lack of room; psutil's dropin"),
        tx_bytes: Option<u64> = Counter("bytes", "Sent, with the headers that the driver counts"),
        tx_packets: Option<u64> = Counter("1", "Packets sent"),
        tx_errors: Option<u64> = Counter("1", "Not sent because of an error; psutil's errout"),
        tx_dropped: Option<u64> = Counter("1", "Not sent for lack of room; psutil's dropout"),
        rx_fifo: Option<u64> = Counter("1", "Receive queue overruns of the device"),
        tx_fifo: Option<u64> = Counter("1", "Send queue underruns of the device"),
        collisions: Option<u64> = Counter("1", "Collisions of packets sent"),
        carrier: Option<u64> = Counter("1", "Packets not sent for loss of the carrier"),
        multicast: Option<u64> = Counter("1", "Multicast packets received"),
    }
}

static TABLE: Table = Table::new::<TickKey, NetdevRow>(
    "netdev",
    "Each interface of the profiler's network namespace: one row per tick and interface; the first a tick after it appears",
);

/// The entry of the registry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "netdev",
    help: "bytes, packets, errors and drops of each network interface",
    tables: &[&TABLE],
    probe,
    tasks: false,
    procfs: false,
    instrumentation: None,
    default: true,
    open: |context: &Context<'_>| Ok(Box::new(Interfaces::open(context.host))),
};

fn probe(host: &Host) -> Support {
    match std::fs::read(host.procfs.join("net/dev")) {
        Ok(_) => Support::Works,
        Err(error) => Support::No {
            why: format!("{}: {error}", host.procfs.join("net/dev").display()),
            remedy: "a kernel with CONFIG_NET and CONFIG_PROC_FS".to_owned(),
        },
    }
}

struct Interfaces {
    file: KernelFile,
    host: Host,
    devices: Devices<Facts, 16>,
    rows: TableBuilder<TickKey, NetdevRow>,
}

/// What does not change.
struct Facts {
    name: Label,
    kind: &'static str,
}

impl Interfaces {
    fn open(host: &Host) -> Self {
        Self {
            file: KernelFile::new(host.procfs.join("net/dev")),
            host: host.clone(),
            devices: Devices::new([Width::Long; 16]),
            rows: TableBuilder::new(&TABLE),
        }
    }
}

/// Name and fields of a line: `name: fields…`. The two lines of headings have none.
fn parse(line: &[u8]) -> Option<(&[u8], [Option<u64>; 16])> {
    // Names may have colons (aliases), fields not.
    let colon = line.iter().rposition(|&byte| byte == b':')?;
    let (name, fields) = (line[..colon].trim_ascii(), &line[colon + 1..]);
    let mut words = words(fields);
    let mut values = [None; 16];
    for value in &mut values {
        *value = words.next().and_then(number);
    }
    (!name.is_empty()).then_some((name, values))
}

/// `ARPHRD_LOOPBACK` of include/uapi/linux/if_arp.h.
const LOOPBACK: u32 = 772;

fn kind(sysfs: &Path, name: &str) -> &'static str {
    let directory = sysfs.join("class/net").join(name);
    if host::number(&directory.join("type")) == Some(LOOPBACK) {
        "loopback"
    } else if directory.join("device").exists() {
        "physical"
    } else {
        "virtual"
    }
}

impl Source for Interfaces {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let now = monotonic_ns();
        let path = self.file.path().to_owned();
        let text = self
            .file
            .read()
            .with_context(|| path.display().to_string())?;
        self.devices.begin();
        for (name, values) in lines(text).filter_map(parse) {
            let facts = || {
                let name = String::from_utf8_lossy(name);
                Facts {
                    kind: kind(&self.host.sysfs, &name),
                    name: Label::from(name.into_owned()),
                }
            };
            let Some(increase) = self.devices.take(name, now, values, facts) else {
                continue;
            };
            let [
                rx_bytes,
                rx_packets,
                rx_errors,
                rx_dropped,
                rx_fifo,
                _frame,
                _rx_compressed,
                multicast,
                tx_bytes,
                tx_packets,
                tx_errors,
                tx_dropped,
                tx_fifo,
                collisions,
                carrier,
                _tx_compressed,
            ] = increase.counts;
            self.rows.push(
                TickKey {
                    ts: at.tick.ts,
                    interval_ns: increase.interval_ns,
                },
                NetdevRow {
                    device: increase.facts.name.clone(),
                    kind: Label::Static(increase.facts.kind),
                    rx_bytes,
                    rx_packets,
                    rx_errors,
                    rx_dropped,
                    tx_bytes,
                    tx_packets,
                    tx_errors,
                    tx_dropped,
                    rx_fifo,
                    tx_fifo,
                    collisions,
                    carrier,
                    multicast,
                },
            );
        }
        self.rows.finish(out);
        Ok(())
    }
}

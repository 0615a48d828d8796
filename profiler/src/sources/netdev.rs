//! `netdev`: traffic of each network interface, from `/proc/net/dev`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::{self, Host},
    procfs::{
        device_file::DeviceFile,
        file::{number, words},
    },
    schema::{Batch, Label, TableBuilder, TickKey, TypedTable},
    support::{delta::Range, device_counters::Increase},
};

columns! {
    /// One network interface over one interval.
    pub struct NetdevRow {
        device: Label = Label("", "Name of the interface"),
        kind: Label = Label("", "loopback; physical (with a device); virtual (bridges, bonds, VLANs, tunnels, whose bytes may also be those of another interface)"),
        rx_bytes: Option<u64> = Counter("bytes", "Bytes received, with the headers that the driver counts: those of Ethernet in most drivers, none on loopback"),
        rx_packets: Option<u64> = Counter("1", "Packets received"),
        rx_errors: Option<u64> = Counter("1", "Damaged packets received; errin in psutil"),
        rx_dropped: Option<u64> = Counter("1", "Received packets dropped for lack of buffers; dropin in psutil"),
        tx_bytes: Option<u64> = Counter("bytes", "Bytes sent, with the headers that the driver counts"),
        tx_packets: Option<u64> = Counter("1", "Packets sent"),
        tx_errors: Option<u64> = Counter("1", "Packets not sent because of an error; errout in psutil"),
        tx_dropped: Option<u64> = Counter("1", "Packets not sent for lack of buffers; dropout in psutil"),
        rx_fifo: Option<u64> = Counter("1", "Receive queue overruns of the device"),
        tx_fifo: Option<u64> = Counter("1", "Send queue underruns of the device"),
        collisions: Option<u64> = Counter("1", "Collisions of sent packets"),
        carrier: Option<u64> = Counter("1", "Packets not sent because the carrier was lost"),
        multicast: Option<u64> = Counter("1", "Multicast packets received"),
    }
}

/// Value of column `kind` for interfaces with a device.
pub const PHYSICAL: &str = "physical";

pub static TABLE: TypedTable<TickKey, NetdevRow> = TypedTable::new(
    "netdev",
    "One row per sample and interface of the profiler's network namespace, from the second sample after it appears",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "netdev",
    help: "bytes, packets, errors and drops of each network interface",
    tables: &[TABLE.untyped()],
    probe: Some(|host| {
        Support::of_file(&file(host), "a kernel with CONFIG_NET and CONFIG_PROC_FS")
    }),
    open: |context| {
        Ok(Box::new(Interfaces {
            file: DeviceFile::new(file(context.host), [Range::Unlimited; VALUES], parse),
            sysfs: context.host.sysfs.clone(),
            rows: TableBuilder::new(&TABLE),
        }))
    },
    ..SourceSpec::DEFAULT
};

fn file(host: &Host) -> PathBuf {
    host.procfs.join("net/dev")
}

/// Number of values after the name.
pub(super) const VALUES: usize = 16;

/// Parses a line `name: values…`. The two heading lines have no colon.
pub(super) fn parse(line: &[u8]) -> Option<(&[u8], [Option<u64>; VALUES])> {
    // Names may contain colons (aliases), values do not.
    let colon = line.iter().rposition(|&byte| byte == b':')?;
    let (name, values) = (line[..colon].trim_ascii(), &line[colon + 1..]);
    let mut words = words(values);
    let values = std::array::from_fn(|_| words.next().and_then(number));
    (!name.is_empty()).then_some((name, values))
}

struct Interfaces {
    file: DeviceFile<Facts, VALUES>,
    sysfs: PathBuf,
    rows: TableBuilder<TickKey, NetdevRow>,
}

/// Constant facts about an interface.
pub(super) struct Facts {
    name: Label,
    kind: &'static str,
}

impl Facts {
    pub(super) fn read(sysfs: &Path, name: &str) -> Self {
        Self {
            kind: kind(sysfs, name),
            name: name.to_owned().into(),
        }
    }
}

/// `ARPHRD_LOOPBACK` of include/uapi/linux/if_arp.h.
const LOOPBACK: u32 = 772;

fn kind(sysfs: &Path, name: &str) -> &'static str {
    let directory = sysfs.join("class/net").join(name);
    if host::number(&directory.join("type")) == Some(LOOPBACK) {
        "loopback"
    } else if directory.join("device").exists() {
        PHYSICAL
    } else {
        "virtual"
    }
}

impl Source for Interfaces {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let rows = &mut self.rows;
        self.file.read(
            |name| Facts::read(&self.sysfs, name),
            |increase| rows.push(ctx.key(increase.interval_ns), row(&increase)),
        )?;
        rows.finish(out);
        Ok(())
    }
}

pub(super) fn row(increase: &Increase<'_, Facts, VALUES>) -> NetdevRow {
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
    }
}

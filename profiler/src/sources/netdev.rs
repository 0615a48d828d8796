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
        kind: Label = Label("", "loopback; physical (with a device); container (leads out of a network namespace other than the node's: veth and others that are not stacked on another interface); virtual (bridges, bonds, VLANs, tunnels, a device below another one, whose bytes may also be those of another interface). Sum physical and container for the traffic of the node"),
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
const PHYSICAL: &str = "physical";
/// Value of column `kind` for interfaces that lead out of a container.
const CONTAINER: &str = "container";
/// Values of column `kind` for the interfaces whose sum is the traffic of the node.
pub const EXTERNAL: [&str; 2] = [PHYSICAL, CONTAINER];
/// Value of column `kind` for interfaces within the network namespace.
pub const LOOPBACK: &str = "loopback";
/// Value of column `kind` for interfaces whose traffic other interfaces may also have.
pub const VIRTUAL: &str = "virtual";

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
            namespace: Namespace::of(context.host),
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
    namespace: Namespace,
    rows: TableBuilder<TickKey, NetdevRow>,
}

/// Constant facts about an interface.
pub(super) struct Facts {
    name: Label,
    kind: &'static str,
}

/// The network namespace of the profiler.
pub(super) struct Namespace {
    /// Directory of sysfs with an entry per interface.
    class: PathBuf,
    /// Whether it is the node's, and not that of a container.
    is_initial: bool,
}

/// `ARPHRD_LOOPBACK` of include/uapi/linux/if_arp.h.
const TYPE_LOOPBACK: u32 = 772;

impl Namespace {
    pub(super) fn of(host: &Host) -> Self {
        // A setting of the whole kernel, which is not visible in other namespaces.
        let setting = host.procfs.join("sys/net/core/netdev_max_backlog");
        Self {
            class: host.sysfs.join("class/net"),
            is_initial: setting.exists(),
        }
    }

    pub(super) fn facts(&self, name: &str) -> Facts {
        Facts {
            kind: self.kind(name),
            name: name.to_owned().into(),
        }
    }

    fn kind(&self, name: &str) -> &'static str {
        let interface = self.class.join(name);
        if host::number(&interface.join("type")) == Some(TYPE_LOOPBACK) {
            LOOPBACK
        } else if self.has_device(name) {
            // A virtual function below the synthetic interface of Hyper-V, or below a failover
            // interface, which counts the packets of both.
            let mut above = linked(&interface, "upper_").into_iter();
            if above.any(|above| self.has_device(&above)) {
                VIRTUAL
            } else {
                PHYSICAL
            }
        } else if self.is_initial
            || !linked(&interface, "lower_").is_empty()
            || interface.join("brport").exists()
        {
            VIRTUAL
        } else {
            CONTAINER
        }
    }

    fn has_device(&self, name: &str) -> bool {
        self.class.join(name).join("device").exists()
    }
}

/// Names of the interfaces above or below one.
fn linked(interface: &Path, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(interface).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter_map(|name| name.strip_prefix(prefix).map(str::to_owned))
        .collect()
}

impl Source for Interfaces {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let rows = &mut self.rows;
        self.file.read(
            |name| self.namespace.facts(name),
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

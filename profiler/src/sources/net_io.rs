//! `net_io`: bytes and calls on sockets.

use anyhow::Result;
use profiler_ebpf::flows::{
    kind,
    net::{family, protocol, scope},
};

use super::{
    Sample, Source, SourceSpec, feature_support, flow_key,
    latency::{self, Latencies},
};
use crate::{
    bpf::{Feature, Hook, Way},
    columns,
    schema::{Batch, Label, OwnerKey, Table, TableBuilder},
};

columns! {
    /// What a process sent and received.
    pub struct NetIoRow {
        protocol: Label = Label("", "tcp (and multipath TCP), udp, unix"),
        family: Option<Label> = Label("", "inet (also IPv4 through an IPv6 socket) or inet6; null for unix"),
        scope: Option<Label> = Label("", "loopback: the other end is on this host and in the same network namespace; or remote"),
        tx_bytes: u64 = Counter("bytes", "Bytes that send calls returned"),
        rx_bytes: u64 = Counter("bytes", "Bytes that receive calls returned, without MSG_PEEK"),
        tx_calls: u64 = Counter("1", "Send calls without error"),
        rx_calls: u64 = Counter("1", "Receive calls without error, the one that tells the end of the stream included"),
    }
}

static TABLE: Table = Table::new::<OwnerKey, NetIoRow>(
    "net_io",
    "One row per tick, process, protocol, family and scope, where anything happened",
);

static FEATURE: Feature = Feature {
    source: "net_io",
    maps: &["NET_IO", "LATENCY"],
    ways: &[Way {
        name: "sockets",
        hooks: &[
            Hook::tracepoint("sock_send_length", "sock_send_length"),
            Hook::tracepoint("sock_recv_length", "sock_recv_length"),
        ],
        optional: &[],
        without: "",
        on_request: false,
    }],
};

/// Registry entry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "net_io",
    help: "bytes and calls on TCP, UDP and unix sockets, by process",
    tables: &[&TABLE, &latency::TABLE],
    probe: |host| feature_support(host, &FEATURE),
    tasks: true,
    procfs: false,
    feature: Some(&FEATURE),
    default: true,
    open: |_| {
        Ok(Box::new(NetIo {
            rows: TableBuilder::new(&TABLE),
            latencies: Latencies::new(&[(kind::TCP_CONNECT, "tcp_connect")]),
        }))
    },
};

struct NetIo {
    rows: TableBuilder<OwnerKey, NetIoRow>,
    latencies: Latencies,
}

impl Source for NetIo {
    fn sample(&mut self, at: &Sample<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let Some(table) = &at.tasks.flows.net_io else {
            return Ok(());
        };
        for row in &table.rows {
            let flow = &row.increase;
            self.rows.push(
                flow_key(at, row),
                NetIoRow {
                    protocol: protocol_name(row.what).into(),
                    family: family_name(row.what).map(Into::into),
                    scope: scope_name(row.what).map(Into::into),
                    tx_bytes: flow.tx_bytes,
                    rx_bytes: flow.rx_bytes,
                    tx_calls: flow.tx_calls,
                    rx_calls: flow.rx_calls,
                },
            );
        }
        self.rows.finish(out);
        self.latencies.sample(at, out);
        Ok(())
    }
}

fn protocol_name(class: u64) -> &'static str {
    match class & 0xff {
        protocol::TCP => "tcp",
        protocol::UDP => "udp",
        _ => "unix",
    }
}

fn family_name(class: u64) -> Option<&'static str> {
    match class >> 8 & 0xff {
        family::INET => Some("inet"),
        family::INET6 => Some("inet6"),
        _ => None,
    }
}

fn scope_name(class: u64) -> Option<&'static str> {
    match class >> 16 & 0xff {
        scope::LOOPBACK => Some("loopback"),
        scope::REMOTE => Some("remote"),
        _ => None,
    }
}

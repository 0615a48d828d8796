//! `net_io`: bytes, calls and connections on sockets, by process.

use anyhow::Result;
use profiler_ebpf::{
    maps::Named as _,
    per_key::{
        self, kind,
        net::{family, family_of, protocol, protocol_of, scope, scope_of},
    },
};

use super::{
    Input, Source, SourceSpec, TickContext,
    latency::{self, Latencies},
};
use crate::{
    bpf::{Hook, Instrumentation, Method},
    columns,
    schema::{Batch, Label, OwnerKey, TableBuilder, TypedTable},
};

columns! {
    /// Data that a process sent and received.
    pub struct NetIoRow {
        protocol: Label = Label("", "Protocol: tcp (including multipath TCP), udp, unix"),
        family: Option<Label> = Label("", "Address family: inet (including IPv4 through an IPv6 socket) or inet6; null for unix sockets and for datagrams whose family is unknown"),
        scope: Option<Label> = Label("", "Network scope: loopback (the other end is on this host and in the same network namespace) or remote; null if it is unknown"),
        tx_bytes: u64 = Counter("bytes", "Bytes accepted by send calls, including sendfile and splice"),
        rx_bytes: u64 = Counter("bytes", "Bytes returned by receive calls, including splice, without MSG_PEEK"),
        tx_calls: u64 = Counter("1", "Successful send calls"),
        rx_calls: u64 = Counter("1", "Successful receive calls, including those at the end of the stream"),
        tx_segments: Option<u64> = Counter("1", "TCP segments sent, including empty and retransmitted ones, as of the first use of the socket in the interval"),
        rx_segments: Option<u64> = Counter("1", "TCP segments received, including empty ones, as of the first use of the socket in the interval"),
        retransmits: Option<u64> = Counter("1", "Retransmitted TCP segments (TcpRetransSegs)"),
        connects: Option<u64> = Counter("1", "TCP connections established by connect()"),
        connect_failures: Option<u64> = Counter("1", "Failed TCP connection attempts: refused, timed out or closed before"),
        accepts: Option<u64> = Counter("1", "TCP connections accepted; without the hook at accept(), counted at their first use"),
        resets: Option<u64> = Counter("1", "Established TCP connections that were reset by either side or timed out (TcpEstabResets)"),
    }
}

pub static TABLE: TypedTable<OwnerKey, NetIoRow> = TypedTable::new(
    "net_io",
    "One row per sample, process, protocol, family and scope, if there was any call or connection",
);

static INSTRUMENTATION: Instrumentation = Instrumentation {
    source: "net_io",
    maps: &[per_key::NetIo::NAME, per_key::Latency::NAME],
    methods: &[
        Method::new(
            "sockets",
            &[
                Hook::tracepoint("sock_send_length", "sock_send_length"),
                Hook::tracepoint("sock_recv_length", "sock_recv_length"),
                STATE,
                DESTROY,
            ],
        ),
        Method::new(
            "functions",
            &[
                Hook::fexit("tcp_send", "tcp_sendmsg"),
                Hook::fexit("tcp_receive", "tcp_recvmsg"),
                Hook::fexit("udp_send", "udp_sendmsg"),
                Hook::fexit("udp_receive", "udp_recvmsg"),
                Hook::fexit("unix_stream_send", "unix_stream_sendmsg"),
                Hook::fexit("unix_stream_receive", "unix_stream_recvmsg"),
                Hook::fexit("unix_packet_send", "unix_dgram_sendmsg"),
                Hook::fexit("unix_packet_receive", "unix_dgram_recvmsg"),
                STATE,
                DESTROY,
            ],
        )
        .optional(&[
            Hook::fexit("udp6_send", "udpv6_sendmsg"),
            Hook::fexit("udp6_receive", "udpv6_recvmsg"),
            Hook::fexit("tcp_send_page", "tcp_sendpage"),
            Hook::fexit("unix_stream_send_page", "unix_stream_sendpage"),
            Hook::fexit("mptcp_send", "mptcp_sendmsg"),
            Hook::fexit("mptcp_receive", "mptcp_recvmsg"),
        ]),
    ],
    optional: &[
        Hook::tracepoint("tcp_retransmit", "tcp_retransmit_skb"),
        Hook::tracepoint("tcp_retransmit_synack", "tcp_retransmit_synack"),
        Hook::tracepoint("tcp_spliced", "tcp_rcv_space_adjust"),
        Hook::tracepoint("udp_route4", "fib_table_lookup"),
        Hook::tracepoint("udp_route6", "fib6_table_lookup"),
        Hook::fexit("udp_arrival", "__skb_recv_udp"),
        Hook::fexit("tcp_accept", "inet_accept"),
        Hook::fexit("unix_stream_splice", "unix_stream_splice_read"),
    ],
};

const STATE: Hook = Hook::tracepoint("tcp_state", "inet_sock_set_state");
const DESTROY: Hook = Hook::tracepoint("tcp_destroy", "tcp_destroy_sock");

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "net_io",
    help: "bytes, calls and connections on TCP, UDP and unix sockets, by process",
    tables: &[TABLE.untyped(), latency::TABLE.untyped()],
    input: Input::Tasks { procfs: false },
    instrumentation: Some(&INSTRUMENTATION),
    open: |context| {
        let is_missing = |program| {
            context
                .result
                .is_some_and(|result| result.is_missing(program))
        };
        Ok(Box::new(NetIo {
            sees_retransmits: !is_missing("tcp_retransmit"),
            rows: TableBuilder::new(&TABLE),
            latencies: Latencies::new(&[
                (kind::TCP_CONNECT, "tcp_connect"),
                (kind::TCP_RTT, "tcp_rtt"),
            ]),
        }))
    },
    ..SourceSpec::DEFAULT
};

struct NetIo {
    rows: TableBuilder<OwnerKey, NetIoRow>,
    latencies: Latencies,
    sees_retransmits: bool,
}

impl Source for NetIo {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let Some(table) = &ctx.tasks.per_key.net_io else {
            return Ok(());
        };
        for row in &table.rows {
            let entry = &row.increase;
            let is_tcp = protocol_of(row.dimension) == protocol::TCP;
            let tcp = |count: u64| is_tcp.then_some(count);
            self.rows.push(
                ctx.key_of_counters(row),
                NetIoRow {
                    protocol: protocol_name(row.dimension).into(),
                    family: family_name(row.dimension).map(Into::into),
                    scope: scope_name(row.dimension).map(Into::into),
                    tx_bytes: entry.tx_bytes,
                    rx_bytes: entry.rx_bytes,
                    tx_calls: entry.tx_calls,
                    rx_calls: entry.rx_calls,
                    tx_segments: tcp(entry.tx_segments),
                    rx_segments: tcp(entry.rx_segments),
                    retransmits: tcp(entry.retransmits).filter(|_| self.sees_retransmits),
                    connects: tcp(entry.connects),
                    connect_failures: tcp(entry.connect_failures),
                    accepts: tcp(entry.accepts),
                    resets: tcp(entry.resets),
                },
            );
        }
        self.unix(ctx);
        self.rows.finish(out);
        self.latencies.sample(ctx, out);
        Ok(())
    }
}

impl NetIo {
    /// Adds the rows of unix sockets, which are counted in task storage.
    fn unix(&mut self, ctx: &TickContext<'_>) {
        for row in &ctx.tasks.rows {
            let increase = &row.increase;
            if increase.unix_tx_calls + increase.unix_rx_calls == 0 {
                continue;
            }
            self.rows.push(
                ctx.key_of_owner(Some(row.id), row.tid, row.interval_ns),
                NetIoRow {
                    protocol: "unix".into(),
                    family: None,
                    scope: Some("loopback".into()),
                    tx_bytes: increase.unix_tx_bytes,
                    rx_bytes: increase.unix_rx_bytes,
                    tx_calls: increase.unix_tx_calls,
                    rx_calls: increase.unix_rx_calls,
                    tx_segments: None,
                    rx_segments: None,
                    retransmits: None,
                    connects: None,
                    connect_failures: None,
                    accepts: None,
                    resets: None,
                },
            );
        }
    }
}

fn protocol_name(dimension: u64) -> &'static str {
    if protocol_of(dimension) == protocol::TCP {
        "tcp"
    } else {
        "udp"
    }
}

fn family_name(dimension: u64) -> Option<&'static str> {
    match family_of(dimension) {
        family::INET => Some("inet"),
        family::INET6 => Some("inet6"),
        _ => None,
    }
}

fn scope_name(dimension: u64) -> Option<&'static str> {
    match scope_of(dimension) {
        scope::LOOPBACK => Some("loopback"),
        scope::REMOTE => Some("remote"),
        _ => None,
    }
}

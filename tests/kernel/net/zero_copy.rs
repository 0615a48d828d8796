//! Unix sockets, and transfers without send and receive calls.

use super::{Labels, account};

const BYTES: u64 = 1 << 20;

#[test]
fn unix_sockets_of_both_kinds() {
    let (count, size) = (10_000, 77);
    let account = account(&["unix", &count.to_string(), &size.to_string()]);
    account.check(
        Labels::all("unix").family("null").scope("loopback"),
        &[
            ("tx_bytes", 2 * count * size),
            ("rx_bytes", 2 * count * size),
            ("tx_calls", 2 * count),
            ("rx_calls", 2 * count),
        ],
    );
}

#[test]
fn sendfile_to_a_socket() {
    let account = account(&["sendfile", &BYTES.to_string()]);
    let bytes = [("tx_bytes", BYTES), ("rx_bytes", BYTES)];
    account.check(Labels::all("tcp").scope("loopback"), &bytes);
    account.check(Labels::all("unix"), &bytes);
}

#[test]
fn splice_from_a_socket() {
    let account = account(&["splice", &BYTES.to_string()]);
    account.check(
        Labels::all("tcp"),
        &[("tx_bytes", BYTES), ("rx_bytes", BYTES)],
    );
}

#[test]
fn splice_from_a_unix_socket() {
    let account = account(&["unix-splice", &BYTES.to_string()]);
    let received = if account.has("unix_stream_splice_read") {
        BYTES
    } else {
        0
    };
    account.check(
        Labels::all("unix"),
        &[("tx_bytes", BYTES), ("rx_bytes", received)],
    );
}

#[test]
fn io_uring_sends_and_receives() {
    let (count, size) = (1000, 55);
    let account = account(&["uring", &count.to_string(), &size.to_string()]);
    account.check(
        Labels::all("tcp"),
        &[
            ("tx_bytes", count * size),
            ("rx_bytes", count * size),
            ("tx_calls", count),
            ("rx_calls", count),
        ],
    );
}

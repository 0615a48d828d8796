//! UDP with connected and unconnected sockets.

use super::{Account, Labels, account, assert_only};

const SIZE: u64 = 60;

/// Sent datagrams have all labels. Received ones have them on an unconnected socket that is not
/// bound to a loopback address only if the kernel supports a hook on a function.
#[track_caller]
pub fn assert_echo(
    account: &Account,
    family: &'static str,
    scope: &'static str,
    count: u64,
    bound: bool,
) {
    let labels = Labels::all("udp").family(family).scope(scope);
    for (name, factor, reported) in [
        ("server", 2, bound),
        ("connected", 1, true),
        ("free", 1, false),
    ] {
        let (pid, _) = account.fact(name);
        let calls = factor * count;
        let sent = [("tx_bytes", calls * SIZE), ("tx_calls", calls)];
        account.check(labels.pid(pid), &sent);
        let received = [("rx_bytes", calls * SIZE), ("rx_calls", calls)];
        if reported || account.has("__skb_recv_udp") {
            account.check(labels.pid(pid), &received);
        } else {
            let unknown = Labels::all("udp").scope("null");
            account.check(unknown.pid(pid), &received);
        }
    }
    assert_only(account, "tx_calls", 4 * count);
    assert_only(account, "rx_calls", 4 * count);
    assert!(
        account
            .net_io
            .iter()
            .all(|row| row.u64("tx_segments").is_none()),
        "UDP has no segments"
    );
}

#[track_caller]
fn echo(bind: &str, address: &str, family: &'static str, bound: bool, count: u64) {
    let (count_word, size) = (count.to_string(), SIZE.to_string());
    let account = account(&["udp", bind, address, &count_word, &size]);
    assert_echo(&account, family, "loopback", count, bound);
}

#[test]
fn datagrams_over_ipv4() {
    echo("127.0.0.1:0", "127.0.0.1", "inet", true, 10_000);
}

#[test]
fn datagrams_over_ipv6() {
    echo("[::1]:0", "[::1]", "inet6", true, 10_000);
}

#[test]
fn datagrams_to_a_socket_with_any_address() {
    echo("0.0.0.0:0", "127.0.0.1", "inet", false, 10_000);
}

#[test]
fn datagrams_over_ipv4_through_ipv6_sockets() {
    echo("[::]:0", "[::ffff:127.0.0.1]", "inet", false, 10_000);
}

//! UDP datagrams.

use std::{net::UdpSocket, process};

use crate::{finish, report, start};

/// Echoes `count` datagrams of each of two clients, on a socket that is bound to `bind` and
/// reachable at `address`. One of the clients connects its socket.
pub fn echo(bind: &str, address: &str, count: usize, size: usize, namespace: &[&str]) {
    let socket = UdpSocket::bind(bind).expect("a local address");
    let port = socket.local_addr().expect("bound").port();
    let address = format!("{address}:{port}");
    let (count_word, size_word) = (count.to_string(), size.to_string());
    let mut message = vec![0; size + 1];
    for mode in ["connected", "free"] {
        let words = ["udp-client", &address, &count_word, &size_word, mode];
        let client = start(namespace, &words);
        for _ in 0..count {
            let (length, from) = socket.recv_from(&mut message).expect("a datagram");
            socket.send_to(&message[..length], from).expect("sent");
        }
        finish(client);
    }
    report("server", process::id(), &[]);
}

/// A client of [`echo`].
pub fn client(address: &str, count: usize, size: usize, mode: &str) {
    let any = if address.starts_with('[') {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let socket = UdpSocket::bind(any).expect("any address");
    let mut message = vec![0; size];
    if mode == "connected" {
        socket.connect(address).expect("a route");
    }
    for _ in 0..count {
        let sent = if mode == "connected" {
            socket.send(&message)
        } else {
            socket.send_to(&message, address)
        };
        assert_eq!(sent.expect("a route"), size);
        assert_eq!(socket.recv(&mut message).expect("received"), size);
    }
    report(mode, process::id(), &[]);
}

//! UDP.

use std::{net::UdpSocket, process};

use crate::{finish, start, tell};

/// Two of us send so many datagrams to a socket that is bound to `bind` and that they reach at `address`; each gets
/// its own back before the next. One has connected its socket.
pub fn echo(bind: &str, address: &str, count: usize, size: usize, namespace: &[&str]) {
    let socket = UdpSocket::bind(bind).expect("an address of ours");
    let port = socket.local_addr().expect("bound").port();
    let address = format!("{address}:{port}");
    let (count_word, size_word) = (count.to_string(), size.to_string());
    let mut message = vec![0; size + 1];
    for mode in ["connected", "free"] {
        let words = ["udp-client", &address, &count_word, &size_word, mode];
        let client = start(namespace, &words);
        for _ in 0..count {
            let (length, from) = socket.recv_from(&mut message).expect("a datagram");
            socket.send_to(&message[..length], from).expect("it waits");
        }
        finish(client);
    }
    tell("server", process::id(), &[]);
}

/// One of them.
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
        assert_eq!(socket.recv(&mut message).expect("it comes back"), size);
    }
    tell(mode, process::id(), &[]);
}

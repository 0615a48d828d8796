//! Does what it is told on stdin with sockets that it made when it started, answers `done`, and rests.

use std::{
    io::{BufRead as _, Read as _, Write as _, stdin, stdout},
    net::UdpSocket,
};

use crate::tcp;

pub fn obey() {
    let (mut ours, mut theirs) = tcp::pair();
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("an address");
    let address = datagrams.local_addr().expect("bound");
    ours.write_all(&[0; 5000]).expect("connected");
    answer();
    for order in stdin().lock().lines() {
        let order = order.expect("text");
        let (verb, number) = order.split_once(' ').expect("an order");
        let number: usize = number.parse().expect("a number");
        let mut message = [0; 100];
        match verb {
            // So many messages of 100 bytes.
            "tcp" => (0..number).for_each(|_| ours.write_all(&message).expect("connected")),
            "udp" => (0..number).for_each(|_| {
                datagrams.send_to(&message, address).expect("a route");
                datagrams.recv(&mut message).expect("it comes");
            }),
            // So many bytes that are there already, in one call.
            "read" => theirs.read_exact(&mut vec![0; number]).expect("data"),
            _ => panic!("{verb}: what is that?"),
        }
        answer();
    }
}

fn answer() {
    stdout().write_all(b"done\n").expect("stdout is open");
    stdout().flush().expect("stdout is open");
}

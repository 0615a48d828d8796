//! Executes commands from stdin on sockets that were created at the start. Prints `done` after each
//! command.

use std::{
    io::{BufRead as _, Read as _, Write as _, stdin, stdout},
    net::UdpSocket,
};

use crate::tcp;

pub fn run() {
    let (mut sender, mut receiver) = tcp::pair();
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("an address");
    let address = datagrams.local_addr().expect("bound");
    sender.write_all(&[0; 5000]).expect("connected");
    acknowledge();
    for line in stdin().lock().lines() {
        let line = line.expect("text");
        let (verb, number) = line.split_once(' ').expect("a command");
        let number: usize = number.parse().expect("a number");
        let mut message = [0; 100];
        match verb {
            // Send messages of 100 bytes.
            "tcp" => (0..number).for_each(|_| sender.write_all(&message).expect("connected")),
            "udp" => (0..number).for_each(|_| {
                datagrams.send_to(&message, address).expect("a route");
                datagrams.recv(&mut message).expect("received");
            }),
            // Receive bytes that were sent before.
            "read" => receiver.read_exact(&mut vec![0; number]).expect("data"),
            _ => panic!("unknown command {verb}"),
        }
        acknowledge();
    }
}

fn acknowledge() {
    stdout().write_all(b"done\n").expect("stdout is open");
    stdout().flush().expect("stdout is open");
}

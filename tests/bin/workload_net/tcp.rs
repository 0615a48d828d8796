//! TCP connections.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    process,
    thread::sleep,
    time::Duration,
};

use crate::{finish, report, start};

fn listen(address: &str) -> (TcpListener, String) {
    let listener = TcpListener::bind(address).expect("a local address");
    let port = listener.local_addr().expect("bound").port();
    let (host, _) = address.rsplit_once(':').expect("host:port");
    (listener, format!("{host}:{port}"))
}

/// A connection over the loopback interface: its active and its passive end.
pub fn pair() -> (TcpStream, TcpStream) {
    let (listener, address) = listen("127.0.0.1:0");
    let ours = TcpStream::connect(address).expect("the server listens");
    (ours, listener.accept().expect("connected").0)
}

/// Echoes `count` messages that a client sends.
pub fn echo(address: &str, count: usize, size: usize, namespace: &[&str]) {
    let (listener, address) = listen(address);
    let (count_word, size_word) = (count.to_string(), size.to_string());
    let words = ["tcp-client", &address, &count_word, &size_word];
    let client = start(namespace, &words);
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_nodelay(true).expect("TCP");
    let mut message = vec![0; size];
    for _ in 0..count {
        stream.read_exact(&mut message).expect("a message");
        stream.write_all(&message).expect("connected");
    }
    end("server", &mut stream);
    drop(stream);
    finish(client);
}

pub fn echo_client(address: &str, count: usize, size: usize) {
    // An IPv4-mapped address also yields an IPv6 socket.
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_nodelay(true).expect("TCP");
    let mut message = vec![0; size];
    for _ in 0..count {
        stream.write_all(&message).expect("connected");
        stream.read_exact(&mut message).expect("the message");
    }
    end("client", &mut stream);
}

/// Closes a connection in both directions and prints the kernel's `tcp_info` after the last packet.
fn end(name: &str, stream: &mut TcpStream) {
    stream.shutdown(Shutdown::Write).expect("connected");
    assert_eq!(stream.read(&mut [0]).expect("an end"), 0);
    sleep(Duration::from_millis(300));
    let info = info(stream);
    let numbers = [
        info.tcpi_segs_out,
        info.tcpi_segs_in,
        info.tcpi_rtt,
        info.tcpi_total_retrans,
    ];
    report(name, process::id(), &numbers.map(u64::from));
}

/// The beginning of `struct tcp_info` (include/uapi/linux/tcp.h).
#[repr(C)]
#[derive(Default)]
struct TcpInfo {
    states: [u8; 8],
    tcpi_rto: u32,
    sizes: [u32; 14],
    tcpi_rtt: u32,
    windows: [u32; 7],
    tcpi_total_retrans: u32,
    rates: [u64; 4],
    tcpi_segs_out: u32,
    tcpi_segs_in: u32,
}

fn info(stream: &TcpStream) -> TcpInfo {
    let mut info = TcpInfo::default();
    let mut length = u32::try_from(size_of::<TcpInfo>()).expect("small");
    // SAFETY: the length is that of the structure.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0);
    info
}

/// Connections that are closed normally, refused, and reset after a message.
pub fn connections(kept: usize, refused: usize, reset: usize) {
    let (listener, address) = listen("127.0.0.1:0");
    for number in 0..kept + reset {
        let mut ours = TcpStream::connect(&address).expect("the listener is open");
        let (mut theirs, _) = listener.accept().expect("connected");
        ours.write_all(b"?").expect("connected");
        theirs.read_exact(&mut [0]).expect("a message");
        if number >= kept {
            reset_on_close(&ours);
        }
        drop(ours);
        let end = theirs.read(&mut [0]);
        assert_eq!(end.is_err(), number >= kept, "{end:?}");
    }
    drop(listener);
    for _ in 0..refused {
        let error = TcpStream::connect(&address).expect_err("the listener is closed");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
    let counts = snmp("Tcp:", ["ActiveOpens", "PassiveOpens", "EstabResets"]);
    report("kernel", process::id(), &counts);
}

/// Makes close(2) send a reset.
fn reset_on_close(stream: &TcpStream) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the length is that of the structure.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            u32::try_from(size_of::<libc::linger>()).expect("small"),
        )
    };
    assert_eq!(result, 0);
}

/// The kernel's counters of this network namespace.
fn snmp<const N: usize>(protocol: &str, names: [&str; N]) -> [u64; N] {
    let text = std::fs::read_to_string("/proc/net/snmp").expect("a network");
    let mut lines = text.lines().filter(|line| line.starts_with(protocol));
    let mut words = || lines.next().expect("two lines").split(' ');
    let table: Vec<_> = words().zip(words()).collect();
    names.map(|name| {
        let found = table.iter().find(|(key, _)| *key == name);
        found.expect("a counter").1.parse().expect("a number")
    })
}

/// Starts one client per count, each with another message size.
pub fn writers(counts: &[&str]) {
    let (listener, address) = listen("127.0.0.1:0");
    let writer = |(index, count): (usize, &&str)| {
        let size = (100 + index).to_string();
        start(&[], &["writer", &address, count, &size])
    };
    let writers: Vec<_> = counts.iter().enumerate().map(writer).collect();
    let readers: Vec<_> = counts
        .iter()
        .map(|_| {
            let (mut stream, _) = listener.accept().expect("a connection");
            std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()))
        })
        .collect();
    for reader in readers {
        let read = reader.join().expect("no panic");
        read.expect("an end");
    }
    writers.into_iter().for_each(finish);
}

/// A client of [`writers`].
pub fn writer(address: &str, count: usize, size: usize) {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let message = vec![0; size];
    let sent = |_| stream.write(&message).expect("connected") == size;
    assert!((0..count).all(sent), "in one piece");
    report("writer", process::id(), &[count as u64, size as u64]);
}

/// Starts threads that each send one message more than the one before, and end.
pub fn threads(count: usize) {
    let (listener, address) = listen("127.0.0.1:0");
    let sender = |number: usize| {
        let mut stream = TcpStream::connect(&address).expect("the server listens");
        std::thread::spawn(move || {
            for _ in 0..=number {
                assert_eq!(stream.write(&[0; 10]).expect("connected"), 10);
            }
        })
    };
    for number in 0..count {
        let sender = sender(number);
        let (mut stream, _) = listener.accept().expect("a connection");
        sender.join().expect("no panic");
        std::io::copy(&mut stream, &mut std::io::sink()).expect("an end");
    }
}

/// Reads that are short, fail, or only peek.
pub fn partial_reads() {
    let (mut ours, mut theirs) = pair();
    theirs.set_nonblocking(true).expect("a socket");
    for _ in 0..50 {
        let error = theirs.read(&mut [0; 10]).expect_err("nothing is there");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
    ours.write_all(&[0; 1000]).expect("connected");
    theirs.set_nonblocking(false).expect("a socket");
    assert_eq!(theirs.peek(&mut [0; 1000]).expect("data"), 1000);
    for _ in 0..9 {
        assert_eq!(theirs.read(&mut [0; 100]).expect("data"), 100);
    }
    // A short read of the rest.
    assert_eq!(theirs.read(&mut [0; 4096]).expect("data"), 100);
}

/// Receives `bytes` bytes from a client.
pub fn bulk(address: &str, bytes: usize, namespace: &[&str]) {
    let (listener, address) = listen(address);
    let client = start(namespace, &["bulk-client", &address, &bytes.to_string()]);
    let (mut stream, _) = listener.accept().expect("a connection");
    let received = std::io::copy(&mut stream, &mut std::io::sink()).expect("an end");
    assert_eq!(received, bytes as u64);
    drop(stream);
    finish(client);
}

/// The client of [`bulk`], the only process of its network namespace.
pub fn bulk_client(address: &str, bytes: usize) {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let piece = vec![0; 1 << 14];
    let mut left = bytes;
    while left != 0 {
        let now = left.min(piece.len());
        stream.write_all(&piece[..now]).expect("connected");
        left -= now;
        // Slow enough for the test to drop packets meanwhile.
        sleep(Duration::from_millis(2));
    }
    stream.shutdown(Shutdown::Write).expect("connected");
    assert_eq!(stream.read(&mut [0]).expect("an end"), 0);
    drop(stream);
    sleep(Duration::from_millis(500));
    report("sender", process::id(), &snmp("Tcp:", ["RetransSegs"]));
}

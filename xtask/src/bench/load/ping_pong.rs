//! Ping-pong between two processes over a pair of connected sockets.

use std::{
    env,
    fs::File,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, UdpSocket},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;

/// Size of request and response, in bytes.
const MESSAGE: usize = 64;

#[derive(clap::Args)]
pub struct Args {
    #[arg(value_enum)]
    socket: Socket,
    /// Number of round trips
    #[arg(long)]
    messages: u32,
    /// Act as the far end, on stdin
    #[arg(long)]
    answer: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Socket {
    Udp,
    Unix,
}

impl Socket {
    fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Unix => "unix",
        }
    }

    fn pair(self) -> io::Result<[OwnedFd; 2]> {
        if let Self::Unix = self {
            let (near, far) = UnixStream::pair()?;
            return Ok([near.into(), far.into()]);
        }
        let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        near.connect(far.local_addr()?)?;
        far.connect(near.local_addr()?)?;
        Ok([near.into(), far.into()])
    }
}

/// Duration in s at the end that sends requests.
pub fn run(args: &Args) -> Result<Option<f64>> {
    if args.answer {
        let mut socket = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        // The first message excludes the start of this process from the duration.
        for _ in 0..=args.messages {
            let message = receive(&mut socket)?;
            socket.write_all(&message)?;
        }
        return Ok(None);
    }
    let [near, far] = args.socket.pair().context("connecting two sockets")?;
    let far_end = Command::new(env::current_exe()?)
        .args(["load", "ping-pong", args.socket.name(), "--answer"])
        .args(["--messages", &args.messages.to_string()])
        .stdin(Stdio::from(far))
        .stdout(Stdio::null())
        .spawn()
        .context("starting the far end")?;
    let asked = ask(&mut near.into(), args.messages);
    super::finish(far_end, asked).map(Some)
}

fn ask(socket: &mut File, messages: u32) -> Result<f64> {
    let message = [7; MESSAGE];
    let mut started = Instant::now();
    for number in 0..=messages {
        socket.write_all(&message)?;
        receive(socket)?;
        if number == 0 {
            started = Instant::now();
        }
    }
    Ok(started.elapsed().as_secs_f64())
}

fn receive(socket: &mut File) -> Result<[u8; MESSAGE]> {
    let mut message = [0; MESSAGE];
    // A datagram is read as a whole.
    let length = socket.read(&mut message)?;
    ensure!(length == MESSAGE, "a message of {length} bytes");
    Ok(message)
}

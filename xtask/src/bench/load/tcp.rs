//! TCP ping-pong between two processes.

use std::{
    env,
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result};

/// Size of request and response, in bytes.
const MESSAGE: usize = 64;

#[derive(clap::Args)]
pub struct Args {
    /// Number of connections, in sequence
    #[arg(long, default_value_t = 1)]
    connections: u32,
    /// Round trips per connection
    #[arg(long, default_value_t = 1)]
    messages: u32,
    /// Act as the far end and connect to this port
    #[arg(long)]
    answer: Option<u16>,
}

/// Duration in s at the end that sends requests.
pub fn run(args: &Args) -> Result<Option<f64>> {
    if let Some(port) = args.answer {
        answer(port, args.connections)?;
        return Ok(None);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listening on 127.0.0.1")?;
    let far = far_end(&listener, args)?;
    let asked = ask(&listener, args);
    super::finish(far, asked).map(Some)
}

fn far_end(listener: &TcpListener, args: &Args) -> Result<Child> {
    Command::new(env::current_exe()?)
        .args(["load", "tcp", "--answer"])
        .arg(listener.local_addr()?.port().to_string())
        .args(["--connections", &args.connections.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("starting the far end")
}

fn ask(listener: &TcpListener, args: &Args) -> Result<f64> {
    let mut message = [7; MESSAGE];
    let mut started = None;
    for _ in 0..args.connections {
        let (mut stream, _) = listener.accept().context("accepting a connection")?;
        // Excludes the start of the far end.
        started.get_or_insert_with(Instant::now);
        stream.set_nodelay(true)?;
        for _ in 0..args.messages {
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
        }
    }
    let started = started.context("zero connections requested")?;
    Ok(started.elapsed().as_secs_f64())
}

fn answer(port: u16, connections: u32) -> Result<()> {
    let mut message = [0; MESSAGE];
    for _ in 0..connections {
        let mut stream =
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("connecting to 127.0.0.1")?;
        stream.set_nodelay(true)?;
        loop {
            match stream.read_exact(&mut message) {
                Ok(()) => stream.write_all(&message)?,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

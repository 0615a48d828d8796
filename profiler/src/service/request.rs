//! The request of a client, as the listening process receives it before anything is started.

use std::io;

use tokio::net::UnixStream;

use super::{
    connection::{TIMEOUT, failed, usage},
    protocol::{Frame, HEADER, Kind, ProtocolError, Request, VERSION, header},
};
use crate::{
    failure::{Failure, Reason},
    schema::SCHEMA_VERSION,
};

/// Shortest interval of a client, ns: a user is not to occupy the CPUs of others.
const INTERVAL_MIN_NS: u64 = 10_000_000;

/// Receives the request; `None` if the client only wanted to know whether the service runs.
///
/// # Errors
///
/// When there is none in time, or it is not allowed.
pub async fn receive(client: &UnixStream) -> Result<Option<Request>, Failure> {
    let frame = tokio::time::timeout(TIMEOUT, frame(client))
        .await
        .unwrap_or_else(|_| Err(failed(io::ErrorKind::TimedOut.into())))?;
    let Some(frame) = frame else {
        return Ok(None);
    };
    let request = frame.json(Kind::Request).map_err(usage)?;
    check(&request)?;
    Ok(Some(request))
}

/// Receives one message, and no byte after it; `None` if the connection ends before.
async fn frame(client: &UnixStream) -> Result<Option<Frame>, Failure> {
    let mut begin = [0; HEADER];
    if let Err(error) = fill(client, &mut begin).await {
        let is_end = error.kind() == io::ErrorKind::UnexpectedEof && begin == [0; HEADER];
        return if is_end { Ok(None) } else { Err(failed(error)) };
    }
    let (kind, length) = header(begin).map_err(usage)?;
    if kind != Kind::Request {
        return Err(usage(ProtocolError::Unexpected(kind)));
    }
    let mut content = vec![0; length];
    fill(client, &mut content).await.map_err(failed)?;
    Ok(Some(Frame { kind, content }))
}

async fn fill(client: &UnixStream, mut rest: &mut [u8]) -> io::Result<()> {
    while !rest.is_empty() {
        client.readable().await?;
        match client.try_read(rest) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => rest = &mut rest[read..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn check(request: &Request) -> Result<(), Failure> {
    let versions = (request.protocol, request.schema_version);
    let why = if versions != (VERSION, SCHEMA_VERSION) {
        format!(
            "the service has protocol {VERSION} and schema {SCHEMA_VERSION}, this program {} and {}: \
             use the program that is installed with the service",
            versions.0, versions.1
        )
    } else if request.interval_ns < INTERVAL_MIN_NS {
        "the service takes a sample every 10ms at most".to_owned()
    } else {
        return Ok(());
    };
    Err(Failure::new(Reason::Usage, why))
}

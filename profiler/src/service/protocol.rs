//! Messages between client and service.
//!
//! Each message is a frame: its length as `u32` in little-endian byte order, its kind as `u32`, and
//! the content. Contents are JSON, except those of [`Kind::Rows`].

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;

use crate::{
    job::{JobId, Scheduler, Step},
    output::dataset::manifest::{Loss, SourceState},
    support::{host_name::HostName, log::harmless, timekeeping::Timekeeping},
};

/// Version of the protocol. Client and service must have the same one.
pub const VERSION: u32 = 1;

/// Limit of the content of a request in bytes.
const MAX_REQUEST: usize = 16 << 10;
/// Limit of the content of a message of the service in bytes, except rows.
const MAX_CONTROL: usize = 1 << 20;
/// Limit of the content of a message with rows in bytes.
const MAX_ROWS: usize = 256 << 20;
/// Size of the length and the kind of a message in bytes.
pub const HEADER: usize = 8;

/// Limit of the processes of a request.
pub const MAX_PROCESSES: usize = 64;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Client: [`Request`], the first message.
    Request = 1,
    /// Client: end the profile.
    Stop = 2,
    /// Client: the processes of [`RequestedTarget::Processes`], as pidfds. Process ids would depend
    /// on the pid namespace of the client.
    Attach = 3,
    /// Service: [`Accepted`], the answer to the request.
    Accepted = 15,
    /// Service: [`Ready`]. The processes are followed from now on.
    Ready = 16,
    /// Service: rows of one table, see [`rows`](super::rows).
    Rows = 17,
    /// Service: the rows of a reading are complete. Its content is the time of the reading
    /// (`CLOCK_MONOTONIC` in ns) as `u64` in little-endian byte order.
    Reading = 18,
    /// Service: [`End`], the last message.
    End = 20,
    /// Service: [`Refused`], the only message.
    Refused = 21,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Request,
        Self::Stop,
        Self::Attach,
        Self::Accepted,
        Self::Ready,
        Self::Rows,
        Self::Reading,
        Self::End,
        Self::Refused,
    ];

    fn limit(self) -> usize {
        match self {
            Self::Request => MAX_REQUEST,
            // They have no content.
            Self::Stop | Self::Attach => 0,
            Self::Rows => MAX_ROWS,
            Self::Accepted | Self::Ready | Self::Reading | Self::End | Self::Refused => MAX_CONTROL,
        }
    }
}

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub content: Vec<u8>,
}

/// Why received bytes are not a message.
#[derive(Debug, Error)]
pub enum ProtocolError {
    #[error("unknown message {0}")]
    Kind(u32),
    #[error("a message of {0} bytes")]
    Size(usize),
    #[error("malformed {0:?}: {text}", text = harmless(&.1.to_string()))]
    Json(Kind, serde_json::Error),
    #[error("malformed {0:?}")]
    Content(Kind),
    #[error("unexpected {0:?}")]
    Unexpected(Kind),
}

impl Frame {
    /// The content as JSON, if the message is of this kind.
    ///
    /// # Errors
    ///
    /// When it is of another kind or malformed.
    pub fn json<T: DeserializeOwned>(&self, kind: Kind) -> Result<T, ProtocolError> {
        if self.kind != kind {
            return Err(ProtocolError::Unexpected(self.kind));
        }
        serde_json::from_slice(&self.content).map_err(|error| ProtocolError::Json(self.kind, error))
    }

    /// The time of a [`Kind::Reading`], ns of `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    ///
    /// When the content is not a time.
    pub fn time(&self) -> Result<u64, ProtocolError> {
        let bytes = self.content.as_slice().try_into();
        let bytes = bytes.map_err(|_| ProtocolError::Content(self.kind))?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// What the client wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`VERSION`] of the client.
    pub protocol: u32,
    /// [`SCHEMA_VERSION`](crate::schema::SCHEMA_VERSION) of the client.
    pub schema_version: u32,
    pub target: RequestedTarget,
    /// Time between samples, ns.
    pub interval_ns: u64,
    /// Value of `--source`.
    pub source: Option<String>,
    /// Value of `--groups`.
    pub groups: Option<String>,
    /// Value of `--events`.
    pub events: Option<String>,
    /// Whether threads have rows of their own.
    pub threads: bool,
    /// Whether an unavailable source is an error.
    pub strict: bool,
    /// Name of the node in the dataset of the client.
    pub hostname: Option<HostName>,
}

/// The processes to profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum RequestedTarget {
    /// Processes, which the client names by [`Kind::Attach`], and their descendants.
    Processes,
    /// A batch job of the client's user.
    Job {
        /// Its scheduler, as in `--scheduler`.
        scheduler: Scheduler,
        /// Its id.
        id: JobId,
        /// Step of a Slurm job.
        step: Option<Step>,
    },
}

/// The service is about to profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Path of the socket for marks.
    pub socket: Option<String>,
}

/// The profile has started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Version of the service.
    pub version: String,
    /// Name of the run of a job, which is the same on all its nodes.
    pub run_id: String,
    /// The target in `run.json`.
    pub target: serde_json::Value,
    /// Availability of the sources.
    pub sources: Vec<SourceState>,
    /// The clock of all timestamps.
    pub clock: Option<Timekeeping>,
}

/// The profile has ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct End {
    /// Losses of the session.
    pub losses: Vec<Loss>,
    /// Wall clock of the end, ns since 1970-01-01 UTC.
    pub end_ts: i64,
    /// The clock of the node.
    pub clock: Option<Timekeeping>,
    /// Rows that were lost because the client did not read, by table.
    pub lost_rows: BTreeMap<String, u64>,
    /// Lines of sources for the user.
    pub summary: String,
}

/// The service does not profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Exit code for the client.
    pub code: u8,
    /// Message for the user.
    pub why: String,
}

/// Sends a message.
///
/// # Errors
///
/// When the socket is closed or the content is too large.
pub fn send(to: &mut impl Write, kind: Kind, content: &[u8]) -> io::Result<()> {
    let length = u32::try_from(content.len())
        .ok()
        .filter(|_| content.len() <= kind.limit())
        .ok_or_else(|| io::Error::other(ProtocolError::Size(content.len())))?;
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4..].copy_from_slice(&(kind as u32).to_le_bytes());
    to.write_all(&header)?;
    to.write_all(content)
}

/// Sends a message with JSON.
///
/// # Errors
///
/// As [`send`].
pub fn send_json(to: &mut impl Write, kind: Kind, content: &impl Serialize) -> io::Result<()> {
    send(to, kind, &serde_json::to_vec(content)?)
}

/// Kind and size of the content of a message, from its first bytes.
///
/// # Errors
///
/// When there is no such message, or it is too large.
pub fn header(bytes: [u8; HEADER]) -> Result<(Kind, usize), ProtocolError> {
    let [l0, l1, l2, l3, k0, k1, k2, k3] = bytes;
    let kind = u32::from_le_bytes([k0, k1, k2, k3]);
    let known = Kind::ALL.into_iter().find(|known| *known as u32 == kind);
    let kind = known.ok_or(ProtocolError::Kind(kind))?;
    let length = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
    if length > kind.limit() {
        return Err(ProtocolError::Size(length));
    }
    Ok((kind, length))
}

/// Reassembles messages from the bytes of a socket.
#[derive(Debug, Default)]
pub struct FrameReader {
    received: Vec<u8>,
    /// Bytes of `received` that have been returned as messages.
    taken: usize,
}

impl FrameReader {
    /// Reads what is there; returns `false` at the end of the stream.
    ///
    /// # Errors
    ///
    /// When the socket fails, also with [`io::ErrorKind::WouldBlock`].
    pub fn read_from(&mut self, socket: &mut impl Read) -> io::Result<bool> {
        const CHUNK: usize = 256 << 10;
        self.received.drain(..self.taken);
        self.taken = 0;
        let before = self.received.len();
        self.received.resize(before + CHUNK, 0);
        let read = socket.read(&mut self.received[before..]);
        self.received
            .truncate(before + *read.as_ref().unwrap_or(&0));
        Ok(read? != 0)
    }

    /// The next complete message.
    ///
    /// # Errors
    ///
    /// When the bytes are not a message. Nothing after them can be read.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, ProtocolError> {
        let rest = &self.received[self.taken..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let (kind, length) = self::header(*header)?;
        let Some(content) = rest.get(..length) else {
            return Ok(None);
        };
        let content = content.to_vec();
        self.taken += HEADER + length;
        Ok(Some(Frame { kind, content }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            protocol: VERSION,
            schema_version: 4,
            target: RequestedTarget::Processes,
            interval_ns: 1_000_000_000,
            source: None,
            groups: None,
            events: None,
            threads: false,
            strict: false,
            hostname: None,
        }
    }

    #[test]
    fn messages_arrive_in_pieces() {
        let mut bytes = Vec::new();
        send_json(&mut bytes, Kind::Request, &request()).unwrap();
        send(&mut bytes, Kind::Stop, b"").unwrap();
        let mut reader = FrameReader::default();
        let mut found = Vec::new();
        for byte in bytes {
            assert!(reader.read_from(&mut &[byte][..]).unwrap());
            found.extend(reader.next_frame().unwrap());
        }
        assert!(!reader.read_from(&mut &[][..]).unwrap());
        let [first, second] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(first.json::<Request>(Kind::Request).unwrap(), request());
        assert_eq!((second.kind, second.content.len()), (Kind::Stop, 0));
    }

    #[test]
    fn other_bytes_are_refused() {
        let refused = |bytes: &[u8]| {
            let mut reader = FrameReader::default();
            reader.read_from(&mut &bytes[..]).unwrap();
            reader.next_frame().is_err()
        };
        assert!(refused(&[0, 0, 0, 0, 99, 0, 0, 0]));
        assert!(refused(&[255, 255, 255, 255, 17, 0, 0, 0]));
        // Of the service: 1 MiB.
        assert!(refused(&[1, 0, 16, 0, 20, 0, 0, 0]));
        assert!(!refused(&[0, 0, 16, 0, 20, 0, 0, 0]));
        // Of the client: 16 KiB for the request, nothing for the end.
        assert!(refused(&[1, 64, 0, 0, 1, 0, 0, 0]));
        assert!(!refused(&[0, 64, 0, 0, 1, 0, 0, 0]));
        assert!(refused(&[1, 0, 0, 0, 2, 0, 0, 0]));
    }

    #[test]
    fn unknown_fields_are_refused() {
        let mut value = serde_json::to_value(request()).unwrap();
        value["out"] = "/etc".into();
        assert!(serde_json::from_value::<Request>(value).is_err());
    }
}

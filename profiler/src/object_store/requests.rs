//! Requests to a server, and their repetition.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use sha2::{Digest as _, Sha256};
use ureq::{
    Agent, Body, RequestBuilder,
    http::{HeaderMap, Response, StatusCode},
    typestate::WithoutBody,
};

use super::hexadecimal;
use crate::{support::http, warning};

/// For how long a request is repeated if the server cannot be reached or is overloaded, once it has
/// answered a request.
const PATIENCE: Duration = Duration::from_secs(600);
/// The same before its first answer: the address can be wrong.
const FIRST_PATIENCE: Duration = Duration::from_secs(3);
/// Pause before the first repetition; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Time for a reply, and longest silence within the content of an object.
pub const REPLY: Duration = Duration::from_secs(60);
/// Header with the SHA-256 of an object, hexadecimal.
pub const SHA256: &str = "x-amz-meta-sha256";

/// A server.
#[derive(Debug)]
pub struct Requests {
    pub agent: Agent,
    /// Whether it has answered.
    reached: AtomicBool,
}

/// A reply to the request for an object.
pub enum Reply {
    Object(Object),
    /// The server does not send it.
    Refusal(Response<Body>),
}

/// Content of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// As it was stored, as far as the server has its SHA-256.
    Whole,
    /// Its SHA-256 differs from the one with which it was stored.
    Damaged,
}

impl Requests {
    /// A server. Nothing is sent.
    pub fn new(agent: Agent) -> Self {
        let reached = AtomicBool::new(false);
        Self { agent, reached }
    }

    /// Sends a request, and repeats it while the server cannot be reached or is overloaded. `name` is
    /// that of the object.
    ///
    /// # Errors
    ///
    /// The last reason why it failed.
    pub fn ask(
        &self,
        name: &str,
        mut request: impl FnMut() -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, String> {
        let begin = Instant::now();
        let mut pause = PAUSE;
        loop {
            let why = match request() {
                Ok(reply) if !is_temporary(reply.status()) => {
                    self.reached.store(true, Relaxed);
                    return Ok(reply);
                }
                Ok(reply) => reply.status().to_string(),
                Err(error) if may_pass(&error) => error.to_string(),
                Err(error) => return Err(error.to_string()),
            };
            let patience = if self.reached.load(Relaxed) {
                PATIENCE
            } else {
                FIRST_PATIENCE
            };
            if begin.elapsed() + pause > patience {
                return Err(why);
            }
            if pause == PAUSE && self.reached.load(Relaxed) {
                warning!("{name}: {why}; repeated for up to 10 min");
            }
            thread::sleep(pause);
            pause = PAUSE_MAX.min(2 * pause);
        }
    }

    /// Writes the content of an object to a file, whose old content is replaced. Begins again if the
    /// connection is cut. `received` counts the bytes.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, the object has more than `limit` bytes, or the file cannot be
    /// written.
    pub fn receive(
        &self,
        name: &str,
        mut file: &File,
        limit: u64,
        received: &AtomicU64,
        request: impl Fn() -> RequestBuilder<WithoutBody>,
    ) -> Result<Reply, String> {
        let mut ended = None;
        let reply = self.ask(name, || {
            let request = request().config().timeout_recv_body(None);
            let request = request.timeout_per_read(Some(REPLY)).build();
            let mut reply = request.call()?;
            if !reply.status().is_success() {
                return Ok(reply);
            }
            self.reached.store(true, Relaxed);
            let (mut hash, mut bytes) = (Sha256::new(), 0);
            let mut body = reply.body_mut().as_reader();
            let mut buffer = vec![0; 1 << 18];
            let mut write = |content: &[u8], at: u64| {
                if at == 0 {
                    file.set_len(0)?;
                    file.seek(SeekFrom::Start(0))?;
                }
                file.write_all(content)
            };
            loop {
                let count = body.read(&mut buffer).inspect_err(|_| {
                    received.fetch_sub(bytes, Relaxed);
                })?;
                if let Err(error) = write(&buffer[..count], bytes) {
                    ended = Some(Err(format!("the copy cannot be written: {error}")));
                    break;
                }
                if count == 0 {
                    break;
                }
                hash.update(&buffer[..count]);
                bytes += count as u64;
                received.fetch_add(count as u64, Relaxed);
                if bytes > limit {
                    ended = Some(Err(format!("larger than {limit} bytes")));
                    break;
                }
            }
            if ended.is_none() {
                let is_cut = header(reply.headers(), "content-length")
                    .is_some_and(|length| length.parse() != Ok(bytes));
                if is_cut {
                    received.fetch_sub(bytes, Relaxed);
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                let sha256 = hexadecimal(&hash.finalize().into());
                let stored = header(reply.headers(), SHA256);
                ended = Some(Ok(match stored {
                    Some(stored) if stored != sha256 => Object::Damaged,
                    _ => Object::Whole,
                }));
            }
            Ok(reply)
        })?;
        match ended {
            None => Ok(Reply::Refusal(reply)),
            Some(object) => Ok(Reply::Object(object?)),
        }
    }
}

/// A header as text.
pub fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Configuration of the agent of a server.
pub fn agent() -> ureq::config::ConfigBuilder<ureq::typestate::AgentScope> {
    http::agent()
        .timeout_recv_response(Some(REPLY))
        .timeout_recv_body(Some(REPLY))
}

fn is_temporary(status: StatusCode) -> bool {
    status.is_server_error()
        || [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status)
}

fn may_pass(error: &ureq::Error) -> bool {
    use ureq::Error::{ConnectionFailed, HostNotFound, Io, Protocol, Timeout};
    matches!(
        error,
        Io(_) | Timeout(_) | HostNotFound | ConnectionFailed | Protocol(_)
    )
}

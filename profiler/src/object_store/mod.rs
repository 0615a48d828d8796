//! Objects in S3, in servers that speak its protocol, and on web servers.

mod parallel;
mod requests;
mod settings;
mod web;

use std::{
    collections::BTreeSet,
    fs::File,
    io::{Seek as _, SeekFrom},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rusty_s3::{Bucket, Credentials, S3Action as _, UrlStyle, actions::ListObjectsV2};
use ureq::{
    Body, SendBody,
    http::{Response, StatusCode},
};

use self::requests::{REPLY, Reply, Requests, SHA256, header};
pub use self::{
    parallel::at_once,
    requests::Object,
    settings::{Location, Settings},
    web::Web,
};
use crate::{
    failure::{Failure, Reason},
    support::http,
};

/// Slowest transfer that does not count as one that stands still, bytes per second.
const SLOWEST: u64 = 100_000;
/// How long the signature of a request is valid.
const VALID_FOR: Duration = Duration::from_secs(3600);
/// Largest object of one request.
pub const MAX_BYTES: u64 = 5 << 30;
/// Most that is read of a reply with an error, bytes.
const MAX_REPLY: u64 = 1 << 16;
/// Most that is read of a list of at most 1,000 objects, bytes.
const MAX_LIST: u64 = 1 << 24;
/// Most objects of a list.
const MAX_LISTED: usize = 1_000_000;

/// A place of objects on a server.
#[derive(Debug)]
pub struct Store {
    requests: Requests,
    bucket: Bucket,
    credentials: Credentials,
    location: Location,
    /// Whether the credentials do not permit to list objects: S3 then refuses to send those that do not
    /// exist.
    hides_missing: AtomicBool,
}

impl Store {
    /// A place; `settings` has the server and the credentials. Nothing is sent.
    ///
    /// # Errors
    ///
    /// When the address of the server is invalid.
    pub fn new(location: Location, settings: Settings) -> Result<Self, Failure> {
        // The names of other servers have no bucket.
        let (endpoint, style) = match settings.endpoint {
            Some(endpoint) => (endpoint, UrlStyle::Path),
            None => (
                format!("https://s3.{}.amazonaws.com", settings.region),
                UrlStyle::VirtualHost,
            ),
        };
        let invalid = |why: String| {
            Failure::new(
                Reason::Usage,
                format!("invalid address of a server, {endpoint}: {why}; set AWS_ENDPOINT_URL"),
            )
        };
        let url = endpoint
            .parse()
            .map_err(|_| invalid("not a URL".to_owned()))?;
        let bucket = Bucket::new(url, style, location.bucket.clone(), settings.region);
        // Another region replies with a redirection, for which the signature is not valid.
        let agent = requests::agent()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .build();
        Ok(Self {
            requests: Requests::new(agent.into()),
            bucket: bucket.map_err(|error| invalid(error.to_string()))?,
            credentials: settings.credentials,
            location,
            hides_missing: AtomicBool::new(false),
        })
    }

    /// The SHA-256 with which an object was stored, hexadecimal. `None` if there is no such object, or
    /// it is of another program, or the credentials permit only to write.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or refuses.
    pub fn sha256(&self, path: &str) -> Result<Option<String>, Failure> {
        let key = self.location.key(path);
        let reply = self.ask("read", path, || {
            let action = self.bucket.head_object(Some(&self.credentials), &key);
            self.requests
                .agent
                .head(action.sign(VALID_FOR).as_str())
                .call()
        })?;
        match reply.status() {
            StatusCode::NOT_FOUND | StatusCode::FORBIDDEN => Ok(None),
            status if status.is_success() => {
                let sha256 = header(reply.headers(), SHA256);
                Ok(sha256.map(str::to_owned))
            }
            _ => Err(self.refused("read", path, reply)),
        }
    }

    /// The paths of all objects in a directory, below it; `None` if the credentials do not permit to list
    /// them.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or refuses.
    pub fn list(&self, directory: &str) -> Result<Option<BTreeSet<String>>, Failure> {
        let prefix = format!("{}/", self.location.key(directory));
        let mut found = BTreeSet::new();
        let mut next: Option<String> = None;
        loop {
            let mut reply = self.ask("list", directory, || {
                let mut action = self.bucket.list_objects_v2(Some(&self.credentials));
                action.with_prefix(prefix.as_str());
                if let Some(token) = &next {
                    action.with_continuation_token(token.as_str());
                }
                self.requests
                    .agent
                    .get(action.sign(VALID_FOR).as_str())
                    .call()
            })?;
            if reply.status() == StatusCode::FORBIDDEN {
                self.hides_missing.store(true, Relaxed);
                return Ok(None);
            }
            if !reply.status().is_success() {
                return Err(self.refused("list", directory, reply));
            }
            let body = reply.body_mut().with_config().limit(MAX_LIST);
            let text = body.read_to_string();
            let text = text.map_err(|error| self.failure("list", directory, &error.to_string()))?;
            let page = ListObjectsV2::parse_response(&text).map_err(|error| {
                self.failure("list", directory, &format!("invalid reply: {error}"))
            })?;
            let keys = page.contents.into_iter().map(|object| object.key);
            found.extend(keys.filter_map(|key| Some(key.strip_prefix(&prefix)?.to_owned())));
            if found.len() > MAX_LISTED {
                let why = format!("more than {MAX_LISTED} objects");
                return Err(self.failure("list", directory, &why));
            }
            next = page.next_continuation_token;
            if next.is_none() {
                return Ok(Some(found));
            }
        }
    }

    /// Removes an object, if there is one.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or refuses.
    pub fn remove(&self, path: &str) -> Result<(), Failure> {
        let key = self.location.key(path);
        let reply = self.ask("remove", path, || {
            let action = self.bucket.delete_object(Some(&self.credentials), &key);
            self.requests
                .agent
                .delete(action.sign(VALID_FOR).as_str())
                .call()
        })?;
        match reply.status() {
            StatusCode::NOT_FOUND => Ok(()),
            status if status.is_success() => Ok(()),
            _ => Err(self.refused("remove", path, reply)),
        }
    }

    /// Stores a file as an object. The server compares the SHA-256.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or refuses.
    pub fn put(
        &self,
        path: &str,
        file: &File,
        bytes: u64,
        sha256: [u8; 32],
    ) -> Result<(), Failure> {
        let key = self.location.key(path);
        let checksum = BASE64_STANDARD.encode(sha256);
        let text = hexadecimal(&sha256);
        let time = REPLY + Duration::from_secs(bytes / SLOWEST);
        let reply = self.ask("store", path, || {
            let mut action = self.bucket.put_object(Some(&self.credentials), &key);
            let headers = [
                (SHA256, text.as_str()),
                ("x-amz-checksum-sha256", &checksum),
            ];
            for (name, value) in headers {
                action.headers_mut().insert(name, value);
            }
            let mut request = self.requests.agent.put(action.sign(VALID_FOR).as_str());
            for (name, value) in headers {
                request = request.header(name, value);
            }
            let mut file = file;
            file.seek(SeekFrom::Start(0))?;
            let request = request.header("Content-Length", bytes);
            let request = request.config().timeout_send_body(Some(time)).build();
            request.send(SendBody::from_reader(&mut file))
        })?;
        if reply.status().is_success() {
            return Ok(());
        }
        Err(self.refused("store", path, reply))
    }

    /// Writes the content of an object to a file; `None` if there is no such object.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or refuses, or the file cannot be written.
    pub fn get(
        &self,
        path: &str,
        file: &File,
        limit: u64,
        received: &AtomicU64,
    ) -> Result<Option<Object>, Failure> {
        let key = self.location.key(path);
        let request = || {
            let action = self.bucket.get_object(Some(&self.credentials), &key);
            self.requests.agent.get(action.sign(VALID_FOR).as_str())
        };
        let name = self.name(path);
        let reply = self.requests.receive(&name, file, limit, received, request);
        match reply.map_err(|why| self.failure("read", path, &why))? {
            Reply::Object(object) => Ok(Some(object)),
            Reply::Refusal(mut reply) => {
                let text = error_text(&mut reply);
                match reply.status() {
                    StatusCode::NOT_FOUND if element(&text, "Code") != Some("NoSuchBucket") => {
                        Ok(None)
                    }
                    StatusCode::FORBIDDEN if self.hides_missing.load(Relaxed) => Ok(None),
                    _ => Err(self.refusal("read", path, &reply, &text)),
                }
            }
        }
    }

    /// Sends a request, and repeats it while the server cannot be reached or is overloaded.
    fn ask(
        &self,
        action: &str,
        path: &str,
        request: impl FnMut() -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, Failure> {
        let reply = self.requests.ask(&self.name(path), request);
        reply.map_err(|why| self.failure(action, path, &why))
    }

    /// The address of an object.
    pub fn name(&self, path: &str) -> String {
        let Location { bucket, .. } = &self.location;
        format!("s3://{bucket}/{}", self.location.key(path))
    }

    fn failure(&self, action: &str, path: &str, why: &str) -> Failure {
        let server = self.bucket.base_url().origin().ascii_serialization();
        let message = format!("cannot {action} {}: {why} ({server})", self.name(path));
        Failure::new(Reason::Output, message)
    }

    fn refused(&self, action: &str, path: &str, mut reply: Response<Body>) -> Failure {
        let text = error_text(&mut reply);
        self.refusal(action, path, &reply, &text)
    }

    fn refusal(&self, action: &str, path: &str, reply: &Response<Body>, text: &str) -> Failure {
        let mut why = match (element(text, "Code"), element(text, "Message")) {
            (Some(code), Some(message)) => {
                format!("refused: {} ({})", http::line(message), http::line(code))
            }
            _ => format!("refused: {}", reply.status()),
        };
        let region = header(reply.headers(), "x-amz-bucket-region");
        if let Some(region) = region.filter(|region| *region != self.bucket.region()) {
            why = format!("{why}; set AWS_REGION={}", http::line(region));
        }
        if element(text, "Code").is_none_or(|code| code == "AccessDenied")
            && reply.status() == StatusCode::FORBIDDEN
        {
            why.push_str("; reading needs s3:GetObject and s3:ListBucket, storing s3:PutObject");
        }
        self.failure(action, path, &why)
    }
}

/// Content of a reply with an error.
fn error_text(reply: &mut Response<Body>) -> String {
    let body = reply.body_mut().with_config().limit(MAX_REPLY);
    body.read_to_string().unwrap_or_default()
}

/// SHA-256 as text.
pub fn hexadecimal(sha256: &[u8; 32]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for byte in sha256 {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The text of an element of a reply, in which it has no attributes.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once("</")?.0)
}

//! Objects of a web server, which has no list of them.

use std::{fmt::Write as _, fs::File, sync::atomic::AtomicU64};

use ureq::{Body, http::Response};

use super::requests::{self, Object, Reply, Requests};
use crate::failure::{Failure, Reason};

/// A directory on a web server.
#[derive(Debug)]
pub struct Web {
    requests: Requests,
    /// Without a slash at the end.
    address: String,
}

impl Web {
    /// A directory. Nothing is sent.
    pub fn new(address: &str) -> Self {
        // A redirection must not give encryption up.
        let is_encrypted = address.starts_with("https://");
        let agent = requests::agent().https_only(is_encrypted).build();
        Self {
            requests: Requests::new(agent.into()),
            address: address.trim_end_matches('/').to_owned(),
        }
    }

    /// The address of an object.
    pub fn name(&self, path: &str) -> String {
        let mut name = format!("{}/", self.address);
        for byte in path.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~/=".contains(&byte) {
                name.push(char::from(byte));
            } else {
                let _ = write!(name, "%{byte:02X}");
            }
        }
        name
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
        let name = self.name(path);
        let request = || self.requests.agent.get(&name);
        let reply = self.requests.receive(&name, file, limit, received, request);
        match reply.map_err(|why| failure(&name, &why))? {
            Reply::Object(object) => Ok(Some(object)),
            Reply::Refusal(reply) => match reply.status().as_u16() {
                404 | 410 => Ok(None),
                _ => Err(refused(&name, &reply)),
            },
        }
    }
}

fn failure(name: &str, why: &str) -> Failure {
    Failure::new(Reason::Output, format!("cannot read {name}: {why}"))
}

fn refused(name: &str, reply: &Response<Body>) -> Failure {
    let remedy = match reply.status().as_u16() {
        401 | 403 => {
            "; the server must permit everyone to read; use s3:// for a bucket with credentials"
        }
        _ => "",
    };
    failure(name, &format!("refused: {}{remedy}", reply.status()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_encoded() {
        let web = Web::new("https://host/a%20b/");
        assert_eq!(
            web.name("run 1/usage/host=é?#/part-00000.parquet"),
            "https://host/a%20b/run%201/usage/host=%C3%A9%3F%23/part-00000.parquet"
        );
    }
}

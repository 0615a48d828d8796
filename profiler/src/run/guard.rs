//! One profiler per node and run: who comes second is told so.
//!
//! The guard is an abstract unix socket. Its name belongs to the process and goes with it, however that ends; no file is
//! left, no file system is asked, and profilers of other nodes never see it.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use rustix::net::sockopt::socket_peercred;

use crate::failure::{Failure, Reason};

/// The right of this process to write a run on this node.
#[derive(Debug)]
pub struct Guard(
    #[expect(dead_code, reason = "the name lives as long as the socket")] UnixListener,
);

/// What came of asking for it.
#[derive(Debug)]
pub enum Answer {
    /// It is ours.
    Ours(Guard),
    /// This process has it.
    Taken(i32),
}

impl Guard {
    /// Asks for the right to write run `run_id` in `out` as `hostname`.
    ///
    /// # Errors
    ///
    /// When the kernel has no socket for us, or somebody else's process has the name.
    pub fn take(out: &Path, run_id: &str, hostname: &str) -> Result<Answer, Failure> {
        let fail = |error: io::Error| {
            Failure::new(
                Reason::Internal,
                format!("the guard of run {run_id}: {error}"),
            )
        };
        let address = address(out, run_id, hostname).map_err(fail)?;
        // The one that has the name may end at this moment.
        for _ in 0..3 {
            match UnixListener::bind_addr(&address) {
                Ok(listener) => return Ok(Answer::Ours(Self(listener))),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(fail(error)),
            }
            if let Ok(other) = UnixStream::connect_addr(&address) {
                let owner = socket_peercred(&other).map_err(|error| fail(error.into()))?;
                return Ok(Answer::Taken(owner.pid.as_raw_nonzero().get()));
            }
        }
        Err(fail(io::ErrorKind::AddrInUse.into()))
    }
}

/// A name for the run on this node: at most 90 of the 107 bytes that the kernel allows.
fn address(out: &Path, run_id: &str, hostname: &str) -> io::Result<SocketAddr> {
    let mut hash = DefaultHasher::new();
    (resolved(out), run_id, hostname).hash(&mut hash);
    let readable: String = run_id
        .chars()
        .filter(char::is_ascii_graphic)
        .take(64)
        .collect();
    let name = format!("profiler/{:016x}/{readable}", hash.finish());
    SocketAddr::from_abstract_name(name.as_bytes())
}

/// The path without links, as far as it is there.
fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for there in absolute.ancestors() {
        if let Ok(real) = there.canonicalize() {
            return match absolute.strip_prefix(there) {
                Ok(rest) if rest.as_os_str().is_empty() => real,
                Ok(rest) => real.join(rest),
                Err(_) => absolute,
            };
        }
    }
    absolute
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_of_the_first_until_that_has_ended() {
        let folder = tempfile::TempDir::new().unwrap();
        let out = folder.path().join("not/yet");
        let take = |out: &Path, run: &str, host: &str| Guard::take(out, run, host).unwrap();
        let first = take(&out, "run", "node1");
        let Answer::Ours(_) = &first else {
            panic!("{first:?}")
        };
        let us = std::process::id().cast_signed();
        std::fs::create_dir_all(&out).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&out, &link).unwrap();
        for same in [&out, &link, &out.join("../yet")] {
            let second = take(same, "run", "node1");
            assert!(
                matches!(second, Answer::Taken(pid) if pid == us),
                "{second:?}"
            );
        }
        let long = "long".repeat(60);
        for (out, run, host) in [
            (folder.path(), "run", "node1"),
            (&out, "run2", "node1"),
            (&out, "run", "node2"),
            (&out, &long, &long),
        ] {
            assert!(matches!(take(out, run, host), Answer::Ours(_)));
        }
        drop(first);
        assert!(matches!(take(&out, "run", "node1"), Answer::Ours(_)));
    }
}

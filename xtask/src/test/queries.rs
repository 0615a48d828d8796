//! One Python process that answers the queries of all tests, because each start of Python with DuckDB
//! takes 0.2 s of CPU time.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::workspace::Workspace;

/// Variable of the tests with the path of the socket.
pub const SOCKET: &str = "PROFILER_TEST_QUERIES";

/// The process, which ends with the tests.
pub struct QueryServer {
    process: Child,
    socket: PathBuf,
}

impl QueryServer {
    /// Starts the process and waits until it listens.
    pub fn start(workspace: &Workspace, python: &Path, directory: &Path) -> Result<Self> {
        const LIMIT: Duration = Duration::from_secs(120);
        let socket = directory.join("queries");
        let script = workspace.root.join("tests/scripts/read.py");
        let mut command = Command::new(python);
        command
            .arg(script)
            .arg("--serve")
            .arg(&socket)
            .env("TMPDIR", directory)
            .stdin(Stdio::null());
        let process = command.spawn().context("starting Python for queries")?;
        let mut server = Self { process, socket };
        let begin = Instant::now();
        while !server.socket.exists() {
            if let Some(status) = server.process.try_wait().context("waiting for Python")? {
                bail!("the process for queries failed ({status})");
            }
            if begin.elapsed() > LIMIT {
                bail!("the process for queries does not start");
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for QueryServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

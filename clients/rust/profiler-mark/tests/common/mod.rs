//! Runs a scenario, an ignored test of the same file, in a process of its own.

use std::{
    env, fs,
    os::unix::net::UnixDatagram,
    process::{self, Command},
    thread,
    time::Duration,
};

use serde_json::Value;

/// `cargo test` for this scenario only.
pub fn scenario(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("a path"));
    command
        .args(["--exact", name, "--ignored", "--quiet"])
        .env_remove("PROFILER_SOCKET");
    command
}

/// The marks that a scenario sends.
pub fn marks(name: &str) -> Vec<Value> {
    let path = env::temp_dir().join(format!("profiler-mark-{}-{name}.sock", process::id()));
    let _ = fs::remove_file(&path);
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("a timeout");
    let runner = thread::spawn({
        let mut command = scenario(name);
        command.env("PROFILER_SOCKET", &path);
        move || command.output().expect("the scenario starts")
    });
    let mut marks = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        let ended = runner.is_finished();
        match socket.recv(&mut buffer) {
            Ok(length) => marks.push(serde_json::from_slice(&buffer[..length]).expect("JSON")),
            Err(_) if ended => break,
            Err(_) => {}
        }
    }
    let _ = fs::remove_file(&path);
    let output = runner.join().expect("a thread");
    assert!(output.status.success(), "{output:?}");
    marks
}

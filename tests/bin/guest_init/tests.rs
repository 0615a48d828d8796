//! Runs test binaries as children.

use std::{
    io::{PipeReader, Read as _, Write as _, pipe, stdout},
    process::{self, Child, Command, Stdio},
    thread,
};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};

use crate::{machine::PATH, verdict::Verdict};

/// The steps of a guest, from `/plan`.
#[derive(Default)]
pub struct Plan {
    pub tests: Vec<String>,
    pub reports: Vec<String>,
    pub counters: Vec<String>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Plan {
    /// Parses lines `counters DEVICE`, `report COMMAND`, `test PATH`, `arg WORD` and `env
    /// NAME=VALUE`.
    pub fn parse(text: &str) -> Self {
        let mut plan = Self::default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("test", path)) => plan.tests.push(path.to_owned()),
                Some(("counters", device)) => plan.counters.push(device.to_owned()),
                Some(("report", command)) => plan.reports.push(command.to_owned()),
                Some(("arg", word)) => plan.arguments.push(word.to_owned()),
                Some(("env", variable)) => {
                    let pair = variable.split_once('=').unwrap_or((variable, ""));
                    plan.environment
                        .push((pair.0.to_owned(), pair.1.to_owned()));
                }
                _ => println!("guest: unknown step: {line}"),
            }
        }
        plan
    }
}

/// Prints the JSON output of a command on one line.
pub fn report(command: &str, verdict: &mut Verdict) {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap_or_default())
        .args(words)
        .stderr(Stdio::inherit())
        .output();
    let json = output.map(|output| serde_json::from_slice::<serde_json::Value>(&output.stdout));
    match json {
        Ok(Ok(json)) => println!("REPORT {json}"),
        Ok(Err(error)) => verdict.fail(&format!("{command}: {error}")),
        Err(error) => verdict.fail(&format!("{command}: {error}")),
    }
}

/// Runs a test binary, with its output on the console.
pub fn run(program: &str, plan: &Plan, verdict: &mut Verdict) {
    let (child, output) = match start(program, plan) {
        Ok(started) => started,
        Err(error) => return verdict.fail(&format!("starting {program}: {error}")),
    };
    let relay = thread::spawn(move || relay(output));
    let status = reap_until(&child);
    kill_other_processes();
    let results = relay.join().unwrap_or_default();
    let known = results.iter().filter(|line| verdict.add(line)).count();
    let reported = status.and_then(WaitStatus::exit_status).is_some();
    if known != 1 || !reported {
        verdict.fail(&format!("{program} ended without a result ({status:?})"));
    }
}

fn start(program: &str, plan: &Plan) -> std::io::Result<(Child, PipeReader)> {
    let (output, input) = pipe()?;
    let child = Command::new(program)
        .arg("--test-threads=1")
        .args(&plan.arguments)
        .env("PATH", PATH)
        .envs(plan.environment.iter().map(|(name, value)| (name, value)))
        .current_dir("/tmp")
        .stdin(Stdio::null())
        .stderr(input.try_clone()?)
        .stdout(input)
        .spawn()?;
    Ok((child, output))
}

/// Copies the output without buffering, so that a hanging test is visible; returns the result
/// lines.
fn relay(mut output: PipeReader) -> Vec<String> {
    let mut results = Vec::new();
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = output.read(&mut buffer) {
        let mut console = stdout().lock();
        let _ = console
            .write_all(&buffer[..length])
            .and_then(|()| console.flush());
        for byte in &buffer[..length] {
            if *byte == b'\n' {
                let text = String::from_utf8_lossy(&line).into_owned();
                results.extend(text.starts_with("test result: ").then_some(text));
                line.clear();
            } else {
                line.push(*byte);
            }
        }
    }
    if !line.is_empty() {
        println!();
    }
    results
}

/// Waits for the child, and reaps orphans meanwhile.
fn reap_until(child: &Child) -> Option<WaitStatus> {
    loop {
        let (pid, status) = wait(WaitOptions::empty()).ok()??;
        if u32::try_from(pid.as_raw_nonzero().get()) == Ok(child.id()) {
            return Some(status);
        }
    }
}

/// Kills processes that tests have left, because they may hold the pipe open.
fn kill_other_processes() {
    // As a service, this process must not kill the system.
    if process::id() != 1 {
        return;
    }
    // kill(-1) addresses all processes except init.
    let _ = kill_process_group(Pid::INIT, Signal::KILL);
    while wait(WaitOptions::empty()).is_ok() {}
}

//! Running test binaries, each as a child that is watched to its end.

use std::{
    io::{PipeReader, Read as _, Write as _, pipe, stdout},
    process::{self, Child, Command, Stdio},
    thread,
};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};

use crate::{machine::PATH, tally::Tally};

/// What is to be run, and how.
#[derive(Default)]
pub struct Orders {
    pub tests: Vec<String>,
    pub reports: Vec<String>,
    pub counters: Vec<String>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Orders {
    /// Lines `counters DEVICE`, `report COMMAND`, `test PATH`, `arg WORD` and `env NAME=VALUE`.
    pub fn parse(text: &str) -> Self {
        let mut orders = Self::default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("test", path)) => orders.tests.push(path.to_owned()),
                Some(("counters", device)) => orders.counters.push(device.to_owned()),
                Some(("report", command)) => orders.reports.push(command.to_owned()),
                Some(("arg", word)) => orders.arguments.push(word.to_owned()),
                Some(("env", variable)) => {
                    let pair = variable.split_once('=').unwrap_or((variable, ""));
                    orders
                        .environment
                        .push((pair.0.to_owned(), pair.1.to_owned()));
                }
                _ => println!("guest: an order that is not understood: {line}"),
            }
        }
        orders
    }
}

/// Shows on one line the JSON that a command prints.
pub fn report(command: &str, tally: &mut Tally) {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap_or_default())
        .args(words)
        .stderr(Stdio::inherit())
        .output();
    let json = output.map(|output| serde_json::from_slice::<serde_json::Value>(&output.stdout));
    match json {
        Ok(Ok(json)) => println!("REPORT {json}"),
        Ok(Err(error)) => tally.fail(&format!("{command}: {error}")),
        Err(error) => tally.fail(&format!("{command}: {error}")),
    }
}

/// Runs one binary, with its output on the console.
pub fn run(program: &str, orders: &Orders, tally: &mut Tally) {
    let (child, output) = match start(program, orders) {
        Ok(started) => started,
        Err(error) => return tally.fail(&format!("starting {program}: {error}")),
    };
    let relay = thread::spawn(move || relay(output));
    let status = reap_until(&child);
    end_all_others();
    let results = relay.join().unwrap_or_default();
    let known = results.iter().filter(|line| tally.add(line)).count();
    let reported = status.and_then(WaitStatus::exit_status).is_some();
    if known != 1 || !reported {
        tally.fail(&format!("{program} ended without a result ({status:?})"));
    }
}

fn start(program: &str, orders: &Orders) -> std::io::Result<(Child, PipeReader)> {
    let (output, input) = pipe()?;
    let child = Command::new(program)
        .arg("--test-threads=1")
        .args(&orders.arguments)
        .env("PATH", PATH)
        .envs(orders.environment.iter().map(|(name, value)| (name, value)))
        .current_dir("/tmp")
        .stdin(Stdio::null())
        .stderr(input.try_clone()?)
        .stdout(input)
        .spawn()?;
    Ok((child, output))
}

/// Copies what comes at once, so that one sees which test hangs; returns the lines with results.
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

/// Waits for the child; whoever lost its parent meanwhile is ours to bury as well.
fn reap_until(child: &Child) -> Option<WaitStatus> {
    loop {
        let (pid, status) = wait(WaitOptions::empty()).ok()??;
        if u32::try_from(pid.as_raw_nonzero().get()) == Ok(child.id()) {
            return Some(status);
        }
    }
}

/// What a test left behind must not live on: it may hold the pipe.
fn end_all_others() {
    // A service does not end the system that it runs in.
    if process::id() != 1 {
        return;
    }
    // The group of the first process stands for all other processes.
    let _ = kill_process_group(Pid::INIT, Signal::KILL);
    while wait(WaitOptions::empty()).is_ok() {}
}

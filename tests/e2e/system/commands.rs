//! Scripts, services and users of the guest.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{ChildStdout, Command, Output, Stdio},
};

use e2e::{
    procfs::is_idle,
    runs::{ProcessGroup, wait_until},
    setting,
};

fn output(command: &mut Command) -> (Output, String) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let text = text.concat();
    (output, text)
}

/// Runs a script as root, which must succeed; returns its stdout.
#[track_caller]
pub fn sh(script: &str) -> String {
    let (output, text) = output(Command::new("sh").args(["-ec", script]));
    assert!(output.status.success(), "{script}\n{text}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A command that runs as a user, with the groups of this user.
pub fn command_of(user: &str, words: &[&str]) -> Command {
    let mut command = Command::new("runuser");
    command.args(["--user", user, "--"]).args(words);
    command.current_dir("/");
    command
}

/// Runs a script as a user; returns whether it succeeded, and its output.
pub fn as_user(user: &str, script: &str) -> (bool, String) {
    let (output, text) = output(&mut command_of(user, &["sh", "-ec", script]));
    (output.status.success(), text)
}

/// A transient service that runs a script; stopped when it is dropped.
pub struct Service(String);

impl Service {
    /// Starts the service with properties such as `MemoryMax=64M`.
    pub fn start(name: &str, properties: &[&str], script: &str) -> Self {
        let mut command = Command::new("systemd-run");
        command.arg(format!("--unit={name}"));
        let properties = properties.iter().map(|text| format!("--property={text}"));
        command.args(properties).args(["sh", "-ec", script]);
        let (output, text) = output(&mut command);
        assert!(output.status.success(), "{command:?}\n{text}");
        Self(format!("{name}.service"))
    }

    /// Path of its cgroup below the mount point.
    pub fn cgroup(&self) -> String {
        format!("/system.slice/{}", self.0)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let stop = ["stop", "reset-failed"];
        for verb in stop {
            let _ = Command::new("systemctl").args([verb, &self.0]).output();
        }
    }
}

/// A script that waits until it is released.
pub struct Gated {
    script: ProcessGroup,
    /// Its stdout, which must stay open.
    output: BufReader<ChildStdout>,
}

impl Gated {
    pub fn start(script: &str) -> Self {
        Self::wrapped_in(&[], script)
    }

    /// Starts the script in a container or session that `wrapper` creates; returns when it waits.
    pub fn wrapped_in(wrapper: &[&str], script: &str) -> Self {
        let script = format!("echo ready; read go; {script}");
        let words = [wrapper, &["sh", "-ec", &script]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = ProcessGroup::start(&mut command);
        let mut output = BufReader::new(script.0.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("text");
        assert_eq!(line, "ready\n", "{words:?}");
        let gated = Self { script, output };
        wait_until("the script waits", || is_idle(gated.pid()));
        gated
    }

    /// Pid of the script, or of the wrapper.
    pub fn pid(&self) -> u32 {
        self.script.pid()
    }

    /// Lets the script run until it ends.
    #[track_caller]
    pub fn release(mut self) {
        let mut gate = self.script.0.stdin.take().expect("a pipe");
        gate.write_all(b"\n").expect("the script reads its stdin");
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("text");
        let status = self.script.0.wait().expect("our child");
        assert!(status.success(), "{status}: {rest}");
    }
}

/// Installs a unit of docs/deploy with the commands of its header, in a directory with the layout of
/// the project. The first file is the unit.
pub fn install_unit(files: &[(&str, &str)]) {
    let directory = tempfile::TempDir::new().expect("a temporary directory");
    for path in ["target/release", "docs/deploy"] {
        fs::create_dir_all(directory.path().join(path)).expect("made");
    }
    fs::copy(
        setting("PROFILER_BIN"),
        directory.path().join("target/release/profiler"),
    )
    .expect("a copy");
    for (name, text) in files {
        fs::write(directory.path().join("docs/deploy").join(name), text).expect("written");
    }
    let header = files[0].1.lines();
    let commands = header.filter_map(|line| line.strip_prefix("#   "));
    let commands: Vec<&str> = commands.collect();
    assert!(commands.len() > 2, "{commands:?}");
    sh(&format!(
        "cd {}\n{}",
        directory.path().display(),
        commands.join("\n")
    ));
}

/// Path of a profiler with file capabilities, which members of [`GROUP`] can execute.
pub const INSTALLED: &str = "/opt/profiler/bin/profiler";
const GROUP: &str = "profilers";

/// Installs it for the user `tester` with the command of docs/privileges.md.
pub fn install_with_capabilities() {
    let binary = setting("PROFILER_BIN");
    let page = include_str!("../../../docs/privileges.md");
    let setcap = page.lines().find(|line| line.starts_with("setcap "));
    let setcap = setcap
        .expect("the command")
        .replace("target/release/profiler", INSTALLED);
    sh(&format!(
        "groupadd --force {GROUP}; usermod --append --groups {GROUP} tester
         install -D -m 0750 -g {GROUP} {binary} {INSTALLED}
         {setcap}"
    ));
    let (allowed, text) = as_user("other", &format!("{INSTALLED} --version"));
    assert!(!allowed && text.contains("Permission denied"), "{text}");
}

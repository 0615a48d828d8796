//! Commands of the system.

use std::process::{Command, Output};

fn output(command: &mut Command) -> (Output, String) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let said = said.concat();
    (output, said)
}

/// Runs a script as root, which has to succeed; returns what it prints on stdout.
#[track_caller]
pub fn sh(script: &str) -> String {
    let (output, said) = output(Command::new("sh").args(["-ec", script]));
    assert!(output.status.success(), "{script}\n{said}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Whether a user may run this, and everything that the script prints.
pub fn as_user(user: &str, script: &str) -> (bool, String) {
    let mut command = Command::new("runuser");
    command.args(["--user", user, "--", "sh", "-ec", script]);
    command.current_dir("/");
    let (output, said) = output(&mut command);
    (output.status.success(), said)
}

/// A transient service that runs a script; it is stopped when this goes.
pub struct Service(String);

impl Service {
    /// With more properties, such as `MemoryMax=64M`.
    pub fn start(name: &str, properties: &[&str], script: &str) -> Self {
        let mut command = Command::new("systemd-run");
        command.arg(format!("--unit={name}"));
        let properties = properties.iter().map(|text| format!("--property={text}"));
        command.args(properties).args(["sh", "-ec", script]);
        let (output, said) = output(&mut command);
        assert!(output.status.success(), "{command:?}\n{said}");
        Self(format!("{name}.service"))
    }

    /// Its cgroup, below the mount.
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

//! Devices simulated by modules (`tests/environments/drivers`) or by the kernel, in a guest:
//! `cargo xtask test devices`.

mod energy;
mod fabric;
mod rxe;

use std::{
    ffi::{CStr, CString},
    fs::File,
    process::Command,
};

use rustix::system::{delete_module, finit_module};

/// A loaded module, unloaded when it is dropped.
pub struct Driver(&'static str);

impl Driver {
    pub fn load(name: &'static str) -> Self {
        Self::load_with(name, c"")
    }

    pub fn load_with(name: &'static str, parameters: &CStr) -> Self {
        let path = format!("/drivers/{name}.ko");
        let file = File::open(&path);
        let file = file.unwrap_or_else(|error| {
            panic!("{path}: {error}: use `cargo xtask test devices`");
        });
        finit_module(file, parameters, 0).unwrap_or_else(|error| panic!("loading {path}: {error}"));
        Self(name)
    }

    /// Writes a module parameter.
    pub fn set_parameter(&self, parameter: &str, value: &str) {
        let path = format!("/sys/module/{}/parameters/{parameter}", self.0);
        std::fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let name = CString::new(self.0).expect("a name");
        if let Err(error) = delete_module(&name, 0) {
            eprintln!("removing {}: {error}", self.0);
        }
    }
}

/// Runs a command that must succeed.
fn run(command: &[&str]) {
    let output = Command::new(command[0]).args(&command[1..]).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
}

/// Asserts that an increase matches a rate within 1 %.
fn assert_rate(what: &str, increase: u64, interval_ns: u64, per_second: f64) {
    let expected = per_second * interval_ns as f64 / 1e9;
    let off = (increase as f64 - expected).abs();
    // Integers are exact to 1.
    assert!(
        off <= expected * 0.01 + 1.0,
        "{what}: {increase}, not {expected} in {interval_ns} ns"
    );
}

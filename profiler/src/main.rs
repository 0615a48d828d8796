//! The `profiler` command.

use std::process::ExitCode;

use profiler::{cli, privileges, report};

fn main() -> ExitCode {
    let code = privileges::begin()
        .and_then(|()| cli::parse())
        .and_then(|cli| cli.command.run());
    match code {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            report!("profiler: {failure}");
            ExitCode::from(failure.reason as u8)
        }
    }
}

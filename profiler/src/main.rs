//! The `profiler` command.

use std::process::ExitCode;

use profiler::{
    cli, privileges,
    support::{
        log::{self, Level},
        resource_limits,
    },
};

fn main() -> ExitCode {
    let code = resource_limits::begin()
        .and_then(|()| privileges::begin())
        .and_then(|()| cli::parse())
        .and_then(|cli| cli.command.run());
    match code {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            log::message(
                Level::Error,
                module_path!(),
                format_args!("profiler: {failure}"),
            );
            ExitCode::from(failure.reason as u8)
        }
    }
}

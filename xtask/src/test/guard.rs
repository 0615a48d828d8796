//! Runs one test and removes what it leaves, also if it panics or is ended for its time, so that it
//! cannot change the result of another one. It is the runner of the end-to-end tests for cargo and
//! nextest.

use std::{
    env,
    ffi::OsString,
    io,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result};

use super::leftovers::TestDirectory;

/// `cargo xtask guard`
#[derive(clap::Args)]
pub struct Args {
    /// The test and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Signals for the test, whose end this process waits for.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

pub fn run(args: &Args) -> Result<ExitCode> {
    let (program, arguments) = args.command.split_first().context("no command")?;
    let mut command = Command::new(program);
    command.args(arguments);
    // nextest also asks for the names of the tests.
    if arguments.iter().any(|argument| argument == "--list") {
        return Err(command.exec()).with_context(|| format!("starting {}", program.display()));
    }
    set_handlers(&SIGNALS, libc::SIG_IGN)?;
    // SAFETY: signal(2) is safe to call between fork and exec.
    unsafe {
        command.pre_exec(|| set_handlers(&SIGNALS, libc::SIG_DFL));
    }
    let directory = TestDirectory::create(&env::temp_dir())?;
    let status = command
        .env("TMPDIR", directory.path())
        .status()
        .with_context(|| format!("starting {}", program.display()))?;
    // The test itself follows an option such as `--exact`.
    let test = arguments.iter().map(|argument| argument.to_string_lossy());
    let test = test.rev().find(|argument| !argument.starts_with('-'));
    directory.remove(&test.unwrap_or_default())?;
    let code = status.code();
    let code = code.or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn set_handlers(signals: &[i32], handler: libc::sighandler_t) -> io::Result<()> {
    for signal in signals {
        // SAFETY: the handler is one of the kernel's.
        if unsafe { libc::signal(*signal, handler) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

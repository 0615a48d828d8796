//! The subcommands, one module each.

pub mod check;
pub mod events;
pub mod mark;
pub mod recover;
pub mod run;
pub mod schema;
pub mod verify;

use std::io::Write as _;

use serde::Serialize;

use crate::failure::Failure;

/// Writes to stdout. Errors are ignored: the reader can have closed the pipe.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Writes JSON to stdout, one line per value.
fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::internal)?;
    print(&format!("{text}\n"));
    Ok(())
}

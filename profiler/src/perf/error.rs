//! Errors in the selection of events.

use std::path::PathBuf;

use perfevents::EncodeError;
use thiserror::Error;

use crate::failure::{Failure, Reason};

/// Why the selected groups or events cannot be planned.
#[derive(Debug, Error)]
pub enum Error {
    /// `--groups` without a name.
    #[error("--groups: no group given")]
    NoGroup,
    /// Changes of the default beside names without a sign.
    #[error(
        "--groups: names with + or - change the default, names without replace it: use one form"
    )]
    MixedGroups,
    /// A group that is in none of the tables.
    #[error("--groups {group}: unknown group; this CPU has {known}")]
    UnknownGroup {
        group: String,
        /// Groups of the tables.
        known: String,
    },
    /// `--events` with a syntax error.
    #[error("--events {0}")]
    Syntax(#[from] perfevents::RequestError),
    /// An event that is in none of the tables, without a PMU.
    #[error(
        "--events {event}: unknown event{}; `profiler events` lists the events of this CPU, and \
         cpu/event=0xc7,umask=0x1/ counts any code",
        similar.as_ref().map(|name| format!(", similar to {name}")).unwrap_or_default()
    )]
    UnknownEvent {
        event: String,
        /// An event that may be meant.
        similar: Option<String>,
    },
    /// An event of a PMU that this machine does not have.
    #[error("--events {event}: no PMU for this event; available PMUs: {available}")]
    NoPmu {
        event: String,
        /// PMUs of this machine.
        available: String,
    },
    /// An event that the PMU cannot encode.
    #[error("--events {event}: {error}")]
    Encode {
        event: String,
        /// Reason.
        error: EncodeError,
    },
    /// Events of several PMUs in one group.
    #[error("--events {event}: in braces with an event of another PMU ({pmus}, {other_pmus})")]
    MixedPmus {
        event: String,
        pmus: String,
        /// PMUs of the other event.
        other_pmus: String,
    },
    /// A directory of tables that cannot be read.
    #[error("--perfevents {}: {error}", directory.display())]
    Catalog {
        directory: PathBuf,
        /// Reason.
        error: perfevents::Error,
    },
    /// A table with a contradiction.
    #[error("--perfevents {}: {table}.toml: {problem}", directory.display())]
    Table {
        directory: PathBuf,
        /// Id of the table.
        table: String,
        /// First problem.
        problem: String,
    },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(Reason::Usage, error.to_string())
    }
}

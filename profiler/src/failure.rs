//! Failures that end the program, and their exit codes.

use std::fmt;

/// Why the program ends; the table of codes is in `docs/exit-codes.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Something that should not happen.
    Internal = 1,
    /// The command line or a configuration file.
    Usage = 2,
    /// The target was not found, or has gone.
    Target = 3,
    /// Privileges are missing.
    Privilege = 4,
    /// The output cannot be written, or rows were lost.
    Output = 5,
    /// With `--strict`: a source is missing.
    Strict = 6,
    /// `verify`: not all is well.
    VerifyFailed = 7,
    /// The command exists but cannot be run, as in sh(1).
    CannotRun = 126,
    /// The command was not found, as in sh(1).
    NotFound = 127,
}

/// One clear line, and the exit code that goes with it.
#[derive(Debug)]
pub struct Failure {
    /// Decides the exit code.
    pub reason: Reason,
    /// What to tell the user; says what to do.
    pub message: String,
}

impl Failure {
    /// A failure to return.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Says a line on stderr or, with `--log`, in the file.
#[macro_export]
macro_rules! report {
    ($($arg:tt)*) => {
        $crate::support::log::line(format_args!($($arg)*))
    };
}

/// Errors without a reason of their own, with all their causes in one line.
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(failure) => failure,
            Err(error) => Self::new(Reason::Internal, format!("{error:#}")),
        }
    }
}

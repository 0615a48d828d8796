//! Failures that end the program, and their exit codes.

pub mod os_error;

use std::fmt;

use self::os_error::without_code;

/// Cause of a failure. The value is the exit code; `docs/exit-codes.md` has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// An error that no input should be able to cause.
    Internal = 1,
    /// The command line or a configuration file.
    Usage = 2,
    /// The target was not found or has ended.
    Target = 3,
    /// Privileges are missing, or a resource limit is too low.
    Privilege = 4,
    /// The output cannot be written, or rows were lost.
    Output = 5,
    /// `--strict` and a source that does not work.
    Strict = 6,
    /// `verify` found problems.
    VerifyFailed = 7,
    /// `compare --fail-on` found a difference.
    Difference = 8,
    /// `compare --fail-on` had too few runs to tell.
    Undecided = 9,
    /// The command exists but cannot be executed, as in sh(1).
    CannotRun = 126,
    /// The command was not found, as in sh(1).
    NotFound = 127,
}

/// A message for the user with its exit code.
#[derive(Debug)]
pub struct Failure {
    /// Determines the exit code.
    pub reason: Reason,
    /// One line, with the remedy where there is one.
    pub message: String,
}

impl Failure {
    /// Builds a failure.
    pub fn new(reason: Reason, message: impl AsRef<str>) -> Self {
        Self {
            reason,
            message: without_code(message.as_ref()).into_owned(),
        }
    }

    pub fn internal(error: impl fmt::Display) -> Self {
        Self::new(Reason::Internal, error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// An error without a reason is internal; its causes go into one line.
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(failure) => failure,
            Err(error) => Self::new(Reason::Internal, format!("{error:#}")),
        }
    }
}

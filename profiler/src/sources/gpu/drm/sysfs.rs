//! Files of sysfs. Missing values are null; values that cannot be read or are malformed are null
//! and reported as an error.

use std::{io::ErrorKind, path::Path};

use crate::host::content;

/// Reads the files of one reading.
#[derive(Debug, Default)]
pub(super) struct Sysfs {
    /// The first error.
    pub(super) error: Option<String>,
}

impl Sysfs {
    /// Content of a file.
    pub(super) fn bytes(&mut self, path: &Path) -> Option<Vec<u8>> {
        let error = match content(path) {
            Ok(bytes) => return Some(bytes),
            Err(error) => error,
        };
        // Errors of drivers for a missing sensor or a suspended chip.
        let absent = [libc::EOPNOTSUPP, libc::ENODATA, libc::EPERM];
        let code = error.raw_os_error();
        if error.kind() != ErrorKind::NotFound && !code.is_some_and(|code| absent.contains(&code)) {
            self.failed(path, &error.to_string());
        }
        None
    }

    /// Text of a file without surrounding white space.
    pub(super) fn text(&mut self, path: &Path) -> Option<String> {
        let bytes = self.bytes(path)?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Number in a file; `None` if it is negative, by which drivers mark unknown values.
    pub(super) fn number(&mut self, path: &Path) -> Option<u64> {
        let text = self.text(path)?;
        let number = text.parse().ok();
        if number.is_none() && text.parse::<i64>().is_err() {
            self.failed(path, "not a number");
        }
        number
    }

    /// Percentage in a file.
    pub(super) fn percent(&mut self, path: &Path) -> Option<u64> {
        let number = self.number(path)?;
        if number > 100 {
            self.failed(path, "more than 100 %");
            return None;
        }
        Some(number)
    }

    fn failed(&mut self, path: &Path, what: &str) {
        self.error
            .get_or_insert_with(|| format!("{}: {what}", path.display()));
    }
}

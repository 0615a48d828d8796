//! Small files of sysfs: what is not there is null; what cannot be read, or makes no sense, is null and counted.

use std::{io::ErrorKind, path::Path};

use crate::host::content;

/// The files of one reading.
#[derive(Debug, Default)]
pub(super) struct Sysfs {
    /// The first failure.
    pub(super) error: Option<String>,
}

impl Sysfs {
    /// All of a file.
    pub(super) fn bytes(&mut self, path: &Path) -> Option<Vec<u8>> {
        let error = match content(path) {
            Ok(bytes) => return Some(bytes),
            Err(error) => error,
        };
        // So drivers say that this chip has no such sensor, or that it is just now asleep.
        let absent = [libc::EOPNOTSUPP, libc::ENODATA, libc::EPERM];
        let code = error.raw_os_error();
        if error.kind() != ErrorKind::NotFound && !code.is_some_and(|code| absent.contains(&code)) {
            self.failed(path, &error.to_string());
        }
        None
    }

    /// Its text without the white space around it.
    pub(super) fn text(&mut self, path: &Path) -> Option<String> {
        let bytes = self.bytes(path)?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Its number, which is not negative.
    pub(super) fn number(&mut self, path: &Path) -> Option<u64> {
        let text = self.text(path)?;
        let number = text.parse().ok();
        if number.is_none() {
            self.failed(path, "not a number");
        }
        number
    }

    /// A number of per cent.
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

//! Files of procfs with one line of counters per device.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::file::{KernelFile, lines};
use crate::support::{
    clock::monotonic_ns,
    delta::Range,
    device_counters::{Devices, Increase},
};

/// Parses a line into the name of the device and its values; `None` for other lines.
pub(crate) type ParseLine<const N: usize> = fn(&[u8]) -> Option<(&[u8], [Option<u64>; N])>;

/// A file with `N` values per device.
pub(crate) struct DeviceFile<F, const N: usize> {
    file: KernelFile,
    parse: ParseLine<N>,
    devices: Devices<F, N>,
}

impl<F, const N: usize> DeviceFile<F, N> {
    /// Reads nothing yet; `ranges` are those of the values.
    pub(crate) fn new(path: PathBuf, ranges: [Range; N], parse: ParseLine<N>) -> Self {
        Self {
            file: KernelFile::new(path),
            parse,
            devices: Devices::new(ranges),
        }
    }

    /// Reads the file and calls `each` for every device that was also in the previous reading.
    /// `facts` is called with the name of each new device.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub(crate) fn read(
        &mut self,
        facts: impl Fn(&str) -> F,
        mut each: impl FnMut(Increase<'_, F, N>),
    ) -> Result<()> {
        let now = monotonic_ns();
        let path = self.file.path().to_owned();
        let text = self.file.read();
        let text = text.with_context(|| path.display().to_string())?;
        self.devices.begin();
        for (name, values) in lines(text).filter_map(self.parse) {
            let facts = || facts(&String::from_utf8_lossy(name));
            if let Some(increase) = self.devices.read(name, now, values, facts) {
                each(increase);
            }
        }
        Ok(())
    }
}

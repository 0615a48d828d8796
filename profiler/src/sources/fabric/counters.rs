//! Directories of counters, each of which is a file.

use std::path::Path;

use anyhow::{Error, anyhow};
use rustix::io::Errno;

use crate::{
    host::names,
    procfs::file::{KernelFile, lines, number},
    schema::Label,
    support::delta::{self, Change},
};

/// Kind of a directory of counters in sysfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Counters of the port's performance management agent, which the InfiniBand specification
    /// defines (`PortCounters`).
    Counters,
    /// Other counters of the driver.
    HwCounters,
    /// Counters of Slingshot.
    Telemetry,
}

impl Kind {
    /// Name of the directory.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Counters => "counters",
            Self::HwCounters => "hw_counters",
            Self::Telemetry => "telemetry",
        }
    }

    /// Whether a file of the directory is a counter that is stored.
    fn has(self, name: &str) -> bool {
        match self {
            Self::Counters => true,
            // `lifespan` is a setting: how long the kernel caches values. bnxt_re has gauges.
            Self::HwCounters => {
                name != "lifespan"
                    && !name.starts_with("active_")
                    && !name.starts_with("watermark_")
            }
            // About 1,900 counters exist, each of which is read over PCIe: only those of the
            // network.
            Self::Telemetry => name.starts_with("hni_"),
        }
    }

    /// Parses `12\n`, or `12@1732226400.000000000\n` of telemetry. A truncated line is ignored.
    fn number(self, text: &[u8]) -> Option<u64> {
        let line = lines(text).next()?;
        let value = match self {
            Self::Telemetry => &line[..line.iter().position(|&byte| byte == b'@')?],
            Self::Counters | Self::HwCounters => line,
        };
        number(value)
    }
}

/// Whether the driver does not have the counter: `N/A (no PMA)`.
fn is_absent(text: &[u8]) -> bool {
    text.starts_with(b"N/A")
}

/// Value at which a counter of the performance management agent stops, from its width in the
/// specification (`struct ib_pma_portcounters` of include/rdma/ib_pma.h).
fn maximum(name: &str, extended: bool) -> Option<u64> {
    let bits = match name {
        "local_link_integrity_errors" | "excessive_buffer_overrun_errors" => 4,
        "link_error_recovery"
        | "link_downed"
        | "port_xmit_constraint_errors"
        | "port_rcv_constraint_errors" => 8,
        "symbol_error"
        | "port_rcv_errors"
        | "port_rcv_remote_physical_errors"
        | "port_rcv_switch_relay_errors"
        | "port_xmit_discards"
        | "VL15_dropped" => 16,
        "port_xmit_wait" => 32,
        "port_xmit_data" | "port_rcv_data" | "port_xmit_packets" | "port_rcv_packets"
            if !extended =>
        {
            32
        }
        _ => return None,
    };
    Some((1 << bits) - 1)
}

/// State of one reading of all devices.
#[derive(Debug, Default)]
pub(super) struct Reading {
    buffer: Vec<u8>,
    /// The first error.
    pub(super) error: Option<Error>,
    /// Whether the present device was removed.
    pub(super) gone: bool,
}

impl Reading {
    pub(super) fn read(&mut self, file: &mut KernelFile) -> Option<&[u8]> {
        match file.read_into(&mut self.buffer) {
            Ok(text) => Some(text),
            Err(error) => {
                self.gone |= Errno::from_io_error(&error) == Some(Errno::NODEV);
                let path = file.path().display();
                self.error.get_or_insert_with(|| anyhow!("{path}: {error}"));
                None
            }
        }
    }
}

/// The counters of one directory.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) kind: Kind,
    pub(super) counters: Vec<Counter>,
}

#[derive(Debug)]
pub(super) struct Counter {
    pub(super) name: Label,
    /// Increase since the previous reading; null if it is unknown.
    pub(super) increase: Option<u64>,
    file: KernelFile,
    readings: delta::Counter,
    maximum: Option<u64>,
    is_full: bool,
}

impl Directory {
    /// Finds the counters of this kind below `parent`; `None` if there are none.
    pub(super) fn find(parent: &Path, kind: Kind) -> Option<Self> {
        let directory = parent.join(kind.name());
        let mut names = names(&directory, "");
        names.retain(|name| kind.has(name));
        // This counter exists only in the extended set, whose counters have 64 bits.
        let extended = names.iter().any(|name| name == "unicast_xmit_packets");
        let counters = names.into_iter().map(|name| Counter {
            file: KernelFile::new(directory.join(&name)),
            maximum: match kind {
                Kind::Counters => maximum(&name, extended),
                Kind::HwCounters | Kind::Telemetry => None,
            },
            name: name.into(),
            increase: None,
            readings: delta::Counter::default(),
            is_full: false,
        });
        let mut counters: Vec<_> = counters.collect();
        let mut reading = Reading::default();
        // An error shows again when the file is read at a sample.
        counters.retain_mut(|counter| {
            if kind == Kind::Counters {
                return !reading.read(&mut counter.file).is_some_and(is_absent);
            }
            let _ = counter.file.open();
            true
        });
        (!counters.is_empty()).then_some(Self { kind, counters })
    }

    /// Reads all counters.
    pub(super) fn read(&mut self, reading: &mut Reading) {
        let mut was_reset = false;
        for counter in &mut self.counters {
            let value = counter.read(self.kind, reading);
            let change = counter.readings.change(value);
            counter.increase = change.increase();
            was_reset |= change == Change::Reset;
        }
        // They are reset together. Others may already have passed their previous value.
        if was_reset && self.kind == Kind::Counters {
            for counter in &mut self.counters {
                counter.increase = None;
            }
        }
    }
}

impl Counter {
    /// The value, unless it is at its maximum or cannot be read.
    fn read(&mut self, kind: Kind, reading: &mut Reading) -> Option<u64> {
        let text = reading.read(&mut self.file)?;
        if is_absent(text) {
            return None;
        }
        let value = kind.number(text);
        let was_full = self.is_full;
        self.is_full = value.is_some() && value == self.maximum;
        let problem = match value {
            None => ": not a number".to_owned(),
            // A device that does not answer returns all ones.
            Some(u64::MAX) => format!(": {}", u64::MAX),
            Some(_) if was_full && self.is_full => return None,
            Some(value) if self.is_full => format!(
                " stays at its maximum, {value}, and is null until it is reset (perfquery -R)"
            ),
            value => return value,
        };
        let path = self.file.path().display();
        reading
            .error
            .get_or_insert_with(|| anyhow!("{path}{problem}"));
        None
    }
}

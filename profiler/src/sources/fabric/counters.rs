//! A directory of counters, each of them a file.

use std::path::Path;

use anyhow::{Error, anyhow};
use rustix::io::Errno;

use crate::{
    host::names,
    procfs::file::{KernelFile, lines, number},
    schema::Label,
};

/// Which directory of sysfs it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Those of the port's performance management agent, which the InfiniBand specification names (`PortCounters`).
    Counters,
    /// Those that a driver has beside them.
    HwCounters,
    /// Those of Slingshot.
    Telemetry,
}

impl Kind {
    /// Its name in sysfs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Counters => "counters",
            Self::HwCounters => "hw_counters",
            Self::Telemetry => "telemetry",
        }
    }

    /// Whether a file in it is a counter, and one that is stored.
    fn has(self, name: &str) -> bool {
        match self {
            Self::Counters => true,
            // A setting: how long the kernel keeps what it has read. And levels, not counts, of bnxt_re.
            Self::HwCounters => {
                name != "lifespan"
                    && !name.starts_with("active_")
                    && !name.starts_with("watermark_")
            }
            // Of some 1900, each a reading across PCIe, those of the network's side.
            Self::Telemetry => name.starts_with("hni_"),
        }
    }

    /// `12\n`; in telemetry `12@1732226400.000000000\n`. A line without its end was cut off.
    fn number(self, text: &[u8]) -> Option<u64> {
        let line = lines(text).next()?;
        let value = match self {
            Self::Telemetry => &line[..line.iter().position(|&byte| byte == b'@')?],
            Self::Counters | Self::HwCounters => line,
        };
        number(value)
    }
}

/// Where a counter of the performance management agent stays when it is full, by the width that the specification
/// gives it (`struct ib_pma_portcounters` of include/rdma/ib_pma.h).
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

/// What readings have in common.
#[derive(Debug, Default)]
pub(super) struct Reading {
    buffer: Vec<u8>,
    /// The first thing that went wrong.
    pub(super) error: Option<Error>,
    /// The device that is being read is not there any more.
    pub(super) gone: bool,
}

impl Reading {
    /// What a file has now.
    pub(super) fn of(&mut self, file: &mut KernelFile) -> Option<&[u8]> {
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
    /// What was added since the reading before; null where that cannot be known.
    pub(super) increase: Option<u64>,
    file: KernelFile,
    maximum: Option<u64>,
    is_full: bool,
    value: Option<u64>,
}

impl Directory {
    /// The counters below `parent`; `None` if it has none of this kind.
    pub(super) fn find(parent: &Path, kind: Kind) -> Option<Self> {
        let directory = parent.join(kind.name());
        let mut names = names(&directory, "");
        names.retain(|name| kind.has(name));
        // With these the kernel has taken all from the extended set, whose counters are 64 bits wide.
        let extended = names.iter().any(|name| name == "unicast_xmit_packets");
        let counters = names.into_iter().map(|name| Counter {
            file: KernelFile::new(directory.join(&name)),
            maximum: match kind {
                Kind::Counters => maximum(&name, extended),
                Kind::HwCounters | Kind::Telemetry => None,
            },
            name: name.into(),
            increase: None,
            is_full: false,
            value: None,
        });
        let mut counters: Vec<_> = counters.collect();
        for counter in &mut counters {
            // What fails fails again when it is read.
            let _ = counter.file.open();
        }
        (!counters.is_empty()).then_some(Self { kind, counters })
    }

    /// Reads all of them.
    pub(super) fn read(&mut self, reading: &mut Reading) {
        let mut was_reset = false;
        for counter in &mut self.counters {
            let before = counter.value;
            counter.read(self.kind, reading);
            let both = before.zip(counter.value);
            counter.increase = both.and_then(|(before, now)| now.checked_sub(before));
            was_reset |= both.is_some() && counter.increase.is_none();
        }
        // They are reset together, and another may have passed its former value since.
        if was_reset && self.kind == Kind::Counters {
            for counter in &mut self.counters {
                counter.increase = None;
            }
        }
    }
}

impl Counter {
    fn read(&mut self, kind: Kind, reading: &mut Reading) {
        self.value = None;
        let Some(text) = reading.of(&mut self.file) else {
            return;
        };
        let value = kind.number(text);
        let path = self.file.path().display();
        let mut say = |what: String| {
            reading.error.get_or_insert_with(|| anyhow!("{path}{what}"));
        };
        match value {
            None => say(": not a number".to_owned()),
            // All bits: what comes from a device that does not answer.
            Some(u64::MAX) => say(format!(": {}", u64::MAX)),
            Some(value) if Some(value) == self.maximum => {
                if !self.is_full {
                    say(format!(
                        " stays at its maximum, {value}, and is null until it is reset (perfquery -R)"
                    ));
                }
            }
            Some(value) => self.value = Some(value),
        }
        self.is_full = value.is_some() && value == self.maximum;
    }
}

//! Ports: their directories in sysfs, and the counters of each column.

use std::{fs, path::Path};

use super::counters::{Counter, Directory, Kind, Reading};
use crate::{
    host::{names, text},
    procfs::file::{KernelFile, number, words},
    schema::Label,
    support::delta::Interval,
};

/// Device class, a directory of `/sys/class`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// Devices of the RDMA core (Documentation/ABI/stable/sysfs-class-infiniband): InfiniBand,
    /// RoCE, iWARP, EFA and Omni-Path.
    Infiniband,
    /// Cassini, the network interface of Slingshot, with the driver of HPE.
    Cxi,
}

impl Class {
    pub(super) const ALL: [Self; 2] = [Self::Infiniband, Self::Cxi];

    /// Names of the present devices.
    pub(super) fn devices(self, sysfs: &Path) -> Vec<String> {
        match self {
            Self::Infiniband => names(&sysfs.join("class/infiniband"), ""),
            Self::Cxi => names(&sysfs.join("class/cxi"), "cxi"),
        }
    }

    /// The ports of a device, and the device itself if it has counters.
    pub(super) fn ports(self, sysfs: &Path, device: &str) -> Vec<Port> {
        match self {
            Self::Infiniband => infiniband(&sysfs.join("class/infiniband").join(device), device),
            Self::Cxi => vec![slingshot(&sysfs.join("class/cxi").join(device))],
        }
    }
}

/// A port, or a device with counters.
#[derive(Debug)]
pub(super) struct Port {
    /// Number of the port; `None` for a device, and for Slingshot, whose devices have one port.
    pub(super) number: Option<u32>,
    /// `None` for a device, which has no row in `fabric`.
    pub(super) link: Option<Link>,
    pub(super) directories: Vec<Directory>,
    columns: [Column; COLUMNS],
    /// Time between readings.
    pub(super) interval: Interval,
}

/// State and rate of the link of a port.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) layer: Option<Label>,
    state: KernelFile,
    rate: KernelFile,
    class: Class,
}

/// Counters whose sum is one column, as indexes of directory and counter, and their unit.
#[derive(Debug, Default)]
struct Column {
    counters: Vec<(usize, usize)>,
    unit: u64,
}

/// Number of columns: tx_bytes, rx_bytes, tx_packets, rx_packets, xmit_wait, errors, discards.
pub(super) const COLUMNS: usize = 7;

/// Marks counters whose unit is the word of the port.
const WORDS: u64 = 0;

/// Counters of each column, with their unit; the first one that a port has is used. A name that
/// ends with `_` is the sum of several counters, whose names continue with a number.
const SOURCES: [&[(Kind, &str, u64)]; COLUMNS] = [
    &[
        (Kind::Counters, "port_xmit_data", WORDS),
        (Kind::HwCounters, "tx_bytes", 1),
        (Kind::Telemetry, "hni_sts_tx_ok_octets", 1),
    ],
    &[
        (Kind::Counters, "port_rcv_data", WORDS),
        (Kind::HwCounters, "rx_bytes", 1),
        (Kind::Telemetry, "hni_sts_rx_ok_octets", 1),
    ],
    &[
        (Kind::Counters, "port_xmit_packets", 1),
        (Kind::HwCounters, "tx_pkts", 1),
        (Kind::HwCounters, "sent_pkts", 1),
        (Kind::Telemetry, "hni_pkts_sent_by_tc_", 1),
    ],
    &[
        (Kind::Counters, "port_rcv_packets", 1),
        (Kind::HwCounters, "rx_pkts", 1),
        (Kind::HwCounters, "rcvd_pkts", 1),
        (Kind::Telemetry, "hni_pkts_recv_by_tc_", 1),
    ],
    &[(Kind::Counters, "port_xmit_wait", 1)],
    &[(Kind::Counters, "port_rcv_errors", 1)],
    &[
        (Kind::Counters, "port_xmit_discards", 1),
        (Kind::Telemetry, "hni_discard_cntr_", 1),
    ],
];

/// `PortXmitData` counts 32-bit words.
const INFINIBAND_WORD: u64 = 4;
/// hfi1 reports the flits that its hardware counts (`pma_get_opa_port_dctrs` of
/// drivers/infiniband/hw/hfi1/mad.c).
const OMNI_PATH_FLIT: u64 = 8;

fn infiniband(device: &Path, name: &str) -> Vec<Port> {
    let driver = fs::read_link(device.join("device/driver")).unwrap_or_default();
    // Its link layer is reported as InfiniBand.
    let is_omni_path = driver.file_name().is_some_and(|name| name == "hfi1")
        || driver.as_os_str().is_empty() && name.starts_with("hfi1_");
    let directory = device.join("ports");
    let numbers = names(&directory, "").into_iter().filter_map(|name| {
        let number = name.parse().ok()?;
        Some((number, directory.join(name)))
    });
    let ports = numbers.map(|(number, directory)| {
        let layer = if is_omni_path {
            Some(Label::Static("OmniPath"))
        } else {
            text(&directory.join("link_layer")).map(Label::from)
        };
        let link = Link {
            layer,
            state: KernelFile::new(directory.join("state")),
            rate: KernelFile::new(directory.join("rate")),
            class: Class::Infiniband,
        };
        let kinds = [Kind::Counters, Kind::HwCounters];
        let word = if is_omni_path {
            OMNI_PATH_FLIT
        } else {
            INFINIBAND_WORD
        };
        let directories = kinds.map(|kind| Directory::find(&directory, kind));
        Port::new(
            Some(number),
            Some(link),
            directories.into_iter().flatten(),
            word,
        )
    });
    let own = Directory::find(device, Kind::HwCounters).map(|own| Port::new(None, None, [own], 1));
    ports.chain(own).collect()
}

fn slingshot(device: &Path) -> Port {
    let device = device.join("device");
    let link = Link {
        layer: Some(Label::Static("Slingshot")),
        state: KernelFile::new(device.join("port/link")),
        rate: KernelFile::new(device.join("port/speed")),
        class: Class::Cxi,
    };
    Port::new(
        None,
        Some(link),
        Directory::find(&device, Kind::Telemetry),
        1,
    )
}

impl Port {
    fn new(
        number: Option<u32>,
        link: Option<Link>,
        directories: impl IntoIterator<Item = Directory>,
        word: u64,
    ) -> Self {
        let directories: Vec<_> = directories.into_iter().collect();
        let columns = SOURCES.map(|sources| {
            let found = sources.iter().find_map(|(kind, name, unit)| {
                let counters = find(&directories, *kind, name);
                let unit = if *unit == WORDS { word } else { *unit };
                (!counters.is_empty()).then_some(Column { counters, unit })
            });
            found.unwrap_or_default()
        });
        Self {
            number,
            link,
            directories,
            columns,
            interval: Interval::default(),
        }
    }

    pub(super) fn increases(&self) -> [Option<u64>; COLUMNS] {
        self.columns.each_ref().map(|column| {
            let increase = |(directory, counter): &(usize, usize)| {
                let directory: &Directory = self.directories.get(*directory)?;
                directory.counters.get(*counter)?.increase
            };
            let increases = column.counters.iter().map(increase);
            let sum = increases.reduce(|sum, increase| sum?.checked_add(increase?))??;
            sum.checked_mul(column.unit)
        })
    }

    /// Counters that are not columns.
    pub(super) fn other_counters(&self) -> impl Iterator<Item = (Kind, &Counter)> {
        let directories = self.directories.iter().enumerate();
        directories.flat_map(move |(index, directory)| {
            let counters = directory.counters.iter().enumerate();
            let others = counters.filter(move |(counter, _)| {
                directory.kind != Kind::Counters || !self.is_column(index, *counter)
            });
            others.map(|(_, counter)| (directory.kind, counter))
        })
    }

    fn is_column(&self, directory: usize, counter: usize) -> bool {
        let mut columns = self.columns.iter();
        columns.any(|column| column.counters == [(directory, counter)])
    }
}

/// Indexes of the counters with this name.
fn find(directories: &[Directory], kind: Kind, name: &str) -> Vec<(usize, usize)> {
    let is = |candidate: &str| {
        candidate == name
            || name.ends_with('_')
                && candidate.strip_prefix(name).is_some_and(|rest| {
                    !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit())
                })
    };
    let mut found = Vec::new();
    for (directory, of_directory) in directories.iter().enumerate() {
        let counters = of_directory.counters.iter().enumerate();
        let named =
            counters.filter(|(_, counter)| of_directory.kind == kind && is(counter.name.as_str()));
        found.extend(named.map(|(counter, _)| (directory, counter)));
    }
    found
}

impl Link {
    /// Reads state and rate (bit/s).
    pub(super) fn read(&mut self, reading: &mut Reading) -> (Option<Label>, Option<u64>) {
        let state = reading
            .read(&mut self.state)
            .and_then(|text| state(self.class, text));
        let rate = reading
            .read(&mut self.rate)
            .and_then(|text| rate(self.class, text));
        (state, rate)
    }
}

/// Parses `4: ACTIVE`, or `up` of Slingshot.
fn state(class: Class, text: &[u8]) -> Option<Label> {
    let mut words = words(text);
    if class == Class::Infiniband {
        let number = words.next()?.strip_suffix(b":")?;
        number.iter().all(u8::is_ascii_digit).then_some(())?;
    }
    let word = words.next()?;
    // Cassini 2 reports `NOT IMPLEMENTED!!`.
    words.next().is_none().then_some(())?;
    Some(Label::from(str::from_utf8(word).ok()?.to_owned()))
}

/// Parses `2.5 Gb/sec (1X SDR)`, or `BS_200G` of Slingshot.
fn rate(class: Class, text: &[u8]) -> Option<u64> {
    let mut words = words(text);
    let first = words.next()?;
    let gigabits = match class {
        Class::Infiniband if words.next() == Some(b"Gb/sec") => first,
        Class::Infiniband => return None,
        Class::Cxi => {
            let begin = first.iter().position(|&byte| byte == b'_')? + 1;
            first[begin..].strip_suffix(b"G")?
        }
    };
    let dot = gigabits.iter().position(|&byte| byte == b'.');
    let (whole, tenths) = gigabits.split_at(dot.unwrap_or(gigabits.len()));
    let tenths = match tenths {
        [] => 0,
        [b'.', digit @ b'0'..=b'9'] => u64::from(digit - b'0'),
        _ => return None,
    };
    let tenths = number(whole)?.checked_mul(10)?.checked_add(tenths)?;
    // 0 and -1 without its sign are unknown rates.
    (1..u64::from(u32::MAX / 10))
        .contains(&tenths)
        .then(|| tenths * 100_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_rates_are_parsed() {
        let of = |text: &str| {
            let state = state(Class::Infiniband, text.as_bytes());
            state.map(|state| state.as_str().to_owned())
        };
        assert_eq!(of("4: ACTIVE\n").as_deref(), Some("ACTIVE"));
        assert_eq!(of("5: ACTIVE_DEFER\n").as_deref(), Some("ACTIVE_DEFER"));
        for bad in ["", "4", "4: ", "ACTIVE", "x: ACTIVE", "4: \u{0}\u{1} y"] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
        let up = state(Class::Cxi, b"up");
        assert_eq!(up.as_ref().map(Label::as_str), Some("up"));
        assert_eq!(state(Class::Cxi, b"NOT IMPLEMENTED!!\n"), None);
        let of = |text: &str| rate(Class::Infiniband, text.as_bytes());
        assert_eq!(of("400 Gb/sec (4X NDR)\n"), Some(400_000_000_000));
        assert_eq!(of("2.5 Gb/sec (1X SDR)\n"), Some(2_500_000_000));
        for bad in [
            "",
            "100",
            "-1 Gb/sec",
            "0 Gb/sec (4X SDR)",
            "429496729.5 Gb/sec (4X SDR)",
            "fast Gb/sec",
            "100 Mb/sec",
        ] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
        assert_eq!(rate(Class::Cxi, b"BS_200G"), Some(200_000_000_000));
        for bad in ["NA", "NOT IMPLEMENTED!!\n", "BS_G", "BS_"] {
            assert_eq!(rate(Class::Cxi, bad.as_bytes()), None, "{bad:?}");
        }
    }
}

//! PMUs of the running machine, as the kernel describes them in `/sys/bus/event_source/devices`
//! (Documentation/ABI/testing/sysfs-bus-event_source-devices-format and -events).

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::{CACHE_PMU, CORE_PMU, Event, HARDWARE_PMU, SOFTWARE_PMU, Term};

/// Number of words of `perf_event_attr` that hold a code: `config`, `config1`, `config2`,
/// `config3`.
pub const WORDS: usize = 4;

/// A PMU, or one instance of it.
#[derive(Clone, Debug)]
pub struct Device {
    /// Name in sysfs: `cpu`, `uncore_imc_0`.
    pub name: String,
    /// `perf_event_attr.type`.
    pub kind: u32,
    /// Positions of the fields of a code.
    pub(crate) formats: BTreeMap<String, Format>,
    pub(crate) directory: PathBuf,
    /// Bits set in every `config`: the core PMU of a generic event, if there are several kinds of
    /// cores.
    pub(crate) base: u64,
}

/// Position of one field of a code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Index of the word.
    pub word: usize,
    /// First and last bit of each part; the first part has the lowest bits of the value.
    pub bits: Vec<(u32, u32)>,
}

/// An event as perf_event_open(2) takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// `perf_event_attr.type`.
    pub kind: u32,
    /// `config`, `config1`, `config2`, `config3`.
    pub config: [u64; WORDS],
}

/// A code that a PMU does not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The field is missing in the `format/` of the PMU.
    #[error("PMU {pmu} has no field {field}")]
    Field {
        /// The PMU.
        pmu: String,
        /// The field.
        field: String,
    },
    /// No field of the PMU's `format/` is in this word. The kernel would ignore it and count
    /// another event.
    #[error("PMU {pmu} ignores {word}: its format/ has no field there")]
    Word {
        /// The PMU.
        pmu: String,
        /// The word.
        word: String,
    },
    /// The value has more bits than the field.
    #[error("{value:#x} is too large for field {field} of PMU {pmu}")]
    Value {
        /// The PMU.
        pmu: String,
        /// The field.
        field: String,
        /// The value.
        value: u64,
    },
    /// The event is missing in the `events/` of the PMU, or its file is not readable.
    #[error("PMU {pmu} has no event {alias}")]
    Alias {
        /// The PMU.
        pmu: String,
        /// The event.
        alias: String,
    },
}

/// A malformed description of a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the position of a field, such as \"config:0-7,32-35\"")]
pub struct FormatError(String);

impl FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let error = || FormatError(text.chars().take(100).collect());
        let (word, bits) = text.trim().split_once(':').ok_or_else(error)?;
        let word = ["config", "config1", "config2", "config3"]
            .iter()
            .position(|name| *name == word)
            .ok_or_else(error)?;
        let part = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
            (first <= last && last < u64::BITS).then_some((first, last))
        };
        let bits = bits.split(',').map(part).collect::<Option<Vec<_>>>();
        Ok(Self {
            word,
            bits: bits.ok_or_else(error)?,
        })
    }
}

impl Format {
    /// Number of bits of the field.
    pub fn width(&self) -> u32 {
        self.bits.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Sets the field to `value`; false if the value has more bits than the field.
    #[must_use]
    pub fn put(&self, value: u64, config: &mut [u64; WORDS]) -> bool {
        let mut rest = value;
        for &(first, last) in &self.bits {
            let width = last - first + 1;
            let mask = u64::MAX >> (u64::BITS - width);
            config[self.word] |= (rest & mask) << first;
            rest = rest.checked_shr(width).unwrap_or(0);
        }
        rest == 0
    }
}

impl Device {
    /// Reads the description in `directory`.
    ///
    /// # Errors
    ///
    /// When `type` is not readable.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let name = directory.file_name().and_then(|name| name.to_str());
        let kind = fs::read_to_string(directory.join("type"))?;
        let mut formats = BTreeMap::new();
        for entry in fs::read_dir(directory.join("format")).into_iter().flatten() {
            let path = entry?.path();
            let field = path.file_name().and_then(|field| field.to_str());
            // A malformed field counts as missing: its use is reported.
            let format = fs::read_to_string(&path)
                .ok()
                .and_then(|text| text.parse().ok());
            if let (Some(field), Some(format)) = (field, format) {
                formats.insert(field.to_owned(), format);
            }
        }
        Ok(Self {
            name: name.ok_or_else(|| invalid("name is not UTF-8"))?.to_owned(),
            kind: kind
                .trim()
                .parse()
                .map_err(|_| invalid("type is not a number"))?,
            formats,
            directory: directory.to_owned(),
            base: 0,
        })
    }

    /// PMUs of the kernel's generic events, which are not in sysfs: one for each kind of core.
    fn generic(sysfs: &Path, kind: u32) -> Vec<Self> {
        let cores = Self::all(sysfs, CORE_PMU);
        let several = cores.len() > 1;
        let of_core = |core: Self| Self {
            // PERF_PMU_TYPE_SHIFT of include/uapi/linux/perf_event.h
            base: if several {
                u64::from(core.kind) << 32
            } else {
                0
            },
            kind,
            formats: BTreeMap::new(),
            ..core
        };
        cores.into_iter().map(of_core).collect()
    }

    /// The PMU of the kernel's software events.
    fn software() -> Self {
        Self {
            name: SOFTWARE_PMU.to_owned(),
            kind: 1,
            formats: BTreeMap::new(),
            directory: PathBuf::new(),
            base: 0,
        }
    }

    /// The PMUs that a user means by `name`: as in perf(1), the PMU of this name or all with a
    /// number after it, with or without the prefix `uncore_`.
    pub fn named(sysfs: &Path, name: &str) -> Vec<Self> {
        let patterns = [
            name.to_owned(),
            format!("{name}_*"),
            format!("uncore_{name}"),
            format!("uncore_{name}_*"),
        ];
        let found = patterns.iter().map(|pattern| Self::all(sysfs, pattern));
        found
            .into_iter()
            .find(|devices| !devices.is_empty())
            .unwrap_or_default()
    }

    /// The CPUs that the PMU counts; `None` for all.
    pub fn cpus(&self) -> Option<String> {
        let text = fs::read_to_string(self.directory.join("cpus")).ok()?;
        Some(text.trim().to_owned())
    }

    /// A number of the PMU's `caps/` directory, such as `slots`.
    pub fn capability(&self, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.directory.join("caps").join(name)).ok()?;
        number(text.trim())
    }

    /// The PMUs that match `pattern`, ordered by their numbers: `*` stands for a number, `cpu` for
    /// the PMU of any core.
    ///
    /// The core PMU counts generic events. The PMU of software events exists on every machine.
    pub fn all(sysfs: &Path, pattern: &str) -> Vec<Self> {
        // PERF_TYPE_HARDWARE, PERF_TYPE_HW_CACHE, PERF_TYPE_SOFTWARE
        match pattern {
            HARDWARE_PMU => return Self::generic(sysfs, 0),
            CACHE_PMU => return Self::generic(sysfs, 3),
            SOFTWARE_PMU => return vec![Self::software()],
            _ => {}
        }
        let directory = sysfs.join("bus/event_source/devices");
        let mut devices: Vec<Self> = fs::read_dir(directory)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let is_core = || entry.path().join("cpus").exists() && !name.contains("uncore");
                matches(pattern, &name) || pattern == CORE_PMU && is_core()
            })
            .filter_map(|entry| Self::read(&entry.path()).ok())
            .collect();
        devices.sort_by_key(|device| (numbers(&device.name), device.name.clone()));
        devices
    }

    /// Positions of the fields of a code, by name.
    pub fn formats(&self) -> &BTreeMap<String, Format> {
        &self.formats
    }

    /// The CPUs on which to open the PMU, one for each part of the machine that it counts. `None`
    /// if it counts by CPU or task.
    pub fn cpumask(&self) -> Option<String> {
        let text = fs::read_to_string(self.directory.join("cpumask")).ok()?;
        Some(text.trim().to_owned())
    }

    /// Encodes an event for this PMU.
    ///
    /// # Errors
    ///
    /// If the PMU does not support the event.
    pub fn encode(&self, event: &Event) -> Result<Encoding, EncodeError> {
        match &event.alias {
            Some(alias) if event.code.is_empty() => self.encode_fields(&self.terms(alias)?),
            _ => self.encode_fields(&event.code),
        }
    }

    /// Encodes a user's terms; also the scale of a count, if it is known.
    ///
    /// # Errors
    ///
    /// When the PMU has no such event or field.
    pub fn encode_terms(&self, terms: &[Term]) -> Result<(Encoding, Option<f64>), EncodeError> {
        let mut fields = BTreeMap::new();
        let mut scale = Some(1.0);
        for term in terms {
            match term {
                Term::Field(field, value) => {
                    fields.insert(field.clone(), *value);
                }
                Term::Alias(flag) if self.formats.contains_key(flag) => {
                    fields.insert(flag.clone(), 1);
                }
                Term::Alias(alias) => {
                    fields.extend(self.terms(alias)?);
                    scale = self.scale_by_name(alias);
                }
            }
        }
        Ok((self.encode_fields(&fields)?, scale))
    }

    /// Encodes values of fields. `config` to `config3` are whole words.
    ///
    /// # Errors
    ///
    /// When a field is unknown, or too small for its value.
    pub fn encode_fields(&self, fields: &BTreeMap<String, u64>) -> Result<Encoding, EncodeError> {
        let mut config = [self.base, 0, 0, 0];
        for (field, value) in fields {
            let whole = || format!("{field}:0-63").parse::<Format>().ok();
            let format = self.formats.get(field).cloned().or_else(whole);
            if let Some(Format { word, .. }) = format
                && word != 0
                && !self.formats.values().any(|format| format.word == word)
            {
                return Err(EncodeError::Word {
                    pmu: self.name.clone(),
                    word: field.clone(),
                });
            }
            let fits = match &format {
                Some(format) => format.put(*value, &mut config),
                None => {
                    return Err(EncodeError::Field {
                        pmu: self.name.clone(),
                        field: field.clone(),
                    });
                }
            };
            if !fits {
                return Err(EncodeError::Value {
                    pmu: self.name.clone(),
                    field: field.clone(),
                    value: *value,
                });
            }
        }
        Ok(Encoding {
            kind: self.kind,
            config,
        })
    }

    /// The scale of a count (`events/NAME.scale`); `None` if it is unknown. An event with both code
    /// and alias has the alias for the scale, which is then required.
    pub fn scale(&self, event: &Event) -> Option<f64> {
        match &event.alias {
            Some(alias) if event.code.is_empty() => self.scale_by_name(alias),
            Some(alias) => self.scale_of(alias),
            None => Some(1.0),
        }
    }

    /// The scale of an event in `events/`: 1 if the event has neither unit nor scale.
    fn scale_by_name(&self, alias: &str) -> Option<f64> {
        let has = |ending: &str| {
            let file = format!("{alias}.{ending}");
            self.directory.join("events").join(file).exists()
        };
        if has("unit") || has("scale") {
            self.scale_of(alias)
        } else {
            Some(1.0)
        }
    }

    fn scale_of(&self, alias: &str) -> Option<f64> {
        let file = self.directory.join("events").join(format!("{alias}.scale"));
        let scale: f64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
        (scale.is_finite() && scale > 0.0).then_some(scale)
    }

    /// The content of `events/NAME`: `event=0x04,umask=0x03`.
    fn terms(&self, alias: &str) -> Result<BTreeMap<String, u64>, EncodeError> {
        let missing = || EncodeError::Alias {
            pmu: self.name.clone(),
            alias: alias.to_owned(),
        };
        let text =
            fs::read_to_string(self.directory.join("events").join(alias)).map_err(|_| missing())?;
        text.trim()
            .split(',')
            .map(|term| {
                let (field, value) = term.split_once('=').unwrap_or((term, "1"));
                Some((field.trim().to_owned(), number(value.trim())?))
            })
            .collect::<Option<_>>()
            .ok_or_else(missing)
    }
}

/// A decimal number, or a hexadecimal one with the prefix `0x`.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Whether `name` is `pattern` with a number in place of each `*`.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(rest) = name.strip_prefix(before) else {
        return false;
    };
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    digits > 0 && matches(after, &rest[digits..])
}

/// The numbers in a name.
fn numbers(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Catalog;

    fn config(format: &str, value: u64) -> Option<[u64; WORDS]> {
        let format: Format = format.parse().expect("valid");
        let mut config = [0; WORDS];
        format.put(value, &mut config).then_some(config)
    }

    #[test]
    fn fields_can_be_split() {
        assert_eq!(config("config:0-7\n", 0xc7), Some([0xc7, 0, 0, 0]));
        // amd_df before PerfMonV2
        let event = "config:0-7,32-35,59-60";
        assert_eq!(config(event, 0x1c7), Some([0x1_0000_00c7, 0, 0, 0]));
        assert_eq!(
            config(event, 0x3fff),
            Some([0x1800_000f_0000_00ff, 0, 0, 0])
        );
        assert_eq!(config(event, 0x4000), None);
        assert_eq!(config("config1:0-63", u64::MAX), Some([0, u64::MAX, 0, 0]));
        assert_eq!(config("config:18", 1), Some([1 << 18, 0, 0, 0]));
        assert_eq!(config("config:18", 2), None);
    }

    #[test]
    fn malformed_formats_are_rejected() {
        for text in [
            "",
            "config",
            "config:",
            "config4:0",
            "config:7-0",
            "config:0-64",
            "config:a",
            "0-7",
            "config:-1",
        ] {
            assert!(text.parse::<Format>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_star_matches_a_number() {
        assert!(matches("uncore_imc_*", "uncore_imc_11"));
        assert!(!matches("uncore_imc_*", "uncore_imc_free_running_0"));
        assert!(!matches("uncore_imc_*", "uncore_imc_"));
        assert!(!matches("uncore_imc_*", "uncore_imc"));
        assert!(matches("hisi_sccl*_ddrc*", "hisi_sccl3_ddrc0"));
        assert!(matches("amd_df", "amd_df"));
    }

    /// A tree with the kernel's layout.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        let file = |path: &str, text: &str| {
            let path = root.path().join("bus/event_source/devices").join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(path, text).expect("written");
        };
        for (name, kind) in [
            ("uncore_imc_10", 40),
            ("uncore_imc_2", 32),
            ("uncore_imc_free_running_0", 50),
        ] {
            file(&format!("{name}/type"), &format!("{kind}\n"));
            file(&format!("{name}/cpumask"), "0,28\n");
            file(&format!("{name}/format/event"), "config:0-7\n");
            file(&format!("{name}/format/umask"), "config:8-15\n");
        }
        file("power/type", "20\n");
        file("power/format/event", "config:0-7\n");
        file("power/events/energy-pkg", "event=0x02\n");
        file(
            "power/events/energy-pkg.scale",
            "2.3283064365386962890625e-10\n",
        );
        file("power/events/broken", "event=two\n");
        file("cpu/type", "4\n");
        file("cpu/format/event", "config:0-7\n");
        file("cpu/format/offcore_rsp", "config1:0-63\n");
        file("cpu/format/broken", "nonsense\n");
        file("broken/type", "one\n");
        root
    }

    fn event(text: &str) -> Event {
        let table = format!(
            "name = \"\"\nvendor = \"\"\nsource = \"\"\n[match]\n\
             [event.E]\nhelp = \"\"\nsources = []\n{text}\n"
        );
        let catalog = Catalog::parse([("x", table.as_str())]).expect("valid");
        catalog.get("x").expect("parsed").events["E"].clone()
    }

    #[test]
    fn devices_are_found_and_encode_events() {
        let root = tree();
        let imcs = Device::all(root.path(), "uncore_imc_*");
        let names: Vec<_> = imcs.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["uncore_imc_2", "uncore_imc_10"]);
        assert_eq!(imcs[0].cpumask().as_deref(), Some("0,28"));
        let read = event("code = { event = 0x04, umask = 0x03 }");
        let encoding = imcs[0].encode(&read).expect("encoded");
        assert_eq!((encoding.kind, encoding.config), (32, [0x304, 0, 0, 0]));

        let cpu = Device::all(root.path(), "cpu").remove(0);
        assert_eq!(cpu.cpumask(), None);
        let offcore = event("code = { event = 0xb7, offcore_rsp = 0x6040005b7 }");
        let encoding = cpu.encode(&offcore).expect("encoded");
        assert_eq!(encoding.config, [0xb7, 0x6_0400_05b7, 0, 0]);
        let error = |text: &str| cpu.encode(&event(text)).expect_err("rejected").to_string();
        assert_eq!(error("code = { umask = 1 }"), "PMU cpu has no field umask");
        assert_eq!(
            error("code = { broken = 1 }"),
            "PMU cpu has no field broken"
        );
        assert_eq!(
            error("code = { event = 0x1b7 }"),
            "0x1b7 is too large for field event of PMU cpu"
        );
        assert_eq!(
            error("alias = \"energy-pkg\""),
            "PMU cpu has no event energy-pkg"
        );
        let whole = cpu.encode(&event("code = { config = 0x1b7, config1 = 7 }"));
        assert_eq!(whole.map(|encoding| encoding.config), Ok([0x1b7, 7, 0, 0]));
        assert_eq!(
            error("code = { config = 0x1b7, config2 = 7 }"),
            "PMU cpu ignores config2: its format/ has no field there"
        );
        // A kernel without support for the off-core registers of this CPU.
        let offcore = imcs[0].encode(&offcore).expect_err("rejected");
        assert_eq!(
            offcore.to_string(),
            "PMU uncore_imc_2 has no field offcore_rsp"
        );
    }

    #[test]
    fn codes_and_scales_of_the_kernel_are_read() {
        let root = tree();
        let power = Device::all(root.path(), "power").remove(0);
        let package = event("alias = \"energy-pkg\"");
        assert_eq!(
            power.encode(&package).map(|encoding| encoding.config),
            Ok([2, 0, 0, 0])
        );
        assert_eq!(power.scale(&package), Some(2f64.powi(-32)));
        assert!(power.encode(&event("alias = \"broken\"")).is_err());
        assert_eq!(power.scale(&event("code = { event = 2 }")), Some(1.0));
        assert!(Device::all(root.path(), "broken").is_empty());
    }

    #[test]
    fn a_count_without_its_scale_has_no_value() {
        let root = tree();
        let events = root.path().join("bus/event_source/devices/power/events");
        let scale_file = events.join("energy-pkg.scale");
        let scales = || {
            let power = Device::all(root.path(), "power").remove(0);
            let by_hand = power.encode_terms(&[Term::Alias("energy-pkg".to_owned())]);
            let of_table = power.scale(&event("code = { event = 2 }\nalias = \"energy-pkg\""));
            (of_table, by_hand.expect("encoded").1)
        };
        for text in ["", "none", "0", "-1", "inf", "NaN"] {
            fs::write(&scale_file, text).expect("written");
            assert_eq!(scales(), (None, None), "{text:?}");
        }
        fs::remove_file(&scale_file).expect("removed");
        fs::write(events.join("energy-pkg.unit"), "Joules\n").expect("written");
        assert_eq!(scales(), (None, None));
        // Without unit and scale, a request by name is a plain count; a table means joules.
        fs::remove_file(events.join("energy-pkg.unit")).expect("removed");
        assert_eq!(scales(), (None, Some(1.0)));
    }
}

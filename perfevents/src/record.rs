//! The double entry: every encoding once more, as the whole words that its sources give.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Catalog, Device, KERNEL_PMUS, Source, WORDS};

static RECORD: &str = include_str!("../data/encodings.tsv");

/// One encoding as its sources give it.
#[derive(Clone, Debug)]
pub struct Recorded<'a> {
    /// The microarchitecture.
    pub uarch: &'a str,
    /// The event.
    pub event: &'a str,
    /// `config`, `config1`, `config2`, `config3`.
    pub config: [u64; WORDS],
    /// Whose tables have it, and under which name if that is another; `+` where it is put together of several.
    pub witnesses: BTreeMap<&'a str, Option<&'a str>>,
}

/// A line of the record that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("encodings.tsv, line {line}: {what}")]
pub struct RecordError {
    line: usize,
    what: String,
}

/// The record of the embedded data.
///
/// # Errors
///
/// When a line is wrong.
pub fn record() -> Result<Vec<Recorded<'static>>, RecordError> {
    parse(RECORD)
}

fn parse(text: &str) -> Result<Vec<Recorded<'_>>, RecordError> {
    let lines = text.lines().enumerate();
    lines
        .filter(|(_, line)| !line.starts_with('#'))
        .map(|(index, line)| {
            entry(line).map_err(|what| RecordError {
                line: index + 1,
                what,
            })
        })
        .collect()
}

fn entry(line: &str) -> Result<Recorded<'_>, String> {
    let columns: Vec<&str> = line.split('\t').collect();
    let &[uarch, event, words, sources] = columns.as_slice() else {
        return Err("four columns are needed".to_owned());
    };
    let mut config = [0; WORDS];
    for (index, word) in words.split(',').enumerate() {
        let digits = word.strip_prefix("0x");
        let value = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let place = config.get_mut(index);
        let (Some(place), Some(value)) = (place, value) else {
            return Err(format!(
                "{words:?} is no list of words such as 0x1b7,0x3fff"
            ));
        };
        *place = value;
    }
    let witness = |text| match str::split_once(text, '=') {
        Some((witness, name)) => (witness, Some(name)),
        None => (text, None),
    };
    let witnesses: BTreeMap<_, _> = sources.split_whitespace().map(witness).collect();
    if let Some(unknown) = witnesses.keys().find(|name| source(name).is_none()) {
        return Err(format!("unknown source {unknown}"));
    }
    Ok(Recorded {
        uarch,
        event,
        config,
        witnesses,
    })
}

/// Whom a source belongs to: those of one are not independent of one another.
fn source(witness: &str) -> Option<Source> {
    Some(match witness {
        "perfmon" | "linux" | "arm" | "perfspect" => Source::Vendor,
        "kernel" => Source::Kernel,
        "libpfm4" => Source::Libpfm4,
        "likwid" => Source::Likwid,
        _ => return None,
    })
}

/// Where the tables and the record differ; nothing, if all is well.
pub fn differences(catalog: &Catalog, record: &[Recorded<'_>]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut recorded = BTreeMap::new();
    for entry in record {
        if recorded.insert((entry.uarch, entry.event), entry).is_some() {
            problems.push(format!("{} {}: recorded twice", entry.uarch, entry.event));
        }
    }
    for uarch in catalog.iter() {
        for (name, event) in &uarch.events {
            // Codes that only the kernel of the machine knows, and those that it makes up, are in nobody's tables.
            if event.code.is_empty() || KERNEL_PMUS.contains(&event.pmu.as_str()) {
                continue;
            }
            let mut wrong = |what: String| problems.push(format!("{} {name}: {what}", uarch.id));
            let Some(entry) = recorded.remove(&(uarch.id.as_str(), name.as_str())) else {
                wrong("not in data/encodings.tsv: add what its sources have".to_owned());
                continue;
            };
            let Some(device) = Device::known(uarch, &event.pmu) else {
                wrong(format!("the fields of PMU {} are not known", event.pmu));
                continue;
            };
            match device.encode(event) {
                Ok(ours) if ours.config == entry.config => {}
                Ok(ours) => wrong(format!("{:x?}, recorded {:x?}", ours.config, entry.config)),
                Err(error) => wrong(error.to_string()),
            }
            let sources: BTreeSet<_> = entry
                .witnesses
                .keys()
                .filter_map(|name| source(name))
                .collect();
            if sources != event.sources.iter().copied().collect() {
                wrong(format!("sources {:?}, recorded {sources:?}", event.sources));
            }
        }
    }
    let left = recorded
        .keys()
        .map(|(uarch, event)| format!("{uarch} {event}: recorded, and in no table"));
    problems.extend(left);
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let text = "# a remark\nskx\tOCR.X\t0x1b7,0x3f\tperfmon libpfm4=OCR:Y:Z likwid=+\n";
        let record = parse(text).expect("valid");
        assert_eq!(record.len(), 1);
        assert_eq!(record[0].config, [0x1b7, 0x3f, 0, 0]);
        let names: Vec<_> = record[0].witnesses.iter().map(|(a, b)| (*a, *b)).collect();
        assert_eq!(
            names,
            [
                ("libpfm4", Some("OCR:Y:Z")),
                ("likwid", Some("+")),
                ("perfmon", None)
            ]
        );
    }

    #[test]
    fn wrong_lines_are_named() {
        for (line, what) in [
            ("skx", "four columns"),
            ("skx\tX\t1b7\tperfmon", "no list of words"),
            ("skx\tX\t0x1,0x2,0x3,0x4,0x5\tperfmon", "no list of words"),
            ("skx\tX\t0x1\tsomebody", "unknown source somebody"),
        ] {
            let error = parse(&format!("#\n{line}\n"))
                .expect_err("wrong")
                .to_string();
            assert!(error.contains("line 2") && error.contains(what), "{error}");
        }
    }

    #[test]
    fn events_of_the_kernel_are_in_nobodys_tables() {
        let text = "name = \"X\"\nvendor = \"\"\nsource = \"\"\n[match]\n[pmu.hardware]\n\
                    [event.cycles]\nhelp = \"\"\npmu = \"hardware\"\ncode = { config = 0 }\n\
                    sources = [\"kernel\"]\n";
        let catalog = Catalog::parse([("x", text)]).expect("valid");
        assert_eq!(differences(&catalog, &[]), [""; 0]);
    }

    #[test]
    fn a_changed_code_is_noticed() {
        let table = |code: &str| {
            let text = format!(
                "name = \"X\"\nvendor = \"Intel\"\nsource = \"\"\n\
                 [[match.cpuid]]\nvendor = \"GenuineIntel\"\nfamily = 6\nmodels = [1]\n\
                 [pmu.cpu]\n[event.E]\nhelp = \"\"\ncode = {code}\nsources = [\"vendor\"]\n"
            );
            Catalog::parse([("x", text.as_str())]).expect("valid")
        };
        let record = parse("x\tE\t0x1c7\tperfmon\n").expect("valid");
        let differences = |code: &str| differences(&table(code), &record);
        assert_eq!(differences("{ event = 0xc7, umask = 1 }"), [""; 0]);
        assert_eq!(differences("{ event = 0xc7, umask = 3 }").len(), 1);
        assert_eq!(differences("{ event = 0x1c7, umask = 1 }").len(), 1);
        assert_eq!(differences("{ event = 0xc7, umsak = 1 }").len(), 1);
    }
}

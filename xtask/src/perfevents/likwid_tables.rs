//! LIKWID's event tables, read from the text files that its library is generated from.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use perfevents::{Device, Event, Uarch, WORDS};

/// Fields of an encoding that LIKWID's tables have. All others are taken from ours.
const FIELDS: [&str; 8] = [
    "event", "umask", "eventid", "cmask", "thresh", "edge", "inv", "any",
];
/// LIKWID's counters without event codes: fixed counters, temperatures, voltages, MPERF.
const CODELESS: [&str; 4] = ["FIX", "TMP", "VTG", "MPERF"];
/// Events of the kernel's PMU `power` and their names in LIKWID, which passes their codes to
/// perf_event_open(2).
const ENERGIES: [(&str, &str); 2] = [
    ("energy-pkg", "PWR_PKG_ENERGY"),
    ("energy-ram", "PWR_DRAM_ENERGY"),
];

/// An event code of LIKWID.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Code {
    event: u64,
    umask: u64,
    /// Values by our names of the fields.
    options: BTreeMap<&'static str, u64>,
}

pub struct Tables {
    /// Codes by file and event.
    codes: HashMap<(String, String), Vec<Code>>,
}

impl Tables {
    /// Reads `perfmon_*_events.txt` of LIKWID's source.
    pub fn read(source: &Path) -> Result<Self> {
        let directory = source.join("src/includes");
        let mut codes: HashMap<_, Vec<Code>> = HashMap::new();
        let entries =
            fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))?;
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let uarch = name
                .strip_prefix("perfmon_")
                .and_then(|name| name.strip_suffix("_events.txt"));
            if let Some(uarch) = uarch {
                for (event, code) in parse(&fs::read_to_string(&path)?) {
                    let key = (uarch.to_owned(), event);
                    codes.entry(key).or_default().push(code);
                }
            }
        }
        ensure!(
            !codes.is_empty(),
            "{}: no tables of events",
            directory.display()
        );
        Ok(Self { codes })
    }

    /// LIKWID's words for the event, by the names in `theirs`, separated by `|`, or by the vendor's
    /// name.
    pub fn words(
        &self,
        uarch: &Uarch,
        name: &str,
        event: &Event,
        theirs: Option<&str>,
    ) -> Vec<[u64; WORDS]> {
        let (Some(file), Some(device)) = (file(&uarch.id), Device::known(uarch, &event.pmu)) else {
            return Vec::new();
        };
        let plain = name.to_uppercase().replace('.', "_");
        let energy = ENERGIES.iter().find(|(own, _)| *own == name);
        let names = theirs.or(energy.map(|(_, theirs)| *theirs));
        let names = names.unwrap_or(&plain).split('|');
        let codes = names.filter_map(|name| self.codes.get(&(file.to_owned(), name.to_owned())));
        let mut words: Vec<_> = codes
            .flatten()
            .filter_map(|code| words(&device, event, code))
            .collect();
        words.sort_unstable();
        words.dedup();
        words
    }
}

/// A code as the PMU takes it. `None` if the PMU has no such field: the code is another event's.
fn words(device: &Device, event: &Event, code: &Code) -> Option<[u64; WORDS]> {
    let mut fields = event.code.clone();
    fields.retain(|field, _| !FIELDS.contains(&field.as_str()));
    let has = |field: &str| device.formats().contains_key(field);
    let number = if has("eventid") { "eventid" } else { "event" };
    let mut given = code.options.clone();
    if let Some(count) = given.remove("cmask") {
        given.insert(if has("thresh") { "thresh" } else { "cmask" }, count);
    }
    given.extend([(number, code.event), ("umask", code.umask)]);
    fields.extend(
        given
            .into_iter()
            // Codes of Arm have no umask.
            .filter(|(field, value)| *value != 0 || has(field))
            .map(|(field, value)| (field.to_owned(), value)),
    );
    Some(device.encode_fields(&fields).ok()?.config)
}

/// `EVENT_GROUP code counters`, then `UMASK_EVENT umask [config [cmask]]`, before it
/// `DEFAULT_OPTIONS_EVENT option,…`. Events with other configuration values or options are left
/// out.
fn parse(text: &str) -> Vec<(String, Code)> {
    let mut events = Vec::new();
    let mut group = None;
    let mut defaults: HashMap<&str, Option<BTreeMap<&'static str, u64>>> = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, values @ ..] = &words[..] else {
            continue;
        };
        if name.starts_with("EVENT_") {
            let has_code = values
                .get(1)
                .is_some_and(|counters| !CODELESS.iter().any(|kind| counters.starts_with(kind)));
            group = values
                .first()
                .filter(|_| has_code)
                .and_then(|code| number(code));
        } else if let Some(name) = name.strip_prefix("DEFAULT_OPTIONS_") {
            defaults.insert(name, options(&values.join("")));
        } else if let Some(name) = name.strip_prefix("UMASK_")
            && let Some(event) = group
            && let Some(umask) = values.first().and_then(|umask| number(umask))
            && values[1..].iter().all(|value| number(value) == Some(0))
            && let Some(options) = defaults
                .get(name)
                .cloned()
                .unwrap_or_else(|| Some(BTreeMap::new()))
        {
            let code = Code {
                event,
                umask,
                options,
            };
            events.push((name.to_owned(), code));
        }
    }
    events
}

fn options(text: &str) -> Option<BTreeMap<&'static str, u64>> {
    let option = |option: &str| {
        let (name, value) = option.split_once('=')?;
        let field = match name {
            "EVENT_OPTION_THRESHOLD" => "cmask",
            "EVENT_OPTION_EDGE" => "edge",
            "EVENT_OPTION_INVERT" => "inv",
            "EVENT_OPTION_ANYTHREAD" => "any",
            _ => return None,
        };
        Some((field, number(value)?))
    };
    text.split(',').map(option).collect()
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// LIKWID's file of a microarchitecture. Codes of POWER are not in its tables but in its program.
fn file(uarch: &str) -> Option<&'static str> {
    Some(match uarch {
        "nhm" => "nehalem",
        "wsmep" => "westmere",
        "wsmex" => "westmereEX",
        "snb" => "sandybridge",
        "snbep" => "sandybridgeEP",
        "ivb" => "ivybridge",
        "ivt" => "ivybridgeEP",
        "hsw" => "haswell",
        "hsx" => "haswellEP",
        "bdw" => "broadwell",
        "bdwde" => "broadwelld",
        "bdx" => "broadwellEP",
        "skl" => "skylake",
        "skx" => "skylakeX",
        "clx" => "cascadelakeX",
        "icl" | "rkl" => "icelake",
        "tgl" => "tigerlake",
        "icx" => "icelakeX",
        "spr" | "emr" => "sapphirerapids",
        "gnr" => "graniterapids",
        "srf" => "sierraforrest",
        "knl" => "knl",
        "glm" => "goldmont",
        "zen1" => "zen",
        "zen2" => "zen2",
        "zen3" => "zen3",
        "zen4" => "zen4",
        "cortex-a72" => "a57",
        "neoverse-n1" => "neon1",
        "neoverse-v1" => "graviton3",
        "neoverse-v2" => "nvidiagrace",
        "thunderx2" => "cavtx2",
        "a64fx" => "a64fx",
        _ => return None,
    })
}

/// Why LIKWID's encoding of an event is wrong.
pub fn fault(uarch: &Uarch, name: &str) -> Option<&'static str> {
    match (uarch.id.as_str(), name) {
        ("icl" | "icx" | "rkl", "LONGEST_LAT_CACHE.MISS") => {
            Some("umask 0x01; the architectural event has 0x41")
        }
        ("icl" | "rkl", "L2_RQSTS.MISS" | "L2_RQSTS.REFERENCES") => {
            Some("umasks 0x2f and 0xef, without hardware prefetches")
        }
        ("skl", "L2_LINES_IN.ALL") => Some("umask 0x07, of the previous generation"),
        ("tgl", "DTLB_LOAD_MISSES.WALK_ACTIVE") => {
            Some("no counter mask: counts walks, not cycles with a walk")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read() {
        let text = "EVENT_INSTR_RETIRED 0x00 FIXC0\nUMASK_INSTR_RETIRED_ANY 0x00\n\
                    EVENT_UOPS 0xC2 PMC\nUMASK_UOPS_ALL 0x01\n\
                    DEFAULT_OPTIONS_UOPS_CYCLES EVENT_OPTION_THRESHOLD=0x2,EVENT_OPTION_INVERT=1\n\
                    UMASK_UOPS_CYCLES 0x02\n# UMASK_UOPS_OLD 0x08\n\
                    UMASK_UOPS_LATENCY 0x01 0x00 0x11\n\
                    DEFAULT_OPTIONS_UOPS_TID EVENT_OPTION_TID=0x2\nUMASK_UOPS_TID 0x04\n";
        let events = parse(text);
        let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["UOPS_ALL", "UOPS_CYCLES"]);
        let options = BTreeMap::from([("cmask", 2), ("inv", 1)]);
        let code = Code {
            event: 0xc2,
            umask: 2,
            options,
        };
        assert_eq!(events[1].1, code);
    }
}

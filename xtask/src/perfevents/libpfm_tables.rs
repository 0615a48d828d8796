//! Tables of libpfm4 for other architectures, read from the libraries built for them.

use std::{collections::HashMap, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use perfevents::{Event, Uarch, WORDS};

use super::image::Image;

/// Members of `pfmlib_pmu_t` (lib/pfmlib_priv.h), as offsets from the pointer to its name: number
/// of events, events.
const COUNT: u64 = 52;
const EVENTS: u64 = 88;
/// Size of `arm_entry_t` and of `pme_power_entry_t`.
const ENTRY: u64 = 32;
/// Offsets of name and code in these.
const ARM: (u64, u64) = (0, 24);
const POWER: (u64, u64) = (8, 0);

pub struct Tables {
    /// Codes by PMU and event.
    codes: HashMap<(String, String), u64>,
}

impl Tables {
    /// Reads the tables of several libraries.
    pub fn read(libraries: &[impl AsRef<Path>]) -> Result<Self> {
        let mut codes = HashMap::new();
        for library in libraries {
            let library = library.as_ref();
            let data =
                fs::read(library).with_context(|| format!("reading {}", library.display()))?;
            let before = codes.len();
            add(&Image::new(&data)?, &mut codes);
            ensure!(
                codes.len() > before,
                "{}: unexpected layout of the event tables",
                library.display()
            );
        }
        Ok(Self { codes })
    }

    /// libpfm4's words for the event, by the name in `theirs` or by the vendor's.
    pub fn words(
        &self,
        uarch: &Uarch,
        name: &str,
        event: &Event,
        theirs: Option<&str>,
    ) -> Option<[u64; WORDS]> {
        let key = (pmu_of(&uarch.id), theirs.unwrap_or(name).to_owned());
        let code = self.codes.get(&key).filter(|_| event.is_core())?;
        Some([*code, 0, 0, 0])
    }
}

fn add(image: &Image<'_>, codes: &mut HashMap<(String, String), u64>) {
    for (&place, &name) in &image.pointers {
        let pmu = image.text(name).filter(|name| is_pmu(name));
        let events = image.pointers.get(&(place + EVENTS)).copied();
        let (Some(pmu), Some(events), Some(count)) = (pmu, events, image.number(place + COUNT))
        else {
            continue;
        };
        let (name, code) = if pmu.starts_with("arm_") { ARM } else { POWER };
        for entry in (0..u64::from(count)).map(|index| events + ENTRY * index) {
            let name = image
                .pointers
                .get(&(entry + name))
                .and_then(|name| image.text(*name));
            let low = image.number(entry + code);
            // Codes of Arm have 32 bits; flags follow.
            let high = if pmu.starts_with("arm_") {
                Some(0)
            } else {
                image.number(entry + code + 4)
            };
            if let (Some(name), Some(low), Some(high)) = (name, low, high) {
                let code = u64::from(low) | u64::from(high) << 32;
                codes.insert((pmu.to_owned(), name.to_owned()), code);
            }
        }
    }
}

fn is_pmu(name: &str) -> bool {
    name.starts_with("arm_") || name.starts_with("power")
}

/// libpfm4's name of the PMU. The name of one that it does not have is in none of its tables.
fn pmu_of(uarch: &str) -> String {
    if let Some(core) = uarch.strip_prefix("neoverse-") {
        format!("arm_{core}")
    } else if let Some(core) = uarch.strip_prefix("cortex-a") {
        format!("arm_ac{core}")
    } else if uarch.starts_with("power") {
        uarch.to_owned()
    } else if uarch == "tsv110" {
        "arm_kunpeng".to_owned()
    } else {
        format!("arm_{uarch}")
    }
}

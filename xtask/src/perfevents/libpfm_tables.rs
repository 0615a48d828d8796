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
        let pmu = pmu_of(&uarch.id).filter(|_| event.is_core())?;
        let key = (pmu.to_owned(), theirs.unwrap_or(name).to_owned());
        self.codes.get(&key).map(|code| [*code, 0, 0, 0])
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

/// libpfm4's name of the PMU.
fn pmu_of(uarch: &str) -> Option<&'static str> {
    Some(match uarch {
        "a64fx" => "arm_a64fx",
        "cortex-a72" => "arm_ac72",
        "cortex-a76" => "arm_ac76",
        "neoverse-n1" => "arm_n1",
        "neoverse-n2" => "arm_n2",
        "neoverse-n3" => "arm_n3",
        "neoverse-v1" => "arm_v1",
        "neoverse-v2" => "arm_v2",
        "neoverse-v3" => "arm_v3",
        "power10" => "power10",
        "power9" => "power9",
        "thunderx2" => "arm_thunderx2",
        "tsv110" => "arm_kunpeng",
        _ => return None,
    })
}

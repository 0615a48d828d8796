//! Encodings of a source beside ours, and the share of single-bit errors that the comparison
//! detects.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use perfevents::{Catalog, Device, Event, Uarch, WORDS};

pub type Words = [u64; WORDS];
/// Microarchitecture and event.
type Key<'a> = (&'a str, &'a str);

/// Fields of event codes and umasks, of all PMUs.
const FLIPPED: [&str; 5] = ["event", "umask", "eventid", "type", "rdwrmask"];
/// Least share of flipped bits that perf, libpfm4 and LIKWID together must detect, in percent.
/// `config`, which every event has, does not count.
const MIN_DETECTED: usize = 85;
/// Least number of encodings that at least one, and that at least two of these have.
const MIN_CONFIRMED: [usize; 2] = [1285, 928];

/// Encodings of one source.
pub struct CrossCheck<'a> {
    source: &'static str,
    /// All encodings that the source has for an event: each must equal ours.
    words: BTreeMap<Key<'a>, Vec<Words>>,
}

impl<'a> CrossCheck<'a> {
    /// Looks each event up.
    pub fn new(
        source: &'static str,
        catalog: &'a Catalog,
        look_up: impl Fn(&Uarch, &str, &Event) -> Vec<Words>,
    ) -> Self {
        let found = encodings(catalog).map(|(uarch, name, event)| {
            let key = (uarch.id.as_str(), name);
            (key, look_up(uarch, name, event))
        });
        Self {
            source,
            words: found.filter(|(_, words)| !words.is_empty()).collect(),
        }
    }

    /// Compares and prints the result. Encodings that are known to be wrong in the source, which
    /// `fault` explains, are dropped.
    pub fn compare(
        &mut self,
        catalog: &'a Catalog,
        fault: impl Fn(&Uarch, &str) -> Option<&'static str>,
    ) -> Result<()> {
        let (mut unknown, mut faults, mut wrong) = (0, BTreeMap::<_, Vec<_>>::new(), Vec::new());
        for (uarch, name, event) in encodings(catalog) {
            let key = (uarch.id.as_str(), name);
            let Some(theirs) = self.words.get(&key) else {
                unknown += 1;
                continue;
            };
            let ours = words(uarch, event);
            if ours.is_some_and(|ours| theirs.iter().all(|theirs| *theirs == ours)) {
                continue;
            }
            match fault(uarch, name) {
                Some(reason) => faults
                    .entry(reason)
                    .or_default()
                    .push(format!("{} {name}", uarch.id)),
                None => wrong.push(format!(
                    "{} {name}: {:x?}, {} has {theirs:x?}",
                    uarch.id,
                    ours.unwrap_or_default(),
                    self.source
                )),
            }
            self.words.remove(&key);
        }
        println!(
            "{}: {} encodings agree, {} differ for known reasons, {unknown} are missing there",
            self.source,
            self.words.len(),
            faults.values().map(Vec::len).sum::<usize>(),
        );
        for (reason, events) in faults {
            println!("  {}: {reason}", events.join(", "));
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }

    /// Number of encodings.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    fn has(&self, key: Key<'_>) -> bool {
        self.words.contains_key(&key)
    }

    fn detects(&self, key: Key<'_>, changed: Words) -> bool {
        let theirs = self.words.get(&key);
        theirs.is_some_and(|theirs| theirs.iter().any(|theirs| *theirs != changed))
    }
}

/// Flips every bit of every event code and umask, one at a time, and counts the changes that each
/// source detects.
pub fn mutation_test(
    catalog: &Catalog,
    config: &CrossCheck<'_>,
    others: &[CrossCheck<'_>],
) -> Result<()> {
    let mut flips = 0_usize;
    let mut by_config = 0_usize;
    let mut by_one = vec![0_usize; others.len()];
    let mut by_others = 0;
    for (uarch, name, event) in encodings(catalog) {
        let key = (uarch.id.as_str(), name);
        for changed in flipped(uarch, event) {
            flips += 1;
            by_config += usize::from(config.detects(key, changed));
            let mut detected = false;
            for (count, other) in by_one.iter_mut().zip(others) {
                let detects = other.detects(key, changed);
                *count += usize::from(detects);
                detected |= detects;
            }
            by_others += usize::from(detected);
        }
    }
    ensure!(flips > 0, "no bit to flip");
    let percent = |count: usize| format!("{:.1} %", 100.0 * count as f64 / flips as f64);
    println!("{flips} single bits of event codes and umasks flipped; detected by");
    println!("  {}: {}", config.source, percent(by_config));
    for (other, count) in others.iter().zip(&by_one) {
        println!("  {}: {}", other.source, percent(*count));
    }
    println!("  all without {}: {}", config.source, percent(by_others));
    ensure!(
        by_config == flips,
        "{} flipped bits are not detected by {}",
        flips - by_config,
        config.source
    );
    ensure!(
        by_others * 100 >= flips * MIN_DETECTED,
        "without {}, fewer than {MIN_DETECTED} % of the flipped bits are detected",
        config.source
    );
    Ok(())
}

/// Prints the number of sources that have each encoding, and fails when it has become smaller.
pub fn check_confirmed(catalog: &Catalog, others: &[CrossCheck<'_>]) -> Result<()> {
    let mut counts = vec![0; others.len() + 1];
    let mut unconfirmed = BTreeMap::<_, usize>::new();
    for (uarch, name, _) in encodings(catalog) {
        let key = (uarch.id.as_str(), name);
        let count = others.iter().filter(|other| other.has(key)).count();
        counts[count] += 1;
        if count == 0 {
            *unconfirmed.entry(uarch.id.as_str()).or_default() += 1;
        }
    }
    let list: Vec<_> = counts.iter().map(usize::to_string).collect();
    println!(
        "encodings that 0, 1, … of these sources have: {}",
        list.join(", ")
    );
    let unconfirmed: Vec<_> = unconfirmed
        .iter()
        .map(|(uarch, count)| format!("{uarch} {count}"))
        .collect();
    println!("  in none of them: {}", unconfirmed.join(", "));
    let [at_least_one, at_least_two] = MIN_CONFIRMED;
    ensure!(
        counts[1..].iter().sum::<usize>() >= at_least_one
            && counts[2..].iter().sum::<usize>() >= at_least_two,
        "there were {at_least_one} in at least one and {at_least_two} in at least two"
    );
    Ok(())
}

/// The encoding with each bit of its code flipped in turn.
fn flipped(uarch: &Uarch, event: &Event) -> Vec<Words> {
    let Some(device) = Device::known(uarch, &event.pmu) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for field in FLIPPED {
        let width = device
            .formats()
            .get(field)
            .map_or(0, perfevents::Format::width);
        for bit in 0..width {
            let mut code = event.code.clone();
            *code.entry(field.to_owned()).or_default() ^= 1 << bit;
            all.extend(device.encode_fields(&code).map(|encoding| encoding.config));
        }
    }
    all
}

/// Our words.
fn words(uarch: &Uarch, event: &Event) -> Option<Words> {
    let device = Device::known(uarch, &event.pmu)?;
    Some(device.encode(event).ok()?.config)
}

/// All encodings of processors.
fn encodings(catalog: &Catalog) -> impl Iterator<Item = (&Uarch, &str, &Event)> {
    let all = catalog.iter().flat_map(|uarch| {
        uarch
            .events
            .iter()
            .map(move |(name, event)| (uarch, name.as_str(), event))
    });
    all.filter(|(_, _, event)| event.has_encoding())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"
        name = "X"
        vendor = "Intel"
        source = ""
        [[match.cpuid]]
        vendor = "GenuineIntel"
        family = 6
        models = [1]
        [pmu.cpu]
        [event.E]
        help = ""
        code = { event = 0xc7, umask = 1 }
        sources = ["vendor"]
        [event.K]
        help = ""
        pmu = "hardware"
        code = { config = 1 }
        sources = ["kernel"]
    "#;

    fn catalog() -> Catalog {
        Catalog::parse([("x", TABLE)]).expect("valid")
    }

    #[test]
    fn flipped_bits_are_detected_by_sources_with_the_encoding() {
        let catalog = catalog();
        let look_up = |words: &'static [Words]| move |_: &Uarch, _: &str, _: &Event| words.to_vec();
        let with = |words| CrossCheck::new("a", &catalog, look_up(words));
        let (full, empty) = (with(&[[0x1c7, 0, 0, 0]]), with(&[]));
        assert_eq!((full.len(), empty.len()), (1, 0));
        assert!(mutation_test(&catalog, &full, &[with(&[[0x1c7, 0, 0, 0]])]).is_ok());
        // `config` alone is not enough, and must not be missing.
        assert!(mutation_test(&catalog, &full, &[with(&[])]).is_err());
        assert!(mutation_test(&catalog, &empty, &[full]).is_err());
        // Eight bits of each field: 16 different changes, none of which is the original.
        let uarch = catalog.iter().next().expect("one");
        let mut changed = flipped(uarch, &uarch.events["E"]);
        changed.push([0x1c7, 0, 0, 0]);
        changed.sort_unstable();
        changed.dedup();
        assert_eq!(changed.len(), 17);
    }

    #[test]
    fn a_different_encoding_is_an_error_unless_it_is_a_known_fault() {
        let catalog = catalog();
        let with = |word| CrossCheck::new("a", &catalog, move |_, _, _| vec![[word, 0, 0, 0]]);
        assert!(with(0x1c7).compare(&catalog, |_, _| None).is_ok());
        assert!(with(0x3c7).compare(&catalog, |_, _| None).is_err());
        let mut faulty = with(0x3c7);
        assert!(faulty.compare(&catalog, |_, _| Some("outdated")).is_ok());
        assert_eq!(faulty.len(), 0, "a fault confirms nothing");
    }
}

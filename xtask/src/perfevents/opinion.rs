//! What others have for our encodings, and what they notice when one of ours is changed.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use perfevents::{Catalog, Device, Event, KERNEL_PMUS, Uarch, WORDS};

pub type Words = [u64; WORDS];
/// Microarchitecture and event.
type Key<'a> = (&'a str, &'a str);

/// Fields that make the code of an event and its umask, in whichever PMU.
const FLIPPED: [&str; 5] = ["event", "umask", "eventid", "type", "rdwrmask"];
/// Of single flipped bits, how many must be noticed by perf, libpfm4 and LIKWID, in percent. The record, which holds every
/// encoding, has no say in that.
const NOTICED_BY_OTHERS: usize = 85;
/// Encodings that at least one, and at least two of these have. The check fails when they become fewer.
const CONFIRMED: [usize; 2] = [1155, 828];

/// One of the others.
pub struct Opinion<'a> {
    pub who: &'static str,
    /// What it has for each encoding that it knows: all of them must be ours.
    words: BTreeMap<Key<'a>, Vec<Words>>,
}

impl<'a> Opinion<'a> {
    /// Asks about each encoding.
    pub fn ask(
        who: &'static str,
        catalog: &'a Catalog,
        answer: impl Fn(&Uarch, &str, &Event) -> Vec<Words>,
    ) -> Self {
        let answers = encodings(catalog).map(|(uarch, name, event)| {
            let key = (uarch.id.as_str(), name);
            (key, answer(uarch, name, event))
        });
        Self {
            who,
            words: answers.filter(|(_, words)| !words.is_empty()).collect(),
        }
    }

    /// Compares, says what came of it, and forgets what it is wrong about.
    pub fn check(
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
                Some(why) => faults
                    .entry(why)
                    .or_default()
                    .push(format!("{} {name}", uarch.id)),
                None => wrong.push(format!(
                    "{} {name}: {:x?}, {} has {theirs:x?}",
                    uarch.id,
                    ours.unwrap_or_default(),
                    self.who
                )),
            }
            self.words.remove(&key);
        }
        println!(
            "{}: {} encodings agree, {} differ where it is known to be wrong, {unknown} are not in it",
            self.who,
            self.words.len(),
            faults.values().map(Vec::len).sum::<usize>(),
        );
        for (why, events) in faults {
            println!("  {}: {why}", events.join(", "));
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }

    /// How many encodings it has.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    fn knows(&self, key: Key<'_>) -> bool {
        self.words.contains_key(&key)
    }

    fn notices(&self, key: Key<'_>, changed: Words) -> bool {
        let theirs = self.words.get(&key);
        theirs.is_some_and(|theirs| theirs.iter().any(|theirs| *theirs != changed))
    }
}

/// Flips every bit of every event code and umask, one at a time, and asks who notices. `record` is the first of them.
pub fn mutate(catalog: &Catalog, opinions: &[Opinion<'_>]) -> Result<()> {
    let mut flips = 0_usize;
    let mut alone = vec![0_usize; opinions.len()];
    let mut by_others = 0;
    for (uarch, name, event) in encodings(catalog) {
        let key = (uarch.id.as_str(), name);
        for changed in flipped(uarch, event) {
            flips += 1;
            let noticed: Vec<bool> = opinions
                .iter()
                .map(|opinion| opinion.notices(key, changed))
                .collect();
            for (count, noticed) in alone.iter_mut().zip(&noticed) {
                *count += usize::from(*noticed);
            }
            by_others += usize::from(noticed.iter().skip(1).any(|noticed| *noticed));
        }
    }
    ensure!(flips > 0, "no bit to flip");
    let percent = |count: usize| format!("{:.1} %", 100.0 * count as f64 / flips as f64);
    println!("{flips} single bits flipped in event codes and umasks; noticed by");
    for (opinion, count) in opinions.iter().zip(&alone) {
        println!("  {} alone: {}", opinion.who, percent(*count));
    }
    println!("  all but the record: {}", percent(by_others));
    ensure!(
        by_others * 100 >= flips * NOTICED_BY_OTHERS,
        "without the record, fewer than {NOTICED_BY_OTHERS} % of the flipped bits are noticed"
    );
    Ok(())
}

/// Prints how many of the others have each encoding, and fails when they have become fewer.
pub fn check_confirmed(catalog: &Catalog, others: &[Opinion<'_>]) -> Result<()> {
    let mut counts = vec![0; others.len() + 1];
    let mut without = BTreeMap::<_, usize>::new();
    for (uarch, name, _) in encodings(catalog) {
        let key = (uarch.id.as_str(), name);
        let have = others.iter().filter(|other| other.knows(key)).count();
        counts[have] += 1;
        if have == 0 {
            *without.entry(uarch.id.as_str()).or_default() += 1;
        }
    }
    let list: Vec<_> = counts.iter().map(usize::to_string).collect();
    println!(
        "encodings that 0, 1, … of these others have: {}",
        list.join(", ")
    );
    let without: Vec<_> = without
        .iter()
        .map(|(uarch, count)| format!("{uarch} {count}"))
        .collect();
    println!("  none of them: {}", without.join(", "));
    let [at_least_one, at_least_two] = CONFIRMED;
    ensure!(
        counts[1..].iter().sum::<usize>() >= at_least_one
            && counts[2..].iter().sum::<usize>() >= at_least_two,
        "there were {at_least_one} with at least one and {at_least_two} with at least two"
    );
    Ok(())
}

/// Every encoding with one bit of its code another.
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

/// All encodings that others can have: not those that only the kernel of the machine knows.
fn encodings(catalog: &Catalog) -> impl Iterator<Item = (&Uarch, &str, &Event)> {
    let all = catalog.iter().flat_map(|uarch| {
        uarch
            .events
            .iter()
            .map(move |(name, event)| (uarch, name.as_str(), event))
    });
    all.filter(|(_, _, event)| !event.code.is_empty() && !KERNEL_PMUS.contains(&event.pmu.as_str()))
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
    fn flipped_bits_are_noticed_by_who_has_the_encoding() {
        let catalog = catalog();
        let has = Opinion::ask("a", &catalog, |_, _, _| vec![[0x1c7, 0, 0, 0]]);
        let has_not = Opinion::ask("b", &catalog, |_, _, _| Vec::new());
        assert_eq!((has.len(), has_not.len()), (1, 0));
        let record = || Opinion::ask("the record", &catalog, |_, _, _| vec![[0x1c7, 0, 0, 0]]);
        assert!(mutate(&catalog, &[record(), has]).is_ok());
        // The record alone is not enough.
        assert!(mutate(&catalog, &[record(), has_not]).is_err());
        // Eight bits of each field; no two changes are the same, and none is none.
        let uarch = catalog.iter().next().expect("one");
        let mut changed = flipped(uarch, &uarch.events["E"]);
        changed.push([0x1c7, 0, 0, 0]);
        changed.sort_unstable();
        changed.dedup();
        assert_eq!(changed.len(), 17);
    }

    #[test]
    fn another_encoding_is_an_error_unless_it_is_known_to_be_wrong() {
        let catalog = catalog();
        let ask = |words| Opinion::ask("a", &catalog, move |_, _, _| vec![[words, 0, 0, 0]]);
        assert!(ask(0x1c7).check(&catalog, |_, _| None).is_ok());
        assert!(ask(0x3c7).check(&catalog, |_, _| None).is_err());
        let mut wrong = ask(0x3c7);
        assert!(wrong.check(&catalog, |_, _| Some("it is old")).is_ok());
        assert_eq!(wrong.len(), 0, "it has no say any more");
    }
}

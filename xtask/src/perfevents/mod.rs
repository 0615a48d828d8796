//! `cargo xtask perfevents check`: the tables of hardware events against themselves and against other people's.

mod libpfm;
mod likwid;

use anyhow::{Result, ensure};
use perfevents::{Catalog, Event, Uarch};

use self::libpfm::Libpfm;
use crate::{apt, shell::progress};

/// Encodings that at least two, and at least three independent sources have. CI fails when they become fewer.
const SUPPORTED: [usize; 2] = [1142, 765];

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Check the tables of hardware events: for themselves, and against libpfm4 if it is installed
    Check,
}

pub fn run(args: &Args) -> Result<()> {
    let Command::Check = args.command;
    check()
}

/// All checks; what they found goes to stdout.
pub fn check() -> Result<()> {
    let catalog = Catalog::builtin();
    check_files(catalog)?;
    check_support(catalog)?;
    match libpfm() {
        Ok(libpfm) => check_with(&libpfm, catalog)?,
        Err(why) => progress(&format!(
            "not compared with libpfm4: {why} (apt-get install libpfm4)"
        )),
    }
    if likwid::is_installed() {
        check_formulas(catalog)?;
    } else {
        progress(
            "not compared with LIKWID's groups: they are not installed (apt-get install likwid)",
        );
    }
    Ok(())
}

/// The library, which is installed where that is possible.
fn libpfm() -> Result<Libpfm, String> {
    Libpfm::open().or_else(|why| {
        let package = ["libpfm4".to_owned()];
        if !apt::available()
            || apt::install(&package, "other people's codes of hardware events").is_err()
        {
            return Err(why);
        }
        Libpfm::open()
    })
}

fn check_files(catalog: &Catalog) -> Result<()> {
    let problems: Vec<String> = catalog
        .iter()
        .flat_map(|uarch| {
            let problems = uarch.problems(Catalog::meanings());
            problems
                .into_iter()
                .map(|what| format!("{}: {what}", uarch.id))
        })
        .collect();
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    let count = |of: fn(&Uarch) -> usize| catalog.iter().map(of).sum::<usize>();
    println!(
        "{} microarchitectures, {} events, {} groups, {} formulas: none contradicts itself",
        catalog.iter().count(),
        count(|uarch| uarch.events.len()),
        count(|uarch| uarch.groups.len()),
        count(|uarch| uarch.groups.values().map(|group| group.metrics.len()).sum()),
    );
    for uarch in catalog.iter() {
        for (name, group) in &uarch.groups {
            if !group.fits(uarch, true) {
                println!(
                    "{} {name}: more events than counters, they take turns",
                    uarch.id
                );
            }
        }
    }
    Ok(())
}

fn check_support(catalog: &Catalog) -> Result<()> {
    let mut by_sources = [0_usize; 4];
    for event in events(catalog).map(|(_, _, event)| event) {
        by_sources[event.sources.len().min(3)] += 1;
    }
    let [none, one, two, more] = by_sources;
    println!("encodings with 0, 1, 2, 3 or more independent sources: {none}, {one}, {two}, {more}");
    let [at_least_two, at_least_three] = SUPPORTED;
    ensure!(
        two + more >= at_least_two && more >= at_least_three,
        "there were {at_least_two} with at least two and {at_least_three} with at least three"
    );
    Ok(())
}

fn check_with(libpfm: &Libpfm, catalog: &Catalog) -> Result<()> {
    let (mut agreed, mut unknown, mut known_faults, mut wrong) = (0, 0, 0, Vec::new());
    for (uarch, name, event) in events(catalog) {
        match libpfm.compare(uarch, name, event) {
            None => unknown += 1,
            Some(theirs) if theirs.agrees(event) => agreed += 1,
            Some(_) if libpfm::fault(uarch, name).is_some() => known_faults += 1,
            Some(theirs) => wrong.push(format!("{} {name}: libpfm4 has {theirs}", uarch.id)),
        }
    }
    println!(
        "libpfm4: {agreed} encodings agree, {known_faults} differ where it is known to be wrong, {unknown} are not in it"
    );
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn check_formulas(catalog: &Catalog) -> Result<()> {
    let (mut same, mut others, mut wrong) = (0, 0, Vec::new());
    for (what, verdict) in likwid::compare(catalog) {
        match verdict {
            likwid::Verdict::Same => same += 1,
            likwid::Verdict::OtherEvents => others += 1,
            likwid::Verdict::Differs(..) if likwid::reason(&what).is_some() => {
                let why = likwid::reason(&what).unwrap_or_default();
                println!("LIKWID: {what} differs: {why}");
            }
            likwid::Verdict::Differs(ours, theirs) => {
                wrong.push(format!("{what}: ours gives {ours}, LIKWID's {theirs}"));
            }
        }
    }
    println!("LIKWID: {same} formulas give the same, {others} use other events");
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn events(catalog: &Catalog) -> impl Iterator<Item = (&Uarch, &str, &Event)> {
    catalog.iter().flat_map(|uarch| {
        uarch
            .events
            .iter()
            .map(move |(name, event)| (uarch, name.as_str(), event))
    })
}

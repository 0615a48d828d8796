//! `cargo xtask perfevents check`: the tables of hardware events against themselves and against other people's.

mod against;
mod cpus;
mod debian;
mod image;
mod libpfm;
mod libpfm_tables;
mod likwid;
mod likwid_tables;
mod opinion;
mod perf;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use perfevents::{Catalog, Event, KERNEL_PMUS, Recorded, Room, Uarch};

use self::{debian::Packages, libpfm::Libpfm, libpfm_tables::Tables, opinion::Opinion, perf::Perf};
use crate::workspace::Workspace;

/// Encodings that at least two, and at least three independent sources have. CI fails when they become fewer.
const SUPPORTED: [usize; 2] = [1146, 767];
/// The architectures of perf's tables, and Debian's names of them.
const ARCHITECTURES: [&str; 3] = ["amd64", "arm64", "ppc64el"];

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Check the tables of hardware events: for themselves, and against those of perf, libpfm4 and LIKWID
    Check {
        /// Compare with the tables of this folder as well: JSON, one file for each microarchitecture
        #[arg(long, value_name = "DIR")]
        against: Option<PathBuf>,
    },
}

pub fn run(args: &Args) -> Result<()> {
    let Command::Check { against } = &args.command;
    check()?;
    match against {
        Some(folder) => against::check(Catalog::builtin(), folder),
        None => Ok(()),
    }
}

/// All checks; what they found goes to stdout.
pub fn check() -> Result<()> {
    let catalog = Catalog::builtin();
    check_files(catalog)?;
    check_support(catalog)?;
    let packages = Packages::new(&Workspace::find()?.target);
    check_others(catalog, &packages)?;
    check_formulas(catalog, &packages.source("likwid")?)
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
            if !group.fits(uarch, Room::WITH_SMT) {
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
    for event in events(catalog) {
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

/// Compares the encodings with those of the record, perf, libpfm4 and LIKWID.
fn check_others(catalog: &Catalog, packages: &Packages) -> Result<()> {
    let record = perfevents::record()?;
    let differences = perfevents::differences(catalog, &record);
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    let record: HashMap<_, _> = record
        .iter()
        .map(|entry| ((entry.uarch, entry.event), entry))
        .collect();
    let mut opinions = vec![Opinion::ask("the record", catalog, |uarch, name, _| {
        let entry = record.get(&(uarch.id.as_str(), name));
        entry.map(|entry| entry.config).into_iter().collect()
    })];
    println!("the record: {} encodings agree", opinions[0].len());
    let perf = perf(packages)?;
    cpus::check(&perf, catalog)?;
    let mut opinion = Opinion::ask("perf", catalog, |uarch, event, code| {
        match theirs("linux", &record, uarch, event) {
            Theirs::Same => perf.words(uarch, event, code),
            Theirs::Other(name) => perf.words(uarch, name, code),
            Theirs::Parts => Vec::new(),
        }
    });
    opinion.check(catalog, perf::fault)?;
    opinions.push(opinion);
    let (libpfm, tables) = libpfm(packages)?;
    let mut opinion = Opinion::ask("libpfm4", catalog, |uarch, event, code| {
        let name = match theirs("libpfm4", &record, uarch, event) {
            Theirs::Same => None,
            Theirs::Other(name) => Some(name),
            Theirs::Parts => return Vec::new(),
        };
        let tables = || tables.words(uarch, event, code, name);
        libpfm
            .words(uarch, event, code, name)
            .or_else(tables)
            .into_iter()
            .collect()
    });
    opinion.check(catalog, libpfm::fault)?;
    opinions.push(opinion);
    let likwid = likwid_tables::Tables::read(&packages.source("likwid")?)?;
    let mut opinion = Opinion::ask("LIKWID", catalog, |uarch, event, code| {
        match theirs("likwid", &record, uarch, event) {
            Theirs::Same => likwid.words(uarch, event, code, None),
            Theirs::Other(name) => likwid.words(uarch, event, code, Some(name)),
            Theirs::Parts => Vec::new(),
        }
    });
    opinion.check(catalog, likwid_tables::fault)?;
    opinions.push(opinion);
    opinion::check_confirmed(catalog, &opinions[1..])?;
    opinion::mutate(catalog, &opinions)
}

/// What a source calls an event.
enum Theirs<'a> {
    Same,
    Other(&'a str),
    /// It has no name for it: several of its events together are it.
    Parts,
}

fn theirs<'a>(
    who: &str,
    record: &HashMap<(&str, &str), &Recorded<'a>>,
    uarch: &Uarch,
    name: &str,
) -> Theirs<'a> {
    let entry = record.get(&(uarch.id.as_str(), name));
    match entry.and_then(|entry| *entry.witnesses.get(who)?) {
        None => Theirs::Same,
        Some("+") => Theirs::Parts,
        Some(other) => Theirs::Other(other),
    }
}

/// The event files of all architectures.
fn perf(packages: &Packages) -> Result<Perf> {
    let program = |architecture| {
        Ok(packages
            .get("linux-perf", architecture)?
            .join("usr/bin/perf"))
    };
    let programs: Result<Vec<_>> = ARCHITECTURES.into_iter().map(program).collect();
    Perf::read(&programs?)
}

/// The library of this architecture, and the tables in those of the others.
fn libpfm(packages: &Packages) -> Result<(Libpfm, Tables)> {
    let path = |architecture, triplet: &str| -> Result<PathBuf> {
        let folder = packages.get("libpfm4", architecture)?.join("usr/lib");
        Ok(folder.join(triplet).join(libpfm::NAME))
    };
    let own = path("amd64", "x86_64-linux-gnu")?;
    ensure!(
        cfg!(target_arch = "x86_64"),
        "its tables of x86 are in a library that this machine cannot load"
    );
    let libpfm = Libpfm::open(&own).map_err(anyhow::Error::msg)?;
    let tables = Tables::read(&[
        path("arm64", "aarch64-linux-gnu")?,
        path("ppc64el", "powerpc64le-linux-gnu")?,
    ])?;
    Ok((libpfm, tables))
}

fn check_formulas(catalog: &Catalog, source: &Path) -> Result<()> {
    let (mut same, mut others, mut wrong) = (0, 0, Vec::new());
    for (what, verdict) in likwid::compare(catalog, source) {
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

/// Those of processors, not those that the kernel makes up.
fn events(catalog: &Catalog) -> impl Iterator<Item = &Event> {
    let all = catalog.iter().flat_map(|uarch| uarch.events.values());
    all.filter(|event| !KERNEL_PMUS.contains(&event.pmu.as_str()))
}

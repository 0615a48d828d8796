//! `cargo xtask perfevents check`: checks the event tables, and compares them with those of perf,
//! libpfm4 and LIKWID.

mod cpus;
mod cross_check;
mod debian;
mod image;
mod json_tables;
mod libpfm;
mod libpfm_tables;
mod likwid;
mod likwid_tables;
mod perf;

use std::{
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context as _, Result, ensure};
use perfevents::{Catalog, Event, Origin, Room, Uarch};

use self::{
    cross_check::CrossCheck, debian::Packages, libpfm::Libpfm, libpfm_tables::Tables, perf::Perf,
};
use crate::{shell, workspace::Workspace};

/// Least number of encodings with at least two, and with at least three independent sources.
const MIN_SOURCED: [usize; 2] = [1265, 851];
/// The architectures of perf's tables, as Debian names them.
const ARCHITECTURES: [&str; 3] = ["amd64", "arm64", "ppc64el"];

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Check the event tables for contradictions, and against those of perf, libpfm4 and LIKWID
    Check {
        /// Also compare with the tables in this directory: JSON, one file per microarchitecture
        #[arg(long, value_name = "DIR")]
        against: Option<PathBuf>,
    },
}

pub fn run(args: &Args) -> Result<()> {
    let Command::Check { against } = &args.command;
    check()?;
    match against {
        Some(directory) => json_tables::check(Catalog::builtin(), directory),
        None => Ok(()),
    }
}

/// Runs all checks and prints their results.
pub fn check() -> Result<()> {
    let workspace = Workspace::find()?;
    check_toml(&workspace.root)?;
    let catalog = Catalog::builtin();
    check_tables(catalog)?;
    check_sources(catalog)?;
    let packages = Packages::new(&workspace.target);
    check_encodings(catalog, &packages)?;
    check_formulas(catalog, &packages.source("likwid")?)
}

/// Other programs can read the data files: they are TOML 1.0, while our parser also accepts TOML
/// 1.1.
fn check_toml(root: &Path) -> Result<()> {
    let script = root.join("xtask/src/perfevents/toml_1_0.py");
    let data = root.join("perfevents/data");
    shell::run_quietly(process::Command::new("python3").arg(script).arg(data))
        .context("reading the data files with Python 3.11 or later")
}

fn check_tables(catalog: &Catalog) -> Result<()> {
    let problems: Vec<String> = catalog
        .iter()
        .flat_map(|uarch| {
            let problems = uarch.problems(Catalog::meanings()).into_iter();
            problems
                .chain(uarch.encoding_problems())
                .map(|problem| format!("{}: {problem}", uarch.id))
        })
        .collect();
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    let count = |of: fn(&Uarch) -> usize| catalog.iter().map(of).sum::<usize>();
    println!(
        "{} microarchitectures, {} events, {} groups, {} formulas: no contradictions",
        catalog.iter().count(),
        count(|uarch| uarch.events.len()),
        count(|uarch| uarch.groups.len()),
        count(|uarch| uarch.groups.values().map(|group| group.metrics.len()).sum()),
    );
    for uarch in catalog.iter() {
        for (name, group) in &uarch.groups {
            if !group.fits(uarch, Room::WITH_SMT) {
                println!(
                    "{} {name}: multiplexed, more events than counters",
                    uarch.id
                );
            }
        }
    }
    Ok(())
}

fn check_sources(catalog: &Catalog) -> Result<()> {
    let mut by_sources = [0_usize; 4];
    let uarchs = catalog.iter();
    let events = uarchs.flat_map(|uarch| uarch.events.values());
    for event in events.filter(|event| !event.is_of_kernel()) {
        by_sources[event.sources.len().min(3)] += 1;
    }
    let [none, one, two, more] = by_sources;
    println!("encodings with 0, 1, 2, 3 or more independent sources: {none}, {one}, {two}, {more}");
    let [at_least_two, at_least_three] = MIN_SOURCED;
    ensure!(
        two + more >= at_least_two && more >= at_least_three,
        "there were {at_least_two} with at least two and {at_least_three} with at least three"
    );
    Ok(())
}

/// Compares the encodings with those of perf, libpfm4 and LIKWID.
fn check_encodings(catalog: &Catalog, packages: &Packages) -> Result<()> {
    let config = CrossCheck::new("config", catalog, |_, _, event| {
        event.config.into_iter().collect()
    });
    println!("config: {} encodings agree", config.len());
    let perf = perf(packages)?;
    cpus::check(&perf, catalog)?;
    let mut with_perf =
        CrossCheck::new("perf", catalog, |uarch, name, event| {
            match published_name(event, Origin::Linux) {
                PublishedName::Same => perf.words(uarch, name, event),
                PublishedName::Other(name) => perf.words(uarch, name, event),
                PublishedName::Parts => Vec::new(),
            }
        });
    with_perf.compare(catalog, perf::fault)?;
    let (libpfm, tables) = libpfm(packages)?;
    let mut with_libpfm = CrossCheck::new("libpfm4", catalog, |uarch, name, event| {
        let theirs = match published_name(event, Origin::Libpfm4) {
            PublishedName::Same => None,
            PublishedName::Other(name) => Some(name),
            PublishedName::Parts => return Vec::new(),
        };
        let tables = || tables.words(uarch, name, event, theirs);
        libpfm
            .words(uarch, name, event, theirs)
            .or_else(tables)
            .into_iter()
            .collect()
    });
    with_libpfm.compare(catalog, libpfm::fault)?;
    let likwid = likwid_tables::Tables::read(&packages.source("likwid")?)?;
    let mut with_likwid =
        CrossCheck::new(
            "LIKWID",
            catalog,
            |uarch, name, event| match published_name(event, Origin::Likwid) {
                PublishedName::Same => likwid.words(uarch, name, event, None),
                PublishedName::Other(theirs) => likwid.words(uarch, name, event, Some(theirs)),
                PublishedName::Parts => Vec::new(),
            },
        );
    with_likwid.compare(catalog, likwid_tables::fault)?;
    let others = [with_perf, with_libpfm, with_likwid];
    cross_check::check_confirmed(catalog, &others)?;
    cross_check::mutation_test(catalog, &config, &others)
}

/// The name of an event in the tables of a source.
enum PublishedName<'a> {
    Same,
    Other(&'a str),
    /// The source has it in parts: several of its events together make the encoding.
    Parts,
}

fn published_name(event: &Event, origin: Origin) -> PublishedName<'_> {
    match event.origins.get(&origin).and_then(Option::as_deref) {
        None => PublishedName::Same,
        Some("+") => PublishedName::Parts,
        Some(name) => PublishedName::Other(name),
    }
}

/// The vendors' event files of all architectures, from perf.
fn perf(packages: &Packages) -> Result<Perf> {
    let program = |architecture| {
        Ok(packages
            .get("linux-perf", architecture)?
            .join("usr/bin/perf"))
    };
    let programs: Result<Vec<_>> = ARCHITECTURES.into_iter().map(program).collect();
    Perf::read(&programs?)
}

/// libpfm4 of this architecture, and the tables in its builds for the others.
fn libpfm(packages: &Packages) -> Result<(Libpfm, Tables)> {
    let path = |architecture, triplet: &str| -> Result<PathBuf> {
        let directory = packages.get("libpfm4", architecture)?.join("usr/lib");
        Ok(directory.join(triplet).join(libpfm::NAME))
    };
    let own = path("amd64", "x86_64-linux-gnu")?;
    ensure!(
        cfg!(target_arch = "x86_64"),
        "libpfm4's tables of x86 are in a library that only x86_64 can load"
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
    for (metric, result) in likwid::compare(catalog, source) {
        match result {
            likwid::Comparison::Same => same += 1,
            likwid::Comparison::OtherEvents => others += 1,
            likwid::Comparison::Differs(ours, theirs) => match likwid::reason(&metric) {
                Some(reason) => println!("LIKWID: {metric} differs: {reason}"),
                None => wrong.push(format!("{metric}: ours gives {ours}, LIKWID's {theirs}")),
            },
        }
    }
    println!("LIKWID: {same} formulas give the same result, {others} use other events");
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

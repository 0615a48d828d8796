//! Ceilings of the machine of a run: measured on it, from a file of the site, or from theory.

use std::{collections::BTreeSet, path::Path};

use crate::{
    analysis::{
        catalog::BUSY,
        figure::scaled,
        rows::{Texts, numbers},
        scan::for_each_host,
        stored_run::{StoredHost, StoredRun},
    },
    ceilings::{
        Bandwidth, Ceilings, Flops, MACHINE_COLUMNS, MAIN_MEMORY, Machine, Precision, directories,
        stored,
    },
    failure::Failure,
};

/// Bytes of a transfer of a memory channel.
const TRANSFER: f64 = 8.0;

/// Floating-point operations per cycle of a core in double precision, with all its units, by the name
/// of the microarchitecture: units × elements per vector × 2 for a fused multiply-add. Single precision
/// has twice as many.
const PER_CYCLE: &[(&str, u32)] = &[
    ("A64FX", 32),
    ("Alder Lake P-core (Golden Cove)", 16),
    ("AmpereOne", 8),
    ("Broadwell", 16),
    ("Broadwell-DE", 16),
    ("Broadwell-EP", 16),
    ("Cascade Lake-SP / Cooper Lake", 32),
    ("Emerald Rapids", 32),
    ("Granite Rapids", 32),
    ("Haswell", 16),
    ("Haswell-EP", 16),
    ("Ice Lake-SP", 32),
    ("Ivy Bridge", 8),
    ("Ivy Bridge-EP", 8),
    ("Knights Landing", 32),
    ("Neoverse N1", 8),
    ("Neoverse N2", 8),
    ("Neoverse V1", 16),
    ("Neoverse V2", 16),
    ("Sandy Bridge", 8),
    ("Sandy Bridge-EP", 8),
    ("Sapphire Rapids", 32),
    ("Skylake", 16),
    ("Skylake-SP", 32),
    ("Zen", 8),
    ("Zen 2", 16),
    ("Zen 3", 16),
    ("Zen 4", 16),
    ("Zen 5", 32),
];

/// A limit of the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Ceiling {
    pub limit: Limit,
    /// FLOP/s or B/s.
    pub per_second: f64,
    /// (maximum − minimum) / median of the measurement.
    pub spread: Option<f64>,
    /// CPUs that worked at the same time; `None`: all.
    pub cpus: Option<usize>,
    pub provenance: Provenance,
    /// Whether it is in the plot.
    pub drawn: bool,
}

/// What is limited.
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    /// Operations in a precision, with the loop that was measured.
    Flops(Precision, Option<String>),
    /// Bytes of a level of the memory, with the kind of access.
    Bandwidth(String, Option<String>),
}

/// Origin of a ceiling, the most reliable first.
#[derive(Clone, Debug, PartialEq)]
pub enum Provenance {
    /// `profiler ceilings` on this kind of machine, with the date.
    Measured(String),
    /// A file, by its path.
    Site(String),
    /// A formula.
    Theory(String),
}

impl Provenance {
    /// Text for people.
    pub fn text(&self) -> String {
        match self {
            Self::Measured(when) => format!("measured {when}"),
            Self::Site(path) => format!("file {path}"),
            Self::Theory(formula) => format!("theory: {formula}"),
        }
    }

    /// One word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Measured(_) => "measured",
            Self::Site(_) => "site",
            Self::Theory(_) => "theory",
        }
    }
}

impl Limit {
    /// Name for people.
    pub fn name(&self) -> String {
        let (of, how) = match self {
            Self::Flops(Precision::Double, how) => ("double precision", how),
            Self::Flops(Precision::Single, how) => ("single precision", how),
            Self::Flops(Precision::Half, how) => ("half precision", how),
            Self::Bandwidth(level, how) => (level.as_str(), how),
        };
        match how {
            Some(how) => format!("{of}, {how}"),
            None => of.to_owned(),
        }
    }

    /// A value with unit.
    pub fn format(&self, per_second: f64) -> String {
        match self {
            Self::Flops(..) => scaled(per_second, "FLOP/s"),
            Self::Bandwidth(..) => scaled(per_second, "B/s"),
        }
    }
}

/// Files with ceilings.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Measurements of this user and of root.
    measured: Vec<Ceilings>,
    /// Files that the user or the site names, with their paths.
    site: Vec<(String, Ceilings)>,
    problems: Vec<String>,
}

impl Sources {
    /// Reads all measurements on this machine, and the given files.
    ///
    /// # Errors
    ///
    /// When a given file cannot be read.
    pub fn read<'a>(files: impl Iterator<Item = &'a Path>) -> Result<Self, Failure> {
        let mut sources = Self::default();
        for file in files {
            let ceilings = Ceilings::read(file)?;
            let path = file.display().to_string();
            match ceilings.measured {
                // Copied from another machine of the same kind.
                Some(_) => sources.measured.push(ceilings),
                None => sources.site.push((path, ceilings)),
            }
        }
        for directory in directories() {
            let (found, problems) = stored(&directory);
            sources.measured.extend(found);
            sources.problems.extend(problems);
        }
        Ok(sources)
    }

    /// The ceilings of these machines, and notes about what is missing.
    pub(super) fn ceilings(
        &self,
        machines: &Machines,
        precisions: &BTreeSet<Precision>,
    ) -> (Vec<Ceiling>, Vec<String>) {
        let mut notes = self.problems.clone();
        let mut ceilings = Vec::new();
        let measured = self.measured.iter().map(|ceilings| {
            let date = ceilings.measured.as_deref().unwrap_or_default();
            // Without the time.
            let date = date.split(' ').next().unwrap_or_default().to_owned();
            let busy = if ceilings.busy.is_empty() {
                ""
            } else {
                " on a busy node"
            };
            (Provenance::Measured(date + busy), ceilings)
        });
        let mut measured: Vec<_> = measured.collect();
        // The latest first.
        measured.sort_by(|a, b| b.1.measured.cmp(&a.1.measured));
        let site = self
            .site
            .iter()
            .map(|(path, ceilings)| (Provenance::Site(path.clone()), ceilings));
        let mut has_measured = false;
        for (provenance, file) in measured.into_iter().chain(site) {
            let is_measured = matches!(provenance, Provenance::Measured(_));
            if let Some(difference) = machines.difference(&file.machine) {
                if !is_measured {
                    notes.push(format!("{}: {difference}", provenance.text()));
                }
                continue;
            }
            if is_measured && has_measured {
                continue;
            }
            has_measured |= is_measured;
            ceilings.extend(of_file(file, &provenance));
            ceilings.extend(file.memory.map(|memory| Ceiling {
                limit: Limit::Bandwidth(MAIN_MEMORY.to_owned(), None),
                per_second: f64::from(memory.channels) * memory.transfers_per_second * TRANSFER,
                spread: None,
                cpus: None,
                provenance: Provenance::Theory(format!(
                    "{} channels × {} × 8 B",
                    memory.channels,
                    scaled(memory.transfers_per_second, "T/s")
                )),
                drawn: false,
            }));
        }
        if !has_measured {
            let why = "No ceilings were measured on this kind of machine: run `profiler ceilings` on \
                       an idle node of it";
            notes.push(why.to_owned());
        }
        ceilings.extend(machines.theory());
        draw(&mut ceilings, precisions);
        (ceilings, notes)
    }
}

/// Ceilings of a file with the largest number of CPUs: all, if it is not given.
fn of_file(file: &Ceilings, provenance: &Provenance) -> Vec<Ceiling> {
    let most = |cpus: &mut dyn Iterator<Item = Option<usize>>| {
        cpus.map(|cpus| cpus.unwrap_or(usize::MAX)).max()
    };
    let of_flops = most(&mut file.flops.iter().map(|flops| flops.cpus));
    let of_memory = most(&mut file.bandwidth.iter().map(|bandwidth| bandwidth.cpus));
    let ceiling = |limit, per_second, spread, cpus| Ceiling {
        limit,
        per_second,
        spread,
        cpus,
        provenance: provenance.clone(),
        drawn: false,
    };
    let flops = file.flops.iter().map(|flops: &Flops| {
        let limit = Limit::Flops(flops.precision, flops.name.clone());
        ceiling(limit, flops.per_second, flops.spread, flops.cpus)
    });
    let memory = file.bandwidth.iter().map(|bandwidth: &Bandwidth| {
        let limit = Limit::Bandwidth(bandwidth.level.clone(), bandwidth.access.clone());
        ceiling(
            limit,
            bandwidth.per_second,
            bandwidth.spread,
            bandwidth.cpus,
        )
    });
    let (mut flops, mut memory): (Vec<_>, Vec<_>) = (flops.collect(), memory.collect());
    for ceilings in [&mut flops, &mut memory] {
        ceilings.sort_by(|a, b| b.per_second.total_cmp(&a.per_second));
    }
    flops.append(&mut memory);
    flops.retain(|ceiling| {
        let most = match ceiling.limit {
            Limit::Flops(..) => of_flops,
            Limit::Bandwidth(..) => of_memory,
        };
        Some(ceiling.cpus.unwrap_or(usize::MAX)) == most
    });
    flops
}

/// Selects the ceilings for the plot: of each precision with operations, and of the memory, the
/// highest of the most reliable origin; and that of operations on single numbers, if it was measured.
fn draw(ceilings: &mut [Ceiling], precisions: &BTreeSet<Precision>) {
    let is_scalar = |ceiling: &Ceiling| match &ceiling.limit {
        Limit::Flops(_, Some(name)) => name.contains("scalar"),
        _ => false,
    };
    let mut first = |wanted: &dyn Fn(&Ceiling) -> bool| {
        let found = ceilings.iter().position(wanted);
        let Some(found) = found else { return };
        let provenance = ceilings[found].provenance.word();
        let same =
            |ceiling: &&mut Ceiling| wanted(ceiling) && ceiling.provenance.word() == provenance;
        let all = ceilings.iter_mut().filter(same);
        if let Some(highest) = all.max_by(|a, b| a.per_second.total_cmp(&b.per_second)) {
            highest.drawn = true;
        }
    };
    for precision in precisions {
        first(&|ceiling| matches!(&ceiling.limit, Limit::Flops(of, _) if of == precision));
    }
    first(&|ceiling| matches!(&ceiling.limit, Limit::Bandwidth(level, _) if level == MAIN_MEMORY));
    if let Some(precision) = precisions.first() {
        first(&|ceiling| {
            matches!(&ceiling.limit, Limit::Flops(of, _) if of == precision) && is_scalar(ceiling)
        });
    }
}

/// Facts about the nodes of a run.
pub(super) struct Machines(Vec<OfHost>);

#[derive(Clone, Debug, Default, PartialEq)]
struct OfHost {
    name: String,
    machine: Machine,
    microarchitecture: Option<String>,
    cores: Option<f64>,
    /// Mean over the CPU time, Hz.
    frequency: Option<f64>,
}

impl Machines {
    pub(super) fn read(run: &StoredRun) -> Self {
        Self(for_each_host(&run.hosts, |host| read_host(run, host)))
    }

    /// The first difference between a machine and one of the nodes.
    fn difference(&self, machine: &Machine) -> Option<String> {
        self.0.iter().find_map(|host| {
            let (fact, here, there) = machine.difference(&host.machine)?;
            let there = there.unwrap_or("unknown");
            Some(format!(
                "of another machine: {fact} is {here}, on {} it is {there}",
                host.name
            ))
        })
    }

    /// Peaks from the microarchitecture and the frequency of the run, if all nodes have the same.
    fn theory(&self) -> Vec<Ceiling> {
        let Some(first) = self.0.first() else {
            return Vec::new();
        };
        let same = |host: &OfHost| {
            host.microarchitecture == first.microarchitecture && host.cores == first.cores
        };
        let frequencies = self.0.iter().map(|host| host.frequency);
        let known = frequencies.collect::<Option<Vec<_>>>();
        let per_cycle = first.microarchitecture.as_deref().and_then(per_cycle);
        let (Some(per_cycle), Some(cores), Some(known)) = (per_cycle, first.cores, known) else {
            return Vec::new();
        };
        if !self.0.iter().all(same) {
            return Vec::new();
        }
        let frequency = known.iter().sum::<f64>() / known.len() as f64;
        let peak = |(precision, factor): (Precision, u32)| {
            let per_cycle = per_cycle * factor;
            Ceiling {
                limit: Limit::Flops(precision, None),
                per_second: cores * f64::from(per_cycle) * frequency,
                spread: None,
                cpus: None,
                provenance: Provenance::Theory(format!(
                    "{cores} cores × {per_cycle} FLOP per cycle × {}",
                    scaled(frequency, "Hz")
                )),
                drawn: false,
            }
        };
        [(Precision::Double, 1), (Precision::Single, 2)]
            .map(peak)
            .to_vec()
    }
}

/// Operations per cycle of a microarchitecture, or of several that cannot be distinguished but have
/// the same.
fn per_cycle(microarchitecture: &str) -> Option<u32> {
    let of = |name: &str| PER_CYCLE.iter().find(|(known, _)| *known == name);
    let mut all = microarchitecture
        .split(" or ")
        .map(|name| Some(of(name)?.1));
    let first = all.next()??;
    all.all(|other| other == Some(first)).then_some(first)
}

fn read_host(run: &StoredRun, host: &StoredHost) -> OfHost {
    let mut found = OfHost {
        name: host.name.clone(),
        ..OfHost::default()
    };
    let mut columns = MACHINE_COLUMNS.to_vec();
    columns.push("microarchitecture");
    // Files that cannot be read are problems of the summary.
    let _ = run.read("host", host, &columns, |batch| {
        let text = |name: &str| Texts::of(batch, name).get(0).map(str::to_owned);
        if batch.num_rows() > 0 {
            let facts = MACHINE_COLUMNS.iter().map(|name| (*name, text(name)));
            found.machine = Machine::of(facts);
            found.microarchitecture = text("microarchitecture");
            found.cores = numbers(batch, "cores")
                .first()
                .copied()
                .filter(|cores| *cores > 0.0);
        }
    });
    let mut columns = vec!["frequency_hz"];
    columns.extend(BUSY);
    let (mut cycles, mut busy) = (0.0, 0.0);
    let _ = run.read("cpu", host, &columns, |batch| {
        let times: Vec<_> = BUSY.iter().map(|name| numbers(batch, name)).collect();
        for (row, frequency) in numbers(batch, "frequency_hz").into_iter().enumerate() {
            let time: f64 = times
                .iter()
                .map(|times| times[row])
                .filter(|ns| !ns.is_nan())
                .sum();
            if !frequency.is_nan() {
                cycles += frequency * time;
                busy += time;
            }
        }
    });
    found.frequency = (busy > 0.0).then(|| cycles / busy);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> BTreeSet<Precision> {
        BTreeSet::from([Precision::Double, Precision::Single])
    }

    fn machines(microarchitecture: &str) -> Machines {
        let known = [("cpu_model_name", Some("Example 9".to_owned()))];
        Machines(vec![OfHost {
            name: "node1".to_owned(),
            machine: Machine::of(known.into_iter()),
            microarchitecture: Some(microarchitecture.to_owned()),
            cores: Some(4.0),
            frequency: Some(2.5e9),
        }])
    }

    fn file(text: &str) -> Ceilings {
        Ceilings::parse(text).expect("valid")
    }

    const MEASURED: &str = "
        measured = '2026-11-20'
        machine.cpu_model_name = 'Example 9'
        flops = [
            { precision = 'double', name = 'fma-avx2-dp', cpus = 1, per_second = 40e9 },
            { precision = 'double', name = 'fma-avx2-dp', cpus = 4, per_second = 150e9 },
            { precision = 'double', name = 'fma-scalar-dp', cpus = 4, per_second = 38e9 },
            { precision = 'single', name = 'fma-avx2-sp', cpus = 4, per_second = 300e9 },
        ]
        bandwidth = [
            { level = 'DRAM', access = 'load', cpus = 4, per_second = 80e9 },
            { level = 'DRAM', access = 'triad', cpus = 4, per_second = 70e9 },
            { level = 'L1', access = 'load', cpus = 4, per_second = 1e12 },
        ]";
    const SITE: &str = "
        memory = { channels = 4, transfers_per_second = 3.2e9 }
        flops = [{ precision = 'double', per_second = 170e9 }]
        bandwidth = [{ level = 'DRAM', per_second = 90e9 }]";

    fn drawn(sources: &Sources, machines: &Machines) -> Vec<(String, f64, &'static str)> {
        let (ceilings, _) = sources.ceilings(machines, &both());
        let drawn = ceilings.iter().filter(|ceiling| ceiling.drawn);
        drawn
            .map(|ceiling| {
                let giga = ceiling.per_second / 1e9;
                (ceiling.limit.name(), giga, ceiling.provenance.word())
            })
            .collect()
    }

    #[test]
    fn measured_then_site_then_theory() {
        let mut sources = Sources {
            measured: vec![file(MEASURED)],
            site: vec![("site.toml".to_owned(), file(SITE))],
            problems: Vec::new(),
        };
        let named = |name: &str, giga, word| (name.to_owned(), giga, word);
        assert_eq!(
            drawn(&sources, &machines("Zen 3")),
            [
                named("single precision, fma-avx2-sp", 300.0, "measured"),
                named("double precision, fma-avx2-dp", 150.0, "measured"),
                named("double precision, fma-scalar-dp", 38.0, "measured"),
                named("DRAM, load", 80.0, "measured"),
            ]
        );
        sources.measured.clear();
        // Single precision is only known from theory: 4 cores × 32 × 2.5 GHz.
        assert_eq!(
            drawn(&sources, &machines("Zen 3")),
            [
                named("double precision", 170.0, "site"),
                named("DRAM", 90.0, "site"),
                named("single precision", 320.0, "theory"),
            ]
        );
        let (_, notes) = sources.ceilings(&machines("Zen 3"), &both());
        assert!(notes[0].contains("run `profiler ceilings`"), "{notes:?}");
        assert!(drawn(&Sources::default(), &machines("Zen 3 + X")).is_empty());
    }

    #[test]
    fn ceilings_of_another_machine_are_not_used() {
        let other = MEASURED.replace("Example 9", "Example 8");
        let sources = Sources {
            measured: vec![file(&other)],
            site: vec![(
                "site.toml".to_owned(),
                file(&other.replace("measured", "#")),
            )],
            problems: vec!["x.toml: damaged".to_owned()],
        };
        let (ceilings, notes) = sources.ceilings(&machines("unknown"), &both());
        assert!(ceilings.is_empty(), "{ceilings:?}");
        assert_eq!(
            notes[..2],
            [
                "x.toml: damaged",
                "file site.toml: of another machine: cpu_model_name is Example 8, on node1 it is Example 9"
            ]
        );
        assert_eq!(notes.len(), 3);
    }

    #[test]
    fn the_latest_measurement_counts() {
        let later = MEASURED.replace("11-20", "11-22").replace("150e9", "151e9");
        let sources = Sources {
            measured: vec![file(MEASURED), file(&later)],
            ..Sources::default()
        };
        let drawn = drawn(&sources, &machines("Zen 3"));
        let of = |giga| {
            drawn
                .iter()
                .filter(|roof| (roof.1, roof.2) == (giga, "measured"))
                .count()
        };
        assert_eq!((of(151.0), of(150.0)), (1, 0), "{drawn:?}");
    }

    #[test]
    fn theory_has_the_names_of_the_event_tables() {
        let names = perfevents::Catalog::builtin()
            .iter()
            .map(|uarch| uarch.name.clone());
        let names: Vec<_> = names.collect();
        for (name, _) in PER_CYCLE {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
        assert_eq!(
            per_cycle("Skylake-SP or Cascade Lake-SP / Cooper Lake"),
            Some(32)
        );
        assert_eq!(per_cycle("Zen 4 or Zen 5"), None);
        assert_eq!(per_cycle("Zen 9"), None);
    }
}

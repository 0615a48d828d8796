//! Summary of one run: figures of the target, of each node, job, rank and region.

mod allocation;
mod commands;
mod contention;
mod document;
mod facts;
mod identity;
mod labels;
mod latencies;
mod mpi;
mod of_node;
mod operations;
mod page;
mod processes;
mod region_energy;
mod sessions;
mod tables;
mod texts;
mod threads;
pub mod thresholds;
mod verdict;

use std::collections::{BTreeMap, HashMap};

use self::{
    allocation::{read_allocation, sum_allocations},
    contention::{read_contention, sum_contention},
    latencies::{Histograms, read_histograms},
    processes::{Process, read_processes},
    region_energy::{Energy, read_region_energies},
    sessions::read_sessions,
};
pub use self::{
    commands::{Command, Commands, Use},
    document::{declarations, document},
    facts::{ALSO, BOUND},
    identity::Identity,
    labels::{by_label, by_label_document, keys},
    page::{closing, page},
    sessions::Session,
    tables::{node_subject, process_subject, rank_subject, region_subject},
    threads::TopThread,
    thresholds::{Thresholds, ceilings_file},
    verdict::{Finding, findings},
};
use super::{
    catalog::{
        DISKS, GPUS, LATENCIES, MOUNTS, NEIGHBOURS, NODE, PERFPY, PROCESSES, PYTYCHE, REGION_TIMES,
        REGIONS, SYSCALLS, TARGET, THREADS,
    },
    figure::{Coverage, Figure, Unit},
    rows::{ProcessKey, Texts, integers},
    scan::{Grouped, Groups, Request, Values, for_each_host, scan},
    stored_run::{StoredHost, StoredRun},
};

/// Figures by name.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    known: BTreeMap<&'static str, f64>,
    /// Sums to which some rows contribute nothing because they have no value.
    partial: BTreeMap<&'static str, Coverage>,
}

/// A figure that is no aggregate over one table.
#[derive(Clone, Copy, Debug)]
struct DerivedFigure {
    name: &'static str,
    unit: Unit,
    help: &'static str,
    /// Query for its values.
    sql: &'static str,
}

/// Those of a target.
const OF_TARGETS: [DerivedFigure; 6] = [
    allocation::CPUS,
    allocation::MEMORY,
    contention::OTHERS,
    contention::BY_TARGET,
    contention::BY_QUOTA,
    contention::BY_OTHERS,
];
/// Those of a region.
const OF_REGIONS: [DerivedFigure; 1] = [region_energy::ENERGY];
/// Those of a rank.
const OF_RANKS: [DerivedFigure; 2] = mpi::ALL;
/// Those of a kind of operations.
const OF_LATENCIES: [DerivedFigure; 3] = latencies::ALL;

/// The summary of a run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub identity: Identity,
    /// In the order of their starts.
    pub sessions: Vec<Session>,
    /// Of all nodes.
    pub target: Figures,
    pub nodes: Vec<Node>,
    /// By batch job, if the processes of several are in the run.
    pub jobs: BTreeMap<String, Figures>,
    /// By rank of a parallel program.
    pub ranks: BTreeMap<u64, Figures>,
    /// By name.
    pub regions: BTreeMap<String, Figures>,
    /// Those that used most CPU time, waited or wrote most, or held most memory of GPUs.
    pub processes: Vec<TopProcess>,
    /// Names of processes, and the CPU time of all with the name, s: those with most.
    pub top_names: Vec<(String, f64)>,
    /// All processes by command.
    pub commands: Commands,
    /// Number of processes.
    pub process_count: usize,
    /// The mount to which the target wrote most, with the bytes.
    pub top_mount: Option<(String, f64)>,
    /// By device.
    pub disks: BTreeMap<String, Figures>,
    /// Of operations, by kind.
    pub latencies: BTreeMap<String, Figures>,
    /// Of system calls, by name.
    pub syscalls: BTreeMap<String, Figures>,
    /// Those that used most CPU time.
    pub threads: Vec<TopThread>,
    /// Command names outside the target with their CPU time while the target waited for CPUs, the
    /// longest first.
    pub neighbours: Vec<(String, Figures)>,
    /// Files that could not be read.
    pub problems: Vec<String>,
    /// Time that the samples of a node cover, s.
    sampled_seconds: Option<f64>,
    /// Values before they are results, for sums over runs.
    values: [Values; 3],
}

/// A node of a run.
#[derive(Clone, Debug)]
pub struct Node {
    pub host: String,
    pub target: Figures,
    pub node: Figures,
    pub all_gpus: Figures,
    pub perfpy: Figures,
    pub pytyche: Figures,
    pub gpus: Vec<Gpu>,
    /// Names of exceeded thresholds.
    pub tags: Vec<&'static str>,
}

/// A GPU of a node.
#[derive(Clone, Debug, Default)]
pub struct Gpu {
    /// PCI address.
    pub bdf: String,
    pub index: Option<i64>,
    pub uuid: Option<String>,
    pub name: Option<String>,
    pub figures: Figures,
}

/// A process with its figures.
#[derive(Clone, Debug)]
pub struct TopProcess {
    pub host: String,
    pub process: Process,
    pub figures: Figures,
}

impl Figures {
    fn of(figures: &[Figure], values: Option<&Values>) -> Self {
        let Some(values) = values else {
            return Self::default();
        };
        let results = figures.iter().zip(values.results(figures));
        let known: BTreeMap<_, _> = results
            .filter_map(|(figure, value)| Some((figure.name, value?)))
            .collect();
        let mut partial: BTreeMap<_, _> = values.partial(figures).into_iter().collect();
        partial.retain(|name, _| known.contains_key(name));
        Self { known, partial }
    }

    /// Adds other figures.
    fn append(&mut self, mut other: Self) {
        self.known.append(&mut other.known);
        self.partial.append(&mut other.partial);
    }

    /// The rows behind a sum, if some of them have no value: it is at least this.
    pub fn coverage(&self, name: &str) -> Option<Coverage> {
        self.partial.get(name).copied()
    }

    /// The figures with one more.
    #[cfg(test)]
    pub(crate) fn with(mut self, name: &'static str, value: f64) -> Self {
        self.known.insert(name, value);
        self
    }

    /// A figure; `None` if it is missing.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.known.get(name).copied()
    }
}

/// Processes that are kept by name.
const TOP: usize = 16;

/// Names of processes that are kept.
const TOP_NAMES: usize = 5;

/// What one host contributes.
struct OfHost {
    requests: Vec<Request<'static>>,
    processes: Vec<Process>,
    gpus: HashMap<String, Gpu>,
    allocation: Figures,
    region_energies: BTreeMap<String, Energy>,
    histograms: Histograms,
    mpi: mpi::Times,
    failures: Vec<String>,
}

/// Order of the requests of a host.
const OF_PROCESSES: usize = 0;
const OF_TARGET: usize = 1;
const IN_NODE: usize = 2;
const IN_GPUS: usize = 3;
const IN_PERFPY: usize = 4;
const IN_PYTYCHE: usize = 5;
const BY_JOB: usize = 6;
const BY_RANK: usize = 7;
const BY_PROCESS: usize = 8;
const BY_GPU: usize = 9;
const BY_REGION: usize = 10;
const BY_REGION_TIME: usize = 11;
const BY_MOUNT: usize = 12;
const BY_NEIGHBOUR: usize = 13;
const BY_DISK: usize = 14;
const BY_LATENCY: usize = 15;
const BY_SYSCALL: usize = 16;
const BY_THREAD: usize = 17;

/// Name of a process among those of its host.
fn name_of(key: ProcessKey) -> String {
    format!("{} {}", key.0, key.1)
}

fn read_host(run: &StoredRun, host: &StoredHost) -> OfHost {
    let mut failures = Vec::new();
    let processes = read_processes(run, host, &mut failures);
    let named = |name: &dyn Fn(&Process) -> Option<String>| {
        let of = |process: &Process| Some((process.key, name(process)?));
        processes.iter().filter_map(of).collect()
    };
    let jobs = named(&|process| process.job.clone());
    let ranks = named(&|process| process.rank.map(|rank| rank.to_string()));
    let every = named(&|process| Some(name_of(process.key)));
    let request = |figures, groups| Request::new(figures, groups, Grouped::new());
    let mut requests = vec![
        request(PROCESSES, Groups::All),
        request(TARGET, Groups::All),
        request(NODE, Groups::All),
        request(GPUS, Groups::All),
        request(PERFPY, Groups::All),
        request(PYTYCHE, Groups::All),
        request(PROCESSES, Groups::Process(jobs)),
        request(PROCESSES, Groups::Process(ranks)),
        request(PROCESSES, Groups::Process(every)),
        request(GPUS, Groups::Columns(vec!["bdf"])),
        request(REGIONS, Groups::Columns(vec!["name"])),
        request(REGION_TIMES, Groups::Columns(vec!["name"])),
        request(MOUNTS, Groups::Columns(vec!["mount"])),
        request(NEIGHBOURS, Groups::Columns(vec!["comm"])),
        request(DISKS, Groups::Columns(vec!["device"])),
        request(LATENCIES, Groups::Columns(vec!["kind"])),
        request(SYSCALLS, Groups::Columns(vec!["syscall"])),
        request(THREADS, Groups::Columns(threads::COLUMNS.to_vec())),
    ];
    failures.extend(scan(run, host, &mut requests));
    let gpus = read_gpus(run, host, &mut failures);
    let region_energies = read_region_energies(run, host, &mut failures);
    let histograms = read_histograms(run, host, &mut failures);
    let mpi = mpi::read_mpi(run, host, &processes, &mut failures);
    let mut allocation = Figures::default();
    let cpus = read_allocation(run, host, &mut allocation, &mut failures);
    read_contention(run, host, &cpus, &mut allocation, &mut failures);
    OfHost {
        requests,
        processes,
        gpus,
        allocation,
        region_energies,
        histograms,
        mpi,
        failures,
    }
}

fn read_gpus(
    run: &StoredRun,
    host: &StoredHost,
    failures: &mut Vec<String>,
) -> HashMap<String, Gpu> {
    let mut gpus = HashMap::new();
    let columns = ["bdf", "index", "uuid", "name", "parent_uuid"];
    let read = run.read("gpu", host, &columns, |batch| {
        let [bdfs, uuids, names] = ["bdf", "uuid", "name"].map(|name| Texts::of(batch, name));
        let parents = Texts::of(batch, "parent_uuid");
        let indices = integers(batch, "index");
        for (row, index) in indices.into_iter().enumerate() {
            if let (Some(bdf), None) = (bdfs.get(row), parents.get(row))
                && !gpus.contains_key(bdf)
            {
                let gpu = Gpu {
                    bdf: bdf.to_owned(),
                    index,
                    uuid: uuids.get(row).map(str::to_owned),
                    name: names.get(row).map(str::to_owned),
                    figures: Figures::default(),
                };
                gpus.insert(bdf.to_owned(), gpu);
            }
        }
    });
    failures.extend(read.err().into_iter().flatten());
    gpus
}

impl OfHost {
    fn whole(&self, request: usize) -> Option<&Values> {
        self.requests[request].values.get("")
    }

    fn figures(&self, request: usize) -> Figures {
        Figures::of(self.requests[request].figures, self.whole(request))
    }

    fn node(&mut self, host: &str, thresholds: &Thresholds) -> Node {
        let mut target = self.figures(OF_PROCESSES);
        target.append(self.figures(OF_TARGET));
        target.append(self.allocation.clone());
        let values = &self.requests[BY_GPU].values;
        let gpus = std::mem::take(&mut self.gpus).into_values();
        let mut gpus: Vec<_> = gpus
            .map(|gpu| Gpu {
                figures: Figures::of(GPUS, values.get(&gpu.bdf)),
                ..gpu
            })
            .collect();
        gpus.sort_by(|a, b| (a.index, &a.bdf).cmp(&(b.index, &b.bdf)));
        let mut node = Node {
            host: host.to_owned(),
            target,
            node: self.figures(IN_NODE),
            all_gpus: self.figures(IN_GPUS),
            perfpy: self.figures(IN_PERFPY),
            pytyche: self.figures(IN_PYTYCHE),
            gpus,
            tags: Vec::new(),
        };
        node.tags = thresholds.exceeded(&node);
        node
    }

    /// The processes of the host that used most CPU time or waited most, and all by command. Adds the CPU
    /// time of all to that of their `names`.
    fn top(&self, host: &str, names: &mut HashMap<String, f64>) -> (Vec<TopProcess>, Commands) {
        let values = &self.requests[BY_PROCESS].values;
        let mut all: Vec<_> = self
            .processes
            .iter()
            .map(|process| TopProcess {
                host: host.to_owned(),
                process: process.clone(),
                figures: Figures::of(PROCESSES, values.get(&name_of(process.key))),
            })
            .collect();
        let commands = Commands::of(&all);
        for process in &all {
            let cpu = process.figures.get("cpu_s").unwrap_or(0.0);
            *names.entry(process.process.comm.clone()).or_default() += cpu;
        }
        keep_top(&mut all, TOP);
        (all, commands)
    }
}

/// Keeps the first of each ranking, in the order of CPU time.
fn keep_top(processes: &mut Vec<TopProcess>, count: usize) {
    let rankings: [fn(&TopProcess) -> f64; 4] = [
        |process| process.figures.get("cpu_s").unwrap_or(0.0),
        TopProcess::waited,
        TopProcess::written,
        |process| process.figures.get("gpu_memory_bytes").unwrap_or(0.0),
    ];
    let mut kept = vec![false; processes.len()];
    for (ranking, count) in rankings.into_iter().zip([count, 1, 1, 1]) {
        let mut order: Vec<_> = (0..processes.len()).collect();
        order.sort_by(|a, b| ranking(&processes[*b]).total_cmp(&ranking(&processes[*a])));
        for index in order.into_iter().take(count) {
            kept[index] |= ranking(&processes[index]) > 0.0;
        }
    }
    let mut kept = kept.into_iter();
    processes.retain(|_| kept.next().unwrap_or(false));
    let cpu = rankings[0];
    processes.sort_by(|a, b| cpu(b).total_cmp(&cpu(a)));
}

impl TopProcess {
    /// Time in the run queue and blocked, s.
    fn waited(&self) -> f64 {
        let of = |name| self.figures.get(name).unwrap_or(0.0);
        of("runqueue_s") + of("blocked_s")
    }
}

impl TopProcess {
    /// Bytes written to files, or dirtied if that is unknown.
    fn written(&self) -> f64 {
        let of = |name| self.figures.get(name);
        of("file_write_bytes")
            .or_else(|| of("storage_write_bytes"))
            .unwrap_or(0.0)
    }
}

fn merged(hosts: &[OfHost], request: usize) -> Grouped {
    let mut merged = Grouped::new();
    for host in hosts {
        for (name, values) in &host.requests[request].values {
            match merged.get_mut(name) {
                Some(sum) => sum.merge(values),
                None => {
                    merged.insert(name.clone(), values.clone());
                }
            }
        }
    }
    merged
}

impl Summary {
    /// Time in which the run was recorded, s: that of its sessions, without the pauses between them.
    pub fn seconds(&self) -> Option<f64> {
        let recorded: Option<f64> = self.sessions.iter().map(Session::seconds).sum();
        // A run without run.json, or whose clock was set back.
        let known = recorded.filter(|_| !self.sessions.is_empty());
        known
            .or(self.sampled_seconds)
            .filter(|seconds| *seconds > 0.0)
    }

    /// Removes command lines, names of users, and names of other processes.
    pub fn redact(&mut self) {
        self.identity.user = None;
        self.identity.command.clear();
        self.identity.target.clear();
        for top in &mut self.processes {
            top.process.cmdline.clear();
            top.process.uid = None;
        }
        self.commands = Commands::default();
        for session in &mut self.sessions {
            session.target.clear();
        }
        self.neighbours.clear();
    }
}

/// Time that the samples of a node cover, s: the mean of the nodes that tell.
fn sampled_seconds(hosts: &[OfHost]) -> Option<f64> {
    let sampled = hosts
        .iter()
        .filter_map(|host| host.figures(IN_NODE).get("sampled_s"));
    let sampled: Vec<f64> = sampled.collect();
    (!sampled.is_empty()).then(|| sampled.iter().sum::<f64>() / sampled.len() as f64)
}

/// The figures of all kinds of operations with quantiles of their durations.
fn latencies(
    hosts: &[OfHost],
    mut figures: BTreeMap<String, Figures>,
    sampled: Option<f64>,
) -> BTreeMap<String, Figures> {
    let mut histograms = Histograms::new();
    for (kind, histogram) in hosts.iter().flat_map(|host| &host.histograms) {
        histograms.entry(kind.clone()).or_default().add(histogram);
    }
    for (kind, histogram) in &histograms {
        let figures = figures.entry(kind.clone()).or_default();
        latencies::add_figures(histogram, sampled, figures);
    }
    figures
}

/// The names with most CPU time, s.
fn top_names(by_name: HashMap<String, f64>) -> Vec<(String, f64)> {
    let mut names: Vec<_> = by_name.into_iter().filter(|(_, cpu)| *cpu > 0.0).collect();
    names.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    names.truncate(TOP_NAMES);
    names
}

/// Summarizes a run.
pub fn summarize(run: &StoredRun, thresholds: &Thresholds) -> Summary {
    let mut hosts = for_each_host(&run.hosts, |host| read_host(run, host));
    let whole = [OF_PROCESSES, OF_TARGET, IN_NODE].map(|request| {
        let mut merged = merged(&hosts, request);
        let empty = || {
            Values::new(
                hosts
                    .first()
                    .map_or(&[], |host| host.requests[request].figures),
            )
        };
        merged.remove("").unwrap_or_else(empty)
    });
    let mut target = Figures::of(PROCESSES, Some(&whole[0]));
    target.append(Figures::of(TARGET, Some(&whole[1])));
    target.append(Figures::of(NODE, Some(&whole[2])));
    let allocations: Vec<_> = hosts.iter().map(|host| host.allocation.clone()).collect();
    sum_allocations(&allocations, &mut target);
    sum_contention(&allocations, &mut target);
    let by = |request: usize, figures| {
        let groups = merged(&hosts, request).into_iter();
        groups.map(move |(name, values)| (name, Figures::of(figures, Some(&values))))
    };
    let mut regions: BTreeMap<_, _> = by(BY_REGION, REGIONS).collect();
    for (name, times) in by(BY_REGION_TIME, REGION_TIMES) {
        regions.entry(name).or_default().append(times);
    }
    for (name, energy) in hosts.iter().flat_map(|host| &host.region_energies) {
        let figures = regions.entry(name.clone()).or_default();
        energy.add_to(figures);
    }
    let mounts = by(BY_MOUNT, MOUNTS).filter_map(|(mount, figures)| {
        Some((
            mount,
            figures
                .get("mount_write_bytes")
                .filter(|bytes| *bytes > 0.0)?,
        ))
    });
    let top_mount = mounts.max_by(|a, b| a.1.total_cmp(&b.1));
    let mut neighbours: Vec<_> = by(BY_NEIGHBOUR, NEIGHBOURS).collect();
    let cpu = |of: &(String, Figures)| of.1.get(NEIGHBOURS[0].name).unwrap_or(0.0);
    neighbours.sort_by(|a, b| cpu(b).total_cmp(&cpu(a)));
    neighbours.truncate(TOP);
    let of_all = |request, figures| by(request, figures).collect();
    let sampled = sampled_seconds(&hosts);
    let latencies = latencies(&hosts, of_all(BY_LATENCY, LATENCIES), sampled);
    let (disks, syscalls) = (of_all(BY_DISK, DISKS), of_all(BY_SYSCALL, SYSCALLS));
    let ranks = by(BY_RANK, PROCESSES);
    let mut ranks: BTreeMap<u64, Figures> = ranks
        .filter_map(|(rank, figures)| Some((rank.parse().ok()?, figures)))
        .collect();
    mpi::add_times(hosts.iter().map(|host| &host.mpi), &mut ranks);
    let jobs = by(BY_JOB, PROCESSES).collect();
    let names: Vec<_> = run.hosts.iter().map(|host| host.name.clone()).collect();
    let mut commands = Commands::default();
    let mut processes = Vec::new();
    let mut by_name = HashMap::new();
    let mut threads = Vec::new();
    for (name, host) in names.iter().zip(&hosts) {
        threads.extend(threads::threads(name, &host.requests[BY_THREAD].values));
        let (mut top, of_host) = host.top(name, &mut by_name);
        processes.append(&mut top);
        commands.merge(of_host);
    }
    keep_top(&mut processes, TOP);
    let top_names = top_names(by_name);
    threads::keep_top(&mut threads, TOP);
    let process_count = hosts.iter().map(|host| host.processes.len()).sum();
    let mut problems = run.problems.clone();
    problems.extend(
        hosts
            .iter_mut()
            .flat_map(|host| std::mem::take(&mut host.failures)),
    );
    let named = names.iter().zip(&mut hosts);
    let nodes = named
        .map(|(name, host)| host.node(name, thresholds))
        .collect();
    Summary {
        identity: Identity::of(run),
        sessions: read_sessions(run),
        sampled_seconds: sampled,
        target,
        nodes,
        jobs,
        ranks,
        regions,
        processes,
        top_names,
        commands,
        process_count,
        top_mount,
        disks,
        latencies,
        syscalls,
        threads,
        neighbours,
        problems,
        values: whole,
    }
}

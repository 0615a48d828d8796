//! Whether a job still has work on this node, besides the profiler and the processes that exist
//! only to run it.
//!
//! A batch script that starts the profiler in the background ends with `wait`, so the job waits for
//! the profiler. The processes of a job are divided into
//!
//! - the profilers of the job and their descendants;
//! - launchers of profilers: `srun`, `mpirun`, `sudo` and others that only wait for what they
//!   started;
//! - daemons of schedulers and of MPI, which do no work of their own;
//! - ancestors of profilers and of their launchers: the *scripts*, and *wrappers* between a
//!   launcher and a profiler (`srun sh -c 'profiler …'`);
//! - all others, which are work.
//!
//! A script that is blocked in wait(2) and has only children of the first groups cannot start work
//! before the profiler ends, unless it is an interactive shell. One that sleeps in another call may
//! continue at any time. A program that sleeps is no ancestor of a profiler, and is work.

mod proc;
mod srun;

use std::collections::{HashMap, HashSet};

pub(super) use self::{proc::ProcReader, srun::SrunSearch};

/// Programs that start others, on this node or elsewhere, and then only wait for them.
const LAUNCHERS: [&str; 18] = [
    "srun",
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "orterun",
    "prterun",
    "prun",
    "pbsdsh",
    "pbs_tmrsh",
    "flux",
    "aprun",
    "oarsh",
    "ssh",
    "sudo",
    "su",
    "timeout",
    "time",
    "strace",
];

/// Processes of schedulers and of MPI that start tasks on their node.
const DAEMONS: [&str; 8] = [
    "slurmstepd",
    "orted",
    "prted",
    "prte",
    "hydra_pmi_proxy",
    "flux-shell",
    "pbs_demux",
    "sshd",
];

/// Generations of ancestors that are searched.
const GENERATIONS_MAX: usize = 64;

/// A process, as its `stat` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) parent: u32,
    pub(super) comm: String,
    /// `R`, `S`, `Z`, …
    pub(super) state: char,
    /// Start time in clock ticks, which distinguishes it from others with its pid.
    pub(super) start: u64,
    /// User and system time in clock ticks.
    pub(super) cpu: u64,
    /// Whether it has a terminal, from which a user can start work.
    pub(super) has_terminal: bool,
}

impl Process {
    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    fn is_one_of(&self, names: &[&str]) -> bool {
        names.contains(&self.comm.as_str())
    }
}

/// Readings of processes. All are of the moment of the call.
pub(super) trait ProcessReader {
    fn process(&self, pid: u32) -> Option<Process>;
    /// Arguments; for a daemon, the title that it has set.
    fn arguments(&self, pid: u32) -> Vec<String>;
    /// Whether it is blocked until a child ends.
    fn waits_for_child(&self, pid: u32) -> bool;
    fn children(&self, pid: u32) -> Vec<u32>;
    /// Context switches so far.
    fn switches(&self, pid: u32) -> Option<u64>;
}

/// What is known about the job.
pub(super) struct Job<'a> {
    /// Its processes.
    pub(super) members: &'a HashSet<u32>,
    /// This process.
    pub(super) own: u32,
    /// Name of this program.
    pub(super) program: &'a str,
    /// The `srun` that started this process, if it runs on this node.
    pub(super) srun: Option<u32>,
}

/// Result of a search for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// This process works.
    Work(u32),
    /// Nothing works now.
    Idle,
    /// Nothing works, and the script of the job waits for the profiler.
    Waiting,
}

/// Activity of the processes that may only wait, since the start of each.
type Activity = HashMap<u32, (u64, u64, Option<u64>)>;

/// Searches a job for work. Keeps what is needed from one search to the next.
#[derive(Default)]
pub(super) struct WorkSearch {
    activity: Activity,
    /// Process that was work at the last search, with its start time.
    witness: Option<(u32, u64)>,
    /// Whether a script of the job runs on this node.
    has_script: bool,
}

impl WorkSearch {
    /// Whether a script of the job was found on this node at the last complete search.
    pub(super) fn has_script(&self) -> bool {
        self.has_script
    }

    /// The process that was work at the last search, if it still exists.
    pub(super) fn witness(&self, reader: &impl ProcessReader) -> Option<u32> {
        let (pid, start) = self.witness?;
        let process = reader.process(pid)?;
        (process.start == start && !process.has_ended()).then_some(pid)
    }

    pub(super) fn search(&mut self, reader: &impl ProcessReader, job: &Job<'_>) -> Finding {
        self.witness = None;
        let mut tree = Tree::read(reader, job);
        tree.find_launchers();
        tree.find_ancestors();
        self.has_script = !tree.scripts.is_empty();
        let mut activity = Activity::new();
        let finding = self.search_tree(&tree, &mut activity);
        self.activity = activity;
        if let Finding::Work(pid) = finding
            && !tree.is_ancestor(pid)
        {
            let start = reader.process(pid).map(|process| process.start);
            self.witness = start.map(|start| (pid, start));
        }
        finding
    }

    fn search_tree<R: ProcessReader>(
        &self,
        tree: &Tree<'_, R>,
        activity: &mut Activity,
    ) -> Finding {
        for pid in tree.processes.keys() {
            if tree.is_work(*pid) {
                return Finding::Work(*pid);
            }
        }
        let mut scripts_wait = !tree.scripts.is_empty();
        for pid in tree.scripts.iter().chain(&tree.wrappers) {
            let Some(process) = tree.processes.get(pid) else {
                continue;
            };
            let before = tree.reader.switches(*pid);
            let waits = tree.reader.waits_for_child(*pid);
            let children = tree.reader.children(*pid);
            let after = tree.reader.switches(*pid);
            // Unknown children started after the members were listed.
            if let Some(child) = children.iter().find(|child| tree.is_unlisted_work(**child)) {
                return Finding::Work(*child);
            }
            let now = (process.start, process.cpu, after);
            activity.insert(*pid, now);
            // It was blocked during all readings, so that they belong together.
            if waits && before.is_some() && before == after && !children.is_empty() {
                scripts_wait &= !process.has_terminal || !tree.scripts.contains(pid);
                continue;
            }
            if process.state != 'S' || self.activity.get(pid) != Some(&now) {
                return Finding::Work(*pid);
            }
            scripts_wait &= !tree.scripts.contains(pid);
        }
        if scripts_wait {
            Finding::Waiting
        } else {
            Finding::Idle
        }
    }
}

/// The processes of a job, divided into groups.
struct Tree<'a, R> {
    reader: &'a R,
    job: &'a Job<'a>,
    /// Members of the job.
    processes: HashMap<u32, Process>,
    /// Profilers, among them this process.
    profilers: HashSet<u32>,
    /// Launchers of profilers.
    launchers: HashSet<u32>,
    scripts: HashSet<u32>,
    wrappers: HashSet<u32>,
}

impl<'a, R: ProcessReader> Tree<'a, R> {
    fn read(reader: &'a R, job: &'a Job<'a>) -> Self {
        let members = job.members.iter();
        let processes = members.filter_map(|pid| Some((*pid, reader.process(*pid)?)));
        Self {
            reader,
            job,
            processes: processes.collect(),
            profilers: HashSet::from([job.own]),
            launchers: job.srun.into_iter().collect(),
            scripts: HashSet::new(),
            wrappers: HashSet::new(),
        }
    }

    /// Finds profilers and their launchers by their arguments.
    fn find_launchers(&mut self) {
        for (pid, process) in &self.processes {
            let is_profiler = process.comm == comm_of(self.job.program);
            if (is_profiler || process.is_one_of(&LAUNCHERS))
                && runs_profiler(&self.reader.arguments(*pid), self.job.program)
            {
                if is_profiler {
                    self.profilers.insert(*pid);
                } else {
                    self.launchers.insert(*pid);
                }
            }
        }
    }

    /// Divides the ancestors of profilers and launchers into scripts, wrappers and launchers.
    fn find_ancestors(&mut self) {
        let descendants: Vec<u32> = self
            .profilers
            .iter()
            .chain(&self.launchers)
            .copied()
            .collect();
        for pid in descendants {
            let mut between = Vec::new();
            let mut is_script = true;
            for (pid, ancestor) in self.ancestors(pid) {
                if ancestor.comm == "sshd" || self.is_oarexec(pid, &ancestor) {
                    break;
                }
                if ancestor.is_one_of(&DAEMONS) {
                    is_script = self.runs_script(pid, &ancestor);
                    break;
                }
                if ancestor.is_one_of(&LAUNCHERS) {
                    self.launchers.insert(pid);
                    self.wrappers.extend(between.drain(..));
                } else if self.processes.contains_key(&pid) {
                    between.push(pid);
                } else {
                    break;
                }
            }
            let group = if is_script {
                &mut self.scripts
            } else {
                &mut self.wrappers
            };
            group.extend(between);
        }
        let groups = [&self.profilers, &self.launchers];
        for known in groups {
            self.scripts.retain(|pid| !known.contains(pid));
            self.wrappers.retain(|pid| !known.contains(pid));
        }
    }

    /// Ancestors of a process, the parent first.
    fn ancestors(&self, pid: u32) -> Vec<(u32, Process)> {
        let parent = |child: u32| {
            let pid = self.process(child)?.parent;
            (pid > 1).then_some(())?;
            Some((pid, self.process(pid)?))
        };
        std::iter::successors(parent(pid), |(pid, _)| parent(*pid))
            .take(GENERATIONS_MAX)
            .collect()
    }

    fn process(&self, pid: u32) -> Option<Process> {
        let known = self.processes.get(&pid).cloned();
        known.or_else(|| self.reader.process(pid))
    }

    /// Whether a daemon runs the script of a job, and not a task: `slurmstepd: [7.batch]`.
    fn runs_script(&self, pid: u32, daemon: &Process) -> bool {
        daemon.comm == "slurmstepd"
            && ["batch", "interactive"].contains(&self.step_of(pid).as_str())
    }

    /// Whether a process is the one of OAR that runs the script of a job. OAR starts it by ssh.
    fn is_oarexec(&self, pid: u32, process: &Process) -> bool {
        let arguments = || self.reader.arguments(pid);
        process.comm == "perl" && arguments().iter().any(|argument| argument == "OAREXEC")
    }

    /// Step in the title of a slurmstepd: `slurmstepd: [7.extern]`.
    fn step_of(&self, slurmstepd: u32) -> String {
        let title = self.reader.arguments(slurmstepd).join(" ");
        let step = title.rsplit_once('.').map_or("", |(_, step)| step);
        step.trim_end().trim_end_matches(']').to_owned()
    }

    fn is_ancestor(&self, pid: u32) -> bool {
        self.scripts.contains(&pid) || self.wrappers.contains(&pid)
    }

    /// Whether a member of the job is work, ancestors of profilers excepted.
    fn is_work(&self, pid: u32) -> bool {
        let Some(process) = self.processes.get(&pid) else {
            return false;
        };
        !process.has_ended()
            && !self.profilers.contains(&pid)
            && !self.is_ancestor(pid)
            && !process.is_one_of(&DAEMONS)
            && !self.is_oarexec(pid, process)
            && !self.is_launcher(pid, process)
            && !self.is_placeholder(process)
            && !self.descends_from_profiler(pid)
    }

    /// Whether a process that may not be listed as a member is work.
    fn is_unlisted_work(&self, pid: u32) -> bool {
        if self.processes.contains_key(&pid) {
            return false;
        }
        self.reader.process(pid).is_some_and(|process| {
            !process.has_ended()
                && pid != self.job.own
                && !process.is_one_of(&DAEMONS)
                && !self.is_launcher(pid, &process)
        })
    }

    /// Whether a process launches a profiler, or is a launcher that such a one has started: `srun`
    /// forks, and `mpirun` starts its daemons with `srun`.
    fn is_launcher(&self, pid: u32, process: &Process) -> bool {
        if self.launchers.contains(&pid) {
            return true;
        }
        process.is_one_of(&LAUNCHERS)
            && self
                .ancestors(pid)
                .iter()
                .take_while(|(_, ancestor)| ancestor.is_one_of(&LAUNCHERS))
                .any(|(pid, _)| self.launchers.contains(pid))
    }

    /// Whether a process only keeps Slurm's step `extern` alive.
    fn is_placeholder(&self, process: &Process) -> bool {
        process.comm == "sleep"
            && self
                .process(process.parent)
                .is_some_and(|parent| parent.comm == "slurmstepd")
            && self.step_of(process.parent) == "extern"
    }

    /// Whether a profiler started the process: commands of the scheduler.
    fn descends_from_profiler(&self, pid: u32) -> bool {
        let mut ancestors = self.ancestors(pid).into_iter();
        ancestors.any(|(pid, _)| self.profilers.contains(&pid))
    }
}

/// Name of a program's processes; the kernel keeps 15 bytes.
fn comm_of(program: &str) -> &str {
    program.get(..15).unwrap_or(program)
}

/// Whether arguments contain `profiler run … --job`. Programs that a profiler starts follow `--`.
fn runs_profiler(arguments: &[String], program: &str) -> bool {
    let is_program = |argument: &str| {
        let name = argument.rsplit('/').next();
        name == Some(program) || name == Some("profiler")
    };
    let begin = arguments
        .windows(2)
        .position(|pair| is_program(&pair[0]) && pair[1] == "run");
    begin.is_some_and(|begin| {
        let options = arguments[begin..].iter().take_while(|word| *word != "--");
        options
            .into_iter()
            .any(|word| word == "--job" || word.starts_with("--job="))
    })
}

#[cfg(test)]
mod tests;

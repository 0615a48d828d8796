//! GPUs that the processes of the target may use.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::Hash,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use super::{
    numbering::{Meaning, Share},
    variables::Variables,
};
use crate::{
    host::Host,
    procfs::{
        device_access::{DeviceAccess, Reader},
        memory_file::{self, MemoryFile},
    },
    warning,
};

/// What the variables of the libraries of a vendor select.
pub(super) trait Selects: Clone + Eq + Hash {
    /// Names of the variables, for messages.
    const VARIABLES: &str;

    /// `None` for an environment without one of the variables.
    fn of_environment(variables: &Variables<'_>, access: &DeviceAccess) -> Option<Self>;
}

/// What is known of the GPUs of a process; the default is nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Known<S> {
    pub(super) selection: Option<S>,
    pub(super) share: Share,
}

impl<S> Default for Known<S> {
    fn default() -> Self {
        Self {
            selection: None,
            share: Share::default(),
        }
    }
}

/// Positions of the GPUs on which processes compute, by pid.
pub(super) type Used = HashMap<u32, BTreeSet<usize>>;

/// GPUs that the processes of the target may use. With the node as target, all GPUs are visible.
pub(super) struct TargetGpus<S> {
    procfs: PathBuf,
    devices: Reader,
    node: bool,
    /// By pid, with the time of the reading: a process can exec with another environment.
    known: HashMap<u32, (Instant, Option<Known<S>>)>,
    /// As of the last reading of a known environment.
    distinct: HashSet<Known<S>>,
    /// Those of them with a process on other GPUs only.
    disproved: HashSet<Known<S>>,
    /// Whether an environment has ever been known.
    is_known: bool,
    /// Whether it has been said that GPUs are in doubt.
    is_doubt_told: bool,
}

/// An environment is read again after this time, an unknown one at every reading.
pub(super) const READ_AGAIN: Duration = Duration::from_secs(5);
/// Time for an exec(2) on a busy machine, before and during which the environment can be unreadable
/// or empty.
const EXEC: Duration = Duration::from_secs(1);
/// Limit of environments per reading of the GPUs.
const READ_AT_ONCE: usize = 256;
/// Environments in memory at a time: they have up to 256 KiB.
const BATCH: usize = 16;

impl<S: Selects> TargetGpus<S> {
    pub(super) fn new(host: &Host, node: bool) -> Self {
        Self {
            procfs: host.procfs.clone(),
            devices: Reader::new(&host.procfs, &host.cgroups),
            node,
            known: HashMap::new(),
            distinct: HashSet::new(),
            disproved: HashSet::new(),
            is_known: false,
            is_doubt_told: false,
        }
    }

    /// Whether each of the GPUs with these numbers is visible to a process of the target. `meaning`
    /// finds the GPUs of a process; `None` if it is not restricted. If a process computes on others
    /// only, it numbers GPUs in a way that cannot be told, and means none of them.
    ///
    /// All GPUs are visible if no process is restricted. Launchers and daemons in a job are not, and
    /// use no GPU. While no environment is readable, because all processes have ended or are in
    /// exec(2), the GPUs stay those of the reading before; the first reading waits for the end of an
    /// exec(2).
    pub(super) fn gpus(
        &mut self,
        pids: Option<&[u32]>,
        numbers: &[u32],
        used: &Used,
        meaning: impl Fn(&Known<S>) -> Option<Meaning>,
    ) -> Vec<bool> {
        self.update(pids);
        for (pid, used) in used {
            let known = self.known.get(pid).and_then(|(_, known)| known.as_ref());
            let is_wrong = |meaning: Meaning| meaning.gpus.is_disjoint(used);
            if let Some(known) = known.filter(|known| meaning(known).is_some_and(is_wrong)) {
                self.disproved.insert(known.clone());
            }
        }
        self.disproved.retain(|known| self.distinct.contains(known));
        let meanings = self.distinct.difference(&self.disproved);
        let meanings: Vec<Meaning> = meanings.filter_map(meaning).collect();
        if meanings.is_empty() && self.disproved.is_empty() {
            return vec![true; numbers.len()];
        }
        let mut seen = vec![false; numbers.len()];
        for at in meanings.iter().flat_map(|meaning| &meaning.gpus) {
            seen[*at] = true;
        }
        let doubtful = meanings.iter().find(|meaning| !meaning.is_certain);
        if let Some(doubtful) = doubtful
            && !std::mem::replace(&mut self.is_doubt_told, true)
        {
            let gpus = doubtful.gpus.iter().map(|at| numbers[*at].to_string());
            warning!(
                "source gpu: the environment of the target ({}) can mean several GPUs; all of them are recorded: \
                 {} (docs/limits.md)",
                S::VARIABLES,
                gpus.collect::<Vec<_>>().join(", ")
            );
        }
        seen
    }

    /// What was known of the processes at the last call of [`Self::gpus`], each different fact once.
    pub(super) fn known(&self) -> impl Iterator<Item = &Known<S>> {
        self.distinct.iter()
    }

    fn update(&mut self, pids: Option<&[u32]>) {
        let Some(pids) = pids.filter(|_| !self.node) else {
            return;
        };
        let live: HashSet<u32> = pids.iter().copied().collect();
        self.known.retain(|pid, _| live.contains(pid));
        let is_first = !pids.is_empty() && self.known.is_empty() && !self.is_known;
        self.read(pids);
        let begin = Instant::now();
        while is_first && !self.is_known && begin.elapsed() < EXEC {
            thread::sleep(Duration::from_millis(1));
            self.read(pids);
        }
    }

    fn read(&mut self, pids: &[u32]) {
        let now = Instant::now();
        let is_due = |pid: &&u32| {
            self.known.get(pid).is_none_or(|(read, known)| {
                known.is_none() || now.duration_since(*read) >= READ_AGAIN
            })
        };
        let mut due: Vec<u32> = pids.iter().filter(is_due).copied().collect();
        // New processes first.
        due.sort_by_key(|pid| self.known.get(pid).map(|(read, _)| *read));
        due.truncate(READ_AT_ONCE);
        for batch in due.chunks(BATCH) {
            self.read_batch(batch, now);
        }
        let known = self.known.values().filter_map(|(_, known)| known.as_ref());
        let distinct: HashSet<&Known<S>> = known.collect();
        if !distinct.is_empty() {
            self.distinct = distinct.into_iter().cloned().collect();
            self.is_known = true;
        }
    }

    fn read_batch(&mut self, pids: &[u32], now: Instant) {
        // Environments first, because nothing is read of a process any more whose `/dev` does not
        // answer.
        let files: Vec<_> = pids.iter().map(|pid| (*pid, MemoryFile::Environ)).collect();
        let environments = memory_file::read_all(&self.procfs, &files);
        let access = self.devices.read(pids);
        for ((pid, content), access) in pids.iter().zip(environments).zip(access) {
            let text = content.map_or_else(|_| Vec::new(), |content| content.bytes);
            let known = self.known.entry(*pid).or_insert((now, None));
            known.0 = now;
            // An environment is empty or unreadable if the process has ended, is in exec(2), or is of
            // another user.
            if !text.is_empty() {
                let variables = Variables::new(&text);
                known.1 = Some(Known {
                    selection: S::of_environment(&variables, &access),
                    share: Share::new(&variables, access),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Value of a variable.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Gpu(String);

    impl Selects for Gpu {
        const VARIABLES: &str = "GPU";

        fn of_environment(variables: &Variables<'_>, _: &DeviceAccess) -> Option<Self> {
            variables.get("GPU").map(|value| Self(value.to_owned()))
        }
    }

    fn of_target(procfs: &Path, node: bool) -> TargetGpus<Gpu> {
        let host = Host::probe(procfs.to_owned(), procfs.join("sys"), None);
        TargetGpus::new(&host, node)
    }

    fn put(procfs: &Path, pid: u32, environment: &str) {
        let directory = procfs.join(pid.to_string());
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("environ"), environment).unwrap();
    }

    /// Visible ones of four GPUs.
    fn seen(target: &mut TargetGpus<Gpu>, pids: &[u32]) -> Vec<usize> {
        seen_with(target, pids, &[])
    }

    fn seen_with(target: &mut TargetGpus<Gpu>, pids: &[u32], used: &[(u32, usize)]) -> Vec<usize> {
        let mut on = Used::new();
        for (pid, gpu) in used {
            on.entry(*pid).or_default().insert(*gpu);
        }
        let meaning = |known: &Known<Gpu>| {
            let Gpu(number) = known.selection.as_ref()?;
            let gpus = [number.parse().unwrap()].into();
            Some(Meaning {
                gpus,
                is_certain: true,
            })
        };
        let seen = target.gpus(Some(pids), &[0, 1, 2, 3], &on, meaning);
        (0..4).filter(|at| seen[*at]).collect()
    }

    #[test]
    fn environments_of_the_target_are_read() {
        let procfs = tempfile::TempDir::new().unwrap();
        put(procfs.path(), 1, "PATH=/bin\0");
        put(procfs.path(), 2, "GPU=1\0");
        put(procfs.path(), 3, "XGPU=0\0GPU=2\0");
        let seen = |node, pids: &[u32]| seen(&mut of_target(procfs.path(), node), pids);
        assert_eq!(seen(false, &[1, 5]), [0, 1, 2, 3]);
        assert_eq!(seen(false, &[1, 2]), [1]);
        assert_eq!(seen(false, &[1, 2, 3]), [1, 2]);
        assert_eq!(seen(true, &[2]), [0, 1, 2, 3]);
    }

    #[test]
    fn numbers_of_processes_on_other_gpus_mean_nothing() {
        let procfs = tempfile::TempDir::new().unwrap();
        put(procfs.path(), 1, "PATH=/bin\0");
        put(procfs.path(), 2, "GPU=0\0");
        put(procfs.path(), 3, "GPU=1\0");
        put(procfs.path(), 4, "GPU=1\0");
        let mut target = of_target(procfs.path(), false);
        let mut seen = |used: &[(u32, usize)]| seen_with(&mut target, &[1, 2, 3, 4], used);
        // A process without the variable proves nothing.
        assert_eq!(seen(&[(1, 3), (2, 0), (2, 3)]), [0, 1]);
        assert_eq!(seen(&[(3, 2)]), [0]);
        // From then on.
        assert_eq!(seen(&[]), [0]);
        assert_eq!(seen(&[(2, 3)]), [] as [usize; 0]);
    }

    #[test]
    fn gpus_stay_visible_while_no_environment_is_readable() {
        let procfs = tempfile::TempDir::new().unwrap();
        let mut target = of_target(procfs.path(), false);
        // In exec(2) the environment is empty, and afterwards it is read at once.
        put(procfs.path(), 2, "");
        assert_eq!(seen(&mut target, &[2]), [0, 1, 2, 3]);
        put(procfs.path(), 2, "GPU=1\0");
        assert_eq!(seen(&mut target, &[2]), [1]);
        assert_eq!(seen(&mut target, &[]), [1]);
        let ended: Vec<u32> = (3..).take(READ_AT_ONCE).collect();
        assert_eq!(seen(&mut target, &ended), [1]);
    }

    /// The first reading can meet the command of the run in exec(2).
    #[test]
    fn first_reading_waits_for_an_environment() {
        let procfs = tempfile::TempDir::new().unwrap();
        put(procfs.path(), 2, "");
        let mut target = of_target(procfs.path(), false);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(10));
                put(procfs.path(), 2, "GPU=1\0");
            });
            assert_eq!(seen(&mut target, &[2]), [1]);
        });
    }

    /// More processes than a reading reads, all of them without a readable environment.
    #[test]
    fn unreadable_environments_do_not_delay_new_processes() {
        let procfs = tempfile::TempDir::new().unwrap();
        let mut target = of_target(procfs.path(), false);
        let mut pids: Vec<u32> = (1..).take(READ_AT_ONCE).collect();
        seen(&mut target, &pids);
        let last = u32::try_from(READ_AT_ONCE).unwrap() + 1;
        put(procfs.path(), last, "GPU=1\0");
        pids.push(last);
        assert_eq!(seen(&mut target, &pids), [1]);
    }
}

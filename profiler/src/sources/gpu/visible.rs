//! Environment variables by which a process restricts itself to some of the GPUs.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::procfs::memory_file::{self, MemoryFile};

/// GPUs that an environment makes visible; the default is all of them.
pub(super) trait Visible: Clone + Default {
    /// `None` for an environment without one of the variables.
    fn of_environment(variables: &Variables<'_>) -> Option<Self>;
}

/// An environment: `NAME=value` strings, separated by NUL.
pub(super) struct Variables<'a>(&'a [u8]);

impl<'a> Variables<'a> {
    pub(super) fn new(environment: &'a [u8]) -> Self {
        Self(environment)
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        let mut strings = self.0.split(|byte| *byte == 0);
        let value =
            strings.find_map(|string| string.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        std::str::from_utf8(value?).ok()
    }

    /// A list of GPUs; `None` if it is longer than a valid one.
    pub(super) fn list(&self, name: &str) -> Option<&'a str> {
        self.get(name).filter(|list| list.len() <= LONGEST_LIST)
    }
}

/// Words of a list up to the first that is empty or -1, which ends it.
pub(super) fn words(list: &str) -> Vec<String> {
    let words = list.split(',').map(|word| word.trim().to_owned());
    words
        .take_while(|word| !word.is_empty() && word != "-1")
        .collect()
}

/// GPUs that the processes of the target may use. With the node as target, all GPUs are visible.
pub(super) struct OfTarget<V> {
    procfs: PathBuf,
    node: bool,
    /// By pid, with the time of the reading: a process can exec with another environment.
    known: HashMap<u32, (Instant, Environment<V>)>,
    /// As of the last reading of a known environment.
    visible: Vec<V>,
    /// Whether an environment has ever been known.
    is_known: bool,
}

/// An environment that has been read.
enum Environment<V> {
    /// Empty or unreadable: the process has ended, is in exec(2), or is of another user.
    Unknown,
    /// Without one of the variables.
    Unrestricted,
    Restricted(V),
}

/// An environment is read again after this time, an unknown one at every reading.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// Time for an exec(2) on a busy machine, before and during which the environment can be unreadable
/// or empty.
const EXEC: Duration = Duration::from_secs(1);
/// Limit of environments per reading of the GPUs.
const READ_AT_ONCE: usize = 256;
/// Longer lists cannot be valid: a UUID has 40 characters.
const LONGEST_LIST: usize = 4096;

impl<V: Visible> OfTarget<V> {
    pub(super) fn new(procfs: &Path, node: bool) -> Self {
        Self {
            procfs: procfs.to_owned(),
            node,
            known: HashMap::new(),
            visible: vec![V::default()],
            is_known: false,
        }
    }

    /// GPUs visible to each of these processes that has such a variable; all GPUs if none has one.
    /// Launchers and daemons in a job do not have them, and use no GPU. While no environment is
    /// readable, because all processes have ended or are in exec(2), the GPUs stay those of the
    /// reading before; the first reading waits for the end of an exec(2).
    pub(super) fn of(&mut self, pids: Option<&[u32]>) -> &[V] {
        let Some(pids) = pids.filter(|_| !self.node) else {
            return &self.visible;
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
        &self.visible
    }

    fn read(&mut self, pids: &[u32]) {
        let now = Instant::now();
        let is_due = |pid: &&u32| {
            self.known.get(pid).is_none_or(|(read, environment)| {
                matches!(environment, Environment::Unknown)
                    || now.duration_since(*read) >= READ_AGAIN
            })
        };
        let mut due: Vec<u32> = pids.iter().filter(is_due).copied().collect();
        // New processes first.
        due.sort_by_key(|pid| self.known.get(pid).map(|(read, _)| *read));
        for pid in due.into_iter().take(READ_AT_ONCE) {
            let content = memory_file::read(&self.procfs, pid, MemoryFile::Environ);
            let text = content.map_or_else(|_| Vec::new(), |content| content.bytes);
            let known = self.known.entry(pid).or_insert((now, Environment::Unknown));
            known.0 = now;
            if !text.is_empty() {
                known.1 = V::of_environment(&Variables::new(&text))
                    .map_or(Environment::Unrestricted, Environment::Restricted);
            }
        }
        let mut visible = Vec::new();
        let mut is_known = false;
        for (_, environment) in self.known.values() {
            is_known |= !matches!(environment, Environment::Unknown);
            if let Environment::Restricted(gpus) = environment {
                visible.push(gpus.clone());
            }
        }
        if visible.is_empty() {
            visible.push(V::default());
        }
        if is_known {
            self.visible = visible;
            self.is_known = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::nvidia::visible::Cuda, *};

    fn of_target(procfs: &Path, node: bool) -> OfTarget<Cuda> {
        OfTarget::new(procfs, node)
    }

    #[test]
    fn environments_of_the_target_are_read() {
        let procfs = tempfile::TempDir::new().unwrap();
        let process = |pid: u32, environment: &str| {
            let directory = procfs.path().join(pid.to_string());
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("environ"), environment).unwrap();
        };
        process(1, "PATH=/bin\0");
        process(2, "CUDA_DEVICE_ORDER=PCI_BUS_ID\0CUDA_VISIBLE_DEVICES=1\0");
        process(3, "XCUDA_VISIBLE_DEVICES=0\0CUDA_VISIBLE_DEVICES=2\0");
        process(
            4,
            &format!("CUDA_VISIBLE_DEVICES={}\0", "1,".repeat(LONGEST_LIST)),
        );
        let seen = |node: bool, pids: &[u32]| {
            let mut target = of_target(procfs.path(), node);
            let seen = target.of(Some(pids)).iter().cloned();
            let words = seen.map(|seen| seen.words);
            let mut words: Vec<_> = words.collect();
            words.sort();
            words
        };
        let of = |gpu: &str| Some(vec![gpu.to_owned()]);
        assert_eq!(seen(false, &[1, 4, 5]), [None]);
        assert_eq!(seen(false, &[1, 2]), [of("1")]);
        assert_eq!(seen(false, &[1, 2, 3]), [of("1"), of("2")]);
        assert_eq!(seen(true, &[2]), [None]);
    }

    #[test]
    fn gpus_stay_visible_while_no_environment_is_readable() {
        let procfs = tempfile::TempDir::new().unwrap();
        let write = |environment: &str| {
            let directory = procfs.path().join("2");
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("environ"), environment).unwrap();
        };
        let mut target = of_target(procfs.path(), false);
        let mut words = |pids: &[u32]| {
            let visible = target.of(Some(pids)).iter().cloned();
            visible.map(|visible| visible.words).collect::<Vec<_>>()
        };
        let second = [Some(vec!["1".to_owned()])];
        // In exec(2) the environment is empty, and afterwards it is read at once.
        write("");
        assert_eq!(words(&[2]), [None]);
        write("CUDA_VISIBLE_DEVICES=1\0");
        assert_eq!(words(&[2]), second);
        assert_eq!(words(&[]), second);
        let ended: Vec<u32> = (3..).take(READ_AT_ONCE).collect();
        assert_eq!(words(&ended), second);
    }

    /// The first reading can meet the command of the run in exec(2).
    #[test]
    fn first_reading_waits_for_an_environment() {
        let procfs = tempfile::TempDir::new().unwrap();
        let file = procfs.path().join("2/environ");
        std::fs::create_dir(procfs.path().join("2")).unwrap();
        std::fs::write(&file, "").unwrap();
        let mut target = of_target(procfs.path(), false);
        let words = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(10));
                std::fs::write(&file, "CUDA_VISIBLE_DEVICES=1\0").unwrap();
            });
            target.of(Some(&[2]))[0].words.clone()
        });
        assert_eq!(words, Some(vec!["1".to_owned()]));
    }

    /// More processes than a reading reads, all of them without a readable environment.
    #[test]
    fn unreadable_environments_do_not_delay_new_processes() {
        let procfs = tempfile::TempDir::new().unwrap();
        let mut target = of_target(procfs.path(), false);
        let mut pids: Vec<u32> = (1..).take(READ_AT_ONCE).collect();
        target.of(Some(&pids));
        let last = u32::try_from(READ_AT_ONCE).unwrap() + 1;
        let directory = procfs.path().join(last.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("environ"), "CUDA_VISIBLE_DEVICES=1\0").unwrap();
        pids.push(last);
        let words = target.of(Some(&pids))[0].words.clone();
        assert_eq!(words, Some(vec!["1".to_owned()]));
    }
}

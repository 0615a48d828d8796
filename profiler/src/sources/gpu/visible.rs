//! `CUDA_VISIBLE_DEVICES`: GPUs that the target may use (CUDA C++ Programming Guide, environment
//! variables).

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// GPUs that the variable makes visible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Visible {
    /// Numbers and UUIDs up to the first that is empty or -1; `None` for all GPUs.
    words: Option<Vec<String>>,
    /// Whether numbers are in the order of PCI addresses, as in NVML, and not by speed.
    by_bus: bool,
}

/// A GPU that the variable may contain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) index: u32,
    pub(super) uuid: Option<&'a str>,
    pub(super) name: Option<&'a str>,
}

impl Visible {
    /// Reads an environment: `NAME=value` strings, separated by NUL. `None` if it does not have the
    /// variable.
    fn of_environment(environment: &[u8]) -> Option<Self> {
        let value = |name: &str| {
            let mut strings = environment.split(|byte| *byte == 0);
            let value =
                strings.find_map(|string| string.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
            value.and_then(|value| std::str::from_utf8(value).ok())
        };
        let list = value("CUDA_VISIBLE_DEVICES").filter(|list| list.len() <= LONGEST_LIST)?;
        Some(Self::parse(Some(list), value("CUDA_DEVICE_ORDER")))
    }

    fn parse(list: Option<&str>, order: Option<&str>) -> Self {
        let words = |list: &str| {
            let words = list.split(',').map(|word| word.trim().to_owned());
            words
                .take_while(|word| !word.is_empty() && word != "-1")
                .collect()
        };
        Self {
            words: list.map(words),
            by_bus: order == Some("PCI_BUS_ID"),
        }
    }

    /// Whether each of these GPUs is visible.
    pub(super) fn gpus(&self, all: &[Candidate<'_>]) -> Vec<bool> {
        let Some(words) = &self.words else {
            return vec![true; all.len()];
        };
        let alike = all.windows(2).all(|pair| pair[0].name == pair[1].name);
        let unclear = |word: &String| {
            word.starts_with("MIG-") || !(self.by_bus || alike) && word.parse::<u32>().is_ok()
        };
        // The GPU is ambiguous: report one too many rather than one too few.
        if words.iter().any(unclear) {
            return vec![true; all.len()];
        }
        let mut seen = vec![false; all.len()];
        for word in words {
            let number = word.parse::<u32>().ok();
            let named = all.iter().position(|gpu| match number {
                Some(number) => gpu.index == number,
                None => gpu.uuid.is_some_and(|uuid| uuid.starts_with(word)),
            });
            // CUDA ignores everything after a GPU that does not exist.
            let Some(named) = named else { break };
            seen[named] = true;
        }
        seen
    }

    /// Whether a MIG instance is visible.
    pub(super) fn instance(&self, uuid: &str) -> bool {
        let words = self.words.iter().flatten();
        let mut named = words.filter(|word| word.starts_with("MIG-")).peekable();
        named.peek().is_none() || named.any(|word| uuid.starts_with(word.as_str()))
    }
}

/// GPUs that the processes of the target may use. With the node as target, all GPUs are visible.
pub(super) struct OfTarget {
    procfs: PathBuf,
    node: bool,
    /// By pid, with the time of the reading: a process can exec with another environment.
    known: HashMap<u32, (Instant, Environment)>,
    /// As of the last reading.
    visible: Vec<Visible>,
}

/// An environment that has been read.
enum Environment {
    /// Empty or unreadable: the process has ended, is in exec(2), or is of another user.
    Unknown,
    /// Without the variable.
    Unrestricted,
    Restricted(Visible),
}

/// An environment is read again after this time, an unknown one at every reading.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// Limits of environments per reading of the GPUs, and of their length.
const READ_AT_ONCE: usize = 256;
const LONGEST: u64 = 256 << 10;
/// Longer lists cannot be valid: a UUID has 40 characters.
const LONGEST_LIST: usize = 4096;

impl OfTarget {
    pub(super) fn new(procfs: &Path, node: bool) -> Self {
        Self {
            procfs: procfs.to_owned(),
            node,
            known: HashMap::new(),
            visible: vec![Visible::default()],
        }
    }

    /// GPUs visible to each of these processes that has the variable; all GPUs if none has it.
    /// Launchers and daemons in a job do not have it, and use no GPU. While no environment is
    /// readable, because all processes have ended or are in exec(2), the GPUs stay those of the
    /// reading before.
    pub(super) fn of(&mut self, pids: Option<&[u32]>) -> &[Visible] {
        let Some(pids) = pids.filter(|_| !self.node) else {
            return &self.visible;
        };
        let live: HashSet<u32> = pids.iter().copied().collect();
        self.known.retain(|pid, _| live.contains(pid));
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
            let text = environment(&self.procfs, pid).unwrap_or_default();
            let known = self.known.entry(pid).or_insert((now, Environment::Unknown));
            known.0 = now;
            if !text.is_empty() {
                known.1 = Visible::of_environment(&text)
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
            visible.push(Visible::default());
        }
        if is_known {
            self.visible = visible;
        }
        &self.visible
    }
}

fn environment(procfs: &Path, pid: u32) -> Option<Vec<u8>> {
    let file = File::open(procfs.join(format!("{pid}/environ"))).ok()?;
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(list: Option<&str>, order: Option<&str>, names: [&str; 3]) -> [bool; 3] {
        let uuids = ["GPU-aa11", "GPU-aa22", "GPU-bb33"];
        let all: [Candidate<'_>; 3] = std::array::from_fn(|index| Candidate {
            index: u32::try_from(index).unwrap(),
            uuid: Some(uuids[index]),
            name: Some(names[index]),
        });
        let seen = Visible::parse(list, order).gpus(&all);
        seen.try_into().unwrap()
    }

    #[test]
    fn gpus_are_selected_by_number_and_uuid() {
        let alike = ["A100"; 3];
        for (list, expected) in [
            (None, [true; 3]),
            (Some(""), [false; 3]),
            (Some("-1"), [false; 3]),
            (Some("2, 0"), [true, false, true]),
            (Some("1,7,0"), [false, true, false]),
            (Some("0,-1,1"), [true, false, false]),
            (Some("GPU-bb,GPU-aa22"), [false, true, true]),
            (Some("GPU-cc"), [false; 3]),
            (Some("MIG-1"), [true; 3]),
        ] {
            assert_eq!(seen(list, None, alike), expected, "{list:?}");
        }
    }

    #[test]
    fn numbers_of_different_gpus_need_an_order() {
        let unlike = ["T4", "T4", "A100"];
        assert_eq!(seen(Some("0"), None, unlike), [true; 3]);
        assert_eq!(seen(Some("0"), Some("FASTEST_FIRST"), unlike), [true; 3]);
        let by_bus = seen(Some("0"), Some("PCI_BUS_ID"), unlike);
        assert_eq!(by_bus, [true, false, false]);
        assert_eq!(seen(Some("GPU-bb"), None, unlike), [false, false, true]);
    }

    #[test]
    fn instances_are_selected_by_uuid() {
        let seen = |list, uuid| Visible::parse(list, None).instance(uuid);
        assert!(seen(None, "MIG-1") && seen(Some("0"), "MIG-1"));
        assert!(seen(Some("MIG-1,MIG-2"), "MIG-2a") && !seen(Some("MIG-1"), "MIG-2"));
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
            let mut of_target = OfTarget::new(procfs.path(), node);
            let seen = of_target.of(Some(pids)).iter().cloned();
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
        let mut of_target = OfTarget::new(procfs.path(), false);
        let mut words = |pids: &[u32]| {
            let visible = of_target.of(Some(pids)).iter().cloned();
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

    /// More processes than a reading reads, all of them without a readable environment.
    #[test]
    fn unreadable_environments_do_not_delay_new_processes() {
        let procfs = tempfile::TempDir::new().unwrap();
        let mut of_target = OfTarget::new(procfs.path(), false);
        let mut pids: Vec<u32> = (1..).take(READ_AT_ONCE).collect();
        of_target.of(Some(&pids));
        let last = u32::try_from(READ_AT_ONCE).unwrap() + 1;
        let directory = procfs.path().join(last.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("environ"), "CUDA_VISIBLE_DEVICES=1\0").unwrap();
        pids.push(last);
        let words = of_target.of(Some(&pids))[0].words.clone();
        assert_eq!(words, Some(vec!["1".to_owned()]));
    }
}

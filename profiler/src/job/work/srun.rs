//! The `srun` that started this process. It is found by the port on which it listens, so that
//! scripts between the two do not hide it.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use super::GENERATIONS_MAX;
use crate::procfs::{
    memory_file::{self, MemoryFile},
    process_stat,
};

/// Port to which the tasks of a step connect.
const PORT: &str = "SLURM_SRUN_COMM_PORT";

/// State of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Search for this process's `srun`.
pub(in crate::job) struct SrunSearch {
    procfs: PathBuf,
    port: Option<u16>,
    found: Option<u32>,
    /// Processes that are not it.
    others: HashSet<u32>,
}

impl SrunSearch {
    pub(in crate::job) fn new(procfs: &Path) -> Self {
        Self {
            procfs: procfs.to_owned(),
            port: own_port(procfs),
            found: None,
            others: HashSet::new(),
        }
    }

    /// The `srun` among these processes. Each is examined once.
    pub(in crate::job) fn find(&mut self, members: &HashSet<u32>) -> Option<u32> {
        if self.found.is_some() || self.port.is_none() {
            return self.found;
        }
        let procfs = &self.procfs;
        let is_srun = |pid: &u32| {
            process_stat::of_process(procfs, *pid).is_some_and(|stat| stat.comm == "srun")
        };
        let candidates: Vec<u32> = members
            .iter()
            .filter(|pid| !self.others.contains(pid) && is_srun(pid))
            .copied()
            .collect();
        if candidates.is_empty() {
            return None;
        }
        let sockets = listeners(procfs, self.port?);
        self.found = candidates
            .iter()
            .copied()
            .find(|pid| has_any(procfs, *pid, &sockets));
        self.others.extend(candidates);
        self.found
    }
}

/// Port in the environment of this process. sudo removes it, but the ancestors have it.
fn own_port(procfs: &Path) -> Option<u16> {
    if let Ok(port) = std::env::var(PORT) {
        return port.parse().ok();
    }
    let parent = |pid: &u32| {
        let parent = process_stat::of_process(procfs, *pid)?.ppid;
        (parent > 1).then_some(parent.cast_unsigned())
    };
    let own = std::process::id();
    let mut ancestors = std::iter::successors(parent(&own), parent).take(GENERATIONS_MAX);
    ancestors.find_map(|pid| {
        let environment = memory_file::read(procfs, pid, MemoryFile::Environ).ok()?;
        let mut strings = environment.strings();
        strings.find_map(|string| {
            let value = string.strip_prefix(PORT.as_bytes())?.strip_prefix(b"=")?;
            std::str::from_utf8(value).ok()?.parse().ok()
        })
    })
}

/// Inodes of the sockets that listen on a port.
fn listeners(procfs: &Path, port: u16) -> HashSet<String> {
    let mut inodes = HashSet::new();
    for name in ["tcp", "tcp6"] {
        let table = fs::read_to_string(procfs.join("self/net").join(name)).unwrap_or_default();
        inodes.extend(table.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (_, number) = fields.get(1)?.rsplit_once(':')?;
            let listens = u16::from_str_radix(number, 16) == Ok(port) && fields.get(3)? == &LISTEN;
            listens.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]")))?
        }));
    }
    inodes
}

/// Whether a process has one of these sockets open.
fn has_any(procfs: &Path, pid: u32, sockets: &HashSet<String>) -> bool {
    let files = fs::read_dir(procfs.join(format!("{pid}/fd")));
    files.into_iter().flatten().flatten().any(|file| {
        let target = fs::read_link(file.path()).unwrap_or_default();
        target
            .to_str()
            .is_some_and(|target| sockets.contains(target))
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn process_of_a_port() {
        let procfs = Path::new("/proc");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let sockets = listeners(procfs, port);
        assert_eq!(sockets.len(), 1);
        assert!(has_any(procfs, std::process::id(), &sockets));
        drop(listener);
        assert!(listeners(procfs, port).is_empty());
        assert!(!has_any(procfs, std::process::id(), &sockets));
    }
}

//! Reads the sizes of file systems through helper processes, and waits only once for one that
//! hangs.

use std::{collections::HashMap, io, time::Duration};

use super::statfs_helper::{Size, StatfsHelper};
use crate::procfs::mounts::{NodeMounts, Numbered};

/// A file system that has not answered after this time hangs.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Result for one file system.
pub struct Answer {
    pub mounted: Numbered,
    /// Its size, or why that is unknown.
    pub size: io::Result<Size>,
}

/// Reads one file system after the other.
pub struct StatfsClient {
    node: NodeMounts,
    helper: Option<StatfsHelper>,
    /// Helpers that wait for file systems that hang, by device number.
    hung: HashMap<u32, StatfsHelper>,
}

impl StatfsClient {
    /// A client for mounts of the node.
    pub fn new(node: NodeMounts) -> Self {
        Self {
            node,
            helper: None,
            hung: HashMap::new(),
        }
    }

    /// Sizes of all these file systems.
    pub fn read_all(&mut self, mounts: Vec<Numbered>) -> Vec<Answer> {
        let answers = mounts.into_iter().map(|mounted| Answer {
            size: self.read(&mounted),
            mounted,
        });
        answers.collect()
    }

    fn read(&mut self, mounted: &Numbered) -> io::Result<Size> {
        let hangs = || {
            let message = format!("no answer within {} s", TIMEOUT.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, message)
        };
        if let Some(helper) = self.hung.get_mut(&mounted.dev) {
            match helper.answer(Duration::ZERO) {
                Ok(None) => return Err(hangs()),
                // A late answer, or the helper has ended: the file system is back.
                Ok(Some(_)) | Err(_) => drop(self.hung.remove(&mounted.dev)),
            }
        }
        let mut helper = match self.helper.take() {
            Some(helper) => helper,
            None => StatfsHelper::start()?,
        };
        let answer = helper
            .ask(self.node.reachable(&mounted.mount), mounted.id)
            .and_then(|()| helper.answer(TIMEOUT));
        if let Ok(None) = answer {
            self.hung.insert(mounted.dev, helper);
            return Err(hangs());
        }
        let size = answer?;
        self.helper = Some(helper);
        size.ok_or_else(hangs)
    }
}

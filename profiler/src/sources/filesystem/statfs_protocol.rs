//! Asking file systems: one that does not answer is waited for once.

use std::{collections::HashMap, time::Duration};

use super::statfs_helper::{Size, StatfsHelper};
use crate::procfs::mounts::{NodeMounts, Numbered};

/// After this time a file system hangs.
const HUNG: Duration = Duration::from_secs(1);

/// What one file system said.
pub struct Answer {
    pub of: Numbered,
    pub size: Result<Size, String>,
}

/// Asks one after the other.
pub struct Asking {
    node: NodeMounts,
    helper: Option<StatfsHelper>,
    /// Who waits for each mount that hangs, by its device.
    hung: HashMap<u32, StatfsHelper>,
}

impl Asking {
    /// Asks about mounts of the node.
    pub fn new(node: NodeMounts) -> Self {
        Self {
            node,
            helper: None,
            hung: HashMap::new(),
        }
    }

    /// Asks all of them.
    pub fn all(&mut self, mounts: Vec<Numbered>) -> Vec<Answer> {
        let found = mounts.into_iter().map(|of| Answer {
            size: self.ask(&of),
            of,
        });
        found.collect()
    }

    fn ask(&mut self, of: &Numbered) -> Result<Size, String> {
        let hangs = || format!("no answer within {} s", HUNG.as_secs());
        if let Some(helper) = self.hung.get_mut(&of.dev) {
            match helper.answer(Duration::ZERO) {
                Ok(None) => return Err(hangs()),
                // An old answer, or the asker is gone: it is back.
                Ok(Some(_)) | Err(_) => drop(self.hung.remove(&of.dev)),
            }
        }
        let mut helper = match self.helper.take() {
            Some(helper) => helper,
            None => StatfsHelper::start().map_err(|error| error.to_string())?,
        };
        let answer = helper
            .ask(self.node.reachable(&of.mount))
            .and_then(|()| helper.answer(HUNG));
        if let Ok(None) = answer {
            self.hung.insert(of.dev, helper);
            return Err(hangs());
        }
        let size = answer.map_err(|error| error.to_string())?;
        self.helper = Some(helper);
        size.ok_or_else(hangs)
    }
}

//! What is lost of a session that did not end in order: the same sentence for all who judge a run.

use super::manifest::{Manifest, State};
use crate::support::units::format_ns;

impl Manifest {
    /// What happened to the session, as the end of a sentence; `None` if it ended and all rows are there.
    pub fn interruption(&self) -> Option<String> {
        let is_alive = self.process.is_alive_here();
        Some(match (self.state, is_alive) {
            (State::Complete, _) => return None,
            (State::Incomplete, _) => "has lost rows, or has them only in a journal".to_owned(),
            (State::Recovered, _) => {
                format!("was killed: {}; the rest is recovered", self.lost_at_end())
            }
            (State::Running, Some(false)) => format!(
                "was killed: {}; `profiler recover` stores the rest",
                self.lost_at_end()
            ),
            (State::Running, Some(true)) => "has not ended".to_owned(),
            (State::Running, None) => {
                "has not ended, or was killed: seen from here, that is unknown".to_owned()
            }
        })
    }

    /// What the end of a killed session has lost. A journal has each sample, and is synced at each
    /// checkpoint.
    fn lost_at_end(&self) -> String {
        let Some(interval) = self.config["interval_ns"].as_u64() else {
            return "its last sample is lost".to_owned();
        };
        let interval = format_ns(interval);
        let may_have_crashed =
            self.process.is_alive_here().is_none() && self.config["sync"] != true;
        match self.config["checkpoint"]
            .as_str()
            .filter(|_| may_have_crashed)
        {
            Some(checkpoint) => {
                format!("at most the last {interval} are lost, or {checkpoint} if the node crashed")
            }
            None => format!("at most the last {interval} are lost"),
        }
    }
}

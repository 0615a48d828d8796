//! The schedulers' words for the state of a job.

use super::JobState;
use crate::support::log::harmless;

/// Words of a scheduler.
pub(super) struct Words {
    waiting: &'static [&'static str],
    running: &'static [&'static str],
    over: &'static [&'static str],
}

/// `job_state_string` of all versions, and flags that only some of its output shows. `UPDATE_DB` is not
/// listed: it replaces the state and tells nothing about it.
pub(super) const SLURM: Words = Words {
    waiting: &[
        "PENDING",
        "CONFIGURING",
        "POWER_UP_NODE",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "EXPEDITING",
        "RECONFIG_FAIL",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
    ],
    running: &[
        "RUNNING",
        "SUSPENDED",
        "STOPPED",
        "SIGNALING",
        "RESIZING",
        "COMPLETING",
        "STAGE_OUT",
    ],
    over: &[
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "REVOKED",
        "LAUNCH_FAILED",
    ],
};

/// Queued, held, waiting, in transit, moved; running, exiting, suspended by the scheduler or the user
/// of the machine, begun (array); finished, expired (array), completed (Torque).
pub(super) const PBS: Words = Words {
    waiting: &["Q", "H", "W", "T", "M"],
    running: &["R", "E", "S", "U", "B"],
    over: &["F", "X", "C"],
};

pub(super) const OAR: Words = Words {
    waiting: &[
        "Waiting",
        "Hold",
        "toLaunch",
        "toAckReservation",
        "Launching",
    ],
    running: &["Running", "Suspended", "Resuming", "Finishing"],
    over: &["Terminated", "Error", "toError"],
};

pub(super) const FLUX: Words = Words {
    waiting: &["NEW", "DEPEND", "PRIORITY", "SCHED"],
    running: &["RUN", "CLEANUP"],
    over: &["INACTIVE"],
};

impl Words {
    /// The state that a word means. A new word of a scheduler proves nothing, not even the end.
    pub(super) fn state(&self, word: &str) -> JobState {
        let over = self.over.iter().find(|over| **over == word);
        if self.waiting.contains(&word) {
            JobState::Waiting
        } else if self.running.contains(&word) {
            JobState::Running
        } else if let Some(over) = over {
            JobState::Over(over)
        } else {
            JobState::Unrecognized(harmless(word))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [&Words; 4] = [&SLURM, &PBS, &OAR, &FLUX];

    #[test]
    fn each_word_has_one_meaning() {
        for words in ALL {
            let mut all = [words.waiting, words.running, words.over].concat();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count);
            for word in words.over {
                assert_eq!(words.state(word), JobState::Over(word));
            }
        }
    }

    #[test]
    fn jobs_that_get_their_nodes_or_are_held_wait() {
        for word in [
            "POWER_UP_NODE",
            "EXPEDITING",
            "RESV_DEL_HOLD",
            "CONFIGURING",
        ] {
            assert_eq!(SLURM.state(word), JobState::Waiting, "{word}");
        }
        for word in ["COMPLETING", "STAGE_OUT", "STOPPED"] {
            assert_eq!(SLURM.state(word), JobState::Running, "{word}");
        }
    }

    #[test]
    fn words_that_are_not_listed_prove_nothing() {
        let new = [
            "UPDATE_DB",
            "?",
            "NEW_STATE",
            "completed",
            "COMPLETED+",
            "0",
            "Terminating",
            "INACTIVE2",
            "",
        ];
        for words in ALL {
            for word in new {
                assert_eq!(words.state(word), JobState::Unrecognized(word.to_owned()));
            }
        }
        // The word reaches the user's terminal.
        assert_eq!(
            SLURM.state("\x1b]0;x"),
            JobState::Unrecognized("\\u{1b}]0;x".to_owned())
        );
    }
}

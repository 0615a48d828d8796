//! Differences between the clocks of the hosts.
//!
//! All timestamps of a session have the offset of its start. Two sessions on the same kernel differ
//! by the difference of their offsets. The clocks of two kernels differ by at most the sum of the
//! maximum errors that their time daemons report. Without a report, the difference is unknown.

use serde::Serialize;

use crate::output::dataset::manifest::Manifest;

/// Smaller steps of a clock (ns) are within the accuracy of reading it.
const STEP: u64 = 1_000_000;

/// The clock of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Clock {
    /// Whether a time daemon kept it synchronized at the start; `None` if unknown.
    pub synchronized: Option<bool>,
    /// Maximum error at the start, ns.
    pub max_error_ns: Option<u64>,
    /// Step of the clock during the session, ns; `None` if unknown. Timestamps do not follow it.
    pub step_ns: Option<i64>,
    /// Its timestamps minus those of the first host, ns, if both have the same kernel.
    pub offset_ns: Option<i64>,
    /// Maximum difference of both clocks, ns, if known.
    pub within_ns: Option<u64>,
}

impl Clock {
    /// The clock of `session`, compared with that of `first`.
    pub fn of(session: &Manifest, first: &Manifest) -> Self {
        let start = session.clock.start;
        let other = first.clock.start;
        let same_kernel =
            !session.process.boot_id.is_empty() && session.process.boot_id == first.process.boot_id;
        let offset_ns = start
            .zip(other)
            .filter(|_| same_kernel)
            .and_then(|(ours, theirs)| ours.offset_ns.checked_sub(theirs.offset_ns));
        let bound = |clock: Option<crate::support::timekeeping::Timekeeping>| clock?.max_error_ns;
        let bounds = bound(start).zip(bound(other));
        Self {
            synchronized: start.and_then(|start| start.synchronized),
            max_error_ns: bound(start),
            step_ns: start.zip(session.clock.end).and_then(|(start, end)| {
                let step = end.offset_ns.checked_sub(start.offset_ns)?;
                Some(if step.unsigned_abs() < STEP { 0 } else { step })
            }),
            offset_ns,
            within_ns: match offset_ns {
                Some(offset) => Some(offset.unsigned_abs()),
                None => bounds.map(|(ours, theirs)| ours.saturating_add(theirs)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{output::dataset::manifest::Clocks, support::timekeeping::Timekeeping};

    fn session(boot: &str, offset_ns: i64, max_error_ns: Option<u64>) -> Manifest {
        let clock = Timekeeping {
            offset_ns,
            synchronized: Some(max_error_ns.is_some()),
            max_error_ns,
        };
        let mut manifest = Manifest {
            clock: Clocks {
                start: Some(clock),
                end: None,
            },
            ..Manifest::default()
        };
        manifest.process.boot_id = boot.to_owned();
        manifest
    }

    #[test]
    fn unknown_differences_are_null() {
        let first = session("a", 1000, Some(5));
        let same = Clock::of(&session("a", 900, None), &first);
        assert_eq!((same.offset_ns, same.within_ns), (Some(-100), Some(100)));
        let kept = Clock::of(&session("b", 7, Some(6)), &first);
        assert_eq!((kept.offset_ns, kept.within_ns), (None, Some(11)));
        let alone = Clock::of(&session("b", 7, None), &first);
        assert_eq!((alone.offset_ns, alone.within_ns), (None, None));
        assert_eq!(
            Clock::of(&Manifest::default(), &Manifest::default()),
            Clock::default()
        );
    }

    #[test]
    fn steps_are_reported_from_1_ms() {
        let mut stepped = session("a", 0, None);
        let end = |offset_ns| {
            Some(Timekeeping {
                offset_ns,
                ..Timekeeping::default()
            })
        };
        stepped.clock.end = end(2_000_000);
        assert_eq!(Clock::of(&stepped, &stepped).step_ns, Some(2_000_000));
        stepped.clock.end = end(-900);
        assert_eq!(Clock::of(&stepped, &stepped).step_ns, Some(0));
    }
}

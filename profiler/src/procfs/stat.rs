//! `/proc/stat`: times per state, of the node and of each CPU (`fs/proc/stat.c` in the kernel,
//! `proc_stat(5)`).
//!
//! This parser replaces that of the `procfs` crate, which rejects the whole file because of one bad
//! value, and assigns lines to the wrong CPU when another one is offline.

use std::path::{Path, PathBuf};

use super::file::{lines, number, words};
use crate::support::delta::Estimate;

/// How to make the file available.
pub(crate) const REMEDY: &str = "mount procfs: mount -t proc proc /proc";

pub(crate) fn file(procfs: &Path) -> PathBuf {
    procfs.join("stat")
}

/// Number of states of a CPU, which are in the order of `/proc/stat`.
pub(crate) const STATES: usize = 10;
const USER: usize = 0;
const NICE: usize = 1;
const GUEST: usize = 8;
const GUEST_NICE: usize = 9;

/// Highest plausible CPU number; the kernel's own limit (`NR_CPUS`) is 8,192.
const LAST_CPU: usize = 65_535;

/// Times of one CPU in clock ticks (`USER_HZ`), as printed.
pub(crate) type Times = [Option<u64>; STATES];

/// One reading of the file; values that could not be read are null.
#[derive(Debug, Default)]
pub(crate) struct ProcStat {
    /// All CPUs together, including offline ones.
    pub(crate) total: Times,
    /// Online CPUs by number.
    pub(crate) cpus: Vec<(usize, Times)>,
    /// `intr`: interrupts serviced since boot.
    pub(crate) interrupts: Option<u64>,
    /// `ctxt`: context switches since boot.
    pub(crate) context_switches: Option<u64>,
    /// `processes`: forks and clones since boot.
    pub(crate) forks: Option<u64>,
    /// `procs_running`: threads running or waiting for a CPU.
    pub(crate) runnable: Option<u64>,
    /// `procs_blocked`: threads waiting for I/O.
    pub(crate) blocked: Option<u64>,
    /// `softirq`: soft interrupts serviced since boot.
    pub(crate) softirqs: Option<u64>,
}

impl ProcStat {
    /// Replaces the previous reading by that of `text`.
    pub(crate) fn parse(&mut self, text: &[u8]) {
        let mut cpus = std::mem::take(&mut self.cpus);
        cpus.clear();
        *self = Self {
            cpus,
            ..Self::default()
        };
        for line in lines(text) {
            // The interrupt line has one number per interrupt; most of it is not parsed.
            let mut words = words(line);
            let Some(key) = words.next() else { continue };
            let mut value = || words.next().and_then(number);
            match key {
                b"cpu" => self.total = std::array::from_fn(|_| value()),
                b"intr" => self.interrupts = value(),
                b"ctxt" => self.context_switches = value(),
                b"processes" => self.forks = value(),
                b"procs_running" => self.runnable = value(),
                b"procs_blocked" => self.blocked = value(),
                b"softirq" => self.softirqs = value(),
                _ => {
                    let cpu = key.strip_prefix(b"cpu").and_then(number);
                    let cpu = cpu.and_then(|cpu| usize::try_from(cpu).ok());
                    if let Some(cpu) = cpu.filter(|&cpu| cpu <= LAST_CPU) {
                        self.cpus.push((cpu, std::array::from_fn(|_| value())));
                    }
                }
            }
        }
    }
}

/// Increase of the time in each state, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Increases {
    pub(crate) user: Option<u64>,
    pub(crate) nice: Option<u64>,
    pub(crate) system: Option<u64>,
    pub(crate) idle: Option<u64>,
    pub(crate) iowait: Option<u64>,
    pub(crate) irq: Option<u64>,
    pub(crate) softirq: Option<u64>,
    pub(crate) steal: Option<u64>,
    pub(crate) guest: Option<u64>,
    pub(crate) guest_nice: Option<u64>,
}

/// Times per state of one CPU, or of all CPUs, with their last reading.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateTimes {
    states: [Estimate; STATES],
}

impl StateTimes {
    /// Takes a reading. `at_most_ns` is the largest possible increase in this interval, `tick_ns`
    /// the length of a clock tick.
    ///
    /// The kernel also counts the time of guests in `user` and `nice` (`account_guest_time`). It is
    /// subtracted here, so that the states add up.
    pub(crate) fn increase(&mut self, times: &Times, at_most_ns: u64, tick_ns: u64) -> Increases {
        const SECOND: u64 = 1_000_000_000;
        let without = |time: usize, part: usize| Some(times[time]?.saturating_sub(times[part]?));
        let mut times = *times;
        [times[USER], times[NICE]] = [without(USER, GUEST), without(NICE, GUEST_NICE)];
        let [at_most, tolerance] = [at_most_ns, SECOND].map(|ns| ns / tick_ns.max(1));
        let mut states = self.states.iter_mut().zip(times);
        let mut next = || {
            let (state, time) = states.next()?;
            let ticks = state.increase(time, at_most, tolerance)?;
            ticks.checked_mul(tick_ns)
        };
        Increases {
            user: next(),
            nice: next(),
            system: next(),
            idle: next(),
            iowait: next(),
            irq: next(),
            softirq: next(),
            steal: next(),
            guest: next(),
            guest_nice: next(),
        }
    }
}

/// Time that `cpus` CPUs can spend in an interval, with an hour of tolerance for long idle periods,
/// which the kernel adds when they end.
pub(crate) fn at_most_ns(interval_ns: u64, cpus: usize) -> u64 {
    const HOUR: u64 = 3_600_000_000_000;
    interval_ns
        .saturating_add(HOUR)
        .saturating_mul(cpus.max(1) as u64)
}

/// Length of a clock tick of `/proc/stat` (`USER_HZ`; 10 ms on all present kernels).
pub(crate) fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_values_are_null_and_others_are_kept() {
        let mut stat = ProcStat::default();
        stat.parse(
            b"cpu  10 x 30 -4 50 60 70 80 18446744073709551616 1\n\
              cpu3 1 2 3 4 5 6 7 8 9 10\ncpu99999999 1 2\ncpuX 1\n\
              intr 7 0 0 1\nctxt\nprocesses 12 3\n\xff\xfe\nprocs_running 1",
        );
        assert_eq!(stat.total[0..4], [Some(10), None, Some(30), None]);
        assert_eq!(stat.total[8..], [None, Some(1)]);
        assert_eq!(
            stat.cpus,
            [(3, std::array::from_fn(|i| Some(i as u64 + 1)))]
        );
        assert_eq!((stat.interrupts, stat.forks), (Some(7), Some(12)));
        assert_eq!((stat.context_switches, stat.runnable), (None, None));
        stat.parse(b"");
        assert!(stat.cpus.is_empty() && stat.forks.is_none());
    }

    #[test]
    fn guests_are_not_counted_twice() {
        let mut times = StateTimes::default();
        let at = |user, guest| {
            let mut times = [Some(0); STATES];
            (times[USER], times[GUEST]) = (Some(user), Some(guest));
            times
        };
        assert_eq!(
            times.increase(&at(100, 40), u64::MAX, 10),
            Increases::default()
        );
        let increase = times.increase(&at(130, 60), u64::MAX, 10);
        assert_eq!((increase.user, increase.guest), (Some(100), Some(200)));
        // Both are rounded down separately, so their difference may decrease by a tick for a while.
        let increase = times.increase(&at(130, 61), u64::MAX, 10);
        assert_eq!((increase.user, increase.guest), (Some(0), Some(10)));
        let increase = times.increase(&at(131, 61), u64::MAX, 10);
        assert_eq!((increase.user, increase.guest), (Some(0), Some(0)));
    }
}

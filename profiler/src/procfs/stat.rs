//! `/proc/stat`: times per state, of the node and of each CPU (`fs/proc/stat.c` in the kernel, `proc_stat(5)`).
//!
//! Read by a parser of our own: the `procfs` crate gives up the whole file for one bad value, and loses which CPU
//! a line belongs to when another one is offline.

use super::file::{lines, number, words};
use crate::support::delta::Level;

/// States of a CPU in the order of `/proc/stat`.
pub(crate) const STATES: usize = 10;
const USER: usize = 0;
const NICE: usize = 1;
const GUEST: usize = 8;
const GUEST_NICE: usize = 9;

/// Highest CPU number that is believed; the kernel's own limit (`NR_CPUS`) is 8,192.
const LAST_CPU: usize = 65_535;

/// Times of one CPU in clock ticks (`USER_HZ`), as printed.
pub(crate) type Times = [Option<u64>; STATES];

/// One reading of the file; null is what could not be read.
#[derive(Debug, Default)]
pub(crate) struct ProcStat {
    /// All CPUs together, those offline included.
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
    /// Replaces the previous reading.
    pub(crate) fn parse(&mut self, text: &[u8]) {
        let mut cpus = std::mem::take(&mut self.cpus);
        cpus.clear();
        *self = Self {
            cpus,
            ..Self::default()
        };
        for line in lines(text) {
            // The interrupt line is long (one number per interrupt); only what is asked for is looked at.
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

/// Times per state of one CPU, or of all, over an interval.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateTimes {
    levels: [Level; STATES],
}

impl StateTimes {
    /// Increases in ns, in the order of `/proc/stat`. `at_most_ns` is what the interval can hold, `tick_ns` what
    /// one clock tick lasts.
    ///
    /// The kernel counts the time of guests in `user` and `nice` as well (`account_guest_time`); here it is
    /// taken out of them, so that the states add up.
    pub(crate) fn increase(&mut self, times: &Times, at_most_ns: u64, tick_ns: u64) -> Times {
        const SECOND: u64 = 1_000_000_000;
        let without = |time: usize, part: usize| Some(times[time]?.saturating_sub(times[part]?));
        let mut times = *times;
        [times[USER], times[NICE]] = [without(USER, GUEST), without(NICE, GUEST_NICE)];
        let [at_most, tolerated] = [at_most_ns, SECOND].map(|ns| ns / tick_ns.max(1));
        let mut levels = self.levels.iter_mut().zip(times);
        std::array::from_fn(|_| {
            let (level, time) = levels.next()?;
            level
                .increase(time, at_most, tolerated)?
                .checked_mul(tick_ns)
        })
    }
}

/// What `cpus` CPUs can spend in `interval_ns`; with an hour for the time of long idle periods, which the kernel
/// books when they end.
pub(crate) fn at_most_ns(interval_ns: u64, cpus: usize) -> u64 {
    const HOUR: u64 = 3_600_000_000_000;
    interval_ns
        .saturating_add(HOUR)
        .saturating_mul(cpus.max(1) as u64)
}

/// How long a clock tick of `/proc/stat` lasts (`USER_HZ`, 10 ms on all of today's kernels).
pub(crate) fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_null_and_the_rest_stays() {
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
        assert_eq!(times.increase(&at(100, 40), u64::MAX, 10), [None; STATES]);
        let increase = times.increase(&at(130, 60), u64::MAX, 10);
        assert_eq!((increase[USER], increase[GUEST]), (Some(100), Some(200)));
        // Both are rounded down on their own: the difference may fall by a tick, and comes back.
        let increase = times.increase(&at(130, 61), u64::MAX, 10);
        assert_eq!((increase[USER], increase[GUEST]), (Some(0), Some(10)));
        let increase = times.increase(&at(131, 61), u64::MAX, 10);
        assert_eq!((increase[USER], increase[GUEST]), (Some(0), Some(0)));
    }
}

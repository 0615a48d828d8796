//! Counters of devices that come and go: disks, network interfaces.

use hashbrown::HashMap;

/// How a counter of the kernel ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// It does not.
    Long,
    /// At 2^32, where it begins anew.
    Wraps32,
}

/// The counters of all devices, by their names.
#[derive(Debug)]
pub(crate) struct Devices<F, const N: usize> {
    widths: [Width; N],
    known: HashMap<Box<[u8]>, Device<F, N>>,
    reading: u64,
}

#[derive(Debug)]
struct Device<F, const N: usize> {
    facts: F,
    values: [Option<u64>; N],
    read_at: u64,
    reading: u64,
}

/// What a device did since the reading before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Increase<'a, F, const N: usize> {
    /// Facts found at its first sight.
    pub(crate) facts: &'a F,
    /// Length of the interval, ns.
    pub(crate) interval_ns: u64,
    /// What was added to each counter; null after a reset, and where the kernel has none.
    pub(crate) counts: [Option<u64>; N],
}

impl<F, const N: usize> Devices<F, N> {
    pub(crate) fn new(widths: [Width; N]) -> Self {
        Self {
            widths,
            known: HashMap::new(),
            reading: 0,
        }
    }

    /// Begins a reading: who was not in the one before is forgotten.
    pub(crate) fn begin(&mut self) {
        let before = self.reading;
        self.known.retain(|_, device| device.reading == before);
        self.reading += 1;
    }

    /// Takes one device's counters; `None` at its first sight, when `facts` looks at it.
    pub(crate) fn take(
        &mut self,
        name: &[u8],
        now: u64,
        values: [Option<u64>; N],
        facts: impl FnOnce() -> F,
    ) -> Option<Increase<'_, F, N>> {
        let reading = self.reading;
        if !self.known.contains_key(name) {
            let device = Device {
                facts: facts(),
                values,
                read_at: now,
                reading,
            };
            self.known.insert(name.into(), device);
            return None;
        }
        let device = self.known.get_mut(name)?;
        device.reading = reading;
        let before = std::mem::replace(&mut device.values, values);
        let interval_ns = now.saturating_sub(std::mem::replace(&mut device.read_at, now));
        let pairs = || before.iter().zip(&values).zip(&self.widths);
        // Another device with the same name, or one that was reset.
        let was_reset = pairs()
            .filter(|(_, width)| **width == Width::Long)
            .any(|((before, now), _)| before.zip(*now).is_some_and(|(before, now)| now < before));
        let mut counts = [None; N];
        for (count, ((before, now), width)) in counts.iter_mut().zip(pairs()) {
            if let (Some(before), Some(now), false) = (before, now, was_reset) {
                *count = increase(*before, *now, *width);
            }
        }
        Some(Increase {
            facts: &device.facts,
            interval_ns,
            counts,
        })
    }
}

fn increase(before: u64, now: u64, width: Width) -> Option<u64> {
    const WRAP: u64 = 1 << 32;
    match (now.checked_sub(before), width) {
        (Some(increase), _) => Some(increase),
        (None, Width::Long) => None,
        (None, Width::Wraps32) => {
            let increase = now.checked_add(WRAP)?.checked_sub(before)?;
            // More than half of the range in an interval is a reset.
            (before < WRAP && increase < WRAP / 2).then_some(increase)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_come_go_wrap_and_are_reset() {
        let mut devices: Devices<&str, 2> = Devices::new([Width::Long, Width::Wraps32]);
        let mut read = |name: &str, now: u64, values: [u64; 2]| {
            devices.begin();
            let taken = devices.take(name.as_bytes(), now, values.map(Some), || "fact");
            taken.map(|increase| (*increase.facts, increase.interval_ns, increase.counts))
        };
        assert_eq!(read("a", 10, [5, 5]), None);
        assert_eq!(
            read("a", 30, [8, 5]),
            Some(("fact", 20, [Some(3), Some(0)]))
        );
        assert_eq!(
            read("a", 40, [8, u64::from(u32::MAX)]).map(|row| row.2[0]),
            Some(Some(0))
        );
        assert_eq!(
            read("a", 50, [9, 1]),
            Some(("fact", 10, [Some(1), Some(2)]))
        );
        assert_eq!(
            read("a", 60, [2, 9]),
            Some(("fact", 10, [None, None])),
            "reset"
        );
        assert_eq!(read("b", 70, [1, 1]), None);
        assert_eq!(read("a", 80, [3, 9]), None, "it was gone");
    }

    #[test]
    fn what_is_missing_is_null() {
        let mut devices: Devices<(), 2> = Devices::new([Width::Long; 2]);
        let mut read = |values| {
            devices.begin();
            devices
                .take(b"a", 0, values, || ())
                .map(|increase| increase.counts)
        };
        assert_eq!(read([Some(1), None]), None);
        assert_eq!(read([Some(2), None]), Some([Some(1), None]));
        assert_eq!(read([None, Some(7)]), Some([None, None]));
        assert_eq!(read([Some(5), Some(8)]), Some([None, Some(1)]));
    }
}

//! Counters of devices that appear and disappear: disks, network interfaces, GPUs.

use hashbrown::HashMap;

use super::delta::{Change, Counter, Interval, Range};

/// Counters of all devices, by name. The counters of a device are reset together.
#[derive(Debug)]
pub(crate) struct Devices<F, const N: usize> {
    ranges: [Range; N],
    known: HashMap<Box<[u8]>, Device<F, N>>,
    reading: u64,
}

#[derive(Debug)]
struct Device<F, const N: usize> {
    facts: F,
    counters: [Counter; N],
    interval: Interval,
    /// Number of the last reading that had this device.
    reading: u64,
}

/// Increases of a device's counters since the previous reading.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Increase<'a, F, const N: usize> {
    /// Facts read when the device appeared.
    pub(crate) facts: &'a F,
    /// Length of the interval, ns.
    pub(crate) interval_ns: u64,
    /// Increase of each counter; null after a reset, and for counters missing in this kernel.
    pub(crate) counts: [Option<u64>; N],
    /// The values of this reading.
    pub(crate) values: [Option<u64>; N],
}

impl<F, const N: usize> Devices<F, N> {
    /// No devices yet; `ranges` are those of the counters of each device.
    pub(crate) fn new(ranges: [Range; N]) -> Self {
        Self {
            ranges,
            known: HashMap::new(),
            reading: 0,
        }
    }

    /// Begins a reading. Devices that were missing in the previous one are forgotten.
    pub(crate) fn begin(&mut self) {
        let previous = self.reading;
        self.known.retain(|_, device| device.reading == previous);
        self.reading += 1;
    }

    /// Takes the values of one device, read at this time in ns. At the first reading of a device
    /// they are its baseline: `facts` is called, and the result is `None`.
    pub(crate) fn read(
        &mut self,
        name: &[u8],
        now: u64,
        values: [Option<u64>; N],
        facts: impl FnOnce() -> F,
    ) -> Option<Increase<'_, F, N>> {
        if !self.known.contains_key(name) {
            let device = Device {
                facts: facts(),
                counters: self.ranges.map(Counter::new),
                interval: Interval::default(),
                reading: 0,
            };
            self.known.insert(name.into(), device);
        }
        let device = self.known.get_mut(name)?;
        device.reading = self.reading;
        let mut counters = device.counters.iter_mut().zip(values);
        let changes: [Change; N] = std::array::from_fn(|_| {
            let next = counters.next();
            next.map_or(Change::Unknown, |(counter, now)| counter.change(now))
        });
        // Another device with the same name looks like a reset, too.
        let was_reset = changes.contains(&Change::Reset);
        let interval_ns = device.interval.end(now)?;
        Some(Increase {
            facts: &device.facts,
            interval_ns,
            counts: changes.map(|change| change.increase().filter(|_| !was_reset)),
            values,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_appear_disappear_wrap_and_are_reset() {
        let mut devices: Devices<&str, 2> = Devices::new([Range::Unlimited, Range::BITS_32]);
        let mut read = |name: &str, now: u64, values: [u64; 2]| {
            devices.begin();
            let increase = devices.read(name.as_bytes(), now, values.map(Some), || "fact");
            increase.map(|increase| (*increase.facts, increase.interval_ns, increase.counts))
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
    fn missing_counters_are_null() {
        let mut devices: Devices<(), 2> = Devices::new([Range::Unlimited; 2]);
        let mut read = |values| {
            devices.begin();
            devices
                .read(b"a", 0, values, || ())
                .map(|increase| increase.counts)
        };
        assert_eq!(read([Some(1), None]), None);
        assert_eq!(read([Some(2), None]), Some([Some(1), None]));
        assert_eq!(read([None, Some(7)]), Some([None, None]));
        assert_eq!(read([Some(5), Some(8)]), Some([None, Some(1)]));
    }
}

//! Increases of engine times since the previous reading of a client.

use std::collections::BTreeMap;

use super::{super::GpuProcessRow, fdinfo::Engine};

/// A sum, which is unknown if part of it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    /// Whether anything was added.
    some: bool,
    unknown: bool,
    ns: u64,
}

impl Sum {
    fn add(&mut self, ns: Option<u64>) {
        self.some = true;
        match ns {
            Some(ns) => self.ns = self.ns.saturating_add(ns),
            None => self.unknown = true,
        }
    }

    fn value(self) -> Option<u64> {
        (self.some && !self.unknown).then_some(self.ns)
    }
}

/// Engine times of one process, by kind of engine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    render: Sum,
    compute: Sum,
    copy: Sum,
    video: Sum,
    all: Sum,
}

impl Times {
    /// Adds the increases of one client. `before` is `None` at its first reading, `interval_ns` at
    /// the first reading of all clients.
    pub(super) fn add(
        &mut self,
        before: Option<&BTreeMap<String, Engine>>,
        now: &BTreeMap<String, Engine>,
        interval_ns: Option<u64>,
    ) {
        for (name, engine) in now {
            let before = before.map(|before| before.get(name).copied().unwrap_or_default());
            let ns = interval_ns.and_then(|interval_ns| increase(before, *engine, interval_ns));
            self.all.add(ns);
            let class = match name.as_str() {
                "gfx" | "render" | "rcs" => &mut self.render,
                "compute" | "ccs" => &mut self.compute,
                "dma" | "copy" | "bcs" => &mut self.copy,
                "dec" | "enc" | "enc_1" | "jpeg" | "vpe" | "video" | "video-enhance" | "vcs"
                | "vecs" => &mut self.video,
                _ => continue,
            };
            class.add(ns);
        }
    }

    /// Stores the times in a row.
    pub(super) fn fill(self, row: &mut GpuProcessRow) {
        row.render_ns = self.render.value();
        row.compute_ns = self.compute.value();
        row.copy_ns = self.copy.value();
        row.video_ns = self.video.value();
        row.engines_ns = self.all.value();
    }
}

/// Busy time in the interval. `before` is `None` at the first reading of a client.
///
/// This is not [`delta::Counter`](crate::support::delta::Counter): a smaller value is no reset
/// here, and a first value is an increase if the client is new.
fn increase(before: Option<Engine>, now: Engine, interval_ns: u64) -> Option<u64> {
    let capacity = now.capacity.unwrap_or(1).max(1);
    if let Some(busy) = now.busy_ns {
        // A driver may report a smaller value for a while (drm-usage-stats.rst).
        if let Some(before) = before {
            return Some(busy.saturating_sub(before.busy_ns?));
        }
        // A client that is older than the interval may have a larger value than the interval
        // allows.
        let possible = interval_ns.saturating_mul(capacity);
        return (busy <= possible.saturating_add(possible / 20)).then_some(busy);
    }
    // Cycles are a share of the total cycles, whose increase is unknown at the first reading.
    let before = before?;
    let busy = now.cycles?.saturating_sub(before.cycles?);
    let gone = now.total_cycles?.checked_sub(before.total_cycles?)?;
    let ns = u128::from(busy) * u128::from(interval_ns);
    u64::try_from(ns.checked_div(gone.into())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(ns: u64) -> Engine {
        Engine {
            busy_ns: Some(ns),
            ..Engine::default()
        }
    }

    #[test]
    fn times_never_decrease() {
        assert_eq!(increase(Some(busy(5)), busy(8), 100), Some(3));
        assert_eq!(increase(Some(busy(5)), busy(3), 100), Some(0));
        assert_eq!(increase(Some(Engine::default()), busy(3), 100), None);
        assert_eq!(increase(None, busy(100), 100), Some(100), "it is new");
        assert_eq!(increase(None, busy(106), 100), None, "it is older");
        let many = Engine {
            capacity: Some(4),
            ..busy(400)
        };
        assert_eq!(increase(None, many, 100), Some(400));
    }

    #[test]
    fn cycles_become_a_share_of_the_interval() {
        let cycles = |cycles, total| Engine {
            cycles: Some(cycles),
            total_cycles: Some(total),
            ..Engine::default()
        };
        let of = |before, now| increase(before, now, 1000);
        assert_eq!(of(Some(cycles(10, 100)), cycles(60, 300)), Some(250));
        assert_eq!(of(Some(cycles(10, 100)), cycles(10, 300)), Some(0));
        assert_eq!(of(Some(cycles(10, 100)), cycles(20, 100)), None, "no time");
        assert_eq!(of(None, cycles(10, 100)), None);
    }
}

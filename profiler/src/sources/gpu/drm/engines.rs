//! Times of engines: what was added to each since the client was read before.

use std::collections::BTreeMap;

use super::{super::GpuProcessRow, fdinfo::Engine};

/// A sum of which a part may not be known; then none of it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    /// Nothing was added.
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

/// Times of the engines of one process, by what they do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    render: Sum,
    compute: Sum,
    copy: Sum,
    video: Sum,
    all: Sum,
}

impl Times {
    /// Adds what one client did. `before` is `None` at its first sight, `interval_ns` at that of everything.
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

    pub(super) fn fill(self, row: &mut GpuProcessRow) {
        row.render_ns = self.render.value();
        row.compute_ns = self.compute.value();
        row.copy_ns = self.copy.value();
        row.video_ns = self.video.value();
        row.engines_ns = self.all.value();
    }
}

/// Time busy in the interval. `before` is `None` for a client that is seen for the first time.
fn increase(before: Option<Engine>, now: Engine, interval_ns: u64) -> Option<u64> {
    let capacity = now.capacity.unwrap_or(1).max(1);
    if let Some(busy) = now.busy_ns {
        // A value that falls for a while stays where it was (drm-usage-stats.rst).
        if let Some(before) = before {
            return Some(busy.saturating_sub(before.busy_ns?));
        }
        // A client that was there before, unseen, has done more than fits into the interval.
        let possible = interval_ns.saturating_mul(capacity);
        return (busy <= possible.saturating_add(possible / 20)).then_some(busy);
    }
    // Cycles tell the part of the time; of a first sight, there is no time to take it of.
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
    fn times_grow_or_stay() {
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
    fn cycles_are_a_part_of_the_time() {
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

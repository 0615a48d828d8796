//! STREAM's triad, a = b + s * c, on arrays that exceed the caches.

use std::{fs, hint::black_box};

use crate::Work;

pub const NAME: &str = "triad";
/// STREAM's rule: size of each array in multiples of the last-level cache.
const TIMES: usize = 4;
/// Size of the last-level cache, in bytes, if sysfs does not have it.
const LAST_CACHE: usize = 64 << 20;
const SCALE: f64 = 3.0;

pub struct Triad {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
}

impl Triad {
    pub fn new(elements: usize) -> Self {
        // Written here, so that the pages are allocated before the measurement.
        Self {
            a: vec![1.0; elements],
            b: vec![2.0; elements],
            c: vec![0.5; elements],
        }
    }

    pub fn run(&mut self, iterations: u64) {
        for _ in 0..iterations {
            let both = self.b.iter().zip(&self.c);
            for (a, (b, c)) in self.a.iter_mut().zip(both) {
                *a = b + SCALE * c;
            }
            black_box(&mut self.a);
        }
    }

    /// Two arrays are read and one is written, whose lines are read as well with write-allocate.
    pub fn work(elements: usize) -> Work {
        let elements = elements as u64;
        Work {
            flops: 2 * elements,
            bytes: 3 * 8 * elements,
            bytes_with_allocate: 4 * 8 * elements,
        }
    }
}

/// Elements per array on this machine.
pub fn elements() -> usize {
    TIMES * last_cache().unwrap_or(LAST_CACHE) / size_of::<f64>()
}

/// Size of the largest cache of CPU 0.
fn last_cache() -> Option<usize> {
    let entries = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes = entries.flatten().filter_map(|entry| {
        let text = fs::read_to_string(entry.path().join("size")).ok()?;
        bytes(text.trim())
    });
    sizes.max()
}

/// Parses `32768K`.
fn bytes(text: &str) -> Option<usize> {
    let (digits, unit) = match text.strip_suffix('K') {
        Some(digits) => (digits, 1 << 10),
        None => (text.strip_suffix('M')?, 1 << 20),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triad_computes_the_declared_bytes() {
        let mut triad = Triad::new(1000);
        triad.run(3);
        assert!(triad.a.iter().all(|a| (a - 3.5).abs() < f64::EPSILON));
        assert_eq!(Triad::work(1000).bytes_with_allocate, 32_000);
    }

    #[test]
    fn cache_sizes_match_sysfs() {
        assert_eq!(bytes("32768K"), Some(32 << 20));
        assert_eq!(bytes("2M"), Some(2 << 20));
        assert_eq!(bytes("large"), None);
    }
}

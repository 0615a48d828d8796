//! STREAM's triad, a = b + s * c.

use std::hint::black_box;

const SCALE: f64 = 3.0;
/// Elements of a line of the caches.
const LINE: usize = 8;

/// A line of the caches, so that no vector lies in two of them.
#[derive(Clone)]
#[repr(align(64))]
struct Line([f64; LINE]);

pub struct Triad {
    a: Vec<Line>,
    b: Vec<Line>,
    c: Vec<Line>,
}

impl Triad {
    /// Bytes of an element in all arrays: two are read and one is written.
    pub const BYTES: u64 = 3 * 8;
    /// Floating-point operations of an element.
    pub const FLOPS: u64 = 2;

    /// With this number of elements in each array, rounded up to whole lines. They are written here, so that the pages
    /// are allocated before the measurement, and near this CPU.
    pub fn new(elements: usize) -> Self {
        let array = |value| vec![Line([value; LINE]); elements.div_ceil(LINE)];
        Self {
            a: array(1.0),
            b: array(2.0),
            c: array(0.5),
        }
    }

    pub fn run(&mut self, iterations: u64) {
        for _ in 0..iterations {
            self.pass();
            black_box(&mut self.a);
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn pass(&mut self) {
        #[target_feature(enable = "avx2")]
        fn with_avx2(triad: &mut Triad) {
            triad.pass_of_any_cpu();
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has AVX2.
            unsafe { with_avx2(self) }
        } else {
            self.pass_of_any_cpu();
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn pass(&mut self) {
        self.pass_of_any_cpu();
    }

    /// Compiled for the features of the function that it is inlined into.
    #[inline(always)]
    fn pass_of_any_cpu(&mut self) {
        let both = self.b.iter().zip(&self.c);
        for (a, (b, c)) in self.a.iter_mut().zip(both) {
            for (a, (b, c)) in a.0.iter_mut().zip(b.0.iter().zip(&c.0)) {
                *a = b + SCALE * c;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triad_computes_all_elements() {
        let mut triad = Triad::new(999);
        triad.run(3);
        let all = triad.a.iter().flat_map(|line| line.0);
        assert!(all.clone().all(|a| (a - 3.5).abs() < f64::EPSILON));
        assert_eq!(all.count(), 1000);
    }
}

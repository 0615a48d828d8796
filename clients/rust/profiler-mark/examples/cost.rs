//! Prints the ns per mark, with or without a profiler.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

fn main() {
    let sparse = profiler_mark::enabled();
    let count = if sparse { 2_000 } else { 10_000_000 };
    let mut spent = Duration::ZERO;
    let mut begin = Instant::now();
    for _ in 0..count {
        // A program computes between its marks, and the profiler has limits.
        if sparse {
            while begin.elapsed() < Duration::from_millis(1) {}
            begin = Instant::now();
        }
        drop(profiler_mark::region(black_box("cost")).start());
        if sparse {
            spent += begin.elapsed();
        }
    }
    if !sparse {
        spent = begin.elapsed();
    }
    println!("{:.2}", spent.as_secs_f64() * 1e9 / f64::from(count) / 2.0);
}

//! Runs a loop on CPUs at the same time, and times it.

use std::{
    io,
    sync::{
        Barrier, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Repetitions, of which the median counts.
pub const REPETITIONS: usize = 5;
/// Time between two readings of the clock.
const CHUNK: Duration = Duration::from_millis(2);

/// A loop with its memory, on one thread.
pub struct Work<'a> {
    /// Runs a number of iterations.
    pub run: Box<dyn FnMut(u64) + 'a>,
    /// Operations or bytes of one iteration.
    pub per_iteration: u64,
}

/// Operations or bytes per second of all threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Median of the repetitions.
    pub median: f64,
    /// Difference of the largest and the smallest repetition, divided by the median.
    pub spread: f64,
}

/// CPUs on which this process may run.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect())
}

/// Measures the work on these CPUs, with one thread on each. `prepare` runs on each of the threads,
/// so that memory which it writes is near the CPU.
///
/// # Errors
///
/// When a CPU cannot be used, or a thread cannot be created.
pub fn measure<'a>(
    cpus: &[usize],
    duration: Duration,
    prepare: impl Fn() -> Work<'a> + Sync,
) -> io::Result<Rate> {
    let barrier = Barrier::new(cpus.len());
    let failed = AtomicBool::new(false);
    // Threads wait for each other only if all exist.
    let all_exist = Mutex::new(false);
    let of_threads = thread::scope(|scope| {
        let mut all_exist_now = all_exist.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = cpus.iter().map(|&cpu| {
            let (barrier, failed, prepare) = (&barrier, &failed, &prepare);
            let all_exist = &all_exist;
            thread::Builder::new().spawn_scoped(scope, move || {
                if !*all_exist.lock().unwrap_or_else(PoisonError::into_inner) {
                    return Ok([0.0; REPETITIONS]);
                }
                let pinned = pin(cpu);
                failed.fetch_or(pinned.is_err(), Ordering::Relaxed);
                // All threads learn here of a thread that cannot take part, so that none waits for it.
                barrier.wait();
                pinned?;
                if failed.load(Ordering::Relaxed) {
                    return Ok([0.0; REPETITIONS]);
                }
                let mut work = prepare();
                let chunk = iterations(&mut work, CHUNK.min(duration));
                Ok(std::array::from_fn(|_| {
                    barrier.wait();
                    rate(&mut work, chunk, duration)
                }))
            })
        });
        let threads: io::Result<Vec<_>> = threads.collect();
        *all_exist_now = threads.is_ok();
        drop(all_exist_now);
        let threads =
            threads.map_err(|error| io::Error::other(format!("a thread on each: {error}")))?;
        let ended = threads.into_iter().map(|thread| {
            let lost = || Err(io::Error::other("a thread failed"));
            thread.join().unwrap_or_else(|_| lost())
        });
        ended.collect::<io::Result<Vec<_>>>()
    })?;
    Ok(Rate::of_threads(&of_threads))
}

fn pin(cpu: usize) -> io::Result<()> {
    let fail = |error: io::Error| io::Error::other(format!("CPU {cpu}: {error}"));
    if cpu >= CpuSet::MAX_CPU {
        return Err(fail(io::ErrorKind::InvalidInput.into()));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| fail(error.into()))
}

/// Iterations that take about this time.
fn iterations(work: &mut Work<'_>, time: Duration) -> u64 {
    let mut iterations = 1;
    loop {
        let start = Instant::now();
        (work.run)(iterations);
        // The sum of many chunks fits into 64 bits.
        if start.elapsed() >= time / 2 || iterations >= 1 << 40 {
            return iterations;
        }
        iterations *= 2;
    }
}

/// Work per second of one thread.
fn rate(work: &mut Work<'_>, chunk: u64, duration: Duration) -> f64 {
    let start = Instant::now();
    let mut iterations = 0;
    loop {
        (work.run)(chunk);
        iterations += chunk;
        let elapsed = start.elapsed();
        if elapsed >= duration {
            return iterations as f64 * work.per_iteration as f64 / elapsed.as_secs_f64();
        }
    }
}

impl Rate {
    /// The repetitions of all threads, which run at the same time.
    fn of_threads(rates: &[[f64; REPETITIONS]]) -> Self {
        let sum = |repetition: usize| rates.iter().map(|rates| rates[repetition]).sum();
        Self::of(std::array::from_fn(sum))
    }

    fn of(mut repetitions: [f64; REPETITIONS]) -> Self {
        repetitions.sort_by(f64::total_cmp);
        let median = repetitions[REPETITIONS / 2];
        Self {
            median,
            spread: (repetitions[REPETITIONS - 1] - repetitions[0]) / median,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::{super::loops, *};

    #[test]
    fn median_and_spread_of_the_repetitions() {
        let rate = Rate::of([8.0, 10.0, 9.0, 30.0, 12.0]);
        assert_eq!((rate.median, rate.spread), (10.0, 2.2));
    }

    /// The time on the CPU, from the kernel, is not the clock with which rates are measured.
    #[test]
    fn rate_is_the_work_divided_by_the_time() {
        let kernel = loops::kernels().next().expect("scalars are everywhere");
        let cpus = &allowed_cpus().expect("the affinity")[..1];
        let (done, busy_ns) = (AtomicU64::new(0), AtomicU64::new(0));
        let rate = measure(cpus, Duration::from_millis(60), || Work {
            run: Box::new(|iterations| {
                let before = crate::support::clock::thread_cpu_ns();
                kernel.run(iterations);
                let after = crate::support::clock::thread_cpu_ns();
                done.fetch_add(iterations * kernel.flops(), Ordering::Relaxed);
                busy_ns.fetch_add(after - before, Ordering::Relaxed);
            }),
            per_iteration: kernel.flops(),
        });
        let rate = rate.expect("the CPU is allowed").median;
        let expected = done.into_inner() as f64 / busy_ns.into_inner() as f64 * 1e9;
        // Other processes can only lower the measured rate.
        assert!(rate <= expected * 1.3, "{rate}, {expected}");
        assert!(rate >= expected / 20.0, "{rate}, {expected}");
    }

    #[test]
    fn work_of_all_threads_is_added() {
        let cpus = allowed_cpus().expect("the affinity");
        let threads = AtomicU64::new(0);
        let rate = measure(&[cpus[0], cpus[0]], Duration::from_millis(1), || {
            threads.fetch_add(1, Ordering::Relaxed);
            Work {
                run: Box::new(|_| thread::sleep(Duration::from_micros(100))),
                per_iteration: 7,
            }
        });
        assert!(rate.expect("the CPU is allowed").median > 0.0);
        assert_eq!(threads.into_inner(), 2);
        let of_threads = [[1.0, 2.0, 3.0, 4.0, 5.0], [50.0, 40.0, 30.0, 20.0, 10.0]];
        let rate = Rate::of_threads(&of_threads);
        assert!((rate.median - 33.0).abs() < 1e-9, "{rate:?}");
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_an_error() {
        let cpus = allowed_cpus().expect("the affinity");
        let prepared = AtomicBool::new(false);
        let error = measure(&[cpus[0], 900], Duration::ZERO, || {
            prepared.store(true, Ordering::Relaxed);
            Work {
                run: Box::new(|_| {}),
                per_iteration: 1,
            }
        });
        let error = error.expect_err("no machine here has this CPU").to_string();
        assert!(error.contains("CPU 900: "), "{error}");
        assert!(!prepared.load(Ordering::Relaxed));
    }
}

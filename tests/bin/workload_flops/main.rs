//! Workload with a known number of operations, for checks of counters.
//!
//! `workload-flops --list` prints one line for each kernel that this machine supports: name,
//! precision, floating-point operations, bytes to and from memory, and the same bytes with
//! write-allocate, all per iteration. `workload-flops KERNEL ITERATIONS` runs a kernel and prints
//! the numbers of the whole run.

#[path = "../../../profiler/src/ceilings/loops/mod.rs"]
mod loops;

use std::{env::args, fs, process::exit};

use loops::{Kernel, Triad};

const TRIAD: &str = "triad";
/// STREAM's rule: size of each array in multiples of the last-level cache.
const TIMES: usize = 4;
/// Size of the last-level cache, in bytes, if sysfs does not have it.
const LAST_CACHE: usize = 64 << 20;

/// Work of one iteration or of a run.
struct Work {
    flops: u64,
    bytes: u64,
    bytes_with_allocate: u64,
}

fn main() {
    let args: Vec<String> = args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["--list"] => {
            list();
            Ok(())
        }
        [kernel, iterations] => run(kernel, iterations),
        _ => Err("usage: workload-flops --list | KERNEL ITERATIONS".to_owned()),
    };
    if let Err(why) = done {
        eprintln!("{why}");
        exit(2);
    }
}

fn list() {
    for kernel in loops::kernels() {
        print(kernel.name, kernel.precision.name(), &work(&kernel));
    }
    print(TRIAD, "double", &triad_work(elements()));
}

fn run(name: &str, iterations: &str) -> Result<(), String> {
    let iterations = match iterations.parse() {
        Ok(iterations) if iterations > 0 => iterations,
        _ => return Err(format!("{iterations}: not a positive number of iterations")),
    };
    let kernel = loops::kernels().find(|kernel| kernel.name == name);
    let elements = elements();
    let (precision, work) = match &kernel {
        Some(kernel) => (kernel.precision.name(), work(kernel)),
        None if name == TRIAD => ("double", triad_work(elements)),
        None => return Err(format!("{name}: not supported by this machine, see --list")),
    };
    let of_all = |number: u64| {
        let product = number.checked_mul(iterations);
        product.ok_or_else(|| format!("{iterations}: too many iterations"))
    };
    let all = Work {
        flops: of_all(work.flops)?,
        bytes: of_all(work.bytes)?,
        bytes_with_allocate: of_all(work.bytes_with_allocate)?,
    };
    match kernel {
        Some(kernel) => kernel.run(iterations),
        None => Triad::new(elements).run(iterations),
    }
    print(name, precision, &all);
    Ok(())
}

fn work(kernel: &Kernel) -> Work {
    Work {
        flops: kernel.flops(),
        bytes: 0,
        bytes_with_allocate: 0,
    }
}

/// The lines of the written array are read as well with write-allocate.
fn triad_work(elements: usize) -> Work {
    let elements = elements as u64;
    Work {
        flops: Triad::FLOPS * elements,
        bytes: Triad::BYTES * elements,
        bytes_with_allocate: (Triad::BYTES + 8) * elements,
    }
}

/// Elements of each array of the triad on this machine, which exceed the caches.
fn elements() -> usize {
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

fn print(name: &str, precision: &str, work: &Work) {
    let Work {
        flops,
        bytes,
        bytes_with_allocate,
    } = work;
    println!("{name}\t{precision}\t{flops}\t{bytes}\t{bytes_with_allocate}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_sizes_match_sysfs() {
        assert_eq!(bytes("32768K"), Some(32 << 20));
        assert_eq!(bytes("2M"), Some(2 << 20));
        assert_eq!(bytes("large"), None);
    }

    #[test]
    fn triad_has_the_declared_bytes() {
        assert_eq!(triad_work(1000).bytes_with_allocate, 32_000);
    }
}

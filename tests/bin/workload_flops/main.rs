//! Workload with a known number of operations, for checks of counters.
//!
//! `workload-flops --list` prints one line for each kernel that this machine supports: name,
//! precision, floating-point operations, bytes to and from memory, and the same bytes with
//! write-allocate, all per iteration. `workload-flops KERNEL ITERATIONS` runs a kernel and prints
//! the numbers of the whole run.

#[cfg_attr(target_arch = "x86_64", path = "x86.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arm.rs")]
mod kernels;
mod state;
mod triad;

use std::{env::args, process::exit};

use state::Kernel;
use triad::Triad;

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
    for kernel in available() {
        print(kernel.name, kernel.precision.name(), &work(&kernel));
    }
    print(triad::NAME, "double", &Triad::work(triad::elements()));
}

fn run(name: &str, iterations: &str) -> Result<(), String> {
    let iterations = match iterations.parse() {
        Ok(iterations) if iterations > 0 => iterations,
        _ => return Err(format!("{iterations}: not a positive number of iterations")),
    };
    let kernel = available().find(|kernel| kernel.name == name);
    let elements = triad::elements();
    let (precision, work) = match &kernel {
        Some(kernel) => (kernel.precision.name(), work(kernel)),
        None if name == triad::NAME => ("double", Triad::work(elements)),
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

fn available() -> impl Iterator<Item = Kernel> {
    kernels::all()
        .into_iter()
        .filter(|kernel| (kernel.is_supported)())
}

fn work(kernel: &Kernel) -> Work {
    Work {
        flops: kernel.flops(),
        bytes: 0,
        bytes_with_allocate: 0,
    }
}

fn print(name: &str, precision: &str, work: &Work) {
    let Work {
        flops,
        bytes,
        bytes_with_allocate,
    } = work;
    println!("{name}\t{precision}\t{flops}\t{bytes}\t{bytes_with_allocate}");
}

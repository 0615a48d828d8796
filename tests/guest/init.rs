//! The first process of a guest that `cargo xtask vm` boots: prepares it, runs the tests, says on the console how
//! that went, and switches off. In a guest that is a whole system it only mounts the root and becomes the system's init, which
//! starts it again as a service that does the rest.

mod machine;
mod root;
mod tally;
mod tests;

use std::{env, fs, process};

use tally::Tally;
use tests::Orders;

fn main() {
    let is_service = env::args().nth(1).is_some_and(|word| word == "service");
    if process::id() != 1 && !is_service {
        eprintln!("guest-init is for virtual machines: it ends all other processes");
        process::exit(2);
    }
    let mut tally = Tally::default();
    if !is_service {
        if let Ok(device) = fs::read_to_string("/root-device") {
            tally.fail(&format!("booting {device}: {}", root::boot(&device)));
        }
        machine::prepare(&mut tally);
    }
    match fs::read_to_string("/orders") {
        Ok(text) => run(&Orders::parse(&text), &mut tally),
        Err(error) => tally.fail(&format!("reading /orders: {error}")),
    }
    machine::silence();
    println!("{tally}");
    machine::off();
}

fn run(orders: &Orders, tally: &mut Tally) {
    for device in &orders.counters {
        machine::show_counters(device, tally);
    }
    let tainted = machine::taint();
    for command in &orders.reports {
        tests::report(command, tally);
    }
    for program in &orders.tests {
        tests::run(program, orders, tally);
    }
    if machine::taint() != tainted {
        tally.fail("the kernel complained meanwhile:");
        machine::show_complaints();
    }
}

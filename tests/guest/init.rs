//! The first process of a guest that `cargo xtask vm` boots: prepares it, runs the tests, says on the console how
//! that went, and switches off.

mod machine;
mod tally;
mod tests;

use std::{fs, process};

use tally::Tally;
use tests::Orders;

fn main() {
    if process::id() != 1 {
        eprintln!("guest-init is for virtual machines: it ends all other processes");
        process::exit(2);
    }
    let mut tally = Tally::default();
    machine::prepare(&mut tally);
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

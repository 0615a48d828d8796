//! Init of the guests of `cargo xtask vm`: prepares the machine, runs the tests, prints the verdict
//! on the console and powers off. In a guest with a complete system it only mounts the root file
//! system and executes the system's init, which starts it again as a service for the other steps.

mod machine;
mod root;
mod tests;
mod verdict;

use std::{env, fs, process};

use tests::Plan;
use verdict::Verdict;

fn main() {
    let is_service = env::args().nth(1).is_some_and(|word| word == "service");
    if process::id() != 1 && !is_service {
        eprintln!("guest-init is for virtual machines: it ends all other processes");
        process::exit(2);
    }
    let mut verdict = Verdict::default();
    if !is_service {
        if let Ok(device) = fs::read_to_string("/root-device") {
            verdict.fail(&format!("booting {device}: {}", root::boot(&device)));
        }
        machine::prepare(&mut verdict);
    }
    match fs::read_to_string("/plan") {
        Ok(text) => run(&Plan::parse(&text), &mut verdict),
        Err(error) => verdict.fail(&format!("reading /plan: {error}")),
    }
    machine::silence();
    println!("{verdict}");
    machine::power_off();
}

fn run(plan: &Plan, verdict: &mut Verdict) {
    for device in &plan.counters {
        machine::show_counters(device, verdict);
    }
    let tainted = machine::taint();
    for command in &plan.reports {
        tests::report(command, verdict);
    }
    for program in &plan.tests {
        tests::run(program, plan, verdict);
    }
    if machine::taint() != tainted {
        verdict.fail("the kernel warned during the tests:");
        machine::show_warnings();
    }
}

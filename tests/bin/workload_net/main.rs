//! Workload for the tests of `net_io`. `workload-net VERB ARGS…` executes one task, prints the
//! counts and ends. `workload-net THREADS` executes commands from stdin (`executor.rs`).

mod copy;
mod executor;
mod local;
mod tcp;
mod udp;
mod uring;

use std::{
    env::{args, current_exe},
    process::{Child, Command},
};

fn main() {
    let args: Vec<String> = args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["tcp", address, count, size, ref namespace @ ..] => {
            tcp::echo(address, number(count), number(size), namespace);
        }
        ["tcp-client", address, count, size] => {
            tcp::echo_client(address, number(count), number(size));
        }
        ["connections", kept, refused, reset] => {
            tcp::connections(number(kept), number(refused), number(reset));
        }
        ["writers", ref counts @ ..] => tcp::writers(counts),
        ["writer", address, count, size] => tcp::writer(address, number(count), number(size)),
        ["threads", count] => tcp::threads(number(count)),
        ["reads"] => tcp::partial_reads(),
        ["pass", own, other] => local::pass(number(own), number(other)),
        ["take", count] => local::take(number(count)),
        ["inherit", count] => local::inherit(number(count)),
        ["bulk", address, bytes, ref namespace @ ..] => {
            tcp::bulk(address, number(bytes), namespace);
        }
        ["bulk-client", address, bytes] => tcp::bulk_client(address, number(bytes)),
        ["udp", bind, address, count, size, ref namespace @ ..] => {
            udp::echo(bind, address, number(count), number(size), namespace);
        }
        ["udp-client", address, count, size, mode] => {
            udp::client(address, number(count), number(size), mode);
        }
        ["unix", count, size] => local::messages(number(count), number(size)),
        ["sendfile", bytes] => copy::send_file(number(bytes)),
        ["splice", bytes] => copy::splice_out(number(bytes)),
        ["unix-splice", bytes] => copy::unix_splice(number(bytes)),
        ["uring", count, size] => uring::messages(number(count), number(size)),
        [threads] if threads.parse::<u32>().is_ok() => executor::run(),
        _ => panic!("unknown task {words:?}"),
    }
}

fn number(word: &str) -> usize {
    word.parse().expect("a number")
}

/// Starts this program, in the given network namespace if there is one.
fn start(namespace: &[&str], words: &[&str]) -> Child {
    let program = current_exe().expect("our path");
    let mut command = match namespace {
        [] => Command::new(program),
        [name, ..] => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", name]).arg(program);
            command
        }
    };
    command.args(words).spawn().expect("this program starts")
}

/// Waits until a child has ended successfully.
fn finish(mut child: Child) {
    assert!(child.wait().expect("our child").success());
}

/// Prints a line `NAME PID NUMBER…`.
fn report(name: &str, pid: u32, numbers: &[u64]) {
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    println!("{name} {pid} {}", numbers.join(" "));
}

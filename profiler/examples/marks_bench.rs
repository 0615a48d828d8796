//! What a mark costs its sender: `profiler run -- marks_bench`.
//!
//! Sends starts and ends of regions at some distances, without ever waiting, and prints ns per call
//! of send(2). In between it computes, as an application does.

use std::{hint::black_box, os::unix::net::UnixDatagram, time::Instant};

use profiler::marks::VARIABLE;

const MARKS: usize = 2000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::var_os(VARIABLE).ok_or("not under `profiler run --`")?;
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    socket.set_nonblocking(true)?;
    println!("distance   median      p90      p99   dropped");
    for microseconds in [200, 1000, 10_000, 100_000] {
        let count = MARKS.min(3_000_000 / microseconds);
        let mut times: Vec<u128> = Vec::new();
        let mut dropped = 0;
        for number in 0..count {
            let pause = Instant::now();
            let mut sum = 0_u64;
            while pause.elapsed().as_micros() < microseconds as u128 {
                sum = black_box(sum.wrapping_add(1));
            }
            let op = if number % 2 == 0 { "start" } else { "end" };
            let mark = format!(r#"{{"op":"{op}","name":"bench","attrs":{{"number":{number}}}}}"#);
            let begin = Instant::now();
            dropped += u32::from(socket.send(mark.as_bytes()).is_err());
            times.push(begin.elapsed().as_nanos());
        }
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        println!(
            "{microseconds:5} µs {:6} ns {:6} ns {:6} ns {dropped:9}",
            at(50),
            at(90),
            at(99)
        );
    }
    Ok(())
}

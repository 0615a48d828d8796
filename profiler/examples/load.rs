//! x
use profiler::{bpf::*, host::Host};
fn main() {
    let host = Host { procfs: "/proc".into(), sysfs: "/sys".into(), hostname: "x".into() };
    let t = std::time::Instant::now();
    let scope = if std::env::args().nth(1).as_deref() == Some("node") { Scope::Node } else { Scope::Pids };
    let mut p = match Programs::load(&host, &Settings { scope, sched: true, threads: false }) { Ok(p) => p, Err(e) => { println!("{e}"); return; } };
    println!("loaded {:?}", t.elapsed());
    p.add_roots(&vec![(std::os::unix::process::parent_id(), 0)]).unwrap();
    p.mark().unwrap();
    p.armed().unwrap();
    println!("marked {:?} {:?}", t.elapsed(), p.counters());
    for _ in 0..2 {
        std::process::Command::new("/bin/echo").args(["hello", "world"]).status().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let t = std::time::Instant::now();
        let r = p.sample().unwrap();
        let n: Vec<_> = r.records().collect();
        println!("{:?} {}", t.elapsed(), n.len());
        if n.len() < 20 { for x in n { println!("{x:?}"); } }
        p.drain(|e| match e { Event::Exec(e, a) => println!("{} {:?} {:?}", e.pid, std::str::from_utf8(&e.path).map(|s| s.trim_end_matches('\0').to_owned()), String::from_utf8_lossy(a)), e => println!("{e:?}") });
    }
}

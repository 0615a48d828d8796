//! What the tests profile: does what it is told on stdin, answers `done`, and rests.
//!
//! `workload THREADS`: that many threads that burn when told to.
//! `workload files HOW DIRECTORY CALLS`: see `workload/files/mod.rs`.
//! `workload cmdline BYTES`: see `workload/cmdline.rs`.
//! `workload forks RATE`: see `workload/forks.rs`.
//! `workload spin ROUNDS`: see `workload/spin.rs`; prints nothing, and ends.

#[path = "workload/cmdline.rs"]
mod cmdline;
#[path = "workload/files/mod.rs"]
mod files;
#[path = "workload/forks.rs"]
mod forks;
#[path = "workload/spin.rs"]
mod spin;

use std::{
    fs::File,
    hint::black_box,
    io::{BufRead as _, Read as _, Write as _},
    net::UdpSocket,
    process::{Command, ExitCode},
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread::{sleep, spawn},
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_setaffinity};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, how, directory, calls] = arguments.as_slice()
        && verb == "files"
    {
        files::main(how, directory, calls);
        return ExitCode::SUCCESS;
    }
    if let [verb, rounds] = arguments.as_slice()
        && verb == "spin"
    {
        spin::spin(rounds.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    if let [verb, bytes] = arguments.as_slice()
        && verb == "cmdline"
    {
        cmdline::main(bytes.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    if let [verb, per_second] = arguments.as_slice()
        && verb == "forks"
    {
        forks::main(per_second.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    let threads = std::env::args().nth(1).and_then(|arg| arg.parse().ok());
    let mut puppet = Puppet::new(threads.unwrap_or(0));
    answer();
    for order in std::io::stdin().lock().lines() {
        let order = order.expect("text");
        let (verb, number) = order.split_once(' ').unwrap_or((&order, "0"));
        let number: usize = number.parse().expect("a number");
        match verb {
            "exit" => return ExitCode::from(u8::try_from(number).expect("a code")),
            "crash" => crash(),
            _ => puppet.obey(verb, number),
        }
        answer();
    }
    ExitCode::SUCCESS
}

fn answer() {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(b"done\n").expect("stdout is open");
    stdout.flush().expect("stdout is open");
}

struct Puppet {
    workers: Vec<Sender<Job>>,
    memory: Vec<Vec<u8>>,
    files: Vec<File>,
}

type Job = Box<dyn FnOnce() + Send>;

impl Puppet {
    fn new(threads: usize) -> Self {
        let worker = || {
            let (sender, jobs) = channel::<Job>();
            spawn(move || jobs.into_iter().for_each(|job| job()));
            sender
        };
        Self {
            workers: (0..threads).map(|_| worker()).collect(),
            memory: Vec::new(),
            files: Vec::new(),
        }
    }

    fn obey(&mut self, verb: &str, number: usize) {
        match verb {
            // All threads compute for so many ms.
            "burn" => self.on_all(move || burn(Duration::from_millis(number as u64))),
            // Executes so many rounds of two instructions: here, in each of the threads, in a thread that is born for it,
            // and in a process.
            "spin" => {
                spin::spin(number as u64);
            }
            "spin-all" => self.on_all(move || {
                spin::spin(number as u64);
            }),
            "spin-late" => {
                let thread = spawn(move || spin::spin(number as u64));
                thread.join().expect("spins");
            }
            "spin-child" => {
                let mut child = Command::new("/proc/self/exe");
                let status = child.args(["spin", &number.to_string()]).status();
                assert!(status.expect("it starts").success());
            }
            // Sleeps so many times for a millisecond.
            "nap" => (0..number).for_each(|_| sleep(Duration::from_millis(1))),
            // Stays on the CPU that it is on, and then moves so many times to another.
            "pin" => stay_on(current_cpu()),
            "migrate" => migrate(number),
            // Waits so many times, uninterruptibly, for a child that sleeps for 20 ms.
            "vfork" => (0..number).for_each(|_| wait_for_vfork()),
            // Makes so many bytes resident.
            "touch" => self.memory.push(vec![1; number]),
            "free" => self.memory.clear(),
            "open" => {
                let open = || File::open("/dev/null").expect("/dev/null");
                self.files.extend((0..number).map(|_| open()));
            }
            // So many calls of 4096 bytes.
            "read" => {
                let mut zero = File::open("/dev/zero").expect("/dev/zero");
                let mut page = [0; 4096];
                (0..number).for_each(|_| zero.read_exact(&mut page).expect("endless"));
            }
            "write" => {
                let mut null = File::create("/dev/null").expect("/dev/null");
                (0..number).for_each(|_| null.write_all(&[0; 4096]).expect("bottomless"));
            }
            // So many datagrams of 100 bytes to itself.
            "udp" => {
                let socket = UdpSocket::bind("127.0.0.1:0").expect("an address");
                let address = socket.local_addr().expect("bound");
                socket.connect(address).expect("itself");
                let mut message = [0; 100];
                (0..number).for_each(|_| {
                    socket.send(&message).expect("room");
                    socket.recv(&mut message).expect("a message");
                });
            }
            "getppid" => (0..number).for_each(|_| {
                let _ = std::os::unix::process::parent_id();
            }),
            "miss" => (0..number).for_each(|_| {
                File::open("/no/such/file").expect_err("not there");
            }),
            // So many threads that each live for a moment, one after the other.
            "threads" => (0..number).for_each(|_| {
                let thread = spawn(|| burn(Duration::from_millis(30)));
                thread.join().expect("burns");
            }),
            _ => panic!("{verb}: what is that?"),
        }
    }

    fn on_all(&self, job: impl Fn() + Send + Sync + 'static) {
        let job = Arc::new(job);
        let (sender, finished) = channel();
        for worker in &self.workers {
            let (job, sender) = (Arc::clone(&job), sender.clone());
            let job = move || {
                job();
                sender.send(()).expect("somebody waits");
            };
            worker.send(Box::new(job)).expect("the thread lives");
        }
        for _ in &self.workers {
            finished.recv().expect("the thread lives");
        }
    }
}

fn burn(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        for number in 0..1000 {
            black_box(number);
        }
    }
}

fn current_cpu() -> usize {
    rustix::thread::sched_getcpu()
}

fn stay_on(cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).expect("an online CPU");
}

/// Between the CPU that it is on and another, until it has moved so many times.
fn migrate(times: usize) {
    let here = current_cpu();
    let is_online = |cpu: &usize| {
        // What is online is what can be chosen.
        let mut only = CpuSet::new();
        only.set(*cpu);
        *cpu != here && sched_setaffinity(None, &only).is_ok()
    };
    let there = (0..CpuSet::MAX_CPU).find(is_online).expect("a second CPU");
    // That was the first move.
    for time in 1..times {
        stay_on(if time % 2 == 0 { there } else { here });
    }
}

/// The kernel keeps the parent of a vfork in an uninterruptible (killable) wait until the child has ended.
fn wait_for_vfork() {
    extern "C" fn child(_: *mut libc::c_void) -> libc::c_int {
        sleep(Duration::from_millis(20));
        0
    }
    let mut stack = vec![0_u8; 64 << 10];
    let top = stack.as_mut_ptr_range().end.cast();
    let flags = libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: without CLONE_VM the child has memory of its own, so the stack is its alone; it only sleeps and returns.
    let pid = unsafe { libc::clone(child, top, flags, std::ptr::null_mut()) };
    assert!(pid > 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the child is ours; its status is not wanted.
    let waited = unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    assert_eq!(waited, pid);
}

fn crash() {
    let nowhere = std::ptr::without_provenance_mut::<u8>(1);
    // SAFETY: not safe: that it ends this process with SIGSEGV is what it is for.
    unsafe { nowhere.write_volatile(0) }
}

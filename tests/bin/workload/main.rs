//! Workload of the tests.
//!
//! | command | workload |
//! |---|---|
//! | `workload THREADS` | executes commands from stdin with this many threads ([`Executor`]) |
//! | `workload files OPERATION DIRECTORY CALLS` | file operations (`files/mod.rs`) |
//! | `workload aio DISK MILLISECONDS` | asynchronous reads of a disk (`files/aio.rs`) |
//! | `workload cmdline BYTES` | a command line of any length (`cmdline.rs`) |
//! | `workload title` | a title instead of arguments (`title.rs`) |
//! | `workload fuse DEVICE FILE` | memory that no process can read (`fuse.rs`) |
//! | `workload file-systems DIRECTORY SILENT COMMAND…` | file systems while a command runs (`file_systems.rs`) |
//! | `workload descriptors COUNT` | this many open files |
//! | `workload forks RATE` | processes started per second (`forks.rs`) |
//! | `workload cpu MS …` | this much CPU time, however busy the machine is |
//! | `workload lock THREADS MILLISECONDS` | threads that hold one lock in turn (`bounds.rs`) |
//! | `workload sweep BYTES MILLISECONDS` | writes to all pages of a memory, again and again |
//! | `workload blocks DISK BATCHES` | 32 asynchronous reads of a disk at a time, this many times |
//! | `workload fsync DIRECTORY MILLISECONDS` | writes of one block, each followed by fsync |
//! | `workload spin ROUNDS` | a known number of instructions (`spin.rs`) |

mod bounds;
mod cmdline;
mod file_systems;
mod files;
mod forks;
mod fuse;
mod spin;
mod title;

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

use rustix::{
    thread::{CpuSet, sched_setaffinity},
    time::{ClockId, clock_gettime},
};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["files", operation, directory, calls] => files::main(operation, directory, calls),
        ["aio", disk, milliseconds] => {
            files::aio::read_randomly(disk, milliseconds.parse().expect("a number"));
        }
        ["blocks", disk, batches] => {
            files::aio::read_every_other(disk, batches.parse().expect("a number"));
        }
        ["spin", rounds] => {
            spin::spin(rounds.parse().expect("a number"));
        }
        ["cpu", milliseconds, ..] => use_cpu(milliseconds.parse().expect("a number")),
        ["lock", threads, milliseconds] => bounds::fight(
            threads.parse().expect("a number"),
            milliseconds.parse().expect("a number"),
        ),
        ["sweep", bytes, milliseconds] => bounds::sweep(
            bytes.parse().expect("a number"),
            milliseconds.parse().expect("a number"),
        ),
        ["fsync", directory, milliseconds] => {
            bounds::fsync(directory.as_ref(), milliseconds.parse().expect("a number"));
        }
        ["cmdline", bytes] => cmdline::main(bytes.parse().expect("a number")),
        ["title"] => title::main(),
        ["fuse", device, file] => fuse::main(device.as_ref(), file.as_ref()),
        ["file-systems", directory, silent, ref command @ ..] => {
            let silent = silent.parse().expect("a number");
            return file_systems::main(directory.as_ref(), silent, command);
        }
        ["descriptors", count] => hold_descriptors(count.parse().expect("a number")),
        ["forks", per_second] => forks::main(per_second.parse().expect("a number")),
        // Tests of command lines pass arguments without a meaning.
        _ => {
            let threads = words.first().and_then(|word| word.parse().ok());
            return execute_commands(threads.unwrap_or(0));
        }
    }
    ExitCode::SUCCESS
}

/// Opens files and waits for the end of stdin.
fn hold_descriptors(count: usize) {
    let open = || File::open("/dev/null").expect("/dev/null");
    let _files: Vec<File> = (0..count).map(|_| open()).collect();
    acknowledge();
    let _ = std::io::stdin().read(&mut [0]);
}

fn use_cpu(milliseconds: u64) {
    let time = Duration::from_millis(milliseconds);
    let used = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).expect("positive");
    while used() < time {
        spin::spin(10_000);
    }
}

fn execute_commands(threads: usize) -> ExitCode {
    let mut executor = Executor::new(threads);
    acknowledge();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("text");
        let (verb, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let number: usize = number.parse().expect("a number");
        match verb {
            "exit" => return ExitCode::from(u8::try_from(number).expect("a code")),
            "crash" => crash(),
            _ => executor.execute(verb, number),
        }
        acknowledge();
    }
    ExitCode::SUCCESS
}

fn acknowledge() {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(b"done\n").expect("stdout is open");
    stdout.flush().expect("stdout is open");
}

/// Executes commands of the form `VERB NUMBER`.
struct Executor {
    workers: Vec<Sender<Job>>,
    memory: Vec<Vec<u8>>,
    files: Vec<File>,
}

type Job = Box<dyn FnOnce() + Send>;

impl Executor {
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

    fn execute(&mut self, verb: &str, number: usize) {
        match verb {
            // Burn CPU time in all workers for this many ms.
            "burn" => self.on_all(move || burn(Duration::from_millis(number as u64))),
            // Execute rounds of two instructions: in the main thread, in each worker, in a new
            // thread, in a child.
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
                assert!(status.expect("this program starts").success());
            }
            // Sleep for 1 ms, this many times.
            "nap" => (0..number).for_each(|_| sleep(Duration::from_millis(1))),
            // Pin the thread to its CPU; move it to another CPU this many times.
            "pin" => pin_to(current_cpu()),
            "migrate" => migrate(number),
            // Wait uninterruptibly for a child that sleeps for 20 ms, this many times.
            "vfork" => (0..number).for_each(|_| wait_for_vfork()),
            // Make this many bytes resident; free them.
            "touch" => self.memory.push(vec![1; number]),
            "free" => self.memory.clear(),
            "open" => {
                let open = || File::open("/dev/null").expect("/dev/null");
                self.files.extend((0..number).map(|_| open()));
            }
            "udp" => exchange_datagrams(number),
            "threads" => (0..number).for_each(|_| {
                let thread = spawn(|| burn(Duration::from_millis(30)));
                thread.join().expect("burns");
            }),
            _ => call(verb, number),
        }
    }

    fn on_all(&self, job: impl Fn() + Send + Sync + 'static) {
        let job = Arc::new(job);
        let (sender, finished) = channel();
        for worker in &self.workers {
            let (job, sender) = (Arc::clone(&job), sender.clone());
            let job = move || {
                job();
                sender.send(()).expect("the receiver waits");
            };
            worker.send(Box::new(job)).expect("the thread lives");
        }
        for _ in &self.workers {
            finished.recv().expect("the thread lives");
        }
    }
}

/// Makes one system call `number` times.
fn call(verb: &str, number: usize) {
    match verb {
        "read" => {
            let mut zero = File::open("/dev/zero").expect("/dev/zero");
            let mut page = [0; 4096];
            (0..number).for_each(|_| zero.read_exact(&mut page).expect("read"));
        }
        "write" => {
            let mut null = File::create("/dev/null").expect("/dev/null");
            (0..number).for_each(|_| null.write_all(&[0; 4096]).expect("written"));
        }
        "getppid" => (0..number).for_each(|_| {
            let _ = std::os::unix::process::parent_id();
        }),
        // Failed opens.
        "miss" => (0..number).for_each(|_| {
            File::open("/no/such/file").expect_err("the file does not exist");
        }),
        _ => panic!("unknown command {verb}"),
    }
}

/// Sends datagrams of 100 bytes to the same socket.
fn exchange_datagrams(number: usize) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("an address");
    let address = socket.local_addr().expect("bound");
    socket.connect(address).expect("connected");
    let mut message = [0; 100];
    for _ in 0..number {
        socket.send(&message).expect("sent");
        socket.recv(&mut message).expect("received");
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

fn pin_to(cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).expect("an online CPU");
}

/// Moves this thread `times` times, between its present CPU and another one.
fn migrate(times: usize) {
    let here = current_cpu();
    let is_online = |cpu: &usize| {
        // The kernel accepts only online CPUs.
        let mut only = CpuSet::new();
        only.set(*cpu);
        *cpu != here && sched_setaffinity(None, &only).is_ok()
    };
    let there = (0..CpuSet::MAX_CPU).find(is_online).expect("a second CPU");
    // The search has moved the thread once.
    for time in 1..times {
        pin_to(if time % 2 == 0 { there } else { here });
    }
}

/// The parent of a vfork waits uninterruptibly (killable) until its child has ended.
fn wait_for_vfork() {
    extern "C" fn child(_: *mut libc::c_void) -> libc::c_int {
        sleep(Duration::from_millis(20));
        0
    }
    let mut stack = vec![0_u8; 64 << 10];
    let top = stack.as_mut_ptr_range().end.cast();
    let flags = libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: without CLONE_VM the child has a copy of the stack; it only sleeps and returns.
    let pid = unsafe { libc::clone(child, top, flags, std::ptr::null_mut()) };
    assert!(pid > 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the child exists; a null pointer means that its status is not stored.
    let waited = unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    assert_eq!(waited, pid);
}

fn crash() {
    let nowhere = std::ptr::without_provenance_mut::<u8>(1);
    // SAFETY: unsound on purpose: the write ends this process with SIGSEGV.
    unsafe { nowhere.write_volatile(0) }
}

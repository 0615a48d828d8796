//! Regions, from datagrams to rows: processes of several users, with forks, exits, samples and
//! boundaries.
//!
//! Each line of the input is a letter, a digit (a process or a number), and the rest:
//!
//! | line | action |
//! |---|---|
//! | `m1{…}` | process 1 sends the datagram |
//! | `c12{…}` | process 1 sends the datagram as the user of process 2 |
//! | `r9` | repeats the last datagram 2⁹ times |
//! | `w3` | waits for 10³ µs |
//! | `x1`, `n1` | process 1 ends; starts again |
//! | `t`, `b1` | a sample; a boundary of process 1 |

#![no_main]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use arrow::{
    array::{Array as _, AsArray as _},
    compute::cast,
    datatypes::{DataType, TimestampMicrosecondType, UInt32Type, UInt64Type},
};
use fuzz::{panics, processes};
use libfuzzer_sys::fuzz_target;
use profiler::{
    host::Host,
    marks::{Loss, Mark, MarkReceiver, Op},
    perf::Selection,
    privileges,
    schema::Batch,
    sources::{OpenContext, Source, TickContext, region},
    support::{
        clock::{Clock, Tick, monotonic_ns},
        log,
        self_metrics::SelfMetrics,
    },
    tasks::TaskTable,
};
use test_support::Tree;

/// Number of processes, and their users.
const PROCESSES: usize = 6;
const USERS: [u32; PROCESSES] = [0, 1000, 1000, 1001, 1002, 1002];
const FIRST: u32 = 100;

/// Limits of docs/regions.md.
const OPEN_OF_PROCESS: usize = 4096;
const OPEN_OF_USER: usize = 16_384;

/// Maximum number of datagrams per input, more than these limits.
const MAX_DATAGRAMS: u64 = 20_000;

struct Machine {
    tree: Tree,
    host: Host,
}

thread_local! {
    static MACHINE: Machine = machine();
}

fn machine() -> Machine {
    let tree = Tree::of("vm", "fuzz-regions");
    Machine {
        host: tree.host(),
        tree,
    }
}

/// Messages about losses go to a file, so that only crashes are on stderr.
fn begin() {
    // With privileges, each socket would have its own network namespace.
    privileges::keep_none();
    let directory = std::env::temp_dir();
    // SAFETY: this is the only thread.
    unsafe { std::env::set_var("RUNTIME_DIRECTORY", directory.join("run")) };
    let _ = log::open(&directory.join("regions.log"), "fuzz", None);
    panics::install_hook();
}

fuzz_target!(init: begin(), |data: &[u8]| {
    MACHINE.with(|machine| {
        panics::guarded(|| {
            let mut node = Node::new(machine);
            for line in data.split(|byte| *byte == b'\n') {
                node.step(line);
            }
            node.end();
        });
    });
});

/// Pid and start time.
type Process = (u32, i64);

/// A simulated node.
struct Node<'a> {
    machine: &'a Machine,
    receiver: Arc<MarkReceiver>,
    source: Box<dyn Source>,
    tasks: TaskTable,
    clock: Clock,
    now: u64,
    ticks: u64,
    starts: [u64; PROCESSES],
    sent: Sent,
    last: Option<(u32, u32, Vec<u8>)>,
    rows: Rows,
}

/// The datagrams of this input.
#[derive(Default)]
struct Sent {
    all: u64,
    /// Valid marks by operation.
    marks: HashMap<&'static str, u64>,
    /// Processes that may have rows.
    of: BTreeSet<u32>,
    users: BTreeSet<u32>,
}

/// The stored rows.
#[derive(Default)]
struct Rows {
    open: BTreeMap<u64, Process>,
    /// Regions that started, and those that ended.
    started: u64,
    ended: u64,
    unmatched: u64,
    momentary: u64,
    gauges: u64,
    usage: BTreeSet<u64>,
}

impl<'a> Node<'a> {
    fn new(machine: &'a Machine) -> Self {
        let receiver = Arc::new(MarkReceiver::open("fuzz", true).unwrap());
        let context = OpenContext {
            host: &machine.host,
            interval: Duration::from_secs(1),
            for_user: false,
            threads: false,
            result: None,
            node: true,
            joins_without_fork: false,
            perf: &Selection::default(),
            marks: Ok(&receiver),
        };
        let source = (region::SPEC.open)(&context).unwrap();
        let clock = Clock::new();
        for (place, uid) in USERS.into_iter().enumerate() {
            processes::put(&machine.tree, FIRST + place as u32, uid, 100);
        }
        let mut node = Self {
            tasks: processes::table(&machine.host, clock),
            machine,
            receiver,
            source,
            clock,
            now: monotonic_ns(),
            ticks: 0,
            starts: [0; PROCESSES],
            sent: Sent::default(),
            last: None,
            rows: Rows::default(),
        };
        node.read(None, false);
        node
    }

    fn step(&mut self, line: &[u8]) {
        let digit = |place: usize| {
            let digit = line.get(place).copied().unwrap_or(b'0');
            usize::from(digit.wrapping_sub(b'0'))
        };
        let process = digit(1) % PROCESSES;
        let pid = FIRST + process as u32;
        let rest = |from: usize| line.get(from..).unwrap_or_default();
        match line.first() {
            Some(b'm') => self.send(pid, USERS[process], rest(2)),
            Some(b'c') => self.send(pid, USERS[digit(2) % PROCESSES], rest(3)),
            Some(b'r') => {
                let Some((pid, uid, datagram)) = self.last.clone() else {
                    return;
                };
                let times = 1_u64 << (digit(1) % 14);
                for _ in 0..times.min(MAX_DATAGRAMS.saturating_sub(self.sent.all)) {
                    self.send(pid, uid, &datagram);
                }
            }
            Some(b'w') => self.now += 1000 * 10_u64.pow((digit(1) % 9) as u32),
            Some(b'x') => processes::remove(&self.machine.tree, pid),
            Some(b'n') => {
                self.starts[process] += 1;
                let start = 100 + self.starts[process];
                processes::put(&self.machine.tree, pid, USERS[process], start);
            }
            Some(b't') => self.read(None, false),
            Some(b'b') => self.read(Some(pid), false),
            _ => {}
        }
    }

    fn send(&mut self, pid: u32, uid: u32, datagram: &[u8]) {
        self.now += 1;
        self.sent.all += 1;
        self.sent.users.insert(uid);
        if let Ok(mark) = Mark::parse(datagram) {
            self.sent.of.extend(meant(&mark, pid, uid));
            *self.sent.marks.entry(name(mark.op)).or_default() += 1;
        }
        self.receiver.deliver(datagram, (pid, uid), self.now);
        self.last = Some((pid, uid, datagram.to_vec()));
    }

    fn read(&mut self, boundary: Option<u32>, last: bool) {
        self.now += 1;
        let tick = Tick {
            number: self.ticks,
            monotonic_ns: self.now,
            ts: self.clock.wall(self.now),
        };
        self.ticks += 1;
        self.tasks.refresh(&tick, last).unwrap();
        let boundary = boundary.map(|pid| [pid].into_iter().collect());
        self.tasks.deliver(boundary.as_ref());
        let sample = TickContext {
            tick,
            tasks: &self.tasks,
            self_metrics: &SelfMetrics::default(),
            completed: &[],
            last,
            boundary: boundary.as_ref(),
        };
        let mut out = Vec::new();
        self.source.sample(&sample, &mut out).unwrap();
        for batch in &out {
            self.take(batch);
        }
        self.check_open();
    }

    fn take(&mut self, batch: &Batch) {
        let column = |name: &str| batch.rows.column_by_name(name).unwrap();
        let pids = column("pid").as_primitive::<UInt32Type>();
        for pid in pids.values() {
            assert!(self.sent.of.contains(pid), "{pid} has sent nothing");
        }
        let rows = &mut self.rows;
        match batch.table.name {
            "region" => {}
            "region_usage" => {
                for region in column("region_id").as_primitive::<UInt64Type>().values() {
                    assert!(rows.usage.insert(*region), "usage of {region}, twice");
                }
                return;
            }
            "region_gauge" => {
                rows.gauges += batch.rows.num_rows() as u64;
                return;
            }
            other => panic!("rows of {other}"),
        }
        let numbers = column("region_id").as_primitive::<UInt64Type>();
        let starts = column("start_ts").as_primitive::<TimestampMicrosecondType>();
        let ops = cast(column("op"), &DataType::Utf8).unwrap();
        let (begins, ends) = (column("region_start_ts"), column("region_end_ts"));
        for row in 0..batch.rows.num_rows() {
            let number = numbers.value(row);
            if ops.as_string::<i32>().value(row) != "region" {
                rows.momentary += 1;
                continue;
            }
            match (begins.is_valid(row), ends.is_valid(row)) {
                (true, false) => {
                    let who = (pids.value(row), starts.value(row));
                    assert!(rows.open.insert(number, who).is_none());
                    rows.started += 1;
                }
                (true, true) => {
                    assert!(rows.open.remove(&number).is_some(), "{number} is not open");
                    rows.ended += 1;
                }
                (false, true) => rows.unmatched += 1,
                (false, false) => panic!("{number} has neither start nor end"),
            }
        }
    }

    /// Asserts the limits of open regions.
    fn check_open(&self) {
        let open = &self.rows.open;
        let mut processes: HashMap<Process, usize> = HashMap::new();
        for who in open.values() {
            *processes.entry(*who).or_default() += 1;
        }
        assert!(processes.values().all(|open| *open <= OPEN_OF_PROCESS));
        assert!(open.len() <= OPEN_OF_USER * self.sent.users.len());
    }

    /// Asserts that each datagram is in a row or counted as lost.
    fn end(mut self) {
        self.now += 1;
        self.read(None, true);
        let rows = &self.rows;
        assert!(rows.open.is_empty(), "{:?} are still open", rows.open);
        assert_eq!(rows.started, rows.ended);
        assert_eq!(rows.usage.len() as u64, rows.ended);
        let losses = self.receiver.losses();
        let totals: BTreeMap<Loss, u64> = losses.totals().collect();
        assert_eq!(totals[&Loss::Unmatched], rows.unmatched);
        let lost = totals.iter().filter(|(loss, _)| loss.is_lost());
        let lost: u64 = lost.map(|(_, count)| count).sum();
        let by_user: u64 = losses.of_users().map(|(.., count)| count).sum();
        assert_eq!(by_user, lost);
        let sent = |op| self.sent.marks.get(name(op)).copied().unwrap_or(0);
        assert!(rows.started <= sent(Op::Start));
        assert!(rows.gauges <= sent(Op::Gauge));
        assert!(rows.momentary <= sent(Op::Event));
        let stored = rows.started + rows.gauges + rows.momentary;
        // The rest are ends, of regions that were open or not; other regions ended with their
        // process.
        let ends = self.sent.all.checked_sub(lost + stored);
        let ends = ends.expect("no mark is stored and lost");
        assert!(ends <= sent(Op::End));
        assert!((rows.unmatched..=rows.unmatched + rows.ended).contains(&ends));
    }
}

/// The process of a mark, if its sender is permitted.
fn meant(mark: &Mark, pid: u32, uid: u32) -> Option<u32> {
    let claimed = mark.pid.filter(|claimed| *claimed != pid);
    let Some(claimed) = claimed else {
        return Some(pid);
    };
    let place = claimed.checked_sub(FIRST)? as usize;
    (uid == 0 || USERS.get(place) == Some(&uid)).then_some(claimed)
}

fn name(op: Op) -> &'static str {
    match op {
        Op::Start => "start",
        Op::End => "end",
        Op::Event | Op::Phase => "momentary",
        Op::Gauge => "gauge",
    }
}

//! CPU time and memory of the profiler.

use std::{
    fs,
    io::{self, Write as _},
    net::{Ipv4Addr, TcpStream},
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{
    peers::monitors,
    sleepers::Sleepers,
    tracer::{Profiler, Tracer},
};
use crate::shell::{self, progress};

/// A load, and the goals for the profiler under this load.
pub struct Scenario {
    name: &'static str,
    processes: u32,
    hertz: u32,
    node: bool,
    cpu_goal_percent: f64,
    /// In the first seconds, with the start.
    first_goal_percent: Option<f64>,
    /// Of the packaged program, whose file is smaller than that of other builds.
    rss_goal_bytes: Option<u64>,
    /// Without pages of files.
    own_goal_bytes: u64,
}

pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "100 processes",
        processes: 100,
        hertz: 10,
        node: false,
        cpu_goal_percent: 0.5,
        first_goal_percent: None,
        rss_goal_bytes: Some(40_000_000),
        own_goal_bytes: 16_000_000,
    },
    Scenario {
        name: "5000 processes",
        processes: 5000,
        hertz: 0,
        node: true,
        cpu_goal_percent: 0.5,
        first_goal_percent: Some(5.0),
        rss_goal_bytes: Some(60_000_000),
        own_goal_bytes: 36_000_000,
    },
    Scenario {
        name: "10000 processes",
        processes: 10_000,
        hertz: 0,
        node: true,
        // 10 ms for each sample.
        cpu_goal_percent: 1.0,
        first_goal_percent: None,
        rss_goal_bytes: None,
        own_goal_bytes: 56_000_000,
    },
];

const START_GOAL: Duration = Duration::from_millis(200);
/// Seconds from the start that count on their own.
const FIRST: Duration = Duration::from_secs(10);

/// Cost of the profiler, or of another tool.
pub struct Cost {
    scenario: &'static Scenario,
    tool: &'static str,
    /// CPU time in the first seconds, % of a core.
    first_percent: f64,
    /// CPU time after them, % of a core.
    cpu_percent: f64,
    peak_rss_bytes: u64,
    /// Resident memory at the end without pages of files.
    own_bytes: u64,
    /// Time until it was attached; none for other tools.
    start: Option<Duration>,
}

impl Cost {
    /// Measures the profiler and, with all processes of the node, the other tools.
    pub fn measure(
        scenario: &'static Scenario,
        duration: Duration,
        profiler: &Profiler,
        with_peers: bool,
    ) -> Result<Vec<Self>> {
        let sleepers = Sleepers::start(scenario.processes, scenario.hertz)?;
        let (tool, attached) = if scenario.node {
            ("profiler --node", profiler.follow_all()?)
        } else {
            ("profiler --pid", profiler.follow(sleepers.pid())?)
        };
        let mut costs = vec![Self::take(scenario, tool, duration, attached)?];
        if scenario.node && with_peers {
            for monitor in monitors() {
                let attached = monitor.start()?;
                let client = monitor.port.map(Client::start);
                costs.push(Self::take(scenario, monitor.name, duration, attached)?);
                drop(client);
            }
        }
        Ok(costs)
    }

    fn take(
        scenario: &'static Scenario,
        tool: &'static str,
        duration: Duration,
        attached: Tracer,
    ) -> Result<Self> {
        progress(&format!(
            "{}, {tool}: {} s",
            scenario.name,
            (FIRST + duration).as_secs()
        ));
        let pid = attached.pid();
        thread::sleep(FIRST);
        let (started, first) = (Instant::now(), cpu_seconds(pid)?);
        thread::sleep(duration);
        let (seconds, after) = (started.elapsed().as_secs_f64(), cpu_seconds(pid)?);
        let [peak_rss_bytes, own_bytes] = memory(pid, ["VmHWM:", "RssAnon:"])?;
        let start = Some(attached.start).filter(|start| !start.is_zero());
        attached.stop()?;
        Ok(Self {
            scenario,
            tool,
            first_percent: 100.0 * first / FIRST.as_secs_f64(),
            cpu_percent: 100.0 * (after - first) / seconds,
            peak_rss_bytes,
            own_bytes,
            start,
        })
    }

    fn is_ours(&self) -> bool {
        self.start.is_some()
    }

    /// Quantities with a goal: name, value, goal.
    fn goals(&self) -> Vec<(&'static str, f64, f64)> {
        if !self.is_ours() {
            return Vec::new();
        }
        let scenario = self.scenario;
        let start = self.start.map(|start| start.as_secs_f64() * 1e3);
        let rss = self.peak_rss_bytes as f64;
        let goals = [
            (
                "% of a core",
                Some(self.cpu_percent),
                Some(scenario.cpu_goal_percent),
            ),
            (
                "% of a core at first",
                Some(self.first_percent),
                scenario.first_goal_percent,
            ),
            (
                "MB",
                Some(rss / 1e6),
                scenario.rss_goal_bytes.map(|goal| goal as f64 / 1e6),
            ),
            (
                "ms until attached",
                start,
                Some(START_GOAL.as_secs_f64() * 1e3),
            ),
        ];
        goals
            .into_iter()
            .filter_map(|(name, value, goal)| Some((name, value?, goal?)))
            .collect()
    }

    /// CPU time after the first seconds and memory of its own, each with its goal and whether that is missed.
    pub fn guarded(&self) -> [(String, bool); 2] {
        let Scenario {
            name,
            cpu_goal_percent: cpu_goal,
            own_goal_bytes: own_goal,
            ..
        } = self.scenario;
        let (cpu, own) = (self.cpu_percent, self.own_bytes);
        let [own_mb, own_goal_mb] = [own, *own_goal].map(|bytes| bytes as f64 / 1e6);
        [
            (
                format!("{name}: {cpu:.2} % of a core, goal {cpu_goal:.1}"),
                cpu > *cpu_goal,
            ),
            (
                format!("{name}: {own_mb:.1} MB without pages of files, goal {own_goal_mb:.1}"),
                own > *own_goal,
            ),
        ]
    }

    /// The goals that are missed.
    pub fn missed(&self) -> impl Iterator<Item = String> {
        let missed = self
            .goals()
            .into_iter()
            .filter(|(_, value, goal)| value > goal);
        missed.map(|(name, value, goal)| {
            format!("{}: {value:.1} {name}, goal {goal:.1}", self.scenario.name)
        })
    }

    pub fn print(&self) {
        println!(
            "{}, {}: {:.2} % of a core in the first {} s, then {:.2} %; {:.1} MB{}",
            self.scenario.name,
            self.tool,
            self.first_percent,
            FIRST.as_secs(),
            self.cpu_percent,
            self.peak_rss_bytes as f64 / 1e6,
            self.start.map_or_else(String::new, |start| format!(
                "; {} ms until attached",
                start.as_millis()
            )),
        );
        for missed in self.missed() {
            println!("  MISSED  {missed}");
        }
    }

    pub fn json(&self) -> Value {
        let goal = |goal: Option<f64>| goal.filter(|_| self.is_ours());
        json!({
            "name": self.scenario.name,
            "tool": self.tool,
            "processes": self.scenario.processes,
            "first_percent": self.first_percent,
            "first_percent_goal": goal(self.scenario.first_goal_percent),
            "cpu_percent": self.cpu_percent,
            "cpu_percent_goal": goal(Some(self.scenario.cpu_goal_percent)),
            "own_bytes": self.own_bytes,
            "own_bytes_goal": goal(Some(self.scenario.own_goal_bytes as f64)),
            "peak_rss_bytes": self.peak_rss_bytes,
            "peak_rss_bytes_goal": goal(self.scenario.rss_goal_bytes.map(|goal| goal as f64)),
            "start_ms": self.start.map(|start| start.as_secs_f64() * 1e3),
            "start_ms_goal": goal(Some(START_GOAL.as_secs_f64() * 1e3)),
        })
    }
}

/// Asks a tool for its values once per second, until it is dropped.
struct Client {
    stop: mpsc::Sender<()>,
}

impl Client {
    fn start(port: u16) -> Self {
        const REQUEST: &[u8] = b"GET /metrics HTTP/1.0\r\n\r\n";
        let (stop, stopped) = mpsc::channel();
        thread::spawn(move || {
            let is_stopped = || stopped.recv_timeout(Duration::from_secs(1));
            while is_stopped() == Err(mpsc::RecvTimeoutError::Timeout) {
                if let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                    let _ = stream.write_all(REQUEST);
                    let _ = io::copy(&mut stream, &mut io::sink());
                }
            }
        });
        Self { stop }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.stop.send(());
    }
}

/// CPU time of a process and of its children.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let hertz: f64 = shell::stdout(Command::new("getconf").arg("CLK_TCK"))?
        .trim()
        .parse()?;
    let mut seconds = seconds_of(pid, hertz)?;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let children = fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
        let children = children
            .split_whitespace()
            .filter_map(|child| child.parse().ok());
        // One that has just ended has been counted, or will be.
        seconds += children
            .filter_map(|child| seconds_of(child, hertz).ok())
            .sum::<f64>();
    }
    Ok(seconds)
}

/// CPU time of a process with that of its ended children: the maximum of the sum over its present threads in
/// ns, and of the coarse value in clock ticks, which includes ended threads.
fn seconds_of(pid: u32, hertz: f64) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let [own, children] = cpu_ticks(&stat).with_context(|| format!("the times in {path}"))?;
    let threads = fs::read_dir(format!("/proc/{pid}/task"))?;
    let nanoseconds: u64 = threads
        .filter_map(|thread| {
            let schedstat = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            schedstat.split(' ').next()?.parse::<u64>().ok()
        })
        .sum();
    Ok((own as f64 / hertz).max(nanoseconds as f64 / 1e9) + children as f64 / hertz)
}

/// Fields 14 and 15, 16 and 17. The name before them can contain blanks and parentheses.
fn cpu_ticks(stat: &str) -> Option<[u64; 2]> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).map(str::parse::<u64>);
    let mut sum = || Some(times.next()?.ok()? + times.next()?.ok()?);
    Some([sum()?, sum()?])
}

/// Fields of `/proc/PID/status`, bytes.
fn memory(pid: u32, fields: [&str; 2]) -> Result<[u64; 2]> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let kib = |field| {
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let [first, second] = fields.map(kib);
    let both = first.zip(second);
    let (first, second) = both.with_context(|| format!("{path} without {}", fields.join(" ")))?;
    Ok([first * 1024, second * 1024])
}

#[cfg(test)]
mod tests {
    use super::cpu_ticks;

    #[test]
    fn times_of_a_process_with_an_odd_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 9 8 7 6 120 30 5 4 20 0 1 0 99";
        assert_eq!(cpu_ticks(stat), Some([150, 9]));
    }
}

//! The workloads that run with and without the profiler. Each has a fixed amount of work and
//! measures its own duration, which excludes its start and end.

use std::{env, path::Path};

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use super::tools::{FIO, IPERF3, PERF, Tool};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// Two processes that wake each other up through a pipe
    Pipe,
    /// The same on one CPU, which excludes the effect of their placement
    PipeOneCpu,
    /// Groups of processes that exchange messages
    Messaging,
    /// TCP ping-pong of 64 bytes over loopback
    Tcp,
    /// The same on one CPU
    TcpOneCpu,
    /// UDP ping-pong of 64 bytes over loopback, on one CPU
    Udp,
    /// Ping-pong of 64 bytes over a unix socket, on one CPU
    Unix,
    /// One TCP connection over loopback at the maximum rate
    Iperf3,
    /// Random reads and writes of 4 KiB in the page cache
    FioBuffered,
    /// Random direct reads of 4 KiB, one at a time
    FioDirect,
    /// An empty system call
    Syscall,
    /// Processes that start and end
    Processes,
    /// TCP connections that are opened, used once and closed
    Connections,
}

pub struct Workload {
    pub name: Name,
    pub title: &'static str,
    pub command: String,
    /// Maximum ratio; none for workloads that only call BPF programs.
    pub goal: Option<f64>,
    /// Whether it calls BPF programs that previous workloads do not call.
    pub calls_programs: bool,
    /// A source to be enabled that is disabled by default.
    pub source: Option<&'static str>,
    pub tool: Option<&'static Tool>,
}

/// Settings of the workloads.
pub struct Place<'a> {
    /// Directory for files.
    pub scratch: &'a Path,
    /// 100 means one or two seconds on a small machine.
    pub size_percent: u32,
}

impl Workload {
    /// The workloads with these names; all without names.
    pub fn chosen(names: &[Name], place: &Place) -> Result<Vec<Self>> {
        Name::value_variants()
            .iter()
            .filter(|name| names.is_empty() || names.contains(name))
            .map(|name| Self::new(*name, place))
            .collect()
    }

    fn new(name: Name, place: &Place) -> Result<Self> {
        let times = |count: u32| (u64::from(count) * u64::from(place.size_percent) / 100).max(1);
        let this = |title, command, goal| Self {
            name,
            title,
            command,
            goal,
            calls_programs: false,
            source: None,
            tool: None,
        };
        let perf = |title, arguments: String, goal| {
            this(title, format!("perf bench -f simple {arguments}"), goal).with_tool(&PERF)
        };
        let own = |title, arguments: String, goal| -> Result<Self> {
            Ok(this(title, format!("{} {arguments}", load()?), goal))
        };
        Ok(match name {
            Name::Pipe | Name::PipeOneCpu => {
                let pipe = format!("sched pipe -l {}", times(300_000));
                let all = perf("perf bench sched pipe", pipe, Some(1.07));
                if name == Name::Pipe {
                    all.calling_programs()
                } else {
                    all.on_one_cpu("sched pipe on one CPU")
                }
            }
            Name::Messaging => {
                let messages = format!("sched messaging -l {}", times(300));
                perf("perf bench sched messaging", messages, Some(1.04))
            }
            Name::Tcp | Name::TcpOneCpu => {
                let messages = format!("tcp --messages {}", times(120_000));
                let all = own("TCP ping-pong, loopback", messages, Some(1.06))?;
                if name == Name::Tcp {
                    all.calling_programs()
                } else {
                    Self {
                        goal: Some(1.12),
                        ..all.on_one_cpu("TCP ping-pong on one CPU")
                    }
                }
            }
            Name::Udp | Name::Unix => {
                let (title, socket) = if name == Name::Udp {
                    ("UDP ping-pong on one CPU", "udp")
                } else {
                    ("unix socket ping-pong on one CPU", "unix")
                };
                let messages = format!("ping-pong {socket} --messages {}", times(120_000));
                let all = own(title, messages, Some(1.12))?.on_one_cpu(title);
                all.calling_programs()
            }
            Name::Iperf3 => {
                let transfer = format!("iperf3 --mib {}", times(6_000));
                own("iperf3, loopback", transfer, Some(1.03))?.with_tool(&IPERF3)
            }
            // A small existing file, so that neither its growth nor writeback is included.
            Name::FioBuffered => {
                let job = format!("--rw=randrw --invalidate=0 --io_size={}M", times(4_000));
                own("fio 4 KiB, buffered", fio(place, "64M", &job), Some(1.05))?
                    .with_tool(&FIO)
                    .calling_programs()
            }
            // Reads, because disks continue to work after a write.
            Name::FioDirect => {
                let job = format!("--rw=randread --direct=1 --io_size={}M", times(128));
                own("fio 4 KiB, O_DIRECT", fio(place, "256M", &job), Some(1.02))?
                    .with_tool(&FIO)
                    .calling_programs()
            }
            Name::Syscall => {
                let calls = format!("syscall basic -l {}", times(10_000_000));
                Self {
                    source: Some("syscalls"),
                    ..perf("null syscall", calls, Some(1.02)).calling_programs()
                }
            }
            Name::Processes => {
                let processes = format!("processes --count {}", times(1_500));
                own("processes", processes, Some(1.05))?.calling_programs()
            }
            Name::Connections => {
                let connections = format!("tcp --connections {}", times(20_000));
                own("TCP connections", connections, Some(1.05))?.calling_programs()
            }
        })
    }

    fn with_tool(self, tool: &'static Tool) -> Self {
        Self {
            tool: Some(tool),
            ..self
        }
    }

    fn calling_programs(self) -> Self {
        Self {
            calls_programs: true,
            ..self
        }
    }

    fn on_one_cpu(self, title: &'static str) -> Self {
        Self {
            title,
            command: format!("taskset -c 0 {}", self.command),
            ..self
        }
    }
}

/// The command of this program's own loads.
fn load() -> Result<String> {
    let this = env::current_exe().context("looking for the program that runs")?;
    Ok(format!("{} load", quoted(&this)))
}

/// Arguments of the load that runs fio with a job.
fn fio(place: &Place, size: &str, job: &str) -> String {
    let file = quoted(&place.scratch.join(format!("fio-{size}")));
    format!("fio -- --name=job --filename={file} --size={size} --bs=4k --ioengine=psync {job}")
}

/// Quotes a path for the shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

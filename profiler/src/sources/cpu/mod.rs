//! Each CPU: times per state from `/proc/stat`, frequency from sysfs.

pub(super) mod frequency;

use anyhow::{Context as _, Result};

use self::frequency::{Frequencies, has_cpufreq};
use super::{Context, Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::Host,
    procfs::{
        file::KernelFile,
        stat::{ProcStat, StateTimes, at_most_ns, tick_ns},
    },
    schema::{Batch, Table, TableBuilder, TickKey},
    support::clock::monotonic_ns,
};

columns! {
    /// One CPU over one interval.
    pub struct CpuRow {
        cpu: u32 = Label("", "Number of the CPU (hardware thread), as the kernel counts them"),
        user_ns: Option<u64> = Counter("ns", "Time in user space, without guests (`/proc/stat`, in steps of 10 ms)"),
        nice_ns: Option<u64> = Counter("ns", "Time in user space at a nice value above 0, without guests (`/proc/stat`)"),
        system_ns: Option<u64> = Counter("ns", "Time in the kernel, without interrupts (`/proc/stat`)"),
        idle_ns: Option<u64> = Counter("ns", "Idle time with no I/O outstanding (`/proc/stat`)"),
        iowait_ns: Option<u64> = Counter("ns", "Idle time while a task of this CPU waited for I/O; an estimate that the kernel may take back (`/proc/stat`)"),
        irq_ns: Option<u64> = Counter("ns", "Time in interrupts (`/proc/stat`)"),
        softirq_ns: Option<u64> = Counter("ns", "Time in soft interrupts (`/proc/stat`)"),
        steal_ns: Option<u64> = Counter("ns", "Time that the hypervisor gave to others while this CPU was ready to run (`/proc/stat`)"),
        guest_ns: Option<u64> = Counter("ns", "Time running guests; not part of `user_ns`, where the kernel counts it too (`/proc/stat`)"),
        guest_nice_ns: Option<u64> = Counter("ns", "Time running guests at a nice value above 0; not part of `nice_ns` (`/proc/stat`)"),
        frequency: Option<u64> = Gauge("Hz", "Current frequency; null without a cpufreq driver (usual in virtual machines), or when reading all took too long (sysfs `cpufreq/scaling_cur_freq`)"),
    }
}

static TABLE: Table = Table::new::<TickKey, CpuRow>(
    "cpu",
    "Each online CPU: one row per tick and CPU; a CPU that comes online has its first row a tick later",
);

/// The entry of the registry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "cpu",
    help: "times per state and frequency of each CPU",
    tables: &[&TABLE],
    probe,
    tasks: false,
    procfs: false,
    instrumentation: None,
    default: true,
    open: |context: &Context<'_>| Ok(Box::new(AllCpus::open(context.host))),
};

fn probe(host: &Host) -> Support {
    if let Err(error) = std::fs::read(host.procfs.join("stat")) {
        return Support::No {
            why: format!("{}: {error}", host.procfs.join("stat").display()),
            remedy: "mount procfs: mount -t proc proc /proc".to_owned(),
        };
    }
    if has_cpufreq(&host.sysfs) {
        return Support::Works;
    }
    Support::Partly {
        why: "no cpufreq driver: frequency is null".to_owned(),
        remedy: "load the cpufreq driver of this CPU; a virtual machine has none".to_owned(),
    }
}

/// What is kept of an online CPU.
#[derive(Clone, Default)]
struct Cpu {
    times: StateTimes,
    /// The last reading it was in.
    seen: u64,
}

struct AllCpus {
    stat: KernelFile,
    parsed: ProcStat,
    frequencies: Frequencies,
    tick_ns: u64,
    reading: u64,
    previous_ns: Option<u64>,
    cpus: Vec<Cpu>,
    rows: TableBuilder<TickKey, CpuRow>,
}

impl AllCpus {
    fn open(host: &Host) -> Self {
        Self {
            stat: KernelFile::new(host.procfs.join("stat")),
            parsed: ProcStat::default(),
            frequencies: Frequencies::new(&host.sysfs),
            tick_ns: tick_ns(),
            reading: 0,
            previous_ns: None,
            cpus: Vec::new(),
            rows: TableBuilder::new(&TABLE),
        }
    }
}

impl Source for AllCpus {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        // A CPU that was not in the previous reading, or none was, has a baseline to set first.
        self.reading += 1;
        let now = monotonic_ns();
        let previous = self.previous_ns.replace(now);
        let interval_ns = previous.map_or(0, |previous| now.saturating_sub(previous));
        let text = self
            .stat
            .read()
            .inspect_err(|_| self.previous_ns = None)
            .context("stat")?;
        self.parsed.parse(text);
        if self.parsed.cpus.is_empty() {
            self.previous_ns = None;
            anyhow::bail!("{}: no CPU in it", self.stat.path().display());
        }
        let online = self.parsed.cpus.iter().map(|(number, _)| *number);
        self.frequencies.sample(online);
        let at_most = at_most_ns(interval_ns, 1);
        for (number, times) in &self.parsed.cpus {
            if *number >= self.cpus.len() {
                self.cpus.resize(number + 1, Cpu::default());
            }
            let cpu = &mut self.cpus[*number];
            let baseline = previous.is_none() || cpu.seen + 1 != self.reading;
            if baseline {
                cpu.times = StateTimes::default();
            }
            cpu.seen = self.reading;
            let increase = cpu.times.increase(times, at_most, self.tick_ns);
            let Ok(cpu) = u32::try_from(*number) else {
                continue;
            };
            if baseline {
                continue;
            }
            let [
                user,
                nice,
                system,
                idle,
                iowait,
                irq,
                softirq,
                steal,
                guest,
                guest_nice,
            ] = increase;
            self.rows.push(
                TickKey {
                    ts: at.tick.ts,
                    interval_ns,
                },
                CpuRow {
                    cpu,
                    user_ns: user,
                    nice_ns: nice,
                    system_ns: system,
                    idle_ns: idle,
                    iowait_ns: iowait,
                    irq_ns: irq,
                    softirq_ns: softirq,
                    steal_ns: steal,
                    guest_ns: guest,
                    guest_nice_ns: guest_nice,
                    frequency: self.frequencies.of(*number),
                },
            );
        }
        self.rows.finish(out);
        Ok(())
    }
}

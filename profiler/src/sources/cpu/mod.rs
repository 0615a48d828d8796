//! `cpu`: times per state of each CPU from `/proc/stat`, and its frequency from sysfs.

pub(super) mod frequency;

use anyhow::{Context as _, Result, bail};

use self::frequency::{Frequencies, has_cpufreq, has_cpuinfo};
use super::{Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::Host,
    procfs::{
        file::KernelFile,
        stat::{self, Increases, ProcStat, StateTimes, Times, at_most_ns, tick_ns},
    },
    schema::{Batch, TableBuilder, TickKey, TypedTable},
    support::{clock::monotonic_ns, delta::Interval},
};

columns! {
    /// One CPU over one interval.
    pub struct CpuRow {
        cpu: u32 = Label("", "Number of the CPU (hardware thread) in the kernel"),
        user_ns: Option<u64> = Counter("ns", "Time in user mode, without guests (`/proc/stat`, in steps of 10 ms)"),
        nice_ns: Option<u64> = Counter("ns", "Time in user mode at a nice value above 0, without guests (`/proc/stat`)"),
        system_ns: Option<u64> = Counter("ns", "Time in the kernel, without interrupts (`/proc/stat`)"),
        idle_ns: Option<u64> = Counter("ns", "Idle time without outstanding I/O (`/proc/stat`)"),
        iowait_ns: Option<u64> = Counter("ns", "Idle time while a task of this CPU waited for I/O; an estimate that the kernel may correct downwards (`/proc/stat`)"),
        irq_ns: Option<u64> = Counter("ns", "Time in interrupts (`/proc/stat`)"),
        softirq_ns: Option<u64> = Counter("ns", "Time in soft interrupts (`/proc/stat`)"),
        steal_ns: Option<u64> = Counter("ns", "Time the hypervisor ran something else while this CPU was ready to run (`/proc/stat`)"),
        guest_ns: Option<u64> = Counter("ns", "Time running guests; not part of `user_ns`, unlike in the kernel (`/proc/stat`)"),
        guest_nice_ns: Option<u64> = Counter("ns", "Time running guests at a nice value above 0; not part of `nice_ns` (`/proc/stat`)"),
        frequency_hz: Option<u64> = Gauge("Hz", "Current frequency (sysfs `cpufreq/scaling_cur_freq`); without a cpufreq driver (usual in virtual machines), on x86 `cpu MHz` of `/proc/cpuinfo`, which is then the nominal frequency, on other CPUs null. Null if reading all CPUs took too long"),
    }
}

pub(super) static TABLE: TypedTable<TickKey, CpuRow> = TypedTable::every_tick(
    "cpu",
    "One row per sample and online CPU; a CPU that comes online has rows from the second sample",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "cpu",
    help: "times per state and frequency of each CPU",
    tables: &[TABLE.untyped()],
    probe: Some(probe),
    open: |context| Ok(Box::new(AllCpus::open(context.host))),
    ..SourceSpec::DEFAULT
};

fn probe(host: &Host) -> Support {
    Support::of_file(&stat::file(&host.procfs), stat::REMEDY).and(|| {
        if has_cpufreq(&host.sysfs) || has_cpuinfo(&host.procfs) {
            return Support::Ok;
        }
        Support::Limited {
            why: "no cpufreq driver: frequency is null".to_owned(),
            remedy: "load the cpufreq driver of this CPU; virtual machines have none".to_owned(),
        }
    })
}

/// Last reading of a CPU.
#[derive(Clone, Default)]
struct Cpu {
    times: StateTimes,
    /// Number of the last reading in which it was online.
    reading: u64,
}

struct AllCpus {
    stat: KernelFile,
    parsed: ProcStat,
    frequencies: Frequencies,
    tick_ns: u64,
    reading: u64,
    interval: Interval,
    /// By number.
    cpus: Vec<Cpu>,
    rows: TableBuilder<TickKey, CpuRow>,
}

impl AllCpus {
    fn open(host: &Host) -> Self {
        Self {
            stat: KernelFile::new(stat::file(&host.procfs)),
            parsed: ProcStat::default(),
            frequencies: Frequencies::new(&host.procfs, &host.sysfs),
            tick_ns: tick_ns(),
            reading: 0,
            interval: Interval::default(),
            cpus: Vec::new(),
            rows: TableBuilder::new(&TABLE),
        }
    }

    fn read(&mut self) -> Result<()> {
        self.parsed.parse(self.stat.read().context("stat")?);
        if self.parsed.cpus.is_empty() {
            bail!("{}: no CPU in it", self.stat.path().display());
        }
        Ok(())
    }

    /// Increases of a CPU's times; `None` at its baseline.
    fn increase(
        &mut self,
        number: usize,
        times: &Times,
        interval_ns: Option<u64>,
    ) -> Option<Increases> {
        if number >= self.cpus.len() {
            self.cpus.resize(number + 1, Cpu::default());
        }
        let cpu = &mut self.cpus[number];
        // A CPU that was offline in the previous reading starts with a baseline, too.
        let interval_ns = interval_ns.filter(|_| cpu.reading + 1 == self.reading);
        if interval_ns.is_none() {
            cpu.times = StateTimes::default();
        }
        cpu.reading = self.reading;
        let at_most = at_most_ns(interval_ns.unwrap_or(0), 1);
        let increase = cpu.times.increase(times, at_most, self.tick_ns);
        interval_ns.map(|_| increase)
    }
}

impl Source for AllCpus {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        self.reading += 1;
        let interval_ns = self.interval.end(monotonic_ns());
        self.read().inspect_err(|_| self.interval.restart())?;
        let cpus = std::mem::take(&mut self.parsed.cpus);
        self.frequencies
            .sample(cpus.iter().map(|(number, _)| *number));
        for (number, times) in &cpus {
            let increase = self.increase(*number, times, interval_ns);
            let (Some(increase), Some(interval_ns)) = (increase, interval_ns) else {
                continue;
            };
            if let Ok(cpu) = u32::try_from(*number) {
                let frequency = self.frequencies.of(*number);
                self.rows
                    .push(ctx.key(interval_ns), row(cpu, increase, frequency));
            }
        }
        self.parsed.cpus = cpus;
        self.rows.finish(out);
        Ok(())
    }
}

pub(super) fn row(cpu: u32, times: Increases, frequency: Option<u64>) -> CpuRow {
    CpuRow {
        cpu,
        user_ns: times.user,
        nice_ns: times.nice,
        system_ns: times.system,
        idle_ns: times.idle,
        iowait_ns: times.iowait,
        irq_ns: times.irq,
        softirq_ns: times.softirq,
        steal_ns: times.steal,
        guest_ns: times.guest,
        guest_nice_ns: times.guest_nice,
        frequency_hz: frequency,
    }
}

//! Current frequency of each CPU, from the cpufreq driver (Documentation/admin-guide/pm/cpufreq.rst
//! in the kernel) or, without one, from `/proc/cpuinfo` of x86.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::procfs::file::{self, KernelFile, number};

/// Time limit for reading all CPUs. Kernels before 5.19 may sleep 10 ms to read one of them.
const BUDGET: Duration = Duration::from_millis(5);

/// Time between readings of `/proc/cpuinfo`, which has 1 to 2 KiB per CPU.
const CPUINFO_PERIOD: Duration = Duration::from_secs(1);

/// Directory of the frequencies of one CPU.
pub(crate) fn cpufreq(sysfs: &Path, cpu: usize) -> PathBuf {
    sysfs.join(format!("devices/system/cpu/cpu{cpu}/cpufreq"))
}

/// Whether a cpufreq driver is loaded, which has a policy for each frequency domain.
pub(crate) fn has_cpufreq(sysfs: &Path) -> bool {
    std::fs::read_dir(sysfs.join("devices/system/cpu/cpufreq")).is_ok_and(|entries| {
        entries
            .flatten()
            .any(|entry| entry.file_name().as_encoded_bytes().starts_with(b"policy"))
    })
}

/// Whether `/proc/cpuinfo` has frequencies.
pub(crate) fn has_cpuinfo(procfs: &Path) -> bool {
    let mut values = Vec::new();
    if let Ok(text) = std::fs::read(procfs.join("cpuinfo")) {
        parse_cpuinfo(&text, &mut values);
    }
    values.iter().any(Option::is_some)
}

/// Reads frequencies within a time budget.
#[derive(Debug)]
pub(crate) struct Frequencies {
    sysfs: PathBuf,
    driver: bool,
    /// Without a driver.
    cpuinfo: KernelFile,
    cpuinfo_at: Option<Instant>,
    budget: Duration,
    /// Open files by CPU number.
    files: Vec<Option<File>>,
    values: Vec<Option<u64>>,
    /// CPU at which the budget was spent; the next reading begins with it.
    resume: usize,
}

impl Frequencies {
    /// Reads nothing yet.
    pub(crate) fn new(procfs: &Path, sysfs: &Path) -> Self {
        Self {
            sysfs: sysfs.to_owned(),
            driver: has_cpufreq(sysfs),
            cpuinfo: KernelFile::new(procfs.join("cpuinfo")),
            cpuinfo_at: None,
            budget: BUDGET,
            files: Vec::new(),
            values: Vec::new(),
            resume: 0,
        }
    }

    /// Reads the frequencies of `cpus`, which are in ascending order.
    pub(crate) fn sample(&mut self, cpus: impl Iterator<Item = usize> + Clone) {
        if !self.driver {
            self.read_cpuinfo();
            return;
        }
        self.values.clear();
        let began = Instant::now();
        let resume = std::mem::take(&mut self.resume);
        let later = cpus.clone().filter(|&cpu| cpu >= resume);
        for cpu in later.chain(cpus.filter(|&cpu| cpu < resume)) {
            if began.elapsed() >= self.budget {
                self.resume = cpu;
                return;
            }
            let value = self.read(cpu);
            if cpu >= self.values.len() {
                self.values.resize(cpu + 1, None);
            }
            self.values[cpu] = value;
        }
    }

    fn read_cpuinfo(&mut self) {
        if self
            .cpuinfo_at
            .is_some_and(|at| at.elapsed() < CPUINFO_PERIOD)
        {
            return;
        }
        self.cpuinfo_at = Some(Instant::now());
        self.values.clear();
        if let Ok(text) = self.cpuinfo.read() {
            parse_cpuinfo(text, &mut self.values);
        }
    }

    /// Frequency of one CPU at the last reading, Hz.
    pub(crate) fn of(&self, cpu: usize) -> Option<u64> {
        self.values.get(cpu).copied().flatten()
    }

    fn read(&mut self, cpu: usize) -> Option<u64> {
        if cpu >= self.files.len() {
            self.files.resize_with(cpu + 1, || None);
        }
        let file = match &mut self.files[cpu] {
            Some(file) => file,
            none => {
                let path = cpufreq(&self.sysfs, cpu).join("scaling_cur_freq");
                none.insert(File::open(path).ok()?)
            }
        };
        let mut text = [0; 32];
        let Ok(length) = file.read_at(&mut text, 0) else {
            // The CPU went offline, and its directory was removed.
            self.files[cpu] = None;
            return None;
        };
        // `<unknown>` if the driver does not know it; 0 from a CPU that does not run.
        let khz = number(text[..length].trim_ascii()).filter(|&khz| khz > 0)?;
        khz.checked_mul(1000).filter(|&hz| hz < 1_000_000_000_000)
    }
}

/// Adds the frequencies of all CPUs: after each line `processor : N` a line `cpu MHz : 2600.041`.
fn parse_cpuinfo(text: &[u8], values: &mut Vec<Option<u64>>) {
    let mut cpu = None;
    for line in file::lines(text) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            continue;
        };
        let (name, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        match name {
            b"processor" => cpu = number(value).and_then(|cpu| usize::try_from(cpu).ok()),
            b"cpu MHz" => {
                // More CPUs than any kernel has: the file is damaged.
                let Some(cpu) = cpu.take().filter(|&cpu| cpu < 1 << 16) else {
                    continue;
                };
                if cpu >= values.len() {
                    values.resize(cpu + 1, None);
                }
                values[cpu] = hertz(value);
            }
            _ => {}
        }
    }
}

/// Converts a decimal number of MHz with up to three decimals.
fn hertz(mhz: &[u8]) -> Option<u64> {
    let mut parts = mhz.splitn(2, |&byte| byte == b'.');
    let whole = number(parts.next()?)?;
    let khz = match parts.next() {
        Some(decimals @ ([_] | [_, _] | [_, _, _])) => {
            number(decimals)? * 10_u64.pow(3 - u32::try_from(decimals.len()).ok()?)
        }
        Some(_) => return None,
        None => 0,
    };
    let hz = whole
        .checked_mul(1000)?
        .checked_add(khz)?
        .checked_mul(1000)?;
    Some(hz).filter(|&hz| hz > 0 && hz < 1_000_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str, cpus: &[(usize, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("profiler-{name}-{}", std::process::id()));
        std::fs::create_dir_all(root.join("devices/system/cpu/cpufreq/policy0")).unwrap();
        for (cpu, text) in cpus {
            let directory = cpufreq(&root, *cpu);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("scaling_cur_freq"), text).unwrap();
        }
        root
    }

    #[test]
    fn malformed_frequencies_are_null() {
        let texts = [
            "2400000\n",
            "<unknown>\n",
            "0\n",
            "",
            "-1\n",
            "99999999999999\n",
        ];
        let cpus: Vec<_> = texts.into_iter().enumerate().collect();
        let root = tree("frequency", &cpus);
        let mut frequencies = Frequencies::new(&root, &root);
        frequencies.sample(0..9);
        let values: Vec<_> = (0..9).map(|cpu| frequencies.of(cpu)).collect();
        assert_eq!(values[0], Some(2_400_000_000));
        assert!(values[1..].iter().all(Option::is_none), "{values:?}");
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_reading_continues_where_the_budget_was_spent() {
        let root = tree("budget", &[(0, "1000\n"), (1, "1000\n"), (2, "1000\n")]);
        let mut frequencies = Frequencies::new(&root, &root);
        frequencies.budget = Duration::ZERO;
        frequencies.resume = 1;
        frequencies.sample(0..3);
        assert_eq!(frequencies.resume, 1);
        assert!((0..3).all(|cpu| frequencies.of(cpu).is_none()));
        frequencies.budget = BUDGET;
        frequencies.sample(0..3);
        assert!((0..3).all(|cpu| frequencies.of(cpu) == Some(1_000_000)));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn cpuinfo_is_read_without_a_driver() {
        let root = tempfile::tempdir().unwrap();
        let text = "processor\t: 0\nflags\t\t: a b\ncpu MHz\t\t: 2600.041\n\n\
                    processor\t: 2\ncpu MHz\t\t: 800\n\nprocessor\t: 3\ncpu MHz\t\t: x\n\
                    processor\t: 99999999\ncpu MHz\t\t: 1.0\n";
        std::fs::write(root.path().join("cpuinfo"), text).unwrap();
        assert!(has_cpuinfo(root.path()) && !has_cpuinfo(&root.path().join("none")));
        let mut frequencies = Frequencies::new(root.path(), root.path());
        frequencies.sample(0..4);
        let values: Vec<_> = (0..5).map(|cpu| frequencies.of(cpu)).collect();
        let expected = [Some(2_600_041_000), None, Some(800_000_000), None, None];
        assert_eq!(values, expected);
        for (text, hz) in [
            (&b"2599.9"[..], Some(2_599_900_000)),
            (b"1.0001", None),
            (b"-1", None),
            (b"0.000", None),
            (b"18446744073709551615", None),
        ] {
            assert_eq!(hertz(text), hz, "{text:?}");
        }
    }
}

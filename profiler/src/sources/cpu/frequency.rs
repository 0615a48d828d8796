//! Current frequency of each CPU (Documentation/admin-guide/pm/cpufreq.rst in the kernel).

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::procfs::file::number;

/// Time limit for reading all CPUs. Kernels before 5.19 may sleep 10 ms to read one of them.
const BUDGET: Duration = Duration::from_millis(5);

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

/// Reads frequencies within a time budget.
#[derive(Debug)]
pub(crate) struct Frequencies {
    sysfs: PathBuf,
    driver: bool,
    budget: Duration,
    /// Open files by CPU number.
    files: Vec<Option<File>>,
    values: Vec<Option<u64>>,
    /// CPU at which the budget was spent; the next reading begins with it.
    resume: usize,
}

impl Frequencies {
    /// Reads nothing yet.
    pub(crate) fn new(sysfs: &Path) -> Self {
        Self {
            sysfs: sysfs.to_owned(),
            driver: has_cpufreq(sysfs),
            budget: BUDGET,
            files: Vec::new(),
            values: Vec::new(),
            resume: 0,
        }
    }

    /// Reads the frequencies of `cpus`, which are in ascending order.
    pub(crate) fn sample(&mut self, cpus: impl Iterator<Item = usize> + Clone) {
        self.values.clear();
        if !self.driver {
            return;
        }
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
        let mut frequencies = Frequencies::new(&root);
        frequencies.sample(0..9);
        let values: Vec<_> = (0..9).map(|cpu| frequencies.of(cpu)).collect();
        assert_eq!(values[0], Some(2_400_000_000));
        assert!(values[1..].iter().all(Option::is_none), "{values:?}");
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_reading_continues_where_the_budget_was_spent() {
        let root = tree("budget", &[(0, "1000\n"), (1, "1000\n"), (2, "1000\n")]);
        let mut frequencies = Frequencies::new(&root);
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
}

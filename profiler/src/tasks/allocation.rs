//! CPUs and memory that a process may use.

use std::{fs, path::Path, sync::Arc};

use crate::procfs::{cgroup_limits::CgroupLimits, cpu_list::cpu_list_text};

/// Threads of a process that are read.
const THREADS_MAX: usize = 1024;
/// Words of an affinity mask: above every CPU number of a kernel (`NR_CPUS` is at most 8,192).
const WORDS: usize = 8192 / 64;

/// CPUs and memory that a process may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// CPUs on which any of its threads may run, as a list of the kernel: affinity, which cpusets
    /// limit.
    pub cpus: Arc<str>,
    /// Limits of its cgroups.
    pub limits: CgroupLimits,
}

/// CPUs as bits.
type Mask = [u64; WORDS];

/// CPUs of a process: of all its threads, because libraries bind each to CPUs of its own.
pub(super) fn cpus(procfs: &Path, pid: u32) -> Option<Arc<str>> {
    let tasks = fs::read_dir(procfs.join(format!("{pid}/task"))).ok()?;
    let tids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    let mut all = [0; WORDS];
    for mask in tids.take(THREADS_MAX).filter_map(affinity) {
        all.iter_mut()
            .zip(mask)
            .for_each(|(all, word)| *all |= word);
    }
    listed(&all)
}

/// CPUs of the main thread.
pub(super) fn cpus_of_main_thread(pid: u32) -> Option<Arc<str>> {
    listed(&affinity(pid)?)
}

/// CPUs of a thread. The masks of libraries end at CPU 1023, with which the kernel refuses the call
/// on a machine with more.
fn affinity(tid: u32) -> Option<Mask> {
    let mut mask = [0_u64; WORDS];
    // SAFETY: the kernel writes at most as many bytes as the mask has.
    let written = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            tid,
            size_of_val(&mask),
            mask.as_mut_ptr(),
        )
    };
    (written > 0).then_some(mask)
}

fn cpu_numbers(mask: &Mask) -> impl Iterator<Item = usize> {
    let words = mask.iter().enumerate().filter(|(_, word)| **word != 0);
    words.flat_map(|(index, word)| {
        let bits = (0..64).filter(move |bit| word >> bit & 1 == 1);
        bits.map(move |bit| 64 * index + bit)
    })
}

fn listed(mask: &Mask) -> Option<Arc<str>> {
    let cpus: Vec<usize> = cpu_numbers(mask).collect();
    (!cpus.is_empty()).then(|| cpu_list_text(&cpus).into())
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use rustix::thread::{CpuSet, sched_setaffinity};

    use super::*;
    use crate::procfs::cpu_list::cpu_list;

    #[test]
    fn threads_are_bound_to_different_cpus() {
        let only = |cpu| {
            let mut set = CpuSet::new();
            set.set(cpu);
            sched_setaffinity(None, &set).expect("an own thread");
        };
        let before = affinity(0).expect("an own thread");
        let mut before = cpu_numbers(&before);
        let first = before.next().expect("a CPU");
        let last = before.last().expect("the test needs two CPUs");
        // Its other threads are those of the test program, without a binding.
        let (bound, is_bound) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            only(last);
            bound
                .send(rustix::thread::gettid().as_raw_pid())
                .expect("a receiver");
            let _ = ended.recv();
        });
        let tid = is_bound.recv().expect("a sender").cast_unsigned();
        assert_eq!(
            cpus_of_main_thread(tid).as_deref(),
            Some(&*last.to_string())
        );
        let all = cpus(Path::new("/proc"), std::process::id()).expect("this process");
        let all = cpu_list(&all).expect("a list");
        assert!(all.contains(&first) && all.contains(&last), "{all:?}");
        drop(end);
        thread.join().expect("it ends");
        assert_eq!(cpus(Path::new("/nowhere"), std::process::id()), None);
    }
}

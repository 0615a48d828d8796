//! Values of a process that are too expensive to read at every sample.

use std::{fs, os::unix::ffi::OsStrExt as _, path::Path};

use hashbrown::HashMap;
use rustix::fs::{AtFlags, CWD, FileType, statat};

use crate::procfs::{process_stat, smaps_rollup::Footprint, stat::tick_ns};

/// Values of a process, read every 30 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Proportional and unique memory.
    pub footprint: Option<Footprint>,
    /// Times of ended children that were waited for, since the process started.
    pub children: Option<ChildrenTime>,
    /// Time in which the main thread waited for block I/O, ns.
    pub iowait: Option<u64>,
    /// Open files; `None` without permission, or if there are too many descriptors.
    pub files: Option<OpenFiles>,
}

/// CPU time of children, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildrenTime {
    pub user: u64,
    pub system: u64,
}

/// Descriptors by kind of file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFiles {
    pub sockets: u32,
    /// Regular files.
    pub regular: u32,
}

/// Descriptors of a process up to which they are classified, which takes two system calls each.
const DESCRIPTORS_MAX: usize = 4096;
/// Descriptors of a user that are classified in a reading.
const DESCRIPTORS_OF_USER_MAX: usize = 32768;

/// Descriptors that are classified in a reading.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    spent: HashMap<u32, usize>,
    /// Of all users.
    pub(super) total: usize,
    /// Processes whose descriptors were too many for the reading, by user.
    pub(super) lost: HashMap<u32, u64>,
}

impl Descriptors {
    fn left(&self, uid: u32) -> usize {
        let spent = self.spent.get(&uid).copied().unwrap_or(0);
        DESCRIPTORS_OF_USER_MAX.saturating_sub(spent)
    }

    fn spend(&mut self, uid: u32, count: usize) {
        *self.spent.entry(uid).or_default() += count;
        self.total += count;
    }

    fn lose(&mut self, uid: u32) {
        *self.lost.entry(uid).or_default() += 1;
    }
}

/// Reads a process of this user, except for its footprint; `iowait` if the kernel measures waits for
/// block I/O. `None` if the process has ended.
pub(super) fn read(
    directory: &Path,
    uid: u32,
    footprint: Option<Footprint>,
    iowait: bool,
    descriptors: &mut Descriptors,
) -> Option<Details> {
    let stat = process_stat::read(directory)?;
    let time = |ticks: i64| Some(u64::try_from(ticks).ok()?.saturating_mul(tick_ns()));
    let children = time(stat.cutime).zip(time(stat.cstime));
    let waited = stat.delayacct_blkio_ticks.filter(|_| iowait);
    Some(Details {
        footprint,
        children: children.map(|(user, system)| ChildrenTime { user, system }),
        iowait: waited.map(|ticks| ticks.saturating_mul(tick_ns())),
        files: open_files(&directory.join("fd"), uid, descriptors),
    })
}

/// Whether the kernel measures waits for block I/O. Since Linux 5.14 this is off by default.
pub(super) fn measures_iowait(procfs: &Path) -> bool {
    let setting = fs::read_to_string(procfs.join("sys/kernel/task_delayacct"));
    setting.map_or(true, |setting| setting.trim() != "0")
}

fn open_files(directory: &Path, uid: u32, descriptors: &mut Descriptors) -> Option<OpenFiles> {
    // Their number since Linux 6.2, 0 before.
    let known = usize::try_from(fs::metadata(directory).ok()?.len()).ok()?;
    let left = descriptors.left(uid);
    if known > DESCRIPTORS_MAX {
        return None;
    }
    if known > left || left == 0 {
        descriptors.lose(uid);
        return None;
    }
    let mut count = 0;
    let files = classify(directory, left.min(DESCRIPTORS_MAX), &mut count);
    descriptors.spend(uid, count);
    if files.is_none() && count == left {
        descriptors.lose(uid);
    }
    files
}

/// Counts up to `limit` descriptors; `None` if there are more.
fn classify(directory: &Path, limit: usize, count: &mut usize) -> Option<OpenFiles> {
    let mut files = OpenFiles::default();
    for entry in fs::read_dir(directory).ok()? {
        if *count == limit {
            return None;
        }
        *count += 1;
        // A descriptor that was closed meanwhile has no link.
        let path = entry.ok()?.path();
        let Ok(target) = fs::read_link(&path) else {
            continue;
        };
        let target = target.as_os_str().as_bytes();
        if target.starts_with(b"socket:") {
            files.sockets += 1;
        } else if target.starts_with(b"/") && is_regular(&path) {
            files.regular += 1;
        }
    }
    Some(files)
}

/// Whether the link leads to a regular file. A remote file system is not asked; fstatat(2) takes this flag
/// of statx(2), which some containers refuse.
fn is_regular(link: &Path) -> bool {
    let found = statat(CWD, link, AtFlags::STATX_DONT_SYNC);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_file())
}

#[cfg(test)]
mod tests {
    use std::{fs::File, net::TcpListener, os::unix::net::UnixStream, process::Command};

    use super::*;

    #[test]
    fn files_of_this_process_are_counted() {
        let (own, directory) = (Path::new("/proc/self"), tempfile::tempdir().expect("made"));
        let read = || read(own, 0, None, true, &mut Descriptors::default());
        let count = || read().expect("it lives").files;
        // Other tests open files at the same time.
        let is_counted = || {
            let before = count().expect("readable");
            let files: Vec<File> = (0..40)
                .map(|number| File::create(directory.path().join(format!("{number}"))))
                .collect::<Result<_, _>>()
                .expect("created");
            let pair = UnixStream::pair().expect("a pair");
            let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
            let null = File::open("/dev/null").expect("opened");
            let after = count().expect("readable");
            drop((files, pair, listener, null));
            after.regular.abs_diff(before.regular) == 40 && after.sockets == before.sockets + 3
        };
        assert!((0..20).any(|_| is_counted()));
    }

    #[test]
    fn descriptors_of_a_user_are_limited_in_a_reading() {
        let null: Vec<File> = (0..64)
            .map(|_| File::open("/dev/null").expect("opened"))
            .collect();
        let mut descriptors = Descriptors::default();
        let mut files = |uid| {
            let own = Path::new("/proc/self");
            let found = read(own, uid, None, false, &mut descriptors);
            found.expect("it lives").files.is_some()
        };
        let most = DESCRIPTORS_OF_USER_MAX / null.len();
        let read = (0..=most).take_while(|_| files(1)).count();
        assert!(read > 0 && read <= most);
        assert!(files(2) && !files(1));
        assert_eq!((descriptors.lost[&1], descriptors.lost.get(&2)), (2, None));
        assert!(descriptors.total <= DESCRIPTORS_OF_USER_MAX + DESCRIPTORS_MAX);
    }

    /// The process is an orphan: its time must not become that of the children of this process,
    /// which other tests measure.
    #[test]
    fn time_of_children_is_that_of_proc() {
        let script = "(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exit 0); exec sleep 60";
        let orphan = format!("({script}) >/dev/null 2>&1 & echo $!");
        let output = Command::new("sh").args(["-c", &orphan]).output();
        let pid = String::from_utf8(output.expect("sh").stdout).expect("a pid");
        let directory = Path::new("/proc").join(pid.trim());
        let has_waited = || {
            let comm = fs::read_to_string(directory.join("comm"));
            comm.is_ok_and(|comm| comm == "sleep\n")
        };
        while !has_waited() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let found = read(&directory, 0, None, true, &mut Descriptors::default());
        let children = found.expect("it lives").children.expect("known");
        let stat = fs::read_to_string(directory.join("stat")).expect("stat");
        let pid = rustix::process::Pid::from_raw(pid.trim().parse().expect("a number"));
        rustix::process::kill_process(pid.expect("a pid"), rustix::process::Signal::KILL)
            .expect("killed");
        // proc_pid_stat(5): fields 16 and 17, in clock ticks; the state is field 3.
        let (_, fields) = stat.rsplit_once(") ").expect("a name");
        let ticks = |field: usize| {
            let text = fields.split(' ').nth(field - 3).expect("a field");
            text.parse::<u64>().expect("a number")
        };
        let expected = ChildrenTime {
            user: ticks(16) * tick_ns(),
            system: ticks(17) * tick_ns(),
        };
        assert_eq!(children, expected);
        assert!(children.user + children.system > 0);
    }
}

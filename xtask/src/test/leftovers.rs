//! What tests leave on this machine when they are killed: processes, mounts, loop devices, cgroups,
//! sockets and files. They change the results of later tests.
//!
//! The tests of a run have a directory for temporary files. It is `TMPDIR` of everything they start,
//! which identifies their processes, mounts and devices. The run holds a lock on it.

use std::{
    env,
    ffi::OsStr,
    fs,
    fs::File,
    io::{Read as _, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    process::{self, Command},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, geteuid, kill_process},
};

use crate::shell::{self, progress};

const PREFIX: &str = "profiler-tests-";
/// Directories of single tests, followed by the pid of their guard.
const TEST_PREFIX: &str = "test-";
/// Cgroups that tests create at the root of a hierarchy, followed by the pid of the test.
const CGROUPS: [&str; 2] = ["e2e-", "profiler-test-"];
/// Those of a real or simulated Slurm, which are of the tests if no slurmd runs.
const SLURM_CGROUPS: [&str; 2] = ["slurm_", "slurmstepd.scope"];
/// Sockets of profilers of root.
const SOCKETS: &str = "/run/profiler";

/// Directory for the temporary files of one run of tests. What the tests leave is removed when it is
/// dropped.
pub struct RunDirectory {
    path: PathBuf,
    _lock: File,
}

impl RunDirectory {
    /// Removes what earlier runs left, and creates the directory.
    pub fn create() -> Result<Self> {
        Self::create_in(&env::temp_dir())
    }

    fn create_in(parent: &Path) -> Result<Self> {
        report("tests of an earlier run", &remove_earlier(parent));
        let name = format!("{PREFIX}{}", process::id());
        let (path, new) = (parent.join(&name), parent.join(format!(".{name}")));
        let create = || {
            fs::create_dir(&new)?;
            // Tests start programs of other users.
            fs::set_permissions(&new, fs::Permissions::from_mode(0o1777))?;
            let lock = File::open(&new)?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            // Other runs never find it without a lock.
            fs::rename(&new, &path)?;
            Ok::<_, std::io::Error>(lock)
        };
        let lock = create().with_context(|| format!("creating {}", path.display()))?;
        Ok(Self { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What tests left, a line for each.
    pub fn left(&self) -> String {
        fs::read_to_string(self.path.join(LEFT)).unwrap_or_default()
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        let mut removed = remove(&self.path);
        removed.extend(remove_unused_sockets(Path::new(SOCKETS)));
        report("tests of this run", &removed);
    }
}

/// Directory for the temporary files of one test, below that of the run.
pub struct TestDirectory {
    path: PathBuf,
}

/// In the directory of a run: what its tests left, a line for each test.
const LEFT: &str = "left";

impl TestDirectory {
    /// Removes what killed tests left, and creates the directory.
    pub fn create(parent: &Path) -> Result<Self> {
        for path in entries(parent) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let of_test = name.strip_prefix(TEST_PREFIX).map(str::parse::<u32>);
            if let Some(Ok(pid)) = of_test
                && !Path::new(&format!("/proc/{pid}")).exists()
            {
                report("an earlier test", &remove(&path));
            }
        }
        let path = parent.join(format!("{TEST_PREFIX}{}", process::id()));
        fs::create_dir(&path)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)))
            .with_context(|| format!("creating {}", path.display()))?;
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory and what the test of this name left, and records it for the report of the
    /// run.
    pub fn remove(self, test: &str) -> Result<()> {
        let removed = remove(&self.path);
        if removed.is_empty() {
            return Ok(());
        }
        report("this test", &removed);
        let path = self.path.with_file_name(LEFT);
        let line = format!("{test} left {}\n", removed.join(", "));
        let file = File::options().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .with_context(|| format!("writing {}", path.display()))
    }
}

fn report(whose: &str, removed: &[String]) {
    if !removed.is_empty() {
        progress(&format!(
            "removed what {whose} left: {}",
            removed.join(", ")
        ));
    }
}

/// Removes what runs that have ended left, and returns what it was.
fn remove_earlier(parent: &Path) -> Vec<String> {
    let mut removed = Vec::new();
    for path in entries(parent) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Other users can create directories with this name.
        let is_own = fs::symlink_metadata(&path)
            .is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw());
        if !name.starts_with(PREFIX) || !is_own {
            continue;
        }
        let lock = File::open(&path);
        let has_ended =
            lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok());
        if has_ended {
            removed.extend(remove(&path));
        }
    }
    // Those whose directory is gone.
    removed.extend(remove_cgroups());
    removed.extend(remove_unused_sockets(Path::new(SOCKETS)));
    removed
}

/// Removes the directory of a run, and everything that refers to it.
fn remove(directory: &Path) -> Vec<String> {
    let mut removed = end_processes(directory);
    removed.extend(remove_cgroups());
    // Without its mount, an image has another path.
    removed.extend(detach_devices(directory));
    removed.extend(unmount(directory));
    if let Err(error) = fs::remove_dir_all(directory) {
        progress(&format!("{} remains: {error}", directory.display()));
    }
    removed
}

/// Kills processes until none is left.
fn end_processes(directory: &Path) -> Vec<String> {
    let mut ended = Vec::new();
    let all_ended = wait_until(|| {
        let left = processes(directory);
        for (pid, name) in &left {
            // It can have ended.
            let _ = kill_process(*pid, Signal::KILL);
            if !ended.contains(name) {
                ended.push(name.clone());
            }
        }
        left.is_empty()
    });
    if !all_ended {
        progress(&format!("cannot end all of {}", ended.join(", ")));
    }
    ended
}

/// Waits for a condition; false after a timeout.
fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    const TIMEOUT: Duration = Duration::from_secs(5);
    const POLL: Duration = Duration::from_millis(20);
    let begin = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if begin.elapsed() > TIMEOUT {
            return false;
        }
        thread::sleep(POLL);
    }
}

/// Processes whose `TMPDIR` is the directory or below it: pid, and name with pid. Zombies have no
/// environment.
fn processes(directory: &Path) -> Vec<(Pid, String)> {
    let mut found = Vec::new();
    for path in entries(Path::new("/proc")) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(pid) = name.parse().ok().and_then(Pid::from_raw) else {
            continue;
        };
        let environment = environment(&path);
        let mut entries = environment.split(|byte| *byte == 0);
        let is_below = |entry: &[u8]| {
            let path = entry.strip_prefix(b"TMPDIR=").map(OsStr::from_bytes);
            path.is_some_and(|path| Path::new(path).starts_with(directory))
        };
        if entries.any(is_below) {
            let comm = fs::read_to_string(path.join("comm")).unwrap_or_default();
            found.push((pid, format!("process {name} ({})", comm.trim())));
        }
    }
    found
}

/// The environment of a process. It can have gigabytes, as those of attackers in tests.
fn environment(process: &Path) -> Vec<u8> {
    const BYTES_MAX: u64 = 1 << 20;
    // It is empty for a moment during execve(2).
    const ATTEMPTS: u32 = 20;
    let mut bytes = Vec::new();
    for _ in 0..ATTEMPTS {
        if let Ok(file) = File::open(process.join("environ")) {
            // An error is the end: the process has ended, or is of another user.
            let _ = file.take(BYTES_MAX).read_to_end(&mut bytes);
        }
        // Kernel threads and zombies have neither.
        if !bytes.is_empty() || fs::read_link(process.join("exe")).is_err() {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    bytes
}

/// Removes the cgroups of tests.
fn remove_cgroups() -> Vec<String> {
    let has_slurm = entries(Path::new("/proc")).iter().any(|path| {
        // Zombies have no program.
        fs::read_link(path.join("exe")).is_ok_and(|program| program.ends_with("slurmd"))
    });
    let is_of_tests = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut pids = CGROUPS.iter().filter_map(|prefix| {
            let pid = name.strip_prefix(prefix)?;
            pid.parse::<u32>().ok()
        });
        let [v1, v2] = SLURM_CGROUPS;
        pids.any(|pid| !Path::new(&format!("/proc/{pid}")).exists())
            || !has_slurm && (name.starts_with(v1) || name.ends_with(v2))
    };
    let roots = mounts().into_iter().filter(|mount| mount.is_cgroup);
    let parents = roots.flat_map(|mount| [mount.point.join("system.slice"), mount.point]);
    parents
        .flat_map(|parent| entries(&parent))
        .filter(is_of_tests)
        .filter(|path| {
            // It stays busy for a moment after its last member has ended.
            let is_removed = wait_until(|| !has_processes(path) && remove_cgroup(path));
            if !is_removed {
                progress(&format!(
                    "cgroup {} remains: it has processes",
                    path.display()
                ));
            }
            is_removed
        })
        .map(|path| format!("cgroup {}", path.display()))
        .collect()
}

/// Whether a cgroup or one below it has processes, or cannot be read.
fn has_processes(path: &Path) -> bool {
    let own = fs::read_to_string(path.join("cgroup.procs"));
    let mut below = entries(path).into_iter().filter(|below| below.is_dir());
    !own.is_ok_and(|own| own.is_empty()) || below.any(|below| has_processes(&below))
}

/// Removes a cgroup and those below it.
fn remove_cgroup(path: &Path) -> bool {
    for below in entries(path).iter().filter(|below| below.is_dir()) {
        remove_cgroup(below);
    }
    fs::remove_dir(path).is_ok()
}

fn unmount(directory: &Path) -> Vec<String> {
    let mut removed = Vec::new();
    // The last mount of a point covers the others.
    for mount in mounts().iter().rev() {
        if mount.point.starts_with(directory) {
            let mut command = Command::new("umount");
            match shell::run_quietly(command.arg("-l").arg(&mount.point)) {
                Ok(()) => removed.push(format!("mount {}", mount.point.display())),
                Err(error) => progress(&format!("{error:#}")),
            }
        }
    }
    removed
}

struct Mount {
    point: PathBuf,
    is_cgroup: bool,
}

/// The mounts of this namespace, in the order of mounting.
fn mounts() -> Vec<Mount> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        Some(Mount {
            // Paths of the tests have no characters that are escaped.
            point: fields.next()?.into(),
            is_cgroup: fields.next()?.starts_with("cgroup"),
        })
    };
    text.lines().filter_map(mount).collect()
}

/// Detaches loop devices whose image is below the directory, also if it has been deleted.
fn detach_devices(directory: &Path) -> Vec<String> {
    let mut detached = Vec::new();
    for path in entries(Path::new("/sys/block")) {
        let image = fs::read_to_string(path.join("loop/backing_file")).unwrap_or_default();
        if !Path::new(image.trim()).starts_with(directory) {
            continue;
        }
        let device = Path::new("/dev").join(path.file_name().unwrap_or_default());
        match shell::run_quietly(Command::new("losetup").arg("--detach").arg(&device)) {
            Ok(()) => detached.push(device.display().to_string()),
            Err(error) => progress(&format!("{error:#}")),
        }
    }
    detached
}

/// Removes sockets that no process has.
fn remove_unused_sockets(directory: &Path) -> Vec<String> {
    // Before the sockets in use are read: others can be created in the meantime.
    let files = entries(directory);
    let used = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let is_unused = |path: &PathBuf| {
        let is_used = || {
            let mut paths = used.lines().filter_map(|line| line.split(' ').next_back());
            paths.any(|used| Path::new(used) == path)
        };
        path.extension()
            .is_some_and(|extension| extension == "sock")
            && !is_used()
    };
    files
        .into_iter()
        .filter(is_unused)
        .filter(|path| fs::remove_file(path).is_ok())
        .map(|path| format!("socket {}", path.display()))
        .collect()
}

/// The paths of a directory's entries; none if it cannot be read.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::{net::UnixDatagram, process::ExitStatusExt as _},
        process::{Child, Command},
    };

    use tempfile::TempDir;

    use super::{RunDirectory, TestDirectory, remove, remove_earlier, remove_unused_sockets};
    use crate::shell::{run_quietly, stdout};

    fn sleep(command: &mut Command) -> Child {
        command.arg("60").spawn().expect("sleep starts")
    }

    /// The signal with which a child has ended.
    fn signal(mut child: Child) -> Option<i32> {
        child.wait().expect("our child").signal()
    }

    #[test]
    fn everything_of_a_run_is_removed() {
        let parent = TempDir::new().expect("a directory");
        let run = RunDirectory::create_in(parent.path()).expect("a directory");
        let directory = run.path().join("one");
        fs::create_dir(&directory).expect("created");
        let marked = sleep(Command::new("sleep").env("TMPDIR", &directory));
        let mut other = sleep(Command::new("sleep").env("TMPDIR", run.path()));
        fs::write(directory.join("file"), "").expect("written");
        let expected = format!("process {} (sleep)", marked.id());
        let removed = remove(&directory);
        assert!(removed.contains(&expected), "{removed:?}");
        assert_eq!(signal(marked), Some(9));
        assert!(!directory.exists());
        assert_eq!(other.try_wait().expect("our child"), None);
        drop(run);
        assert_eq!(signal(other), Some(9));
    }

    #[test]
    fn tests_leave_nothing() {
        let run = TempDir::new().expect("a directory");
        // Its guard was killed.
        let killed = run.path().join("test-4194305");
        fs::create_dir(&killed).expect("created");
        let left = sleep(Command::new("sleep").env("TMPDIR", &killed));
        let test = TestDirectory::create(run.path()).expect("a directory");
        assert_eq!(signal(left), Some(9));
        assert!(!killed.exists());
        let of_test = sleep(Command::new("sleep").env("TMPDIR", test.path().join("below")));
        let (path, pid) = (test.path().to_owned(), of_test.id());
        test.remove("module::name").expect("recorded");
        assert_eq!(signal(of_test), Some(9));
        assert!(!path.exists());
        let left = fs::read_to_string(run.path().join("left")).expect("recorded");
        assert_eq!(left, format!("module::name left process {pid} (sleep)\n"));
    }

    #[test]
    fn runs_that_go_on_are_kept() {
        let parent = TempDir::new().expect("a directory");
        let run = RunDirectory::create_in(parent.path()).expect("a directory");
        let ended = parent.path().join("profiler-tests-1");
        fs::create_dir(&ended).expect("created");
        let left = sleep(Command::new("sleep").env("TMPDIR", &ended));
        let removed = remove_earlier(parent.path());
        let process = format!("process {} (sleep)", left.id());
        assert!(removed.contains(&process), "{removed:?}");
        assert_eq!(signal(left), Some(9));
        assert!(!ended.exists() && run.path().exists());
    }

    #[test]
    fn mounts_and_devices_are_removed() {
        let parent = TempDir::new().expect("a directory");
        let run = RunDirectory::create_in(parent.path()).expect("a directory");
        let (point, image) = (run.path().join("memory"), run.path().join("memory/image"));
        fs::create_dir(&point).expect("created");
        let mount = ["-t", "tmpfs", "-o", "size=2m", "none"];
        run_quietly(Command::new("mount").args(mount).arg(&point)).expect("root mounts");
        let file = fs::File::create(&image).expect("created");
        file.set_len(1 << 20).expect("sparse");
        let attach = ["--find", "--show"];
        let device = stdout(Command::new("losetup").args(attach).arg(&image)).expect("attached");
        let expected = [
            device.trim().to_owned(),
            format!("mount {}", point.display()),
        ];
        let removed = remove(run.path());
        assert!(removed.ends_with(&expected), "{removed:?}");
    }

    #[test]
    fn sockets_in_use_are_kept() {
        let run = TempDir::new().expect("a directory");
        let [used, unused] = ["used.sock", "unused.sock"].map(|name| run.path().join(name));
        let socket = UnixDatagram::bind(&used).expect("bound");
        drop(UnixDatagram::bind(&unused).expect("bound"));
        let removed = remove_unused_sockets(run.path());
        assert_eq!(removed, [format!("socket {}", unused.display())]);
        assert!(used.exists() && !unused.exists());
        drop(socket);
    }
}

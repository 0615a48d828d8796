//! Finding the target: pids that exist, a cgroup's identity, a command that waits to be released.

use std::{
    ffi::{CString, OsString},
    fs,
    io::{PipeReader, PipeWriter, Read as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd},
        unix::{
            fs::MetadataExt as _,
            process::{CommandExt as _, ExitStatusExt as _},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    thread::JoinHandle,
};

use nix::unistd::getgrouplist;
use rustix::{
    process::{Gid, Pid, PidfdFlags, Signal, Uid, pidfd_open, pidfd_send_signal},
    thread::{set_thread_gid, set_thread_groups, set_thread_uid},
};

use crate::{
    bpf::{Roots, Scope},
    failure::{Failure, Reason},
    host::Host,
};

/// Checks that the processes exist.
///
/// # Errors
///
/// When one does not, is a zombie, or is only a thread of another.
pub fn roots(host: &Host, pids: &[u32]) -> Result<Roots, Failure> {
    let gone = |pid| Failure::new(Reason::Target, format!("no process {pid}"));
    pids.iter()
        .map(|pid| {
            let status = fs::read_to_string(host.procfs.join(format!("{pid}/status")))
                .map_err(|_| gone(*pid))?;
            let field = |name: &str| {
                status
                    .lines()
                    .find_map(|line| line.strip_prefix(name))
                    .map_or("", str::trim)
            };
            let leader = field("Tgid:");
            if leader.parse() != Ok(*pid) {
                let message = format!("{pid} is a thread of process {leader}: use --pid {leader}");
                return Err(Failure::new(Reason::Target, message));
            }
            if field("State:").starts_with(['Z', 'X']) {
                let message = format!("process {pid} has ended and waits for its parent (zombie)");
                return Err(Failure::new(Reason::Target, message));
            }
            Ok((*pid, 0))
        })
        .collect()
}

/// Finds a cgroup by its path, absolute or below a cgroup mount.
///
/// # Errors
///
/// When there is no such folder, or it is not in a cgroup file system.
pub fn cgroup(host: &Host, path: &Path) -> Result<(PathBuf, Scope), Failure> {
    let fail =
        |what: &str| Failure::new(Reason::Target, format!("cgroup {}: {what}", path.display()));
    let mounts = fs::read_to_string(host.procfs.join("self/mountinfo"))
        .map_err(|error| fail(&format!("/proc/self/mountinfo: {error}")))?;
    let mounts: Vec<CgroupMount> = mounts.lines().filter_map(CgroupMount::parse).collect();
    if mounts.is_empty() {
        return Err(fail("no cgroup file system is mounted"));
    }
    let below = path.strip_prefix("/").unwrap_or(path);
    let folder = std::iter::once(path.to_owned())
        .filter(|path| path.is_absolute())
        .chain(mounts.iter().map(|mount| mount.point.join(below)))
        .find(|folder| folder.join("cgroup.procs").is_file())
        .ok_or_else(|| fail("not found under any cgroup mount"))?
        .canonicalize()
        .map_err(|error| fail(&error.to_string()))?;
    let mount = mounts
        .iter()
        .filter(|mount| folder.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.as_os_str().len())
        .ok_or_else(|| fail("not in a cgroup file system"))?;
    let id = fs::metadata(&folder)
        .map_err(|error| fail(&error.to_string()))?
        .ino();
    let hierarchies = fs::read_to_string(host.procfs.join("self/cgroup"))
        .map_err(|error| fail(&format!("/proc/self/cgroup: {error}")))?;
    let hierarchy = mount
        .hierarchy(&hierarchies)
        .ok_or_else(|| fail("its hierarchy is not in /proc/self/cgroup"))?;
    Ok((folder, Scope::Cgroup { id, hierarchy }))
}

/// A mounted cgroup hierarchy.
struct CgroupMount {
    point: PathBuf,
    /// Controllers or name of a v1 hierarchy; `None` for v2.
    options: Option<Vec<String>>,
}

impl CgroupMount {
    /// A line of mountinfo (proc_pid_mountinfo(5)), if it is a cgroup's.
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let point = PathBuf::from(before.split(' ').nth(4)?);
        let mut after = after.split(' ');
        match after.next()? {
            "cgroup2" => Some(Self {
                point,
                options: None,
            }),
            "cgroup" => {
                let options = after.nth(1)?.split(',').map(str::to_owned).collect();
                Some(Self {
                    point,
                    options: Some(options),
                })
            }
            _ => None,
        }
    }

    /// Its number, from `hierarchy:controllers:path` lines.
    fn hierarchy(&self, lines: &str) -> Option<u32> {
        let Some(options) = &self.options else {
            return Some(0);
        };
        lines.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let number = fields.next()?.parse().ok()?;
            let controllers = fields.next()?;
            let all = !controllers.is_empty()
                && controllers
                    .split(',')
                    .all(|name| options.iter().any(|option| option == name));
            all.then_some(number)
        })
    }
}

/// A command that exists as a process but has not yet run its first instruction.
pub struct Stopped {
    /// Its process id.
    pub pid: u32,
    name: String,
    go: PipeWriter,
    spawner: JoinHandle<std::io::Result<Child>>,
}

/// A command that runs.
pub struct Running {
    /// Becomes readable when the command ends.
    pub pidfd: OwnedFd,
    child: Child,
}

/// Starts `command` as a process that waits before it executes the program.
///
/// It is told the socket for its marks. When the profiler was raised by sudo for the user (`PROFILER_RAISED`), the command runs as the user.
///
/// # Errors
///
/// When no process can be made.
pub fn start(command: &[OsString], marks: Option<&Path>) -> Result<Stopped, Failure> {
    let name = command
        .first()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let fail = |error: std::io::Error| {
        Failure::new(Reason::CannotRun, format!("cannot start `{name}`: {error}"))
    };
    let (mut pid_reader, pid_writer) = std::io::pipe().map_err(fail)?;
    let (go_reader, go) = std::io::pipe().map_err(fail)?;
    let mut spawn = Command::new(&command[0]);
    spawn.args(&command[1..]);
    if let Some(marks) = marks {
        spawn.env(crate::marks::VARIABLE, marks);
    }
    let user = invoking_user();
    let mut wait = wait_for_release(pid_writer, go_reader, go.as_raw_fd());
    let wait = move || {
        if let Some(user) = &user {
            user.become_it()?;
        }
        wait()
    };
    // SAFETY: the closure only makes system calls, which may be done between fork and exec.
    unsafe {
        spawn.pre_exec(wait);
    }
    // spawn() returns only after exec, so it has a thread of its own.
    let spawner = std::thread::spawn(move || spawn.spawn());
    let mut pid = [0; 4];
    if pid_reader.read_exact(&mut pid).is_err() {
        let error = match spawner.join() {
            Ok(Err(error)) => error,
            _ => std::io::Error::other("it ended at once"),
        };
        return Err(fail(error));
    }
    Ok(Stopped {
        pid: u32::from_ne_bytes(pid),
        name,
        go,
        spawner,
    })
}

/// What the child does between fork and exec: say who it is, and wait for one byte.
fn wait_for_release(
    mut pid_writer: PipeWriter,
    mut go_reader: PipeReader,
    go_writer: RawFd,
) -> impl FnMut() -> std::io::Result<()> + Send + Sync + 'static {
    move || {
        // Else the copy that fork made would keep the pipe open when the profiler dies, and we would wait for ever.
        // SAFETY: the child's own copy, which nothing else in the child uses.
        unsafe { rustix::io::close(go_writer) };
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        pid_writer.write_all(&pid.to_ne_bytes())?;
        let mut byte = [0];
        go_reader.read_exact(&mut byte)
    }
}

impl Stopped {
    /// Lets the command run.
    ///
    /// # Errors
    ///
    /// When there is no such program, or it cannot be executed.
    pub fn release(self) -> Result<Running, Failure> {
        let Self {
            name,
            mut go,
            spawner,
            ..
        } = self;
        let fail = |error: std::io::Error| {
            let reason = if error.kind() == std::io::ErrorKind::NotFound {
                Reason::NotFound
            } else {
                Reason::CannotRun
            };
            Failure::new(reason, format!("cannot run `{name}`: {error}"))
        };
        go.write_all(b"!").map_err(fail)?;
        drop(go);
        let child = spawner
            .join()
            .unwrap_or_else(|_| Err(std::io::Error::other("the starting thread panicked")))
            .map_err(fail)?;
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK).map_err(|error| fail(error.into()))?;
        Ok(Running { pidfd, child })
    }

    /// Ends the command before it ran.
    pub fn cancel(self) {
        drop(self.go);
        let _ = self.spawner.join();
    }
}

impl Running {
    /// Passes a signal on to the command; one that has ended is not an error.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(self.pidfd.as_fd(), signal);
    }

    /// Waits for the end.
    ///
    /// # Errors
    ///
    /// When the kernel does not know the child.
    pub fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait()
    }
}

/// The exit code that a shell would show for this end.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    u8::try_from(code & 0xff).unwrap_or(1)
}

/// Who asked for the profiler, when root was only lent by `cargo xtask run`.
struct User {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl User {
    /// Turns this process, which has one thread, into one of the user.
    fn become_it(&self) -> std::io::Result<()> {
        set_thread_groups(&self.groups)?;
        set_thread_gid(self.gid)?;
        set_thread_uid(self.uid)?;
        Ok(())
    }
}

fn invoking_user() -> Option<User> {
    std::env::var_os("PROFILER_RAISED")?;
    let (uid, gid) = owner()?;
    let groups = std::env::var("SUDO_USER")
        .ok()
        .and_then(|name| CString::new(name).ok())
        .and_then(|name| getgrouplist(&name, nix::unistd::Gid::from_raw(gid)).ok())
        .unwrap_or_default();
    Some(User {
        uid: Uid::from_raw(uid),
        gid: Gid::from_raw(gid),
        groups: groups
            .into_iter()
            .map(|group| Gid::from_raw(group.as_raw()))
            .collect(),
    })
}

/// The user behind sudo, who shall own the output.
pub fn owner() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let id = |name| std::env::var(name).ok()?.parse().ok();
    Some((id("SUDO_UID")?, id("SUDO_GID")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies() {
        let line =
            "36 29 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct";
        let mount = CgroupMount::parse(line).expect("a cgroup mount");
        assert_eq!(mount.point, Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        let lines = "12:memory:/a\n4:cpu,cpuacct:/b\n1:name=systemd:/c\n0::/d\n";
        assert_eq!(mount.hierarchy(lines), Some(4));
        let v2 = CgroupMount::parse("1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
        assert_eq!(v2.expect("a cgroup mount").hierarchy(lines), Some(0));
        assert!(CgroupMount::parse("1 2 0:3 / / rw - ext4 /dev/a rw").is_none());
        assert!(CgroupMount::parse("").is_none());
    }

    #[test]
    fn a_stopped_command_can_be_cancelled() {
        let folder = std::env::temp_dir().join(format!("stopped-{}", std::process::id()));
        let stopped = start(&["touch".into(), folder.clone().into()], None).expect("starts");
        stopped.cancel();
        assert!(!folder.exists());
    }

    #[test]
    fn a_released_command_runs() {
        let stopped = start(&["sh".into(), "-c".into(), "exit 7".into()], None).expect("starts");
        let status = stopped.release().expect("runs").wait().expect("ends");
        assert_eq!(exit_code(status), 7);
    }

    #[test]
    fn no_such_program() {
        let stopped = start(&["/no/such/program".into()], None).expect("starts");
        let error = stopped.release().err().expect("fails");
        assert_eq!(error.reason, Reason::NotFound);
    }

    #[test]
    fn pids() {
        let host = Host::probe("/proc", "/sys", None);
        assert!(roots(&host, &[std::process::id()]).is_ok());
        assert_eq!(
            roots(&host, &[u32::MAX >> 2])
                .expect_err("no such process")
                .reason,
            Reason::Target
        );
    }
}

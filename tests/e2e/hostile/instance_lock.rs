//! The lock against a second profiler of a run is inaccessible to other users, who could hide a job
//! by taking it.

use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::ErrorKind,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    path::Path,
};

use e2e::{
    attacker::UID,
    runs::{ProcessGroup, Profiler},
};
use rustix::{process::Uid, thread::set_thread_uid};
use tempfile::TempDir;

/// Runs a function as the attacker, in a thread.
fn as_attacker<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let attack = move || {
        set_thread_uid(Uid::from_raw(UID)).expect("root may change its uid");
        act()
    };
    std::thread::spawn(attack)
        .join()
        .expect("it does not panic")
}

fn hostname() -> String {
    let name = rustix::system::uname();
    name.nodename().to_str().expect("text").to_owned()
}

/// The abstract socket that was the lock in earlier versions; any user can compute its name.
fn abstract_name(out: &Path, run_id: &str) -> SocketAddr {
    let mut hash = DefaultHasher::new();
    (out.to_owned(), run_id, &*hostname()).hash(&mut hash);
    let name = format!("profiler/{:016x}/{run_id}", hash.finish());
    SocketAddr::from_abstract_name(name).expect("short")
}

/// A prolog profiles although another user has bound the name.
#[test]
fn occupied_socket_name_does_not_hide_a_job() {
    let out = TempDir::new().expect("a temporary directory");
    let address = abstract_name(&out.path().canonicalize().expect("there"), "slurm-4711");
    let _bound = as_attacker(move || UnixListener::bind_addr(&address)).expect("a free name");
    let victim = ProcessGroup::spawn(&["sleep", "60"]);
    let data = Profiler::writing_to(out.path())
        .args([
            "--once",
            "--run-id",
            "slurm-4711",
            "-d",
            "500ms",
            "-i",
            "100ms",
        ])
        .pid(victim.pid())
        .finish()
        .dataset();
    data.assert_complete();
    let (ticks,): (u64,) = data.row("SELECT count(DISTINCT ts) FROM usage");
    assert!(ticks > 0);
}

/// Other users can neither take nor replace the lock of a running profiler, nor prepare the lock of
/// a later run.
#[test]
fn locks_are_inaccessible_to_other_users() {
    let profiler = Profiler::new()
        .args(["--node", "--run-id", "locked", "--source", "system"])
        .start();
    let locks: Vec<_> = fs::read_dir("/run/profiler")
        .expect("the directory for sockets and locks")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.to_string_lossy().contains("/locked-"))
        .collect();
    assert_eq!(locks.len(), 1, "{locks:?}");
    let lock = locks[0].clone();
    let denied = as_attacker(move || {
        [
            File::open(&lock).map(|_| ()),
            fs::remove_file(&lock),
            fs::rename(&lock, lock.with_extension("moved")),
            File::create(lock.with_file_name("slurm-4711-0123456789abcdef.lock")).map(|_| ()),
        ]
        .map(|result| result.expect_err("root's directory").kind())
    });
    assert_eq!(denied, [ErrorKind::PermissionDenied; 4]);
    assert_eq!(profiler.interrupt().code(), 0);
    assert!(!locks[0].exists(), "removed with the profiler");
}

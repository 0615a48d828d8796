//! Table `filesystem` with file systems that are large, hidden, or do not answer. They are mounted in a
//! namespace of their own, in which other tests do not see them.

use std::{collections::BTreeSet, ffi::OsStr, fs, path::Path, thread::sleep, time::Duration};

use e2e::{
    dataset::Dataset,
    mounts, procfs,
    rows::Row,
    runs::{Finished, ProcessGroup, Profiler, wait_until},
};

use crate::{WORKLOAD, errors::denying};

/// A profiler whose mounts are those that `script` makes. The script ends with the execution of `"$@"`;
/// `$0` is a directory for mount points.
fn in_mounts(script: &str, directory: &Path) -> Profiler {
    let wrapper = in_namespace(script, directory);
    Profiler::wrapped_in(&wrapper).args(["--source", "filesystem", "-i", "100ms"])
}

/// The same of the node, for this many seconds.
fn profiler(script: &str, directory: &Path, seconds: u32) -> Profiler {
    in_mounts(script, directory).args(["--node", "--duration", &format!("{seconds}s")])
}

/// Words before a command that is executed by the script, in namespaces of its own.
fn in_namespace<'a>(script: &'a str, directory: &'a Path) -> [&'a str; 10] {
    [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-ec",
        script,
        directory.to_str().expect("UTF-8"),
    ]
}

/// The rows of a mount point.
fn rows(finished: &Finished, point: impl AsRef<OsStr>) -> Vec<Row> {
    let mut rows = finished.dataset().table("filesystem");
    rows.retain(|row| row.text("mount").map(OsStr::new) == Some(point.as_ref()));
    rows
}

/// NFS, CephFS, ZFS and virtiofs have blocks that are smaller than their transfers.
#[test]
fn sizes_are_in_blocks_and_not_in_transfers() {
    let directory = mounts::directory();
    let script = format!(r#"exec {WORKLOAD} file-systems "$0" 0 "$@""#);
    let finished = profiler(&script, directory.path(), 1).finish();
    let rows = rows(&finished, directory.path().join("sized"));
    assert!(!rows.is_empty(), "{}", finished.stderr);
    for row in rows {
        assert_eq!(row.u64("total"), Some(494_384_795_648));
        assert_eq!(row.u64("free"), Some(245_760_000_000));
        assert_eq!(row.u64("available"), Some(204_800_000_000));
        assert_eq!(row.u64("used"), Some(248_624_795_648));
        assert_eq!(row.u64("inodes_total"), Some(1_000_000));
        assert_eq!(row.u64("inodes_free"), Some(900_000));
    }
}

/// Mounts at a directory whose name is not UTF-8.
const NOT_UTF8: &str = r#"
    point="$0/$(printf 'data\351')"
    mkdir "$point"
    mount -t tmpfs -o size=8m e2e "$point"
    exec "$@""#;

#[test]
fn mount_points_are_bytes() {
    let directory = mounts::directory();
    let finished = profiler(NOT_UTF8, directory.path(), 1).finish();
    let rows = rows(&finished, directory.path().join("data\u{fffd}"));
    assert!(!rows.is_empty(), "{}", finished.stderr);
    assert!(rows.iter().all(|row| row.u64("total") == Some(8 << 20)));
    let stderr = &finished.stderr;
    assert!(!stderr.contains("source filesystem"), "{stderr}");
}

#[test]
fn cgroups_are_found_among_mounts_of_any_name() {
    let directory = mounts::directory();
    let path = directory.path().to_str().expect("UTF-8");
    let finished = Profiler::wrapped_in(&["unshare", "--mount", "sh", "-ec", NOT_UTF8, path])
        .args([
            "--cgroup",
            "/",
            "--source",
            "process",
            "--duration",
            "200ms",
        ])
        .finish();
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    assert!(!finished.dataset().table("process").is_empty());
}

/// A name leads to the file system that was mounted last, there or on a directory above.
#[test]
fn hidden_mounts_have_no_size_of_another_one() {
    let directory = mounts::directory();
    let script = r#"
        sized() { mkdir -p "$2"; mount -t tmpfs -o size=$1 e2e "$2"; }
        sized 1m "$0/a/hidden"
        sized 2m "$0/a/bound"
        mkdir "$0/elsewhere"
        mount --bind "$0/a/bound" "$0/elsewhere"
        sized 4m "$0/a"
        mkdir "$0/a/hidden" "$0/a/bound"
        sized 8m "$0/twice"
        sized 16m "$0/twice"
        exec "$@""#;
    let finished = profiler(script, directory.path(), 1).finish();
    let mut found = BTreeSet::new();
    for row in finished.dataset().table("filesystem") {
        let mount = Path::new(row.text("mount").expect("a path"));
        if let Ok(below) = mount.strip_prefix(directory.path()) {
            let mib = row.u64("total").expect("it answers") >> 20;
            found.insert((below.to_owned(), mib));
        }
    }
    let expected = [("a", 4), ("elsewhere", 2), ("twice", 16)];
    let expected = expected.map(|(name, mib)| (name.into(), mib));
    assert_eq!(found, BTreeSet::from(expected), "{}", finished.stderr);
}

/// Seccomp filters of old container runtimes refuse statx(2) by one of these errors.
#[test]
fn sizes_are_known_without_statx() {
    let script = r#"
        mkdir "$0/small" "$0/twice"
        mount -t tmpfs -o size=8m e2e "$0/small"
        mount -t tmpfs -o size=8m e2e "$0/twice"
        mount -t tmpfs -o size=16m e2e "$0/twice"
        exec "$@""#;
    for call in ["statx:EPERM", "statx:ENOSYS"] {
        let directory = mounts::directory();
        let namespace = in_namespace(script, directory.path());
        let denying = denying(call);
        let wrapper = [&namespace[..], &denying.each_ref().map(String::as_str)].concat();
        let finished = Profiler::wrapped_in(&wrapper)
            .args(["--source", "filesystem", "-i", "100ms"])
            .args(["--node", "--duration", "1s"])
            .finish();
        let stderr = &finished.stderr;
        assert!(!stderr.contains("source filesystem"), "{call}: {stderr}");
        for (name, mib) in [("small", 8), ("twice", 16)] {
            let rows = rows(&finished, directory.path().join(name));
            assert!(!rows.is_empty(), "{call}: {stderr}");
            assert!(rows.iter().all(|row| row.u64("total") == Some(mib << 20)));
        }
        let root = rustix::fs::statvfs("/").expect("mounted");
        let rows = rows(&finished, "/");
        assert!(!rows.is_empty(), "{call}: {stderr}");
        for row in rows {
            assert_eq!(
                row.u64("total"),
                Some(root.f_blocks * root.f_frsize),
                "{call}"
            );
        }
    }
}

/// Everything else is collected as with statx(2).
#[test]
fn other_sources_do_without_statx() {
    let path = mounts::directory().path().join("file");
    let hold = format!("exec 8> {0} 9> {0}; exec sleep 600", path.display());
    fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
    let target = ProcessGroup::spawn(&["sh", "-c", &hold]);
    wait_until("it has opened the file", || {
        fs::read_link(format!("/proc/{}/fd/9", target.pid())).is_ok_and(|file| file == path)
    });
    let profile = |wrapper: &[&str]| {
        let finished = Profiler::wrapped_in(wrapper)
            .args(["-i", "100ms", "--duration", "500ms"])
            .pid(target.pid())
            .finish();
        assert_eq!(finished.code(), 0, "{}", finished.stderr);
        let dataset = finished.dataset();
        let open: Vec<_> = dataset
            .table("usage")
            .iter()
            .filter_map(|row| row.u64("open_files"))
            .collect();
        assert!(
            !open.is_empty() && open.iter().all(|files| *files == 2),
            "{open:?}"
        );
        dataset.manifest()["sources"].clone()
    };
    let sources = profile(&["env"]);
    for call in ["statx:EPERM", "statx:ENOSYS"] {
        let denying = denying(call);
        let without = profile(&denying.each_ref().map(String::as_str));
        assert_eq!(without, sources, "{call}");
    }
}

/// A service manager may give the profiler mounts of its own.
#[test]
fn mounts_are_those_of_the_node() {
    let directory = mounts::directory();
    let script = r#"
        mkdir "$0/node" "$0/own"
        mount -t tmpfs -o size=8m e2e "$0/node"
        unshare --mount sh -ec '
            umount "$0/node"
            mount -t tmpfs e2e "$0/own"
            exec "$@"' "$0" "$@"
        exit"#;
    let finished = profiler(script, directory.path(), 1).finish();
    let of_node = rows(&finished, directory.path().join("node"));
    assert!(!of_node.is_empty(), "{}", finished.stderr);
    assert!(of_node.iter().all(|row| row.u64("total") == Some(8 << 20)));
    assert!(rows(&finished, directory.path().join("own")).is_empty());
}

/// What a user may not enter is no fault of the node.
#[test]
fn inaccessible_file_systems_are_no_errors() {
    let directory = mounts::directory();
    let script = format!(
        r#"
        chmod 755 "$0"
        mkdir -p "$0/open" "$0/closed/inner"
        mount -t tmpfs -o size=8m e2e "$0/open"
        mount -t tmpfs e2e "$0/closed/inner"
        chmod 700 "$0/closed"
        exec {WORKLOAD} file-systems "$0" 0 "$@""#
    );
    let finished = Profiler::unprivileged_in(&in_namespace(&script, directory.path()))
        .args(["--node", "--source", "filesystem", "-i", "100ms"])
        .args(["--duration", "1s"])
        .finish();
    let total = |name: &str| -> BTreeSet<Option<u64>> {
        let rows = rows(&finished, directory.path().join(name));
        rows.iter().map(|row| row.u64("total")).collect()
    };
    assert_eq!(total("open"), BTreeSet::from([Some(8 << 20)]));
    // The latter is of another user.
    for closed in ["closed/inner", "sized"] {
        assert_eq!(total(closed), BTreeSet::from([None]), "{closed}");
    }
    let stderr = &finished.stderr;
    assert!(!stderr.contains("source filesystem"), "{stderr}");
}

#[test]
fn file_systems_without_their_server_are_reported() {
    let directory = mounts::directory();
    // Its server ends with the command.
    let script = format!(
        r#"
        {WORKLOAD} file-systems "$0" 0 true
        exec "$@""#
    );
    let finished = profiler(&script, directory.path(), 1).finish();
    let point = directory.path().join("sized");
    let rows = rows(&finished, &point);
    assert!(!rows.is_empty() && rows.iter().all(|row| row.u64("total").is_none()));
    let reported = format!("source filesystem: {}: ", point.display());
    let stderr = &finished.stderr;
    assert_eq!(stderr.matches(&reported).count(), 1, "{stderr}");
}

/// A file system on one of autofs, which counts every path through it as use. The server of autofs is
/// the group of the processes, which ask nothing of it.
#[test]
fn file_systems_on_demand_are_not_kept_mounted() {
    let directory = mounts::directory();
    let script = r#"
        mkfifo "$0/server"
        exec 3<>"$0/server"
        mkdir "$0/demand" "$0/always"
        mount -t autofs -o fd=3,minproto=5,maxproto=5,direct e2e "$0/demand"
        for name in demand always; do mount -t tmpfs -o size=8m e2e "$0/$name"; done
        exec "$@""#;
    let finished = profiler(script, directory.path(), 14).finish();
    let readings = |name: &str| {
        let rows = rows(&finished, directory.path().join(name));
        assert!(rows.iter().all(|row| row.u64("total") == Some(8 << 20)));
        rows.len()
    };
    // At the first sample, after 10 s, and at the end.
    assert_eq!((readings("always"), readings("demand")), (3, 2));
}

/// File systems of which so many do not answer, and then a healthy one.
fn silent(number: usize) -> String {
    format!(
        r#"exec {WORKLOAD} file-systems "$0" {number} sh -ec '
            mkdir "$0/healthy"
            mount -t tmpfs -o size=8m e2e "$0/healthy"
            exec "$@"' "$0" "$@""#
    )
}

/// Helper processes below this process, and those of them that are in the system call.
fn helpers(process: u32) -> (usize, usize) {
    let call = format!("{} ", libc::SYS_fstatfs);
    let (mut all, mut waiting) = (0, 0);
    let mut pending = vec![process];
    while let Some(pid) = pending.pop() {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}"));
        if read("comm").is_ok_and(|name| name == "statfs\n") {
            all += 1;
            waiting += usize::from(read("syscall").is_ok_and(|now| now.starts_with(&call)));
        }
        pending.extend(procfs::children(pid));
    }
    (all, waiting)
}

/// Runs with silent file systems, and returns the largest number of helper processes.
fn run_with_silent(number: usize) -> usize {
    let directory = mounts::directory();
    let mut running = profiler(&silent(number), directory.path(), 3).spawn();
    let mut most = 0;
    while !running.has_ended() {
        most = most.max(helpers(running.pid()).0);
        sleep(Duration::from_millis(10));
    }
    let finished = running.finish();
    let totals = |point: &Path| -> Vec<_> {
        let rows = rows(&finished, point);
        rows.iter().map(|row| row.u64("total")).collect()
    };
    let below = |name: &str| totals(&directory.path().join(name));
    for healthy in [totals(Path::new("/")), below("sized"), below("healthy")] {
        assert!(healthy.len() > 1, "{healthy:?}, {}", finished.stderr);
        assert!(healthy.iter().all(Option::is_some), "{healthy:?}");
    }
    for number in 0..number {
        let silent = below(&format!("silent-{number}"));
        assert!(silent.len() > 1 && silent.iter().all(Option::is_none));
    }
    assert!(finished.stderr.contains("no answer within 1 s"));
    most
}

#[test]
fn silent_file_systems_delay_no_other() {
    // Each keeps one.
    let most = run_with_silent(8);
    assert!((8..=16).contains(&most), "{most} processes");
}

#[test]
fn helpers_for_silent_file_systems_are_bounded() {
    let most = run_with_silent(40);
    assert!((8..=16).contains(&most), "{most} processes");
}

#[test]
fn file_systems_that_answer_again_have_sizes() {
    let directory = mounts::directory();
    let file = |name: &str| directory.path().join(name);
    let waits = format!(
        "until [ -e {} ]; do sleep 0.1; done",
        file("stop").display()
    );
    let running = in_mounts(&silent(2), directory.path())
        .command(&["sh", "-c", &waits])
        .start();
    let is_of = |row: &Row, name: &str| {
        let mount = row.text("mount").expect("a path");
        Path::new(mount) == file(name)
    };
    Dataset::new(running.run_dir()).wait_for_row("filesystem", "one hangs", |row| {
        is_of(row, "silent-0") && row.u64("total").is_none()
    });
    assert_eq!(helpers(running.pid()).1, 2);
    fs::write(file("answer"), "").expect("written");
    wait_until("they have answered", || helpers(running.pid()).1 == 0);
    fs::write(file("stop"), "").expect("written");
    let finished = running.finish();
    for name in ["silent-0", "silent-1"] {
        let rows = rows(&finished, file(name));
        let last = rows.iter().max_by_key(|row| row.i64("ts"));
        assert_eq!(last.expect("rows").u64("total"), Some(494_384_795_648));
    }
}

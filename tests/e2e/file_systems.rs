//! Table `filesystem` with file systems that are large, hidden, or do not answer. They are mounted in a
//! namespace of their own, in which other tests do not see them.

use std::{ffi::OsStr, path::Path};

use e2e::{
    mounts,
    rows::Row,
    runs::{Finished, Profiler},
};

use crate::WORKLOAD;

/// A profiler of the node for this many seconds, whose mounts are those that `script` makes. The
/// script ends with the execution of `"$@"`; `$0` is a directory for mount points.
fn profiler(script: &str, directory: &Path, seconds: u32) -> Profiler {
    let directory = directory.to_str().expect("UTF-8");
    let wrapper = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-ec",
        script,
        directory,
    ];
    Profiler::wrapped_in(&wrapper)
        .args(["--node", "--source", "filesystem", "-i", "100ms"])
        .args(["--duration", &format!("{seconds}s")])
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
    point="$0/$(printf 'caf\351')"
    mkdir "$point"
    mount -t tmpfs -o size=8m e2e "$point"
    exec "$@""#;

#[test]
fn mount_points_are_bytes() {
    let directory = mounts::directory();
    let finished = profiler(NOT_UTF8, directory.path(), 1).finish();
    let rows = rows(&finished, directory.path().join("caf\u{fffd}"));
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

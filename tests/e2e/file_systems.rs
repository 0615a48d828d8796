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

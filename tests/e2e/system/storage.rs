//! Files on NFS, on a logical volume and in a container: each operation is counted once, on its own
//! mount.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use e2e::{
    dataset::Dataset,
    mounts::LoopDevice,
    rows::{Row, sum},
    runs::{ProcessGroup, Profiler},
};

use super::commands::{Gated, sh};

const WRITTEN: u64 = 8 << 20;
/// The same in blocks of 64 KiB, for `dd count=`.
const BLOCKS: u64 = WRITTEN >> 16;

fn profiler(sources: &str) -> Profiler {
    Profiler::new().args(["-i", "500ms", "--source", sources])
}

/// Pid of the `dd` with this argument.
#[track_caller]
fn dd(data: &Dataset, word: &str) -> u64 {
    let rows = data.table("process");
    let is = |row: &&Row| {
        let command = row.text("cmdline").unwrap_or_default();
        row.text("comm") == Some("dd") && command.split(' ').any(|text| text == word)
    };
    let found: Vec<_> = rows.iter().filter(is).collect();
    assert_eq!(found.len(), 1, "{word}: {rows:?}");
    found[0].u64("pid").expect("a pid")
}

fn of(rows: &[Row], is: impl Fn(&Row) -> bool) -> Vec<Row> {
    rows.iter().filter(|row| is(row)).cloned().collect()
}

/// Rows of `file_io` on a mount; asserts that its names are those of the kernel.
#[track_caller]
fn on_mount(data: &Dataset, mount: &str, fstype: &str, source: &str) -> Vec<Row> {
    let rows = of(&data.table("file_io"), |row| {
        row.text("mount") == Some(mount)
    });
    assert!(!rows.is_empty(), "no rows for {mount}");
    for row in &rows {
        let names = (row.text("fstype"), row.text("source"), row.text("method"));
        assert_eq!(names, (Some(fstype), Some(source), Some("vfs")));
    }
    rows
}

/// An NFS export of this machine, mounted on the same machine.
struct Nfs;

impl Nfs {
    const POINT: &str = "/mnt/nfs";
    const SOURCE: &str = "127.0.0.1:/";

    fn mount() -> Self {
        sh(&format!(
            "mkdir -p /srv/export {0} /etc/exports.d /etc/nfs.conf.d
             echo '/srv/export 127.0.0.1(rw,fsid=0,no_root_squash,no_subtree_check)' >/etc/exports.d/e2e.exports
             printf '[nfsd]\nvers3=n\ngrace-time=1\nlease-time=1\n' >/etc/nfs.conf.d/e2e.conf
             systemctl start nfs-server
             mount -t nfs4 -o timeo=10 {1} {0}",
            Self::POINT,
            Self::SOURCE
        ));
        Self
    }

    /// Bytes read and written by programs through the page cache, and by the client.
    fn bytes() -> [u64; 4] {
        let text = fs::read_to_string("/proc/self/mountstats").expect("NFS");
        let place = format!(" mounted on {} ", Self::POINT);
        let mount = text.split("device ").find(|text| text.contains(&place));
        let line = mount.and_then(|text| {
            text.lines()
                .find_map(|line| line.trim().strip_prefix("bytes:"))
        });
        let numbers = line.expect("counters").split_whitespace();
        let numbers: Vec<u64> = numbers
            .map(|word| word.parse().expect("a number"))
            .collect();
        [numbers[0], numbers[1], numbers[4], numbers[5]]
    }
}

impl Drop for Nfs {
    fn drop(&mut self) {
        sh(&format!(
            "rpc.nfsd 4; umount {}; systemctl stop nfs-server",
            Self::POINT
        ));
    }
}

#[test]
fn files_on_nfs_are_counted_on_their_mount() {
    let _nfs = Nfs::mount();
    let before = Nfs::bytes();
    let script = format!(
        "dd if=/dev/zero of={0}/file bs=64k count={BLOCKS} conv=fsync
         echo 3 >/proc/sys/vm/drop_caches
         dd if={0}/file of=/dev/null bs=64k",
        Nfs::POINT
    );
    let ended = profiler("process,file_io,block_io,filesystem")
        .command(&["sh", "-ec", &script])
        .finish();
    let data = ended.dataset();
    let after = Nfs::bytes();
    data.assert_complete();

    let rows = on_mount(&data, Nfs::POINT, "nfs4", Nfs::SOURCE);
    let by = |word: &str, column: &str| {
        let pid = dd(&data, word);
        sum(&of(&rows, |row| row.u64("pid") == Some(pid)), column)
    };
    let writer = format!("of={}/file", Nfs::POINT);
    let reader = format!("if={}/file", Nfs::POINT);
    let counted =
        ["write_bytes", "read_bytes", "write_ops", "fsyncs"].map(|column| by(&writer, column));
    assert_eq!(counted, [WRITTEN, 0, BLOCKS, 1]);
    let counted = ["write_bytes", "read_bytes", "read_ops"].map(|column| by(&reader, column));
    assert_eq!(counted, [0, WRITTEN, BLOCKS + 1]);
    // The counters of the client.
    let growth = [0, 1, 2, 3].map(|index| after[index] - before[index]);
    assert_eq!(growth, [WRITTEN; 4]);

    let rows = of(&data.table("filesystem"), |row| {
        row.text("mount") == Some(Nfs::POINT)
    });
    let size = rustix::fs::statvfs(Nfs::POINT).expect("mounted");
    assert!(!rows.is_empty());
    for row in rows {
        let names = (row.text("fstype"), row.text("device"));
        assert_eq!(names, (Some("nfs4"), Some(Nfs::SOURCE)));
        assert_eq!(row.u64("total"), Some(size.f_blocks * size.f_frsize));
    }
}

/// Only threads that access the mount are blocked.
#[test]
fn unresponsive_nfs_server_delays_nothing() {
    let _nfs = Nfs::mount();
    sh("rpc.nfsd 0");
    let begin = Instant::now();
    let mut profiler = profiler("process,usage,system,filesystem")
        .args(["--node"])
        .start();
    let waiting = ProcessGroup::spawn(&["stat", &format!("{}/file", Nfs::POINT)]);
    profiler.wait_for(Nfs::POINT);
    let ended = profiler.interrupt();
    let elapsed = begin.elapsed();
    let data = ended.dataset();
    data.assert_complete();
    sh("rpc.nfsd 4");
    drop(waiting);

    let rows = data.table("filesystem");
    let sizes = |mount: &str| -> Vec<_> {
        let rows = of(&rows, |row| row.text("mount") == Some(mount));
        rows.iter().map(|row| row.u64("total")).collect()
    };
    let (nfs, root) = (sizes(Nfs::POINT), sizes("/"));
    assert!(nfs.len() > 1 && nfs.iter().all(Option::is_none), "{nfs:?}");
    assert!(root.iter().all(Option::is_some), "{root:?}");
    let ticks = data.manifest()["samples"].clone();
    assert!(elapsed < Duration::from_secs(30), "{elapsed:?}, {ticks}");
    let usage = of(&data.table("usage"), |row| row.text("state") == Some("D"));
    assert!(!usage.is_empty(), "other processes are recorded");
}

/// The volume is on a loop device, whose requests are charged to the writer.
#[test]
fn logical_volume_writes_are_charged_on_the_underlying_disk() {
    const POINT: &str = "/mnt/volume";
    const SOURCE: &str = "/dev/mapper/e2e-volume";
    let disk = LoopDevice::new(Path::new("/srv/volume.img"), 64);
    sh(&format!(
        "vgcreate --quiet e2e {}
         lvcreate --quiet --yes --extents 100%FREE --name volume e2e
         mke2fs -q -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 {SOURCE}
         mkdir -p {POINT}; mount {SOURCE} {POINT}",
        disk.path()
    ));
    let script = format!(
        "dd if=/dev/zero of={POINT}/synced bs=64k count={BLOCKS} conv=fsync
         dd if=/dev/zero of={POINT}/direct bs=64k count={BLOCKS} oflag=direct"
    );
    let ended = profiler("process,file_io,block_io,filesystem")
        .command(&["sh", "-ec", &script])
        .finish();
    let data = ended.dataset();
    sh(&format!("umount {POINT}; vgremove --quiet --yes e2e"));
    data.assert_complete();

    let files = on_mount(&data, POINT, "ext4", SOURCE);
    let blocks = data.table("block_io");
    for name in ["synced", "direct"] {
        let pid = dd(&data, &format!("of={POINT}/{name}"));
        let is_its = |row: &Row| row.u64("pid") == Some(pid);
        assert_eq!(sum(&of(&files, is_its), "write_bytes"), WRITTEN, "{name}");
        let writes = of(&blocks, |row| {
            is_its(row) && row.text("op") == Some("write")
        });
        assert!(
            writes
                .iter()
                .all(|row| row.text("device") == Some(disk.name())),
            "{writes:?}"
        );
        assert_eq!(sum(&writes, "bytes"), WRITTEN, "{name}");
    }
}

/// A systemd-nspawn container on an overlay, profiled from outside.
#[test]
fn container_files_on_overlayfs_are_counted_once() {
    const CGROUP: &str = "/machine.slice/machine-e2e.scope";
    sh(&format!(
        "dd if=/dev/zero of=/srv/lower bs=64k count={BLOCKS}
         mkdir -p /mnt/container; mount --bind / /mnt/container"
    ));
    let wrapper = [
        "systemd-nspawn",
        "--quiet",
        "--pipe",
        "--machine=e2e",
        "--directory=/mnt/container",
        "--volatile=overlay",
    ];
    let script = format!(
        "dd if=/dev/zero of=/srv/upper bs=64k count={BLOCKS}
         dd if=/srv/lower of=/dev/null bs=64k
         dd if=/dev/null of=/dev/null bs=64k
         sleep 3"
    );
    // Mounts are named while a process sees them: the container lives until they have been looked
    // up.
    let container = Gated::wrapped_in(&wrapper, &script);
    let profiler = profiler("process,file_io")
        .args(["--cgroup", CGROUP])
        .start();
    container.release();
    let ended = profiler.finish();
    sh("umount /mnt/container");
    let data = ended.dataset();
    data.assert_complete();

    let rows = data.table("file_io");
    let counted = |word: &str| {
        let pid = dd(&data, word);
        // Rows without a mount have failed opens.
        let is_its = |row: &Row| row.u64("pid") == Some(pid) && row.u64("errors") == Some(0);
        let rows = of(&rows, is_its);
        for row in &rows {
            let names = (row.text("mount"), row.text("fstype"));
            assert_eq!(names, (Some("/"), Some("overlay")), "{row:?}");
        }
        ["read_bytes", "write_bytes"].map(|column| sum(&rows, column))
    };
    // The loader reads the same bytes of libraries in each process.
    let [libraries, nothing] = counted("if=/dev/null");
    assert_eq!(nothing, 0);
    assert_eq!(counted("of=/srv/upper"), [libraries, WRITTEN]);
    assert_eq!(counted("if=/srv/lower"), [libraries + WRITTEN, 0]);
}

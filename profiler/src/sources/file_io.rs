//! `file_io`: what each process read, wrote and did to files, by mount.

use anyhow::Result;

use super::{Sample, Source, SourceSpec, Support, feature_support, process_key};
use crate::{
    bpf::{Feature, Way},
    columns,
    host::Host,
    schema::{Batch, Label, ProcessKey, Table, TableBuilder},
};

columns! {
    /// What a process did with the files of a mount.
    pub struct FileIoRow {
        mount: Option<Label> = Label("", "Mount point in the process's mount namespace; null: not known, gone, or a file system that is mounted nowhere (memfd)"),
        fstype: Option<Label> = Label("", "Type of the file system: ext4, tmpfs, overlay, nfs4, lustre, fuse.…"),
        source: Option<Label> = Label("", "What is mounted: a device, server:/export"),
        dev: Option<Label> = Label("", "Device number major:minor, as in /proc/PID/mountinfo"),
        read_ops: u64 = Counter("1", "Reads without error, the one that tells the end of the file included; accounting: all read calls (syscr)"),
        read_bytes: u64 = Counter("bytes", "Bytes that they returned; accounting: rchar"),
        write_ops: u64 = Counter("1", "Writes without error; accounting: all write calls (syscw)"),
        write_bytes: u64 = Counter("bytes", "Bytes that they accepted; accounting: wchar"),
        errors: Option<u64> = Counter("1", "Reads, writes, syncs and opens that failed"),
        fsyncs: Option<u64> = Counter("1", "fsync, fdatasync and msync that succeeded"),
        opens: Option<u64> = Counter("1", "Files and directories opened, those created included"),
        creates: Option<u64> = Counter("1", "Files created by opening them"),
        unlinks: Option<u64> = Counter("1", "Files and directories removed"),
        renames: Option<u64> = Counter("1", "Files and directories renamed"),
        mkdirs: Option<u64> = Counter("1", "Directories made"),
    }
}

static TABLE: Table = Table::new::<ProcessKey, FileIoRow>(
    "file_io",
    "One row per tick, process and mount, where anything happened",
);

static FEATURE: Feature = Feature {
    source: "file_io",
    maps: &[],
    ways: &[ACCOUNTING],
};

/// What the kernel counts of each task anyway: nothing is attached.
const ACCOUNTING: Way = Way {
    name: "accounting",
    hooks: &[],
    optional: &[],
    without: "one row per process without mount, errors and opens, in which pipes and sockets count too if \
              read(2) or write(2) is used on them",
    on_request: false,
};

/// Registry entry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "file_io",
    help: "reads, writes, syncs, opens and removals of files, by process and mount",
    tables: &[&TABLE],
    probe,
    tasks: true,
    procfs: true,
    feature: Some(&FEATURE),
    default: true,
    open: |_| Ok(Box::new(FileIo(TableBuilder::new(&TABLE)))),
};

/// Without the programs there is still the accounting in /proc.
fn probe(host: &Host) -> Support {
    match feature_support(host, &FEATURE) {
        Support::No { .. } => super::task_support(host),
        support => support,
    }
}

struct FileIo(TableBuilder<ProcessKey, FileIoRow>);

impl Source for FileIo {
    fn sample(&mut self, at: &Sample<'_>, out: &mut Vec<Batch>) -> Result<()> {
        if at.tasks.keeps.io {
            self.account(at);
        }
        self.0.finish(out);
        Ok(())
    }
}

impl FileIo {
    /// Way `accounting`.
    fn account(&mut self, at: &Sample<'_>) {
        for row in &at.tasks.rows {
            let increase = &row.increase;
            let calls = increase.syscr + increase.syscw;
            // sendfile and copy_file_range count bytes, and calls of both kinds.
            if calls + increase.rchar + increase.wchar == 0 {
                continue;
            }
            self.0.push(
                process_key(at, row),
                FileIoRow {
                    mount: None,
                    fstype: None,
                    source: None,
                    dev: None,
                    read_ops: increase.syscr,
                    read_bytes: increase.rchar,
                    write_ops: increase.syscw,
                    write_bytes: increase.wchar,
                    errors: None,
                    fsyncs: None,
                    opens: None,
                    creates: None,
                    unlinks: None,
                    renames: None,
                    mkdirs: None,
                },
            );
        }
    }
}

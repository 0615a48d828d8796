//! `file_io`: reads, writes and other operations on files, by process and mount.

use anyhow::Result;
use profiler_ebpf::{
    config,
    maps::{self, Named as _},
    per_key::{self, kind},
};

use super::{
    Input, OpenContext, Source, SourceSpec, TickContext,
    latency::{self, Latencies},
    syscalls,
};
use crate::{
    bpf::{AttachResult, Hook, Instrumentation, Method},
    columns,
    procfs::mount_names::{MountNames, Name, dev_label},
    schema::{Batch, Label, ProcessKey, TableBuilder, TypedTable},
};

columns! {
    /// Operations of a process on the files of a mount.
    pub struct FileIoRow {
        mount: Option<Label> = Label("", "Mount point in the mount namespace of the process; null if it is unknown, was removed, or the file system is mounted nowhere (memfd)"),
        fstype: Option<Label> = Label("", "Type of the file system: ext4, tmpfs, overlay, nfs4, lustre, fuse.…"),
        source: Option<Label> = Label("", "Mounted device or server:/export"),
        dev: Option<Label> = Label("", "Device number major:minor, as in /proc/PID/mountinfo"),
        method: Label = Label("", "Collection method: vfs and syscalls count files only; accounting counts all read and write calls, including those on pipes and devices"),
        read_ops: u64 = Counter("1", "Successful reads, including those at the end of the file; accounting: all read calls (syscr)"),
        read_bytes: u64 = Counter("bytes", "Bytes returned by reads; accounting: rchar"),
        write_ops: u64 = Counter("1", "Successful writes; accounting: all write calls (syscw)"),
        write_bytes: u64 = Counter("bytes", "Bytes accepted by writes; accounting: wchar"),
        errors: Option<u64> = Counter("1", "Failed reads, writes, syncs and opens"),
        fsyncs: Option<u64> = Counter("1", "Successful fsync, fdatasync and msync calls"),
        opens: Option<u64> = Counter("1", "Files and directories opened, including created ones"),
        creates: Option<u64> = Counter("1", "Files created by opening them"),
        unlinks: Option<u64> = Counter("1", "Files and directories removed"),
        renames: Option<u64> = Counter("1", "Files and directories renamed"),
        mkdirs: Option<u64> = Counter("1", "Directories created"),
    }
}

pub static TABLE: TypedTable<ProcessKey, FileIoRow> = TypedTable::new(
    "file_io",
    "One row per sample, process and mount, if there was any operation",
);

static INSTRUMENTATION: Instrumentation = Instrumentation {
    source: "file_io",
    maps: &[
        per_key::FileIo::NAME,
        maps::FileAsync::NAME,
        per_key::Latency::NAME,
    ],
    methods: &[VFS, ACCOUNTING, SYSCALLS],
    optional: &[],
};

/// Name of the system call's function on this architecture.
const FDATASYNC: &str = if cfg!(target_arch = "aarch64") {
    "__arm64_sys_fdatasync"
} else {
    "__x64_sys_fdatasync"
};

/// Functions through which all reads and writes pass. Ends are attached before starts, so that an
/// operation in flight is not counted.
const VFS: Method = Method::new(
    "vfs",
    &[
        Hook::fexit("vfs_read_exit", "vfs_read"),
        Hook::fexit("vfs_write_exit", "vfs_write"),
        Hook::fexit("vfs_readv_exit", "vfs_readv"),
        Hook::fexit("vfs_writev_exit", "vfs_writev"),
        Hook::fexit("vfs_splice_exit", "do_splice"),
        Hook::fexit("vfs_sendfile_exit", "do_sendfile"),
        Hook::fexit("vfs_copy_exit", "vfs_copy_file_range"),
        Hook::fexit("vfs_fsync_exit", "vfs_fsync_range"),
        Hook::fexit("vfs_fdatasync_exit", FDATASYNC),
        Hook::fexit("vfs_open_exit", "do_filp_open"),
        Hook::fentry("vfs_read_enter", "vfs_read"),
        Hook::fentry("vfs_write_enter", "vfs_write"),
        Hook::fentry("vfs_readv_enter", "vfs_readv"),
        Hook::fentry("vfs_writev_enter", "vfs_writev"),
        Hook::fentry("vfs_splice_enter", "do_splice"),
        Hook::fentry("vfs_sendfile_enter", "do_sendfile"),
        Hook::fentry("vfs_copy_enter", "vfs_copy_file_range"),
        Hook::fentry("vfs_fsync_enter", "vfs_fsync_range"),
        Hook::fentry("vfs_fdatasync_enter", FDATASYNC),
    ],
)
.optional(&[
    Hook::fexit("vfs_unlink_exit", "do_unlinkat"),
    Hook::fexit("vfs_rmdir_exit", "do_rmdir"),
    Hook::fexit("vfs_rename_exit", "do_renameat2"),
    Hook::fexit("vfs_mkdir_exit", "do_mkdirat"),
    Hook::fentry("vfs_want_write", "mnt_want_write"),
    Hook::fentry("vfs_unlink_enter", "do_unlinkat"),
    Hook::fentry("vfs_rmdir_enter", "do_rmdir"),
    Hook::fentry("vfs_rename_enter", "do_renameat2"),
    Hook::fentry("vfs_mkdir_enter", "do_mkdirat"),
    Hook::fentry("aio_complete", "aio_complete_rw"),
    Hook::fexit("aio_read_exit", "aio_read"),
    Hook::fexit("aio_write_exit", "aio_write"),
    Hook::fentry("aio_read_enter", "aio_read"),
    Hook::fentry("aio_write_enter", "aio_write"),
    URING_COMPLETE,
    URING_SUBMIT,
    Hook::fexit("vfs_uring_write_exit", "io_write"),
    Hook::fentry("vfs_uring_write_enter", "io_write"),
]);

/// The kernel's I/O accounting of each task, without programs.
const ACCOUNTING: Method = Method::new("accounting", &[])
    .without("bytes per process only; no mounts, opens or errors; pipes and devices included");

/// Results of system calls. The hooks slow the system calls of all tasks on the node.
const SYSCALLS: Method = Method::new("syscalls", syscalls::HOOKS)
    .optional(&[URING_COMPLETE, URING_SUBMIT])
    .without(
        "no asynchronous I/O (io_submit), no 32-bit programs; unlinks, renames and mkdirs without mount",
    )
    .on_request()
    .syscalls(config::syscalls::FILES);

const URING_COMPLETE: Hook = Hook::tracepoint("uring_complete", "io_uring_complete");
const URING_SUBMIT: Hook =
    Hook::tracepoint("uring_submit", "io_uring_submit_req").formerly("io_uring_submit_sqe");

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "file_io",
    help: "reads, writes, syncs, opens and removals of files, by process and mount",
    tables: &[TABLE.untyped(), latency::TABLE.untyped()],
    input: Input::Tasks { procfs: true },
    instrumentation: Some(&INSTRUMENTATION),
    open: |context| Ok(Box::new(FileIo::new(context))),
    ..SourceSpec::DEFAULT
};

struct FileIo {
    rows: TableBuilder<ProcessKey, FileIoRow>,
    latencies: Latencies,
    names: MountNames,
    missing: MissingColumns,
    method: &'static str,
}

/// Columns whose functions this kernel does not have.
#[derive(Clone, Copy, Default)]
struct MissingColumns {
    unlinks: bool,
    renames: bool,
    mkdirs: bool,
}

impl MissingColumns {
    fn of(result: &AttachResult) -> Self {
        let any = |programs: &[&str]| programs.iter().any(|program| result.is_missing(program));
        Self {
            unlinks: any(&[
                "vfs_unlink_enter",
                "vfs_unlink_exit",
                "vfs_rmdir_enter",
                "vfs_rmdir_exit",
            ]),
            renames: any(&["vfs_rename_enter", "vfs_rename_exit"]),
            mkdirs: any(&["vfs_mkdir_enter", "vfs_mkdir_exit"]),
        }
    }
}

impl Source for FileIo {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        if ctx.tasks.per_key.file_io.is_some() {
            self.per_key(ctx);
            self.latencies.sample(ctx, out);
        } else if ctx.tasks.kernel_support.io {
            self.account(ctx);
        }
        self.rows.finish(out);
        Ok(())
    }
}

impl FileIo {
    fn new(context: &OpenContext<'_>) -> Self {
        Self {
            rows: TableBuilder::new(&TABLE),
            latencies: Latencies::new(&[
                (kind::FILE_READ, "file_read"),
                (kind::FILE_WRITE, "file_write"),
                (kind::FSYNC, "fsync"),
            ]),
            names: MountNames::new(&context.host.procfs),
            missing: context.result.map(MissingColumns::of).unwrap_or_default(),
            method: context
                .result
                .and_then(|result| result.method)
                .unwrap_or(ACCOUNTING.name),
        }
    }

    /// Adds the rows that the BPF programs counted.
    fn per_key(&mut self, ctx: &TickContext<'_>) {
        let Some(table) = &ctx.tasks.per_key.file_io else {
            return;
        };
        for row in &table.rows {
            let Some(id) = row.id else { continue };
            let (name, dev) = if row.dimension == 0 {
                (Name::default(), None)
            } else {
                let others = ctx.tasks.iter().map(|process| process.id.pid);
                let name = self.names.get(row.dimension, id.pid, others);
                (name, Some(dev_label(row.dimension)))
            };
            let entry = &row.increase;
            self.rows.push(
                ctx.key_of_process(id, row.tid, row.interval_ns),
                FileIoRow {
                    mount: name.mount,
                    fstype: name.fstype,
                    source: name.source,
                    dev,
                    method: Label::Static(self.method),
                    read_ops: entry.read_ops,
                    read_bytes: entry.read_bytes,
                    write_ops: entry.write_ops,
                    write_bytes: entry.write_bytes,
                    errors: Some(entry.errors),
                    fsyncs: Some(entry.fsyncs),
                    opens: Some(entry.opens),
                    creates: Some(entry.creates),
                    unlinks: (!self.missing.unlinks).then_some(entry.unlinks),
                    renames: (!self.missing.renames).then_some(entry.renames),
                    mkdirs: (!self.missing.mkdirs).then_some(entry.mkdirs),
                },
            );
        }
    }

    /// Adds the rows of method `accounting`.
    fn account(&mut self, ctx: &TickContext<'_>) {
        for row in &ctx.tasks.rows {
            let increase = &row.increase;
            let calls = increase.syscr + increase.syscw;
            if !row.io_read || calls + increase.rchar + increase.wchar == 0 {
                continue;
            }
            self.rows.push(
                ctx.key_of_task(row),
                FileIoRow {
                    mount: None,
                    fstype: None,
                    source: None,
                    dev: None,
                    method: Label::Static(ACCOUNTING.name),
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

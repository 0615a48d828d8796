//! `syscalls`: number, errors and duration of each system call, by process.

use anyhow::Result;
use profiler_ebpf::{
    config,
    maps::Named as _,
    per_key::{self, call},
};
use syscalls::{aarch64, arm, x86, x86_64};

use super::{Input, Source, SourceSpec, TickContext};
use crate::{
    bpf::{Hook, Instrumentation, Method},
    columns,
    schema::{Batch, Buckets, Label, ProcessKey, TableBuilder, TypedTable},
};

columns! {
    /// Calls of one system call by a process.
    pub struct SyscallRow {
        syscall: Label = Label("", "Name of the system call; syscall_N for a number without a name"),
        abi: Label = Label("", "System call table: x86_64, aarch64; i386, arm (32-bit programs); x32"),
        count: u64 = Counter("1", "Calls that returned; the sum of the buckets"),
        errors: u64 = Counter("1", "Calls that returned an error"),
        total_ns: u64 = Counter("ns", "Time from entry to return, including waits"),
        max_ns: u64 = Maximum("ns", "Longest call that returned in the interval"),
        buckets: Buckets = Counter("1", "Histogram of the durations: buckets as in `latency`"),
    }
}

pub static TABLE: TypedTable<ProcessKey, SyscallRow> = TypedTable::new(
    "syscalls",
    "One row per sample, process and system call, if a call returned",
);

static INSTRUMENTATION: Instrumentation = Instrumentation {
    source: "syscalls",
    maps: &[per_key::Syscalls::NAME],
    methods: &[Method::new("tracepoints", HOOKS).syscalls(config::syscalls::COUNT)],
    optional: &[],
};

/// The exit is attached before the entry, so that no call is seen whose entry was not.
pub(super) const HOOKS: &[Hook] = &[
    Hook::tracepoint("sys_exit", "sys_exit"),
    Hook::tracepoint("sys_enter", "sys_enter"),
];

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "syscalls",
    help: "count, errors and time of each system call, by process; slows every call on the node",
    tables: &[TABLE.untyped()],
    input: Input::Tasks { procfs: false },
    instrumentation: Some(&INSTRUMENTATION),
    default: false,
    open: |_| Ok(Box::new(Syscalls(TableBuilder::new(&TABLE)))),
    ..SourceSpec::DEFAULT
};

struct Syscalls(TableBuilder<ProcessKey, SyscallRow>);

impl Source for Syscalls {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let Some(table) = &ctx.tasks.per_key.syscalls else {
            return Ok(());
        };
        for row in &table.rows {
            let Some(id) = row.id else { continue };
            let calls = &row.increase;
            let (number, abi) = parts(row.dimension);
            self.0.push(
                ctx.key_of_process(id, row.tid, row.interval_ns),
                SyscallRow {
                    syscall: name(number, abi),
                    abi: abi_name(abi).into(),
                    count: calls.latency.count,
                    errors: calls.errors,
                    total_ns: calls.latency.sum,
                    max_ns: calls.latency.max,
                    buckets: calls.latency.buckets.clone(),
                },
            );
        }
        self.0.finish(out);
        Ok(())
    }
}

const ON_ARM: bool = cfg!(target_arch = "aarch64");

fn parts(dimension: u64) -> (u32, u64) {
    (
        u32::try_from(dimension & 0xffff_ffff).unwrap_or(u32::MAX),
        dimension >> 32,
    )
}

fn abi_name(abi: u64) -> &'static str {
    match abi {
        call::COMPAT if ON_ARM => "arm",
        call::COMPAT => "i386",
        call::X32 => "x32",
        _ if ON_ARM => "aarch64",
        _ => "x86_64",
    }
}

/// Name of a system call. x32 uses the numbers of x86-64, and numbers from 512 for calls that
/// differ.
fn name(number: u32, abi: u64) -> Label {
    let index = number as usize;
    let name = match abi {
        call::COMPAT if ON_ARM => arm::Sysno::new(index).map(|call| call.name()),
        call::COMPAT => x86::Sysno::new(index).map(|call| call.name()),
        _ if ON_ARM => aarch64::Sysno::new(index).map(|call| call.name()),
        _ => x86_64::Sysno::new(index).map(|call| call.name()),
    };
    name.map_or_else(|| format!("syscall_{number}").into(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_names() {
        let name = |number, abi| {
            let (number, abi) = parts(call::dimension(number, abi));
            name(number, abi).as_str().to_owned()
        };
        let getppid = u32::try_from(libc::SYS_getppid).expect("small");
        assert_eq!(name(getppid, call::NATIVE), "getppid");
        assert_eq!(name(3, call::COMPAT), "read");
        assert_eq!(name(9999, call::NATIVE), "syscall_9999");
        assert_ne!(abi_name(call::COMPAT), abi_name(call::NATIVE));
    }
}

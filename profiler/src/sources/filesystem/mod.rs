//! `filesystem`: how full each mounted file system is, by `statfs(2)`.

mod statfs_helper;
mod statfs_protocol;

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

use self::statfs_protocol::{Answer, Asking};
use super::{Context, Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::Host,
    procfs::mounts::{NodeMounts, Numbered},
    schema::{Batch, Label, Table, TableBuilder, TickKey},
    support::{clock::monotonic_ns, worker::Worker},
};

columns! {
    /// One file system at one moment.
    pub struct FilesystemRow {
        mount: Label = Label("", "Where it is mounted; of several places the first"),
        device: Option<Label> = Label("", "What is mounted: a device, server:/export"),
        fstype: Label = Label("", "Type of the file system"),
        read_only: bool = Label("", "Whether it is mounted read-only"),
        total: Option<u64> = Gauge("bytes", "Size; null, as all numbers, when it did not answer within 1 s"),
        used: Option<u64> = Gauge("bytes", "`total - free`"),
        free: Option<u64> = Gauge("bytes", "Not used, what is kept for root included"),
        available: Option<u64> = Gauge("bytes", "What users can still write; psutil's free"),
        inodes_total: Option<u64> = Gauge("1", "Files that it has room for; null where it has no such limit"),
        inodes_free: Option<u64> = Gauge("1", "Files that can still be made; null likewise"),
    }
}

static TABLE: Table = Table::new::<TickKey, FilesystemRow>(
    "filesystem",
    "Each mounted file system with a size: one row at the first tick, then every 10 s, and at the end of the run",
);

/// The entry of the registry.
pub static SPEC: SourceSpec = SourceSpec {
    name: "filesystem",
    help: "size and use of each mounted file system",
    tables: &[&TABLE],
    probe,
    tasks: false,
    procfs: false,
    instrumentation: None,
    default: true,
    open: |context: &Context<'_>| Ok(Box::new(Filesystems::open(context.host))),
};

fn probe(host: &Host) -> Support {
    let mounts = NodeMounts::new(&host.procfs);
    if mounts.all().is_empty() {
        return Support::No {
            why: format!("no mounts in {}", mounts.file().display()),
            remedy: "mount -t proc proc /proc".to_owned(),
        };
    }
    Support::Works
}

/// A question to a server's file system is a message to the server, from every node.
const EVERY: Duration = Duration::from_secs(10);
/// How long a tick waits: a local disk answers within microseconds.
const TIMEOUT: Duration = Duration::from_millis(2);
/// How long the first tick waits: the helper has to be started.
const FIRST_TIMEOUT: Duration = Duration::from_millis(50);
/// How long the end of a run waits: a file server takes longer.
const LAST_TIMEOUT: Duration = Duration::from_secs(1);

/// Types without a size, or (autofs) those that a question would mount.
const WITHOUT_SIZE: [&str; 24] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nfsd",
    "nsfs",
    "proc",
    "pstore",
    "ramfs",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// Every file system once: bind mounts show the same again, and a mount hides what was mounted there before.
fn visible_mounts(all: Vec<Numbered>) -> Vec<Numbered> {
    let mut seen_points = HashSet::new();
    let mut visible: Vec<_> = all
        .into_iter()
        .rev()
        .filter(|found| seen_points.insert(found.mount.mount_point.clone()))
        .collect();
    visible.reverse();
    let mut seen = HashSet::new();
    visible.retain(|found| {
        !WITHOUT_SIZE.contains(&found.mount.fstype.as_str()) && seen.insert(found.dev)
    });
    visible
}

/// What the thread does.
fn asking(node: NodeMounts) -> impl FnMut(Vec<Numbered>) -> Vec<Answer> {
    let mut asking = Asking::new(node);
    move |mounts| asking.all(mounts)
}

struct Filesystems {
    mounts: NodeMounts,
    beside: Option<Worker<Vec<Numbered>, Vec<Answer>>>,
    asked: Option<Instant>,
    read_at: Option<u64>,
    rows: TableBuilder<TickKey, FilesystemRow>,
}

impl Filesystems {
    fn open(host: &Host) -> Self {
        Self {
            mounts: NodeMounts::new(&host.procfs),
            beside: None,
            asked: None,
            read_at: None,
            rows: TableBuilder::new(&TABLE),
        }
    }

    fn push(&mut self, at: &TickContext<'_>, interval_ns: u64, answer: &Answer) {
        let mount = &answer.of.mount;
        let size = answer.size.as_ref().ok();
        // Pseudo file systems that are not in the list.
        if size.is_some_and(|size| size.total == 0) {
            return;
        }
        let limited = size.filter(|size| size.inodes_total != 0);
        self.rows.push(
            TickKey {
                ts: at.tick.ts,
                interval_ns,
            },
            FilesystemRow {
                mount: mount.mount_point.clone().into(),
                device: mount.source.clone().map(Label::from),
                fstype: mount.fstype.clone().into(),
                read_only: mount.options.iter().any(|option| option == "ro"),
                total: size.map(|size| size.total),
                used: size.map(|size| size.total.saturating_sub(size.free)),
                free: size.map(|size| size.free),
                available: size.map(|size| size.available),
                inodes_total: limited.map(|size| size.inodes_total),
                inodes_free: limited.map(|size| size.inodes_free),
            },
        );
    }
}

impl Source for Filesystems {
    fn sample(&mut self, at: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        let before = *self.read_at.get_or_insert_with(monotonic_ns);
        let timeout = match self.asked {
            _ if at.last => LAST_TIMEOUT,
            None => FIRST_TIMEOUT,
            Some(_) => TIMEOUT,
        };
        let due = self.asked.is_none_or(|asked| asked.elapsed() >= EVERY);
        let beside = match &mut self.beside {
            Some(beside) => beside,
            none => none.insert({
                let node = self.mounts.clone();
                Worker::start("statfs", move || asking(node))?
            }),
        };
        if (due || at.last) && !beside.is_asked() {
            beside.ask(visible_mounts(self.mounts.all()))?;
            self.asked = Some(Instant::now());
        }
        let Some(answers) = beside.take(timeout) else {
            return Ok(());
        };
        let now = monotonic_ns();
        self.read_at = Some(now);
        for answer in &answers {
            self.push(at, now - before, answer);
        }
        self.rows.finish(out);
        let problem = answers.iter().find_map(|answer| {
            let error = answer.size.as_ref().err()?;
            Some(anyhow!("{}: {error}", answer.of.mount.mount_point))
        });
        problem.map_or(Ok(()), Err)
    }
}

//! `filesystem`: size and free space of each mounted file system, from `statfs(2)`.

mod statfs_client;
mod statfs_helper;

use std::{
    collections::HashSet,
    io,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use self::statfs_client::{Answer, StatfsClient};
use super::{Source, SourceSpec, Support, TickContext};
use crate::{
    columns,
    host::Host,
    procfs::mounts::{self, NodeMounts, Numbered},
    schema::{Batch, Label, TableBuilder, TickKey, TypedTable},
    support::{clock::monotonic_ns, worker::Worker},
};

columns! {
    /// One file system at one time.
    pub struct FilesystemRow {
        mount: Label = Label("", "Mount point; the first visible one if there are several"),
        device: Option<Label> = Label("", "Mounted device or server:/export"),
        fstype: Label = Label("", "Type of the file system"),
        read_only: bool = Gauge("", "Whether it is mounted read-only"),
        total: Option<u64> = Gauge("bytes", "Size; null, like all numbers, if the file system did not answer within 1 s, was not queried because 15 others do not answer, or is not accessible to the user"),
        used: Option<u64> = Gauge("bytes", "Space in use: `total - free`"),
        free: Option<u64> = Gauge("bytes", "Free space, including what is reserved for root"),
        available: Option<u64> = Gauge("bytes", "Free space for users; free in psutil"),
        inodes_total: Option<u64> = Gauge("1", "Limit of the number of files; null if there is none"),
        inodes_free: Option<u64> = Gauge("1", "Number of files that can still be created; null if there is no limit"),
    }
}

static TABLE: TypedTable<TickKey, FilesystemRow> = TypedTable::new(
    "filesystem",
    "One row per mounted file system with a size: at the first sample, then every 10 s, and at the end of the run. A file system hidden by another one mounted over it has no rows. A file system that autofs or the kernel mounts on demand is read only when it appears and at the end: each reading would postpone its unmount",
);

/// Declaration of the source.
pub static SPEC: SourceSpec = SourceSpec {
    name: "filesystem",
    help: "size and use of each mounted file system",
    tables: &[TABLE.untyped()],
    probe: Some(probe),
    open: |context| Ok(Box::new(Filesystems::open(context.host))),
    ..SourceSpec::DEFAULT
};

fn probe(host: &Host) -> Support {
    let mounts = NodeMounts::new(&host.procfs);
    if mounts.all().is_empty() {
        return Support::Unavailable {
            why: format!("no mounts in {}", mounts.file().display()),
            remedy: "mount -t proc proc /proc".to_owned(),
        };
    }
    Support::Ok
}

/// Time between readings. On a network file system, a reading is a message from every node to the
/// server.
const PERIOD: Duration = Duration::from_secs(10);
/// How long a sample waits for the answers. A local disk answers within microseconds.
const TIMEOUT: Duration = Duration::from_millis(2);
/// How long the first sample waits, because the helper has to be started.
const FIRST_TIMEOUT: Duration = Duration::from_millis(50);
/// How long the last sample waits. A file server takes longer than a disk, and one that hangs all of
/// its time.
const LAST_TIMEOUT: Duration = statfs_client::TIMEOUT.saturating_add(Duration::from_millis(500));

/// Types without a size, and autofs, which would mount something.
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

/// The first visible mount of each file system with a size, which is one that stays mounted if there
/// is one. Bind mounts show a file system several times.
fn with_size(all: Vec<Numbered>, on_demand: &HashSet<u32>) -> Vec<Numbered> {
    let mut seen = HashSet::new();
    let mut mounts = mounts::visible(all);
    mounts.sort_by_key(|mounted| on_demand.contains(&mounted.id));
    mounts.retain(|mounted| {
        !WITHOUT_SIZE.contains(&mounted.mount.fstype.as_str()) && seen.insert(mounted.dev)
    });
    mounts
}

/// A request to the thread.
enum Request {
    /// The first answers of a reading of these.
    Begin(Vec<Numbered>),
    /// Further ones.
    Continue,
}

/// Answers, and whether they are the last ones of the reading.
type Answers = (Vec<Answer>, bool);

struct Filesystems {
    mounts: NodeMounts,
    worker: Option<Worker<Request, Answers>>,
    asked: Option<Instant>,
    /// End of the last reading.
    read_at: Option<u64>,
    /// What is wrong by this reading.
    problems: Vec<String>,
    /// Mounts on demand that have been asked.
    on_demand: HashSet<u32>,
    rows: TableBuilder<TickKey, FilesystemRow>,
}

impl Filesystems {
    fn open(host: &Host) -> Self {
        Self {
            mounts: NodeMounts::new(&host.procfs),
            worker: None,
            asked: None,
            read_at: None,
            problems: Vec::new(),
            on_demand: HashSet::new(),
            rows: TableBuilder::new(&TABLE),
        }
    }

    /// The mounts to be asked. Those on demand are asked when they appear and at the end, because each
    /// reading would keep them mounted for their whole time limit.
    fn due(&mut self, last: bool) -> Vec<Numbered> {
        let all = self.mounts.all();
        let on_demand = mounts::on_demand(&all);
        let mut due = with_size(all, &on_demand);
        if !last {
            due.retain(|mounted| {
                !on_demand.contains(&mounted.id) || !self.on_demand.contains(&mounted.id)
            });
        }
        self.on_demand = on_demand;
        due
    }

    fn worker(&mut self) -> Result<&mut Worker<Request, Answers>> {
        Ok(match &mut self.worker {
            Some(worker) => worker,
            none => {
                let node = self.mounts.clone();
                none.insert(Worker::start("statfs", move || {
                    let mut client = StatfsClient::new(node);
                    move |request| {
                        if let Request::Begin(mounts) = request {
                            client.begin(mounts);
                        }
                        client.next()
                    }
                })?)
            }
        })
    }

    /// Stores the answers that come within `timeout`.
    fn receive(&mut self, timeout: Duration, ctx: &TickContext<'_>) -> Result<()> {
        let begin = Instant::now();
        loop {
            let left = timeout.saturating_sub(begin.elapsed());
            let Some((answers, is_complete)) = self.worker()?.take(left) else {
                return Ok(());
            };
            let now = monotonic_ns();
            let before = *self.read_at.get_or_insert(now);
            for answer in answers {
                // Unmounted or hidden meanwhile.
                if answer.size.as_ref().is_err_and(is_gone) {
                    continue;
                }
                self.problems.extend(problem(&answer));
                if let Some(row) = row(&answer) {
                    self.rows.push(ctx.key(now - before), row);
                }
            }
            if is_complete {
                self.read_at = Some(now);
                return Ok(());
            }
            self.worker()?.ask(Request::Continue)?;
        }
    }
}

impl Source for Filesystems {
    fn sample(&mut self, ctx: &TickContext<'_>, out: &mut Vec<Batch>) -> Result<()> {
        self.read_at.get_or_insert_with(monotonic_ns);
        let timeout = match self.asked {
            _ if ctx.last => LAST_TIMEOUT,
            None => FIRST_TIMEOUT,
            Some(_) => TIMEOUT,
        };
        // Later samples do not wait for what one has asked, but for the last one.
        let in_between = if ctx.last { timeout } else { Duration::ZERO };
        self.receive(in_between, ctx)?;
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= PERIOD);
        if (is_due || ctx.last) && !self.worker()?.is_busy() {
            let due = self.due(ctx.last);
            self.worker()?.ask(Request::Begin(due))?;
            self.asked = Some(Instant::now());
            self.receive(timeout, ctx)?;
        }
        self.rows.finish(out);
        if self.worker()?.is_busy() {
            return Ok(());
        }
        let problems = std::mem::take(&mut self.problems);
        match &problems[..] {
            [] => Ok(()),
            [problem] => bail!("{problem}"),
            [problem, others @ ..] => bail!("{problem}; {} further ones", others.len()),
        }
    }
}

/// What is wrong with a file system. That a user may not enter its directory is not.
fn problem(answer: &Answer) -> Option<String> {
    let error = answer.size.as_ref().err()?;
    let is_wrong = error.kind() != io::ErrorKind::PermissionDenied;
    let point = answer.mounted.mount.mount_point.display();
    is_wrong.then(|| format!("{point}: {error}"))
}

/// Whether a file system is no longer mounted where it was.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// The row of a file system; `None` for pseudo file systems that are not in [`WITHOUT_SIZE`].
fn row(answer: &Answer) -> Option<FilesystemRow> {
    let mount = &answer.mounted.mount;
    let size = answer.size.as_ref().ok();
    if size.is_some_and(|size| size.total == 0) {
        return None;
    }
    let limited = size.filter(|size| size.inodes_total != 0);
    Some(FilesystemRow {
        mount: mount.mount_point.as_os_str().into(),
        device: mount.source.as_deref().map(Label::from),
        fstype: mount.fstype.clone().into(),
        read_only: mount.options.iter().any(|option| option == "ro"),
        total: size.map(|size| size.total),
        used: size.map(|size| size.total.saturating_sub(size.free)),
        free: size.map(|size| size.free),
        available: size.map(|size| size.available),
        inodes_total: limited.map(|size| size.inodes_total),
        inodes_free: limited.map(|size| size.inodes_free),
    })
}

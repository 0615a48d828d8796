//! Goes on looking for the processes of a job, and for its end, in a thread of its own: commands can hang, and a look at all
//! environments takes long.

use std::{
    collections::{BTreeSet, HashSet},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::inotify,
    io::{read, write},
};

use super::{
    Found, Scheduler, Way, command,
    command::{Silence, Standing, State},
    find,
    folders::{self, Folder, Wanted},
};
use crate::{host::Host, privileges};

/// Between two looks for new processes, if the look is cheap.
const LOOK: Duration = Duration::from_secs(1);
/// A look may take one part in so many of the time.
const SHARE: u32 = 50;
/// Longest time between two questions whether a job without processes is over.
const ASK_AT_MOST: Duration = Duration::from_secs(10);

/// A descriptor that becomes readable when somebody rings.
#[derive(Clone, Debug)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    /// A silent one.
    ///
    /// # Errors
    ///
    /// When the kernel has no descriptor left.
    pub fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Makes it readable.
    pub fn ring(&self) {
        let _ = write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it unreadable again.
    pub fn hush(&self) {
        let _ = read(&*self.0, &mut [0; 8]);
    }

    /// The same for an event loop.
    ///
    /// # Errors
    ///
    /// When the kernel has no descriptor left.
    pub fn fd(&self) -> std::io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

/// What has been found since it was last taken.
#[derive(Debug, Default)]
pub struct News {
    /// The cgroups of the job as they are now, if they have changed.
    pub folders: Option<Vec<Folder>>,
    /// Processes of the job without such a cgroup.
    pub pids: Vec<u32>,
    /// Lines to say.
    pub notes: Vec<String>,
}

#[derive(Debug, Default)]
struct Shared {
    news: News,
    /// Whether no process of the job is known to live.
    idle: bool,
    /// Whether it is over, as far as can be found out.
    over: bool,
    stop: bool,
}

/// The thread, seen from the loop. Dropping it ends the thread, without waiting for that.
pub struct Watcher {
    shared: Arc<Mutex<Shared>>,
    wake: Bell,
}

impl Watcher {
    /// Begins to watch; rings `bell` when there is something new.
    ///
    /// # Errors
    ///
    /// When there is no thread or no descriptor to be had.
    pub fn start(host: &Host, found: &Found, bell: Bell) -> std::io::Result<Self> {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let wake = Bell::new()?;
        let mut work = Work {
            host: host.clone(),
            found: found.clone(),
            listed: found.pids.iter().copied().collect(),
            shared: Arc::clone(&shared),
            bell,
            wake: wake.clone(),
            watches: Watches::new()?,
            may_ask: true,
            asked: None,
        };
        thread::Builder::new()
            .name("job".to_owned())
            .spawn(move || work.run())?;
        Ok(Self { shared, wake })
    }

    /// What is new.
    pub fn take(&self) -> News {
        std::mem::take(&mut lock(&self.shared).news)
    }

    /// Says whether any process of the job is known to live; tells whether, if none, the job is over.
    pub fn is_over(&self, idle: bool) -> bool {
        let mut shared = lock(&self.shared);
        if shared.idle != idle {
            shared.idle = idle;
            self.wake.ring();
        }
        shared.over
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        lock(&self.shared).stop = true;
        self.wake.ring();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread works with.
struct Work {
    host: Host,
    found: Found,
    /// Processes that were told of.
    listed: HashSet<u32>,
    shared: Arc<Mutex<Shared>>,
    bell: Bell,
    wake: Bell,
    watches: Watches,
    /// Whether the scheduler has answered so far, or was not asked.
    may_ask: bool,
    /// A question that has no answer yet.
    asked: Option<Receiver<Result<Standing, Silence>>>,
}

impl Work {
    fn run(&mut self) {
        privileges::keep_for_sampling(&[]);
        self.watches.follow(&self.found);
        let (mut next_look, mut next_ask) = (Instant::now() + LOOK, Instant::now());
        let (mut pause, mut may_ask_again) = (LOOK, Instant::now());
        loop {
            let idle = {
                let shared = lock(&self.shared);
                if shared.stop {
                    return;
                }
                shared.idle && !shared.over
            };
            let asks = idle && self.asked.is_none();
            let until = if asks {
                next_look.min(next_ask)
            } else {
                next_look
            };
            let woken = self.watches.wait(&self.wake, until);
            if let Some(answer) = self.asked.as_ref().and_then(|asked| asked.try_recv().ok()) {
                self.asked = None;
                self.hear(answer);
            }
            let now = Instant::now();
            if woken || now >= next_look {
                self.look();
                next_look = now + LOOK.max(now.elapsed() * SHARE);
            }
            if !idle {
                // Our own commands can be processes of the job for a moment.
                next_ask = next_ask.min(may_ask_again);
                pause = LOOK;
            } else if self.asked.is_none() && Instant::now() >= next_ask {
                self.ask();
                may_ask_again = Instant::now() + LOOK;
                next_ask = Instant::now() + pause;
                pause = (pause * 2).min(ASK_AT_MOST);
            }
        }
    }

    /// Looks for new cgroups and processes.
    fn look(&mut self) {
        let found = &self.found;
        match found.way {
            Way::Cgroup => self.look_for_folders(),
            Way::Scheduler if self.may_ask => {
                let pids = command::processes(found.scheduler, &found.id).unwrap_or_default();
                let pids = find::alive(&self.host, pids);
                self.tell(pids);
            }
            Way::Scheduler | Way::Environment => self.look_for_environments(),
        }
    }

    fn look_for_folders(&mut self) {
        let Some(hierarchy) = &self.found.hierarchy else {
            return;
        };
        let wanted = Wanted {
            scheduler: self.found.scheduler,
            id: &self.found.id,
        };
        // Before the look, so that no change falls between the two.
        self.watches.follow(&self.found);
        let folders = wanted.folders(&self.host, hierarchy);
        if folders == self.found.folders {
            return;
        }
        self.found.folders.clone_from(&folders);
        self.watches.follow(&self.found);
        lock(&self.shared).news.folders = Some(folders);
        self.bell.ring();
    }

    fn look_for_environments(&mut self) {
        let found = &self.found;
        let pids = find::by_environment(&self.host.procfs, found.scheduler, &found.id);
        self.tell(pids);
    }

    /// Tells of processes that were not there at the last look.
    fn tell(&mut self, pids: Vec<u32>) {
        let fresh: Vec<u32> = pids
            .iter()
            .copied()
            .filter(|pid| !self.listed.contains(pid))
            .collect();
        self.listed = pids.into_iter().collect();
        if !fresh.is_empty() {
            lock(&self.shared).news.pids.extend(fresh);
            self.bell.ring();
        }
    }

    /// Asks the scheduler whether the job, of which no process is known, is over. Meanwhile, new processes are looked for.
    fn ask(&mut self) {
        let (scheduler, id) = (self.found.scheduler, self.found.id.clone());
        if !self.may_ask {
            self.hear(Err(Silence::None(scheduler)));
            return;
        }
        let (answer, asked) = channel();
        let wake = self.wake.clone();
        let asking = thread::Builder::new()
            .name("job-asks".to_owned())
            .spawn(move || {
                let _ = answer.send(command::standing(scheduler, &id));
                wake.ring();
            });
        // Without a thread to be had, the next time.
        self.asked = asking.ok().map(|_| asked);
    }

    /// Takes over how the job stands.
    fn hear(&mut self, standing: Result<Standing, Silence>) {
        let found = &self.found;
        let over = match standing {
            Ok(standing) => match standing.state {
                State::Over(_) | State::Unknown => true,
                State::Running | State::Waiting => {
                    // What runs beside its cgroup, such as the ranks of mpirun in an allocation of salloc.
                    self.look_for_environments();
                    false
                }
            },
            Err(silence) => {
                if self.may_ask && !matches!(silence, Silence::None(_)) {
                    let why = format!(
                        "cannot ask {} whether job {} is over: {silence}; it is, when it has no process here",
                        found.scheduler, found.id
                    );
                    lock(&self.shared).news.notes.push(why);
                    self.bell.ring();
                }
                self.may_ask = false;
                self.is_deserted()
            }
        };
        if over {
            lock(&self.shared).over = true;
            self.bell.ring();
        }
    }

    /// Whether no process is to be found in any way.
    fn is_deserted(&mut self) -> bool {
        let lives_in = |folder: &Folder| {
            let members = folders::members(&folder.path);
            !find::alive(&self.host, members).is_empty()
        };
        if self.found.folders.iter().any(lives_in) {
            return false;
        }
        let (scheduler, id) = (self.found.scheduler, &self.found.id);
        scheduler == Scheduler::None
            || find::by_environment(&self.host.procfs, scheduler, id).is_empty()
    }
}

/// What tells of changes to the cgroups at once.
struct Watches {
    inotify: OwnedFd,
    /// Folders above those of the job, which come and go like them; from the top.
    above: BTreeSet<PathBuf>,
}

impl Watches {
    fn new() -> std::io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        Ok(Self {
            inotify: inotify::init(flags)?,
            above: BTreeSet::new(),
        })
    }

    /// Watches where the folders come and go, and in version 2 whether somebody lives in them. What is watched already stays
    /// so; the kernel forgets what is gone.
    fn follow(&mut self, found: &Found) {
        let Some(hierarchy) = &found.hierarchy else {
            return;
        };
        let comes_and_goes = inotify::WatchFlags::CREATE | inotify::WatchFlags::DELETE;
        for folder in &found.folders {
            let above = folder.path.ancestors().skip(1);
            let below = above.take_while(|path| *path != hierarchy.mount_point);
            self.above.extend(below.map(Path::to_owned));
            // It may just have gone, and in version 1 there is no such file; then the next look tells.
            let events = folder.path.join("cgroup.events");
            let _ = inotify::add_watch(&self.inotify, events, inotify::WatchFlags::MODIFY);
        }
        for path in &self.above {
            let _ = inotify::add_watch(&self.inotify, path, comes_and_goes);
        }
    }

    /// Waits until something has changed (true), somebody rings, or that moment.
    fn wait(&self, wake: &Bell, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut fds = [
            PollFd::new(&self.inotify, PollFlags::IN),
            PollFd::new(&*wake.0, PollFlags::IN),
        ];
        let _ = poll(&mut fds, Some(&timeout));
        let changed = !fds[0].revents().is_empty();
        if changed {
            let mut events = [0; 4096];
            while read(&self.inotify, &mut events).is_ok_and(|length| length != 0) {}
        }
        wake.hush();
        changed
    }
}

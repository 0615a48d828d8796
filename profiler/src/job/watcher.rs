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
    Found, Method, Scheduler,
    cgroups::{self, Directory, Wanted},
    find,
    scheduler_command::{self, JobState, Silence, State},
};
use crate::{host::Host, privileges};

/// Between two looks for new processes, if the look is cheap.
const LOOK: Duration = Duration::from_secs(1);
/// A look may take one part in so many of the time.
const SHARE: u32 = 50;
/// The same for looks because of events: the job's user can make any number of them.
const SHARE_OF_EVENTS: u32 = 10;
/// Longest time between two questions whether a job without processes is over.
const ASK_AT_MOST: Duration = Duration::from_secs(10);
/// A scheduler that does not answer is asked again after this time.
const RETRY: Duration = Duration::from_secs(30);

/// A descriptor that becomes readable when somebody rings.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<OwnedFd>);

impl Notifier {
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
    pub fn notify(&self) {
        let _ = write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it unreadable again.
    pub fn clear(&self) {
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
    pub directories: Option<Vec<Directory>>,
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
    wake: Notifier,
}

impl Watcher {
    /// Begins to watch; rings `bell` when there is something new.
    ///
    /// # Errors
    ///
    /// When there is no thread or no descriptor to be had.
    pub fn start(host: &Host, found: &Found, notifier: Notifier) -> std::io::Result<Self> {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let wake = Notifier::new()?;
        let mut work = Work {
            host: host.clone(),
            found: found.clone(),
            listed: found.pids.iter().copied().collect(),
            shared: Arc::clone(&shared),
            notifier,
            wake: wake.clone(),
            watches: Watches::new()?,
            silent: None,
            asked: None,
            next_list: Instant::now(),
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
            self.wake.notify();
        }
        shared.over
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        lock(&self.shared).stop = true;
        self.wake.notify();
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
    notifier: Notifier,
    wake: Notifier,
    watches: Watches,
    /// When a scheduler that did not answer is asked again.
    silent: Option<Instant>,
    /// A question that has no answer yet.
    asked: Option<Receiver<Answer>>,
    /// When the scheduler may be asked for processes again: its commands cost time, too.
    next_list: Instant,
}

/// What a scheduler can be asked.
#[derive(Clone, Copy, Debug)]
enum Question {
    /// Whether the job is over.
    JobState,
    /// Which processes it has here.
    Processes,
}

/// What it says.
enum Answer {
    JobState(Result<JobState, Silence>),
    Processes(Result<Vec<u32>, Silence>, Duration),
}

impl Work {
    fn run(&mut self) {
        privileges::keep_for_sampling(&[]);
        self.watches.follow(&self.found);
        let (mut next_look, mut next_ask) = (Instant::now() + LOOK, Instant::now());
        let (mut pause, mut may_ask_again) = (LOOK, Instant::now());
        let mut calm_until = Instant::now();
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
            let woken = self.watches.wait(&self.wake, until, calm_until);
            if let Some(answer) = self.asked.as_ref().and_then(|asked| asked.try_recv().ok()) {
                self.asked = None;
                match answer {
                    Answer::JobState(standing) => self.hear(standing),
                    Answer::Processes(pids, took) => self.hear_processes(pids, took),
                }
            }
            let now = Instant::now();
            if woken || now >= next_look {
                self.look();
                let took = now.elapsed();
                next_look = now + LOOK.max(took * SHARE);
                calm_until = now + took * SHARE_OF_EVENTS;
            }
            if !idle {
                // Our own commands can be processes of the job for a moment.
                next_ask = next_ask.min(may_ask_again);
                pause = LOOK;
            } else if self.asked.is_none() && Instant::now() >= next_ask {
                self.ask_whether_over();
                may_ask_again = Instant::now() + LOOK;
                next_ask = Instant::now() + pause;
                pause = (pause * 2).min(ASK_AT_MOST);
            }
        }
    }

    /// Looks for new cgroups and processes.
    fn look(&mut self) {
        match self.found.method {
            Method::Cgroup => self.look_for_directories(),
            Method::Environment => self.look_for_environments(),
            Method::Scheduler => {
                // While it thinks, or does not answer at all, the next method is used.
                if self.is_silent() || self.asked.is_some() {
                    self.look_for_environments();
                }
                if Instant::now() >= self.next_list && !self.is_silent() {
                    self.ask(Question::Processes);
                }
            }
        }
    }

    fn look_for_directories(&mut self) {
        let Some(hierarchy) = &self.found.hierarchy else {
            return;
        };
        let wanted = Wanted {
            scheduler: self.found.scheduler,
            id: &self.found.id,
        };
        // Before the look, so that no change falls between the two.
        self.watches.follow(&self.found);
        let directories = wanted.directories(&self.host, hierarchy);
        if directories == self.found.directories {
            return;
        }
        self.found.directories.clone_from(&directories);
        self.watches.follow(&self.found);
        lock(&self.shared).news.directories = Some(directories);
        self.notifier.notify();
    }

    fn look_for_environments(&mut self) {
        let found = &self.found;
        let pids = find::by_environment(&self.host.procfs, found.scheduler, &found.id, found.owner);
        self.tell(pids);
    }

    /// Tells of processes that nobody was told of yet.
    fn tell(&mut self, pids: Vec<u32>) {
        let procfs = &self.host.procfs;
        self.listed
            .retain(|pid| procfs.join(pid.to_string()).exists());
        let is_fresh = |pid: &u32| self.listed.insert(*pid);
        let fresh: Vec<u32> = pids.into_iter().filter(is_fresh).collect();
        if !fresh.is_empty() {
            lock(&self.shared).news.pids.extend(fresh);
            self.notifier.notify();
        }
    }

    /// Asks the scheduler whether the job, of which no process is known, is over. Meanwhile, new processes are looked for.
    fn ask_whether_over(&mut self) {
        if self.is_silent() {
            self.hear_silence();
        } else {
            self.ask(Question::JobState);
        }
    }

    /// Asks in a thread of its own, since the command can hang; the answer rings.
    fn ask(&mut self, question: Question) {
        if self.asked.is_some() {
            return;
        }
        let (scheduler, id) = (self.found.scheduler, self.found.id.clone());
        let (answer, asked) = channel();
        let wake = self.wake.clone();
        let asking = thread::Builder::new()
            .name("job-asks".to_owned())
            .spawn(move || {
                let begin = Instant::now();
                let _ = answer.send(match question {
                    Question::JobState => {
                        Answer::JobState(scheduler_command::standing(scheduler, &id))
                    }
                    Question::Processes => {
                        let pids = scheduler_command::processes(scheduler, &id);
                        Answer::Processes(pids, begin.elapsed())
                    }
                });
                wake.notify();
            });
        // Without a thread to be had, the next time.
        self.asked = asking.ok().map(|_| asked);
    }

    fn is_silent(&self) -> bool {
        self.silent.is_some_and(|until| Instant::now() < until)
    }

    /// The scheduler did not answer: the next method is used until it does.
    fn falls_silent(&mut self, silence: &Silence) {
        let was_silent = self.silent.replace(Instant::now() + RETRY).is_some();
        if was_silent || matches!(silence, Silence::None(_)) {
            return;
        }
        let found = &self.found;
        self.note(format!(
            "cannot ask {} about job {}: {silence}; its processes are looked for by their environments, it is over when \
             there is none, and {} is asked again every {} s",
            found.scheduler,
            found.id,
            found.scheduler,
            RETRY.as_secs()
        ));
    }

    fn answers(&mut self) {
        if self.silent.take().is_some() {
            let found = &self.found;
            self.note(format!(
                "{} answers again about job {}",
                found.scheduler, found.id
            ));
        }
    }

    fn note(&self, note: String) {
        lock(&self.shared).news.notes.push(note);
        self.notifier.notify();
    }

    /// Takes over which processes the job has.
    fn hear_processes(&mut self, pids: Result<Vec<u32>, Silence>, took: Duration) {
        // How long a hang took says nothing about the next answer; that it is not asked for at once, `RETRY` sees to.
        if !matches!(pids, Err(Silence::Hanging(_))) {
            self.next_list = Instant::now() + took * SHARE;
        }
        match pids {
            Ok(pids) => {
                self.answers();
                let pids = find::alive(&self.host, pids);
                self.tell(pids);
            }
            // It fails where there is no process.
            Err(Silence::Failed(..)) => {
                self.answers();
                self.tell(Vec::new());
            }
            Err(silence) => {
                self.falls_silent(&silence);
                self.look_for_environments();
            }
        }
    }

    /// Takes over how the job stands.
    fn hear(&mut self, standing: Result<JobState, Silence>) {
        let standing = match standing {
            Ok(standing) => standing,
            Err(silence) => {
                self.falls_silent(&silence);
                self.hear_silence();
                return;
            }
        };
        self.answers();
        self.found.owner = standing.owner.or(self.found.owner);
        match standing.state {
            State::Over(_) | State::Unknown => self.is_over(),
            // What runs beside its cgroup, such as the ranks of mpirun in an allocation of salloc.
            State::Running | State::Waiting => self.look_for_environments(),
        }
    }

    /// Nothing but its processes tells whether the job is over.
    fn hear_silence(&mut self) {
        if self.is_deserted() {
            self.is_over();
        }
    }

    fn is_over(&self) {
        lock(&self.shared).over = true;
        self.notifier.notify();
    }

    /// Whether no process is to be found in any way.
    fn is_deserted(&mut self) -> bool {
        let lives_in = |directory: &Directory| {
            let members = cgroups::members(&directory.path);
            !find::alive(&self.host, members).is_empty()
        };
        if self.found.directories.iter().any(lives_in) {
            return false;
        }
        let (scheduler, id, owner) = (self.found.scheduler, &self.found.id, self.found.owner);
        scheduler == Scheduler::None
            || find::by_environment(&self.host.procfs, scheduler, id, owner).is_empty()
    }
}

/// What tells of changes to the cgroups at once.
struct Watches {
    inotify: OwnedFd,
    /// Directories above those of the job, which come and go like them; from the top.
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

    /// Watches where the directories come and go, and in version 2 whether somebody lives in them. What is watched already stays
    /// so; the kernel forgets what is gone.
    fn follow(&mut self, found: &Found) {
        let Some(hierarchy) = &found.hierarchy else {
            return;
        };
        let comes_and_goes = inotify::WatchFlags::CREATE | inotify::WatchFlags::DELETE;
        for directory in &found.directories {
            let above = directory.path.ancestors().skip(1);
            let below = above.take_while(|path| *path != hierarchy.mount_point);
            self.above.extend(below.map(Path::to_owned));
            // It may just have gone, and in version 1 there is no such file; then the next look tells.
            let events = directory.path.join("cgroup.events");
            let _ = inotify::add_watch(&self.inotify, events, inotify::WatchFlags::MODIFY);
        }
        for path in &self.above {
            let _ = inotify::add_watch(&self.inotify, path, comes_and_goes);
        }
    }

    /// Waits until something has changed (true), somebody rings, or that moment. Changes before `calm_until` are heard of
    /// then.
    fn wait(&self, wake: &Notifier, until: Instant, calm_until: Instant) -> bool {
        let now = Instant::now();
        let is_calm = now < calm_until;
        let until = if is_calm {
            until.min(calm_until)
        } else {
            until
        };
        let left = until.saturating_duration_since(now);
        let timeout = Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut fds = [
            PollFd::new(&*wake.0, PollFlags::IN),
            PollFd::new(&self.inotify, PollFlags::IN),
        ];
        let heard = if is_calm { &mut fds[..1] } else { &mut fds };
        let _ = poll(heard, Some(&timeout));
        let changed = !fds[1].revents().is_empty();
        if changed {
            let mut events = [0; 4096];
            while read(&self.inotify, &mut events).is_ok_and(|length| length != 0) {}
        }
        wake.clear();
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_events_is_heard_of_in_the_end() {
        const CALM: Duration = Duration::from_millis(200);
        let directory = tempfile::TempDir::new().expect("a directory");
        let watches = Watches::new().expect("a descriptor");
        let made = inotify::WatchFlags::CREATE;
        inotify::add_watch(&watches.inotify, directory.path(), made).expect("a watch");
        for number in 0..1000 {
            std::fs::create_dir(directory.path().join(number.to_string())).expect("made");
        }
        let notifier = Notifier::new().expect("a bell");
        let begin = Instant::now();
        let (calm, later) = (begin + CALM, begin + Duration::from_secs(60));
        assert!(!watches.wait(&notifier, later, calm) && begin.elapsed() >= CALM);
        assert!(watches.wait(&notifier, later, calm));
        // All of them at once; and a bell is heard at any time.
        notifier.notify();
        assert!(!watches.wait(&notifier, later, later));
    }
}

//! Threads for operations that take long or never return, so that the main loop does not wait.
//!
//! A `Worker` answers one request at a time; a `PeriodicTask` runs on its own schedule. Threads
//! that also wait for other events (sockets, files, the end of a process) are not workers.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::privileges;

/// A thread that answers one request at a time. Dropping the worker ends the thread, without
/// waiting, because the present request may never return.
pub(crate) struct Worker<Request, Answer> {
    name: &'static str,
    requests: SyncSender<Request>,
    answers: Receiver<Answer>,
    /// Time of the request that has no answer yet.
    pending_since: Option<Instant>,
    thread: JoinHandle<()>,
}

impl<Request: Send + 'static, Answer: Send + 'static> Worker<Request, Answer> {
    /// Starts the thread, in which `open` creates the function that answers. The thread drops all
    /// privileges except those of the main loop before its first answer is visible: files that need
    /// more must be open by then.
    ///
    /// # Errors
    ///
    /// If the thread cannot be created.
    pub(crate) fn start<F: FnMut(Request) -> Answer>(
        name: &'static str,
        open: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Self> {
        let (requests, received) = sync_channel::<Request>(1);
        let (sender, answers) = sync_channel(1);
        let work = move || {
            let mut answer = open();
            let mut first = true;
            for request in received {
                let answer = answer(request);
                if std::mem::take(&mut first) {
                    privileges::keep_for_sampling(&[]);
                }
                if sender.send(answer).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
        Ok(Self {
            name,
            requests,
            answers,
            pending_since: None,
            thread: thread.context("cannot start a thread")?,
        })
    }

    /// Whether a request has no answer yet.
    pub(crate) fn is_busy(&self) -> bool {
        self.pending_since.is_some()
    }

    /// Age of the request that has no answer yet.
    pub(crate) fn busy_for(&self) -> Option<Duration> {
        self.pending_since.map(|since| since.elapsed())
    }

    /// Whether the thread has ended, although the worker was not dropped: it panicked.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Sends a request.
    ///
    /// # Errors
    ///
    /// When the previous request has no answer yet.
    pub(crate) fn ask(&mut self, request: Request) -> Result<()> {
        if let Some(busy) = self.busy_for() {
            bail!(
                "{}: a reading has not ended after {:.1} s; this sample has no rows from it",
                self.name,
                busy.as_secs_f64()
            );
        }
        if self.requests.try_send(request).is_err() {
            bail!("{}: its thread has ended", self.name);
        }
        self.pending_since = Some(Instant::now());
        Ok(())
    }

    /// The answer, if it comes within `timeout`.
    pub(crate) fn take(&mut self, timeout: Duration) -> Option<Answer> {
        self.pending_since?;
        let answer = self.answers.recv_timeout(timeout).ok()?;
        self.pending_since = None;
        Some(answer)
    }
}

/// Calls `work` in this many threads at the same time, of which this one is the first. They are fewer if no
/// further ones can be created.
pub(crate) fn in_threads(number: usize, work: impl Fn() + Sync) {
    in_threads_with(number, || (), work);
}

/// The same, except that this thread calls `first` before `work`. Returns what it returns.
pub(crate) fn in_threads_with<R>(
    number: usize,
    first: impl FnOnce() -> R,
    work: impl Fn() + Sync,
) -> R {
    thread::scope(|scope| {
        for _ in 1..number {
            if thread::Builder::new().spawn_scoped(scope, &work).is_err() {
                break;
            }
        }
        let result = first();
        work();
        result
    })
}

/// A thread that runs periodically until this is dropped. Dropping does not wait for its end,
/// because a driver may never return.
pub(crate) struct PeriodicTask {
    stop: Arc<AtomicBool>,
    thread: Thread,
}

impl PeriodicTask {
    /// Runs `work` now and then once per period. Periods that pass during the work are skipped.
    ///
    /// # Errors
    ///
    /// If the thread cannot be created.
    pub(crate) fn every(
        period: Duration,
        name: &str,
        mut work: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            privileges::keep_for_sampling(&[]);
            let mut due = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    work();
                    due = (due + period).max(Instant::now());
                } else {
                    thread::park_timeout(left);
                }
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self {
            stop,
            thread: thread.thread().clone(),
        })
    }
}

impl Drop for PeriodicTask {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_worker_answers_one_request_at_a_time_once() {
        let (proceed, proceeds) = channel();
        let slow = move || {
            move |number: u64| {
                proceeds.recv().expect("the test");
                number
            }
        };
        let mut worker = Worker::start("test", slow).expect("a thread");
        assert_eq!(worker.take(Duration::ZERO), None);
        worker.ask(1).expect("idle");
        assert_eq!(worker.take(Duration::from_millis(1)), None);
        assert!(worker.is_busy());
        let busy = worker.ask(2).expect_err("one at a time").to_string();
        assert!(busy.contains("has not ended"), "{busy}");
        proceed.send(()).expect("the worker");
        assert_eq!(worker.take(Duration::from_secs(60)), Some(1));
        assert_eq!(worker.take(Duration::ZERO), None);
        worker.ask(3).expect("idle");
        proceed.send(()).expect("the worker");
        assert_eq!(worker.take(Duration::from_secs(60)), Some(3));
    }

    #[test]
    fn work_is_done_in_one_thread_at_least() {
        for number in 0..3 {
            let threads = std::sync::Mutex::new(Vec::new());
            in_threads(number, || {
                threads
                    .lock()
                    .expect("no panic")
                    .push(thread::current().id());
            });
            let threads = threads.into_inner().expect("no panic");
            assert_eq!(threads.len(), number.max(1));
            assert!(threads.contains(&thread::current().id()));
        }
    }

    #[test]
    fn a_worker_that_panics_has_ended() {
        let broken = || |()| -> () { panic!("a test") };
        let mut worker = Worker::start("test", broken).expect("a thread");
        worker.ask(()).expect("idle");
        assert_eq!(worker.take(Duration::from_secs(60)), None);
        while !worker.has_ended() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_periodic_task_ends_when_it_is_dropped() {
        let (sender, worked) = channel();
        let task = PeriodicTask::every(Duration::from_millis(5), "test", move || {
            let _ = sender.send(());
        })
        .expect("a thread");
        for _ in 0..3 {
            worked.recv().expect("it works");
        }
        drop(task);
        // The thread drops its end of the channel when it ends.
        while worked.recv().is_ok() {}
    }
}

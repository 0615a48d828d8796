//! Asking in a thread of its own what may take long to answer, or never does, so that the loop does not wait for it.

use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::privileges;

/// The thread, seen from the loop. It ends when the loop has nothing more to ask; nobody waits for that.
pub(crate) struct Worker<Question, Answer> {
    name: &'static str,
    questions: SyncSender<Question>,
    answers: Receiver<Answer>,
    /// When the question was asked that has no answer yet.
    asked: Option<Instant>,
}

impl<Question: Send + 'static, Answer: Send + 'static> Worker<Question, Answer> {
    /// Starts the thread, in which `open` makes what answers. After its first answer it needs no more privileges than the
    /// loop.
    pub(crate) fn start<Answering: FnMut(Question) -> Answer>(
        name: &'static str,
        open: impl FnOnce() -> Answering + Send + 'static,
    ) -> Result<Self> {
        let (questions, asked) = sync_channel::<Question>(1);
        let (answer, answers) = sync_channel(1);
        let work = move || {
            let mut answering = open();
            let mut first = true;
            for question in asked {
                let answered = answering(question);
                // What it needed more for is open now.
                if std::mem::take(&mut first) {
                    privileges::keep_for_sampling(&[]);
                }
                if answer.send(answered).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)
            .context("cannot start a thread")?;
        Ok(Self {
            name,
            questions,
            answers,
            asked: None,
        })
    }

    /// Whether a question has no answer yet.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// The answer, if it comes within `patience`.
    pub(crate) fn take(&mut self, timeout: Duration) -> Option<Answer> {
        self.asked?;
        let answer = self.answers.recv_timeout(timeout).ok()?;
        self.asked = None;
        Some(answer)
    }

    /// Asks.
    ///
    /// # Errors
    ///
    /// When the question before has no answer yet.
    pub(crate) fn ask(&mut self, question: Question) -> Result<()> {
        if let Some(asked) = self.asked {
            let seconds = asked.elapsed().as_secs_f64();
            bail!(
                "{}: a reading has not ended after {seconds:.1} s: a tick without it",
                self.name
            );
        }
        if self.questions.try_send(question).is_err() {
            bail!("{}: its thread has ended", self.name);
        }
        self.asked = Some(Instant::now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_question_at_a_time_and_no_answer_twice() {
        let slow = || {
            |ms: u64| {
                thread::sleep(Duration::from_millis(ms));
                ms
            }
        };
        let mut beside = Worker::start("test", slow).expect("a thread");
        assert_eq!(beside.take(Duration::ZERO), None);
        beside.ask(200).expect("asks");
        assert_eq!(beside.take(Duration::from_millis(1)), None);
        assert!(beside.is_asked());
        let busy = beside.ask(0).expect_err("one at a time").to_string();
        assert!(busy.contains("a tick without it"), "{busy}");
        assert_eq!(beside.take(Duration::from_secs(60)), Some(200));
        assert_eq!(beside.take(Duration::ZERO), None);
        beside.ask(0).expect("asks");
        assert_eq!(beside.take(Duration::from_secs(60)), Some(0));
    }
}

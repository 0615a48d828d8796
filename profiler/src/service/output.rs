//! The rows of a client's processes as an output: sent over its connection.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

use arrow::{
    array::{AsArray as _, BooleanArray, RecordBatch},
    compute::filter_record_batch,
    datatypes::{TimestampMicrosecondType, UInt32Type},
};

use super::{
    connection::Client,
    protocol::{End, Kind, Ready, RequestedTarget, send, send_json},
    rows::RowEncoder,
};
use crate::{
    job::trust,
    output::{
        Output, OutputReport, Reading, SessionEnd,
        dataset::{Manifest, manifest::Loss},
    },
    schema::{Batch, read::without_unused_labels},
    tasks::Access,
};

/// Limit of the memory for rows that the client has not read, bytes.
const MEMORY: usize = 32 << 20;

/// Tables whose rows of set-uid programs have only what `/proc` shows to every user.
const PUBLIC: [&str; 3] = ["process", "sched", "usage"];

/// Process of a row: pid and start.
type Owner = (u32, i64);

/// Sends rows to a client.
pub struct ClientOutput {
    /// How much of each process the client may know. The rows of [`TaskTable`](crate::tasks::TaskTable)
    /// are restricted already; sources have others.
    access: HashMap<Owner, Access>,
    /// With a job: the accounts that have processes in the jobs of all users.
    accounts: Option<&'static [u32]>,
    /// A user, other than the client and those, who has a process in the job.
    other_user: Option<u32>,
    ready: Option<Ready>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    socket: UnixStream,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Queued>,
    /// Size of the queue, bytes.
    bytes: usize,
    lost_rows: BTreeMap<String, u64>,
    is_ending: bool,
    error: Option<String>,
}

/// A reading that has not been sent.
struct Queued {
    batches: Vec<Batch>,
    bytes: usize,
    /// `CLOCK_MONOTONIC` in ns.
    time: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientOutput {
    /// Starts the thread that sends. `manifest` describes the session.
    ///
    /// # Errors
    ///
    /// When the thread cannot be created.
    pub fn start(client: &Client, manifest: Manifest) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let socket = client.socket.try_clone()?;
        let thread = std::thread::Builder::new()
            .name("client".to_owned())
            .spawn({
                let (shared, socket) = (shared.clone(), socket.try_clone()?);
                move || {
                    if let Err(error) = send_rows(&shared, &socket) {
                        shared.lock().error = Some(error.to_string());
                        // The session ends.
                        let _ = socket.shutdown(std::net::Shutdown::Both);
                    }
                }
            })?;
        Ok(Self {
            access: HashMap::new(),
            accounts: match &client.request.target {
                RequestedTarget::Processes => None,
                RequestedTarget::Job { scheduler, .. } => Some(trust::accounts(*scheduler)),
            },
            other_user: None,
            ready: Some(Ready {
                version: manifest.version,
                run_id: manifest.run_id,
                target: manifest.target,
                sources: manifest.sources,
                clock: manifest.clock.start,
            }),
            shared,
            thread: Some(thread),
            socket,
        })
    }

    /// Updates the access to all processes, which is known before the names that
    /// [`TaskTable::changed`](crate::tasks::TaskTable::changed) waits for.
    fn update(&mut self, reading: &Reading<'_>) {
        let tasks = reading.tasks;
        for process in tasks.iter() {
            let id = process.id;
            let start = tasks.clock.wall_of_boottime(id.start_boottime).us();
            self.access.insert((id.pid, start), process.access);
        }
        if let (Some(accounts), None) = (self.accounts, self.other_user) {
            self.other_user = tasks.other_user(accounts);
            if self.other_user.is_some() {
                // The session ends, as if the client had gone.
                let _ = self.socket.shutdown(std::net::Shutdown::Read);
            }
        }
        if self.access.len() > 2 * tasks.count() + 1024 {
            let start = |id: u64| tasks.clock.wall_of_boottime(id).us();
            let live: HashMap<Owner, Access> = tasks
                .iter()
                .map(|process| (process.id.pid, start(process.id.start_boottime)))
                .filter_map(|owner| Some((owner, *self.access.get(&owner)?)))
                .collect();
            self.access = live;
        }
    }

    /// Rows without a process, and those that the client may know.
    fn own_rows(&self, batch: Batch) -> Option<Batch> {
        let Some(owners) = owners(&batch.rows) else {
            return Some(batch);
        };
        let has_public = PUBLIC.contains(&batch.table.name);
        let is_shown = |owner: &Option<Owner>| {
            let access = owner.map(|owner| self.access.get(&owner));
            match access {
                None | Some(Some(Access::Full)) => true,
                Some(Some(Access::Public)) => has_public,
                Some(Some(Access::None) | None) => false,
            }
        };
        let selected: BooleanArray = owners.iter().map(|owner| Some(is_shown(owner))).collect();
        if selected.true_count() == 0 {
            return None;
        }
        let rows = filter_record_batch(&batch.rows, &selected).ok()?;
        let rows = without_unused_labels(&rows).ok()?;
        Some(Batch {
            table: batch.table,
            rows,
        })
    }
}

/// The process of each row; `None` in a table without processes.
fn owners(rows: &RecordBatch) -> Option<Vec<Option<Owner>>> {
    let pids = rows
        .column_by_name("pid")?
        .as_primitive_opt::<UInt32Type>()?;
    let starts = rows.column_by_name("start_ts")?;
    let starts = starts.as_primitive_opt::<TimestampMicrosecondType>()?;
    Some(
        pids.iter()
            .zip(starts)
            .map(|(pid, start)| pid.zip(start))
            .collect(),
    )
}

/// Sends readings until the output ends.
fn send_rows(shared: &Shared, mut socket: &UnixStream) -> io::Result<()> {
    let mut encoder = RowEncoder::default();
    loop {
        let mut state = shared.lock();
        while state.queue.is_empty() && !state.is_ending {
            state = shared
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let Some(queued) = state.queue.pop_front() else {
            return Ok(());
        };
        state.bytes -= queued.bytes;
        drop(state);
        for batch in &queued.batches {
            let rows = encoder.encode(batch).map_err(io::Error::other)?;
            send(&mut socket, Kind::Rows, &rows)?;
        }
        send(&mut socket, Kind::Reading, &queued.time.to_le_bytes())?;
    }
}

impl Output for ClientOutput {
    fn write(&mut self, reading: &Reading<'_>, batches: Vec<Batch>) -> Vec<Batch> {
        if let Some(ready) = self.ready.take()
            && let Err(error) = send_json(&mut &self.socket, Kind::Ready, &ready)
        {
            self.shared.lock().error = Some(error.to_string());
        }
        self.update(reading);
        let batches: Vec<_> = batches
            .into_iter()
            .filter_map(|batch| self.own_rows(batch))
            .collect();
        let bytes = batches
            .iter()
            .map(|batch| batch.rows.get_array_memory_size())
            .sum();
        let mut state = self.shared.lock();
        state.queue.push_back(Queued {
            batches,
            bytes,
            time: reading.monotonic_ns,
        });
        state.bytes += bytes;
        while state.bytes > MEMORY && state.queue.len() > 1 {
            if let Some(lost) = state.queue.pop_front() {
                state.bytes -= lost.bytes;
                for batch in lost.batches {
                    let rows = batch.rows.num_rows() as u64;
                    *state
                        .lost_rows
                        .entry(batch.table.name.to_owned())
                        .or_default() += rows;
                }
            }
        }
        drop(state);
        self.shared.work.notify_one();
        Vec::new()
    }

    fn finish(mut self: Box<Self>, end: &mut SessionEnd) -> OutputReport {
        self.shared.lock().is_ending = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let state = self.shared.lock();
        let mut losses = end.losses.clone();
        losses.extend(self.other_user.map(|uid| Loss {
            what: "profile remainders".to_owned(),
            count: 1,
            why: format!(
                "user {uid} has a process in the job, and the service follows only jobs of one user"
            ),
            uid: None,
        }));
        let message = End {
            losses,
            end_ts: end.ts.ns(),
            clock: Some(end.clock),
            lost_rows: state.lost_rows.clone(),
            summary: end.summary.clone(),
        };
        // A client that has gone needs no end.
        let _ = send_json(&mut &self.socket, Kind::End, &message);
        OutputReport::default()
    }
}

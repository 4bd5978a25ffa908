//! A pool of worker threads that serve client connections.
//!
//! Workers are numbered; number 0 is the standby worker. Worker threads live until the server stops. When `io-threads`
//! is lowered, the surplus workers with the highest numbers are retired: their connections move away and no new ones
//! are assigned.
//!
//! A worker that runs one command or script for a long time is *stalled* and cannot serve its other connections. It is
//! *offloaded* ([`WorkerPool::offload_stalled_workers`], or by the worker itself, [`WorkerPool::offload_worker`]): its
//! idle connections move to a free worker, preferably the standby worker. If no worker is free, a spare thread is
//! started.

mod placement;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use engine::{Engine, NodeFlags, OffloadReason};
use parking_lot::Mutex;
use process::stall_detector::{StallDetector, StallState, ThreadActivity};
use tokio::sync::mpsc::UnboundedSender;

pub use self::placement::ConnectionPlacement;
use crate::transport::Socket;

/// Index of the standby worker, which has connections only while another worker is stalled.
pub(crate) const STANDBY_WORKER_INDEX: usize = 0;

/// Upper bound on spare threads started when all workers are stalled.
const MAX_SPARE_WORKERS: usize = 8;

/// A message to a worker thread.
pub enum MailboxMessage {
    /// A client that has just connected, and the number of its owning worker.
    Accepted(Socket, usize),
    /// A client that moves here from another thread.
    Migrated(Box<dyn MigratingConnection>),
}

impl MailboxMessage {
    fn owner(&self) -> usize {
        match self {
            Self::Accepted(_, owner) => *owner,
            Self::Migrated(client) => client.owner(),
        }
    }
}

impl std::fmt::Debug for MailboxMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MailboxMessage").field("owner", &self.owner()).finish_non_exhaustive()
    }
}

/// A client connection on its way from one worker to another.
pub trait MigratingConnection: Send {
    /// Registers the connection with the calling thread's event loop and serves it there.
    fn resume_here(self: Box<Self>);

    /// Returns the number of the worker that owns the connection.
    fn owner(&self) -> usize;

    /// Assigns the connection to another owning worker.
    fn set_owner(&mut self, owner: usize);

    /// Marks the connection as served by the background worker for commands with this reason.
    fn enter_background(&mut self, in_flight: InFlightCount, reason: OffloadReason);

    /// Undoes [`Self::enter_background`].
    fn leave_background(&mut self);
}

/// A reference count of the connections that a background worker serves.
pub type InFlightCount = Arc<()>;

/// The access that other threads have to a worker's queue and connections.
pub trait Mailbox: Send + Sync {
    /// Takes all queued messages and idle connections.
    fn take_messages(&self) -> Vec<MailboxMessage>;

    /// Asks the worker to check which of its connections can return to their owners.
    fn request_placement_check(&self);
}

/// A worker thread, with the means to send connections to it and to observe it.
pub struct WorkerHandle {
    /// Sends messages to the worker.
    pub sender: UnboundedSender<MailboxMessage>,
    /// The thread, which is joined when the server stops.
    pub thread: std::thread::JoinHandle<()>,
    /// Shows when the worker started its current task.
    pub activity: Arc<ThreadActivity>,
    /// The worker's queue and connections.
    pub mailbox: Arc<dyn Mailbox>,
}

impl std::fmt::Debug for WorkerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerHandle").field("activity", &self.activity).finish_non_exhaustive()
    }
}

/// A function that starts the worker with the given number.
pub type SpawnWorker = Box<dyn Fn(usize) -> std::io::Result<WorkerHandle> + Send + Sync>;

/// The worker threads that serve connections. Empty until the control thread starts them.
#[derive(Default)]
pub struct WorkerPool(OnceLock<RunningPool>);

struct RunningPool {
    /// Locked during every send, so that no message reaches a worker after that worker has emptied its queue for the
    /// last time.
    pool: Mutex<PooledWorkers>,
    spawn_worker: SpawnWorker,
}

struct PooledWorkers {
    workers: Vec<PooledWorker>,
    background_workers: BackgroundWorkers,
    /// Decides which worker serves each connection.
    placement: ConnectionPlacement,
}

/// The background workers. All are missing if slow commands run on the connections' own workers, and while the server
/// stops.
#[derive(Default)]
struct BackgroundWorkers {
    /// The workers for slow commands.
    slow_command_workers: Vec<PooledWorker>,
    /// The worker for commands that wait for a locked slot. Each of them waits for a few milliseconds at a time, so
    /// that it does not delay the other connections of this worker.
    slot_wait_worker: Option<PooledWorker>,
    /// The worker for commands that wait until they can lock all slots.
    all_slots_wait_worker: Option<PooledWorker>,
}

/// The handles of the background workers, by the reason for which connections move to them.
#[derive(Debug)]
pub struct BackgroundHandles {
    /// The workers for slow commands.
    pub slow_command_workers: Vec<WorkerHandle>,
    /// The worker for commands that wait for a locked slot.
    pub slot_wait_worker: WorkerHandle,
    /// The worker for commands that wait until they can lock all slots.
    pub all_slots_wait_worker: WorkerHandle,
}

impl BackgroundWorkers {
    fn new(handles: Option<BackgroundHandles>) -> Self {
        handles.map_or_else(Self::default, |handles| Self {
            slow_command_workers: handles.slow_command_workers.into_iter().map(PooledWorker::new).collect(),
            slot_wait_worker: Some(PooledWorker::new(handles.slot_wait_worker)),
            all_slots_wait_worker: Some(PooledWorker::new(handles.all_slots_wait_worker)),
        })
    }

    /// Returns the worker for a connection that moves for this reason: of several workers, the one with the fewest
    /// connections.
    fn select(&self, reason: OffloadReason) -> Option<&PooledWorker> {
        match reason {
            OffloadReason::SlowCommand => {
                self.slow_command_workers.iter().min_by_key(|worker| Arc::strong_count(&worker.in_flight))
            }
            OffloadReason::SlotsLocked => self.slot_wait_worker.as_ref(),
            OffloadReason::AllSlotsLocked => self.all_slots_wait_worker.as_ref(),
        }
    }

    fn into_workers(self) -> impl Iterator<Item = PooledWorker> {
        self.slow_command_workers.into_iter().chain(self.slot_wait_worker).chain(self.all_slots_wait_worker)
    }
}

struct PooledWorker {
    sender: UnboundedSender<MailboxMessage>,
    thread: std::thread::JoinHandle<()>,
    activity: Arc<ThreadActivity>,
    mailbox: Arc<dyn Mailbox>,
    stall_detector: StallDetector,
    /// Its reference count is the number of connections that the background worker serves.
    in_flight: InFlightCount,
}

impl PooledWorker {
    fn new(handle: WorkerHandle) -> Self {
        let WorkerHandle { sender, thread, activity, mailbox } = handle;
        Self {
            sender,
            thread,
            activity,
            mailbox,
            stall_detector: StallDetector::default(),
            in_flight: Arc::default(),
        }
    }
}

impl PooledWorkers {
    fn add_worker(&mut self, spawn: &SpawnWorker) -> std::io::Result<()> {
        self.workers.push(PooledWorker::new(spawn(self.workers.len())?));
        self.placement.add();
        Ok(())
    }

    /// Stops the workers after the first `count`. These workers have just been started and have no connections.
    fn truncate(&mut self, count: usize) {
        self.placement.truncate(count);
        // A worker ends when all senders to its queue are dropped. The thread is not joined here: its last actions may
        // need the lock that is held by the caller.
        self.workers.truncate(count);
    }

    /// Sends a connection to the worker that currently serves the connections of `owner`. Returns `false` if that
    /// worker's queue is closed.
    fn send(&self, owner: usize, message: MailboxMessage) -> bool {
        // A closed queue means that the server is stopping.
        self.placement.worker_for(owner).is_some_and(|to| self.workers[to].sender.send(message).is_ok())
    }

    /// Returns a connection to its owner. If the owner has been retired, a new one is assigned.
    fn return_to_owner(&mut self, mut client: Box<dyn MigratingConnection>) {
        let owner = self.placement.assign_owner(Some(client.owner()));
        client.set_owner(owner);
        self.send(owner, MailboxMessage::Migrated(client));
    }

    /// Moves the idle connections of a stalled worker to other workers.
    fn offload_worker(&mut self, number: usize, stalled_since: u64, spawn: &SpawnWorker) {
        self.placement.mark_stalled(number, stalled_since);
        if self.placement.first_free_worker().is_none()
            && self.placement.len() <= self.placement.active_count() + MAX_SPARE_WORKERS
        {
            // If no thread can be started, the connections wait for the stalled worker.
            let _ = self.add_worker(spawn);
        }
        if self.placement.first_free_worker().is_none() {
            return;
        }
        for message in self.workers[number].mailbox.take_messages() {
            // This worker may also have served connections of other stalled workers, which may return to their owners
            // by now.
            self.send(message.owner(), message);
        }
    }

    /// Unmarks every stalled worker that has moved on to another task.
    fn clear_recovered_stalls(&mut self) {
        for (number, worker) in self.workers.iter().enumerate() {
            self.placement.clear_if_recovered(number, worker.activity.task_start());
        }
    }
}

impl WorkerPool {
    /// Registers the initial workers, the standby worker first. `spawn` starts further workers.
    ///
    /// # Panics
    /// If called twice.
    pub fn start(
        &self,
        workers: Vec<WorkerHandle>,
        background: Option<BackgroundHandles>,
        spawn: SpawnWorker,
    ) {
        let placement = ConnectionPlacement::new(workers.len());
        let workers = workers.into_iter().map(PooledWorker::new).collect();
        let background = BackgroundWorkers::new(background);
        let pool = Mutex::new(PooledWorkers { workers, background_workers: background, placement });
        assert!(
            self.0.set(RunningPool { pool, spawn_worker: spawn }).is_ok(),
            "a server's workers are started once"
        );
    }

    fn running_pool(&self) -> &RunningPool {
        self.0.get().expect("clients are served only once the control thread runs")
    }

    /// Sets the number of active workers, and starts those that are missing.
    ///
    /// # Errors
    /// The system cannot create more threads. The pool is unchanged then.
    pub fn set_active_workers(&self, count: usize) -> std::io::Result<()> {
        let RunningPool { pool, spawn_worker: spawn } = self.running_pool();
        let mut pool = pool.lock();
        let before = pool.workers.len();
        while pool.workers.len() <= count {
            if let Err(error) = pool.add_worker(spawn) {
                pool.truncate(before);
                return Err(error);
            }
        }
        pool.placement.set_active_count(count);
        // Retired workers check which connections can move away.
        pool.workers.iter().for_each(|worker| worker.mailbox.request_placement_check());
        Ok(())
    }

    /// Stops all workers and waits until their threads have ended.
    pub fn stop_and_join_workers(&self) {
        let Some(running) = self.0.get() else { return };
        let mut pool = running.pool.lock();
        pool.placement = ConnectionPlacement::default();
        let (workers, background) =
            (std::mem::take(&mut pool.workers), std::mem::take(&mut pool.background_workers));
        drop(pool);
        for worker in workers.into_iter().chain(background.into_workers()) {
            drop(worker.sender);
            if worker.thread.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }

    /// Assigns a new client to a worker in round-robin order. Returns `false` if the worker has stopped.
    pub(crate) fn admit(&self, socket: Socket) -> bool {
        let mut pool = self.running_pool().pool.lock();
        let owner = pool.placement.assign_owner(None);
        pool.send(owner, MailboxMessage::Accepted(socket, owner))
    }

    /// Sends a connection that another worker served temporarily back to its owner.
    pub fn return_to_owner(&self, client: Box<dyn MigratingConnection>) {
        self.running_pool().pool.lock().return_to_owner(client);
    }

    /// Sends a connection from a background worker back to its owner.
    pub fn return_from_background(&self, mut client: Box<dyn MigratingConnection>) {
        client.leave_background();
        self.return_to_owner(client);
    }

    /// Moves a connection to the background worker for commands with this reason.
    pub fn move_to_background(
        &self,
        mut client: Box<dyn MigratingConnection>,
        reason: OffloadReason,
        engine: &Engine,
    ) {
        let mut pool = self.running_pool().pool.lock();
        // There are no background workers while the server stops.
        let Some(worker) = pool.background_workers.select(reason) else { return };
        client.enter_background(worker.in_flight.clone(), reason);
        if engine.settings.node_flags().contains(NodeFlags::BUSY) {
            // A stalled background worker may already have sent its connections away, and would not do so again. Its
            // owner replies to the client with the BUSY error.
            client.leave_background();
            pool.return_to_owner(client);
            return;
        }
        let _ = worker.sender.send(MailboxMessage::Migrated(client));
    }

    /// Moves all idle connections away from the calling worker, which a script has stalled.
    pub fn offload_worker(&self, number: usize, engine: &Engine) {
        let Some(RunningPool { pool, spawn_worker: spawn }) = self.0.get() else { return };
        let mut pool = pool.lock();
        // The busy flag is updated first, because the moved connections may request locks that the script holds.
        engine.update_busy_flag();
        if let Some(since) = pool.workers.get(number).map(|worker| worker.activity.task_start()) {
            pool.offload_worker(number, since, spawn);
        }
    }

    /// Checks all workers, and offloads the stalled ones. Returns the delay until the next check is due.
    pub fn offload_stalled_workers(&self, now: u64) -> Duration {
        let Some(RunningPool { pool, spawn_worker: spawn }) = self.0.get() else {
            return StallState::Idle.next_check_delay();
        };
        let (mut pool, mut worst) = (pool.lock(), StallState::Idle);
        pool.clear_recovered_stalls();
        for number in 0..pool.workers.len() {
            let worker = &mut pool.workers[number];
            // Read once, since the worker may recover between the check and the offload.
            let since = worker.activity.task_start();
            let state = worker.stall_detector.check(&worker.activity, since, now);
            // This also moves connections that arrived after an earlier offload.
            if state == StallState::Stalled {
                pool.offload_worker(number, since, spawn);
            }
            worst = worst.max(state);
        }
        worst.next_check_delay()
    }

    /// Updates the flag that makes commands fail with BUSY, and detects workers that have recovered.
    pub fn update_busy_flag_and_stalls(&self, engine: &Engine) {
        let mut pool = self.0.get().map(|running| running.pool.lock());
        engine.update_busy_flag();
        if let Some(pool) = &mut pool {
            pool.clear_recovered_stalls();
        }
    }

    /// Returns whether any worker is marked as stalled.
    pub fn has_stalled_worker(&self) -> bool {
        self.0.get().is_some_and(|running| running.pool.lock().placement.has_stalled_worker())
    }

    /// Returns a copy of the current placement.
    pub fn placement(&self) -> ConnectionPlacement {
        self.0.get().map(|running| running.pool.lock().placement.clone()).unwrap_or_default()
    }
}

impl std::fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerPool").finish_non_exhaustive()
    }
}

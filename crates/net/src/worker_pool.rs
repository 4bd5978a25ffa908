//! A pool of worker threads that serve client connections.
//!
//! Workers are numbered; number 0 is the standby worker. Worker threads live until the server stops. When `io-threads`
//! is lowered, the surplus workers with the highest numbers are retired: their connections move away and no new ones
//! are assigned.
//!
//! A worker that runs one command or script for a long time is *stalled* and cannot serve its other connections. It is
//! *offloaded* ([`Crew::relieve_the_kept`], or by the worker itself, [`Crew::relieve`]): its idle connections move to a
//! free worker, preferably the standby one. If no worker is free, a spare thread is started.

mod placement;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use engine::{Engine, Gate};
use parking_lot::Mutex;
use process::stall_detector::{Look, Occupation, Seen};
use tokio::sync::mpsc::UnboundedSender;

pub use self::placement::Roster;
use crate::transport::Socket;

/// Index of the standby worker, which has connections only while another worker is stalled.
pub(crate) const STANDBY: usize = 0;

/// Upper bound on spare threads started when all workers are stalled.
const MOST_SPARE: usize = 8;

/// A message to a worker thread.
pub enum Arrival {
    /// A client that has just connected, and the number of its owning worker.
    New(Socket, usize),
    /// A client that moves here from another thread.
    Moved(Box<dyn Traveller>),
}

impl Arrival {
    fn home(&self) -> usize {
        match self {
            Self::New(_, home) => *home,
            Self::Moved(client) => client.home(),
        }
    }
}

impl std::fmt::Debug for Arrival {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrival").field("home", &self.home()).finish_non_exhaustive()
    }
}

/// A client connection on its way from one worker to another.
pub trait Traveller: Send {
    /// Registers the connection with the calling thread's event loop and serves it there.
    fn arrive(self: Box<Self>);

    /// The number of the owning worker.
    fn home(&self) -> usize;

    /// Assigns the connection to another worker.
    fn set_home(&mut self, home: usize);

    /// Marks the connection as served by a background worker. `waits` selects the background worker where blocking
    /// commands wait.
    fn enter_background(&mut self, guest: Guest, waits: bool);

    /// Undoes [`Self::enter_background`].
    fn leave_background(&mut self);
}

/// A reference count of the connections that a background worker serves.
pub type Guest = Arc<()>;

/// A worker's queue and connections, as far as other threads can access them.
pub trait Desk: Send + Sync {
    /// Takes all queued messages and idle connections.
    fn clear(&self) -> Vec<Arrival>;

    /// Asks the worker to check which of its connections can return to their owners.
    fn look(&self);
}

/// A worker thread with the means to send it connections and to observe it.
pub struct Handle {
    /// Sends messages to the worker.
    pub connections: UnboundedSender<Arrival>,
    /// Joined when the server stops.
    pub thread: std::thread::JoinHandle<()>,
    /// Shows since when the worker has been running its current task.
    pub occupation: Arc<Occupation>,
    /// The worker's queue and connections.
    pub desk: Arc<dyn Desk>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("occupation", &self.occupation).finish_non_exhaustive()
    }
}

/// Starts the worker with the given number.
pub type Spawn = Box<dyn Fn(usize) -> std::io::Result<Handle> + Send + Sync>;

/// The worker threads that serve connections. Empty until the control thread starts them.
#[derive(Default)]
pub struct Crew(OnceLock<Settled>);

struct Settled {
    /// Locked during every send, so that no message reaches a worker after its last look at the queue.
    hands: Mutex<Hands>,
    spawn: Spawn,
}

struct Hands {
    workers: Vec<Hand>,
    /// The background workers. The last one only runs commands that wait for locks.
    background: Vec<Hand>,
    /// Assigns connections to workers.
    roster: Roster,
}

struct Hand {
    mail: UnboundedSender<Arrival>,
    thread: std::thread::JoinHandle<()>,
    occupation: Arc<Occupation>,
    desk: Arc<dyn Desk>,
    look: Look,
    /// Counts the connections of a background worker.
    guests: Guest,
}

impl Hand {
    fn new(handle: Handle) -> Self {
        let Handle { connections, thread, occupation, desk } = handle;
        Self { mail: connections, thread, occupation, desk, look: Look::default(), guests: Arc::default() }
    }
}

impl Hands {
    fn add(&mut self, spawn: &Spawn) -> std::io::Result<()> {
        self.workers.push(Hand::new(spawn(self.workers.len())?));
        self.roster.add();
        Ok(())
    }

    /// Stops the workers after the first `kept`. They have just been started and have no connections.
    fn dismiss(&mut self, kept: usize) {
        self.roster.keep_first(kept);
        // A worker ends when all senders to its queue are dropped. The thread is not joined here: its last actions may
        // need the lock that is held by the caller.
        self.workers.truncate(kept);
    }

    /// Sends a connection to the worker that currently serves this owner's connections. Returns `false` if the queue is
    /// closed.
    fn send(&self, home: usize, arrival: Arrival) -> bool {
        // A closed queue means that the server is stopping.
        self.roster.of(home).is_some_and(|to| self.workers[to].mail.send(arrival).is_ok())
    }

    /// Returns a connection to its owner. If the owner has been retired, a new one is assigned.
    fn take_home(&mut self, mut client: Box<dyn Traveller>) {
        let home = self.roster.home(Some(client.home()));
        client.set_home(home);
        self.send(home, Arrival::Moved(client));
    }

    /// Moves the idle connections of a stalled worker to other workers.
    fn relieve(&mut self, number: usize, since: u64, spawn: &Spawn) {
        self.roster.keep(number, since);
        if self.roster.free().is_none() && self.roster.len() <= self.roster.serving() + MOST_SPARE {
            // If no thread can be started, the connections wait.
            let _ = self.add(spawn);
        }
        if self.roster.free().is_none() {
            return;
        }
        for arrival in self.workers[number].desk.clear() {
            // Connections that this worker served for other stalled workers may return to their owners by now.
            self.send(arrival.home(), arrival);
        }
    }

    /// Clears the mark of every stalled worker that has moved on to another task.
    fn notice_returns(&mut self) {
        for (number, hand) in self.workers.iter().enumerate() {
            self.roster.notice(number, hand.occupation.since());
        }
    }
}

impl Crew {
    /// Registers the initial workers, the standby worker first. `spawn` starts further workers.
    ///
    /// # Panics
    /// If called twice.
    pub fn settle(&self, workers: Vec<Handle>, background: Vec<Handle>, spawn: Spawn) {
        let roster = Roster::new(workers.len());
        let [workers, background] =
            [workers, background].map(|handles| handles.into_iter().map(Hand::new).collect());
        let hands = Mutex::new(Hands { workers, background, roster });
        assert!(self.0.set(Settled { hands, spawn }).is_ok(), "a server's workers are started once");
    }

    fn settled(&self) -> &Settled {
        self.0.get().expect("clients are served only once the control thread runs")
    }

    /// Sets the number of active workers, and starts those that are missing.
    ///
    /// # Errors
    /// The system cannot create more threads. The pool is unchanged then.
    pub fn set_serving(&self, count: usize) -> std::io::Result<()> {
        let Settled { hands, spawn } = self.settled();
        let mut hands = hands.lock();
        let before = hands.workers.len();
        while hands.workers.len() <= count {
            if let Err(error) = hands.add(spawn) {
                hands.dismiss(before);
                return Err(error);
            }
        }
        hands.roster.set_serving(count);
        // Retired workers check which connections can move away.
        hands.workers.iter().for_each(|hand| hand.desk.look());
        Ok(())
    }

    /// Stops all workers and joins their threads.
    pub fn join(&self) {
        let Some(settled) = self.0.get() else { return };
        let mut hands = settled.hands.lock();
        hands.roster = Roster::default();
        let all = [std::mem::take(&mut hands.workers), std::mem::take(&mut hands.background)];
        drop(hands);
        for hand in all.into_iter().flatten() {
            drop(hand.mail);
            if hand.thread.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }

    /// Assigns a new client to a worker in round-robin order. Returns `false` if the worker has stopped.
    pub(crate) fn admit(&self, socket: Socket) -> bool {
        let mut hands = self.settled().hands.lock();
        let home = hands.roster.home(None);
        hands.send(home, Arrival::New(socket, home))
    }

    /// Returns a temporarily moved connection to its owner.
    pub fn take_home(&self, client: Box<dyn Traveller>) {
        self.settled().hands.lock().take_home(client);
    }

    /// Returns a connection from the background to its owner.
    pub fn bring_back(&self, mut client: Box<dyn Traveller>) {
        client.leave_background();
        self.take_home(client);
    }

    /// Moves a connection to the least loaded background worker, or to the waiting worker if `waits` is set.
    pub fn to_background(&self, mut client: Box<dyn Traveller>, waits: bool, engine: &Engine) {
        let mut hands = self.settled().hands.lock();
        // The list is empty while the server stops.
        let Some((waiting, running)) = hands.background.split_last() else { return };
        let idlest = || running.iter().min_by_key(|hand| Arc::strong_count(&hand.guests));
        let Some(hand) = (if waits { Some(waiting) } else { idlest() }) else { return };
        client.enter_background(hand.guests.clone(), waits);
        if engine.settings.gate().contains(Gate::BUSY) {
            // A stalled background worker may already have sent its connections away, and would not do so again. Back
            // at its owner the client gets the BUSY error.
            client.leave_background();
            hands.take_home(client);
            return;
        }
        let _ = hand.mail.send(Arrival::Moved(client));
    }

    /// Moves all idle connections away from the calling worker, which a script has stalled.
    pub fn relieve(&self, number: usize, engine: &Engine) {
        let Some(Settled { hands, spawn }) = self.0.get() else { return };
        let mut hands = hands.lock();
        // Must come first: the moved connections may request locks that the script holds.
        engine.watch_scripts();
        if let Some(since) = hands.workers.get(number).map(|hand| hand.occupation.since()) {
            hands.relieve(number, since, spawn);
        }
    }

    /// Checks all workers, and offloads the stalled ones. Returns the delay until the next check.
    pub fn relieve_the_kept(&self, now: u64) -> Duration {
        let Some(Settled { hands, spawn }) = self.0.get() else { return Seen::Free.next() };
        let (mut hands, mut most) = (hands.lock(), Seen::Free);
        hands.notice_returns();
        for number in 0..hands.workers.len() {
            let hand = &mut hands.workers[number];
            // Read once, since the worker may recover between the check and the offload.
            let since = hand.occupation.since();
            let seen = hand.look.at(&hand.occupation, since, now);
            // This also moves connections that arrived after an earlier offload.
            if seen == Seen::Kept {
                hands.relieve(number, since, spawn);
            }
            most = most.max(seen);
        }
        most.next()
    }

    /// Updates the busy-script state, and detects workers that have recovered.
    pub fn watch_scripts(&self, engine: &Engine) {
        let mut hands = self.0.get().map(|settled| settled.hands.lock());
        engine.watch_scripts();
        if let Some(hands) = &mut hands {
            hands.notice_returns();
        }
    }

    pub fn is_any_kept(&self) -> bool {
        self.0.get().is_some_and(|settled| settled.hands.lock().roster.is_any_kept())
    }

    /// A snapshot of the current placement.
    pub fn roster(&self) -> Roster {
        self.0.get().map(|settled| settled.hands.lock().roster.clone()).unwrap_or_default()
    }
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew").finish_non_exhaustive()
    }
}

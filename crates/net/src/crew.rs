//! The threads that serve connections, and which of them a connection goes to.
//!
//! The workers have numbers, the one that stands by has the first. Their threads end with the server: of those that are
//! more than `io-threads` says, the last ones are retired, which means that connections leave them and none comes.
//!
//! A worker that is kept by one thing serves nobody meanwhile. It is relieved ([`Crew::relieve_the_kept`], and by
//! itself, [`Crew::relieve`]): its connections that are at rest go to one that is free, the one that stands by before
//! others, and to one more thread where none is.

mod roster;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use engine::{Engine, Gate};
use parking_lot::Mutex;
use process::occupation::{Look, Occupation, Seen};
use tokio::sync::mpsc::UnboundedSender;

pub use self::roster::Roster;
use crate::transport::Socket;

/// The worker that stands by has this number: it has connections only while another is kept.
pub(crate) const STANDBY: usize = 0;

/// So many more threads stand by at most, when all others are kept.
const MOST_SPARE: usize = 8;

/// A message to a worker thread.
pub enum Arrival {
    /// A client that has just connected, and its home.
    New(Socket, usize),
    /// A client that another thread has served so far.
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

/// A client on its way from one worker to another.
pub trait Traveller: Send {
    /// It is there: the calling thread serves it from now on.
    fn arrive(self: Box<Self>);

    /// The number of its home.
    fn home(&self) -> usize;

    /// It has another home from now on.
    fn set_home(&mut self, home: usize);

    /// It is with a background worker from now on, the one where commands wait if `waits`.
    fn enter_background(&mut self, guest: Guest, waits: bool);

    /// It is so no more.
    fn leave_background(&mut self);
}

/// Counts a connection among those of the background worker that it is with.
pub type Guest = Arc<()>;

/// The connections and messages of a worker, as far as other threads may take them from there.
pub trait Desk: Send + Sync {
    /// Takes what has come and the connections that are at rest.
    fn clear(&self) -> Vec<Arrival>;

    /// Has its worker look which of its connections can go home.
    fn look(&self);
}

/// A worker thread and the way to hand it connections.
pub struct Handle {
    /// Takes what it is to serve.
    pub connections: UnboundedSender<Arrival>,
    /// To be joined once the server stops.
    pub thread: std::thread::JoinHandle<()>,
    /// Shows since when it has been about one thing.
    pub occupation: Arc<Occupation>,
    /// Its connections, as far as others may take them.
    pub desk: Arc<dyn Desk>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("occupation", &self.occupation).finish_non_exhaustive()
    }
}

/// Starts the worker with this number.
pub type Spawn = Box<dyn Fn(usize) -> std::io::Result<Handle> + Send + Sync>;

/// The threads that serve connections, once the control thread runs.
#[derive(Default)]
pub struct Crew(OnceLock<Settled>);

struct Settled {
    /// Locked while something is sent to one, so that nothing comes to one that has seen to its mail for the last time.
    hands: Mutex<Hands>,
    spawn: Spawn,
}

struct Hands {
    workers: Vec<Hand>,
    /// The background workers. The last one does nothing but wait for what others hold.
    background: Vec<Hand>,
    /// Says which of the workers serves whom.
    roster: Roster,
}

struct Hand {
    mail: UnboundedSender<Arrival>,
    thread: std::thread::JoinHandle<()>,
    occupation: Arc<Occupation>,
    desk: Arc<dyn Desk>,
    look: Look,
    /// Its connections, if it is in the background.
    guests: Guest,
}

impl Hand {
    fn new(handle: Handle) -> Self {
        let Handle { connections, thread, occupation, desk } = handle;
        Self { mail: connections, thread, occupation, desk, look: Look::default(), guests: Arc::default() }
    }
}

impl Hands {
    /// Starts one more worker.
    fn add(&mut self, spawn: &Spawn) -> std::io::Result<()> {
        self.workers.push(Hand::new(spawn(self.workers.len())?));
        self.roster.add();
        Ok(())
    }

    /// Ends the workers behind the first `kept`, which were started a moment ago and have had no connection.
    fn dismiss(&mut self, kept: usize) {
        self.roster.keep_first(kept);
        // A worker ends when nobody can send it anything any more. It is not waited for: what it does last may need what is
        // locked here.
        self.workers.truncate(kept);
    }

    /// Hands a connection with this home to the worker that serves it now; says whether that took it.
    fn send(&self, home: usize, arrival: Arrival) -> bool {
        // An end that is gone belongs to a server that stops.
        self.roster.of(home).is_some_and(|to| self.workers[to].mail.send(arrival).is_ok())
    }

    /// Hands a connection that was elsewhere to its home, which is another one if that serves no more.
    fn take_home(&mut self, mut client: Box<dyn Traveller>) {
        let home = self.roster.home(Some(client.home()));
        client.set_home(home);
        self.send(home, Arrival::Moved(client));
    }

    /// Has another worker serve what this one has on its desk, since what it turned to then keeps it.
    fn relieve(&mut self, number: usize, since: u64, spawn: &Spawn) {
        self.roster.keep(number, since);
        if self.roster.free().is_none() && self.roster.len() <= self.roster.serving() + MOST_SPARE {
            // Without one more they wait.
            let _ = self.add(spawn);
        }
        if self.roster.free().is_none() {
            return;
        }
        for arrival in self.workers[number].desk.clear() {
            // Those that it stood in for may go home by now.
            self.send(arrival.home(), arrival);
        }
    }

    /// Hears of all workers which are back from what kept them.
    fn notice_returns(&mut self) {
        for (number, hand) in self.workers.iter().enumerate() {
            self.roster.notice(number, hand.occupation.since());
        }
    }
}

impl Crew {
    /// The first worker is the one that stands by; more are started by `spawn`. Once.
    pub fn settle(&self, workers: Vec<Handle>, background: Vec<Handle>, spawn: Spawn) {
        let roster = Roster::new(workers.len());
        let [workers, background] =
            [workers, background].map(|handles| handles.into_iter().map(Hand::new).collect());
        let hands = Mutex::new(Hands { workers, background, roster });
        assert!(self.0.set(Settled { hands, spawn }).is_ok(), "a server's workers are started once");
    }

    fn settled(&self) -> &Settled {
        self.0.get().expect("nobody is served before the control thread runs")
    }

    /// Has so many workers serve, and starts those that are missing.
    ///
    /// # Errors
    /// The system gives no more threads; it is as it was then.
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
        // The retired workers see which connections they can let go.
        hands.workers.iter().for_each(|hand| hand.desk.look());
        Ok(())
    }

    /// Ends the workers, once the server stops.
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

    /// Hands a client that has just connected to the worker whose turn it is; says whether that took it.
    pub(crate) fn admit(&self, socket: Socket) -> bool {
        let mut hands = self.settled().hands.lock();
        let home = hands.roster.home(None);
        hands.send(home, Arrival::New(socket, home))
    }

    /// Hands a connection that was elsewhere for a while to its home.
    pub fn take_home(&self, client: Box<dyn Traveller>) {
        self.settled().hands.lock().take_home(client);
    }

    /// Hands a connection from the background to its home.
    pub fn bring_back(&self, mut client: Box<dyn Traveller>) {
        client.leave_background();
        self.take_home(client);
    }

    /// Hands a connection to the background worker that has the fewest, or to the one that waits.
    pub fn to_background(&self, mut client: Box<dyn Traveller>, waits: bool, engine: &Engine) {
        let mut hands = self.settled().hands.lock();
        // A server that stops has none any more.
        let Some((waiting, running)) = hands.background.split_last() else { return };
        let idlest = || running.iter().min_by_key(|hand| Arc::strong_count(&hand.guests));
        let Some(hand) = (if waits { Some(waiting) } else { idlest() }) else { return };
        client.enter_background(hand.guests.clone(), waits);
        if engine.settings.gate().contains(Gate::BUSY) {
            // One that a script keeps may have sent all others away for the last time: they are to be told of it.
            client.leave_background();
            hands.take_home(client);
            return;
        }
        let _ = hand.mail.send(Arrival::Moved(client));
    }

    /// Worker number `number`, which the caller is, serves no connection from now on, as a script keeps it.
    pub fn relieve(&self, number: usize, engine: &Engine) {
        let Some(Settled { hands, spawn }) = self.0.get() else { return };
        let mut hands = hands.lock();
        // Before the connections that go elsewhere ask there for what the script holds.
        engine.watch_scripts();
        if let Some(since) = hands.workers.get(number).map(|hand| hand.occupation.since()) {
            hands.relieve(number, since, spawn);
        }
    }

    /// Looks at all workers, and relieves those that one thing keeps for long. When to look again.
    pub fn relieve_the_kept(&self, now: u64) -> Duration {
        let Some(Settled { hands, spawn }) = self.0.get() else { return Seen::Free.next() };
        let (mut hands, mut most) = (hands.lock(), Seen::Free);
        hands.notice_returns();
        for number in 0..hands.workers.len() {
            let hand = &mut hands.workers[number];
            // Asked once: it may be back before it is relieved.
            let since = hand.occupation.since();
            let seen = hand.look.at(&hand.occupation, since, now);
            // Also what has come since it was relieved.
            if seen == Seen::Kept {
                hands.relieve(number, since, spawn);
            }
            most = most.max(seen);
        }
        most.next()
    }

    /// Says of all commands whether a script is busy, and of all workers which are back from what kept them.
    pub fn watch_scripts(&self, engine: &Engine) {
        let mut hands = self.0.get().map(|settled| settled.hands.lock());
        engine.watch_scripts();
        if let Some(hands) = &mut hands {
            hands.notice_returns();
        }
    }

    /// Whether a worker is kept busy.
    pub fn is_any_kept(&self) -> bool {
        self.0.get().is_some_and(|settled| settled.hands.lock().roster.is_any_kept())
    }

    /// Which worker serves whom at this moment.
    pub fn roster(&self) -> Roster {
        self.0.get().map(|settled| settled.hands.lock().roster.clone()).unwrap_or_default()
    }
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew").finish_non_exhaustive()
    }
}

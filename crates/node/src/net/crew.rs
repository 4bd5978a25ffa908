//! The threads that serve connections, and which of them a connection goes to.
//!
//! The workers have numbers, the one that stands by has the first. Their threads end with the server: of those that are
//! more than `io-threads` says, the last ones are retired, which means that connections leave them and none comes.
//!
//! A worker that is kept by one thing serves nobody meanwhile. It is relieved ([`Crew::relieve_the_kept`], and by
//! itself, [`Crew::relieve`]): its connections that are at rest go to one that is free, the one that stands by before
//! others, and to one more thread where none is.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use engine::{Engine, Gate};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;

use crate::net::transport::Socket;
use crate::process::occupation::{Look, Occupation, Seen};

/// The worker that stands by has this number: it has connections only while another is kept.
pub(crate) const STANDBY: usize = 0;

/// So many more threads stand by at most, when all others are kept.
const MOST_SPARE: usize = 8;

/// A message to a worker thread.
pub(crate) enum Arrival {
    /// A client that has just connected.
    New(Socket),
    /// A client that another thread has served so far.
    Moved(Box<dyn Traveller>),
    /// No connection: the number of workers has changed.
    News,
}

/// A client on its way from one worker to another.
pub(crate) trait Traveller: Send {
    /// It is there: the calling thread serves it from now on.
    fn arrive(self: Box<Self>);

    /// It is with a background worker from now on, the one where commands wait if `waits`.
    fn enter_background(&mut self, stay: Stay, waits: bool);

    /// It is so no more; returns the number of the worker that it came from.
    fn leave_background(&mut self) -> usize;
}

/// The connections and messages of a worker, as far as other threads may take them from there.
pub(crate) trait Desk: Send + Sync {
    /// Takes what has come and the connections that are at rest.
    fn clear(&self) -> Vec<Arrival>;
}

/// A worker thread and the way to hand it connections.
pub(crate) struct Handle {
    pub(crate) connections: UnboundedSender<Arrival>,
    pub(crate) thread: std::thread::JoinHandle<()>,
    pub(crate) occupation: Arc<Occupation>,
    pub(crate) desk: Arc<dyn Desk>,
}

/// Starts the worker with this number.
pub(crate) type Spawn = Box<dyn Fn(usize) -> std::io::Result<Handle> + Send + Sync>;

/// The threads that serve connections, once the control thread runs.
#[derive(Default)]
pub(crate) struct Crew(OnceLock<Settled>);

struct Settled {
    /// Locked while something is sent to one, so that nothing comes to one that has seen to its mail for the last time.
    hands: Mutex<Hands>,
    spawn: Spawn,
}

struct Hands {
    workers: Vec<Hand>,
    /// The background workers. The last one does nothing but wait for what others hold.
    background: Vec<Hand>,
    /// How many serve, besides the one that stands by.
    serving: usize,
}

struct Hand {
    mail: UnboundedSender<Arrival>,
    thread: std::thread::JoinHandle<()>,
    occupation: Arc<Occupation>,
    desk: Arc<dyn Desk>,
    look: Look,
    /// Since when one thing keeps it, if it was relieved for that.
    kept_since: Option<u64>,
    /// Its connections, if it is in the background.
    guests: Arc<()>,
}

/// A connection's stay with a background worker.
#[derive(Debug)]
pub(crate) struct Stay {
    /// The worker to which it goes back.
    home: usize,
    /// Counts it among those of the background worker.
    _guest: Arc<()>,
}

impl Stay {
    /// The worker to which the connection goes back.
    pub(crate) fn home(&self) -> usize {
        self.home
    }
}

impl Hand {
    fn new(handle: Handle) -> Self {
        let Handle { connections, thread, occupation, desk } = handle;
        let (look, guests) = (Look::default(), Arc::default());
        Self { mail: connections, thread, occupation, desk, look, kept_since: None, guests }
    }

    fn is_free(&self) -> bool {
        self.kept_since.is_none()
    }

    /// The thing that kept it is over when it is about something else.
    fn notice_return(&mut self) {
        if self.kept_since.is_some_and(|since| since != self.occupation.since()) {
            self.kept_since = None;
        }
    }
}

impl Hands {
    /// A worker that is free, the one that stands by before others, and those before the spare ones.
    fn free(&self) -> Option<&UnboundedSender<Arrival>> {
        self.workers.iter().find(|hand| hand.is_free()).map(|hand| &hand.mail)
    }

    /// The worker whose turn it is.
    fn next(&self, turn: usize) -> Option<&UnboundedSender<Arrival>> {
        self.serving(STANDBY + 1 + turn % self.serving.max(1)).or_else(|| self.free())
    }

    /// The worker with this number, if it serves.
    fn serving(&self, number: usize) -> Option<&UnboundedSender<Arrival>> {
        let serves = number != STANDBY && number <= self.serving;
        self.workers.get(number).filter(|hand| serves && hand.is_free()).map(|hand| &hand.mail)
    }

    /// Hands a connection from the background to the worker that it came from.
    fn take_back(&self, mut client: Box<dyn Traveller>) {
        let home = client.leave_background();
        if let Some(to) = self.serving(home).or_else(|| self.next(home)) {
            // An end that is gone belongs to a server that stops.
            let _ = to.send(Arrival::Moved(client));
        }
    }

    fn is_any_kept(&self) -> bool {
        self.workers.iter().any(|hand| !hand.is_free())
    }

    /// Has another worker serve what this one has on its desk, since one thing keeps it.
    fn relieve(&mut self, number: usize, spawn: &Spawn) {
        let Some(hand) = self.workers.get_mut(number) else { return };
        hand.kept_since = Some(hand.occupation.since());
        if self.free().is_none()
            && self.workers.len() <= self.serving + MOST_SPARE
            && let Ok(spare) = spawn(self.workers.len())
        {
            self.workers.push(Hand::new(spare));
        }
        let Some(to) = self.free() else { return };
        for arrival in self.workers[number].desk.clear() {
            // An end that is gone belongs to a server that stops.
            let _ = to.send(arrival);
        }
    }
}

impl Crew {
    /// The first worker is the one that stands by; more are started by `spawn`. Once.
    pub(crate) fn settle(&self, workers: Vec<Handle>, background: Vec<Handle>, spawn: Spawn) {
        let serving = workers.len() - 1;
        let [workers, background] =
            [workers, background].map(|handles| handles.into_iter().map(Hand::new).collect());
        let hands = Mutex::new(Hands { workers, background, serving });
        assert!(self.0.set(Settled { hands, spawn }).is_ok(), "a server's workers are started once");
    }

    fn settled(&self) -> &Settled {
        self.0.get().expect("nobody is served before the control thread runs")
    }

    /// Has so many workers serve, and starts those that are missing.
    ///
    /// # Errors
    /// The system gives no more threads; it is as it was then.
    pub(crate) fn set_serving(&self, count: usize) -> std::io::Result<()> {
        let Settled { hands, spawn } = self.settled();
        let mut hands = hands.lock();
        while hands.workers.len() <= count {
            let hand = Hand::new(spawn(hands.workers.len())?);
            hands.workers.push(hand);
        }
        hands.serving = count;
        // The retired workers look at once which connections they can let go.
        for hand in &hands.workers {
            let _ = hand.mail.send(Arrival::News);
        }
        Ok(())
    }

    /// Ends the workers, once the server stops.
    pub(crate) fn join(&self) {
        let Some(settled) = self.0.get() else { return };
        let mut hands = settled.hands.lock();
        let all = [std::mem::take(&mut hands.workers), std::mem::take(&mut hands.background)];
        drop(hands);
        for hand in all.into_iter().flatten() {
            drop(hand.mail);
            if hand.thread.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }

    /// Hands a connection to the worker whose turn it is; says whether it took it.
    pub(crate) fn hand_over(&self, turn: usize, arrival: Arrival) -> bool {
        self.settled().hands.lock().next(turn).is_some_and(|to| to.send(arrival).is_ok())
    }

    /// Hands a connection from the background back to the worker that it came from, or to another if that does not
    /// serve.
    pub(crate) fn bring_back(&self, client: Box<dyn Traveller>) {
        self.settled().hands.lock().take_back(client);
    }

    /// Hands a connection that came from worker `home` to the background worker that has the fewest, or to the one that
    /// waits.
    pub(crate) fn to_background(
        &self,
        mut client: Box<dyn Traveller>,
        home: usize,
        waits: bool,
        engine: &Engine,
    ) {
        let hands = self.settled().hands.lock();
        // A server that stops has none any more.
        let Some((waiting, running)) = hands.background.split_last() else { return };
        let idlest = || running.iter().min_by_key(|hand| Arc::strong_count(&hand.guests));
        let Some(hand) = (if waits { Some(waiting) } else { idlest() }) else { return };
        client.enter_background(Stay { home, _guest: hand.guests.clone() }, waits);
        if engine.settings.gate().contains(Gate::BUSY) {
            // One that a script keeps may have sent all others away for the last time: they are to be told of it.
            hands.take_back(client);
            return;
        }
        let _ = hand.mail.send(Arrival::Moved(client));
    }

    /// Worker number `number`, which the caller is, serves no connection from now on, as a script keeps it.
    pub(crate) fn relieve(&self, number: usize, engine: &Engine) {
        let Some(Settled { hands, spawn }) = self.0.get() else { return };
        let mut hands = hands.lock();
        // Before the connections that go elsewhere ask there for what the script holds.
        engine.watch_scripts();
        hands.relieve(number, spawn);
    }

    /// Looks at all workers, and relieves those that one thing keeps for long. When to look again.
    pub(crate) fn relieve_the_kept(&self, now: u64) -> Duration {
        let Some(Settled { hands, spawn }) = self.0.get() else { return Seen::Free.next() };
        let (mut hands, mut most) = (hands.lock(), Seen::Free);
        for number in 0..hands.workers.len() {
            let hand = &mut hands.workers[number];
            hand.notice_return();
            let seen = hand.look.at(&hand.occupation, now);
            // Also what has come since it was relieved.
            if seen == Seen::Kept {
                hands.relieve(number, spawn);
            }
            most = most.max(seen);
        }
        most.next()
    }

    /// Says of all commands whether a script is busy, and of all workers which are back from what kept them.
    pub(crate) fn watch_scripts(&self, engine: &Engine) {
        let mut hands = self.0.get().map(|settled| settled.hands.lock());
        engine.watch_scripts();
        if let Some(hands) = &mut hands {
            hands.workers.iter_mut().for_each(Hand::notice_return);
        }
    }

    /// Whether a worker is kept busy.
    pub(crate) fn is_any_kept(&self) -> bool {
        self.0.get().is_some_and(|settled| settled.hands.lock().is_any_kept())
    }

    /// Whether the connections of the worker with this number are to go elsewhere when they can.
    pub(crate) fn is_to_be_left(&self, number: usize) -> bool {
        self.0.get().is_some_and(|settled| {
            let hands = settled.hands.lock();
            number > hands.serving || number == STANDBY && !hands.is_any_kept()
        })
    }

    /// Whether the worker with this number is to have no connections for long.
    pub(crate) fn is_spare(&self, number: usize) -> bool {
        number == STANDBY || self.0.get().is_some_and(|settled| number > settled.hands.lock().serving)
    }
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew").finish_non_exhaustive()
    }
}

//! Commands that wait for keys (BLPOP), and the queues of the keys that they wait for.
//!
//! A handler that finds nothing says [`Outcome::Block`]. Its client then stands in the queue of each key that it
//! waits for, from before the keys' slots are unlocked. A command that changes such a key serves the waiters in its
//! queue, the longest waiting first, before the key's slot is unlocked: each waiter's command is run again on its
//! behalf, and the reply is left with it ([`Waiter`]) for its connection, which is woken. A waiter that finds nothing
//! again keeps its place.
//!
//! The end of a wait without a reply comes through the client ([`Client::unblock`]) or from its connection: its time is
//! over, or the client is gone. A waiter that is unblocked or killed is not served any more; its connection takes it
//! out of the queues.
//!
//! Invariant: a waiter joins its queues, and is looked for there, under the locks of its keys' slots, so that no
//! change is missed. Queues are spread over shards by slot; in a shard without waiters a change costs one load.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use clock::Millis;
use keyspace::Kind;
use parking_lot::Mutex;
use resp::{Protocol, Request, Writer};
use slot_routing::{ReplOffset, Slot};
use smallvec::SmallVec;

use crate::clients::{Client, Unblock};
use crate::shell_commands::NodeCommand;

const SHARDS: usize = 64;
/// So many are looked at together.
pub(crate) const AT_ONCE: usize = 64;

/// The outcome of a command. `A` says that it is to begin again; most cannot.
#[derive(Debug)]
pub enum Outcome<A = Infallible> {
    /// Its reply is written.
    Done,
    /// It has nothing to reply yet, has written nothing and changed nothing.
    Block(Wait),
    /// It has done nothing: it waits for more than keys, and its client's connection is to carry it out.
    HandOver(NodeCommand),
    /// It has done nothing, and is to begin again with the script turn: it needs slots that it has not named.
    Again(A),
}

impl Outcome {
    /// The same, where a command might begin again.
    pub(crate) fn widen<A>(self) -> Outcome<A> {
        match self {
            Self::Done => Outcome::Done,
            Self::Block(wait) => Outcome::Block(wait),
            Self::HandOver(command) => Outcome::HandOver(command),
        }
    }
}

/// The keys that a command waits for, and the end of its wait.
#[derive(Debug, Clone)]
pub struct Wait {
    /// The places of the keys among its arguments.
    pub keys: Range<usize>,
    /// The kind of value that must lie there for the command to be tried again.
    pub kind: Kind,
    /// `None` is for ever.
    pub until: Option<Millis>,
    /// Its time is not over then, but the command is to be tried again.
    pub tries_at_end: bool,
    /// The reply when its time is over.
    pub nothing: fn(&mut Writer<'_>),
    /// The request to run in place of the client's when it is tried again: where a word of it stood for what was there
    /// when the client came.
    pub resolved: Option<Request>,
    /// Whether it is also tried again when a key is gone or holds a value of another kind: to say so.
    pub also_if_gone: bool,
}

impl Wait {
    /// For something of this kind at one of these keys, with the request as it came.
    #[must_use]
    pub fn new(keys: Range<usize>, kind: Kind, until: Option<Millis>, nothing: fn(&mut Writer<'_>)) -> Self {
        Self { keys, kind, until, tries_at_end: false, nothing, resolved: None, also_if_gone: false }
    }
}

/// A reply that was written on behalf of a waiter.
#[derive(Debug, Default)]
pub(crate) struct Served {
    pub(crate) reply: Vec<u8>,
    /// Where what it changed ends in the log.
    pub(crate) last_write: ReplOffset,
    pub(crate) last_change: ReplOffset,
}

/// A command that waits, as it is run again for its client.
#[derive(Debug)]
pub(crate) struct WaitingCall {
    /// The command's number.
    pub(crate) command: usize,
    pub(crate) request: Request,
    /// All its slots.
    pub(crate) slots: SmallVec<[Slot; 2]>,
    pub(crate) db: u16,
    pub(crate) protocol: Protocol,
    /// The client had said ASKING.
    pub(crate) asked: bool,
    /// It reads for a client that reads from replicas (READONLY): a node that becomes one goes on serving it.
    pub(crate) reads_from_replicas: bool,
    /// As of which change of users it was found that the client may run this.
    pub(crate) users_version: u64,
}

/// A client that waits, and its command.
#[derive(Debug)]
pub struct Waiter {
    /// Rises with the order of arrival.
    number: u64,
    pub(crate) call: WaitingCall,
    pub(crate) wait: Wait,
    pub(crate) client: Arc<Client>,
    /// Its reply, once it is served. Locked while its command is tried.
    pub(crate) served: Mutex<Option<Served>>,
}

/// A key that was changed and is waited for.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) db: u16,
    pub(crate) key: Vec<u8>,
    /// The last waiter that was tried.
    pub(crate) after: Option<u64>,
    /// It is not there any more: only waiters that are told of that are tried.
    pub(crate) is_gone: bool,
}

impl Ready {
    pub(crate) fn new(db: u16, key: &[u8]) -> Self {
        Self { db, key: key.to_vec(), after: None, is_gone: false }
    }
}

/// The waiters for one key.
#[derive(Debug, Default)]
struct Queue {
    /// By their numbers.
    waiters: BTreeMap<u64, Arc<Waiter>>,
    /// How many of them are also tried again if the key is gone.
    of_loss: usize,
}

impl Queue {
    /// Says whether the waiter was not there yet.
    fn insert(&mut self, waiter: &Arc<Waiter>) -> bool {
        let is_new = self.waiters.insert(waiter.number, waiter.clone()).is_none();
        self.of_loss += usize::from(is_new && waiter.wait.also_if_gone);
        is_new
    }

    /// Says whether the waiter was there.
    fn remove(&mut self, waiter: &Waiter) -> bool {
        let was_there = self.waiters.remove(&waiter.number).is_some();
        self.of_loss -= usize::from(was_there && waiter.wait.also_if_gone);
        was_there
    }

    /// The waiters that are told if the key is gone.
    fn of_loss(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        let all = if self.of_loss > 0 { 0.. } else { u64::MAX.. };
        self.waiters.range(all).map(|(_, waiter)| waiter).filter(|waiter| waiter.wait.also_if_gone)
    }
}

#[derive(Debug, Default)]
struct Shard {
    /// Waiters, each as often as there are keys that it waits for.
    count: AtomicUsize,
    by_db: Mutex<BTreeMap<u16, BTreeMap<Vec<u8>, Queue>>>,
}

/// All waiters.
#[derive(Debug)]
pub(crate) struct Waits {
    shards: [Shard; SHARDS],
    next: AtomicU64,
}

impl Default for Waits {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Shard::default()), next: AtomicU64::new(0) }
    }
}

impl Waiter {
    /// Whether its reply is there.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.served.lock().is_some()
    }

    /// Until when it waits; `None` is for ever.
    #[must_use]
    pub fn until(&self) -> Option<Millis> {
        self.wait.until
    }

    /// How the wait ends when its time is over.
    #[must_use]
    pub fn at_end(&self) -> Unblock {
        if self.wait.tries_at_end { Unblock::RunAgain } else { Unblock::Timeout }
    }

    /// Whether it can be served. Asked with `served` locked.
    pub(crate) fn is_waiting(&self, served: Option<&Served>) -> bool {
        served.is_none() && self.client.is_blocked() && !self.client.is_killed()
    }

    /// It has its reply: it waits no longer, also in the eyes of others, and its connection is woken.
    pub(crate) fn let_go(&self) {
        self.client.set_blocked(false);
        self.client.wake();
    }

    /// Has its connection run the command again.
    pub(crate) fn run_again(&self) {
        self.client.unblock(Unblock::RunAgain);
    }

    /// The command that waits, as it is run again.
    #[must_use]
    pub fn request(&self) -> &Request {
        &self.call.request
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let args = self.call.request.args();
        self.wait.keys.clone().filter_map(move |place| args.get(place))
    }
}

impl Waits {
    /// Whether each waiter was counted out as it was counted in.
    pub(crate) fn are_counted(&self) -> bool {
        self.shards.iter().all(|shard| {
            let by_db = shard.by_db.lock();
            let queues = by_db.values().flat_map(BTreeMap::values);
            shard.count.load(Ordering::Relaxed) == queues.map(|queue| queue.waiters.len()).sum::<usize>()
        })
    }

    fn shard(&self, slot: Slot) -> &Shard {
        &self.shards[slot.index() % SHARDS]
    }

    /// Whether there may be waiters for keys of this slot.
    #[inline(always)]
    pub(crate) fn any(&self, slot: Slot) -> bool {
        self.shard(slot).count.load(Ordering::Relaxed) > 0
    }

    /// How many keys are waited for.
    pub(crate) fn keys(&self) -> usize {
        let keys = |shard: &Shard| shard.by_db.lock().values().map(BTreeMap::len).sum::<usize>();
        self.shards.iter().filter(|shard| shard.count.load(Ordering::Relaxed) > 0).map(keys).sum()
    }

    /// How many keys are waited for by commands that also end when the key is gone.
    pub(crate) fn keys_that_may_go(&self) -> usize {
        let of_loss =
            |keys: &BTreeMap<Vec<u8>, Queue>| keys.values().filter(|queue| queue.of_loss > 0).count();
        let keys = |shard: &Shard| shard.by_db.lock().values().map(of_loss).sum::<usize>();
        self.shards.iter().filter(|shard| shard.count.load(Ordering::Relaxed) > 0).map(keys).sum()
    }

    /// A client begins to wait for what `call` says. The caller holds the command's slots.
    pub(crate) fn add(&self, client: &Arc<Client>, call: WaitingCall, wait: Wait) -> Arc<Waiter> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let waiter =
            Arc::new(Waiter { number, call, wait, client: client.clone(), served: Mutex::new(None) });
        // Before it can be found: a thread that finds it may end its wait.
        client.set_blocked(true);
        for key in waiter.keys() {
            let shard = self.shard(Slot::of_key(key));
            let mut by_db = shard.by_db.lock();
            let queue = by_db.entry(waiter.call.db).or_default().entry(key.to_vec()).or_default();
            // A key may be named twice.
            shard.count.fetch_add(usize::from(queue.insert(&waiter)), Ordering::Relaxed);
        }
        waiter
    }

    /// Takes a waiter out of all its queues.
    pub(crate) fn remove(&self, waiter: &Waiter) {
        for key in waiter.keys() {
            let shard = self.shard(Slot::of_key(key));
            let mut by_db = shard.by_db.lock();
            let Some(keys) = by_db.get_mut(&waiter.call.db) else { continue };
            let Some(queue) = keys.get_mut(key) else { continue };
            shard.count.fetch_sub(usize::from(queue.remove(waiter)), Ordering::Relaxed);
            if queue.waiters.is_empty() {
                keys.remove(key);
            }
        }
    }

    /// Whether there are waiters for this key. The caller holds its slot.
    pub(crate) fn has(&self, db: u16, slot: Slot, key: &[u8]) -> bool {
        self.shard(slot).by_db.lock().get(&db).is_some_and(|keys| keys.contains_key(key))
    }

    /// The next waiters for a key behind number `after`, the longest waiting first; of a key that `is_gone`, those that
    /// are told of that.
    pub(crate) fn next(
        &self,
        db: u16,
        slot: Slot,
        key: &[u8],
        after: Option<u64>,
        is_gone: bool,
    ) -> SmallVec<[Arc<Waiter>; 4]> {
        let by_db = self.shard(slot).by_db.lock();
        let Some(queue) = by_db.get(&db).and_then(|keys| keys.get(key)) else { return SmallVec::new() };
        let from = after.map_or(0, |after| after + 1);
        if is_gone {
            let told = queue.of_loss().filter(|waiter| waiter.number >= from);
            return told.take(AT_ONCE).cloned().collect();
        }
        queue.waiters.range(from..).take(AT_ONCE).map(|(_, waiter)| waiter.clone()).collect()
    }

    /// A key is gone, and no command took it: waiters that are told of that run their commands again. The caller holds
    /// its slot.
    #[cold]
    pub(crate) fn tell_loss(&self, db: u16, slot: Slot, key: &[u8]) {
        let by_db = self.shard(slot).by_db.lock();
        if let Some(queue) = by_db.get(&db).and_then(|keys| keys.get(key)) {
            queue.of_loss().for_each(|waiter| waiter.run_again());
        }
    }

    /// The keys of a database that are waited for.
    pub(crate) fn keys_of(&self, db: u16) -> Vec<Vec<u8>> {
        let used = self.shards.iter().filter(|shard| shard.count.load(Ordering::Relaxed) > 0);
        let keys = |shard: &Shard| {
            shard.by_db.lock().get(&db).into_iter().flatten().map(|(key, _)| key.clone()).collect::<Vec<_>>()
        };
        used.flat_map(keys).collect()
    }

    /// The numbers of the clients that wait for keys, and whether a replica serves them.
    pub(crate) fn served_by_replicas(&self) -> BTreeMap<u64, bool> {
        let mut all = BTreeMap::new();
        for shard in &self.shards {
            let by_db = shard.by_db.lock();
            let waiters = by_db.values().flat_map(BTreeMap::values).flat_map(|queue| queue.waiters.values());
            all.extend(waiters.map(|waiter| (waiter.client.id, waiter.call.reads_from_replicas)));
        }
        all
    }

    /// The clients that wait for a key of a slot.
    pub(crate) fn of_slot(&self, slot: Slot) -> Vec<Arc<Client>> {
        let by_db = self.shard(slot).by_db.lock();
        let queues = by_db.values().flatten().filter(|(key, _)| Slot::of_key(key) == slot);
        queues.flat_map(|(_, queue)| queue.waiters.values().map(|waiter| waiter.client.clone())).collect()
    }
}

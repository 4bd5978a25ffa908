//! Blocking commands (BLPOP and others) and the per-key queues of waiting clients.
//!
//! A handler that cannot reply yet returns [`crate::CommandOutcome::Block`]. Its client joins the queue of each awaited
//! key before the slot locks are released. A command that changes such a key serves the queue in arrival order before
//! it releases the slot lock: it runs each waiter's command on the waiter's behalf, stores the reply in the [`Waiter`]
//! and wakes the connection. A waiter whose command still cannot reply keeps its position.
//!
//! A wait that ends without a reply is ended through the client ([`Client::unblock`]) or by its connection, on a
//! timeout or disconnection. A waiter that is unblocked or killed is not served any more; its connection removes it
//! from the queues.
//!
//! Invariant: waiters join queues, and are looked up, only while their keys' slots are locked, so that no change is
//! missed. Queues are sharded by slot; without waiters in the shard a change costs one load.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use clock::Millis;
use keyspace::Kind;
use parking_lot::Mutex;
use resp::{Protocol, Request, Writer};
use slot_routing::Slot;
use smallvec::SmallVec;

use crate::clients::{Client, UnblockReason};
use crate::log_progress::LogProgress;

const SHARD_COUNT: usize = 64;
/// Maximum number of waiters fetched from a queue at once.
pub(crate) const FETCH_BATCH_SIZE: usize = 64;

/// The keys that a command waits for, and when it stops waiting.
#[derive(Debug, Clone)]
pub struct KeyWait {
    /// Indexes of the arguments that name the awaited keys.
    pub key_arguments: Range<usize>,
    /// The type that the value must have for the command to run again.
    pub value_type: Kind,
    /// The deadline; `None` means no timeout.
    pub deadline: Option<Millis>,
    /// Whether the command runs again at the deadline, instead of timing out.
    pub retries_at_deadline: bool,
    /// Writes the reply that the client gets when the wait times out.
    pub timeout_reply: fn(&mut Writer<'_>),
    /// The request to run on retries in place of the client's. `None` if the client's request can run again unchanged;
    /// otherwise an argument such as `$` refers to the state on arrival and is replaced.
    pub resolved_request: Option<Request>,
    /// Whether the command also runs again when a key is removed or changes its type, so that it can report this.
    pub retries_on_removal: bool,
}

impl KeyWait {
    /// Creates a wait for a value of this type at any of these keys; retries run the original request.
    #[must_use]
    pub fn new(
        keys: Range<usize>,
        kind: Kind,
        deadline: Option<Millis>,
        timeout_reply: fn(&mut Writer<'_>),
    ) -> Self {
        Self {
            key_arguments: keys,
            value_type: kind,
            deadline,
            retries_at_deadline: false,
            timeout_reply,
            resolved_request: None,
            retries_on_removal: false,
        }
    }
}

/// The reply that another thread has written for a blocked client.
#[derive(Debug, Default)]
pub(crate) struct ServedReply {
    pub(crate) reply: Vec<u8>,
    /// Log offsets at the end of the command's changes.
    pub(crate) progress: LogProgress,
}

/// A blocked command with everything needed to run it again.
#[derive(Debug)]
pub(crate) struct BlockedCommand {
    pub(crate) command_number: usize,
    pub(crate) request: Request,
    /// The slots of all keys of the command, all of which must be locked to run it.
    pub(crate) slots: SmallVec<[Slot; 2]>,
    pub(crate) db: u16,
    pub(crate) protocol: Protocol,
    pub(crate) asking: bool,
    /// Whether the command reads for a client in READONLY mode, which a node that becomes a replica continues to serve.
    pub(crate) reads_from_replicas: bool,
    /// Version of the users for which the command was authorized.
    pub(crate) users_version: u64,
}

/// A blocked client with its command.
#[derive(Debug)]
pub struct Waiter {
    /// Arrival number; it increases with each waiter.
    sequence: u64,
    pub(crate) command: BlockedCommand,
    pub(crate) key_wait: KeyWait,
    pub(crate) client: Arc<Client>,
    /// The reply, once the client is served. The mutex is locked while another thread tries the command.
    pub(crate) served_reply: Mutex<Option<ServedReply>>,
}

/// A changed key with waiters.
#[derive(Debug)]
pub(crate) struct ReadyKey {
    pub(crate) db: u16,
    pub(crate) key: Vec<u8>,
    /// Number of the last waiter that was tried; later rounds continue after it.
    pub(crate) last_tried_waiter: Option<u64>,
    /// Whether the key was removed. If so, only waiters that report removals are tried.
    pub(crate) is_removed: bool,
}

impl ReadyKey {
    pub(crate) fn new(db: u16, key: &[u8]) -> Self {
        Self { db, key: key.to_vec(), last_tried_waiter: None, is_removed: false }
    }
}

/// The waiters of one key.
#[derive(Debug, Default)]
struct WaitQueue {
    waiters: BTreeMap<u64, Arc<Waiter>>,
    /// Number of waiters that also wait for the key's removal.
    removal_waiter_count: usize,
}

impl WaitQueue {
    /// Adds a waiter; returns whether it was not in the queue yet.
    fn insert(&mut self, waiter: &Arc<Waiter>) -> bool {
        let is_new = self.waiters.insert(waiter.sequence, waiter.clone()).is_none();
        self.removal_waiter_count += usize::from(is_new && waiter.key_wait.retries_on_removal);
        is_new
    }

    /// Removes a waiter; returns whether it was in the queue.
    fn remove(&mut self, waiter: &Waiter) -> bool {
        let was_there = self.waiters.remove(&waiter.sequence).is_some();
        self.removal_waiter_count -= usize::from(was_there && waiter.key_wait.retries_on_removal);
        was_there
    }

    /// Returns the waiters that also wait for the key's removal.
    fn removal_waiters(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        let all = if self.removal_waiter_count > 0 { 0.. } else { u64::MAX.. };
        self.waiters.range(all).map(|(_, waiter)| waiter).filter(|waiter| waiter.key_wait.retries_on_removal)
    }
}

#[derive(Debug, Default)]
struct WaitQueueShard {
    /// Number of waiters, each counted once per key that it waits for.
    count: AtomicUsize,
    by_db: Mutex<BTreeMap<u16, BTreeMap<Vec<u8>, WaitQueue>>>,
}

/// All blocked clients, by key.
#[derive(Debug)]
pub(crate) struct WaitQueues {
    shards: [WaitQueueShard; SHARD_COUNT],
    next_sequence: AtomicU64,
}

impl Default for WaitQueues {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| WaitQueueShard::default()), next_sequence: AtomicU64::new(0) }
    }
}

impl Waiter {
    /// Returns whether the reply is ready.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.served_reply.lock().is_some()
    }

    /// Returns the deadline; `None` means no timeout.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        self.key_wait.deadline
    }

    /// Returns how the wait ends at its deadline.
    #[must_use]
    pub fn deadline_reason(&self) -> UnblockReason {
        if self.key_wait.retries_at_deadline { UnblockReason::Retry } else { UnblockReason::Timeout }
    }

    /// Returns whether the waiter can still be served. The caller has locked `served_reply` and passes its content.
    pub(crate) fn is_waiting(&self, served: Option<&ServedReply>) -> bool {
        served.is_none() && self.client.is_blocked() && !self.client.is_killed()
    }

    /// Marks the served client as no longer blocked, and wakes its connection.
    pub(crate) fn finish_wait(&self) {
        self.client.set_blocked(false);
        self.client.wake();
    }

    /// Unblocks the client so that its connection runs the command again.
    pub(crate) fn retry(&self) {
        self.client.unblock(UnblockReason::Retry);
    }

    /// Returns the blocked command's request.
    #[must_use]
    pub fn request(&self) -> &Request {
        &self.command.request
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let args = self.command.request.args();
        self.key_wait.key_arguments.clone().filter_map(move |place| args.get(place))
    }
}

impl WaitQueues {
    /// Returns whether the waiter counts match the queues.
    pub(crate) fn has_consistent_counts(&self) -> bool {
        self.shards.iter().all(|shard| {
            let by_db = shard.by_db.lock();
            let queues = by_db.values().flat_map(BTreeMap::values);
            shard.count.load(Ordering::Relaxed) == queues.map(|queue| queue.waiters.len()).sum::<usize>()
        })
    }

    fn shard_of(&self, slot: Slot) -> &WaitQueueShard {
        &self.shards[slot.index() % SHARD_COUNT]
    }

    /// Returns whether there may be waiters for keys of this slot.
    #[inline(always)]
    pub(crate) fn may_have_waiters(&self, slot: Slot) -> bool {
        self.shard_of(slot).count.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn key_count(&self) -> usize {
        let keys = |shard: &WaitQueueShard| shard.by_db.lock().values().map(BTreeMap::len).sum::<usize>();
        self.shards.iter().filter(|shard| shard.count.load(Ordering::Relaxed) > 0).map(keys).sum()
    }

    pub(crate) fn removal_awaited_key_count(&self) -> usize {
        let of_loss = |keys: &BTreeMap<Vec<u8>, WaitQueue>| {
            keys.values().filter(|queue| queue.removal_waiter_count > 0).count()
        };
        let keys = |shard: &WaitQueueShard| shard.by_db.lock().values().map(of_loss).sum::<usize>();
        self.shards.iter().filter(|shard| shard.count.load(Ordering::Relaxed) > 0).map(keys).sum()
    }

    /// Blocks a client. The caller has locked the command's slots.
    pub(crate) fn add(&self, client: &Arc<Client>, call: BlockedCommand, wait: KeyWait) -> Arc<Waiter> {
        let number = self.next_sequence.fetch_add(1, Ordering::Relaxed);
        let waiter = Arc::new(Waiter {
            sequence: number,
            command: call,
            key_wait: wait,
            client: client.clone(),
            served_reply: Mutex::new(None),
        });
        // Mark the client as blocked before the waiter becomes visible, because a thread that finds it may unblock the
        // client.
        client.set_blocked(true);
        for key in waiter.keys() {
            let shard = self.shard_of(Slot::of_key(key));
            let mut by_db = shard.by_db.lock();
            let queue = by_db.entry(waiter.command.db).or_default().entry(key.to_vec()).or_default();
            // Count a waiter once even if its command names the key twice.
            shard.count.fetch_add(usize::from(queue.insert(&waiter)), Ordering::Relaxed);
        }
        waiter
    }

    pub(crate) fn remove(&self, waiter: &Waiter) {
        for key in waiter.keys() {
            let shard = self.shard_of(Slot::of_key(key));
            let mut by_db = shard.by_db.lock();
            let Some(keys) = by_db.get_mut(&waiter.command.db) else { continue };
            let Some(queue) = keys.get_mut(key) else { continue };
            shard.count.fetch_sub(usize::from(queue.remove(waiter)), Ordering::Relaxed);
            if queue.waiters.is_empty() {
                keys.remove(key);
            }
        }
    }

    /// Returns whether this key has waiters. The caller has locked its slot.
    pub(crate) fn has_waiters(&self, db: u16, slot: Slot, key: &[u8]) -> bool {
        self.shard_of(slot).by_db.lock().get(&db).is_some_and(|keys| keys.contains_key(key))
    }

    /// Returns the waiters of a key that follow number `after_waiter`, in arrival order. If the key was removed,
    /// returns only waiters that report removals.
    pub(crate) fn next_waiters(
        &self,
        db: u16,
        slot: Slot,
        key: &[u8],
        after_waiter: Option<u64>,
        is_removed: bool,
    ) -> SmallVec<[Arc<Waiter>; 4]> {
        let by_db = self.shard_of(slot).by_db.lock();
        let Some(queue) = by_db.get(&db).and_then(|keys| keys.get(key)) else { return SmallVec::new() };
        let from = after_waiter.map_or(0, |after| after + 1);
        if is_removed {
            let told = queue.removal_waiters().filter(|waiter| waiter.sequence >= from);
            return told.take(FETCH_BATCH_SIZE).cloned().collect();
        }
        queue.waiters.range(from..).take(FETCH_BATCH_SIZE).map(|(_, waiter)| waiter.clone()).collect()
    }

    /// Reports a key that was removed outside of a command: waiters that report removals run their commands again. The
    /// caller has locked the key's slot.
    #[cold]
    pub(crate) fn report_removal(&self, db: u16, slot: Slot, key: &[u8]) {
        let by_db = self.shard_of(slot).by_db.lock();
        if let Some(queue) = by_db.get(&db).and_then(|keys| keys.get(key)) {
            queue.removal_waiters().for_each(|waiter| waiter.retry());
        }
    }

    pub(crate) fn awaited_keys(&self, db: u16) -> Vec<Vec<u8>> {
        let used = self.shards.iter().filter(|shard| shard.count.load(Ordering::Relaxed) > 0);
        let keys = |shard: &WaitQueueShard| {
            shard.by_db.lock().get(&db).into_iter().flatten().map(|(key, _)| key.clone()).collect::<Vec<_>>()
        };
        used.flat_map(keys).collect()
    }

    /// Returns the ids of all blocked clients. The value says whether a replica may still serve the client's command.
    pub(crate) fn replica_reads_by_blocked_client(&self) -> BTreeMap<u64, bool> {
        let mut all = BTreeMap::new();
        for shard in &self.shards {
            let by_db = shard.by_db.lock();
            let waiters = by_db.values().flat_map(BTreeMap::values).flat_map(|queue| queue.waiters.values());
            all.extend(waiters.map(|waiter| (waiter.client.id, waiter.command.reads_from_replicas)));
        }
        all
    }

    pub(crate) fn clients_waiting_in_slot(&self, slot: Slot) -> Vec<Arc<Client>> {
        let by_db = self.shard_of(slot).by_db.lock();
        let queues = by_db.values().flatten().filter(|(key, _)| Slot::of_key(key) == slot);
        queues.flat_map(|(_, queue)| queue.waiters.values().map(|waiter| waiter.client.clone())).collect()
    }
}

//! Client-side caching: records which clients may have cached which keys, and sends invalidations.
//!
//! By default a client receives one invalidation for every key that it has read. Reads are recorded in a table by key,
//! sharded by slot and updated while the key's slot is locked, so that no change is missed between the read and the
//! record. In broadcast mode a client receives invalidations for all keys with one of its prefixes, and nothing is
//! recorded. Messages go to the client itself (RESP3) or, as pub/sub messages, to another client that it named with
//! REDIRECT.
//!
//! In broadcast mode changes are batched: each changed key is queued once until the end of the batch of commands
//! ([`crate::Engine::send_invalidations`]).
//!
//! Without tracking clients a write costs one load.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use resp::{Protocol, SharedBytes, Writer};
use slot_routing::Slot;

use crate::clients::{Client, ClientFlags, ClientTracking, Clients, TrackingMode};

const SHARD_COUNT: usize = 64;
/// The channel on which RESP2 clients receive invalidations.
const INVALIDATION_CHANNEL: &[u8] = b"__redis__:invalidate";

/// Changed keys, each with the client that changed it; `None` if several clients did.
type PendingInvalidations = BTreeMap<Vec<u8>, Option<u64>>;

/// The ids of clients that have read a key.
type ReaderIds = BTreeSet<u64>;

/// The keys and prefixes that clients track.
#[derive(Debug)]
pub struct TrackingTable {
    client_count: AtomicUsize,
    shards: Vec<Mutex<BTreeMap<Vec<u8>, ReaderIds>>>,
    key_count: AtomicUsize,
    item_count: AtomicUsize,
    /// Ids of the clients by prefix.
    prefixes: RwLock<BTreeMap<Vec<u8>, BTreeSet<u64>>>,
    /// Changed keys with tracked prefixes, not yet sent.
    pending: Mutex<PendingInvalidations>,
    has_pending: AtomicBool,
    /// Maximum number of recorded keys. Beyond it, keys are invalidated early to make room (`tracking-table-max-keys`).
    pub max_keys: AtomicUsize,
    /// Maximum bytes that may be queued for a client before it is closed; 0 means unlimited.
    pub output_limit: AtomicUsize,
}

impl Default for TrackingTable {
    fn default() -> Self {
        Self {
            client_count: AtomicUsize::new(0),
            shards: (0..SHARD_COUNT).map(|_| Mutex::default()).collect(),
            key_count: AtomicUsize::new(0),
            item_count: AtomicUsize::new(0),
            prefixes: RwLock::default(),
            pending: Mutex::default(),
            has_pending: AtomicBool::new(false),
            max_keys: AtomicUsize::new(1_000_000),
            output_limit: AtomicUsize::new(0),
        }
    }
}

impl TrackingTable {
    /// Returns the number of tracking clients.
    pub fn client_count(&self) -> usize {
        self.client_count.load(Ordering::Relaxed)
    }

    /// Returns the number of recorded keys.
    pub fn key_count(&self) -> usize {
        self.key_count.load(Ordering::Relaxed)
    }

    /// Returns the number of recorded pairs of key and client.
    pub fn item_count(&self) -> usize {
        self.item_count.load(Ordering::Relaxed)
    }

    /// Returns the number of tracked prefixes.
    pub fn prefix_count(&self) -> usize {
        self.prefixes.read().len()
    }

    /// Starts tracking for a client, or changes its mode.
    pub(crate) fn start(&self, client: &Client, tracking: ClientTracking) {
        let mut prefixes = self.prefixes.write();
        for prefix in &tracking.prefixes {
            prefixes.entry(prefix.clone()).or_default().insert(client.id);
        }
        client.set_flag(ClientFlags::TRACKING, true);
        client.set_flag(ClientFlags::BROKEN_REDIRECT, false);
        client.set_flag(ClientFlags::BROADCAST, tracking.mode == TrackingMode::Broadcast);
        client.set_receives_invalidations(true);
        client.count_prefixes(&tracking.prefixes);
        let before = client.tracking.lock().replace(tracking);
        match before {
            Some(before) => client.uncount_prefixes(&before.prefixes),
            None => drop(self.client_count.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Stops tracking for a client. Its recorded keys are removed as they change, or once no client tracks.
    pub(crate) fn stop(&self, client: &Client) {
        let Some(tracking) = client.tracking.lock().take() else { return };
        for flag in [ClientFlags::TRACKING, ClientFlags::BROKEN_REDIRECT, ClientFlags::BROADCAST] {
            client.set_flag(flag, false);
        }
        client.set_receives_invalidations(false);
        client.uncount_prefixes(&tracking.prefixes);
        let mut prefixes = self.prefixes.write();
        for prefix in &tracking.prefixes {
            if let Some(clients) = prefixes.get_mut(prefix) {
                clients.remove(&client.id);
                if clients.is_empty() {
                    prefixes.remove(prefix);
                }
            }
        }
        // Decrement under the lock that `start` takes, so that records of a client that starts now are not removed.
        if self.client_count.fetch_sub(1, Ordering::Relaxed) == 1 {
            let keys = self.take_keys();
            drop(prefixes);
            drop(keys);
        }
    }

    /// Removes and returns all recorded keys.
    fn take_keys(&self) -> Vec<BTreeMap<Vec<u8>, ReaderIds>> {
        let take = |shard: &Mutex<BTreeMap<Vec<u8>, ReaderIds>>| {
            let keys = std::mem::take(&mut *shard.lock());
            self.key_count.fetch_sub(keys.len(), Ordering::Relaxed);
            self.item_count.fetch_sub(keys.values().map(BTreeSet::len).sum(), Ordering::Relaxed);
            keys
        };
        self.shards.iter().map(take).collect()
    }

    fn shard_of(&self, slot: Slot) -> &Mutex<BTreeMap<Vec<u8>, ReaderIds>> {
        &self.shards[slot.index() % SHARD_COUNT]
    }

    /// Records a key read by a client. The caller has locked its slot.
    pub(crate) fn record_read(&self, clients: &Clients, slot: Slot, key: &[u8], client_id: u64) {
        let given_up = {
            let mut shard = self.shard_of(slot).lock();
            match shard.get_mut(key) {
                Some(readers) => {
                    self.item_count.fetch_add(usize::from(readers.insert(client_id)), Ordering::Relaxed);
                    None
                }
                None => {
                    shard.insert(key.to_vec(), BTreeSet::from([client_id]));
                    self.item_count.fetch_add(1, Ordering::Relaxed);
                    let keys = self.key_count.fetch_add(1, Ordering::Relaxed) + 1;
                    let most = self.max_keys.load(Ordering::Relaxed);
                    let other = || shard.keys().find(|other| *other != key).cloned();
                    if most > 0 && keys > most { other() } else { None }
                }
            }
        };
        if let Some(other) = given_up {
            self.invalidate_readers(clients, Slot::of_key(&other), &other, None);
        }
    }

    /// Reports a changed key; `changed_by` is the client that changed it. The caller has locked its slot.
    #[inline]
    pub(crate) fn report_changed(&self, clients: &Clients, slot: Slot, key: &[u8], changed_by: Option<u64>) {
        if self.client_count.load(Ordering::Relaxed) > 0 {
            self.invalidate_readers(clients, slot, key, changed_by);
            self.queue_broadcast(key, changed_by);
        }
    }

    #[cold]
    fn invalidate_readers(&self, clients: &Clients, slot: Slot, key: &[u8], changed_by: Option<u64>) {
        let Some(readers) = self.shard_of(slot).lock().remove(key) else { return };
        self.key_count.fetch_sub(1, Ordering::Relaxed);
        self.item_count.fetch_sub(readers.len(), Ordering::Relaxed);
        let mut told = EncodedMessage::default();
        for id in readers {
            self.send_to_client(clients, id, false, &mut |protocol, own| {
                let is_own = changed_by.is_some() && changed_by == own;
                (!is_own).then(|| told.encoded_for(protocol, Some(&[key])))
            });
        }
    }

    /// Queues a changed key for clients that track its prefix.
    #[cold]
    fn queue_broadcast(&self, key: &[u8], changed_by: Option<u64>) {
        if !self.prefixes.read().keys().any(|prefix| key.starts_with(prefix)) {
            return;
        }
        let mut pending = self.pending.lock();
        match pending.get_mut(key) {
            Some(before) if *before != changed_by => *before = None,
            Some(_) => {}
            None => drop(pending.insert(key.to_vec(), changed_by)),
        }
        self.has_pending.store(true, Ordering::Release);
    }

    /// Sends the queued invalidations to clients in broadcast mode.
    #[inline]
    pub(crate) fn send_invalidations(&self, clients: &Clients) {
        if self.has_pending.load(Ordering::Acquire) {
            self.invalidate_by_prefix(clients);
        }
    }

    /// Sends the queued invalidations, if any.
    #[cold]
    fn invalidate_by_prefix(&self, clients: &Clients) {
        let pending = {
            let mut pending = self.pending.lock();
            self.has_pending.store(false, Ordering::Release);
            std::mem::take(&mut *pending)
        };
        for (prefix, ids) in self.prefixes.read().iter() {
            let with_prefix =
                || pending.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(prefix));
            let mut to_all = EncodedMessage::default();
            for id in ids {
                self.send_to_client(clients, *id, true, &mut |protocol, own| {
                    let is_own = |by: &Option<u64>| by.is_some() && *by == own;
                    let own_changes = with_prefix().any(|(_, by)| is_own(by));
                    let told = with_prefix().filter(|(_, by)| !is_own(by));
                    let keys: Vec<&[u8]> = told.map(|(key, _)| key.as_slice()).collect();
                    match (keys.is_empty(), own_changes) {
                        (true, _) => None,
                        (false, true) => Some(encode_invalidation(protocol, Some(&keys))),
                        (false, false) => Some(to_all.encoded_for(protocol, Some(&keys))),
                    }
                });
            }
        }
    }

    /// Sends all tracking clients an invalidation of all keys.
    pub fn invalidate_all(&self, clients: &Clients) {
        if self.client_count() == 0 {
            return;
        }
        drop(self.take_keys());
        // As in Valkey, queued invalidations by prefix are sent after this message.
        for client in clients.list() {
            let broadcast = client.flags().contains(ClientFlags::BROADCAST);
            self.send_to_client(clients, client.id, broadcast, &mut |protocol, _| {
                Some(encode_invalidation(protocol, None))
            });
        }
    }

    /// Sends a client with this kind of tracking the result of `message` for the client's protocol. `message` also
    /// receives the id of the client whose own changes are left out, if this client uses NOLOOP.
    fn send_to_client(
        &self,
        clients: &Clients,
        id: u64,
        is_broadcast: bool,
        message: &mut dyn FnMut(Protocol, Option<u64>) -> Option<SharedBytes>,
    ) {
        let Some(client) = clients.find(id) else { return };
        let limit = self.output_limit.load(Ordering::Relaxed);
        let (redirect, own) = match &*client.tracking.lock() {
            Some(tracking) if (tracking.mode == TrackingMode::Broadcast) == is_broadcast => {
                (tracking.redirect_to, tracking.no_loop.then_some(id))
            }
            _ => return,
        };
        let mut push = |to: &Client, protocol| {
            if let Some(message) = message(protocol, own) {
                to.push_message(&message, limit);
            }
        };
        let Some(target) = redirect else {
            if client.protocol() == Protocol::Resp3 {
                push(&client, Protocol::Resp3);
            }
            return;
        };
        match clients.find(target) {
            Some(other) if other.protocol() == Protocol::Resp3 => {
                push(&other, Protocol::Resp3);
            }
            // A RESP2 client can receive messages only while it is subscribed.
            Some(other) if other.flags().contains(ClientFlags::PUBSUB) => {
                push(&other, Protocol::Resp2);
            }
            Some(_) => {}
            None => {
                client.set_flag(ClientFlags::BROKEN_REDIRECT, true);
                if client.protocol() == Protocol::Resp3 {
                    let mut bytes = Vec::new();
                    let mut writer = Writer::new(&mut bytes, Protocol::Resp3);
                    writer.push(2);
                    writer.bulk(b"tracking-redir-broken");
                    writer.integer(target as i64);
                    client.push_message(&bytes.into(), limit);
                }
            }
        }
    }
}

/// A message that is encoded at most once per protocol version.
#[derive(Default)]
struct EncodedMessage([Option<SharedBytes>; 2]);

impl EncodedMessage {
    fn encoded_for(&mut self, protocol: Protocol, keys: Option<&[&[u8]]>) -> SharedBytes {
        let slot = &mut self.0[usize::from(protocol == Protocol::Resp3)];
        slot.get_or_insert_with(|| encode_invalidation(protocol, keys)).clone()
    }
}

/// Encodes an invalidation of these keys, or of all keys if `keys` is `None`.
fn encode_invalidation(protocol: Protocol, keys: Option<&[&[u8]]>) -> SharedBytes {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, protocol);
    if protocol == Protocol::Resp3 {
        writer.push(2);
        writer.bulk(b"invalidate");
    } else {
        writer.push(3);
        writer.bulk(b"message");
        writer.bulk(INVALIDATION_CHANNEL);
    }
    match keys {
        Some(keys) => {
            writer.array(keys.len());
            keys.iter().for_each(|key| writer.bulk(key));
        }
        None => writer.null_array(),
    }
    bytes.into()
}

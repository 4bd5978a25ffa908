//! Client side caching: which clients may hold a copy of which key, and telling them when it changes.
//!
//! By default a client that tracks is told of every key that it has read, once; what it has read lies in
//! a table by key, split into shards by slot, and is written while the key's slot is held, so no change
//! goes by between the read and the note. In broadcasting mode a client is told of every key with one of
//! its prefixes, read or not, and nothing is noted. The message goes to the client itself (version 3 of
//! the protocol) or, as if published, to another one that it named.
//!
//! In broadcasting mode what many commands change is told in one message: the keys wait until the batch ends that
//! changed them ([`crate::Engine::tell_of_changes`]), each once.
//!
//! With no client that tracks, a write costs one load.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use resp::{Protocol, SharedBytes, Writer};
use slot_routing::Slot;

use crate::clients::{Client, ClientFlags, Clients, Mode, Tracking};

const SHARDS: usize = 64;
/// Where a client that speaks version 2 hears of changes.
const CHANNEL: &[u8] = b"__redis__:invalidate";

/// Keys, each with the client that changed it, if it was only one.
type Pending = BTreeMap<Vec<u8>, Option<u64>>;

/// The clients of one key.
type Readers = BTreeSet<u64>;

/// The keys and prefixes that clients track.
#[derive(Debug)]
pub struct TrackingTable {
    clients: AtomicUsize,
    shards: Vec<Mutex<BTreeMap<Vec<u8>, Readers>>>,
    keys: AtomicUsize,
    items: AtomicUsize,
    /// By prefix, the clients that want to hear of it.
    prefixes: RwLock<BTreeMap<Vec<u8>, BTreeSet<u64>>>,
    /// Keys with any of them that have changed and of which no client was told yet.
    pending: Mutex<Pending>,
    any_pending: AtomicBool,
    /// More keys than this are not noted: others are given up for them (`tracking-table-max-keys`).
    pub max_keys: AtomicUsize,
    /// A client for which more bytes than this wait is cut off; 0 is no limit.
    pub output_limit: AtomicUsize,
}

impl Default for TrackingTable {
    fn default() -> Self {
        Self {
            clients: AtomicUsize::new(0),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            keys: AtomicUsize::new(0),
            items: AtomicUsize::new(0),
            prefixes: RwLock::default(),
            pending: Mutex::default(),
            any_pending: AtomicBool::new(false),
            max_keys: AtomicUsize::new(1_000_000),
            output_limit: AtomicUsize::new(0),
        }
    }
}

impl TrackingTable {
    /// Clients that track.
    pub fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// The number of keys that clients have read.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// The same, each as often as there are clients that have read it.
    pub fn items(&self) -> usize {
        self.items.load(Ordering::Relaxed)
    }

    /// The number of prefixes that clients want to hear of.
    pub fn prefixes(&self) -> usize {
        self.prefixes.read().len()
    }

    /// A client starts to track, or changes how.
    pub(crate) fn start(&self, client: &Client, tracking: Tracking) {
        let mut prefixes = self.prefixes.write();
        for prefix in &tracking.prefixes {
            prefixes.entry(prefix.clone()).or_default().insert(client.id);
        }
        client.set_flag(ClientFlags::TRACKING, true);
        client.set_flag(ClientFlags::BROKEN_REDIRECT, false);
        client.set_flag(ClientFlags::BROADCAST, tracking.mode == Mode::Broadcast);
        client.keep_inbox(true);
        client.count_prefixes(&tracking.prefixes);
        let before = client.tracking.lock().replace(tracking);
        match before {
            Some(before) => client.uncount_prefixes(&before.prefixes),
            None => drop(self.clients.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// A client stops tracking. The keys that it has read are forgotten as they change, or when no client tracks any more.
    pub(crate) fn stop(&self, client: &Client) {
        let Some(tracking) = client.tracking.lock().take() else { return };
        for flag in [ClientFlags::TRACKING, ClientFlags::BROKEN_REDIRECT, ClientFlags::BROADCAST] {
            client.set_flag(flag, false);
        }
        client.keep_inbox(false);
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
        // Under the lock that a client needs to start: what it reads afterwards stays noted.
        if self.clients.fetch_sub(1, Ordering::Relaxed) == 1 {
            let keys = self.take_keys();
            drop(prefixes);
            drop(keys);
        }
    }

    /// Takes out all keys that clients have read.
    fn take_keys(&self) -> Vec<BTreeMap<Vec<u8>, Readers>> {
        let take = |shard: &Mutex<BTreeMap<Vec<u8>, Readers>>| {
            let keys = std::mem::take(&mut *shard.lock());
            self.keys.fetch_sub(keys.len(), Ordering::Relaxed);
            self.items.fetch_sub(keys.values().map(BTreeSet::len).sum(), Ordering::Relaxed);
            keys
        };
        self.shards.iter().map(take).collect()
    }

    fn shard(&self, slot: Slot) -> &Mutex<BTreeMap<Vec<u8>, Readers>> {
        &self.shards[slot.index() % SHARDS]
    }

    /// A client has read a key. The caller holds the key's slot.
    pub(crate) fn note(&self, clients: &Clients, slot: Slot, key: &[u8], reader: u64) {
        let given_up = {
            let mut shard = self.shard(slot).lock();
            match shard.get_mut(key) {
                Some(readers) => {
                    self.items.fetch_add(usize::from(readers.insert(reader)), Ordering::Relaxed);
                    None
                }
                None => {
                    shard.insert(key.to_vec(), BTreeSet::from([reader]));
                    self.items.fetch_add(1, Ordering::Relaxed);
                    let keys = self.keys.fetch_add(1, Ordering::Relaxed) + 1;
                    let most = self.max_keys.load(Ordering::Relaxed);
                    let other = || shard.keys().find(|other| *other != key).cloned();
                    if most > 0 && keys > most { other() } else { None }
                }
            }
        };
        if let Some(other) = given_up {
            self.tell_readers(clients, Slot::of_key(&other), &other, None);
        }
    }

    /// A key has changed; `by` is the client that did it. The caller holds the key's slot.
    #[inline]
    pub(crate) fn changed(&self, clients: &Clients, slot: Slot, key: &[u8], by: Option<u64>) {
        if self.clients.load(Ordering::Relaxed) > 0 {
            self.tell_readers(clients, slot, key, by);
            self.note_change(key, by);
        }
    }

    #[cold]
    fn tell_readers(&self, clients: &Clients, slot: Slot, key: &[u8], by: Option<u64>) {
        let Some(readers) = self.shard(slot).lock().remove(key) else { return };
        self.keys.fetch_sub(1, Ordering::Relaxed);
        self.items.fetch_sub(readers.len(), Ordering::Relaxed);
        let mut told = Encoded::default();
        for id in readers {
            self.tell(clients, id, false, &mut |protocol, own| {
                let is_own = by.is_some() && by == own;
                (!is_own).then(|| told.get(protocol, Some(&[key])))
            });
        }
    }

    /// Notes a changed key, of which the clients that listen to its prefix are to be told.
    #[cold]
    fn note_change(&self, key: &[u8], by: Option<u64>) {
        if !self.prefixes.read().keys().any(|prefix| key.starts_with(prefix)) {
            return;
        }
        let mut pending = self.pending.lock();
        match pending.get_mut(key) {
            Some(before) if *before != by => *before = None,
            Some(_) => {}
            None => drop(pending.insert(key.to_vec(), by)),
        }
        self.any_pending.store(true, Ordering::Release);
    }

    /// Tells clients that listen to prefixes of the keys that have changed since.
    #[inline]
    pub(crate) fn tell_of_changes(&self, clients: &Clients) {
        if self.any_pending.load(Ordering::Acquire) {
            self.tell_listeners(clients);
        }
    }

    /// Tells of the keys that have changed since.
    #[cold]
    fn tell_listeners(&self, clients: &Clients) {
        let pending = {
            let mut pending = self.pending.lock();
            self.any_pending.store(false, Ordering::Release);
            std::mem::take(&mut *pending)
        };
        for (prefix, ids) in self.prefixes.read().iter() {
            let with_prefix =
                || pending.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(prefix));
            let mut to_all = Encoded::default();
            for id in ids {
                self.tell(clients, *id, true, &mut |protocol, own| {
                    let is_own = |by: &Option<u64>| by.is_some() && *by == own;
                    let own_changes = with_prefix().any(|(_, by)| is_own(by));
                    let told = with_prefix().filter(|(_, by)| !is_own(by));
                    let keys: Vec<&[u8]> = told.map(|(key, _)| key.as_slice()).collect();
                    match (keys.is_empty(), own_changes) {
                        (true, _) => None,
                        (false, true) => Some(message(protocol, Some(&keys))),
                        (false, false) => Some(to_all.get(protocol, Some(&keys))),
                    }
                });
            }
        }
    }

    /// Everything may have changed: all clients that track are told to forget all.
    pub fn all_changed(&self, clients: &Clients) {
        if self.clients() == 0 {
            return;
        }
        drop(self.take_keys());
        // Keys with prefixes that changed before are told of behind this, as in Valkey.
        for client in clients.all() {
            let broadcast = client.flags().contains(ClientFlags::BROADCAST);
            self.tell(clients, client.id, broadcast, &mut |protocol, _| Some(message(protocol, None)));
        }
    }

    /// Tells one client, if it tracks in this way, what `message` returns for the version of the protocol. `message`
    /// also gets the client whose own changes are left out: this client, if it does not want to hear of them.
    fn tell(
        &self,
        clients: &Clients,
        id: u64,
        broadcast: bool,
        message: &mut dyn FnMut(Protocol, Option<u64>) -> Option<SharedBytes>,
    ) {
        let Some(client) = clients.find(id) else { return };
        let limit = self.output_limit.load(Ordering::Relaxed);
        let (redirect, own) = match &*client.tracking.lock() {
            Some(tracking) if (tracking.mode == Mode::Broadcast) == broadcast => {
                (tracking.redirect, tracking.noloop.then_some(id))
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
            // Version 2 has no place for a message but among those that the client has subscribed to.
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

/// A message in the protocols of its receivers, encoded once for each.
#[derive(Default)]
struct Encoded([Option<SharedBytes>; 2]);

impl Encoded {
    fn get(&mut self, protocol: Protocol, keys: Option<&[&[u8]]>) -> SharedBytes {
        let slot = &mut self.0[usize::from(protocol == Protocol::Resp3)];
        slot.get_or_insert_with(|| message(protocol, keys)).clone()
    }
}

/// That keys have changed, or all.
fn message(protocol: Protocol, keys: Option<&[&[u8]]>) -> SharedBytes {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, protocol);
    if protocol == Protocol::Resp3 {
        writer.push(2);
        writer.bulk(b"invalidate");
    } else {
        writer.push(3);
        writer.bulk(b"message");
        writer.bulk(CHANNEL);
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

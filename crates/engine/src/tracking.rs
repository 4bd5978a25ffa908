//! Client side caching: which clients may hold a copy of which key, and telling them when it changes.
//!
//! By default a client that tracks is told of every key that it has read, once; what it has read lies in
//! a table by key, split into shards by slot, and is written while the key's slot is held, so no change
//! goes by between the read and the note. In broadcasting mode a client is told of every key with one of
//! its prefixes, read or not, and nothing is noted. The message goes to the client itself (version 3 of
//! the protocol) or, as if published, to another one that it named.
//!
//! With no client that tracks, a write costs one load.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use resp::{Protocol, Writer};
use slot_routing::Slot;

use crate::clients::{Client, ClientFlags, Clients};
use crate::lookup::Registered;
use crate::session::Session;

const SHARDS: usize = 64;
/// Where a client that speaks version 2 hears of changes.
const CHANNEL: &[u8] = b"__redis__:invalidate";

/// Which of the keys that it reads a client is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All.
    Default,
    /// Those of commands after CLIENT CACHING YES.
    OptIn,
    /// All but those of commands after CLIENT CACHING NO.
    OptOut,
    /// Those with its prefixes, whether it reads them or not.
    Broadcast,
}

/// How a client tracks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tracking {
    pub(crate) mode: Mode,
    /// It is not told of its own changes.
    pub(crate) noloop: bool,
    /// Who is told in its place.
    pub(crate) redirect: Option<u64>,
    pub(crate) prefixes: BTreeSet<Vec<u8>>,
    /// CLIENT CACHING was said: the next command is an exception from the mode.
    pub(crate) caching: bool,
}

/// The clients of one key.
type Readers = BTreeSet<u64>;

/// What is tracked.
#[derive(Debug)]
pub struct TrackingTable {
    clients: AtomicUsize,
    shards: Vec<Mutex<BTreeMap<Vec<u8>, Readers>>>,
    keys: AtomicUsize,
    items: AtomicUsize,
    /// By prefix, those who want to hear of it.
    prefixes: RwLock<BTreeMap<Vec<u8>, BTreeSet<u64>>>,
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

    /// Keys that somebody has read.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// The same, each as often as there are clients that have read it.
    pub fn items(&self) -> usize {
        self.items.load(Ordering::Relaxed)
    }

    /// Prefixes that somebody wants to hear of.
    pub fn prefixes(&self) -> usize {
        self.prefixes.read().len()
    }

    /// A client starts to track, or changes how.
    pub(crate) fn start(&self, client: &Client, tracking: Tracking) {
        let mut prefixes = self.prefixes.write();
        for prefix in &tracking.prefixes {
            prefixes.entry(prefix.clone()).or_default().insert(client.id);
        }
        drop(prefixes);
        client.set_flag(ClientFlags::TRACKING, true);
        client.set_flag(ClientFlags::BROKEN_REDIRECT, false);
        client.set_flag(ClientFlags::BROADCAST, tracking.mode == Mode::Broadcast);
        client.keep_inbox(true);
        if client.tracking.lock().replace(tracking).is_none() {
            self.clients.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A client stops tracking. The keys that it has read are forgotten as they change.
    pub(crate) fn stop(&self, client: &Client) {
        let Some(tracking) = client.tracking.lock().take() else { return };
        self.clients.fetch_sub(1, Ordering::Relaxed);
        for flag in [ClientFlags::TRACKING, ClientFlags::BROKEN_REDIRECT, ClientFlags::BROADCAST] {
            client.set_flag(flag, false);
        }
        client.keep_inbox(false);
        let mut prefixes = self.prefixes.write();
        for prefix in &tracking.prefixes {
            if let Some(clients) = prefixes.get_mut(prefix) {
                clients.remove(&client.id);
                if clients.is_empty() {
                    prefixes.remove(prefix);
                }
            }
        }
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
            self.tell_listeners(clients, key, by);
        }
    }

    #[cold]
    fn tell_readers(&self, clients: &Clients, slot: Slot, key: &[u8], by: Option<u64>) {
        let Some(readers) = self.shard(slot).lock().remove(key) else { return };
        self.keys.fetch_sub(1, Ordering::Relaxed);
        self.items.fetch_sub(readers.len(), Ordering::Relaxed);
        for id in readers {
            self.tell(clients, id, false, Some(key), by);
        }
    }

    #[cold]
    fn tell_listeners(&self, clients: &Clients, key: &[u8], by: Option<u64>) {
        for (_, ids) in self.prefixes.read().iter().filter(|(prefix, _)| key.starts_with(prefix)) {
            ids.iter().for_each(|id| self.tell(clients, *id, true, Some(key), by));
        }
    }

    /// Everything may have changed: all who track are told to forget all.
    pub(crate) fn all_changed(&self, clients: &Clients) {
        if self.clients() == 0 {
            return;
        }
        for shard in &self.shards {
            let keys = std::mem::take(&mut *shard.lock());
            self.keys.fetch_sub(keys.len(), Ordering::Relaxed);
            self.items.fetch_sub(keys.values().map(BTreeSet::len).sum(), Ordering::Relaxed);
        }
        for client in clients.all() {
            let broadcast = client.flags().contains(ClientFlags::BROADCAST);
            self.tell(clients, client.id, broadcast, None, None);
        }
    }

    /// Tells one client, if it tracks in this way, of a key or, without one, of all.
    fn tell(&self, clients: &Clients, id: u64, broadcast: bool, key: Option<&[u8]>, by: Option<u64>) {
        let Some(client) = clients.find(id) else { return };
        let limit = self.output_limit.load(Ordering::Relaxed);
        let redirect = match &*client.tracking.lock() {
            Some(tracking) if (tracking.mode == Mode::Broadcast) == broadcast => {
                if tracking.noloop && by == Some(id) {
                    return;
                }
                tracking.redirect
            }
            _ => return,
        };
        let Some(target) = redirect else {
            if client.protocol() == Protocol::Resp3 {
                client.push_message(&message(Protocol::Resp3, key), limit);
            }
            return;
        };
        match clients.find(target) {
            Some(other) if other.protocol() == Protocol::Resp3 => {
                other.push_message(&message(Protocol::Resp3, key), limit);
            }
            // Version 2 has no place for a message but among those that the client has subscribed to.
            Some(other) if other.flags().contains(ClientFlags::PUBSUB) => {
                other.push_message(&message(Protocol::Resp2, key), limit);
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
                    client.push_message(&bytes, limit);
                }
            }
        }
    }
}

impl Client {
    /// Whether what it reads now is to be noted.
    pub(crate) fn notes_reads(&self) -> bool {
        match &*self.tracking.lock() {
            None => false,
            Some(Tracking { mode, caching, .. }) => match mode {
                Mode::Default => true,
                Mode::OptIn => *caching,
                Mode::OptOut => !*caching,
                Mode::Broadcast => false,
            },
        }
    }
}

impl Session {
    /// CLIENT CACHING holds for the command after it, or for the transaction that begins with it.
    #[cold]
    pub(crate) fn end_exception(&self, ran: Option<&'static Registered>) {
        let is_client = ran.is_some_and(|entry| entry.full_name.starts_with("client|"));
        if !self.in_transaction()
            && !is_client
            && let Some(tracking) = &mut *self.client.tracking.lock()
        {
            tracking.caching = false;
        }
    }
}

/// That a key has changed, or all.
fn message(protocol: Protocol, key: Option<&[u8]>) -> Vec<u8> {
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
    match key {
        Some(key) => {
            writer.array(1);
            writer.bulk(key);
        }
        None => writer.null_array(),
    }
    bytes
}

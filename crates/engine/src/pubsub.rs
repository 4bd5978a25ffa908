//! Publishing and subscribing: channels, patterns, and their subscribers.
//!
//! Channels, patterns and shard channels each have a table from their name to their subscribers, split
//! into shards by name. A publisher holds the one shard of its channel for reading, and appends the
//! message, encoded once for each version of the protocol, to every subscriber's inbox
//! ([`crate::Client`]), where a long one is not copied ([`SharedBytes`]): it never waits for a socket. The subscriber's own thread, woken, takes the messages from there.
//!
//! Invariant: a client is in the table of a name exactly as long as the name is in the client's
//! inbox; both change under the lock of the table's shard. Locks are taken in that order: shard, inbox.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use resp::{Protocol, SharedBytes, Writer};
use slot_routing::Slot;

use crate::clients::{ChannelKind, Client};

/// The length of a bulk string's frame is at most this, in bytes.
const BULK_FRAME: usize = 24;

/// How many locks a table of names has.
const SHARDS: usize = 64;

/// The way to the other nodes of a cluster. The shell gives the engine one.
pub trait Bus: Send + Sync + fmt::Debug {
    /// Sends a client's message to all nodes, or to those of this shard. Must not wait.
    fn publish(&self, sharded: bool, channel: &[u8], message: &[u8]);

    /// How many bytes a channel and its message may have together.
    fn longest(&self) -> usize;
}

type Subscribers = BTreeMap<u64, Arc<Client>>;
type Shard = RwLock<BTreeMap<Vec<u8>, Subscribers>>;

/// Names and their subscribers.
#[derive(Debug)]
struct Table {
    shards: Vec<Shard>,
    /// How many names there are.
    names: AtomicUsize,
}

impl Table {
    fn new(shards: usize) -> Self {
        Self { shards: (0..shards).map(|_| Shard::default()).collect(), names: AtomicUsize::new(0) }
    }

    fn len(&self) -> usize {
        self.names.load(Ordering::Relaxed)
    }

    fn shard(&self, name: &[u8]) -> &Shard {
        match self.shards.len() {
            1 => &self.shards[0],
            count => &self.shards[Slot::of_key(name).index() % count],
        }
    }
}

/// Everybody's subscriptions.
#[derive(Debug)]
pub struct PubSub {
    channels: Table,
    patterns: Table,
    shard_channels: Table,
    /// Clients with any subscription.
    clients: AtomicUsize,
    /// A subscriber for which more bytes than this wait is cut off; 0 is no limit
    /// (`client-output-buffer-limit pubsub`).
    pub output_limit: AtomicUsize,
    bus: OnceLock<Box<dyn Bus>>,
}

impl Default for PubSub {
    fn default() -> Self {
        Self {
            channels: Table::new(SHARDS),
            // Every message is compared with all of them.
            patterns: Table::new(1),
            shard_channels: Table::new(SHARDS),
            clients: AtomicUsize::new(0),
            output_limit: AtomicUsize::new(0),
            bus: OnceLock::new(),
        }
    }
}

impl PubSub {
    fn table(&self, kind: ChannelKind) -> &Table {
        match kind {
            ChannelKind::Channel => &self.channels,
            ChannelKind::Pattern => &self.patterns,
            ChannelKind::ShardChannel => &self.shard_channels,
        }
    }

    /// Sets the cluster bus, to which messages that clients publish go too.
    ///
    /// # Panics
    /// If called twice.
    pub fn set_bus(&self, bus: Box<dyn Bus>) {
        assert!(self.bus.set(bus).is_ok(), "a node has one bus");
    }

    /// Whether the other nodes of a cluster can be told this.
    pub fn can_forward(&self, channel: &[u8], message: &[u8]) -> bool {
        self.bus.get().is_none_or(|bus| channel.len() + message.len() <= bus.longest())
    }

    /// Tells the other nodes of a cluster, if there are any.
    pub fn forward(&self, sharded: bool, channel: &[u8], message: &[u8]) {
        if let Some(bus) = self.bus.get() {
            bus.publish(sharded, channel, message);
        }
    }

    /// Makes the client hear what is published under this name; returns how many subscriptions of this
    /// kind's reply it has now.
    pub(crate) fn subscribe(&self, kind: ChannelKind, name: &[u8], client: &Arc<Client>) -> usize {
        let table = self.table(kind);
        let mut names = table.shard(name).write();
        if !names.contains_key(name) {
            table.names.fetch_add(1, Ordering::Relaxed);
            names.insert(name.to_vec(), Subscribers::new());
        }
        let subscribers = names.get_mut(name).expect("it was put in if it was missing");
        if subscribers.insert(client.id, client.clone()).is_none() && client.subscribed_to(kind, name) {
            self.clients.fetch_add(1, Ordering::Relaxed);
        }
        client.subscriptions_beside(kind)
    }

    /// The opposite of [`PubSub::subscribe`].
    pub fn unsubscribe(&self, kind: ChannelKind, name: &[u8], client: &Client) -> usize {
        let table = self.table(kind);
        let mut names = table.shard(name).write();
        let subscribers = names.get_mut(name);
        if let Some(subscribers) = subscribers
            && subscribers.remove(&client.id).is_some()
        {
            if subscribers.is_empty() {
                names.remove(name);
                table.names.fetch_sub(1, Ordering::Relaxed);
            }
            self.left(kind, name, client);
        }
        client.subscriptions_beside(kind)
    }

    fn left(&self, kind: ChannelKind, name: &[u8], client: &Client) {
        if client.unsubscribed_from(kind, name) {
            self.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn unsubscribe_all(&self, client: &Client) {
        for kind in ChannelKind::ALL {
            for name in client.names_of(kind) {
                self.unsubscribe(kind, &name, client);
            }
        }
    }

    /// Gives a message to this node's subscribers and says how many times it was given.
    pub fn deliver(&self, sharded: bool, channel: &[u8], message: &[u8]) -> usize {
        let kind = if sharded { ChannelKind::ShardChannel } else { ChannelKind::Channel };
        let word: &[u8] = if sharded { b"smessage" } else { b"message" };
        let mut receivers = 0;
        let table = self.table(kind);
        if table.len() > 0
            && let Some(subscribers) = table.shard(channel).read().get(channel)
        {
            receivers += self.give(subscribers, &[word, channel, message]);
        }
        if !sharded && self.patterns.len() > 0 {
            for (pattern, subscribers) in self.patterns.shards[0].read().iter() {
                if glob::matches(pattern, channel) {
                    receivers += self.give(subscribers, &[b"pmessage", pattern, channel, message]);
                }
            }
        }
        receivers
    }

    fn give(&self, subscribers: &Subscribers, words: &[&[u8]]) -> usize {
        let limit = self.output_limit.load(Ordering::Relaxed);
        let mut encoded: [Option<SharedBytes>; 2] = [None, None];
        for client in subscribers.values() {
            let protocol = client.protocol();
            let bytes = encoded[usize::from(protocol == Protocol::Resp3)].get_or_insert_with(|| {
                let len = words.iter().map(|word| word.len() + BULK_FRAME).sum::<usize>();
                let mut bytes = Vec::with_capacity(BULK_FRAME + len);
                let mut writer = Writer::new(&mut bytes, protocol);
                writer.push(words.len());
                words.iter().for_each(|word| writer.bulk(word));
                bytes.into()
            });
            client.push_message(bytes, limit);
        }
        subscribers.len()
    }

    /// Ends the subscriptions to shard channels of slots that are served elsewhere now, and tells the
    /// subscribers.
    pub fn leave_slots(&self, left: impl Fn(Slot) -> bool) {
        if self.shard_channels.len() == 0 {
            return;
        }
        let limit = self.output_limit.load(Ordering::Relaxed);
        for shard in &self.shard_channels.shards {
            let mut names = shard.write();
            let gone: Vec<Vec<u8>> = names.keys().filter(|name| left(Slot::of_key(name))).cloned().collect();
            for name in gone {
                let subscribers = names.remove(&name).unwrap_or_default();
                self.shard_channels.names.fetch_sub(1, Ordering::Relaxed);
                for client in subscribers.values() {
                    self.left(ChannelKind::ShardChannel, &name, client);
                    let mut bytes = Vec::new();
                    let mut writer = Writer::new(&mut bytes, client.protocol());
                    writer.push(3);
                    writer.bulk(ChannelKind::ShardChannel.unsubscribed());
                    writer.bulk(&name);
                    writer.integer(client.subscriptions_beside(ChannelKind::ShardChannel) as i64);
                    client.push_message(&bytes.into(), limit);
                }
            }
        }
    }

    /// The names of this kind that match, in order.
    pub fn names(&self, kind: ChannelKind, pattern: Option<&[u8]>) -> Vec<Vec<u8>> {
        let mut found: Vec<Vec<u8>> = Vec::new();
        for shard in &self.table(kind).shards {
            let names = shard.read();
            let matching = names.keys().filter(|name| pattern.is_none_or(|it| glob::matches(it, name)));
            found.extend(matching.cloned());
        }
        found.sort_unstable();
        found
    }

    /// How many clients have subscribed to this name.
    pub fn subscribers(&self, kind: ChannelKind, name: &[u8]) -> usize {
        self.table(kind).shard(name).read().get(name).map_or(0, BTreeMap::len)
    }

    /// Channels with subscribers.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Patterns with subscribers.
    pub fn patterns(&self) -> usize {
        self.patterns.len()
    }

    /// Shard channels with subscribers.
    pub fn shard_channels(&self) -> usize {
        self.shard_channels.len()
    }

    /// Clients that subscribe to anything.
    pub fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }
}

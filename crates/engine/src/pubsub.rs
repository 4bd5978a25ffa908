//! Pub/sub: channels, patterns, shard channels and their subscribers.
//!
//! Each kind has a table from names to subscribers, sharded by name. A publisher locks the channel's shard for reading
//! and appends the message, encoded once per protocol version, to each subscriber's inbox ([`crate::Client`]); long
//! messages are shared, not copied ([`SharedBytes`]). It never waits for a socket: each subscriber's own thread is
//! woken and takes the messages.
//!
//! Invariant: a client is in a name's table exactly while the name is in the client's inbox; both change under the lock
//! of the table's shard. Lock order: shard, then inbox.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use resp::{Protocol, SharedBytes, Writer};
use slot_routing::Slot;

use crate::clients::{ChannelKind, Client};

/// Maximum length in bytes of a bulk string's header and final line break.
const MAX_BULK_OVERHEAD_BYTES: usize = 24;

const SHARD_COUNT: usize = 64;

/// Forwards messages to other cluster nodes; implemented by the server.
pub trait ClusterBus: Send + Sync + fmt::Debug {
    /// Sends a client's message to all nodes, or only to the nodes of this shard if `sharded` is set. Must not block.
    fn publish(&self, sharded: bool, channel: &[u8], message: &[u8]);

    /// Returns the maximum total length of a channel and its message.
    fn max_message_len(&self) -> usize;
}

type Subscribers = BTreeMap<u64, Arc<Client>>;
type SubscriptionShard = RwLock<BTreeMap<Vec<u8>, Subscribers>>;

/// Names of one kind with their subscribers.
#[derive(Debug)]
struct SubscriptionTable {
    shards: Vec<SubscriptionShard>,
    name_count: AtomicUsize,
}

impl SubscriptionTable {
    fn new(shard_count: usize) -> Self {
        Self {
            shards: (0..shard_count).map(|_| SubscriptionShard::default()).collect(),
            name_count: AtomicUsize::new(0),
        }
    }

    fn len(&self) -> usize {
        self.name_count.load(Ordering::Relaxed)
    }

    fn shard(&self, name: &[u8]) -> &SubscriptionShard {
        match self.shards.len() {
            1 => &self.shards[0],
            count => &self.shards[Slot::of_key(name).index() % count],
        }
    }
}

/// All subscriptions of a server.
#[derive(Debug)]
pub struct PubSub {
    channels: SubscriptionTable,
    patterns: SubscriptionTable,
    shard_channels: SubscriptionTable,
    client_count: AtomicUsize,
    /// Maximum queued bytes per subscriber before it is closed; 0 means unlimited (`client-output-buffer-limit
    /// pubsub`).
    pub output_limit: AtomicUsize,
    bus: OnceLock<Box<dyn ClusterBus>>,
}

impl Default for PubSub {
    fn default() -> Self {
        Self {
            channels: SubscriptionTable::new(SHARD_COUNT),
            // Patterns are not sharded, because every message is matched against all of them.
            patterns: SubscriptionTable::new(1),
            shard_channels: SubscriptionTable::new(SHARD_COUNT),
            client_count: AtomicUsize::new(0),
            output_limit: AtomicUsize::new(0),
            bus: OnceLock::new(),
        }
    }
}

impl PubSub {
    fn table(&self, kind: ChannelKind) -> &SubscriptionTable {
        match kind {
            ChannelKind::Channel => &self.channels,
            ChannelKind::Pattern => &self.patterns,
            ChannelKind::ShardChannel => &self.shard_channels,
        }
    }

    /// Sets the cluster bus, to which clients' messages are forwarded.
    ///
    /// # Panics
    /// If called twice.
    pub fn set_bus(&self, bus: Box<dyn ClusterBus>) {
        assert!(self.bus.set(bus).is_ok(), "a node has one bus");
    }

    /// Returns whether the message fits into one packet of the cluster bus.
    pub fn fits_in_bus_packet(&self, channel: &[u8], message: &[u8]) -> bool {
        self.bus.get().is_none_or(|bus| channel.len() + message.len() <= bus.max_message_len())
    }

    /// Forwards a message to the other cluster nodes, if there are any.
    pub fn forward_to_bus(&self, is_sharded: bool, channel: &[u8], message: &[u8]) {
        if let Some(bus) = self.bus.get() {
            bus.publish(is_sharded, channel, message);
        }
    }

    /// Subscribes a client to a channel or pattern; returns the client's subscription count for the reply.
    pub(crate) fn subscribe(&self, kind: ChannelKind, name: &[u8], client: &Arc<Client>) -> usize {
        let table = self.table(kind);
        let mut names = table.shard(name).write();
        if !names.contains_key(name) {
            table.name_count.fetch_add(1, Ordering::Relaxed);
            names.insert(name.to_vec(), Subscribers::new());
        }
        let subscribers = names.get_mut(name).expect("it was put in if it was missing");
        if subscribers.insert(client.id, client.clone()).is_none() && client.add_subscription(kind, name) {
            self.client_count.fetch_add(1, Ordering::Relaxed);
        }
        client.subscription_count(kind)
    }

    /// Unsubscribes a client from a name; returns the client's subscription count for the reply.
    pub fn unsubscribe(&self, kind: ChannelKind, name: &[u8], client: &Client) -> usize {
        let table = self.table(kind);
        let mut names = table.shard(name).write();
        let subscribers = names.get_mut(name);
        if let Some(subscribers) = subscribers
            && subscribers.remove(&client.id).is_some()
        {
            if subscribers.is_empty() {
                names.remove(name);
                table.name_count.fetch_sub(1, Ordering::Relaxed);
            }
            self.count_unsubscription(kind, name, client);
        }
        client.subscription_count(kind)
    }

    fn count_unsubscription(&self, kind: ChannelKind, name: &[u8], client: &Client) {
        if client.remove_subscription(kind, name) {
            self.client_count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn unsubscribe_all(&self, client: &Client) {
        for kind in ChannelKind::ALL {
            for name in client.subscriptions(kind) {
                self.unsubscribe(kind, &name, client);
            }
        }
    }

    /// Delivers a message to this node's subscribers; returns the number of deliveries.
    pub fn deliver(&self, is_sharded: bool, channel: &[u8], message: &[u8]) -> usize {
        let kind = if is_sharded { ChannelKind::ShardChannel } else { ChannelKind::Channel };
        let word: &[u8] = if is_sharded { b"smessage" } else { b"message" };
        let mut receivers = 0;
        let table = self.table(kind);
        if table.len() > 0
            && let Some(subscribers) = table.shard(channel).read().get(channel)
        {
            receivers += self.push_to_subscribers(subscribers, &[word, channel, message]);
        }
        if !is_sharded && self.patterns.len() > 0 {
            for (pattern, subscribers) in self.patterns.shards[0].read().iter() {
                if glob::matches(pattern, channel) {
                    receivers +=
                        self.push_to_subscribers(subscribers, &[b"pmessage", pattern, channel, message]);
                }
            }
        }
        receivers
    }

    fn push_to_subscribers(&self, subscribers: &Subscribers, words: &[&[u8]]) -> usize {
        let limit = self.output_limit.load(Ordering::Relaxed);
        let mut encoded: [Option<SharedBytes>; 2] = [None, None];
        for client in subscribers.values() {
            let protocol = client.protocol();
            let bytes = encoded[usize::from(protocol == Protocol::Resp3)].get_or_insert_with(|| {
                let len = words.iter().map(|word| word.len() + MAX_BULK_OVERHEAD_BYTES).sum::<usize>();
                let mut bytes = Vec::with_capacity(MAX_BULK_OVERHEAD_BYTES + len);
                let mut writer = Writer::new(&mut bytes, protocol);
                writer.push(words.len());
                words.iter().for_each(|word| writer.bulk(word));
                bytes.into()
            });
            client.push_message(bytes, limit);
        }
        subscribers.len()
    }

    /// Ends subscriptions to shard channels of slots that moved to another node, and notifies the subscribers.
    pub fn unsubscribe_moved_slots(&self, is_moved: impl Fn(Slot) -> bool) {
        if self.shard_channels.len() == 0 {
            return;
        }
        let limit = self.output_limit.load(Ordering::Relaxed);
        for shard in &self.shard_channels.shards {
            let mut names = shard.write();
            let gone: Vec<Vec<u8>> =
                names.keys().filter(|name| is_moved(Slot::of_key(name))).cloned().collect();
            for name in gone {
                let subscribers = names.remove(&name).unwrap_or_default();
                self.shard_channels.name_count.fetch_sub(1, Ordering::Relaxed);
                for client in subscribers.values() {
                    self.count_unsubscription(ChannelKind::ShardChannel, &name, client);
                    let mut bytes = Vec::new();
                    let mut writer = Writer::new(&mut bytes, client.protocol());
                    writer.push(3);
                    writer.bulk(ChannelKind::ShardChannel.unsubscribe_message_kind());
                    writer.bulk(&name);
                    writer.integer(client.subscription_count(ChannelKind::ShardChannel) as i64);
                    client.push_message(&bytes.into(), limit);
                }
            }
        }
    }

    /// Returns the names of this kind that match `pattern` (all names if `None`), in ascending order.
    pub fn matching_names(&self, kind: ChannelKind, pattern: Option<&[u8]>) -> Vec<Vec<u8>> {
        let mut found: Vec<Vec<u8>> = Vec::new();
        for shard in &self.table(kind).shards {
            let names = shard.read();
            let matching = names.keys().filter(|name| pattern.is_none_or(|it| glob::matches(it, name)));
            found.extend(matching.cloned());
        }
        found.sort_unstable();
        found
    }

    /// Returns the number of clients subscribed to a name of this kind.
    pub fn subscriber_count(&self, kind: ChannelKind, name: &[u8]) -> usize {
        self.table(kind).shard(name).read().get(name).map_or(0, BTreeMap::len)
    }

    /// Returns the number of channels with subscribers.
    pub fn channel_count(&self) -> usize {
        self.channels.len()
    }

    /// Returns the number of patterns with subscribers.
    pub fn pattern_count(&self) -> usize {
        self.patterns.len()
    }

    /// Returns the number of shard channels with subscribers.
    pub fn shard_channel_count(&self) -> usize {
        self.shard_channels.len()
    }

    /// Returns the number of clients with subscriptions.
    pub fn client_count(&self) -> usize {
        self.client_count.load(Ordering::Relaxed)
    }
}

//! A client's subscriptions and its queue of messages.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use resp::{ByteQueue, Protocol, SharedBytes};

use super::{Client, ClientFlags};

/// The kinds of names that a client can subscribe to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelKind {
    /// A channel, subscribed with SUBSCRIBE.
    Channel,
    /// A pattern, subscribed with PSUBSCRIBE, that matches channel names.
    Pattern,
    /// A shard channel, subscribed with SSUBSCRIBE; it belongs to the slot of its name.
    ShardChannel,
}

impl ChannelKind {
    pub(crate) const ALL: [Self; 3] = [Self::Channel, Self::Pattern, Self::ShardChannel];

    /// Returns the first element of a subscription message.
    pub fn subscribe_message_kind(self) -> &'static [u8] {
        match self {
            Self::Channel => b"subscribe",
            Self::Pattern => b"psubscribe",
            Self::ShardChannel => b"ssubscribe",
        }
    }

    /// Returns the first element of an unsubscription message.
    pub fn unsubscribe_message_kind(self) -> &'static [u8] {
        match self {
            Self::Channel => b"unsubscribe",
            Self::Pattern => b"punsubscribe",
            Self::ShardChannel => b"sunsubscribe",
        }
    }
}

/// A client's subscriptions and queued messages; created at its first subscription.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    channels: BTreeSet<Vec<u8>>,
    patterns: BTreeSet<Vec<u8>>,
    shard_channels: BTreeSet<Vec<u8>>,
    /// Encoded messages that the client's thread has not taken yet.
    messages: ByteQueue,
    /// Messages to be sent after a pending reply: while another thread runs the client's blocked command, messages are
    /// collected here until the reply is written.
    postponed_messages: Option<ByteQueue>,
    receives_invalidations: bool,
    /// Whether the client runs MONITOR.
    runs_monitor: bool,
}

/// Returns the approximate memory of a subscription: its name in the inbox and in the subscription table, and the
/// table's reference to the client.
pub(super) fn subscription_bytes(name: &[u8]) -> usize {
    2 * (name.len() + size_of::<Vec<u8>>()) + size_of::<(u64, std::sync::Arc<Client>)>()
}

impl Inbox {
    fn subscriptions(&mut self, kind: ChannelKind) -> &mut BTreeSet<Vec<u8>> {
        match kind {
            ChannelKind::Channel => &mut self.channels,
            ChannelKind::Pattern => &mut self.patterns,
            ChannelKind::ShardChannel => &mut self.shard_channels,
        }
    }

    fn has_no_subscriptions(&self) -> bool {
        self.channels.is_empty() && self.patterns.is_empty() && self.shard_channels.is_empty()
    }

    /// Returns whether the inbox is empty and can receive nothing more.
    fn is_unused(&self) -> bool {
        let empty = self.messages.is_empty() && self.postponed_messages.is_none();
        empty && self.has_no_subscriptions() && !self.receives_invalidations && !self.runs_monitor
    }

    fn memory_bytes(&self) -> usize {
        self.messages.memory_bytes() + self.postponed_messages.as_ref().map_or(0, ByteQueue::memory_bytes)
    }

    fn charged_bytes(&self) -> usize {
        self.messages.charged_bytes() + self.postponed_messages.as_ref().map_or(0, ByteQueue::charged_bytes)
    }
}

impl Client {
    /// Adds a subscription; returns whether the client had none before.
    pub(crate) fn add_subscription(&self, kind: ChannelKind, name: &[u8]) -> bool {
        let mut inbox = self.inbox.lock();
        let inbox = inbox.get_or_insert_default();
        let first = inbox.has_no_subscriptions();
        if inbox.subscriptions(kind).insert(name.to_vec()) {
            self.subscription_bytes.fetch_add(subscription_bytes(name), Ordering::Relaxed);
        }
        self.publish_sizes(inbox);
        first
    }

    /// Removes a subscription; returns whether the client has none left.
    pub(crate) fn remove_subscription(&self, kind: ChannelKind, name: &[u8]) -> bool {
        let mut inbox = self.inbox.lock();
        let Some(inbox) = inbox.as_mut() else { return false };
        if inbox.subscriptions(kind).remove(name) {
            self.subscription_bytes.fetch_sub(subscription_bytes(name), Ordering::Relaxed);
        }
        self.publish_sizes(inbox);
        inbox.has_no_subscriptions()
    }

    fn publish_sizes(&self, inbox: &Inbox) {
        let count = |names: &BTreeSet<Vec<u8>>| u32::try_from(names.len()).unwrap_or(u32::MAX);
        self.channel_count.store(count(&inbox.channels), Ordering::Relaxed);
        self.pattern_count.store(count(&inbox.patterns), Ordering::Relaxed);
        self.shard_channel_count.store(count(&inbox.shard_channels), Ordering::Relaxed);
        self.set_flag(ClientFlags::PUBSUB, !inbox.has_no_subscriptions());
    }

    /// Returns the subscription count in replies for this kind: shard channels are counted separately from channels and
    /// patterns.
    pub fn subscription_count(&self, kind: ChannelKind) -> usize {
        let count = match kind {
            ChannelKind::ShardChannel => self.shard_channel_count.load(Ordering::Relaxed),
            _ => self.channel_count.load(Ordering::Relaxed) + self.pattern_count.load(Ordering::Relaxed),
        };
        count as usize
    }

    /// Returns the client's subscriptions of this kind.
    pub fn subscriptions(&self, kind: ChannelKind) -> Vec<Vec<u8>> {
        self.inbox
            .lock()
            .as_mut()
            .map_or_else(Vec::new, |inbox| inbox.subscriptions(kind).iter().cloned().collect())
    }

    pub(crate) fn protocol(&self) -> Protocol {
        if self.uses_resp3.load(Ordering::Relaxed) { Protocol::Resp3 } else { Protocol::Resp2 }
    }

    /// Queues a message, or closes the client if the queue exceeds the output limit.
    pub(crate) fn push_message(&self, message: &SharedBytes, limit: usize) {
        let mut guard = self.inbox.lock();
        let Some(inbox) = guard.as_mut() else { return };
        if self.is_killed() {
            return;
        }
        let unsent = inbox.charged_bytes() + self.charged_output_bytes();
        if limit > 0 && unsent + message.len() > limit {
            (inbox.messages, inbox.postponed_messages) = (ByteQueue::default(), None);
            self.counted_memory.inbox_bytes.store(0, Ordering::Relaxed);
            drop(guard);
            self.close_for_output_limit();
            return;
        }
        let first = inbox.messages.is_empty();
        inbox.postponed_messages.as_mut().unwrap_or(&mut inbox.messages).push_message(message);
        self.counted_memory.inbox_bytes.store(inbox.memory_bytes(), Ordering::Relaxed);
        drop(guard);
        if first {
            self.wake();
        }
    }

    /// Calls `take` with the queued messages; only the client's own thread may do this.
    fn take_messages_with(&self, take: impl FnOnce(&mut ByteQueue)) {
        let mut guard = self.inbox.lock();
        let Some(inbox) = guard.as_mut() else { return };
        take(&mut inbox.messages);
        self.counted_memory.inbox_bytes.store(inbox.memory_bytes(), Ordering::Relaxed);
        if inbox.is_unused() {
            self.counted_memory.inbox_bytes.store(0, Ordering::Relaxed);
            *guard = None;
        }
    }

    /// Postpones messages until the pending reply of a blocked command is written.
    pub(crate) fn postpone_messages(&self) {
        if let Some(inbox) = self.inbox.lock().as_mut() {
            inbox.postponed_messages.get_or_insert_default();
        }
    }

    /// Releases the messages that were postponed for a reply, once the reply is written or will not come.
    pub(crate) fn release_postponed_messages(&self) {
        if let Some(inbox) = self.inbox.lock().as_mut()
            && let Some(mut behind) = inbox.postponed_messages.take()
        {
            inbox.messages.append(&mut behind);
        }
    }

    /// Appends the queued messages to `out`.
    pub(crate) fn take_messages(&self, out: &mut Vec<u8>) {
        self.take_messages_with(|messages| messages.drain_into(out));
    }

    /// Appends the queued messages to `out` if they are short. Long ones are not copied but left for
    /// [`Self::move_messages_to`].
    pub(crate) fn take_short_messages(&self, out: &mut Vec<u8>) {
        self.take_messages_with(|messages| {
            if messages.is_single_chunk() {
                messages.drain_into(out);
            }
        });
    }

    /// Moves the queued messages to the end of `queue`.
    pub(crate) fn move_messages_to(&self, queue: &mut ByteQueue) {
        self.take_messages_with(|messages| queue.append(messages));
    }

    pub(crate) fn set_monitoring(&self, enabled: bool) {
        let mut guard = self.inbox.lock();
        if enabled {
            guard.get_or_insert_default().runs_monitor = true;
        } else if let Some(inbox) = guard.as_mut() {
            inbox.runs_monitor = false;
        }
    }

    pub(crate) fn set_receives_invalidations(&self, enabled: bool) {
        let mut guard = self.inbox.lock();
        if enabled {
            guard.get_or_insert_default().receives_invalidations = true;
        } else if let Some(inbox) = guard.as_mut() {
            inbox.receives_invalidations = false;
        }
    }
}

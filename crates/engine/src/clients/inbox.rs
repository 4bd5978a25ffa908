//! A subscriber's end: what it listens to, and the messages that wait for its own thread.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use resp::{ByteQueue, Protocol, SharedBytes};

use super::{Client, ClientFlags};

/// The kinds of names that a client subscribes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelKind {
    /// A channel.
    Channel,
    /// All channels that a pattern matches.
    Pattern,
    /// A channel of the slot that its name hashes to.
    ShardChannel,
}

impl ChannelKind {
    pub(crate) const ALL: [Self; 3] = [Self::Channel, Self::Pattern, Self::ShardChannel];

    /// The first word of a message that says that the client has subscribed.
    pub fn subscribed(self) -> &'static [u8] {
        match self {
            Self::Channel => b"subscribe",
            Self::Pattern => b"psubscribe",
            Self::ShardChannel => b"ssubscribe",
        }
    }

    /// The first word of a message that says that it no longer has.
    pub fn unsubscribed(self) -> &'static [u8] {
        match self {
            Self::Channel => b"unsubscribe",
            Self::Pattern => b"punsubscribe",
            Self::ShardChannel => b"sunsubscribe",
        }
    }
}

/// The subscriptions of a client and the messages that wait for it; only clients that subscribe have one.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    channels: BTreeSet<Vec<u8>>,
    patterns: BTreeSet<Vec<u8>>,
    shard_channels: BTreeSet<Vec<u8>>,
    /// Messages in wire form.
    messages: ByteQueue,
    /// While another thread runs the command for which the client waits, and until the reply is written: the messages
    /// since then, which come behind the reply.
    behind_reply: Option<ByteQueue>,
    /// The client also hears of keys that it may have copies of.
    tracks: bool,
    /// The client is shown every command.
    monitors: bool,
}

/// Roughly what is kept of a subscription: the name here and in the table of names, each with its place, and the client
/// there.
pub(super) fn bytes_of(name: &[u8]) -> usize {
    2 * (name.len() + size_of::<Vec<u8>>()) + size_of::<(u64, std::sync::Arc<Client>)>()
}

impl Inbox {
    fn names(&mut self, kind: ChannelKind) -> &mut BTreeSet<Vec<u8>> {
        match kind {
            ChannelKind::Channel => &mut self.channels,
            ChannelKind::Pattern => &mut self.patterns,
            ChannelKind::ShardChannel => &mut self.shard_channels,
        }
    }

    fn has_no_names(&self) -> bool {
        self.channels.is_empty() && self.patterns.is_empty() && self.shard_channels.is_empty()
    }

    /// Whether nothing waits in it, and nothing more will come.
    fn is_done(&self) -> bool {
        let empty = self.messages.is_empty() && self.behind_reply.is_none();
        empty && self.has_no_names() && !self.tracks && !self.monitors
    }

    fn memory(&self) -> usize {
        self.messages.memory() + self.behind_reply.as_ref().map_or(0, ByteQueue::memory)
    }

    fn charged(&self) -> usize {
        self.messages.charged_bytes() + self.behind_reply.as_ref().map_or(0, ByteQueue::charged_bytes)
    }
}

impl Client {
    /// Notes a subscription; says whether it is the first.
    pub(crate) fn subscribed_to(&self, kind: ChannelKind, name: &[u8]) -> bool {
        let mut inbox = self.inbox.lock();
        let inbox = inbox.get_or_insert_default();
        let first = inbox.has_no_names();
        if inbox.names(kind).insert(name.to_vec()) {
            self.subscription_bytes.fetch_add(bytes_of(name), Ordering::Relaxed);
        }
        self.show(inbox);
        first
    }

    /// Forgets a subscription; says whether it was the last.
    pub(crate) fn unsubscribed_from(&self, kind: ChannelKind, name: &[u8]) -> bool {
        let mut inbox = self.inbox.lock();
        let Some(inbox) = inbox.as_mut() else { return false };
        if inbox.names(kind).remove(name) {
            self.subscription_bytes.fetch_sub(bytes_of(name), Ordering::Relaxed);
        }
        self.show(inbox);
        inbox.has_no_names()
    }

    fn show(&self, inbox: &Inbox) {
        let count = |names: &BTreeSet<Vec<u8>>| u32::try_from(names.len()).unwrap_or(u32::MAX);
        self.channels.store(count(&inbox.channels), Ordering::Relaxed);
        self.patterns.store(count(&inbox.patterns), Ordering::Relaxed);
        self.shard_channels.store(count(&inbox.shard_channels), Ordering::Relaxed);
        self.set_flag(ClientFlags::PUBSUB, !inbox.has_no_names());
    }

    /// How many subscriptions the reply to one of this kind counts: shard channels for themselves, the
    /// other kinds together.
    pub fn subscriptions_beside(&self, kind: ChannelKind) -> usize {
        let count = match kind {
            ChannelKind::ShardChannel => self.shard_channels.load(Ordering::Relaxed),
            _ => self.channels.load(Ordering::Relaxed) + self.patterns.load(Ordering::Relaxed),
        };
        count as usize
    }

    /// The names of this kind that the client has subscribed to.
    pub fn names_of(&self, kind: ChannelKind) -> Vec<Vec<u8>> {
        self.inbox.lock().as_mut().map_or_else(Vec::new, |inbox| inbox.names(kind).iter().cloned().collect())
    }

    pub(crate) fn protocol(&self) -> Protocol {
        if self.resp3.load(Ordering::Relaxed) { Protocol::Resp3 } else { Protocol::Resp2 }
    }

    /// Leaves a message for the client's thread, or has the client cut off if it does not read.
    pub(crate) fn push_message(&self, message: &SharedBytes, limit: usize) {
        let mut guard = self.inbox.lock();
        let Some(inbox) = guard.as_mut() else { return };
        if self.is_killed() {
            return;
        }
        let unsent = inbox.charged() + self.charged_output();
        if limit > 0 && unsent + message.len() > limit {
            (inbox.messages, inbox.behind_reply) = (ByteQueue::default(), None);
            self.footprint.inbox.store(0, Ordering::Relaxed);
            drop(guard);
            self.overflow();
            return;
        }
        let first = inbox.messages.is_empty();
        inbox.behind_reply.as_mut().unwrap_or(&mut inbox.messages).push_message(message);
        self.footprint.inbox.store(inbox.memory(), Ordering::Relaxed);
        drop(guard);
        if first {
            self.wake();
        }
    }

    /// Takes the messages that wait by `take`. For the client's own thread.
    fn take_messages_by(&self, take: impl FnOnce(&mut ByteQueue)) {
        let mut guard = self.inbox.lock();
        let Some(inbox) = guard.as_mut() else { return };
        take(&mut inbox.messages);
        self.footprint.inbox.store(inbox.memory(), Ordering::Relaxed);
        if inbox.is_done() {
            self.footprint.inbox.store(0, Ordering::Relaxed);
            *guard = None;
        }
    }

    /// From now on messages come behind the reply to the command for which the client waits.
    pub(crate) fn put_messages_behind_reply(&self) {
        if let Some(inbox) = self.inbox.lock().as_mut() {
            inbox.behind_reply.get_or_insert_default();
        }
    }

    /// The reply is written, or none will be: the messages behind it may follow.
    pub(crate) fn release_messages(&self) {
        if let Some(inbox) = self.inbox.lock().as_mut()
            && let Some(mut behind) = inbox.behind_reply.take()
        {
            inbox.messages.append(&mut behind);
        }
    }

    /// Appends the messages that wait to `out`.
    pub(crate) fn take_messages(&self, out: &mut Vec<u8>) {
        self.take_messages_by(|messages| messages.drain_into(out));
    }

    /// Appends the messages that wait to `out`, if they are short: long ones are not copied, but left to
    /// [`Self::queue_messages`].
    pub(crate) fn take_short_messages(&self, out: &mut Vec<u8>) {
        self.take_messages_by(|messages| {
            if messages.is_short() {
                messages.drain_into(out);
            }
        });
    }

    /// Moves the messages that wait to the end of `queue`.
    pub(crate) fn queue_messages(&self, queue: &mut ByteQueue) {
        self.take_messages_by(|messages| queue.append(messages));
    }

    /// The client starts, or stops, to be shown every command.
    pub(crate) fn keep_inbox_for_monitor(&self, monitors: bool) {
        let mut guard = self.inbox.lock();
        if monitors {
            guard.get_or_insert_default().monitors = true;
        } else if let Some(inbox) = guard.as_mut() {
            inbox.monitors = false;
        }
    }

    /// The client starts, or stops, to hear of keys that it may have copies of.
    pub(crate) fn keep_inbox(&self, tracks: bool) {
        let mut guard = self.inbox.lock();
        if tracks {
            guard.get_or_insert_default().tracks = true;
        } else if let Some(inbox) = guard.as_mut() {
            inbox.tracks = false;
        }
    }
}

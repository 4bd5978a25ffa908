//! Telling clients what others do: messages that they have subscribed to, keys that they may have copies of, commands
//! (MONITOR), and keys that they watch or wait for.

use slot_routing::{ReplOffset, Slot};

use super::Engine;
use crate::clients::{ChannelKind, Client, Mode, Tracking};
use crate::notifications::Class;
use crate::session::Session;
use crate::watch::Presence;

impl Engine {
    /// Makes the session's client hear what is published under this name; returns how many subscriptions of this kind's
    /// reply it has now.
    pub fn subscribe(&self, session: &mut Session, kind: ChannelKind, name: &[u8]) -> usize {
        session.subscriber = true;
        self.pubsub.subscribe(kind, name, &session.client)
    }

    /// CLIENT TRACKING ON, for the first time or otherwise than before.
    pub fn start_tracking(&self, session: &mut Session, tracking: Tracking) {
        session.tracks = tracking.mode != Mode::Broadcast;
        session.subscriber = true;
        self.tracking.start(&session.client, tracking);
    }

    /// CLIENT TRACKING OFF
    pub fn stop_tracking(&self, session: &mut Session) {
        self.tracking.stop(&session.client);
        session.tracks = false;
    }

    /// MONITOR
    pub fn start_monitor(&self, session: &mut Session) {
        session.subscriber = true;
        self.monitors.start(&self.settings, &session.client);
    }

    /// A client is gone: it is told nothing any more.
    pub(crate) fn stop_telling(&self, client: &Client) {
        self.pubsub.unsubscribe_all(client);
        self.tracking.stop(client);
        self.monitors.stop(&self.settings, client);
    }

    /// Tells clients that listen to prefixes of the keys that have changed since. To be called after each change of
    /// keys, when their slots are free again.
    #[inline]
    pub fn tell_of_changes(&self) {
        self.tracking.tell_of_changes(&self.clients);
    }

    /// Publishes an event of a key, if there may be subscribers to it. The caller holds the key's slot.
    #[inline]
    pub(crate) fn notify(&self, class: Class, event: &str, db: u16, key: &[u8]) {
        let wanted = self.settings.notified();
        if wanted.intersects(class) {
            self.publish_event(wanted, event, db, key);
        }
    }

    #[cold]
    fn publish_event(&self, wanted: Class, event: &str, db: u16, key: &[u8]) {
        if wanted.contains(Class::KEYSPACE) {
            let mut channel = format!("__keyspace@{db}__:").into_bytes();
            channel.extend_from_slice(key);
            self.pubsub.deliver(false, &channel, event.as_bytes());
        }
        if wanted.contains(Class::KEYEVENT) {
            self.pubsub.deliver(false, format!("__keyevent@{db}__:{event}").as_bytes(), key);
        }
    }

    /// Tells clients that watch a key or may have a copy of it that it has changed; `by` is the session that
    /// changed it. The caller holds its slot.
    #[inline]
    pub(crate) fn changed(&self, db: u16, slot: Slot, key: &[u8], by: Option<u64>) {
        self.watches.touch(db, slot, key);
        self.tracking.changed(&self.clients, slot, key, by);
    }

    /// [`Engine::changed`] of a key that is gone without a command: waiters that are told of lost keys run their
    /// commands again, and who watches a key whose time had come before sees no change.
    #[inline]
    pub(crate) fn lost(&self, db: u16, slot: Slot, key: &[u8]) {
        self.watches.lost(db, slot, key);
        self.tracking.changed(&self.clients, slot, key, None);
        if self.waits.any(slot) {
            self.waits.tell_loss(db, slot, key);
        }
    }

    /// Tells the log, by `deletion` (DEL or UNLINK), and the clients that watch it, that a key is gone without a
    /// command: its time came, or it lives elsewhere now. The caller holds its slot, and has asked under its lock
    /// whether this node may do that. Returns the offset at which that ends in the log, if the log has a reader.
    pub fn key_gone(&self, db: u16, slot: Slot, key: &[u8], deletion: &[u8]) -> Option<ReplOffset> {
        self.lost(db, slot, key);
        if !self.log.wanted() {
            return None;
        }
        let mut wire = Vec::with_capacity(key.len() + 32);
        resp::encode_request(&mut wire, [deletion, key]);
        Some(self.log.append(db, &wire))
    }

    /// Marks every transaction whose watched keys may have changed: all of them. For a caller that replaces the
    /// whole data without running commands (a full synchronisation).
    pub fn touch_all_watched(&self) {
        self.tracking.all_changed(&self.clients);
        for db in 0..self.keyspace.databases() {
            self.watches.replaced(db, |_| (Presence::Live, Presence::Live));
        }
    }
}

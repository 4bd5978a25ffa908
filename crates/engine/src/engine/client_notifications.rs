//! Notifications to clients: pub/sub messages, keyspace events, invalidations, MONITOR, and changes of watched or
//! awaited keys.

use std::sync::atomic::Ordering;

use keyspace::Key;
use slot_routing::{ReplOffset, Slot};

use super::Engine;
use crate::clients::{ChannelKind, Client, ClientTracking, TrackingMode};
use crate::monitors::Monitors;
use crate::notifications::EventClass;
use crate::pubsub::PubSub;
use crate::session::Session;
use crate::tracking::TrackingTable;
use crate::watch::{KeyPresence, WatchTable, WatchedKey, Watcher};

/// Clients that are notified of messages, of commands, and of changed keys.
#[derive(Debug, Default)]
pub struct ClientNotifications {
    /// Channels and their subscribers.
    pub pubsub: PubSub,
    /// Keys that clients may have cached (CLIENT TRACKING).
    pub tracking: TrackingTable,
    /// Clients that run MONITOR.
    pub monitors: Monitors,
    pub(crate) watch_table: WatchTable,
}

impl ClientNotifications {
    /// Subscribes the session's client to a channel or pattern; returns the count of subscriptions that the reply
    /// contains.
    pub fn subscribe(&self, session: &mut Session, kind: ChannelKind, name: &[u8]) -> usize {
        session.start_receiving_messages();
        self.pubsub.subscribe(kind, name, session.client())
    }

    /// Starts tracking, or changes its mode (CLIENT TRACKING ON).
    pub fn start_tracking(&self, session: &mut Session, tracking: ClientTracking) {
        session.start_receiving_messages();
        session.set_tracks_reads(tracking.mode != TrackingMode::Broadcast);
        self.tracking.start(session.client(), tracking);
    }

    /// Stops tracking (CLIENT TRACKING OFF).
    pub fn stop_tracking(&self, session: &mut Session) {
        self.tracking.stop(session.client());
        session.set_tracks_reads(false);
    }

    /// Watches one key, whose slot is locked. If `was_expired`, removal of the key does not count as a change.
    pub fn watch_key(&self, session: &mut Session, key: &Key<'_>, was_expired: bool) {
        let watched = WatchedKey { db: session.db(), key: key.bytes().to_vec() };
        let bytes = watched.memory_bytes();
        let watching = session.watch_state_mut();
        let first = watching.keys.is_empty();
        if !watching.keys.insert(watched) {
            return;
        }
        let (keys, dirty) = (watching.keys.len(), watching.dirty.clone());
        session.client().watched_bytes.fetch_add(bytes, Ordering::Relaxed);
        if first {
            self.watch_table.count_watching_client();
        }
        let watcher = Watcher { session_id: session.id(), dirty, was_expired };
        self.watch_table.watch(session.db(), key, watcher);
        let keys = u32::try_from(keys).unwrap_or(u32::MAX);
        session.client().watched_key_count.store(keys, Ordering::Relaxed);
    }

    /// Stops watching all keys, as UNWATCH and EXEC do.
    pub fn unwatch(&self, session: &mut Session) {
        if session.watch_state().keys.is_empty() {
            return;
        }
        self.watch_table.uncount_watching_client();
        session.client().watched_key_count.store(0, Ordering::Relaxed);
        session.client().watched_bytes.store(0, Ordering::Relaxed);
        for watched in &session.watch_state_mut().unwatch_all() {
            self.watch_table.unwatch(watched, session.id());
        }
    }

    /// Returns the number of clients that watch keys.
    pub fn watching_client_count(&self) -> usize {
        self.watch_table.client_count()
    }

    /// Returns the number of watched keys; a key counts once per client that watches it.
    pub fn watched_key_count(&self) -> usize {
        self.watch_table.key_count()
    }
}

impl Engine {
    /// Starts MONITOR for the session's client.
    pub fn start_monitor(&self, session: &mut Session) {
        session.start_receiving_messages();
        self.notifications.monitors.start(&self.settings, session.client());
    }

    /// Removes all subscriptions, tracking and monitoring of a disconnected client.
    pub(crate) fn stop_notifications(&self, client: &Client) {
        self.notifications.pubsub.unsubscribe_all(client);
        self.notifications.tracking.stop(client);
        self.notifications.monitors.stop(&self.settings, client);
    }

    /// Sends pending invalidations to clients in broadcast mode. Called after each change of keys, once the slot locks
    /// are released.
    #[inline]
    pub fn send_invalidations(&self) {
        self.notifications.tracking.send_invalidations(&self.clients);
    }

    /// Publishes a keyspace event if its class is enabled. The caller holds the key's slot lock.
    #[inline]
    pub(crate) fn notify(&self, class: EventClass, event: &str, db: u16, key: &[u8]) {
        let wanted = self.settings.notified_event_classes();
        if wanted.intersects(class) {
            self.publish_event(wanted, event, db, key);
        }
    }

    #[cold]
    fn publish_event(&self, event_class: EventClass, event: &str, db: u16, key: &[u8]) {
        if event_class.contains(EventClass::KEYSPACE) {
            let mut channel = format!("__keyspace@{db}__:").into_bytes();
            channel.extend_from_slice(key);
            self.notifications.pubsub.deliver(false, &channel, event.as_bytes());
        }
        if event_class.contains(EventClass::KEYEVENT) {
            self.notifications.pubsub.deliver(false, format!("__keyevent@{db}__:{event}").as_bytes(), key);
        }
    }

    /// Reports a changed key to watchers and tracking clients; `changed_by` is the id of the session that changed it.
    /// The caller holds the slot lock.
    #[inline]
    pub(crate) fn report_changed(&self, db: u16, slot: Slot, key: &[u8], changed_by: Option<u64>) {
        self.notifications.watch_table.mark_changed(db, slot, key);
        self.notifications.tracking.report_changed(&self.clients, slot, key, changed_by);
    }

    /// Reports a key that was removed outside of a command. Blocked commands that wait for removals run again. For a
    /// client whose WATCH saw the key as already expired, the removal is no change.
    #[inline]
    pub(crate) fn report_removed(&self, db: u16, slot: Slot, key: &[u8]) {
        self.notifications.watch_table.report_removed(db, slot, key);
        self.notifications.tracking.report_changed(&self.clients, slot, key, None);
        if self.scheduling.wait_queues.may_have_waiters(slot) {
            self.scheduling.wait_queues.report_removal(db, slot, key);
        }
    }

    /// Logs the removal of a key outside of a command (expired, or migrated away) with `deletion` (DEL or UNLINK), and
    /// notifies clients. The caller holds the slot lock and has then checked that this node may delete keys. Returns
    /// the log offset after the entry, or `None` if the log has no reader.
    pub fn log_removed_key(&self, db: u16, slot: Slot, key: &[u8], deletion: &[u8]) -> Option<ReplOffset> {
        self.report_removed(db, slot, key);
        if !self.log.has_readers() {
            return None;
        }
        let mut wire = Vec::with_capacity(key.len() + 32);
        resp::encode_request(&mut wire, [deletion, key]);
        Some(self.log.append(db, &wire))
    }

    /// Invalidates all watches and tracked keys, when a full resync replaces the data set without running commands.
    pub fn invalidate_all_watches(&self) {
        self.notifications.tracking.invalidate_all(&self.clients);
        for db in 0..self.keyspace.database_count() {
            self.notifications.watch_table.mark_replaced(db, |_| (KeyPresence::Live, KeyPresence::Live));
        }
    }
}

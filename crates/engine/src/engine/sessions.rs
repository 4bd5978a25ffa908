//! Session lifecycle: WATCH, DISCARD, RESET and disconnecting.

use std::sync::atomic::Ordering;

use keyspace::Key;

use super::Engine;
use crate::session::Session;
use crate::watch::{WatchedKey, Watcher};

impl Engine {
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

    /// Discards the transaction, if any, and unwatches all keys.
    pub fn discard_transaction(&self, session: &mut Session) {
        session.take_transaction();
        session.leave_transaction();
        self.unwatch(session);
    }

    /// Returns the number of clients that watch keys.
    pub fn watching_client_count(&self) -> usize {
        self.watch_table.client_count()
    }

    /// Returns the number of watched keys; a key counts once per client that watches it.
    pub fn watched_key_count(&self) -> usize {
        self.watch_table.key_count()
    }

    /// Removes a closed connection's session with its watches, waits and subscriptions.
    pub fn disconnect(&self, session: &mut Session) {
        self.discard_transaction(session);
        self.cancel_wait(session);
        self.stop_notifications(session.client());
        self.clients.disconnect(session.id());
    }

    /// Resets the session to its initial state (RESET). Queued messages are appended to `out`.
    pub fn reset_session(&self, session: &mut Session, out: &mut Vec<u8>) {
        self.discard_transaction(session);
        self.stop_notifications(session.client());
        session.take_messages(out);
        self.log_out(session);
        session.reset_settings();
    }
}

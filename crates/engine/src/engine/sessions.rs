//! Session lifecycle: WATCH, DISCARD, RESET and disconnecting.

use std::sync::atomic::Ordering;

use keyspace::Key;

use super::Engine;
use crate::session::Session;
use crate::watch::{WatchedKey, Watcher};

impl Engine {
    /// Watches one key, whose slot is locked. If `was_expired`, removal of the key does not count as a change.
    pub fn watch(&self, session: &mut Session, key: &Key<'_>, was_expired: bool) {
        let watched = WatchedKey { db: session.db(), key: key.bytes().to_vec() };
        let bytes = watched.bytes();
        let watching = session.watching_mut();
        let first = watching.keys.is_empty();
        if !watching.keys.insert(watched) {
            return;
        }
        let (keys, dirty) = (watching.keys.len(), watching.dirty.clone());
        session.client().watched_bytes.fetch_add(bytes, Ordering::Relaxed);
        if first {
            self.watch_table.count_watching_client();
        }
        let watcher = Watcher { session: session.id(), dirty, was_expired };
        self.watch_table.watch(session.db(), key, watcher);
        let keys = u32::try_from(keys).unwrap_or(u32::MAX);
        session.client().watched_keys.store(keys, Ordering::Relaxed);
    }

    /// Stops watching all keys, as UNWATCH and EXEC do.
    pub fn unwatch(&self, session: &mut Session) {
        if session.watching().keys.is_empty() {
            return;
        }
        self.watch_table.uncount_watching_client();
        session.client().watched_keys.store(0, Ordering::Relaxed);
        session.client().watched_bytes.store(0, Ordering::Relaxed);
        for watched in &session.watching_mut().unwatch_all() {
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
    pub fn watching_clients(&self) -> usize {
        self.watch_table.clients()
    }

    /// Returns the number of watched keys; a key counts once per client that watches it.
    pub fn watched_keys(&self) -> usize {
        self.watch_table.keys()
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

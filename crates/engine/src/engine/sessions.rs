//! Sessions that come to an end or to their beginning: the keys that they watch, RESET, a connection that is closed.

use std::sync::atomic::Ordering;

use keyspace::Key;
use resp::Protocol;

use super::Engine;
use crate::session::{Mute, Session};
use crate::watch::{Watched, Watcher};

impl Engine {
    /// WATCH of one key, whose slot the caller holds; `was_expired`: it is past its time already, so that its going is
    /// no change.
    pub fn watch(&self, session: &mut Session, key: &Key<'_>, was_expired: bool) {
        let watching = &mut session.watching;
        let first = watching.keys.is_empty();
        let watched = Watched { db: session.db, key: key.bytes().to_vec() };
        let bytes = watched.bytes();
        if !watching.keys.insert(watched) {
            return;
        }
        session.client.watched_bytes.fetch_add(bytes, Ordering::Relaxed);
        if first {
            self.watches.started();
        }
        let watcher = Watcher { session: session.id, dirty: watching.dirty.clone(), was_expired };
        self.watches.watch(session.db, key, watcher);
        let keys = u32::try_from(watching.keys.len()).unwrap_or(u32::MAX);
        session.client.watched.store(keys, Ordering::Relaxed);
    }

    /// UNWATCH
    pub fn unwatch(&self, session: &mut Session) {
        if session.watching.keys.is_empty() {
            return;
        }
        self.watches.stopped();
        session.client.watched.store(0, Ordering::Relaxed);
        session.client.watched_bytes.store(0, Ordering::Relaxed);
        for watched in &session.watching.take() {
            self.watches.unwatch(watched, session.id);
        }
    }

    /// DISCARD, without the question whether there is a transaction.
    pub fn discard(&self, session: &mut Session) {
        session.transaction = None;
        session.leave_transaction();
        self.unwatch(session);
    }

    /// How many clients watch keys.
    pub fn watching_clients(&self) -> usize {
        self.watches.clients()
    }

    /// How many keys are watched, each as often as it is.
    pub fn watched_keys(&self) -> usize {
        self.watches.keys()
    }

    /// Forgets a session: what it watches, subscribes to, and that it is there. To be called when its
    /// connection is closed.
    pub fn disconnect(&self, session: &mut Session) {
        self.discard(session);
        self.forget_wait(session);
        self.stop_telling(&session.client);
        self.clients.disconnect(session.id);
    }

    /// RESET: the connection is as it was when it was made. Messages that wait for it are appended to `out`.
    pub fn reset(&self, session: &mut Session, out: &mut Vec<u8>) {
        self.discard(session);
        self.stop_telling(&session.client);
        session.take_messages(out);
        self.log_out(session);
        session.subscriber = false;
        session.tracks = false;
        session.db = 0;
        session.asking = false;
        session.mute = Mute::Nothing;
        session.set_readonly(false);
        session.set_knows_redirect(false);
        session.set_protocol(Protocol::Resp2);
        session.set_no_evict(false);
        session.set_no_touch(false);
        session.set_imports(false);
        session.client.names.lock().name.clear();
    }
}

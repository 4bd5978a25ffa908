//! Simulates a client that watches a key and then executes a transaction.

use clock::Millis;
use engine::{BackgroundMode, CommandOrigin, Session};

use crate::RandomSource;
use crate::clients::{self, DATABASE_COUNT};
use crate::executor::Executor;

/// A client that watches a key and then executes a transaction.
pub(super) struct WatchingClient {
    session: Session,
    watched_key: Option<WatchedKey>,
}

struct WatchedKey {
    key: String,
    value: Vec<u8>,
    /// The offset of the log's end when the client watched the key.
    log_end: u64,
}

/// A transaction that a client executed after it had watched a key.
#[derive(Debug)]
pub(super) struct WatchedTransaction {
    pub(super) key: String,
    /// Whether the value of the watched key has changed since the client watched the key.
    pub(super) has_changed: bool,
    /// Whether nothing has been logged since the client watched the key.
    pub(super) is_quiet: bool,
    /// Whether the server aborted the transaction.
    pub(super) was_aborted: bool,
}

impl WatchingClient {
    pub(super) fn new(id: u64, background: BackgroundMode) -> Self {
        let mut session = Session::new(id, CommandOrigin::Client, true);
        session.set_background(background);
        Self { session, watched_key: None }
    }

    /// Watches a key or, if a key is watched, executes the transaction. `end` is the offset of the log's end. With
    /// `omits_watch`, WATCH is not sent.
    pub(super) fn run_watch_or_transaction(
        &mut self,
        executor: &mut Executor,
        wall: Millis,
        end: u64,
        random: &mut RandomSource,
        omits_watch: bool,
    ) -> Option<WatchedTransaction> {
        let Some(watched) = self.watched_key.take() else {
            self.session.select(random.random_below(DATABASE_COUNT.into()) as u16);
            let key = clients::plain_key(random);
            if !omits_watch {
                executor.run_on_session(&mut self.session, wall, &["WATCH", &key]);
            }
            let value = executor.run_on_session(&mut self.session, wall, &["GET", &key]);
            self.watched_key = Some(WatchedKey { key, value, log_end: end });
            return None;
        };
        let WatchedKey { key, value, log_end: before } = watched;
        let changed = executor.run_on_session(&mut self.session, wall, &["GET", &key]) != value;
        executor.run_on_session(&mut self.session, wall, &["MULTI"]);
        executor.run_on_session(&mut self.session, wall, &["GET", &key]);
        let aborted = executor.run_on_session(&mut self.session, wall, &["EXEC"]).starts_with(b"*-1\r\n");
        Some(WatchedTransaction { key, has_changed: changed, is_quiet: before == end, was_aborted: aborted })
    }
}

//! The engine's state of one client connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use clock::Millis;
use resp::{ByteQueue, Protocol};
use slot_routing::ReplOffset;

use crate::clients::{Client, ClientFlags, ConnectionInfo};
use crate::transaction::{DeferredExec, Transaction, Watching};
use crate::waiting::Waiter;

/// The origin of a session's commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CommandOrigin {
    /// An ordinary client.
    #[default]
    Client,
    /// The master's replication stream: it bypasses the checks for clients, sees expired keys (the master decides on
    /// expiry), and is not logged as this node's own changes.
    Master,
    /// The source of a slot import. Its commands apply like a master's but are logged by this node; they wait during
    /// pauses, and the import ends when this node is no longer a master.
    Source,
}

impl CommandOrigin {
    /// Returns whether the commands come from another node's log and apply without checks.
    #[must_use]
    pub fn is_stream(self) -> bool {
        match self {
            Self::Client => false,
            Self::Master | Self::Source => true,
        }
    }

    /// Returns whether changes are logged as this node's own.
    pub(crate) fn is_logged(self) -> bool {
        match self {
            Self::Client | Self::Source => true,
            Self::Master => false,
        }
    }
}

/// Where the slow commands of a session run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackgroundMode {
    /// On the same worker as all others.
    #[default]
    Unavailable,
    /// On a background worker: [`crate::DispatchStatus::SlowCommand`] moves the connection.
    Offloadable,
    /// Here: the connection is on a background worker.
    OnBackgroundWorker,
    /// The connection is on the background worker reserved for waiting for locked slots.
    OnWaitWorker,
}

/// Which replies are suppressed (CLIENT REPLY).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplySuppression {
    /// None; replies are sent.
    #[default]
    None,
    /// The reply of the next command.
    Next,
    /// The reply of the running command.
    Current,
    /// All replies.
    All,
}

/// The mode of SCRIPT DEBUG for the next script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugMode {
    /// Works on copied data, which is discarded.
    Discarded,
    /// Works on the real data (SYNC).
    Kept,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Session {
    /// Id of the client.
    pub id: u64,
    /// The origin of the commands.
    pub origin: CommandOrigin,
    /// The selected database.
    pub db: u16,
    /// The negotiated protocol.
    pub protocol: Protocol,
    /// Whether the client is authenticated, or authentication is disabled.
    pub authenticated: bool,
    /// The user with its rules; unset until the first command.
    pub(crate) user: Option<Arc<acl::User>>,
    /// Whether the user has all permissions.
    pub(crate) unrestricted: bool,
    /// Version of the users that the cached rules belong to ([`crate::Engine::users_version`]).
    pub(crate) users_version: u64,
    /// Set by ASKING: the next command may access a slot that is being imported.
    pub asking: bool,
    /// Set by READONLY: the client accepts reads from a replica.
    pub readonly: bool,
    /// Set by CLIENT CAPA REDIRECT.
    pub(crate) knows_redirect: bool,
    /// Whether the connection closes after its pending replies.
    pub closing: bool,
    /// Which replies are suppressed. The engine drops its own; the shell must do the same.
    pub mute: ReplySuppression,
    /// Maximum size of pending replies in bytes; beyond it the client is closed.
    pub reply_limit: usize,
    /// Length of the reply buffer at the start of the batch.
    pub(crate) replied_from: usize,
    /// End of the session's time slice on the worker's clock, after which other sessions run first.
    pub time_slice_ends: u64,
    /// Where slow commands run.
    pub background: BackgroundMode,
    /// Replication offset after the client's last write (WAIT).
    pub last_write: ReplOffset,
    /// Replication offset after the last change of data, for which the reply may have to wait; excludes published
    /// messages.
    pub last_change: ReplOffset,
    /// The queued commands between MULTI and EXEC.
    pub(crate) transaction: Option<Box<Transaction>>,
    pub(crate) watching: Watching,
    /// Whether messages may be queued: set by subscriptions, and cleared by RESET.
    pub(crate) subscriber: bool,
    /// Set by CLIENT IMPORT-SOURCE: the client sees expired keys.
    pub(crate) imports: bool,
    /// Whether the keys that it reads are recorded for tracking.
    pub(crate) tracks: bool,
    /// An EXEC whose deferred commands are still running.
    pub(crate) unfinished: Option<Box<DeferredExec>>,
    /// Set by SCRIPT DEBUG: the next EVAL runs in a debugging session.
    pub(crate) debug_mode: Option<DebugMode>,
    /// The client's waiter, between [`crate::DispatchStatus::Blocked`] and [`crate::Dispatcher::end_wait`].
    pub(crate) waiting: Option<Arc<Waiter>>,
    /// Deadline of a blocking command that is run again (`Some(None)` means no timeout).
    pub(crate) resumes: Option<Option<Millis>>,
    /// State visible to other threads.
    pub client: Arc<Client>,
}

impl Session {
    /// Creates a session without a registered client, for replication streams and tests.
    #[must_use]
    pub fn new(id: u64, origin: CommandOrigin, authenticated: bool) -> Self {
        let client = Client::new(id, ConnectionInfo::default(), Millis(0), Box::new(|| {}));
        Self::of(Arc::new(client), origin, authenticated)
    }

    /// Creates the session of a registered client ([`crate::Clients::connect`]).
    #[must_use]
    pub fn of(client: Arc<Client>, origin: CommandOrigin, authenticated: bool) -> Self {
        client.set_flag(ClientFlags::MASTER, origin == CommandOrigin::Master);
        Self {
            id: client.id,
            origin,
            db: 0,
            protocol: Protocol::default(),
            authenticated,
            user: None,
            unrestricted: false,
            users_version: 0,
            asking: false,
            readonly: false,
            knows_redirect: false,
            closing: false,
            mute: ReplySuppression::default(),
            reply_limit: usize::MAX,
            replied_from: 0,
            time_slice_ends: u64::MAX,
            background: BackgroundMode::default(),
            last_write: ReplOffset(0),
            last_change: ReplOffset(0),
            transaction: None,
            watching: Watching::default(),
            subscriber: false,
            imports: false,
            tracks: false,
            unfinished: None,
            debug_mode: None,
            waiting: None,
            resumes: None,
            client,
        }
    }

    /// Sets the address shown in MONITOR, for sessions without a registered client.
    pub fn show_as(&mut self, link: ConnectionInfo) {
        self.client = Arc::new(Client::new(self.id, link, Millis(0), Box::new(|| {})));
        self.client.set_flag(ClientFlags::MASTER, self.origin == CommandOrigin::Master);
    }

    /// Appends the queued messages to `out`.
    pub fn take_messages(&self, out: &mut Vec<u8>) {
        if self.subscriber {
            self.client.take_messages(out);
        }
    }

    /// Appends the queued messages to `out` unless they are long; long ones are left for [`Self::queue_messages`].
    pub(crate) fn take_short_messages(&self, out: &mut Vec<u8>) {
        if self.subscriber {
            self.client.take_short_messages(out);
        }
    }

    /// Moves the queued messages to the end of `output`.
    #[inline]
    pub fn queue_messages(&self, output: &mut ByteQueue) {
        if self.subscriber {
            self.client.queue_messages(output);
        }
    }

    /// Returns whether the running command's reply is suppressed.
    pub(crate) fn is_mute(&self) -> bool {
        matches!(self.mute, ReplySuppression::Current | ReplySuppression::All)
    }

    /// Returns the waiter of the blocked command, if any.
    #[must_use]
    pub fn waiter(&self) -> Option<Arc<Waiter>> {
        self.waiting.clone()
    }

    /// Returns whether no special handling is needed between commands. Only commands without keys change that.
    pub(crate) fn is_plain(&self) -> bool {
        self.unrestricted
            && self.background != BackgroundMode::OnBackgroundWorker
            && !(self.asking || self.closing || self.subscriber || self.tracks)
            && self.mute == ReplySuppression::None
            && self.transaction.is_none()
    }

    /// Returns whether only subscription commands are allowed: in RESP2 messages cannot be told from other replies.
    #[must_use]
    pub fn is_subscriber_only(&self) -> bool {
        self.subscriber
            && self.protocol == Protocol::Resp2
            && self.client.flags().contains(ClientFlags::PUBSUB)
    }

    /// Returns whether reads do not update usage data (CLIENT NO-TOUCH).
    pub(crate) fn no_touch(&self) -> bool {
        self.client.flags().contains(ClientFlags::NO_TOUCH)
    }

    /// Starts a transaction (MULTI).
    pub fn begin_transaction(&mut self) {
        self.transaction = Some(Box::new(Transaction::new_in(self.db)));
        self.client.set_flag(ClientFlags::MULTI, true);
        self.client.queued_commands.store(0, Ordering::Relaxed);
    }

    /// Publishes the end of a transaction to other threads.
    pub(crate) fn leave_transaction(&self) {
        self.client.set_flag(ClientFlags::MULTI, false);
        self.client.queued_commands.store(-1, Ordering::Relaxed);
        self.client.queued_bytes.store(0, Ordering::Relaxed);
    }

    /// Returns the database of the next command, taking a queued SELECT into account.
    pub(crate) fn db_of_next(&self) -> u16 {
        self.transaction.as_ref().map_or(self.db, |transaction| transaction.db)
    }

    /// Returns whether the client is between MULTI and EXEC or DISCARD.
    #[must_use]
    pub fn in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// Marks the session's requests as running.
    #[inline]
    pub(crate) fn begin_turn(&self) {
        self.client.running_requests.begin();
    }

    /// Marks the session's requests as not running.
    #[inline]
    pub(crate) fn end_turn(&self) {
        self.client.running_requests.end();
    }

    /// Publishes the last command and the session's state to other threads.
    pub fn publish(&self, now: Millis, last_command: usize) {
        let client = &self.client;
        client.last_command.store(last_command, Ordering::Relaxed);
        client.last_active.store(now.0, Ordering::Relaxed);
        client.db.store(self.db, Ordering::Relaxed);
    }

    /// Sets the READONLY mode.
    pub fn set_readonly(&mut self, readonly: bool) {
        self.readonly = readonly;
        self.client.set_flag(ClientFlags::READONLY, readonly);
    }

    /// Sets CLIENT NO-EVICT.
    pub fn set_no_evict(&mut self, on: bool) {
        self.client.set_flag(ClientFlags::NO_EVICT, on);
    }

    /// Sets CLIENT NO-TOUCH.
    pub fn set_no_touch(&mut self, on: bool) {
        self.client.set_flag(ClientFlags::NO_TOUCH, on);
    }

    /// Sets CLIENT IMPORT-SOURCE.
    pub fn set_imports(&mut self, on: bool) {
        self.imports = on;
        self.client.set_flag(ClientFlags::IMPORT_SOURCE, on);
    }

    /// Sets the REDIRECT capability of CLIENT CAPA.
    pub fn set_knows_redirect(&mut self, knows: bool) {
        self.knows_redirect = knows;
        self.client.knows_redirect.store(knows, Ordering::Relaxed);
    }

    /// Sets the mode of SCRIPT DEBUG.
    pub fn set_debug_mode(&mut self, mode: Option<DebugMode>) {
        self.debug_mode = mode;
    }

    /// Returns whether the next EVAL runs in a debugging session.
    #[must_use]
    pub fn is_debugging(&self) -> bool {
        self.debug_mode.is_some()
    }

    /// Sets the protocol version (HELLO).
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
        self.client.set_protocol(protocol);
    }
}

//! The engine's state of one client connection.
//!
//! A [`Session`] has a part for each concern, with private fields: who the client is ([`Identity`]) and what it may do
//! ([`Rights`]), how the server replies to it ([`ProtocolSettings`]), which command is unfinished ([`SessionState`]),
//! and where its commands run ([`Scheduling`]).
//!
//! Subscriptions and MONITOR are not part of [`SessionState`], because they can coexist with the states there: as in
//! Valkey, a client that runs MONITOR may send MULTI, and a subscriber that speaks RESP3 may block. Also, other threads
//! end subscriptions when a slot moves away with its shard channels. [`Session::listener_state`] says what
//! subscriptions and MONITOR forbid the next command.

mod protocol;
mod rights;
mod scheduling;
mod state;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use clock::Millis;
use resp::{ByteQueue, Protocol};
use slot_routing::ReplOffset;

use crate::clients::{Client, ClientFlags, ConnectionInfo};
use crate::log_progress::LogProgress;
use crate::transaction::WatchState;
pub use protocol::ReplySuppression;
use protocol::{ProtocolSettings, PushMode};
use rights::Rights;
pub use scheduling::BackgroundMode;
use scheduling::Scheduling;
use state::SessionState;

/// The origin of a session's commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CommandOrigin {
    /// A client's own connection.
    #[default]
    Client,
    /// The master's replication stream: it bypasses the checks for clients, sees expired keys (the master decides on
    /// expiry), and is not logged as this node's own changes.
    Master,
    /// The source of a slot import. Its commands apply like a master's, but this node logs them. They wait during
    /// pauses, and the import ends when this node is no longer a master.
    SlotMigrationSource,
}

impl CommandOrigin {
    /// Returns whether the commands come from another node's log and apply without checks.
    #[must_use]
    pub fn is_stream(self) -> bool {
        match self {
            Self::Client => false,
            Self::Master | Self::SlotMigrationSource => true,
        }
    }

    /// Returns whether this node logs the changes as its own.
    pub(crate) fn is_logged(self) -> bool {
        match self {
            Self::Client | Self::SlotMigrationSource => true,
            Self::Master => false,
        }
    }
}

/// The mode of SCRIPT DEBUG for the next script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugMode {
    /// The script works on copied data, which is discarded at the end.
    CopiedData,
    /// The script works on the real data (SYNC).
    RealData,
}

/// Who the client is. The id is also in [`Client`], but is copied here because every write reads it.
#[derive(Debug)]
struct Identity {
    id: u64,
    origin: CommandOrigin,
    /// The part of the client's state that is visible to other threads.
    client: Arc<Client>,
}

/// Settings that change only the next command.
#[derive(Debug, Default)]
struct NextCommandSettings {
    /// Set by ASKING: the next command may access a slot that is being imported.
    asking: bool,
    /// Set by SCRIPT DEBUG: the next EVAL runs in a debugging session.
    debug_mode: Option<DebugMode>,
}

#[derive(Debug)]
struct BatchReplies {
    /// Maximum size of pending replies in bytes; beyond it the client is closed.
    limit: usize,
    /// Length of the reply buffer at the start of the batch, where the batch's replies begin.
    start: usize,
}

/// What subscriptions and MONITOR forbid the client's commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenerState {
    /// Subscriptions and MONITOR forbid nothing.
    Unrestricted,
    /// The client has subscriptions and speaks RESP2, in which messages look like other replies. Only commands about
    /// subscriptions are allowed.
    SubscriberOnly,
    /// The client runs MONITOR and may not access keys.
    Monitor,
}

/// The engine's state of one client connection or replication stream.
#[derive(Debug)]
pub struct Session {
    identity: Identity,
    rights: Rights,
    protocol: ProtocolSettings,
    state: SessionState,
    next_command: NextCommandSettings,
    /// Whether the connection closes after its pending replies.
    is_closing: bool,
    /// The selected database.
    db: u16,
    batch_replies: BatchReplies,
    scheduling: Scheduling,
    progress: LogProgress,
    watch_state: WatchState,
}

impl Session {
    /// Creates a session without a registered client, for replication streams and tests.
    #[must_use]
    pub fn new(id: u64, origin: CommandOrigin, authenticated: bool) -> Self {
        let client = Client::new(id, ConnectionInfo::default(), Millis(0), Box::new(|| {}));
        Self::for_client(Arc::new(client), origin, authenticated)
    }

    /// Creates the session of a registered client ([`crate::Clients::connect`]).
    #[must_use]
    pub fn for_client(client: Arc<Client>, origin: CommandOrigin, authenticated: bool) -> Self {
        client.set_flag(ClientFlags::MASTER, origin == CommandOrigin::Master);
        Self {
            identity: Identity { id: client.id, origin, client },
            rights: Rights::new(authenticated),
            protocol: ProtocolSettings::default(),
            state: SessionState::default(),
            next_command: NextCommandSettings::default(),
            is_closing: false,
            db: 0,
            batch_replies: BatchReplies { limit: usize::MAX, start: 0 },
            scheduling: Scheduling::default(),
            progress: LogProgress::default(),
            watch_state: WatchState::default(),
        }
    }

    /// Creates another session of the same client, with the same rights and READONLY mode, in which a debugged script
    /// runs.
    pub(crate) fn for_debugger(&self) -> Self {
        let mut own = Self::for_client(self.client().clone(), CommandOrigin::Client, self.is_authenticated());
        own.db = self.db;
        own.rights = self.rights.clone();
        own.protocol.version = self.protocol.version;
        own.protocol.is_readonly = self.protocol.is_readonly;
        own
    }

    /// Sets the connection info that MONITOR shows, for sessions without a registered client.
    pub fn set_connection_info(&mut self, connection: ConnectionInfo) {
        self.identity.client = Arc::new(Client::new(self.id(), connection, Millis(0), Box::new(|| {})));
        self.client().set_flag(ClientFlags::MASTER, self.origin() == CommandOrigin::Master);
    }

    /// Returns the client's id.
    #[must_use]
    #[inline(always)]
    pub fn id(&self) -> u64 {
        self.identity.id
    }

    /// Returns the origin of the commands.
    #[must_use]
    #[inline(always)]
    pub fn origin(&self) -> CommandOrigin {
        self.identity.origin
    }

    /// Returns the part of the client's state that other threads see.
    #[must_use]
    #[inline(always)]
    pub fn client(&self) -> &Arc<Client> {
        &self.identity.client
    }

    /// Returns the selected database.
    #[must_use]
    #[inline(always)]
    pub fn db(&self) -> u16 {
        self.db
    }

    /// Selects the database of the commands that follow (SELECT).
    #[inline]
    pub fn select(&mut self, db: u16) {
        self.db = db;
    }

    /// Returns the database of the next command, taking a queued SELECT into account.
    pub(crate) fn next_command_db(&self) -> u16 {
        self.transaction().map_or(self.db, |transaction| transaction.db)
    }

    /// Appends the queued messages to `out`.
    pub fn take_messages(&self, out: &mut Vec<u8>) {
        if self.receives_messages() {
            self.client().take_messages(out);
        }
    }

    /// Appends the queued messages to `out` unless they are long; long ones are left for [`Self::move_messages_to`].
    pub(crate) fn take_short_messages(&self, out: &mut Vec<u8>) {
        if self.receives_messages() {
            self.client().take_short_messages(out);
        }
    }

    /// Moves the queued messages to the end of `output`.
    #[inline]
    pub fn move_messages_to(&self, output: &mut ByteQueue) {
        if self.receives_messages() {
            self.client().move_messages_to(output);
        }
    }

    /// Returns whether messages may be queued: from the first subscription until RESET.
    #[inline]
    pub(crate) fn receives_messages(&self) -> bool {
        self.protocol.pushes != PushMode::None
    }

    /// Returns whether the keys that the client reads are recorded for tracking.
    #[inline(always)]
    pub(crate) fn tracks_reads(&self) -> bool {
        self.protocol.pushes == PushMode::MessagesAndReadKeys
    }

    /// Starts to receive messages: subscriptions or MONITOR.
    pub(crate) fn start_receiving_messages(&mut self) {
        self.protocol.pushes = self.protocol.pushes.with_messages();
    }

    /// Sets whether the keys that the client reads are recorded. Messages that are queued already are still delivered.
    pub(crate) fn set_tracks_reads(&mut self, enabled: bool) {
        self.protocol.pushes = self.protocol.pushes.with_read_keys(enabled);
    }

    /// Returns whether the session needs no special handling between commands. Commands with keys do not change this.
    #[inline]
    pub(crate) fn needs_no_special_handling(&self) -> bool {
        self.rights.is_unrestricted()
            && !self.background().is_on_slow_worker()
            && !(self.next_command.asking || self.is_closing)
            && self.protocol.pushes == PushMode::None
            && self.protocol.suppression == ReplySuppression::None
            && matches!(self.state, SessionState::Normal)
    }

    /// Returns what the client's subscriptions and MONITOR forbid the next command.
    #[must_use]
    pub(crate) fn listener_state(&self) -> ListenerState {
        if self.is_subscriber_only() {
            ListenerState::SubscriberOnly
        } else if self.client().flags().contains(ClientFlags::MONITOR) {
            ListenerState::Monitor
        } else {
            ListenerState::Unrestricted
        }
    }

    /// Returns whether only subscription commands are allowed. In RESP2, messages look like other replies.
    #[must_use]
    pub fn is_subscriber_only(&self) -> bool {
        self.receives_messages()
            && self.protocol() == Protocol::Resp2
            && self.client().flags().contains(ClientFlags::PUBSUB)
    }

    /// Returns whether reads do not update usage data (CLIENT NO-TOUCH).
    #[inline]
    pub(crate) fn is_no_touch(&self) -> bool {
        self.client().flags().contains(ClientFlags::NO_TOUCH)
    }

    /// Returns whether the connection closes after its pending replies.
    #[must_use]
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Closes the connection after its pending replies.
    pub fn close_after_reply(&mut self) {
        self.is_closing = true;
    }

    /// Returns the keys that the client watches.
    pub(crate) fn watch_state(&self) -> &WatchState {
        &self.watch_state
    }

    /// Returns the keys that the client watches, to change them.
    pub(crate) fn watch_state_mut(&mut self) -> &mut WatchState {
        &mut self.watch_state
    }

    /// Returns whether ASKING preceded the command, and clears the flag.
    pub(crate) fn take_asking(&mut self) -> bool {
        std::mem::take(&mut self.next_command.asking)
    }

    /// Returns whether the next command may access a slot that is being imported.
    pub(crate) fn is_asking(&self) -> bool {
        self.next_command.asking
    }

    /// Lets the next command access a slot that is being imported; called for ASKING.
    pub fn set_asking(&mut self) {
        self.next_command.asking = true;
    }

    /// Sets the mode of SCRIPT DEBUG.
    pub fn set_debug_mode(&mut self, mode: Option<DebugMode>) {
        self.next_command.debug_mode = mode;
    }

    /// Returns and clears the mode of SCRIPT DEBUG, which applies to one script.
    pub(crate) fn take_debug_mode(&mut self) -> Option<DebugMode> {
        self.next_command.debug_mode.take()
    }

    /// Returns whether the next EVAL runs in a debugging session.
    #[must_use]
    pub fn is_debugging(&self) -> bool {
        self.next_command.debug_mode.is_some()
    }

    /// Starts a batch whose replies begin at `start` in the reply buffer.
    #[inline]
    pub(crate) fn begin_replies(&mut self, start: usize) {
        self.batch_replies.start = start;
    }

    /// Returns where the replies of the running batch begin in the reply buffer.
    pub(crate) fn replies_start(&self) -> usize {
        self.batch_replies.start
    }

    /// Returns the maximum size of pending replies in bytes.
    #[inline]
    pub(crate) fn reply_limit(&self) -> usize {
        self.batch_replies.limit
    }

    /// Sets the maximum size of pending replies in bytes. A client that exceeds it is closed.
    #[inline]
    pub fn set_reply_limit(&mut self, limit: usize) {
        self.batch_replies.limit = limit;
    }

    /// Returns the replication offset after the client's last write, which WAIT waits for.
    #[must_use]
    #[inline]
    pub fn last_write(&self) -> ReplOffset {
        self.progress.last_write
    }

    /// Returns the replication offset after the last change of data, for which the reply may have to wait; published
    /// messages are excluded.
    #[must_use]
    #[inline]
    pub fn last_change(&self) -> ReplOffset {
        self.progress.last_change
    }

    /// Returns the number of times that the client's changes were passed to the log.
    #[must_use]
    #[inline]
    pub fn change_count(&self) -> u64 {
        self.progress.change_count
    }

    /// Records a write that ends at this replication offset, and whether it changes data.
    #[inline]
    pub fn record_write(&mut self, end: ReplOffset, changes_data: bool) {
        self.progress.last_write = end;
        if changes_data {
            self.progress.last_change = end;
            self.progress.change_count += 1;
        }
    }

    /// Returns the log offsets of the client's writes.
    pub(crate) fn progress(&self) -> LogProgress {
        self.progress
    }

    /// Adopts the log offsets of what another thread wrote for the client.
    pub(crate) fn merge_progress(&mut self, other: LogProgress) {
        self.progress.last_write = self.progress.last_write.max(other.last_write);
        if other.last_change > ReplOffset(0) {
            // Do not take the maximum: the client's own offset may belong to a replication history that has ended.
            self.progress.last_change = other.last_change;
            self.progress.change_count += 1;
        }
    }

    /// Marks the session's requests as running.
    #[inline]
    pub(crate) fn begin_requests(&self) {
        self.client().running_requests.begin();
    }

    /// Marks the session's requests as not running.
    #[inline]
    pub(crate) fn end_requests(&self) {
        self.client().running_requests.end();
    }

    /// Publishes the last command and the session's state, for CLIENT LIST and other threads.
    pub fn publish(&self, now: Millis, last_command: usize) {
        let client = self.client();
        client.last_command.store(last_command, Ordering::Relaxed);
        client.last_active.store(now.0, Ordering::Relaxed);
        client.db.store(self.db, Ordering::Relaxed);
    }

    /// Excludes the client from client eviction, or includes it again (CLIENT NO-EVICT).
    pub fn set_no_evict(&mut self, enabled: bool) {
        self.client().set_flag(ClientFlags::NO_EVICT, enabled);
    }

    /// Sets whether the client's reads leave usage data unchanged (CLIENT NO-TOUCH).
    pub fn set_no_touch(&mut self, enabled: bool) {
        self.client().set_flag(ClientFlags::NO_TOUCH, enabled);
    }

    /// Returns the session to its state after connecting (RESET), except for the transaction, the rights and the
    /// messages that are queued already.
    pub(crate) fn reset_settings(&mut self) {
        self.protocol.pushes = PushMode::None;
        self.protocol.suppression = ReplySuppression::None;
        self.db = 0;
        self.next_command.asking = false;
        self.set_readonly(false);
        self.set_supports_redirect(false);
        self.set_protocol(Protocol::Resp2);
        self.set_no_evict(false);
        self.set_no_touch(false);
        self.set_import_source(false);
        self.client().names.lock().name.clear();
    }
}

#[cfg(test)]
mod tests;

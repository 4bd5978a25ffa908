//! The registry of connections and the state that other threads may access: CLIENT LIST, KILL, UNBLOCK.
//!
//! A connection's thread owns its [`crate::Session`]; state shared with other threads is in its [`Client`], mostly as
//! atomics. The session publishes its state there at the end of each batch ([`crate::Dispatcher::run`]). To act on
//! another connection, a thread sets a flag and wakes the connection's task, which then checks [`Client::is_killed`]
//! and [`Client::take_unblock_reason`].

mod inbox;
mod memory;
mod running;
mod tracking;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use acl::CommandCatalogue;
use bitflags::bitflags;
use clock::Millis;
use parking_lot::{Mutex, RwLock};
use resp::Protocol;
use slot_routing::ClientTransport;

use crate::error::truncate_at_nul;
use crate::stats::add;
pub use inbox::ChannelKind;
use inbox::Inbox;
use memory::{ClientMemoryTotals, CountedMemory};
use running::RunningRequests;
pub use tracking::{ClientTracking, TrackingMode};

bitflags! {
    /// Kind and state of a connection; CLIENT LIST shows each flag as a letter.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ClientFlags: u32 {
        /// The connection is a replica of this server.
        const REPLICA = 1;
        /// The connection is the link to this server's master.
        const MASTER = 1 << 1;
        /// The client has subscriptions.
        const PUBSUB = 1 << 2;
        /// The client is in a transaction (after MULTI).
        const MULTI = 1 << 3;
        /// The client waits in a blocking command such as BLPOP.
        const BLOCKED = 1 << 4;
        /// A watched key has changed, so EXEC will fail.
        const DIRTY = 1 << 5;
        /// The connection is closed once its reply has been sent.
        const CLOSE_AFTER_REPLY = 1 << 6;
        /// The client is connected over a unix socket.
        const UNIX_SOCKET = 1 << 7;
        /// The client has sent READONLY, so that it may read from a replica.
        const READONLY = 1 << 8;
        /// The client is excluded from client eviction (CLIENT NO-EVICT).
        const NO_EVICT = 1 << 9;
        /// The client's reads do not update the keys' LRU or LFU data.
        const NO_TOUCH = 1 << 10;
        /// The client runs MONITOR.
        const MONITOR = 1 << 11;
        /// The client receives invalidations of keys that it may have cached (CLIENT TRACKING).
        const TRACKING = 1 << 12;
        /// The client that should receive this client's invalidations (REDIRECT) has disconnected.
        const BROKEN_REDIRECT = 1 << 13;
        /// The client receives invalidations by key prefix (CLIENT TRACKING BCAST).
        const BROADCAST = 1 << 14;
        /// The client imports data from another server (CLIENT IMPORT-SOURCE).
        const IMPORT_SOURCE = 1 << 15;
        /// The connection would be closed if it were not protected (DEBUG PROTECT-CLIENT).
        const CLOSE_ASAP = 1 << 16;
    }
}

impl ClientFlags {
    /// Finds the flag that CLIENT LIST shows as this letter.
    pub fn from_letter(letter: u8) -> Option<Self> {
        FLAG_LETTERS.iter().find(|(_, known)| *known == char::from(letter)).map(|(flag, _)| *flag)
    }
}

const FLAG_LETTERS: &[(ClientFlags, char)] = &[
    (ClientFlags::MONITOR, 'O'),
    (ClientFlags::REPLICA, 'S'),
    (ClientFlags::MASTER, 'M'),
    (ClientFlags::PUBSUB, 'P'),
    (ClientFlags::MULTI, 'x'),
    (ClientFlags::BLOCKED, 'b'),
    (ClientFlags::DIRTY, 'd'),
    (ClientFlags::CLOSE_AFTER_REPLY, 'c'),
    (ClientFlags::TRACKING, 't'),
    (ClientFlags::BROKEN_REDIRECT, 'R'),
    (ClientFlags::BROADCAST, 'B'),
    (ClientFlags::CLOSE_ASAP, 'A'),
    (ClientFlags::UNIX_SOCKET, 'U'),
    (ClientFlags::READONLY, 'r'),
    (ClientFlags::NO_EVICT, 'e'),
    (ClientFlags::NO_TOUCH, 'T'),
    (ClientFlags::IMPORT_SOURCE, 'I'),
];

/// Kinds of connections in CLIENT LIST and CLIENT KILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientKind {
    /// A client of no other kind.
    Normal,
    /// A replica that receives this server's replication stream.
    Replica,
    /// The link to the master of this server.
    Master,
    /// A client that is subscribed to channels or patterns.
    PubSub,
}

impl ClientKind {
    /// Parses the argument of `CLIENT LIST TYPE`; `None` if it names no kind.
    pub fn parse(name: &[u8]) -> Option<Self> {
        let kinds = [
            ("normal", Self::Normal),
            ("slave", Self::Replica),
            ("replica", Self::Replica),
            ("master", Self::Master),
            ("primary", Self::Master),
            ("pubsub", Self::PubSub),
        ];
        let found = kinds.iter().find(|(word, _)| name.eq_ignore_ascii_case(word.as_bytes()));
        found.map(|(_, kind)| *kind)
    }
}

/// Names that a client sets for itself and its library.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientNames {
    /// The name set by CLIENT SETNAME; empty if unset.
    pub name: Vec<u8>,
    /// The client library's name, set by CLIENT SETINFO LIB-NAME; empty if unset.
    pub library: Vec<u8>,
    /// The client library's version, set by CLIENT SETINFO LIB-VER; empty if unset.
    pub version: Vec<u8>,
}

/// The endpoints of a connection, known when the connection is accepted.
#[derive(Debug, Clone, Default)]
pub struct ConnectionInfo {
    /// The peer's address: `ip:port`, or `path:0` of a unix socket.
    pub address: String,
    /// The server's side of the connection, in the format of CLIENT LIST.
    pub local_address: String,
    /// File descriptor of the socket, which CLIENT LIST shows.
    pub descriptor: i32,
    /// Whether the client is connected over a unix socket.
    pub unix_socket: bool,
    /// The transport between client and node, such as TCP or TLS.
    pub transport: ClientTransport,
    /// Whether the client runs on this host.
    pub is_local: bool,
}

/// Wakes a connection's task so that it checks its [`Client`].
pub type WakeCallback = Box<dyn Fn() + Send + Sync>;

/// Size of a client's reply buffer in Redis, in bytes.
const REPLY_BUFFER_BYTES: usize = 16 << 10;

/// The client's block state while it is not in a blocking command. The other states are [`BLOCKED`] and the values of
/// [`UnblockReason`].
const NOT_BLOCKED: u8 = 0;
const BLOCKED: u8 = 1;

/// Why a blocking command was unblocked before a key became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum UnblockReason {
    /// The timeout expired, or CLIENT UNBLOCK was called with TIMEOUT.
    Timeout = 2,
    /// CLIENT UNBLOCK was called with ERROR.
    Error,
    /// This node became a replica: the client gets an error and is disconnected.
    RoleChanged,
    /// The keys may have moved: the command runs again and is redirected.
    Retry,
}

impl UnblockReason {
    /// Returns the error for the client, if this reason is an error.
    #[must_use]
    pub fn error(self) -> Option<&'static str> {
        match self {
            Self::Timeout | Self::Retry => None,
            Self::Error => Some("UNBLOCKED client unblocked via CLIENT UNBLOCK"),
            Self::RoleChanged => Some(
                "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
            ),
        }
    }
}

/// Why a client is closed without its pending replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ForcedClose {
    /// The client's pending output exceeds `client-output-buffer-limit`.
    OutputLimit = 1,
    /// All clients together exceed `maxmemory-clients`.
    Evicted = 2,
    /// This node was demoted, and the client may have written data that the new master does not have.
    HistoryEnded = 3,
}

/// The state of a connection that other threads may access.
pub struct Client {
    /// Unique id, never reused while the server runs.
    pub id: u64,
    /// The endpoints, as CLIENT LIST shows them.
    pub connection: ConnectionInfo,
    /// Time at which the connection was accepted.
    pub connected_at: Millis,
    /// Set by CLIENT SETNAME and CLIENT SETINFO.
    pub names: Mutex<ClientNames>,
    /// Name of the authenticated user, or of the default user.
    pub user: Mutex<Vec<u8>>,
    pub(crate) flags: AtomicU32,
    pub(crate) db: AtomicU16,
    pub(crate) uses_resp3: AtomicBool,
    /// Number of commands queued by MULTI, or -1 outside of a transaction.
    pub(crate) queued_commands: AtomicI32,
    pub(crate) channel_count: AtomicU32,
    pub(crate) pattern_count: AtomicU32,
    pub(crate) shard_channel_count: AtomicU32,
    pub(crate) watched_key_count: AtomicU32,
    /// Subscriptions and queued messages; `None` if the client never subscribed.
    pub(crate) inbox: Mutex<Option<Box<Inbox>>>,
    /// The [`ForcedClose`] reason as a number, or 0.
    forced_close_reason: AtomicU8,
    /// The tracking mode, if CLIENT TRACKING is on.
    pub tracking: Mutex<Option<ClientTracking>>,
    /// Index of the last command in the command table, or `usize::MAX` before the first command.
    pub(crate) last_command: AtomicUsize,
    pub(crate) last_active: AtomicI64,
    /// Bytes that were read but not run yet; updated by the connection's task.
    pub input_bytes: AtomicUsize,
    /// Unused input buffer space plus the parser state of an incomplete request, in bytes; updated by the connection's
    /// task.
    pub spare_input_bytes: AtomicUsize,
    /// Worker time spent on this client in nanoseconds; only the connection's own worker writes it.
    worker_nanos: AtomicU64,
    /// The value of `worker_nanos` at the last [`Client::take_worker_nanos`].
    reported_worker_nanos: AtomicU64,
    /// Memory used by watched keys and subscriptions, in bytes.
    pub(crate) watched_bytes: AtomicUsize,
    pub(crate) subscription_bytes: AtomicUsize,
    /// Memory used by pending output, in bytes; updated by the connection's task.
    pub output_bytes: AtomicUsize,
    /// Bytes of pending output; updated by the connection's task.
    pub unsent_bytes: AtomicUsize,
    pub(crate) counted_memory: CountedMemory,
    /// Time since which pending output exceeds the soft limit, in milliseconds of the wall clock; 0 while the output is
    /// within the limit. Updated by the connection's task.
    pub over_soft_limit_since: AtomicI64,
    /// Memory used by queued commands (MULTI), in bytes.
    pub(crate) queued_bytes: AtomicUsize,
    /// Number of bytes received. Only one thread at a time writes this total and the next two.
    net_input_bytes: AtomicU64,
    net_output_bytes: AtomicU64,
    commands_processed: AtomicU64,
    /// Whether the client announced CLIENT CAPA REDIRECT.
    pub(crate) supports_redirect: AtomicBool,
    is_killed: AtomicBool,
    /// Whether [`Client::kill`] leaves the connection open and only stops serving it (DEBUG PROTECT-CLIENT).
    is_protected: AtomicBool,
    /// Whether all pending output counts as reply list (DEBUG CLIENT-ENFORCE-REPLY-LIST).
    uses_reply_list: AtomicBool,
    in_background: AtomicBool,
    /// Whether requests of this client are running. Read by threads that revoke permissions or close the connection.
    pub(crate) running_requests: RunningRequests,
    block_state: AtomicU8,
    wake_callback: WakeCallback,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id).field("link", &self.connection).finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(id: u64, connection: ConnectionInfo, now: Millis, wake: WakeCallback) -> Self {
        Self {
            id,
            connection,
            connected_at: now,
            names: Mutex::default(),
            user: Mutex::new(acl::DEFAULT_USER_NAME.to_vec()),
            flags: AtomicU32::new(0),
            db: AtomicU16::new(0),
            uses_resp3: AtomicBool::new(false),
            queued_commands: AtomicI32::new(-1),
            channel_count: AtomicU32::new(0),
            pattern_count: AtomicU32::new(0),
            shard_channel_count: AtomicU32::new(0),
            watched_key_count: AtomicU32::new(0),
            inbox: Mutex::default(),
            forced_close_reason: AtomicU8::new(0),
            counted_memory: CountedMemory::default(),
            unsent_bytes: AtomicUsize::new(0),
            tracking: Mutex::default(),
            last_command: AtomicUsize::new(usize::MAX),
            last_active: AtomicI64::new(now.0),
            input_bytes: AtomicUsize::new(0),
            spare_input_bytes: AtomicUsize::new(0),
            worker_nanos: AtomicU64::new(0),
            reported_worker_nanos: AtomicU64::new(0),
            watched_bytes: AtomicUsize::new(0),
            subscription_bytes: AtomicUsize::new(0),
            output_bytes: AtomicUsize::new(0),
            over_soft_limit_since: AtomicI64::new(0),
            queued_bytes: AtomicUsize::new(0),
            net_input_bytes: AtomicU64::new(0),
            net_output_bytes: AtomicU64::new(0),
            commands_processed: AtomicU64::new(0),
            supports_redirect: AtomicBool::new(false),
            is_killed: AtomicBool::new(false),
            is_protected: AtomicBool::new(false),
            uses_reply_list: AtomicBool::new(false),
            running_requests: RunningRequests::default(),
            block_state: AtomicU8::new(NOT_BLOCKED),
            in_background: AtomicBool::new(false),
            wake_callback: wake,
        }
    }

    /// Sets or clears a flag.
    pub fn set_flag(&self, flag: ClientFlags, is_set: bool) {
        if is_set {
            self.flags.fetch_or(flag.bits(), Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!flag.bits(), Ordering::Relaxed);
        }
    }

    /// Returns the flags that CLIENT LIST shows as letters.
    #[must_use]
    pub fn flags(&self) -> ClientFlags {
        ClientFlags::from_bits_truncate(self.flags.load(Ordering::Relaxed))
    }

    /// Returns the kind that CLIENT LIST TYPE filters by, derived from the flags.
    #[must_use]
    pub fn kind(&self) -> ClientKind {
        let flags = self.flags();
        if flags.contains(ClientFlags::MASTER) {
            ClientKind::Master
        } else if flags.contains(ClientFlags::REPLICA) && !flags.contains(ClientFlags::MONITOR) {
            ClientKind::Replica
        } else if flags.contains(ClientFlags::PUBSUB) {
            ClientKind::PubSub
        } else {
            ClientKind::Normal
        }
    }

    /// Returns whether CLIENT LIST shows any letter for this client.
    pub fn has_flag_letter(&self) -> bool {
        FLAG_LETTERS.iter().any(|(flag, _)| self.flags().contains(*flag))
    }

    /// Returns whether the client announced CLIENT CAPA REDIRECT.
    pub fn supports_redirect(&self) -> bool {
        self.supports_redirect.load(Ordering::Relaxed)
    }

    /// Returns the database selected when the client's last batch ended.
    pub fn database(&self) -> u16 {
        self.db.load(Ordering::Relaxed)
    }

    /// Adds received bytes to `tot-net-in` of CLIENT LIST.
    pub fn count_input_bytes(&self, bytes: usize) {
        add(&self.net_input_bytes, bytes as u64);
    }

    /// Adds sent bytes to `tot-net-out` of CLIENT LIST.
    pub fn count_output_bytes(&self, bytes: usize) {
        add(&self.net_output_bytes, bytes as u64);
    }

    /// Counts an executed command, including those in transactions and scripts, but not refused ones.
    #[inline(always)]
    pub(crate) fn count_command(&self) {
        add(&self.commands_processed, 1);
    }

    /// Counts commands that ran on behalf of this client outside of the dispatcher.
    pub fn count_commands(&self, count: usize) {
        add(&self.commands_processed, count as u64);
    }

    /// Returns the memory used by queued commands (MULTI), in bytes.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes.load(Ordering::Relaxed)
    }

    /// Adds worker time in nanoseconds; called only by the connection's own worker.
    #[inline]
    pub fn count_worker_nanos(&self, nanos: u64) {
        add(&self.worker_nanos, nanos);
    }

    /// Returns the worker time in nanoseconds since the last call; only one thread may call it.
    pub fn take_worker_nanos(&self) -> u64 {
        let all = self.worker_nanos.load(Ordering::Relaxed);
        all.saturating_sub(self.reported_worker_nanos.swap(all, Ordering::Relaxed))
    }

    /// Records that the connection moves to or from a background worker at `now`, which resets its idle time.
    pub fn set_in_background(&self, in_background: bool, now: Millis) {
        self.last_active.store(now.0, Ordering::Relaxed);
        self.in_background.store(in_background, Ordering::Relaxed);
    }

    /// Returns whether the connection is on a background worker or on its way there.
    #[must_use]
    pub fn is_in_background(&self) -> bool {
        self.in_background.load(Ordering::Relaxed)
    }

    /// Returns the milliseconds since the client last sent a request.
    #[must_use]
    pub fn idle_millis(&self, now: Millis) -> i64 {
        now.0.saturating_sub(self.last_active.load(Ordering::Relaxed)).max(0)
    }

    /// Returns the id of the client that receives the invalidations: -1 without tracking, 0 without redirection.
    pub fn redirect_target(&self) -> i64 {
        match &*self.tracking.lock() {
            None => -1,
            Some(tracking) => tracking.redirect_to.map_or(0, |id| id as i64),
        }
    }

    /// Sets the subscription counts, for a server that stores its subscriptions outside of [`crate::PubSub`].
    pub fn set_subscriptions(&self, channels: usize, patterns: usize) {
        self.channel_count.store(channels as u32, Ordering::Relaxed);
        self.pattern_count.store(patterns as u32, Ordering::Relaxed);
        self.set_flag(ClientFlags::PUBSUB, channels + patterns > 0);
    }

    /// Wakes the connection's task so that it checks the flags in this struct.
    pub fn wake(&self) {
        (self.wake_callback)();
    }

    /// Requests that the connection closes. A protected client stays connected, and is no longer served.
    pub fn kill(&self) {
        if self.is_protected.load(Ordering::Acquire) {
            self.set_flag(ClientFlags::CLOSE_ASAP, true);
        } else {
            self.is_killed.store(true, Ordering::Release);
        }
        self.wake();
    }

    /// Keeps the client connected even if it is killed (DEBUG PROTECT-CLIENT).
    pub fn protect(&self) {
        self.is_protected.store(true, Ordering::Release);
    }

    /// Returns whether the client was killed while it was protected.
    #[must_use]
    pub fn is_close_deferred(&self) -> bool {
        self.flags().contains(ClientFlags::CLOSE_ASAP)
    }

    /// Closes the connection because its pending output exceeds the limit.
    pub fn close_for_output_limit(&self) {
        self.force_close(ForcedClose::OutputLimit);
    }

    /// Closes the connection because this node became a replica before the client's write was committed.
    pub fn close_for_ended_history(&self) {
        self.force_close(ForcedClose::HistoryEnded);
    }

    /// Closes the connection without sending its pending output.
    pub(crate) fn force_close(&self, reason: ForcedClose) {
        // If the client is closed for several reasons, keep the first one.
        let _ =
            self.forced_close_reason.compare_exchange(0, reason as u8, Ordering::AcqRel, Ordering::Relaxed);
        self.kill();
    }

    /// Returns whether the client was closed for exceeding its output limit.
    #[must_use]
    pub fn exceeded_output_limit(&self) -> bool {
        self.forced_close_reason.load(Ordering::Acquire) == ForcedClose::OutputLimit as u8
    }

    /// Returns whether the client was evicted (`maxmemory-clients`).
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.forced_close_reason.load(Ordering::Acquire) == ForcedClose::Evicted as u8
    }

    /// Returns whether pending output is discarded because the client was closed by force.
    #[must_use]
    pub fn discards_output(&self) -> bool {
        self.forced_close_reason.load(Ordering::Acquire) != 0
    }

    /// Returns the bytes that count against the output limit: pending output plus its buffers' overhead.
    pub(crate) fn charged_output_bytes(&self) -> usize {
        let memory = self.output_bytes.load(Ordering::Relaxed);
        resp::charged_bytes(self.unsent_bytes.load(Ordering::Relaxed), memory)
    }

    /// Returns whether the connection must close, by CLIENT KILL or for another reason.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::Acquire)
    }

    /// Sets whether the client is in a blocking command that other threads may unblock.
    pub fn set_blocked(&self, blocked: bool) {
        self.set_flag(ClientFlags::BLOCKED, blocked);
        self.block_state.store(if blocked { BLOCKED } else { NOT_BLOCKED }, Ordering::Release);
    }

    /// Returns whether the client is blocked and nothing has unblocked it yet.
    pub(crate) fn is_blocked(&self) -> bool {
        self.block_state.load(Ordering::Acquire) == BLOCKED
    }

    /// Unblocks a blocked client; returns whether it was blocked.
    pub fn unblock(&self, reason: UnblockReason) -> bool {
        let state = reason as u8;
        let done =
            self.block_state.compare_exchange(BLOCKED, state, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if done {
            self.set_flag(ClientFlags::BLOCKED, false);
            self.wake();
        }
        done
    }

    /// Takes the reason why the client was unblocked, if it was; afterwards the client is no longer blocked.
    #[must_use]
    pub fn take_unblock_reason(&self) -> Option<UnblockReason> {
        let state = self.block_state.load(Ordering::Acquire);
        let all =
            [UnblockReason::Timeout, UnblockReason::Error, UnblockReason::RoleChanged, UnblockReason::Retry];
        let how = all.into_iter().find(|how| *how as u8 == state)?;
        self.set_blocked(false);
        Some(how)
    }

    /// Returns the client's memory in bytes: its state, unprocessed input, queued commands, watched keys, subscriptions
    /// and pending output.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let parts = [
            &self.input_bytes,
            &self.spare_input_bytes,
            &self.queued_bytes,
            &self.watched_bytes,
            &self.subscription_bytes,
            &self.output_bytes,
            &self.counted_memory.reply_bytes,
            &self.counted_memory.inbox_bytes,
        ];
        size_of::<Self>() + parts.iter().map(|part| part.load(Ordering::Relaxed)).sum::<usize>()
    }

    /// Sets how many bytes of the replication stream are still to be sent to this replica.
    pub fn set_unsent_log_bytes(&self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.unsent_bytes.store(bytes, Ordering::Relaxed);
        self.output_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Formats the line of CLIENT LIST, without the line break.
    #[must_use]
    pub fn format_line(&self, now: Millis, commands: &CommandCatalogue) -> Vec<u8> {
        let seconds = |since: i64| now.0.saturating_sub(since).max(0) / 1000;
        let names = self.names.lock().clone();
        let letters = self.format_flags();
        let capa = if self.supports_redirect() { "r" } else { "" };
        let command = commands.name_at(self.last_command.load(Ordering::Relaxed));
        let input = self.input_bytes.load(Ordering::Relaxed);
        let (unsent, output) =
            (self.unsent_bytes.load(Ordering::Relaxed), self.output_bytes.load(Ordering::Relaxed));
        // Redis counts output that exceeds the client's buffer as a list of reply blocks. A replica has no such buffer:
        // its list holds the unsent part of the replication stream.
        let is_list_only = self.kind() == ClientKind::Replica || self.uses_reply_list.load(Ordering::Relaxed);
        let buffer = if is_list_only { 0 } else { REPLY_BUFFER_BYTES };
        let (buffered, listed) = (unsent.min(buffer), output.saturating_sub(buffer));
        let (nodes, events) = (listed.div_ceil(REPLY_BUFFER_BYTES), if unsent > 0 { "rw" } else { "r" });
        let mut line = format!(
            "id={} addr={} laddr={} fd={} name=",
            self.id, self.connection.address, self.connection.local_address, self.connection.descriptor
        )
        .into_bytes();
        line.extend_from_slice(truncate_at_nul(&names.name));
        let middle = format!(
            " age={} idle={} flags={letters} capa={capa} db={} sub={} psub={} ssub={} multi={} watch={} qbuf={input} qbuf-free={} \
             argv-mem=0 multi-mem={} rbs={buffered} rbp={buffered} obl={buffered} oll={nodes} omem={listed} tot-mem={} events={events} \
             cmd={} user=",
            seconds(self.connected_at.0),
            seconds(self.last_active.load(Ordering::Relaxed)),
            self.db.load(Ordering::Relaxed),
            self.channel_count.load(Ordering::Relaxed),
            self.pattern_count.load(Ordering::Relaxed),
            self.shard_channel_count.load(Ordering::Relaxed),
            self.queued_commands.load(Ordering::Relaxed),
            self.watched_key_count.load(Ordering::Relaxed),
            self.spare_input_bytes.load(Ordering::Relaxed),
            self.queued_bytes.load(Ordering::Relaxed),
            self.memory_bytes(),
            command.unwrap_or("NULL"),
        );
        line.extend_from_slice(middle.as_bytes());
        line.extend_from_slice(&self.user.lock());
        let resp = if self.uses_resp3.load(Ordering::Relaxed) { 3 } else { 2 };
        line.extend_from_slice(format!(" redir={} resp={resp} lib-name=", self.redirect_target()).as_bytes());
        line.extend_from_slice(truncate_at_nul(&names.library));
        line.extend_from_slice(b" lib-ver=");
        line.extend_from_slice(truncate_at_nul(&names.version));
        line.extend_from_slice(self.format_totals().as_bytes());
        line
    }

    /// Formats the flags as letters; `N` if there are none.
    fn format_flags(&self) -> String {
        let flags = self.flags();
        let letters: String = FLAG_LETTERS
            .iter()
            .filter(|(flag, _)| flags.contains(*flag))
            .map(|(_, letter)| *letter)
            .collect();
        if letters.is_empty() { "N".to_owned() } else { letters }
    }

    /// Formats the fields at the end of the line: byte and command totals, and the worker.
    fn format_totals(&self) -> String {
        let total = |count: &AtomicU64| count.load(Ordering::Relaxed);
        format!(
            " tot-net-in={} tot-net-out={} tot-cmds={} tot-usec={} background={}",
            total(&self.net_input_bytes),
            total(&self.net_output_bytes),
            total(&self.commands_processed),
            total(&self.worker_nanos) / 1000,
            u8::from(self.is_in_background())
        )
    }

    pub(crate) fn set_protocol(&self, protocol: Protocol) {
        self.uses_resp3.store(protocol == Protocol::Resp3, Ordering::Relaxed);
    }
}

/// All connections by client id.
#[derive(Debug)]
pub struct Clients {
    by_id: RwLock<BTreeMap<u64, Arc<Client>>>,
    next_id: AtomicU64,
    memory: ClientMemoryTotals,
    use_reply_lists: AtomicBool,
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            by_id: RwLock::default(),
            next_id: AtomicU64::new(1),
            memory: ClientMemoryTotals::default(),
            use_reply_lists: AtomicBool::new(false),
        }
    }
}

impl Clients {
    /// Registers a connection until [`Clients::disconnect`].
    #[must_use]
    pub fn connect(&self, connection: ConnectionInfo, now: Millis, wake: WakeCallback) -> Arc<Client> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let unix_socket = connection.unix_socket;
        let client = Arc::new(Client::new(id, connection, now, wake));
        client.set_flag(ClientFlags::UNIX_SOCKET, unix_socket);
        let mut by_id = self.by_id.write();
        client.uses_reply_list.store(self.use_reply_lists.load(Ordering::Relaxed), Ordering::Relaxed);
        by_id.insert(id, client.clone());
        drop(by_id);
        client
    }

    /// Sets whether CLIENT LIST shows all pending output as reply list, for connected clients and for new ones.
    pub fn use_reply_lists(&self, enabled: bool) {
        let by_id = self.by_id.write();
        self.use_reply_lists.store(enabled, Ordering::Relaxed);
        by_id.values().for_each(|client| client.uses_reply_list.store(enabled, Ordering::Relaxed));
    }

    /// Removes a connection and its memory from all sums.
    pub fn disconnect(&self, id: u64) {
        let gone = self.by_id.write().remove(&id);
        if let Some(client) = gone {
            self.remove_memory(&client);
        }
    }

    /// Finds a client by id, unless it was killed.
    #[must_use]
    pub fn find(&self, id: u64) -> Option<Arc<Client>> {
        self.by_id.read().get(&id).filter(|client| !client.is_killed()).cloned()
    }

    /// Returns all connections, oldest first. Killed clients are excluded even if their threads have not noticed yet.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Client>> {
        self.by_id.read().values().filter(|client| !client.is_killed()).cloned().collect()
    }

    /// Returns the number of connections, including killed ones that are still closing.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.read().len()
    }

    /// Returns whether there are no connections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unblock_affects_only_blocked_clients() {
        let clients = Clients::default();
        let client = clients.connect(ConnectionInfo::default(), Millis(0), Box::new(|| {}));
        assert!(!client.unblock(UnblockReason::Timeout));
        client.set_blocked(true);
        assert!(client.unblock(UnblockReason::Error));
        assert!(!client.unblock(UnblockReason::Timeout), "only once");
        assert_eq!(client.take_unblock_reason(), Some(UnblockReason::Error));
        assert_eq!(client.take_unblock_reason(), None);
        assert!(!client.flags().contains(ClientFlags::BLOCKED));
        clients.disconnect(client.id);
        assert!(clients.is_empty());
    }

    #[test]
    fn enforced_reply_list_leaves_the_buffer_empty() {
        let clients = Clients::default();
        let connect = || clients.connect(ConnectionInfo::default(), Millis(0), Box::new(|| {}));
        let shown = |client: &Client| {
            client.unsent_bytes.store(100, Ordering::Relaxed);
            client.output_bytes.store(100, Ordering::Relaxed);
            let line = client.format_line(Millis(0), &CommandCatalogue::default());
            let line = String::from_utf8(line).expect("plain text");
            let is_output = |word: &&str| ["obl=", "oll=", "omem="].iter().any(|name| word.starts_with(name));
            line.split(' ').filter(is_output).collect::<Vec<_>>().join(" ")
        };
        let before = connect();
        assert_eq!(shown(&before), "obl=100 oll=0 omem=0");
        clients.use_reply_lists(true);
        for client in [&before, &connect()] {
            assert_eq!(shown(client), "obl=0 oll=1 omem=100");
        }
        clients.use_reply_lists(false);
        assert_eq!(shown(&before), "obl=100 oll=0 omem=0");
    }
}

//! The state of one client in the engine.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use clock::Millis;
use resp::{ByteQueue, Protocol};
use slot_routing::ReplOffset;

use crate::clients::{Client, ClientFlags, Link};
use crate::transaction::{Transaction, Unfinished, Watching};
use crate::waiting::Waiter;

/// Where commands come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// A client.
    #[default]
    Client,
    /// The stream of this node's master: runs whatever a client would be refused, sees expired keys
    /// (the master says when they go), and is not appended to the log as its own effect.
    Master,
    /// The node from which slots are imported, which this node does not serve yet: runs as what a master did, and is
    /// this node's own to log. It waits for pauses, and ends when this node is no master any more.
    Source,
}

impl Origin {
    /// Whether it brings what was done elsewhere, and is done here as it is.
    #[must_use]
    pub fn is_stream(self) -> bool {
        match self {
            Self::Client => false,
            Self::Master | Self::Source => true,
        }
    }

    /// Whether what it does is logged as this node's own.
    pub(crate) fn is_logged(self) -> bool {
        match self {
            Self::Client | Self::Source => true,
            Self::Master => false,
        }
    }
}

/// Where a session's commands may run that take long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Background {
    /// Where all others do.
    #[default]
    Unavailable,
    /// On a background worker: they stop their connection with [`crate::Flow::Long`].
    Elsewhere,
    /// Here: the connection is with a background worker.
    Here,
    /// The connection is with the background worker where commands wait for what is not known to be held for long.
    Waiting,
}

/// Which replies the client does not want (CLIENT REPLY).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mute {
    /// Replies are sent.
    #[default]
    Nothing,
    /// That of the command after this one.
    Next,
    /// That of the command that runs now.
    This,
    /// Nothing is sent.
    Everything,
}

/// The mode that SCRIPT DEBUG chose for the next script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugMode {
    /// It works on copies.
    Discarded,
    /// It works on the data.
    Kept,
}

/// One client's state.
#[derive(Debug)]
pub struct Session {
    /// The number of its client.
    pub id: u64,
    /// The sender of its commands.
    pub origin: Origin,
    /// The database it has selected.
    pub db: u16,
    /// The protocol of its replies.
    pub protocol: Protocol,
    /// Logged in, or no client need log in.
    pub authenticated: bool,
    /// Its user, with the user's rights; unknown until it first runs something.
    pub(crate) user: Option<Arc<acl::User>>,
    /// It is logged in as a user that may do everything.
    pub(crate) unrestricted: bool,
    /// As of which change of users that is ([`crate::Engine::users_version`]).
    pub(crate) users_version: u64,
    /// The client said ASKING: the next command may use a slot that is being imported.
    pub asking: bool,
    /// The client said READONLY: it takes reads from a replica.
    pub readonly: bool,
    /// The client said that it knows what REDIRECT means (CLIENT CAPA).
    pub(crate) knows_redirect: bool,
    /// The connection is to be closed after the replies so far.
    pub closing: bool,
    /// Replies that the client does not want. The engine drops them; so must the shell with its own.
    pub mute: Mute,
    /// With more bytes of replies than this the client is cut off, and no more are collected.
    pub reply_limit: usize,
    /// How long the buffer of replies was when the batch that runs began.
    pub(crate) replied_from: usize,
    /// When its turn on its worker ends, by the worker's clock: others are served before it goes on.
    pub turn_ends: u64,
    /// Where its commands run that take long.
    pub background: Background,
    /// Where this client's last write ends in the replication stream (WAIT).
    pub last_write: ReplOffset,
    /// The same of its last change of data, which its reply may have to wait for: not of a message that was published.
    pub last_change: ReplOffset,
    /// The commands since MULTI, between MULTI and EXEC.
    pub(crate) transaction: Option<Box<Transaction>>,
    pub(crate) watching: Watching,
    /// It has subscribed since it connected or said RESET: messages may wait for it.
    pub(crate) subscriber: bool,
    /// It brings data from elsewhere (CLIENT IMPORT-SOURCE): keys whose time has come are there for it.
    pub(crate) imports: bool,
    /// The keys that it reads are noted, to tell it when they change.
    pub(crate) tracks: bool,
    /// An EXEC that the shell has a part in, until that is done.
    pub(crate) unfinished: Option<Box<Unfinished>>,
    /// The next EVAL runs under a debugger (SCRIPT DEBUG).
    pub(crate) debug_mode: Option<DebugMode>,
    /// Its waiter, between [`crate::Flow::Blocked`] and [`crate::Dispatcher::end_wait`].
    pub(crate) waiting: Option<Arc<Waiter>>,
    /// The next command is run again after a wait, and waits no longer than before: until then (`None` is for ever).
    pub(crate) resumes: Option<Option<Millis>>,
    /// The part of its state that other clients see.
    pub client: Arc<Client>,
}

impl Session {
    /// A session that no other client sees: a replication stream, a test.
    #[must_use]
    pub fn new(id: u64, origin: Origin, authenticated: bool) -> Self {
        let client = Client::new(id, Link::default(), Millis(0), Box::new(|| {}));
        Self::of(Arc::new(client), origin, authenticated)
    }

    /// The session of a connection that was registered ([`crate::Clients::connect`]).
    #[must_use]
    pub fn of(client: Arc<Client>, origin: Origin, authenticated: bool) -> Self {
        client.set_flag(ClientFlags::MASTER, origin == Origin::Master);
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
            mute: Mute::default(),
            reply_limit: usize::MAX,
            replied_from: 0,
            turn_ends: u64::MAX,
            background: Background::default(),
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

    /// Shows the session to others, in MONITOR, as what comes over this connection. For one that no client has.
    pub fn show_as(&mut self, link: Link) {
        self.client = Arc::new(Client::new(self.id, link, Millis(0), Box::new(|| {})));
        self.client.set_flag(ClientFlags::MASTER, self.origin == Origin::Master);
    }

    /// Appends the messages that the client has subscribed to and that wait.
    pub fn take_messages(&self, out: &mut Vec<u8>) {
        if self.subscriber {
            self.client.take_messages(out);
        }
    }

    /// Appends the messages that wait, unless they are long: those are for [`Self::queue_messages`].
    pub(crate) fn take_short_messages(&self, out: &mut Vec<u8>) {
        if self.subscriber {
            self.client.take_short_messages(out);
        }
    }

    /// Moves the messages that the client has subscribed to and that wait to the end of its output.
    #[inline]
    pub fn queue_messages(&self, output: &mut ByteQueue) {
        if self.subscriber {
            self.client.queue_messages(output);
        }
    }

    /// Whether the reply to the command that runs now is not sent.
    pub(crate) fn is_mute(&self) -> bool {
        matches!(self.mute, Mute::This | Mute::Everything)
    }

    /// The waiter of its blocked command, if it waits.
    #[must_use]
    pub fn waiter(&self) -> Option<Arc<Waiter>> {
        self.waiting.clone()
    }

    /// Whether nothing about it asks for more than to run its commands. Only commands without a key change that.
    pub(crate) fn is_plain(&self) -> bool {
        self.unrestricted
            && self.background != Background::Here
            && !(self.asking || self.closing || self.subscriber || self.tracks)
            && self.mute == Mute::Nothing
            && self.transaction.is_none()
    }

    /// Whether it may do nothing but change its subscriptions: version 2 of the protocol cannot tell
    /// messages from replies.
    #[must_use]
    pub fn only_listens(&self) -> bool {
        self.subscriber
            && self.protocol == Protocol::Resp2
            && self.client.flags().contains(ClientFlags::PUBSUB)
    }

    /// Whether what the client reads does not count as used (CLIENT NO-TOUCH).
    pub(crate) fn no_touch(&self) -> bool {
        self.client.flags().contains(ClientFlags::NO_TOUCH)
    }

    /// MULTI
    pub fn begin_transaction(&mut self) {
        self.transaction = Some(Box::new(Transaction::begun_in(self.db)));
        self.client.set_flag(ClientFlags::MULTI, true);
        self.client.queued.store(0, Ordering::Relaxed);
    }

    /// The end of a transaction, as others see it.
    pub(crate) fn leave_transaction(&self) {
        self.client.set_flag(ClientFlags::MULTI, false);
        self.client.queued.store(-1, Ordering::Relaxed);
        self.client.queued_bytes.store(0, Ordering::Relaxed);
    }

    /// The database that the session's next command runs in: behind MULTI the one that a queued SELECT chooses.
    pub(crate) fn db_of_next(&self) -> u16 {
        self.transaction.as_ref().map_or(self.db, |transaction| transaction.db)
    }

    /// Whether the client said MULTI and neither EXEC nor DISCARD since.
    #[must_use]
    pub fn in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// Its requests begin to run.
    #[inline]
    pub(crate) fn begin_turn(&self) {
        self.client.running.begin();
    }

    /// None of its requests runs any more.
    #[inline]
    pub(crate) fn end_turn(&self) {
        self.client.running.end();
    }

    /// Shows others what this client did last and how it stands.
    pub fn publish(&self, now: Millis, last_command: usize) {
        let client = &self.client;
        client.last_command.store(last_command, Ordering::Relaxed);
        client.last_active.store(now.0, Ordering::Relaxed);
        client.db.store(self.db, Ordering::Relaxed);
    }

    /// READONLY, READWRITE
    pub fn set_readonly(&mut self, readonly: bool) {
        self.readonly = readonly;
        self.client.set_flag(ClientFlags::READONLY, readonly);
    }

    /// CLIENT NO-EVICT
    pub fn set_no_evict(&mut self, on: bool) {
        self.client.set_flag(ClientFlags::NO_EVICT, on);
    }

    /// CLIENT NO-TOUCH
    pub fn set_no_touch(&mut self, on: bool) {
        self.client.set_flag(ClientFlags::NO_TOUCH, on);
    }

    /// CLIENT IMPORT-SOURCE
    pub fn set_imports(&mut self, on: bool) {
        self.imports = on;
        self.client.set_flag(ClientFlags::IMPORT_SOURCE, on);
    }

    /// CLIENT CAPA REDIRECT
    pub fn set_knows_redirect(&mut self, knows: bool) {
        self.knows_redirect = knows;
        self.client.knows_redirect.store(knows, Ordering::Relaxed);
    }

    /// SCRIPT DEBUG
    pub fn set_debug_mode(&mut self, mode: Option<DebugMode>) {
        self.debug_mode = mode;
    }

    /// Whether the next EVAL runs under a debugger.
    #[must_use]
    pub fn is_debugging(&self) -> bool {
        self.debug_mode.is_some()
    }

    /// Which version of the protocol the client speaks from now on.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
        self.client.set_protocol(protocol);
    }
}

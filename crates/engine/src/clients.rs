//! The connections of a server, as they see each other: CLIENT LIST, KILL, UNBLOCK.
//!
//! A connection's own thread keeps its [`crate::Session`]; what others may look at or ask of it lies in
//! its [`Client`], shared and made of atomics. The session publishes what it is at the end of each batch
//! ([`crate::Dispatcher::run`]). A thread that wants something of another connection sets a flag and wakes it; the
//! shell, woken, looks at [`Client::is_killed`] and [`Client::take_unblock`].

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

use crate::error::until_nul;
use crate::stats::add;
pub use inbox::ChannelKind;
use inbox::Inbox;
use memory::{Footprint, MemoryOfAll};
use running::RunningRequests;
pub use tracking::{Mode, Tracking};

bitflags! {
    /// The kind and the state of a connection, as the letters of CLIENT LIST say it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ClientFlags: u32 {
        /// A replica of this server.
        const REPLICA = 1;
        /// The master that this server follows.
        const MASTER = 1 << 1;
        /// It listens to channels.
        const PUBSUB = 1 << 2;
        /// It is within a transaction.
        const MULTI = 1 << 3;
        /// It waits.
        const BLOCKED = 1 << 4;
        /// A watched key has changed.
        const DIRTY = 1 << 5;
        /// It is closed when its reply is sent.
        const CLOSE_AFTER_REPLY = 1 << 6;
        /// It came over a unix socket.
        const UNIX_SOCKET = 1 << 7;
        /// It said READONLY.
        const READONLY = 1 << 8;
        /// It is not evicted.
        const NO_EVICT = 1 << 9;
        /// A key that it reads does not count as used.
        const NO_TOUCH = 1 << 10;
        /// It hears every command.
        const MONITOR = 1 << 11;
        /// It is told when keys change that it may have copies of.
        const TRACKING = 1 << 12;
        /// The client that should be told in its place is gone.
        const BROKEN_REDIRECT = 1 << 13;
        /// It is told of keys by their prefixes.
        const BROADCAST = 1 << 14;
        /// It brings data from elsewhere.
        const IMPORT_SOURCE = 1 << 15;
    }
}

impl ClientFlags {
    /// The flag that CLIENT LIST shows by this letter.
    pub fn of_letter(letter: u8) -> Option<Self> {
        LETTERS.iter().find(|(_, known)| *known == char::from(letter)).map(|(flag, _)| *flag)
    }
}

const LETTERS: &[(ClientFlags, char)] = &[
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
    (ClientFlags::UNIX_SOCKET, 'U'),
    (ClientFlags::READONLY, 'r'),
    (ClientFlags::NO_EVICT, 'e'),
    (ClientFlags::NO_TOUCH, 'T'),
    (ClientFlags::IMPORT_SOURCE, 'I'),
];

/// The kinds of connections that CLIENT LIST and KILL tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientKind {
    /// A client.
    Normal,
    /// A replica of this server.
    Replica,
    /// The master that this server follows.
    Master,
    /// A subscriber.
    PubSub,
}

impl ClientKind {
    /// The kind of this name.
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

/// The names that a client gave itself and its library.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// CLIENT SETNAME
    pub name: Vec<u8>,
    /// CLIENT SETINFO LIB-NAME
    pub library: Vec<u8>,
    /// CLIENT SETINFO LIB-VER
    pub version: Vec<u8>,
}

/// Where a connection comes from. Made by the shell when it accepts one.
#[derive(Debug, Clone, Default)]
pub struct Link {
    /// `ip:port`, or `path:0` of a unix socket.
    pub address: String,
    /// This end, as CLIENT LIST shows it.
    pub local_address: String,
    /// The socket's number in this process.
    pub descriptor: i32,
    /// Whether it is a unix socket.
    pub unix_socket: bool,
    /// How it has reached this node.
    pub via: ClientTransport,
    /// Whether the client is on this machine.
    pub local: bool,
}

/// Wakes a connection's task, so that it looks at its [`Client`].
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// Bytes of a reply buffer of Redis.
const REPLY_BUFFER: usize = 16 << 10;

/// Numbers in the order of [`Client::unblock`]'s protocol; above them those of [`Unblock`].
const NOT_BLOCKED: u8 = 0;
const BLOCKED: u8 = 1;

/// The reason why a blocking command ended, other than that it got what it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Unblock {
    /// Its time, or CLIENT UNBLOCK as if it were over.
    Timeout = 2,
    /// CLIENT UNBLOCK with an error.
    Error,
    /// This node follows another now: an error, and the connection is closed.
    RoleChanged,
    /// Its keys may be served elsewhere: the command is run again, to be told where.
    RunAgain,
}

impl Unblock {
    /// The error that the client gets, if it is one.
    #[must_use]
    pub fn error(self) -> Option<&'static str> {
        match self {
            Self::Timeout | Self::RunAgain => None,
            Self::Error => Some("UNBLOCKED client unblocked via CLIENT UNBLOCK"),
            Self::RoleChanged => Some(
                "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
            ),
        }
    }
}

/// The reason why a client is closed without the replies that wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CutOff {
    /// More waits to be sent to it than may (`client-output-buffer-limit`).
    OutputLimit = 1,
    /// Clients take more memory than they may together (`maxmemory-clients`).
    Evicted = 2,
}

/// One connection as others see it.
pub struct Client {
    /// Its number, never given again.
    pub id: u64,
    /// Where it comes from and goes to.
    pub link: Link,
    /// When it connected.
    pub connected_at: Millis,
    /// The names that it gave itself.
    pub names: Mutex<Names>,
    /// The name of the user that it is logged in as.
    pub user: Mutex<Vec<u8>>,
    pub(crate) flags: AtomicU32,
    pub(crate) db: AtomicU16,
    pub(crate) resp3: AtomicBool,
    /// Commands queued by MULTI, or -1.
    pub(crate) queued: AtomicI32,
    pub(crate) channels: AtomicU32,
    pub(crate) patterns: AtomicU32,
    pub(crate) shard_channels: AtomicU32,
    /// Keys that it watches.
    pub(crate) watched: AtomicU32,
    /// The channels and patterns that it subscribes to, and the messages for it; `None` if it never subscribed.
    pub(crate) inbox: Mutex<Option<Box<Inbox>>>,
    /// The number of the [`CutOff`] for which it was killed, or 0.
    cut_off: AtomicU8,
    /// How it tracks keys, if it does.
    pub tracking: Mutex<Option<Tracking>>,
    /// Number of the last command, or `usize::MAX`.
    pub(crate) last_command: AtomicUsize,
    pub(crate) last_active: AtomicI64,
    /// Bytes that were read and not yet run; kept by the shell.
    pub input_bytes: AtomicUsize,
    /// Bytes of spare room for further input, and of what is known of an unfinished request; kept by the shell.
    pub spare_input_bytes: AtomicUsize,
    /// For how long it has kept its worker at work, in nanoseconds; counted by the shell, on one thread.
    work: AtomicU64,
    /// The same when it was last asked for ([`Client::take_work`]).
    told_work: AtomicU64,
    /// Bytes that the keys that it watches take, and the channels that it subscribes to.
    pub(crate) watched_bytes: AtomicUsize,
    pub(crate) subscription_bytes: AtomicUsize,
    /// Memory of what waits to be sent, in bytes; kept by the shell.
    pub output_bytes: AtomicUsize,
    /// Bytes that wait to be sent; kept by the shell.
    pub unsent_bytes: AtomicUsize,
    pub(crate) footprint: Footprint,
    /// Since when they are more than the soft limit, in milliseconds of the wall clock, or 0; kept by the shell.
    pub over_soft_limit: AtomicI64,
    /// Bytes of the commands queued by MULTI.
    pub(crate) queued_bytes: AtomicUsize,
    /// Bytes received from it and sent to it, and the commands it has run; counted on one thread at a time.
    net_input: AtomicU64,
    net_output: AtomicU64,
    commands: AtomicU64,
    /// It said that it knows what REDIRECT means.
    pub(crate) knows_redirect: AtomicBool,
    killed: AtomicBool,
    in_background: AtomicBool,
    /// Whether its requests run, for a thread that takes rights or the connection from it.
    pub(crate) running: RunningRequests,
    blocked: AtomicU8,
    wake: Wake,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id).field("link", &self.link).finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(id: u64, link: Link, now: Millis, wake: Wake) -> Self {
        Self {
            id,
            link,
            connected_at: now,
            names: Mutex::default(),
            user: Mutex::new(acl::DEFAULT.to_vec()),
            flags: AtomicU32::new(0),
            db: AtomicU16::new(0),
            resp3: AtomicBool::new(false),
            queued: AtomicI32::new(-1),
            channels: AtomicU32::new(0),
            patterns: AtomicU32::new(0),
            shard_channels: AtomicU32::new(0),
            watched: AtomicU32::new(0),
            inbox: Mutex::default(),
            cut_off: AtomicU8::new(0),
            footprint: Footprint::default(),
            unsent_bytes: AtomicUsize::new(0),
            tracking: Mutex::default(),
            last_command: AtomicUsize::new(usize::MAX),
            last_active: AtomicI64::new(now.0),
            input_bytes: AtomicUsize::new(0),
            spare_input_bytes: AtomicUsize::new(0),
            work: AtomicU64::new(0),
            told_work: AtomicU64::new(0),
            watched_bytes: AtomicUsize::new(0),
            subscription_bytes: AtomicUsize::new(0),
            output_bytes: AtomicUsize::new(0),
            over_soft_limit: AtomicI64::new(0),
            queued_bytes: AtomicUsize::new(0),
            net_input: AtomicU64::new(0),
            net_output: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            knows_redirect: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            running: RunningRequests::default(),
            blocked: AtomicU8::new(NOT_BLOCKED),
            in_background: AtomicBool::new(false),
            wake,
        }
    }

    /// Says that a flag holds, or no longer holds.
    pub fn set_flag(&self, flag: ClientFlags, holds: bool) {
        if holds {
            self.flags.fetch_or(flag.bits(), Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!flag.bits(), Ordering::Relaxed);
        }
    }

    /// Its kind and its state.
    #[must_use]
    pub fn flags(&self) -> ClientFlags {
        ClientFlags::from_bits_truncate(self.flags.load(Ordering::Relaxed))
    }

    /// Its kind.
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

    /// Whether CLIENT LIST shows any letter for it.
    pub fn has_letter(&self) -> bool {
        LETTERS.iter().any(|(flag, _)| self.flags().contains(*flag))
    }

    /// Whether it said CLIENT CAPA REDIRECT.
    pub fn knows_redirect(&self) -> bool {
        self.knows_redirect.load(Ordering::Relaxed)
    }

    /// The database that it has selected.
    pub fn database(&self) -> u16 {
        self.db.load(Ordering::Relaxed)
    }

    /// Counts bytes that came from it.
    pub fn count_input(&self, bytes: usize) {
        add(&self.net_input, bytes as u64);
    }

    /// Counts bytes that were sent to it.
    pub fn count_output(&self, bytes: usize) {
        add(&self.net_output, bytes as u64);
    }

    /// Counts a command that has run for it: also those of a transaction and of a script, and none that was refused.
    #[inline(always)]
    pub(crate) fn count_command(&self) {
        add(&self.commands, 1);
    }

    /// Counts commands that were carried out elsewhere than by the dispatcher on its behalf.
    pub fn count_commands(&self, more: usize) {
        add(&self.commands, more as u64);
    }

    /// Bytes that the commands queued by MULTI take.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes.load(Ordering::Relaxed)
    }

    /// Counts time for which it has kept its worker at work.
    #[inline]
    pub fn count_work(&self, nanos: u64) {
        add(&self.work, nanos);
    }

    /// For how many nanoseconds it has kept its worker at work since this was last asked. Only one caller may ask.
    pub fn take_work(&self) -> u64 {
        let all = self.work.load(Ordering::Relaxed);
        all.saturating_sub(self.told_work.swap(all, Ordering::Relaxed))
    }

    /// Its connection goes to a background worker, or comes back at `now`: it was not idle meanwhile.
    pub fn set_in_background(&self, is_there: bool, now: Millis) {
        self.last_active.store(now.0, Ordering::Relaxed);
        self.in_background.store(is_there, Ordering::Relaxed);
    }

    /// Whether its connection is with a background worker, or on its way there: a request of it waits or runs.
    #[must_use]
    pub fn is_in_background(&self) -> bool {
        self.in_background.load(Ordering::Relaxed)
    }

    /// For how many milliseconds the client has sent nothing.
    #[must_use]
    pub fn idle(&self, now: Millis) -> i64 {
        now.0.saturating_sub(self.last_active.load(Ordering::Relaxed)).max(0)
    }

    /// The client that is told of changed keys in its place: -1 if it does not track, 0 if it is told itself.
    pub fn redirect(&self) -> i64 {
        match &*self.tracking.lock() {
            None => -1,
            Some(tracking) => tracking.redirect.map_or(0, |id| id as i64),
        }
    }

    /// Shows to how much it listens, for a server that keeps its subscriptions elsewhere than in
    /// [`crate::PubSub`].
    pub fn set_subscriptions(&self, channels: usize, patterns: usize) {
        self.channels.store(channels as u32, Ordering::Relaxed);
        self.patterns.store(patterns as u32, Ordering::Relaxed);
        self.set_flag(ClientFlags::PUBSUB, channels + patterns > 0);
    }

    /// Wakes the connection's task.
    pub fn wake(&self) {
        (self.wake)();
    }

    /// Asks the connection to close.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        self.wake();
    }

    /// Asks the connection to close because more waits to be sent than may.
    pub fn overflow(&self) {
        self.cut_off(CutOff::OutputLimit);
    }

    /// Asks the connection to close without sending anything more.
    pub(crate) fn cut_off(&self, why: CutOff) {
        // The first reason stands.
        let _ = self.cut_off.compare_exchange(0, why as u8, Ordering::AcqRel, Ordering::Relaxed);
        self.kill();
    }

    /// Whether the client was killed because it did not read what was for it.
    #[must_use]
    pub fn is_overflown(&self) -> bool {
        self.cut_off.load(Ordering::Acquire) == CutOff::OutputLimit as u8
    }

    /// Whether the client was killed for the memory that all clients took.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.cut_off.load(Ordering::Acquire) == CutOff::Evicted as u8
    }

    /// Whether nothing more is to be sent to the client.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Acquire) != 0
    }

    /// Bytes that count against the limit on its output: those that wait to be sent, with the memory for them.
    pub(crate) fn charged_output(&self) -> usize {
        let memory = self.output_bytes.load(Ordering::Relaxed);
        resp::charged_bytes(self.unsent_bytes.load(Ordering::Relaxed), memory)
    }

    /// Whether this connection is to be closed.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// The connection starts, or stops, waiting in a blocking command.
    pub fn set_blocked(&self, blocked: bool) {
        self.set_flag(ClientFlags::BLOCKED, blocked);
        self.blocked.store(if blocked { BLOCKED } else { NOT_BLOCKED }, Ordering::Release);
    }

    /// Whether it waits, and its wait was not ended yet.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Acquire) == BLOCKED
    }

    /// Ends the wait of a blocked connection; says whether it was blocked.
    pub fn unblock(&self, how: Unblock) -> bool {
        let state = how as u8;
        let done = self.blocked.compare_exchange(BLOCKED, state, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if done {
            self.set_flag(ClientFlags::BLOCKED, false);
            self.wake();
        }
        done
    }

    /// The way in which this connection's wait was ended, if it was. It is no longer blocked then.
    #[must_use]
    pub fn take_unblock(&self) -> Option<Unblock> {
        let state = self.blocked.load(Ordering::Acquire);
        let all = [Unblock::Timeout, Unblock::Error, Unblock::RoleChanged, Unblock::RunAgain];
        let how = all.into_iter().find(|how| *how as u8 == state)?;
        self.set_blocked(false);
        Some(how)
    }

    /// Bytes that the client takes: what is known of it, what came and was not run, what is queued, what it watches and
    /// listens to, what was not yet sent.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let parts = [
            &self.input_bytes,
            &self.spare_input_bytes,
            &self.queued_bytes,
            &self.watched_bytes,
            &self.subscription_bytes,
            &self.output_bytes,
            &self.footprint.replies,
            &self.footprint.inbox,
        ];
        size_of::<Self>() + parts.iter().map(|part| part.load(Ordering::Relaxed)).sum::<usize>()
    }

    /// Shows how much of the log waits to be sent to the replica that this client is.
    pub fn show_unsent_log(&self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.unsent_bytes.store(bytes, Ordering::Relaxed);
        self.output_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The line of CLIENT LIST, without the line break at its end.
    #[must_use]
    pub fn describe(&self, now: Millis, commands: &CommandCatalogue) -> Vec<u8> {
        let seconds = |since: i64| now.0.saturating_sub(since).max(0) / 1000;
        let names = self.names.lock().clone();
        let letters = self.letters();
        let capa = if self.knows_redirect() { "r" } else { "" };
        let command = commands.name_of(self.last_command.load(Ordering::Relaxed));
        let input = self.input_bytes.load(Ordering::Relaxed);
        let (unsent, output) =
            (self.unsent_bytes.load(Ordering::Relaxed), self.output_bytes.load(Ordering::Relaxed));
        // As Redis has it: what does not fit into a client's buffer is in a list of further ones. A replica has only
        // the list: its share of the replication stream.
        let buffer = if self.kind() == ClientKind::Replica { 0 } else { REPLY_BUFFER };
        let (buffered, listed) = (unsent.min(buffer), output.saturating_sub(buffer));
        let (nodes, events) = (listed.div_ceil(REPLY_BUFFER), if unsent > 0 { "rw" } else { "r" });
        let mut line = format!(
            "id={} addr={} laddr={} fd={} name=",
            self.id, self.link.address, self.link.local_address, self.link.descriptor
        )
        .into_bytes();
        line.extend_from_slice(until_nul(&names.name));
        let middle = format!(
            " age={} idle={} flags={letters} capa={capa} db={} sub={} psub={} ssub={} multi={} watch={} qbuf={input} qbuf-free={} \
             argv-mem=0 multi-mem={} rbs={buffered} rbp={buffered} obl={buffered} oll={nodes} omem={listed} tot-mem={} events={events} \
             cmd={} user=",
            seconds(self.connected_at.0),
            seconds(self.last_active.load(Ordering::Relaxed)),
            self.db.load(Ordering::Relaxed),
            self.channels.load(Ordering::Relaxed),
            self.patterns.load(Ordering::Relaxed),
            self.shard_channels.load(Ordering::Relaxed),
            self.queued.load(Ordering::Relaxed),
            self.watched.load(Ordering::Relaxed),
            self.spare_input_bytes.load(Ordering::Relaxed),
            self.queued_bytes.load(Ordering::Relaxed),
            self.bytes(),
            command.unwrap_or("NULL"),
        );
        line.extend_from_slice(middle.as_bytes());
        line.extend_from_slice(&self.user.lock());
        let resp = if self.resp3.load(Ordering::Relaxed) { 3 } else { 2 };
        line.extend_from_slice(format!(" redir={} resp={resp} lib-name=", self.redirect()).as_bytes());
        line.extend_from_slice(until_nul(&names.library));
        line.extend_from_slice(b" lib-ver=");
        line.extend_from_slice(until_nul(&names.version));
        line.extend_from_slice(self.totals().as_bytes());
        line
    }

    /// The letters of its kind and its state; `N` if there are none.
    fn letters(&self) -> String {
        let flags = self.flags();
        let letters: String =
            LETTERS.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, letter)| *letter).collect();
        if letters.is_empty() { "N".to_owned() } else { letters }
    }

    /// The bytes and commands since it connected, and where its command runs, as the end of its line shows them.
    fn totals(&self) -> String {
        let total = |count: &AtomicU64| count.load(Ordering::Relaxed);
        format!(
            " tot-net-in={} tot-net-out={} tot-cmds={} tot-usec={} background={}",
            total(&self.net_input),
            total(&self.net_output),
            total(&self.commands),
            total(&self.work) / 1000,
            u8::from(self.is_in_background())
        )
    }

    pub(crate) fn set_protocol(&self, protocol: Protocol) {
        self.resp3.store(protocol == Protocol::Resp3, Ordering::Relaxed);
    }
}

/// All connections, by number.
#[derive(Debug)]
pub struct Clients {
    by_id: RwLock<BTreeMap<u64, Arc<Client>>>,
    next_id: AtomicU64,
    memory: MemoryOfAll,
}

impl Default for Clients {
    fn default() -> Self {
        Self { by_id: RwLock::default(), next_id: AtomicU64::new(1), memory: MemoryOfAll::default() }
    }
}

impl Clients {
    /// Registers a connection. It stays until [`Clients::disconnect`].
    #[must_use]
    pub fn connect(&self, link: Link, now: Millis, wake: Wake) -> Arc<Client> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let unix_socket = link.unix_socket;
        let client = Arc::new(Client::new(id, link, now, wake));
        client.set_flag(ClientFlags::UNIX_SOCKET, unix_socket);
        self.by_id.write().insert(id, client.clone());
        client
    }

    /// Forgets a connection.
    pub fn disconnect(&self, id: u64) {
        let gone = self.by_id.write().remove(&id);
        if let Some(client) = gone {
            self.forget_memory(&client);
        }
    }

    /// The client with this number, unless it was killed.
    #[must_use]
    pub fn find(&self, id: u64) -> Option<Arc<Client>> {
        self.by_id.read().get(&id).filter(|client| !client.is_killed()).cloned()
    }

    /// Every connection, the oldest first. A killed one is gone for everybody else, though its own thread has not yet
    /// found that.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Client>> {
        self.by_id.read().values().filter(|client| !client.is_killed()).cloned().collect()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.read().len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unblock_reaches_only_who_is_blocked() {
        let clients = Clients::default();
        let client = clients.connect(Link::default(), Millis(0), Box::new(|| {}));
        assert!(!client.unblock(Unblock::Timeout));
        client.set_blocked(true);
        assert!(client.unblock(Unblock::Error));
        assert!(!client.unblock(Unblock::Timeout), "only once");
        assert_eq!(client.take_unblock(), Some(Unblock::Error));
        assert_eq!(client.take_unblock(), None);
        assert!(!client.flags().contains(ClientFlags::BLOCKED));
        clients.disconnect(client.id);
        assert!(clients.is_empty());
    }
}

//! The settings and the node's state that commands read on their way.

mod configured;

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use bitflags::bitflags;
use config::{Allowed, EvictionPolicy};
use keyspace::{
    EncodingLimits, IdempotenceBounds, LfuSettings, ListLimit, ListpackBounds, SetBounds, StreamNodeBounds,
};
use slot_routing::EndpointType;

use crate::clients::Client;
use crate::eviction::{Order, POLICIES, Policy, time_limit};
use crate::notifications::Class;

bitflags! {
    /// Why commands may have to be refused just now, or do other than usual. One atomic word, nearly always zero,
    /// that a command reads when it is admitted and again under the locks of its slots: so what is set here holds
    /// once each slot has been free ([`Engine::drain`](crate::Engine::drain)).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Gate: u32 {
        /// Data is being loaded.
        const LOADING = 1;
        /// A replica that does not take writes.
        const READ_ONLY_REPLICA = 1 << 1;
        /// A replica without its master that must not serve old data.
        const MASTER_DOWN = 1 << 2;
        /// Too few good replicas for a write.
        const NO_REPLICAS = 1 << 3;
        /// The last save failed and writes are to stop.
        const MISCONF = 1 << 4;
        /// Memory is over its limit.
        const OUT_OF_MEMORY = 1 << 5;
        /// The cluster does not serve.
        const CLUSTER_DOWN = 1 << 6;
        /// Writes wait (CLIENT PAUSE WRITE, a manual failover).
        const WRITES_PAUSED = 1 << 7;
        /// All commands wait (CLIENT PAUSE ALL).
        const ALL_PAUSED = 1 << 8;
        /// A replica without cluster mode: clients that know REDIRECT are sent to its master.
        const REDIRECTS = 1 << 9;
        /// A replica: expired keys are hidden, not deleted, and what clients write, if they may, is not logged.
        const REPLICA = 1 << 10;
        /// Writes to some slots wait (MIGRATE of a key that is written all the time).
        const SLOTS_HELD = 1 << 11;
        /// The append-only file cannot be written.
        const AOF_FAILED = 1 << 12;
        /// A script has run for longer than `busy-reply-threshold`.
        const BUSY = 1 << 13;
        /// There are clients that are shown every command (MONITOR).
        const MONITORED = 1 << 14;
        /// Data is brought here from elsewhere (`import-mode`): no key goes because its time has come.
        const IMPORTING = 1 << 15;
        /// A master that came back without its data and waits until a replica has taken its place.
        const EMPTY_MASTER = 1 << 16;
        /// A replica serves what it had while its master's snapshot is loaded beside that.
        const ASYNC_LOADING = 1 << 17;
        /// A client or its rights are being taken away: each looks before its next command
        /// ([`crate::Engine::await_revoked`]).
        const REVOKING = 1 << 18;
        /// Every command is taken for one that takes long (`long-command-threshold 0`).
        const BACKGROUND = 1 << 19;
    }
}

impl Gate {
    /// The data here is not what the master has, or had.
    pub const STALE: Self = Self::MASTER_DOWN.union(Self::EMPTY_MASTER);
    /// Any pause: nothing may be appended to the log but what a replica's master says.
    pub const PAUSED: Self = Self::WRITES_PAUSED.union(Self::ALL_PAUSED);
    /// The states that keep this node from changing anything by itself.
    pub const NOT_BY_ITSELF: Self =
        Self::PAUSED.union(Self::REPLICA).union(Self::LOADING).union(Self::IMPORTING);
}

/// A parameter that is `no`, `yes` or `local`: whether something may be done, by all clients or only by
/// those on this machine.
#[derive(Debug, Default)]
pub struct Permission(AtomicU8);

const YES: u8 = 1;
const LOCAL: u8 = 2;

impl Permission {
    /// Takes the parameter's value.
    pub fn set(&self, allowed: Allowed) {
        let value = match allowed {
            Allowed::Yes => YES,
            Allowed::Local => LOCAL,
            Allowed::No => 0,
        };
        self.0.store(value, Ordering::Relaxed);
    }

    /// Whether a client, on this machine or not, may.
    #[must_use]
    pub fn allows(&self, local: bool) -> bool {
        match self.0.load(Ordering::Relaxed) {
            YES => true,
            LOCAL => local,
            _ => false,
        }
    }
}

/// [`ListpackBounds`] that may change at any time.
#[derive(Debug)]
pub struct AtomicBounds {
    entries: AtomicUsize,
    value: AtomicUsize,
}

impl AtomicBounds {
    #[must_use]
    #[inline]
    pub fn load(&self) -> ListpackBounds {
        ListpackBounds {
            entries: self.entries.load(Ordering::Relaxed),
            value: self.value.load(Ordering::Relaxed),
        }
    }

    fn store(&self, bounds: ListpackBounds) {
        self.entries.store(bounds.entries, Ordering::Relaxed);
        self.value.store(bounds.value, Ordering::Relaxed);
    }
}

impl From<ListpackBounds> for AtomicBounds {
    fn from(bounds: ListpackBounds) -> Self {
        Self { entries: AtomicUsize::new(bounds.entries), value: AtomicUsize::new(bounds.value) }
    }
}

/// The meaning of a key's usage, by the eviction policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum UsageMeaning {
    /// When it was last read or written (LRU, and policies that need no usage).
    Accesses,
    /// How often it was (LFU).
    Counts,
    /// When a command that writes last came to it (LRM).
    Changes,
}

bitflags! {
    /// The measures that are taken of every command besides those that always are. One word, read once a command.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Measures: u8 {
        /// How long commands take, as a distribution (`latency-tracking`).
        const TIMES = 1;
        /// The cost of each slot (`cluster-slot-stats-enabled`).
        const SLOTS = 1 << 1;
        /// The cost of keys (HOTKEYS).
        const KEYS = 1 << 2;
    }
}

bitflags! {
    /// Why a value goes: for each reason a parameter says whether it is freed in the background, if it is large
    /// (`lazyfree-lazy-expire` and its kin), or by the thread that took it out, as soon as it did.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Lazy: u8 {
        /// Its time came.
        const EXPIRE = 1;
        /// Room was needed.
        const EVICTION = 1 << 1;
        /// Something else took its place, or it was moved.
        const SERVER_DEL = 1 << 2;
        /// DEL.
        const USER_DEL = 1 << 3;
    }
}

/// How keys are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicting {
    /// Which keys go first.
    pub policy: Policy,
    /// At how many keys is looked for one that goes.
    pub samples: usize,
    /// How long one command does that, in nanoseconds.
    pub nanos: u64,
    /// A replica evicts nothing by itself.
    pub replica_ignores: bool,
}

/// The settings that the configuration and the shell give the engine. Changed at any time, read without locks.
#[derive(Debug)]
pub struct Settings {
    gate: AtomicU32,
    /// Active expiry on (DEBUG SET-ACTIVE-EXPIRE).
    pub active_expire: AtomicBool,
    /// Whether scripts may call what is not for scripts (DEBUG SET-DISABLE-DENY-SCRIPTS).
    pub scripts_call_all: AtomicBool,
    /// The source of a slot migration does not pause its clients (DEBUG SLOTMIGRATION PREVENT-PAUSE).
    pub prevent_migration_pause: AtomicBool,
    /// The target of a slot migration does not claim the slots (DEBUG SLOTMIGRATION PREVENT-FAILOVER).
    pub prevent_migration_failover: AtomicBool,
    /// Whether values and files with wrong checksums are taken (DEBUG SET-SKIP-CHECKSUM-VALIDATION).
    pub skip_checksums: AtomicBool,
    /// Whether files and payloads of versions that are not known are read (`rdb-version-check relaxed`).
    any_version: AtomicBool,
    /// Whether packed forms are looked at closely, in files and in what clients bring (`sanitize-dump-payload`).
    deep_files: AtomicBool,
    deep_payloads: AtomicBool,
    /// Whether the process stops whenever a snapshot for replicas begins (DEBUG PAUSE-AFTER-FORK).
    pub stops_at_snapshots: AtomicBool,
    /// `cluster-allow-reads-when-down`
    pub cluster_allow_reads_when_down: AtomicBool,
    measures: AtomicU8,
    /// `cluster-allow-pubsubshard-when-down`
    pub cluster_allow_pubsubshard_when_down: AtomicBool,
    /// Whether FLUSHALL and FLUSHDB mean ASYNC where they do not say (`lazyfree-lazy-user-flush`).
    pub flush_async: AtomicBool,
    /// Longest string, in bytes (`proto-max-bulk-len`).
    pub proto_max_bulk_len: AtomicI64,
    /// Whether keys remember how often they were used (`maxmemory-policy` is one of LFU), not when.
    usage_meaning: AtomicU8,
    /// `lfu-log-factor` and `lfu-decay-time`.
    pub lfu_log_factor: AtomicU32,
    /// `lfu-decay-time`, in minutes.
    pub lfu_decay_minutes: AtomicU32,
    /// Up to where a set is called `intset`.
    set_intset_entries: AtomicUsize,
    /// Up to where a set is called `listpack`.
    set_bounds: AtomicBounds,
    /// Up to where a sorted set is called `listpack`.
    pub sorted_set_bounds: AtomicBounds,
    /// Up to where a hash is called `listpack`.
    pub hash_bounds: AtomicBounds,
    /// Up to where a list is called `listpack`.
    list_limit: AtomicI32,
    /// `hll-sparse-max-bytes`
    pub hll_sparse_bytes: AtomicUsize,
    /// Milliseconds after which a script is busy (`busy-reply-threshold`); 0 is never.
    pub busy_reply_threshold: AtomicI64,
    /// Whether scripts have `getfenv` and `setfenv` (`lua-enable-insecure-api`).
    pub lua_deprecated_api: AtomicBool,
    /// Whether errors name Redis and not Valkey (`extended-redis-compatibility`).
    pub extended_redis_compatibility: AtomicBool,
    /// Up to where entries of a stream are put together in one node: `stream-node-max-bytes` and
    /// `stream-node-max-entries`.
    stream_node_bytes: AtomicUsize,
    stream_node_entries: AtomicUsize,
    /// For how long a stream keeps the iids of producers and how many, unless XCFGSET says otherwise:
    /// `stream-idmp-duration` and `stream-idmp-maxsize`.
    stream_iid_seconds: AtomicU64,
    stream_iids: AtomicU64,
    /// DEBUG (`enable-debug-command`).
    pub debug_command: Permission,
    /// MODULE LOAD and its kin (`enable-module-command`).
    pub module_command: Permission,
    /// CONFIG SET of protected parameters (`enable-protected-configs`).
    pub protected_configs: Permission,
    /// How keys are evicted: the policy's place among [`POLICIES`], `maxmemory-samples`, for how many nanoseconds a
    /// command does that, `replica-ignore-maxmemory`.
    policy: AtomicU8,
    samples: AtomicUsize,
    time_limit: AtomicU64,
    replica_ignores: AtomicBool,
    /// The reasons for which large values are freed in the background, as the bits of `Lazy`.
    lazy: AtomicU8,
    /// The classes of keyspace events that are published, and the channels ([`Class`]).
    notified: AtomicU32,
    /// Why the append-only file cannot be written, while [`Gate::AOF_FAILED`] holds.
    pub aof_error: ArcSwap<String>,
    /// How often all data was deleted at once (FLUSHALL): a save of what there was is of no use then.
    pub flushes: AtomicU64,
    /// How often all keys of a database were deleted at once: an import has lost what came before.
    pub clears: AtomicU64,
    /// `cluster-preferred-endpoint-type`.
    endpoint: AtomicU8,
    /// The master's `host:port`, while [`Gate::REDIRECTS`] holds.
    pub redirect_to: ArcSwap<String>,
    /// Where this server stands, for clients that prefer those nearby.
    pub availability_zone: ArcSwap<String>,
    /// The state of this server towards its sentinels, and their last greeting.
    pub watched: Watched,
}

/// The channel on which sentinels greet.
const HELLO_CHANNEL: &[u8] = b"__sentinel__:hello";
/// How the connections of sentinels, of whatever kind, are named.
const SENTINEL_NAME: &[u8] = b"sentinel-";

/// Sentinels at this server.
#[derive(Debug, Default)]
pub struct Watched {
    /// Whether one has greeted since the start.
    pub seen: AtomicBool,
    /// Their pings are answered with an error, while [`Gate::EMPTY_MASTER`] holds.
    pub hidden: AtomicBool,
    /// The last greeting, until it has been looked at.
    pub greeting: ArcSwapOption<Vec<u8>>,
}

impl Watched {
    /// Whether a ping of this client is answered with an error.
    #[inline]
    #[must_use]
    pub fn hides_from(&self, client: &Client) -> bool {
        self.hidden.load(Ordering::Relaxed) && Self::is_sentinel(client)
    }

    /// Whether this client says by its name that it is a sentinel.
    #[must_use]
    pub fn is_sentinel(client: &Client) -> bool {
        client.names.lock().name.starts_with(SENTINEL_NAME)
    }

    /// A message was published: it may be a greeting of sentinels.
    pub fn on_published(&self, channel: &[u8], message: &[u8]) {
        if channel != HELLO_CHANNEL {
            return;
        }
        self.seen.store(true, Ordering::Relaxed);
        self.greeting.store(Some(Arc::new(message.to_vec())));
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            gate: AtomicU32::new(0),
            active_expire: AtomicBool::new(true),
            scripts_call_all: AtomicBool::new(false),
            prevent_migration_pause: AtomicBool::new(false),
            prevent_migration_failover: AtomicBool::new(false),
            skip_checksums: AtomicBool::new(false),
            any_version: AtomicBool::new(false),
            deep_files: AtomicBool::new(false),
            deep_payloads: AtomicBool::new(false),
            stops_at_snapshots: AtomicBool::new(false),
            cluster_allow_reads_when_down: AtomicBool::new(false),
            measures: AtomicU8::new(Measures::TIMES.bits()),
            cluster_allow_pubsubshard_when_down: AtomicBool::new(true),
            flush_async: AtomicBool::new(true),
            proto_max_bulk_len: AtomicI64::new(512 * 1024 * 1024),
            usage_meaning: AtomicU8::new(UsageMeaning::Accesses as u8),
            lfu_log_factor: AtomicU32::new(10),
            lfu_decay_minutes: AtomicU32::new(1),
            set_intset_entries: EncodingLimits::default().set.intset.into(),
            set_bounds: EncodingLimits::default().set.listpack.into(),
            sorted_set_bounds: EncodingLimits::default().sorted_set.into(),
            hash_bounds: EncodingLimits::default().hash.into(),
            list_limit: AtomicI32::new(EncodingLimits::default().list.0),
            hll_sparse_bytes: AtomicUsize::new(3000),
            busy_reply_threshold: AtomicI64::new(5000),
            lua_deprecated_api: AtomicBool::new(false),
            extended_redis_compatibility: AtomicBool::new(false),
            stream_node_bytes: AtomicUsize::new(EncodingLimits::default().stream.bytes),
            stream_node_entries: AtomicUsize::new(EncodingLimits::default().stream.entries),
            stream_iid_seconds: AtomicU64::new(100),
            stream_iids: AtomicU64::new(100),
            debug_command: Permission::default(),
            module_command: Permission::default(),
            protected_configs: Permission::default(),
            policy: AtomicU8::new(0),
            samples: AtomicUsize::new(5),
            time_limit: AtomicU64::new(time_limit(10)),
            replica_ignores: AtomicBool::new(true),
            lazy: AtomicU8::new(Lazy::all().bits()),
            notified: AtomicU32::new(0),
            aof_error: ArcSwap::default(),
            flushes: AtomicU64::new(0),
            clears: AtomicU64::new(0),
            endpoint: AtomicU8::new(EndpointType::Ip as u8),
            redirect_to: ArcSwap::default(),
            availability_zone: ArcSwap::default(),
            watched: Watched::default(),
        }
    }
}

impl Settings {
    /// The kind of endpoint by which redirections name a node.
    #[must_use]
    pub fn endpoint(&self) -> EndpointType {
        let kind = self.endpoint.load(Ordering::Relaxed);
        let kinds = [EndpointType::Ip, EndpointType::Hostname, EndpointType::Unknown];
        kinds.into_iter().find(|each| *each as u8 == kind).unwrap_or_default()
    }

    /// Sets what redirections name a node by.
    pub fn set_endpoint(&self, kind: EndpointType) {
        self.endpoint.store(kind as u8, Ordering::Relaxed);
    }

    /// How keys count their uses, if they do.
    #[must_use]
    pub fn lfu(&self) -> Option<LfuSettings> {
        (self.usage_meaning() == UsageMeaning::Counts).then(|| self.lfu_settings())
    }

    pub(crate) fn lfu_settings(&self) -> LfuSettings {
        LfuSettings {
            log_factor: self.lfu_log_factor.load(Ordering::Relaxed),
            decay_minutes: self.lfu_decay_minutes.load(Ordering::Relaxed),
        }
    }

    /// The meaning of keys' usage.
    #[inline(always)]
    pub(crate) fn usage_meaning(&self) -> UsageMeaning {
        match self.usage_meaning.load(Ordering::Relaxed) {
            kind if kind == UsageMeaning::Counts as u8 => UsageMeaning::Counts,
            kind if kind == UsageMeaning::Changes as u8 => UsageMeaning::Changes,
            _ => UsageMeaning::Accesses,
        }
    }

    /// The states that hold now.
    #[must_use]
    pub fn gate(&self) -> Gate {
        Gate::from_bits_truncate(self.gate.load(Ordering::Acquire))
    }

    /// The measures that are taken.
    #[inline(always)]
    pub fn measures(&self) -> Measures {
        Measures::from_bits_truncate(self.measures.load(Ordering::Relaxed))
    }

    /// Says whether these are taken.
    pub fn set_measures(&self, which: Measures, taken: bool) {
        match taken {
            true => self.measures.fetch_or(which.bits(), Ordering::Relaxed),
            false => self.measures.fetch_and(!which.bits(), Ordering::Relaxed),
        };
    }

    /// Says that a state holds, or no longer holds.
    pub fn set_gate(&self, state: Gate, holds: bool) {
        if holds {
            self.gate.fetch_or(state.bits(), Ordering::AcqRel);
        } else {
            self.gate.fetch_and(!state.bits(), Ordering::AcqRel);
        }
    }

    /// Says of several states at once which of them hold.
    pub fn set_gates(&self, among: Gate, holding: Gate) {
        let holding = holding.intersection(among).bits();
        // Nothing is written, and no reader disturbed, where nothing changes: that is no error.
        let _ = self.gate.fetch_update(Ordering::AcqRel, Ordering::Acquire, |before| {
            let after = before & !among.bits() | holding;
            (after != before).then_some(after)
        });
    }

    /// Which events are published.
    #[must_use]
    #[inline]
    pub fn notified(&self) -> Class {
        Class::from_bits_retain(self.notified.load(Ordering::Relaxed))
    }

    /// Says which events are published (`notify-keyspace-events`).
    pub fn set_notified(&self, classes: Class) {
        self.notified.store(classes.bits(), Ordering::Relaxed);
    }

    /// How keys are evicted.
    #[must_use]
    pub fn evicting(&self) -> Evicting {
        Evicting {
            policy: POLICIES[usize::from(self.policy.load(Ordering::Relaxed))].1,
            samples: self.samples.load(Ordering::Relaxed).max(1),
            nanos: self.time_limit.load(Ordering::Relaxed),
            replica_ignores: self.replica_ignores.load(Ordering::Relaxed),
        }
    }

    /// Says how keys are evicted (`maxmemory-policy`, `maxmemory-samples`, `maxmemory-eviction-tenacity`,
    /// `replica-ignore-maxmemory`).
    pub fn set_evicting(&self, policy: EvictionPolicy, samples: usize, tenacity: u32, replica_ignores: bool) {
        let place = POLICIES.iter().position(|(known, _)| *known == policy);
        let place = place.expect("all policies are there");
        let kind = match POLICIES[place].1.order {
            Some(Order::Lfu) => UsageMeaning::Counts,
            Some(Order::Lrm) => UsageMeaning::Changes,
            _ => UsageMeaning::Accesses,
        };
        self.policy.store(place as u8, Ordering::Relaxed);
        self.usage_meaning.store(kind as u8, Ordering::Relaxed);
        self.samples.store(samples, Ordering::Relaxed);
        self.time_limit.store(time_limit(tenacity), Ordering::Relaxed);
        self.replica_ignores.store(replica_ignores, Ordering::Relaxed);
    }

    /// Whether values that go for this reason are freed in the background.
    #[must_use]
    pub fn is_lazy(&self, reason: Lazy) -> bool {
        Lazy::from_bits_truncate(self.lazy.load(Ordering::Relaxed)).contains(reason)
    }

    /// The command by which replicas and files are told that a key went for this reason: UNLINK where it is freed in
    /// the background, so that it is there, too.
    #[must_use]
    pub fn deletion(&self, reason: Lazy) -> &'static [u8] {
        if self.is_lazy(reason) { b"UNLINK" } else { b"DEL" }
    }

    /// Says which values are freed in the background.
    pub fn set_lazy(&self, reasons: Lazy) {
        self.lazy.store(reasons.bits(), Ordering::Relaxed);
    }

    /// Whether this node is a replica.
    #[must_use]
    pub fn is_replica(&self) -> bool {
        self.gate().contains(Gate::REPLICA)
    }

    /// Up to where a list is called `listpack`.
    #[must_use]
    #[inline]
    pub fn list_limit(&self) -> ListLimit {
        ListLimit(self.list_limit.load(Ordering::Relaxed))
    }

    /// The bounds up to which a set is called `intset` or `listpack`.
    #[must_use]
    #[inline]
    pub fn set_bounds(&self) -> SetBounds {
        let intset = self.set_intset_entries.load(Ordering::Relaxed);
        SetBounds { intset, listpack: self.set_bounds.load() }
    }

    /// Up to where entries of a stream are put together in one node.
    #[must_use]
    pub fn node_bounds(&self) -> StreamNodeBounds {
        StreamNodeBounds {
            bytes: self.stream_node_bytes.load(Ordering::Relaxed),
            entries: self.stream_node_entries.load(Ordering::Relaxed),
        }
    }

    /// For how long a new stream keeps the iids of producers, and how many of each.
    #[must_use]
    pub fn idempotence_bounds(&self) -> IdempotenceBounds {
        IdempotenceBounds {
            duration: self.stream_iid_seconds.load(Ordering::Relaxed),
            most: self.stream_iids.load(Ordering::Relaxed),
        }
    }

    /// Takes the bounds of streams that are made from now on.
    pub(crate) fn set_idempotence_bounds(&self, bounds: IdempotenceBounds) {
        self.stream_iid_seconds.store(bounds.duration, Ordering::Relaxed);
        self.stream_iids.store(bounds.most, Ordering::Relaxed);
    }

    /// Up to where collections are called small.
    #[must_use]
    pub fn limits(&self) -> EncodingLimits {
        EncodingLimits {
            list: self.list_limit(),
            set: self.set_bounds(),
            sorted_set: self.sorted_set_bounds.load(),
            hash: self.hash_bounds.load(),
            stream: self.node_bounds(),
        }
    }

    /// Takes the parameters of all kinds.
    pub fn set_limits(&self, limits: &EncodingLimits) {
        let EncodingLimits { list, set, sorted_set, hash, stream } = *limits;
        self.list_limit.store(list.0, Ordering::Relaxed);
        self.set_intset_entries.store(set.intset, Ordering::Relaxed);
        self.set_bounds.store(set.listpack);
        self.sorted_set_bounds.store(sorted_set);
        self.hash_bounds.store(hash);
        self.stream_node_bytes.store(stream.bytes, Ordering::Relaxed);
        self.stream_node_entries.store(stream.entries, Ordering::Relaxed);
    }
}

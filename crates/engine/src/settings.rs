//! Settings and node state flags that commands read at execution time.

mod configured;

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use bitflags::bitflags;
use config::{AllowedClients, EvictionPolicy};
use keyspace::{
    EncodingLimits, IdempotenceBounds, LfuSettings, ListLimit, ListpackBounds, SetBounds, StreamNodeBounds,
};
use slot_routing::EndpointType;

use crate::clients::Client;
use crate::eviction::{EVICTION_POLICIES, EvictionOrder, EvictionRule, time_limit_nanos};
use crate::notifications::EventClass;

bitflags! {
    /// Node state flags that may stop commands or change their behaviour. They are one atomic word, nearly always zero,
    /// which each command reads at admission and again after locking its slots. A new value is therefore in force once
    /// each slot was unlocked ([`Engine::wait_for_admitted_commands`](crate::Engine::wait_for_admitted_commands)).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct NodeFlags: u32 {
        /// The data set is being loaded.
        const LOADING = 1;
        /// This node is a replica that refuses writes (`replica-read-only`).
        const READ_ONLY_REPLICA = 1 << 1;
        /// This replica has no link to its master, and must not serve stale data.
        const MASTER_DOWN = 1 << 2;
        /// Too few healthy replicas are connected for writes (`min-replicas-to-write`).
        const NO_REPLICAS = 1 << 3;
        /// The last save failed, so writes must stop (`stop-writes-on-bgsave-error`).
        const MISCONF = 1 << 4;
        /// Memory use exceeds `maxmemory`.
        const OUT_OF_MEMORY = 1 << 5;
        /// The cluster is down, so commands with keys are refused.
        const CLUSTER_DOWN = 1 << 6;
        /// Writes are paused (CLIENT PAUSE WRITE, manual failover).
        const WRITES_PAUSED = 1 << 7;
        /// All commands are paused (CLIENT PAUSE ALL).
        const ALL_PAUSED = 1 << 8;
        /// This node is a replica without cluster mode: clients with the REDIRECT capability are redirected to its
        /// master.
        const REDIRECTS = 1 << 9;
        /// This node is a replica: expired keys are hidden, not deleted, and clients' writes, if permitted, are not
        /// logged.
        const REPLICA = 1 << 10;
        /// Writes to some slots are paused (MIGRATE of a frequently written key).
        const SLOT_WRITES_PAUSED = 1 << 11;
        /// The AOF cannot be written.
        const AOF_FAILED = 1 << 12;
        /// A script has exceeded `busy-reply-threshold`.
        const BUSY = 1 << 13;
        /// Some clients run MONITOR, or keys are being sampled, so that each command must be reported.
        const MONITORED = 1 << 14;
        /// Data is being imported (`import-mode`): keys are not expired.
        const IMPORTING = 1 << 15;
        /// This node is a master that restarted without data, and waits until a replica is promoted.
        const EMPTY_MASTER = 1 << 16;
        /// This replica serves its old data while a new snapshot is being loaded.
        const ASYNC_LOADING = 1 << 17;
        /// A client is being closed or its permissions are being changed: before its next command, each client checks
        /// whether this affects it ([`crate::Engine::await_revoked`]).
        const REVOKING = 1 << 18;
        /// Every command counts as slow (`long-command-threshold 0`).
        const BACKGROUND = 1 << 19;
    }
}

impl NodeFlags {
    /// Flags of a node whose data may be stale.
    pub const STALE: Self = Self::MASTER_DOWN.union(Self::EMPTY_MASTER);
    /// Flags of any pause, during which only the master's stream may be appended to the log.
    pub const PAUSED: Self = Self::WRITES_PAUSED.union(Self::ALL_PAUSED);
    /// Flags under which the node must not change data on its own, by expiry or eviction.
    pub const NO_OWN_CHANGES: Self =
        Self::PAUSED.union(Self::REPLICA).union(Self::LOADING).union(Self::IMPORTING);
}

/// A parameter with the values `no`, `yes` and `local`, which give a permission to no client, to all clients, or only
/// to clients on this host.
#[derive(Debug, Default)]
pub struct ClientPermission(AtomicU8);

const ALL_CLIENTS: u8 = 1;
const LOCAL_CLIENTS: u8 = 2;

impl ClientPermission {
    /// Sets which clients have the permission.
    pub fn set(&self, allowed: AllowedClients) {
        let value = match allowed {
            AllowedClients::Yes => ALL_CLIENTS,
            AllowedClients::Local => LOCAL_CLIENTS,
            AllowedClients::No => 0,
        };
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns whether a client has the permission. `is_local` says whether the client runs on this host.
    #[must_use]
    pub fn allows(&self, is_local: bool) -> bool {
        match self.0.load(Ordering::Relaxed) {
            ALL_CLIENTS => true,
            LOCAL_CLIENTS => is_local,
            _ => false,
        }
    }
}

/// [`ListpackBounds`] that several threads may read while one changes them.
#[derive(Debug)]
pub struct AtomicListpackBounds {
    max_entries: AtomicUsize,
    max_value_bytes: AtomicUsize,
}

impl AtomicListpackBounds {
    #[must_use]
    #[inline]
    pub fn load(&self) -> ListpackBounds {
        ListpackBounds {
            max_entries: self.max_entries.load(Ordering::Relaxed),
            max_value_len: self.max_value_bytes.load(Ordering::Relaxed),
        }
    }

    fn store(&self, bounds: ListpackBounds) {
        self.max_entries.store(bounds.max_entries, Ordering::Relaxed);
        self.max_value_bytes.store(bounds.max_value_len, Ordering::Relaxed);
    }
}

impl From<ListpackBounds> for AtomicListpackBounds {
    fn from(bounds: ListpackBounds) -> Self {
        Self {
            max_entries: AtomicUsize::new(bounds.max_entries),
            max_value_bytes: AtomicUsize::new(bounds.max_value_len),
        }
    }
}

/// The meaning of a key's usage data, depending on the eviction policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum UsageMeaning {
    /// Usage data is the time of the last access (LRU, and policies without usage data).
    LastAccess,
    /// Usage data is the access frequency (LFU).
    AccessFrequency,
    /// Usage data is the time of the last write (LRM).
    LastWrite,
}

bitflags! {
    /// Optional measurements per command, in one word that is read once per command.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Measurements: u8 {
        /// Latency distributions are recorded (`latency-tracking`).
        const LATENCY = 1;
        /// Costs per slot are measured (`cluster-slot-stats-enabled`).
        const SLOTS = 1 << 1;
        /// Costs per key are measured (HOTKEYS).
        const KEYS = 1 << 2;
    }
}

bitflags! {
    /// Reasons for which values are removed. For each reason a parameter such as `lazyfree-lazy-expire` decides whether
    /// large values are freed in the background or immediately by the removing thread.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LazyFreeReason: u8 {
        /// The key expired.
        const EXPIRE = 1;
        /// The key was evicted.
        const EVICTION = 1 << 1;
        /// The value was overwritten or moved.
        const SERVER_DEL = 1 << 2;
        /// The client ran DEL.
        const USER_DEL = 1 << 3;
    }
}

/// The parameters of key eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictionSettings {
    /// Which keys are evicted first.
    pub policy: EvictionRule,
    /// Number of keys sampled per eviction (`maxmemory-samples`).
    pub sample_count: usize,
    /// Maximum eviction time per command in nanoseconds.
    pub time_limit_nanos: u64,
    /// Whether a replica does not evict (`replica-ignore-maxmemory`).
    pub replica_ignores_maxmemory: bool,
}

/// Settings from the configuration and the server process, which may change at any time and are read without locks.
#[derive(Debug)]
pub struct Settings {
    node_flags: AtomicU32,
    /// Whether expired keys are deleted before they are accessed (DEBUG SET-ACTIVE-EXPIRE).
    pub active_expire: AtomicBool,
    /// Whether scripts may call commands not allowed in scripts (DEBUG SET-DISABLE-DENY-SCRIPTS).
    pub scripts_may_call_all: AtomicBool,
    /// Whether the source of a slot migration does not pause its clients (DEBUG SLOTMIGRATION PREVENT-PAUSE).
    pub prevent_migration_pause: AtomicBool,
    /// Whether the target of a slot migration does not claim the slots (DEBUG SLOTMIGRATION PREVENT-FAILOVER).
    pub prevent_migration_failover: AtomicBool,
    /// Whether wrong checksums are ignored (DEBUG SET-SKIP-CHECKSUM-VALIDATION).
    pub skip_checksums: AtomicBool,
    /// Whether files and payloads of unknown versions are accepted (`rdb-version-check relaxed`).
    accepts_any_version: AtomicBool,
    /// Whether compact encodings in files and client payloads are fully validated (`sanitize-dump-payload`).
    validates_files: AtomicBool,
    validates_payloads: AtomicBool,
    /// Whether the process stops when a snapshot for replicas starts (DEBUG PAUSE-AFTER-FORK).
    pub stops_at_snapshots: AtomicBool,
    /// Whether reads are served while the cluster is down (`cluster-allow-reads-when-down`).
    pub cluster_allow_reads_when_down: AtomicBool,
    measurements: AtomicU8,
    /// Whether shard channels work while the cluster is down (`cluster-allow-pubsubshard-when-down`).
    pub cluster_allow_pubsubshard_when_down: AtomicBool,
    /// Whether FLUSHALL and FLUSHDB default to ASYNC (`lazyfree-lazy-user-flush`).
    pub flush_async: AtomicBool,
    /// Maximum string length in bytes (`proto-max-bulk-len`).
    pub proto_max_bulk_len: AtomicI64,
    /// The meaning of the keys' usage data, by `maxmemory-policy`.
    usage_meaning: AtomicU8,
    /// How slowly the LFU counter grows with accesses (`lfu-log-factor`).
    pub lfu_log_factor: AtomicU32,
    /// Minutes after which an unused LFU counter is decremented (`lfu-decay-time`).
    pub lfu_decay_minutes: AtomicU32,
    /// Maximum size of the `intset` encoding (`set-max-intset-entries`).
    max_intset_entries: AtomicUsize,
    /// Maximum size of the `listpack` encoding of sets.
    listpack_bounds_of_sets: AtomicListpackBounds,
    /// Maximum size of the `listpack` encoding of sorted sets.
    pub listpack_bounds_of_sorted_sets: AtomicListpackBounds,
    /// Maximum size of the `listpack` encoding of hashes.
    pub listpack_bounds_of_hashes: AtomicListpackBounds,
    /// Maximum size of the `listpack` encoding of lists.
    list_limit: AtomicI32,
    /// Maximum size in bytes of the sparse HyperLogLog encoding (`hll-sparse-max-bytes`).
    pub hll_sparse_max_bytes: AtomicUsize,
    /// Milliseconds after which a script blocks the server (`busy-reply-threshold`); 0 means never.
    pub busy_reply_threshold: AtomicI64,
    /// Whether scripts have `getfenv` and `setfenv` (`lua-enable-insecure-api`).
    pub lua_deprecated_api: AtomicBool,
    /// Whether errors name Redis instead of Valkey (`extended-redis-compatibility`).
    pub extended_redis_compatibility: AtomicBool,
    /// Maximum size of a stream node: `stream-node-max-bytes` and `stream-node-max-entries`.
    stream_node_bytes: AtomicUsize,
    stream_node_entries: AtomicUsize,
    /// Default retention of producer ids in streams, in seconds and number: `stream-idmp-duration` and
    /// `stream-idmp-maxsize`; XCFGSET overrides them per stream.
    stream_producer_id_seconds: AtomicU64,
    stream_producer_id_limit: AtomicU64,
    /// Who may call DEBUG (`enable-debug-command`).
    pub debug_command: ClientPermission,
    /// Who may call MODULE LOAD and related commands (`enable-module-command`).
    pub module_command: ClientPermission,
    /// Who may change protected parameters with CONFIG SET (`enable-protected-configs`).
    pub protected_configs: ClientPermission,
    /// Eviction parameters: the index in [`EVICTION_POLICIES`], `maxmemory-samples`, the time limit per command in nanoseconds,
    /// and `replica-ignore-maxmemory`.
    eviction_policy: AtomicU8,
    sample_count: AtomicUsize,
    eviction_time_limit_nanos: AtomicU64,
    replica_ignores_maxmemory: AtomicBool,
    /// Reasons for freeing in the background, as bits of `LazyFreeReason`.
    lazy_free_reasons: AtomicU8,
    /// Published event classes and channel kinds ([`EventClass`]).
    notified_events: AtomicU32,
    /// The reason why the AOF cannot be written, while [`NodeFlags::AOF_FAILED`] is set.
    pub aof_error: ArcSwap<String>,
    /// Number of FLUSHALL calls. A save that started before the last call is useless.
    pub flushall_count: AtomicU64,
    /// Number of times that a whole database was emptied. If the number changes during an import, the data imported so
    /// far is lost.
    pub cleared_databases: AtomicU64,
    /// Kind of address in redirections, as a number (`cluster-preferred-endpoint-type`).
    endpoint_type: AtomicU8,
    /// The master's `host:port`, while [`NodeFlags::REDIRECTS`] is set.
    pub redirect_to: ArcSwap<String>,
    /// Availability zone of this server, for clients that prefer nearby nodes; empty if unset.
    pub availability_zone: ArcSwap<String>,
    /// State shared with the sentinels that monitor this server.
    pub sentinel: SentinelState,
}

/// Channel on which sentinels announce themselves to each other through their masters.
const HELLO_CHANNEL: &[u8] = b"__sentinel__:hello";
/// Prefix of the client names that sentinels use.
const SENTINEL_NAME_PREFIX: &[u8] = b"sentinel-";

/// State about the sentinels that monitor this server.
#[derive(Debug, Default)]
pub struct SentinelState {
    /// Whether a hello message has arrived since startup.
    pub hello_seen: AtomicBool,
    /// Whether PINGs of sentinels are answered with an error, so that the sentinels fail over from this node; set with
    /// [`NodeFlags::EMPTY_MASTER`].
    pub rejects_sentinel_pings: AtomicBool,
    /// The last hello message, until the server process takes it.
    pub last_hello: ArcSwapOption<Vec<u8>>,
}

impl SentinelState {
    /// Returns whether a ping of this client gets an error.
    #[inline]
    #[must_use]
    pub fn rejects_ping_of(&self, client: &Client) -> bool {
        self.rejects_sentinel_pings.load(Ordering::Relaxed) && Self::is_sentinel(client)
    }

    /// Returns whether the client is a sentinel by its name.
    #[must_use]
    pub fn is_sentinel(client: &Client) -> bool {
        client.names.lock().name.starts_with(SENTINEL_NAME_PREFIX)
    }

    /// Stores a published message if it is a sentinel's hello message.
    pub fn store_hello(&self, channel: &[u8], message: &[u8]) {
        if channel != HELLO_CHANNEL {
            return;
        }
        self.hello_seen.store(true, Ordering::Relaxed);
        self.last_hello.store(Some(Arc::new(message.to_vec())));
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            node_flags: AtomicU32::new(0),
            active_expire: AtomicBool::new(true),
            scripts_may_call_all: AtomicBool::new(false),
            prevent_migration_pause: AtomicBool::new(false),
            prevent_migration_failover: AtomicBool::new(false),
            skip_checksums: AtomicBool::new(false),
            accepts_any_version: AtomicBool::new(false),
            validates_files: AtomicBool::new(false),
            validates_payloads: AtomicBool::new(false),
            stops_at_snapshots: AtomicBool::new(false),
            cluster_allow_reads_when_down: AtomicBool::new(false),
            measurements: AtomicU8::new(Measurements::LATENCY.bits()),
            cluster_allow_pubsubshard_when_down: AtomicBool::new(true),
            flush_async: AtomicBool::new(true),
            proto_max_bulk_len: AtomicI64::new(512 * 1024 * 1024),
            usage_meaning: AtomicU8::new(UsageMeaning::LastAccess as u8),
            lfu_log_factor: AtomicU32::new(10),
            lfu_decay_minutes: AtomicU32::new(1),
            max_intset_entries: EncodingLimits::default().set.max_intset_entries.into(),
            listpack_bounds_of_sets: EncodingLimits::default().set.listpack.into(),
            listpack_bounds_of_sorted_sets: EncodingLimits::default().sorted_set.into(),
            listpack_bounds_of_hashes: EncodingLimits::default().hash.into(),
            list_limit: AtomicI32::new(EncodingLimits::default().list.0),
            hll_sparse_max_bytes: AtomicUsize::new(3000),
            busy_reply_threshold: AtomicI64::new(5000),
            lua_deprecated_api: AtomicBool::new(false),
            extended_redis_compatibility: AtomicBool::new(false),
            stream_node_bytes: AtomicUsize::new(EncodingLimits::default().stream.max_bytes),
            stream_node_entries: AtomicUsize::new(EncodingLimits::default().stream.max_entries),
            stream_producer_id_seconds: AtomicU64::new(100),
            stream_producer_id_limit: AtomicU64::new(100),
            debug_command: ClientPermission::default(),
            module_command: ClientPermission::default(),
            protected_configs: ClientPermission::default(),
            eviction_policy: AtomicU8::new(0),
            sample_count: AtomicUsize::new(5),
            eviction_time_limit_nanos: AtomicU64::new(time_limit_nanos(10)),
            replica_ignores_maxmemory: AtomicBool::new(true),
            lazy_free_reasons: AtomicU8::new(LazyFreeReason::all().bits()),
            notified_events: AtomicU32::new(0),
            aof_error: ArcSwap::default(),
            flushall_count: AtomicU64::new(0),
            cleared_databases: AtomicU64::new(0),
            endpoint_type: AtomicU8::new(EndpointType::Ip as u8),
            redirect_to: ArcSwap::default(),
            availability_zone: ArcSwap::default(),
            sentinel: SentinelState::default(),
        }
    }
}

impl Settings {
    /// Returns the kind of address used in redirections.
    #[must_use]
    pub fn endpoint_type(&self) -> EndpointType {
        let kind = self.endpoint_type.load(Ordering::Relaxed);
        let kinds = [EndpointType::Ip, EndpointType::Hostname, EndpointType::Unknown];
        kinds.into_iter().find(|each| *each as u8 == kind).unwrap_or_default()
    }

    /// Sets the kind of address used in redirections.
    pub fn set_endpoint_type(&self, kind: EndpointType) {
        self.endpoint_type.store(kind as u8, Ordering::Relaxed);
    }

    /// Returns the LFU parameters if the policy is LFU.
    #[must_use]
    pub fn lfu(&self) -> Option<LfuSettings> {
        (self.usage_meaning() == UsageMeaning::AccessFrequency).then(|| self.lfu_settings())
    }

    pub(crate) fn lfu_settings(&self) -> LfuSettings {
        LfuSettings {
            log_factor: self.lfu_log_factor.load(Ordering::Relaxed),
            decay_minutes: self.lfu_decay_minutes.load(Ordering::Relaxed),
        }
    }

    /// Returns the meaning of the keys' usage data.
    #[inline(always)]
    pub(crate) fn usage_meaning(&self) -> UsageMeaning {
        match self.usage_meaning.load(Ordering::Relaxed) {
            kind if kind == UsageMeaning::AccessFrequency as u8 => UsageMeaning::AccessFrequency,
            kind if kind == UsageMeaning::LastWrite as u8 => UsageMeaning::LastWrite,
            _ => UsageMeaning::LastAccess,
        }
    }

    /// Returns the current node state flags.
    #[must_use]
    pub fn node_flags(&self) -> NodeFlags {
        NodeFlags::from_bits_truncate(self.node_flags.load(Ordering::Acquire))
    }

    /// Returns the enabled optional measurements.
    #[inline(always)]
    pub fn measurements(&self) -> Measurements {
        Measurements::from_bits_truncate(self.measurements.load(Ordering::Relaxed))
    }

    /// Enables the measurements in `measurements` if `enabled`, otherwise disables them.
    pub fn set_measurements(&self, measurements: Measurements, enabled: bool) {
        match enabled {
            true => self.measurements.fetch_or(measurements.bits(), Ordering::Relaxed),
            false => self.measurements.fetch_and(!measurements.bits(), Ordering::Relaxed),
        };
    }

    /// Sets the flag if `enabled`, otherwise clears it.
    pub fn set_node_flag(&self, flag: NodeFlags, enabled: bool) {
        if enabled {
            self.node_flags.fetch_or(flag.bits(), Ordering::AcqRel);
        } else {
            self.node_flags.fetch_and(!flag.bits(), Ordering::AcqRel);
        }
    }

    /// Sets the flags in `mask` to their values in `values`, atomically.
    pub fn set_node_flags(&self, mask: NodeFlags, values: NodeFlags) {
        let holding = values.intersection(mask).bits();
        // `Err` means that the value is unchanged; it is not written then, to spare the caches of other cores.
        let _ = self.node_flags.fetch_update(Ordering::AcqRel, Ordering::Acquire, |before| {
            let after = before & !mask.bits() | holding;
            (after != before).then_some(after)
        });
    }

    /// Returns the published event classes.
    #[must_use]
    #[inline]
    pub fn notified_event_classes(&self) -> EventClass {
        EventClass::from_bits_retain(self.notified_events.load(Ordering::Relaxed))
    }

    /// Sets the published event classes and channel kinds (`notify-keyspace-events`).
    pub fn set_notified_event_classes(&self, classes: EventClass) {
        self.notified_events.store(classes.bits(), Ordering::Relaxed);
    }

    /// Returns the eviction parameters.
    #[must_use]
    pub fn eviction_settings(&self) -> EvictionSettings {
        EvictionSettings {
            policy: EVICTION_POLICIES[usize::from(self.eviction_policy.load(Ordering::Relaxed))].1,
            sample_count: self.sample_count.load(Ordering::Relaxed).max(1),
            time_limit_nanos: self.eviction_time_limit_nanos.load(Ordering::Relaxed),
            replica_ignores_maxmemory: self.replica_ignores_maxmemory.load(Ordering::Relaxed),
        }
    }

    /// Sets the eviction parameters (`maxmemory-policy`, `maxmemory-samples`, `maxmemory-eviction-tenacity`,
    /// `replica-ignore-maxmemory`).
    pub fn set_eviction_settings(
        &self,
        policy: EvictionPolicy,
        sample_count: usize,
        tenacity: u32,
        replica_ignores_maxmemory: bool,
    ) {
        let place = EVICTION_POLICIES.iter().position(|(known, _)| *known == policy);
        let place = place.expect("all policies are there");
        let kind = match EVICTION_POLICIES[place].1.order {
            Some(EvictionOrder::Lfu) => UsageMeaning::AccessFrequency,
            Some(EvictionOrder::Lrm) => UsageMeaning::LastWrite,
            _ => UsageMeaning::LastAccess,
        };
        self.eviction_policy.store(place as u8, Ordering::Relaxed);
        self.usage_meaning.store(kind as u8, Ordering::Relaxed);
        self.sample_count.store(sample_count, Ordering::Relaxed);
        self.eviction_time_limit_nanos.store(time_limit_nanos(tenacity), Ordering::Relaxed);
        self.replica_ignores_maxmemory.store(replica_ignores_maxmemory, Ordering::Relaxed);
    }

    /// Returns whether large values removed for this reason are freed in the background.
    #[must_use]
    pub fn frees_lazily(&self, reason: LazyFreeReason) -> bool {
        LazyFreeReason::from_bits_truncate(self.lazy_free_reasons.load(Ordering::Relaxed)).contains(reason)
    }

    /// Returns the command that replicates a removal for this reason: UNLINK if values are freed in the background, so
    /// that replicas do the same, otherwise DEL.
    #[must_use]
    pub fn deletion_command(&self, reason: LazyFreeReason) -> &'static [u8] {
        if self.frees_lazily(reason) { b"UNLINK" } else { b"DEL" }
    }

    /// Sets the reasons for which values are freed in the background.
    pub fn set_lazy_reasons(&self, reasons: LazyFreeReason) {
        self.lazy_free_reasons.store(reasons.bits(), Ordering::Relaxed);
    }

    /// Returns whether this node is a replica.
    #[must_use]
    pub fn is_replica(&self) -> bool {
        self.node_flags().contains(NodeFlags::REPLICA)
    }

    /// Returns the maximum size of the `listpack` encoding of lists.
    #[must_use]
    #[inline]
    pub fn list_limit(&self) -> ListLimit {
        ListLimit(self.list_limit.load(Ordering::Relaxed))
    }

    /// Returns the maximum sizes of the `intset` and `listpack` encodings of sets.
    #[must_use]
    #[inline]
    pub fn bounds_of_sets(&self) -> SetBounds {
        let intset = self.max_intset_entries.load(Ordering::Relaxed);
        SetBounds { max_intset_entries: intset, listpack: self.listpack_bounds_of_sets.load() }
    }

    /// Returns the maximum size of a stream node.
    #[must_use]
    pub fn stream_node_bounds(&self) -> StreamNodeBounds {
        StreamNodeBounds {
            max_bytes: self.stream_node_bytes.load(Ordering::Relaxed),
            max_entries: self.stream_node_entries.load(Ordering::Relaxed),
        }
    }

    /// Returns the default retention of producer ids in streams.
    #[must_use]
    pub fn idempotence_bounds(&self) -> IdempotenceBounds {
        IdempotenceBounds {
            duration_secs: self.stream_producer_id_seconds.load(Ordering::Relaxed),
            max_iids: self.stream_producer_id_limit.load(Ordering::Relaxed),
        }
    }

    /// Sets the default retention of producer ids for new streams.
    pub(crate) fn set_idempotence_bounds(&self, bounds: IdempotenceBounds) {
        self.stream_producer_id_seconds.store(bounds.duration_secs, Ordering::Relaxed);
        self.stream_producer_id_limit.store(bounds.max_iids, Ordering::Relaxed);
    }

    /// Returns the maximum sizes of all compact encodings.
    #[must_use]
    pub fn encoding_limits(&self) -> EncodingLimits {
        EncodingLimits {
            list: self.list_limit(),
            set: self.bounds_of_sets(),
            sorted_set: self.listpack_bounds_of_sorted_sets.load(),
            hash: self.listpack_bounds_of_hashes.load(),
            stream: self.stream_node_bounds(),
        }
    }

    /// Sets the maximum sizes of all compact encodings.
    pub fn set_encoding_limits(&self, limits: &EncodingLimits) {
        let EncodingLimits { list, set, sorted_set, hash, stream } = *limits;
        self.list_limit.store(list.0, Ordering::Relaxed);
        self.max_intset_entries.store(set.max_intset_entries, Ordering::Relaxed);
        self.listpack_bounds_of_sets.store(set.listpack);
        self.listpack_bounds_of_sorted_sets.store(sorted_set);
        self.listpack_bounds_of_hashes.store(hash);
        self.stream_node_bytes.store(stream.max_bytes, Ordering::Relaxed);
        self.stream_node_entries.store(stream.max_entries, Ordering::Relaxed);
    }
}

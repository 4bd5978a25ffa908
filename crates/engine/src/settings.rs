//! Settings and node state flags that commands read at execution time.
//!
//! A parameter that nearly every command needs is a field here or in one of the parts, so that reading it costs one
//! load. [`crate::Engine::configure`] passes the other parameters on to their components.

mod eviction;
mod input_checks;
mod lazy_free;
mod permissions;
mod routing;
mod scripts;
mod sentinels;
mod value_limits;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use bitflags::bitflags;
use config::{Values, keys};

use crate::notifications::EventClass;
pub(crate) use eviction::UsageMeaning;
pub use eviction::{AtomicEvictionSettings, EvictionSettings};
pub use input_checks::InputCheckSettings;
pub use lazy_free::{LazyFreeReason, LazyFreeSettings};
pub use permissions::{ClientPermission, PermissionSettings};
pub use routing::RoutingSettings;
pub use scripts::ScriptSettings;
pub use sentinels::SentinelState;
pub use value_limits::{AtomicListpackBounds, ValueLimits};

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
        /// whether this affects it ([`crate::Engine::await_revoked_clients`]).
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

/// Settings from the configuration and the server process, which may change at any time and are read without locks.
#[derive(Debug)]
pub struct Settings {
    node_flags: AtomicU32,
    /// Published event classes and channel kinds ([`EventClass`]).
    notified_events: AtomicU32,
    measurements: AtomicU8,
    /// Whether errors name Redis instead of Valkey (`extended-redis-compatibility`).
    pub extended_redis_compatibility: AtomicBool,
    /// Key eviction and the keys' usage data.
    pub eviction: AtomicEvictionSettings,
    /// Which removed values are freed in the background.
    pub lazy_free: LazyFreeSettings,
    /// Limits on the size and the compact encodings of values.
    pub value_limits: ValueLimits,
    /// Script execution.
    pub scripts: ScriptSettings,
    /// Redirections, and what is served while the cluster is down.
    pub routing: RoutingSettings,
    /// How thoroughly files and payloads are validated.
    pub input_checks: InputCheckSettings,
    /// Who may run administrative commands.
    pub permissions: PermissionSettings,
    /// Switches of the DEBUG command.
    pub debug: DebugSwitches,
    /// What saves and imports need to know about the data set.
    pub dataset: DatasetState,
    /// State shared with the sentinels that monitor this server.
    pub sentinel: SentinelState,
}

/// Switches that only the DEBUG command changes.
#[derive(Debug)]
pub struct DebugSwitches {
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
    /// Whether the process stops when a snapshot for replicas starts (DEBUG PAUSE-AFTER-FORK).
    pub stops_at_snapshots: AtomicBool,
}

impl Default for DebugSwitches {
    fn default() -> Self {
        Self {
            active_expire: AtomicBool::new(true),
            scripts_may_call_all: AtomicBool::new(false),
            prevent_migration_pause: AtomicBool::new(false),
            prevent_migration_failover: AtomicBool::new(false),
            skip_checksums: AtomicBool::new(false),
            stops_at_snapshots: AtomicBool::new(false),
        }
    }
}

/// What saves and imports need to know about the data set while they run.
#[derive(Debug, Default)]
pub struct DatasetState {
    /// The reason why the AOF cannot be written, while [`NodeFlags::AOF_FAILED`] is set.
    pub aof_error: ArcSwap<String>,
    /// Number of FLUSHALL calls. A save that started before the last call is useless.
    pub flushall_count: AtomicU64,
    /// Number of times that a whole database was emptied. If the number changes during an import, the data imported so
    /// far is lost.
    pub cleared_databases: AtomicU64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            node_flags: AtomicU32::new(0),
            notified_events: AtomicU32::new(0),
            measurements: AtomicU8::new(Measurements::LATENCY.bits()),
            extended_redis_compatibility: AtomicBool::new(false),
            eviction: AtomicEvictionSettings::default(),
            lazy_free: LazyFreeSettings::default(),
            value_limits: ValueLimits::default(),
            scripts: ScriptSettings::default(),
            routing: RoutingSettings::default(),
            input_checks: InputCheckSettings::default(),
            permissions: PermissionSettings::default(),
            debug: DebugSwitches::default(),
            dataset: DatasetState::default(),
            sentinel: SentinelState::default(),
        }
    }
}

impl Settings {
    /// Applies the current configuration, at startup and after CONFIG SET.
    pub(crate) fn configure(&self, values: &Values) {
        self.set_node_flag(NodeFlags::IMPORTING, values[keys::IMPORT_MODE]);
        self.set_measurements(Measurements::LATENCY, values[keys::LATENCY_TRACKING]);
        self.set_measurements(Measurements::SLOTS, values[keys::CLUSTER_SLOT_STATS_ENABLED]);
        self.set_notified_event_classes(
            EventClass::from_letters(&values[keys::NOTIFY_KEYSPACE_EVENTS]).unwrap_or_default(),
        );
        let is_compatible = values[keys::EXTENDED_REDIS_COMPATIBILITY];
        self.extended_redis_compatibility.store(is_compatible, Ordering::Relaxed);
        self.eviction.configure(values);
        self.lazy_free.configure(values);
        self.value_limits.configure(values);
        self.scripts.configure(values);
        self.routing.configure(values);
        self.input_checks.configure(values);
        self.permissions.configure(values);
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

    /// Enables the given measurements if `enabled` is set, otherwise disables them.
    pub fn set_measurements(&self, measurements: Measurements, enabled: bool) {
        match enabled {
            true => self.measurements.fetch_or(measurements.bits(), Ordering::Relaxed),
            false => self.measurements.fetch_and(!measurements.bits(), Ordering::Relaxed),
        };
    }

    /// Sets the flag if `enabled` is true, otherwise clears it.
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

    /// Returns whether this node is a replica.
    #[must_use]
    pub fn is_replica(&self) -> bool {
        self.node_flags().contains(NodeFlags::REPLICA)
    }
}

#[cfg(test)]
mod tests {
    use config::Config;

    use super::*;

    /// Tests of commands run without a configuration, so the initial settings must equal the default values.
    #[test]
    fn initial_settings_match_configuration_defaults() {
        let settings = Settings::default();
        let before = format!("{settings:#?}");
        settings.configure(&Config::default().values());
        assert_eq!(format!("{settings:#?}"), before);
    }

    #[test]
    fn changed_parameters_reach_settings() {
        let (settings, config) = (Settings::default(), Config::default());
        let change = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let changes = [
            change("enable-debug-command", "local"),
            change("maxmemory-policy", "allkeys-lfu"),
            change("lazyfree-lazy-expire", "no"),
            change("hash-max-listpack-entries", "7"),
            change("busy-reply-threshold", "70"),
            change("notify-keyspace-events", "KEx"),
        ];
        for (name, value) in changes {
            config.load(&name, &[value]).unwrap();
        }
        settings.configure(&config.values());
        assert!(
            settings.permissions.debug_command.allows(true)
                && !settings.permissions.debug_command.allows(false)
        );
        assert!(settings.eviction.lfu().is_some());
        assert!(
            !settings.lazy_free.is_enabled(LazyFreeReason::EXPIRE)
                && settings.lazy_free.is_enabled(LazyFreeReason::USER_DEL)
        );
        assert_eq!(settings.value_limits.encoding_limits().hash.max_entries, 7);
        assert_eq!(settings.scripts.busy_reply_threshold.load(Ordering::Relaxed), 70);
        assert_eq!(
            settings.notified_event_classes(),
            EventClass::KEYSPACE | EventClass::KEYEVENT | EventClass::EXPIRED
        );
    }
}

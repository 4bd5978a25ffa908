//! The state shared by all connections of a server, and the state that each worker thread needs to run commands.
//!
//! Operations that change several components together, or that remove keys outside of commands, are methods of
//! [`Engine`], grouped by concern in the modules below. The engine knows commands only by number and name; dispatch is
//! built on top of it.

mod configured;
mod eviction;
mod expiry;
mod lease;
mod local_expiry;
mod revocation;
mod routing;
mod scripts;
mod sessions;
mod staged;
mod telling;
mod usage;
mod users;
mod waiters;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use acl::{CommandCatalogue, Users};
use arc_swap::ArcSwap;
use keyspace::{Keyspace, Table};
use parking_lot::{Mutex, RwLock};
use scripting::Scripts;
use slot_routing::{Slot, Topology};

use crate::budget::{AllocatorStats, Budget, ReportedAllocations};
use crate::clients::{Client, Clients};
use crate::command_log::CommandLogs;
use crate::effects::{EffectLog, Effects, NoLog};
use crate::eviction::Evictor;
use crate::histogram::Distribution;
use crate::hot_keys::HotKeys;
use crate::latency::LatencyMonitor;
use crate::lazy_free::LazyFreeQueue;
use crate::long_commands::LongCommands;
use crate::monitors::Monitors;
use crate::notifications::AbsentKeys;
use crate::pause::Pauses;
use crate::pubsub::PubSub;
use crate::random::Random;
use crate::scripting::{ScriptHooks, ThreadScripting};
use crate::settings::Settings;
use crate::slot_costs::{SlotCost, SlotCostBaseline};
use crate::slot_waits::SlotWaits;
use crate::stats::{ErrorCodes, WorkerStats};
use crate::tracking::TrackingTable;
use crate::undeclared_keys::UndeclaredKeys;
use crate::waiting::{ReadyKey, WaitQueues};
use crate::watch::WatchTable;
use expiry::ExpiryCursor;
use lease::Lease;
use local_expiry::LocalExpiries;
use revocation::Revocations;
pub use routing::TopologyChange;
pub(crate) use staged::CopyOnAccess;
use usage::UsageKind;
pub(crate) use users::DenialRecord;

/// The state shared by all connections of a server.
#[derive(Debug)]
pub struct Engine {
    /// The keys and values of all databases.
    pub keyspace: Arc<Keyspace>,
    /// Settings from the configuration and from the server process.
    pub settings: Settings,
    /// Slot ownership; `None` without cluster mode.
    pub topology: Option<ArcSwap<Topology>>,
    /// Receives the effects of commands, for the AOF and the replicas.
    pub log: Box<dyn EffectLog>,
    /// The connected clients by id.
    pub clients: Clients,
    /// Pauses that make commands wait, such as CLIENT PAUSE.
    pub pauses: Pauses,
    lease: Lease,
    /// Large values that a background thread frees.
    pub lazy_free: LazyFreeQueue,
    /// Scheduling of long commands on background workers.
    pub long_commands: LongCommands,
    /// How long commands waited for slot locks (INFO, LATENCY).
    pub slot_waits: SlotWaits,
    /// The memory limit, and the accounting of memory use against it.
    pub budget: Budget,
    /// Logs of slow commands and large requests and replies.
    pub command_logs: CommandLogs,
    /// The latency monitor (LATENCY).
    pub latency: LatencyMonitor,
    /// The most expensive and most used keys (HOTKEYS).
    pub hot_keys: HotKeys,
    /// Channels and their subscribers.
    pub pubsub: PubSub,
    /// Keys that clients may have cached (CLIENT TRACKING).
    pub tracking: TrackingTable,
    /// Counts handlers that accessed undeclared keys.
    pub undeclared_keys: UndeclaredKeys,
    /// The ACL users with their passwords and permissions.
    pub users: RwLock<Users>,
    /// Recent denials (ACL LOG).
    pub acl_log: Mutex<acl::AclLog>,
    /// Incremented on every change of users, so that sessions reload their cached rules.
    pub(crate) users_version: AtomicU64,
    revocations: Revocations,
    /// Scripts, functions, and the state of the threads' interpreters.
    pub scripts: Scripts,
    /// Callbacks from scripts into the server process.
    pub script_hooks: ScriptHooks,
    expiry_cursor: ExpiryCursor,
    local_expiry: LocalExpiries,
    usage_kind: UsageKind,
    /// Clients that run MONITOR.
    pub monitors: Monitors,
    pub(crate) watch_table: WatchTable,
    pub(crate) wait_queues: WaitQueues,
    /// Wall clock minus the workers' monotonic clock, in microseconds; 0 while unknown.
    pub(crate) wall_clock_offset_micros: AtomicI64,
    /// The source of the keys if this engine belongs to a script debugging session; otherwise `None`.
    pub(crate) copy_on_access: Option<CopyOnAccess>,
    /// Numbers and names of the commands, for access control and statistics.
    pub catalogue: Arc<CommandCatalogue>,
    workers: Mutex<Vec<Arc<WorkerStats>>>,
    error_codes: Arc<ErrorCodes>,
    slot_cost_baseline: SlotCostBaseline,
}

/// A command in another node's stream ([`CommandOrigin::is_stream`]) that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandFailure {
    /// Index of the failed request in its batch. For a command of a transaction it is the index of EXEC.
    pub request_index: usize,
    /// The error text that a client would have received.
    pub error: String,
    /// Whether the command was skipped because it changes no data, so that this node's data still equals the other
    /// node's.
    pub is_harmless: bool,
}

/// The state that one thread needs to run commands.
#[derive(Debug)]
pub struct Worker {
    /// The statistics counters of this thread.
    pub stats: Arc<WorkerStats>,
    pub(crate) effects: Effects,
    pub(crate) random: Random,
    /// Reused buffer for one key, and for the name of an element of its value.
    pub(crate) key_buffer: Vec<u8>,
    pub(crate) name_buffer: Vec<u8>,
    /// Changed keys that clients wait for, until those clients are served.
    pub(crate) ready_keys: Vec<ReadyKey>,
    /// Keys that the running command created. Recorded only if `new` keyspace events are enabled.
    pub(crate) absent_keys: AbsentKeys,
    pub(crate) reported_allocations: ReportedAllocations,
    pub(crate) evictor: Evictor,
    /// Tables emptied by a command, dropped after the slot locks are released.
    pub(crate) removed_tables: Vec<Table>,
    /// Push messages of a command whose reply is suppressed (CLIENT REPLY).
    pub(crate) push_messages: Vec<u8>,
    /// Clients that a command closed or whose permissions it changed, handled after the slot locks are released.
    pub(crate) revoked_clients: Vec<Arc<Client>>,
    /// The scripts and the interpreter of this thread.
    pub(crate) scripting: ThreadScripting,
    /// Wall clock in microseconds, frozen for the running transaction or script when first read.
    pub(crate) frozen_wall_micros: Option<i64>,
    /// Index of the current request in its batch, or of the last request if none is running.
    pub request_index: usize,
    /// The commands of another node's stream that failed in the last run.
    pub(crate) failures: Vec<CommandFailure>,
    /// A monotonic clock in nanoseconds, read once per command for statistics.
    pub(crate) clock_nanos: fn() -> u64,
}

impl Engine {
    /// Creates an engine for a data set and a command catalogue; cluster mode is on if there is a topology.
    #[must_use]
    pub fn new(
        catalogue: impl Into<Arc<CommandCatalogue>>,
        keyspace: Keyspace,
        topology: Option<Topology>,
        log: Box<dyn EffectLog>,
    ) -> Self {
        let catalogue = catalogue.into();
        Self {
            keyspace: Arc::new(keyspace),
            settings: Settings::default(),
            topology: topology.map(ArcSwap::from_pointee),
            log,
            clients: Clients::default(),
            pauses: Pauses::default(),
            lease: Lease::default(),
            lazy_free: LazyFreeQueue::default(),
            long_commands: LongCommands::default(),
            slot_waits: SlotWaits::default(),
            budget: Budget::default(),
            command_logs: CommandLogs::default(),
            latency: LatencyMonitor::default(),
            hot_keys: HotKeys::default(),
            pubsub: PubSub::default(),
            tracking: TrackingTable::default(),
            undeclared_keys: UndeclaredKeys::default(),
            scripts: Scripts::default(),
            script_hooks: ScriptHooks::default(),
            expiry_cursor: ExpiryCursor::default(),
            local_expiry: LocalExpiries::default(),
            usage_kind: UsageKind::default(),
            monitors: Monitors::default(),
            watch_table: WatchTable::default(),
            wait_queues: WaitQueues::default(),
            wall_clock_offset_micros: AtomicI64::new(0),
            users: RwLock::new(Users::new(catalogue.clone())),
            acl_log: Mutex::default(),
            // A session starts with version 0, so it loads its user's rules before its first command.
            users_version: AtomicU64::new(1),
            revocations: Revocations::default(),
            copy_on_access: None,
            catalogue,
            workers: Mutex::new(Vec::new()),
            error_codes: Arc::default(),
            slot_cost_baseline: SlotCostBaseline::default(),
        }
    }

    /// Sets the callbacks from scripts into the server process.
    #[must_use]
    pub fn with_script_hooks(self, script_hooks: ScriptHooks) -> Self {
        Self { script_hooks, ..self }
    }

    /// Creates the engine of a sentinel. It has no data, and of the sentinel's commands it runs only those about
    /// connections.
    #[must_use]
    pub fn for_sentinel(catalogue: impl Into<Arc<CommandCatalogue>>, seed: u64) -> Self {
        Self::new(catalogue, Keyspace::new(seed, 1), None, Box::new(NoLog))
    }

    /// Creates the state of one more worker thread. `nanos` reads a monotonic clock.
    #[must_use]
    pub fn new_worker(&self, nanos: fn() -> u64) -> Worker {
        let stats = Arc::new(WorkerStats::new(self.catalogue.len(), self.error_codes.clone()));
        let mut workers = self.workers.lock();
        workers.push(stats.clone());
        // The keyspace's hash function is seeded randomly, so this hash serves as a random seed.
        let seed = self.keyspace.key(&workers.len().to_le_bytes()).hash();
        let (effects, random) = (Effects::default(), Random::new(seed));
        Worker {
            stats,
            effects,
            random,
            key_buffer: Vec::new(),
            name_buffer: Vec::new(),
            ready_keys: Vec::new(),
            absent_keys: AbsentKeys::default(),
            reported_allocations: ReportedAllocations::without_allocator(),
            evictor: Evictor::default(),
            removed_tables: Vec::new(),
            push_messages: Vec::new(),
            revoked_clients: Vec::new(),
            scripting: ThreadScripting::default(),
            frozen_wall_micros: None,
            request_index: 0,
            failures: Vec::new(),
            clock_nanos: nanos,
        }
    }

    /// Removes the counters of a thread that has ended.
    pub(crate) fn remove_worker(&self, worker: &Worker) {
        let mut workers = self.workers.lock();
        workers.retain(|stats| !Arc::ptr_eq(stats, &worker.stats));
        self.slot_cost_baseline.retain_ended_worker_costs(&worker.stats.slot_costs);
    }

    /// Relates the wall clock to the workers' monotonic clock: the latter showed `nanos` at `micros` since the Unix
    /// epoch. Called periodically, because the wall clock may be adjusted.
    pub fn set_wall_clock(&self, nanos: u64, micros: i64) {
        self.wall_clock_offset_micros.store(micros - (nanos / 1000) as i64, Ordering::Relaxed);
    }

    /// Returns whether this is a cluster node with database 0 only, as in Redis (`cluster-databases` allows more).
    pub fn is_cluster_with_one_database(&self) -> bool {
        self.topology.is_some() && self.keyspace.database_count() == 1
    }

    /// Returns the counters of all threads.
    #[must_use]
    pub fn worker_stats(&self) -> Vec<Arc<WorkerStats>> {
        self.workers.lock().clone()
    }

    /// Returns the execution times of a command, summed over all threads.
    #[must_use]
    pub fn command_latency(&self, index: usize) -> Distribution {
        let mut all = Distribution::default();
        for worker in self.workers.lock().iter() {
            all.add(&worker.commands[index].latency);
        }
        all
    }

    /// Returns the costs of the given slots, summed over all threads.
    pub fn slot_costs(&self, slots: &[Slot]) -> Vec<SlotCost> {
        let workers = self.workers.lock();
        self.slot_cost_baseline.costs(&workers.iter().map(|worker| &worker.slot_costs), slots)
    }

    /// Resets the cost counters of the given slots.
    pub fn reset_slot_costs(&self, slots: impl Iterator<Item = Slot>) {
        let workers = self.workers.lock();
        self.slot_cost_baseline.reset(&workers.iter().map(|worker| &worker.slot_costs), slots);
    }

    /// Locks and releases each slot once. After it returns, all commands admitted under earlier flags have finished and
    /// are in the log, and any thread that locks a slot sees the current flags. The caller must not hold a slot lock.
    pub fn wait_for_admitted_commands(&self) {
        for slot in Slot::all() {
            drop(self.keyspace.lock(slot));
        }
    }
}

impl Worker {
    /// Takes the failures of the last run, in the order of the commands. A client's commands cause none.
    pub fn take_failures(&mut self) -> Vec<CommandFailure> {
        std::mem::take(&mut self.failures)
    }

    /// Lets the worker report the general allocator's memory that its thread allocates and frees.
    #[must_use]
    pub fn with_allocator_stats(mut self, allocator_stats: AllocatorStats) -> Self {
        self.reported_allocations.allocator = allocator_stats;
        self
    }
}

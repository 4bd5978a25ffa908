//! The state shared by all connections of a server, and the state that each worker thread needs to run commands.
//!
//! Each part of [`Engine`] has methods of its own. Operations that change several parts together, or that remove keys
//! outside of commands, are methods of [`Engine`], grouped by concern in the modules below. The engine knows commands
//! only by number and name; dispatch is built on top of it.

mod access_control;
mod client_notifications;
mod configured;
mod diagnostics;
mod eviction;
mod expiry;
mod lease;
mod local_expiry;
mod memory;
mod revocation;
mod routing;
mod scheduling;
mod scripts;
mod sessions;
mod staged;
mod usage;
mod waiters;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use acl::CommandCatalogue;
use arc_swap::ArcSwap;
use keyspace::{Keyspace, Table};
use slot_routing::{Slot, Topology};

use crate::budget::{AllocatorStats, ReportedAllocations};
use crate::clients::{Client, Clients};
use crate::effects::{EffectLog, Effects, NoLog};
use crate::eviction::Evictor;
use crate::notifications::AbsentKeys;
use crate::random::Random;
use crate::scripting::{ScriptHooks, ThreadScripting};
use crate::settings::Settings;
use crate::stats::WorkerStats;
use crate::waiting::ReadyKey;
pub use access_control::AccessControl;
pub(crate) use access_control::DenialRecord;
pub use client_notifications::ClientNotifications;
pub use diagnostics::Diagnostics;
pub use memory::MemoryManagement;
pub use routing::TopologyChange;
pub use scheduling::CommandScheduling;
pub use scripts::SharedScripting;
pub(crate) use staged::CopyOnAccess;

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
    /// What makes commands wait, or move to another thread.
    pub scheduling: CommandScheduling,
    /// The memory limit, and what frees memory.
    pub memory: MemoryManagement,
    /// What the server measures.
    pub diagnostics: Diagnostics,
    /// Clients that are notified of messages, of commands, and of changed keys.
    pub notifications: ClientNotifications,
    /// The ACL users.
    pub access: AccessControl,
    /// Scripts, functions, and callbacks from scripts.
    pub scripting: SharedScripting,
    /// Wall clock minus the workers' monotonic clock, in microseconds; 0 while unknown.
    pub(crate) wall_clock_offset_micros: AtomicI64,
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
        Self {
            keyspace: Arc::new(keyspace),
            settings: Settings::default(),
            topology: topology.map(ArcSwap::from_pointee),
            log,
            clients: Clients::default(),
            scheduling: CommandScheduling::default(),
            memory: MemoryManagement::default(),
            diagnostics: Diagnostics::default(),
            notifications: ClientNotifications::default(),
            access: AccessControl::new(catalogue.into()),
            scripting: SharedScripting::default(),
            wall_clock_offset_micros: AtomicI64::new(0),
        }
    }

    /// Sets the callbacks from scripts into the server process.
    #[must_use]
    pub fn with_script_hooks(mut self, hooks: ScriptHooks) -> Self {
        self.scripting.hooks = hooks;
        self
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
        let (stats, worker_count) = self.diagnostics.add_worker(self.access.catalogue.len());
        // The keyspace's hash function is seeded randomly, so this hash serves as a random seed.
        let seed = self.keyspace.key(&worker_count.to_le_bytes()).hash();
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

    /// Relates the wall clock to the workers' monotonic clock: the latter showed `nanos` at `micros` since the Unix
    /// epoch. Called periodically, because the wall clock may be adjusted.
    pub fn set_wall_clock(&self, nanos: u64, micros: i64) {
        self.wall_clock_offset_micros.store(micros - (nanos / 1000) as i64, Ordering::Relaxed);
    }

    /// Returns whether this is a cluster node with database 0 only, as in Redis (`cluster-databases` allows more).
    pub fn is_cluster_with_one_database(&self) -> bool {
        self.topology.is_some() && self.keyspace.database_count() == 1
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

//! The state that all connections of a server share, and the state that each thread needs to run commands.
//!
//! Whatever changes several parts of it at once, or takes keys out of it without a command, is a method of [`Engine`],
//! by concern in the files below this one. Of commands it knows numbers and names; what runs them lies above.

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

use crate::budget::{Budget, Heap, Told};
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
use crate::notifications::Absent;
use crate::pause::Pauses;
use crate::pubsub::PubSub;
use crate::random::Random;
use crate::scripting::{ScriptHooks, Scripting};
use crate::settings::Settings;
use crate::slot_costs::{SlotCost, TakenOff};
use crate::slot_waits::SlotWaits;
use crate::stats::{ErrorCodes, WorkerStats};
use crate::tracking::TrackingTable;
use crate::undeclared_keys::UndeclaredKeys;
use crate::waiting::{Ready, Waits};
use crate::watch::Watches;
use expiry::ExpiryCursor;
use lease::Lease;
use local_expiry::LocalExpiry;
use revocation::Revocations;
pub use routing::Rerouting;
pub(crate) use staged::Staged;
use usage::UsageKind;

/// The state that all connections of a server share.
#[derive(Debug)]
pub struct Engine {
    /// The data.
    pub keyspace: Arc<Keyspace>,
    /// Settings of the configuration and the shell.
    pub settings: Settings,
    /// The owner of each slot; `None` without cluster mode.
    pub topology: Option<ArcSwap<Topology>>,
    /// Where effects go.
    pub log: Box<dyn EffectLog>,
    /// The connected clients.
    pub clients: Clients,
    /// The pauses, which hold commands back.
    pub pauses: Pauses,
    lease: Lease,
    /// Large values that the shell is to drop.
    pub lazy_free: LazyFreeQueue,
    /// Commands that take long.
    pub long_commands: LongCommands,
    /// Waits for slots.
    pub slot_waits: SlotWaits,
    /// How much memory may be in use, and is.
    pub budget: Budget,
    /// Slow and large commands.
    pub logs: CommandLogs,
    /// Events that took long.
    pub latency: LatencyMonitor,
    /// The keys that cost the most.
    pub hot_keys: HotKeys,
    /// Channels and their subscribers.
    pub pubsub: PubSub,
    /// Which keys clients have copies of.
    pub tracking: TrackingTable,
    /// Keys that handlers asked for without having declared them.
    pub undeclared_keys: UndeclaredKeys,
    /// The users, with their passwords and rights.
    pub users: RwLock<Users>,
    /// The last refusals (ACL LOG).
    pub acl_log: Mutex<acl::AclLog>,
    /// How often users have changed.
    pub(crate) users_version: AtomicU64,
    revocations: Revocations,
    /// Scripts and functions, and what the threads' interpreters are at.
    pub scripts: Scripts,
    /// The functions of the shell that scripts call.
    pub script_hooks: ScriptHooks,
    expiry_cursor: ExpiryCursor,
    local_expiry: LocalExpiry,
    usage_kind: UsageKind,
    /// The clients that are shown every command (MONITOR).
    pub monitors: Monitors,
    pub(crate) watches: Watches,
    pub(crate) waits: Waits,
    /// The wall clock minus the threads' monotonic clock, in microseconds; 0 while that is not known.
    pub(crate) wall_base: AtomicI64,
    /// Where keys come from, if this is what a debugged script works on.
    pub(crate) staged: Option<Staged>,
    /// The commands as access control and statistics know them: by numbers and names.
    pub catalogue: Arc<CommandCatalogue>,
    workers: Mutex<Vec<Arc<WorkerStats>>>,
    error_codes: Arc<ErrorCodes>,
    costs_taken_off: TakenOff,
}

/// The state that one thread needs to run commands.
#[derive(Debug)]
pub struct Worker {
    /// The statistics of this thread.
    pub stats: Arc<WorkerStats>,
    pub(crate) effects: Effects,
    pub(crate) random: Random,
    /// Memory for one key, and for the name of a part of its value.
    pub(crate) key: Vec<u8>,
    pub(crate) name: Vec<u8>,
    /// Keys that were changed and are waited for, until their waiters are served.
    pub(crate) ready: Vec<Ready>,
    /// Keys of the running command that did not exist, if there may be subscribers to events of new keys.
    pub(crate) absent: Absent,
    pub(crate) told: Told,
    pub(crate) evictor: Evictor,
    /// Tables that a command emptied, until its slots are free again.
    pub(crate) garbage: Vec<Table>,
    /// Push messages of a command whose reply its client does not want.
    pub(crate) pushes: Vec<u8>,
    /// Clients that a command ended or whose rights it changed, until its slots are free again.
    pub(crate) revoked: Vec<Arc<Client>>,
    /// The scripts and the interpreter of this thread.
    pub(crate) scripting: Scripting,
    /// The wall clock in microseconds, once the transaction or script that runs has asked for it.
    pub(crate) time_of_several: Option<i64>,
    /// The number, in its batch, of the request that runs or ran last.
    pub running: usize,
    /// A monotonic clock in nanoseconds, read once a command for the statistics.
    pub(crate) nanos: fn() -> u64,
}

impl Engine {
    /// An engine over this data, for commands of these numbers; with a topology in cluster mode.
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
            logs: CommandLogs::default(),
            latency: LatencyMonitor::default(),
            hot_keys: HotKeys::default(),
            pubsub: PubSub::default(),
            tracking: TrackingTable::default(),
            undeclared_keys: UndeclaredKeys::default(),
            scripts: Scripts::default(),
            script_hooks: ScriptHooks::default(),
            expiry_cursor: ExpiryCursor::default(),
            local_expiry: LocalExpiry::default(),
            usage_kind: UsageKind::default(),
            monitors: Monitors::default(),
            watches: Watches::default(),
            waits: Waits::default(),
            wall_base: AtomicI64::new(0),
            users: RwLock::new(Users::new(catalogue.clone())),
            acl_log: Mutex::default(),
            // A new session knows of none yet.
            users_version: AtomicU64::new(1),
            revocations: Revocations::default(),
            staged: None,
            catalogue,
            workers: Mutex::new(Vec::new()),
            error_codes: Arc::default(),
            costs_taken_off: TakenOff::default(),
        }
    }

    /// With these ways for scripts into the shell.
    #[must_use]
    pub fn with_script_hooks(self, script_hooks: ScriptHooks) -> Self {
        Self { script_hooks, ..self }
    }

    /// The state that a sentinel's connections share: no data, and a sentinel's commands. Of these the engine runs
    /// those that concern only connections.
    #[must_use]
    pub fn of_sentinel(catalogue: impl Into<Arc<CommandCatalogue>>, seed: u64) -> Self {
        Self::new(catalogue, Keyspace::new(seed, 1), None, Box::new(NoLog))
    }

    /// The state for one more thread that runs commands. `nanos` reads a monotonic clock.
    #[must_use]
    pub fn worker(&self, nanos: fn() -> u64) -> Worker {
        let stats = Arc::new(WorkerStats::new(self.catalogue.len(), self.error_codes.clone()));
        let mut workers = self.workers.lock();
        workers.push(stats.clone());
        // Hashes are seeded by chance, so this one is as good as a random number.
        let seed = self.keyspace.key(&workers.len().to_le_bytes()).hash();
        let (effects, random) = (Effects::default(), Random::new(seed));
        Worker {
            stats,
            effects,
            random,
            key: Vec::new(),
            name: Vec::new(),
            ready: Vec::new(),
            absent: Absent::default(),
            told: Told::nothing(),
            evictor: Evictor::default(),
            garbage: Vec::new(),
            pushes: Vec::new(),
            revoked: Vec::new(),
            scripting: Scripting::default(),
            time_of_several: None,
            running: 0,
            nanos,
        }
    }

    /// A thread has ended: what it counted is counted no more.
    pub(crate) fn forget_worker(&self, worker: &Worker) {
        let mut workers = self.workers.lock();
        workers.retain(|stats| !Arc::ptr_eq(stats, &worker.stats));
        self.costs_taken_off.keep(&worker.stats.slots);
    }

    /// Says that a worker's monotonic clock showed `nanos` when it was `micros` since the epoch. To be said
    /// again at times: the wall clock may be set.
    pub fn set_wall_clock(&self, nanos: u64, micros: i64) {
        self.wall_base.store(micros - (nanos / 1000) as i64, Ordering::Relaxed);
    }

    /// Whether this is a node of a cluster as Redis has them, where no client may name another database than 0
    /// (`cluster-databases` allows more).
    pub fn is_cluster_of_one_database(&self) -> bool {
        self.topology.is_some() && self.keyspace.databases() == 1
    }

    /// Every thread's counters.
    #[must_use]
    pub fn worker_stats(&self) -> Vec<Arc<WorkerStats>> {
        self.workers.lock().clone()
    }

    /// How long a command has taken, on all threads.
    #[must_use]
    pub fn latency_of(&self, index: usize) -> Distribution {
        let mut all = Distribution::default();
        for worker in self.workers.lock().iter() {
            all.add(&worker.commands[index].times);
        }
        all
    }

    /// The costs of these slots.
    pub fn slot_costs(&self, slots: &[Slot]) -> Vec<SlotCost> {
        let workers = self.workers.lock();
        self.costs_taken_off.costs(&workers.iter().map(|worker| &worker.slots), slots)
    }

    /// The costs of these slots begin anew.
    pub fn reset_slot_costs(&self, slots: impl Iterator<Item = Slot>) {
        let workers = self.workers.lock();
        self.costs_taken_off.reset(&workers.iter().map(|worker| &worker.slots), slots);
    }

    /// Returns when each slot has been free once. All commands that were admitted under earlier gates have ended then
    /// and are in the log; a thread that locks a slot afterwards sees the gates of now. The caller holds no slot.
    pub fn drain(&self) {
        for slot in Slot::all() {
            drop(self.keyspace.lock(slot));
        }
    }
}

impl Worker {
    /// From now on the worker's thread says what it took of the general allocator and did not give back.
    #[must_use]
    pub fn counting_heap(mut self, heap: Heap) -> Self {
        self.told.heap = heap;
        self
    }
}

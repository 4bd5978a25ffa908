//! What all threads of a server share.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use clock::Millis;
use engine::{Client, ClientKind, Engine};
use parking_lot::Mutex;

use crate::cluster::Cluster;
use crate::commands::Pool;
use crate::durability::saving::Saving;
use crate::net::listener::Listeners;
use crate::net::pauses::PauseGate;
use crate::process::shutdown::Shutdown;
use crate::process::stopping::Stopping;
use crate::process::totals::{Baseline, Traffic};
use crate::process::{memory, oom, rates};
use crate::replication::failover::Failover;
use crate::replication::{Replication, SharedLog};
use config::Config;

/// Counters of the network side that are not a thread's own.
#[derive(Debug, Default)]
pub(crate) struct NetworkStats {
    pub(crate) connections_received: AtomicU64,
    pub(crate) connections_rejected: AtomicU64,
    pub(crate) query_limit_disconnections: AtomicU64,
    pub(crate) output_limit_disconnections: AtomicU64,
    /// Links of the cluster bus, as its driver last counted them.
    pub(crate) bus_links: AtomicUsize,
}

/// What active expiry did.
#[derive(Debug, Default)]
pub(crate) struct ExpiryStats {
    /// Time spent.
    pub(crate) nanos: AtomicU64,
    /// Cycles that ended with their time and not with their work.
    pub(crate) capped: AtomicU64,
}

/// Bounds on what clients may make the server keep.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// Bytes of an unfinished request.
    pub(crate) query_buffer: AtomicUsize,
    /// Bytes that wait to be sent, by class.
    pub(crate) output: [OutputLimit; 3],
    /// Bytes of memory; 0 is no limit.
    pub(crate) memory: AtomicUsize,
    /// Clients.
    pub(crate) clients: AtomicUsize,
}

/// A class of clients in `client-output-buffer-limit`, by its place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Normal = 0,
    PubSub = 2,
}

impl Limits {
    /// How much may wait to be sent to this client. A replica's is its master's machine's to keep.
    pub(crate) fn output_of(&self, client: &Client) -> &OutputLimit {
        let class = match client.kind() {
            ClientKind::PubSub => Class::PubSub,
            ClientKind::Normal | ClientKind::Replica | ClientKind::Master => Class::Normal,
        };
        &self.output[class as usize]
    }
}

/// How much may wait to be sent to a client: never more than `hard` bytes, and more than `soft` only for
/// `seconds`. 0 is no limit.
#[derive(Debug, Default)]
pub(crate) struct OutputLimit {
    pub(crate) hard: AtomicUsize,
    pub(crate) soft: AtomicUsize,
    pub(crate) seconds: AtomicU64,
}

impl OutputLimit {
    /// Whether more than `soft` has waited for longer than it may: since then.
    pub(crate) fn lasts_too_long(&self, since: i64, now: Millis) -> bool {
        let allowed = i64::try_from(self.seconds.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        self.soft.load(Ordering::Relaxed) > 0 && now.0.saturating_sub(since) > allowed.saturating_mul(1000)
    }
}

/// What a server is told at its start besides its configuration.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    /// Forty random hexadecimal characters that name this run.
    pub(crate) run_id: String,
    /// The program's file.
    pub(crate) executable: String,
    /// Where the configuration was read from.
    pub(crate) config_file: Option<String>,
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engine: Arc<Engine>,
    pub(crate) config: Arc<Config>,
    pub(crate) identity: Identity,
    pub(crate) network: NetworkStats,
    pub(crate) expiry: ExpiryStats,
    /// Every thread's counters.
    pub(crate) traffic: Mutex<Vec<Arc<Traffic>>>,
    pub(crate) baseline: Baseline,
    pub(crate) rates: rates::Rates,
    pub(crate) memory: memory::Tracker,
    pub(crate) limits: Limits,
    pub(crate) listeners: Listeners,
    pub(crate) pauses: PauseGate,
    pub(crate) replication: Replication,
    pub(crate) saving: Saving,
    pub(crate) shutdown: Shutdown,
    pub(crate) failover: Failover,
    pub(crate) oom_score: oom::Score,
    /// Links to the servers that keys were moved to lately.
    pub(crate) migration_targets: Pool,
    /// The way to the cluster's driver, in cluster mode.
    pub(crate) cluster: OnceLock<Cluster>,
    /// How many clients are connected.
    pub(crate) connected: AtomicUsize,
    pub(crate) next_client_id: AtomicU64,
    /// The wall clock at the start, in seconds.
    pub(crate) started: i64,
    pub(crate) stopping: Stopping,
}

impl Server {
    pub(crate) fn new(engine: Engine, config: Config, identity: Identity, log: Arc<SharedLog>) -> Arc<Self> {
        let engine = Arc::new(engine);
        Arc::new(Self {
            pauses: PauseGate::new(engine.clone()),
            engine,
            replication: Replication::new(&config, log),
            saving: Saving::new(),
            shutdown: Shutdown::default(),
            failover: Failover::default(),
            oom_score: oom::Score::default(),
            migration_targets: Pool::default(),
            config: Arc::new(config),
            identity,
            network: NetworkStats::default(),
            expiry: ExpiryStats::default(),
            traffic: Mutex::default(),
            baseline: Baseline::default(),
            rates: rates::Rates::default(),
            memory: memory::Tracker::default(),
            limits: Limits::default(),
            cluster: OnceLock::new(),
            listeners: Listeners::default(),
            connected: AtomicUsize::new(0),
            next_client_id: AtomicU64::new(1),
            started: crate::process::time::now().secs(),
            stopping: Stopping::default(),
        })
    }

    pub(crate) fn client_id(&self) -> u64 {
        self.next_client_id.fetch_add(1, Ordering::Relaxed)
    }
}

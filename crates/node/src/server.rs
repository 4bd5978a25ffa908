//! What all threads of a server share.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use engine::Engine;

use crate::cluster::Cluster;
use crate::commands::Pool;
use crate::durability::Durability;
use crate::net::door::Door;
use crate::net::pauses::PauseGate;
use crate::process::shutdown::Shutdown;
use crate::process::stopping::Stopping;
use crate::process::totals::Baseline;
use crate::process::{memory, oom, rates};
use crate::replication::failover::Failover;
use crate::replication::{Replication, SharedLog};
use config::Config;

/// What active expiry did.
#[derive(Debug, Default)]
pub(crate) struct ExpiryStats {
    /// Time spent.
    pub(crate) nanos: AtomicU64,
    /// Cycles that ended with their time and not with their work.
    pub(crate) capped: AtomicU64,
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
    pub(crate) expiry: ExpiryStats,
    pub(crate) baseline: Baseline,
    pub(crate) rates: rates::Rates,
    pub(crate) memory: memory::Tracker,
    pub(crate) door: Arc<Door>,
    pub(crate) pauses: PauseGate,
    pub(crate) replication: Arc<Replication>,
    pub(crate) durability: Arc<Durability>,
    pub(crate) shutdown: Shutdown,
    pub(crate) failover: Failover,
    pub(crate) oom_score: oom::Score,
    /// Links to the servers that keys were moved to lately.
    pub(crate) migration_targets: Pool,
    /// The way to the cluster's driver, in cluster mode.
    pub(crate) cluster: OnceLock<Cluster>,
    /// The wall clock at the start, in seconds.
    pub(crate) started: i64,
    pub(crate) stopping: Stopping,
}

impl Server {
    pub(crate) fn new(engine: Engine, config: Config, identity: Identity, log: Arc<SharedLog>) -> Arc<Self> {
        let (engine, config) = (Arc::new(engine), Arc::new(config));
        let replication = Arc::new(Replication::new(engine.clone(), config.clone(), log.clone()));
        let durability = Durability::new(engine.clone(), config.clone(), log, replication.applied.clone());
        Arc::new(Self {
            durability: Arc::new(durability),
            door: Arc::new(Door::new(config.clone())),
            pauses: PauseGate::new(engine.clone()),
            engine,
            replication,
            shutdown: Shutdown::default(),
            failover: Failover::default(),
            oom_score: oom::Score::default(),
            migration_targets: Pool::default(),
            config,
            identity,
            expiry: ExpiryStats::default(),
            baseline: Baseline::default(),
            rates: rates::Rates::default(),
            memory: memory::Tracker::default(),
            cluster: OnceLock::new(),
            started: crate::process::time::now().secs(),
            stopping: Stopping::default(),
        })
    }
}

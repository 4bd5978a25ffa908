//! A server: its parts put together, with what needs several of them.

pub(crate) mod settings;
pub(crate) mod shutdown;

use std::sync::{Arc, Weak};

use durability::Durability;
use durability::stream::SharedLog;
use engine::{Commands, Engine};
use net::context::NetworkContext;
use net::link_pool::LinkPool;
use net::pauses::PauseGate;
use process::stop_signal::StopSignal;
use tokio::sync::Notify;

use crate::cluster::Cluster;
use crate::housekeeping::Housekeeping;
use crate::migration::Migrations;
use crate::replication::Replication;
use crate::replication::failover::Failover;
use config::Config;
use shutdown::Shutdown;

/// The identity of a server's run, which it is given at its start besides its configuration.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    /// Forty random hexadecimal characters that name this run.
    pub(crate) run_id: String,
    /// The program's file.
    pub(crate) executable: String,
    /// Where the configuration was read from.
    pub(crate) config_file: Option<String>,
    /// The word of the command line that named that file.
    pub(crate) config_argument: Option<String>,
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engine: Arc<Engine>,
    /// The commands that run on it.
    pub(crate) commands: Arc<Commands>,
    pub(crate) config: Arc<Config>,
    pub(crate) identity: Identity,
    pub(crate) housekeeping: Arc<Housekeeping>,
    pub(crate) network: Arc<NetworkContext>,
    pub(crate) pauses: Arc<PauseGate>,
    pub(crate) replication: Arc<Replication>,
    pub(crate) durability: Arc<Durability>,
    pub(crate) shutdown: Shutdown,
    pub(crate) failover: Arc<Failover>,
    /// Links to the servers that keys were moved to lately.
    pub(crate) migration_targets: Arc<LinkPool>,
    /// Slots that move in one piece.
    pub(crate) migrations: Arc<Migrations>,
    /// The way to the cluster's driver, in cluster mode.
    pub(crate) cluster: Option<Cluster>,
    /// The wall clock at the start, in seconds.
    pub(crate) started: i64,
    pub(crate) stopping: StopSignal,
    /// Scripts or libraries were flushed or replaced: each worker drops what it has compiled of them.
    pub(crate) scripts_released: Arc<Notify>,
    /// Held by the CONFIG SET that is under way.
    pub(crate) settings_turn: tokio::sync::Mutex<()>,
}

impl Server {
    pub(crate) fn new(
        (engine, commands): (Engine, Commands),
        config: Config,
        identity: Identity,
        log: Arc<SharedLog>,
        cluster: Option<Cluster>,
    ) -> Arc<Self> {
        let (engine, commands, config) = (Arc::new(engine), Arc::new(commands), Arc::new(config));
        let network = Arc::new(NetworkContext::new(config.clone(), engine.clone()));
        let replication = Arc::new(Replication::new(
            (engine.clone(), commands.clone()),
            config.clone(),
            &network,
            log.clone(),
        ));
        let durability = Arc::new(Durability::new(
            (engine.clone(), commands.clone()),
            config.clone(),
            log,
            replication.applied.clone(),
            (replication.commit_point.clone(), replication.on_disk.clone()),
        ));
        let pauses = Arc::new(PauseGate::new(engine.clone()));
        let failover = Failover::new(engine.clone(), config.clone(), replication.clone(), pauses.clone());
        let housekeeping =
            Housekeeping::new(engine.clone(), config.clone(), network.clone(), replication.clone());
        let migrations = Migrations::new(
            (engine.clone(), commands.clone()),
            config.clone(),
            (network.clone(), pauses.clone()),
            (replication.clone(), durability.clone()),
            cluster.clone(),
        );
        let scripts_released = Arc::<Notify>::default();
        let ring = scripts_released.clone();
        engine.scripts.call_when_released(move || ring.notify_waiters());
        let server = Arc::new(Self {
            housekeeping: Arc::new(housekeeping),
            durability,
            network,
            failover: Arc::new(failover),
            pauses,
            engine,
            commands,
            replication,
            shutdown: Shutdown::default(),
            migration_targets: Arc::default(),
            migrations: Arc::new(migrations),
            config,
            identity,
            cluster,
            started: process::time::now().secs(),
            stopping: StopSignal::default(),
            scripts_released,
            settings_turn: tokio::sync::Mutex::default(),
        });
        let shell: Weak<Self> = Arc::downgrade(&server);
        server.commands.set_shell(shell);
        server
    }
}

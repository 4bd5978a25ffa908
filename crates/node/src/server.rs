//! The server: all its components, and operations that need several of them.

pub(crate) mod settings;
pub(crate) mod shutdown;

use std::sync::{Arc, Weak};

use durability::Durability;
use durability::stream::{SharedLog, StreamHandles};
use engine::{CommandSet, Engine};
use net::context::NetworkContext;
use net::link_pool::LinkPool;
use net::pauses::PauseGate;
use process::stop_signal::StopSignal;
use tokio::sync::Notify;

use crate::cluster::ClusterHandle;
use crate::housekeeping::Housekeeping;
use crate::migration::{MigrationContext, Migrations};
use crate::replication::Replication;
use crate::replication::failover::Failover;
use config::Config;
use shutdown::ShutdownState;

/// The identity of a server process, given at startup in addition to the configuration.
#[derive(Debug, Default)]
pub(crate) struct ServerIdentity {
    /// The run id: forty random hexadecimal characters, new at each start.
    pub(crate) run_id: String,
    pub(crate) executable: String,
    /// The absolute path of the configuration file; `None` if there is no file.
    pub(crate) config_file: Option<String>,
    /// The configuration file as the command line named it.
    pub(crate) config_argument: Option<String>,
}

/// All components of a running server, shared by its threads.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engine: Arc<Engine>,
    pub(crate) commands: Arc<CommandSet>,
    pub(crate) config: Arc<Config>,
    pub(crate) identity: ServerIdentity,
    pub(crate) housekeeping: Arc<Housekeeping>,
    pub(crate) network: Arc<NetworkContext>,
    pub(crate) pause_gate: Arc<PauseGate>,
    pub(crate) replication: Arc<Replication>,
    pub(crate) durability: Arc<Durability>,
    pub(crate) shutdown: ShutdownState,
    pub(crate) failover: Arc<Failover>,
    /// Cached connections to the targets of MIGRATE.
    pub(crate) migration_targets: Arc<LinkPool>,
    pub(crate) migrations: Arc<Migrations>,
    /// The handle of the cluster driver. `None` outside of cluster mode.
    pub(crate) cluster: Option<ClusterHandle>,
    /// The start time as a Unix time in seconds.
    pub(crate) started_at: i64,
    pub(crate) stop_signal: StopSignal,
    /// Signalled when scripts or functions were flushed or replaced, so that workers drop their compiled code.
    pub(crate) scripts_released: Arc<Notify>,
    /// Serialises CONFIG SET commands.
    pub(crate) config_set_lock: tokio::sync::Mutex<()>,
}

impl Server {
    pub(crate) fn new(
        engine: Engine,
        commands: CommandSet,
        config: Config,
        identity: ServerIdentity,
        log: Arc<SharedLog>,
        cluster: Option<ClusterHandle>,
    ) -> Arc<Self> {
        let (engine, commands, config) = (Arc::new(engine), Arc::new(commands), Arc::new(config));
        let network = Arc::new(NetworkContext::new(config.clone(), engine.clone()));
        let replication = Arc::new(Replication::new(
            engine.clone(),
            commands.clone(),
            config.clone(),
            &network,
            log.clone(),
        ));
        let durability = Arc::new(Durability::new(
            engine.clone(),
            commands.clone(),
            config.clone(),
            StreamHandles {
                log,
                applied: replication.applied_stream.clone(),
                commit_point: replication.commit_point.clone(),
                synced_log: replication.synced_log.clone(),
            },
        ));
        let pauses = Arc::new(PauseGate::new(engine.clone()));
        let failover = Failover::new(engine.clone(), config.clone(), replication.clone(), pauses.clone());
        let housekeeping =
            Housekeeping::new(engine.clone(), config.clone(), network.clone(), replication.clone());
        let migrations = Migrations::new(MigrationContext {
            engine: engine.clone(),
            commands: commands.clone(),
            config: config.clone(),
            network: network.clone(),
            pause_gate: pauses.clone(),
            replication: replication.clone(),
            durability: durability.clone(),
            cluster: cluster.clone(),
        });
        let scripts_released = Arc::<Notify>::default();
        let ring = scripts_released.clone();
        engine.scripting.scripts.call_when_released(move || ring.notify_waiters());
        let server = Arc::new(Self {
            housekeeping: Arc::new(housekeeping),
            durability,
            network,
            failover: Arc::new(failover),
            pause_gate: pauses,
            engine,
            commands,
            replication,
            shutdown: ShutdownState::default(),
            migration_targets: Arc::default(),
            migrations: Arc::new(migrations),
            config,
            identity,
            cluster,
            started_at: process::time::now().secs(),
            stop_signal: StopSignal::default(),
            scripts_released,
            config_set_lock: tokio::sync::Mutex::default(),
        });
        let shell: Weak<Self> = Arc::downgrade(&server);
        server.commands.set_shell(shell);
        server
    }
}

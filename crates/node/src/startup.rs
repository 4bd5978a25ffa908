//! Starts a node from its command line, and stops it.

mod crash_report;

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use durability::stream::{EngineLogHandle, SharedLog};
use durability::{append_only, saving};
use engine::{CommandSet, Engine, NodeFlags, Registry, RenameError, ScriptHooks};
use keyspace::{Keyspace, prepare_chunk};
use net::listener::{self, ListenPorts};
use net::scratch::install_scratch;
use net::worker_pool::{BackgroundHandles, SpawnWorker, WorkerHandle};
use process::{StartError, access, alarm, crash, daemon, file_limit, log, paths, random, title};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cluster;
use crate::housekeeping::cron;
use crate::replication;
use crate::server::settings;
use crate::server::shutdown::{self, ShutdownError, ShutdownPlan};
use crate::server::{Server, ServerIdentity};
use crate::{web, workers};
use config::{Config, ConfigError, ConfigSource, PubsubDefault, arguments_to_lines, is_file_argument, keys};
use crash_report::CrashReport;

const SIGXFSZ: i32 = rustix::process::Signal::XFSZ.as_raw();

/// Runs a server until it is stopped. `arguments` are those of `redis-server`: a configuration file or `-`, then
/// `--option value ...`.
///
/// # Errors
/// If the server could not start, or stopped because of an error.
pub fn run_server(arguments: &[String]) -> Result<(), StartError> {
    let configured = read_configuration(arguments).map_err(StartError::Config)?;
    let started_in = paths::enter_working_directory(&configured.config).map_err(StartError::Start)?;
    let stdin = configured.stdin_text.as_deref();
    if daemon::daemonize(&configured.config, &started_in, stdin).map_err(StartError::Start)? {
        return Ok(());
    }
    daemonize_and_start(configured).map_err(StartError::Start)
}

/// The configuration at startup, and where it came from.
struct StartConfig {
    config: Config,
    /// The absolute path of the configuration file; `None` if there is no file.
    config_file: Option<String>,
    /// The configuration file as the command line named it.
    config_argument: Option<String>,
    /// The configuration text that was read from standard input.
    stdin_text: Option<String>,
    /// A command table with renamed commands; `None` if `rename-command` is not used.
    command_table: Option<&'static Registry>,
    /// The users defined in the configuration file.
    configured_users: acl::Users,
}

fn read_configuration(arguments: &[String]) -> Result<StartConfig, ConfigError> {
    let mut config = Config::default();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    config.set_default(keys::IO_THREADS, workers.min(128));
    config.set_default(keys::LONG_COMMAND_THREADS, (workers / 4).clamp(1, 128));
    let (mut file, mut file_argument, mut stdin) = (None, None, None);
    let options = match arguments.split_first() {
        Some((path, options)) if is_file_argument(path) => {
            if path == "-" {
                let text = std::io::read_to_string(std::io::stdin()).unwrap_or_default();
                config.load_text(&text, &ConfigSource::StandardInput)?;
                stdin = Some(text);
            } else {
                config.load_file(path)?;
                let whole = std::path::absolute(path).unwrap_or_else(|_| path.into());
                file = Some(whole.to_string_lossy().into_owned());
                file_argument = Some(path.clone());
            }
            options
        }
        _ => arguments,
    };
    config.load_text(&arguments_to_lines(options), &ConfigSource::CommandLine)?;
    let commands = rename_commands(&config)?;
    let users = configured_users(&config, commands.unwrap_or(::commands::server_registry()))?;
    Ok(StartConfig {
        config,
        config_file: file,
        config_argument: file_argument,
        stdin_text: stdin,
        command_table: commands,
        configured_users: users,
    })
}

/// Returns a command table in which `rename-command` has been applied; `None` if that parameter is not used.
fn rename_commands(config: &Config) -> Result<Option<&'static Registry>, ConfigError> {
    let renames = config.command_renames();
    if renames.is_empty() {
        return Ok(None);
    }
    let mut commands = ::commands::server_registry().clone();
    for rename in renames {
        commands
            .rename(&rename.original_name, &rename.new_name)
            .map_err(|error: RenameError| rename.error(&error.to_string()))?;
    }
    // The table is used until the process exits, so leaking it once is harmless.
    Ok(Some(Box::leak(Box::new(commands))))
}

/// Returns the users defined by `requirepass` and by `user` lines.
fn configured_users(config: &Config, commands: &Registry) -> Result<acl::Users, ConfigError> {
    let mut users = acl::Users::new(commands.catalogue());
    users.set_all_channels_by_default(config.get(keys::ACL_PUBSUB_DEFAULT) == PubsubDefault::AllChannels);
    users.set_default_password(config.get(keys::REQUIREPASS).unwrap_or_default().as_bytes());
    for line in config.user_lines() {
        users.load_config_lines(&[line.arguments()]).map_err(|(_, reason)| line.error(&reason))?;
    }
    Ok(users)
}

fn daemonize_and_start(start_config: StartConfig) -> Result<()> {
    let config = &start_config.config;
    log::start_logging(config).context("the log file cannot be opened")?;
    log::set_level(config.get(keys::LOGLEVEL));
    log::set_role_letter(b'M');
    let mode = if config.get(keys::CLUSTER_ENABLED) { "cluster" } else { "standalone" };
    log::log_startup(mode, config.get(keys::PORT));
    // A daemon has no terminal, so the error must be logged.
    let outcome = start_node(start_config);
    if let Err(error) = &outcome {
        tracing::warn!("{error:#}");
    }
    outcome
}

fn start_node(start_config: StartConfig) -> Result<()> {
    let StartConfig {
        config,
        config_file,
        config_argument,
        command_table: commands,
        configured_users: users,
        ..
    } = start_config;
    file_limit::raise_at_startup(&config);
    for warning in config::unsupported_warnings(&config) {
        tracing::warn!("{warning}");
    }
    for note in config::not_needed_notes(&config) {
        tracing::debug!("{note}");
    }
    let clustered = config.get(keys::CLUSTER_ENABLED);
    let cluster =
        if clustered { Some(cluster::prepare_cluster(&config, random::random_u64()?)?) } else { None };
    let topology = cluster.as_ref().map(|(_, prepared)| prepared.topology());
    let shared_log = SharedLog::new(config.get(keys::REPL_BACKLOG_SIZE));
    let own_names = CommandSet::new(::commands::server_registry());
    let commands = match commands {
        Some(renamed) => own_names.with_renames(renamed),
        None => own_names,
    };
    let engine = Engine::new(
        ::commands::server_registry().catalogue(),
        new_keyspace(&config)?,
        topology,
        Box::new(EngineLogHandle(shared_log.clone())),
    );
    let engine = engine
        .with_script_hooks(ScriptHooks { log_line: log_from_script, on_busy: workers::offload_this_worker });
    engine.access.change_users(|all| *all = users);
    access::load_acl_file_at_startup(&engine, &config)?;
    let executable = std::env::current_exe().unwrap_or_default().to_string_lossy().into_owned();
    let identity = ServerIdentity { run_id: random::random_hex()?, executable, config_file, config_argument };
    let (cluster, prepared) = cluster.unzip();
    let server = Server::new(engine, commands, config, identity, shared_log, cluster);
    crash::abort_on_panic(Some(Arc::new(CrashReport(server.clone()))));
    server.housekeeping.memory_tracker.record_startup();
    server.network.tls.load(&server.config).map_err(|reason| anyhow!("Failed to configure TLS: {reason}"))?;
    settings::apply_settings(&server);
    title::update_process_title(&server.config, server.identity.config_file.as_deref());
    if let Some(cluster) = &server.cluster {
        server.engine.notifications.pubsub.set_bus(Box::new(cluster.publication_queue()));
        server.engine.init_slot_ownership();
    }
    // The thread runs until the process exits and owns nothing that needs cleanup.
    std::thread::Builder::new().name("pool".to_owned()).spawn(|| {
        loop {
            prepare_chunk();
        }
    })?;
    tracing::info!("Server initialized");
    let outcome = run_until_stopped(&server, prepared);
    daemon::remove_pid_file_and_socket(&server.config);
    if outcome.is_ok() {
        tracing::warn!("Redoubt is now ready to exit, bye bye...");
    }
    outcome
}

fn new_keyspace(config: &Config) -> Result<Keyspace> {
    let databases = match config.get(keys::CLUSTER_ENABLED) {
        true => config.get(keys::CLUSTER_DATABASES),
        false => config.get(keys::DATABASES),
    };
    let seed = match config.get(keys::HASH_SEED) {
        None => random::random_u64()?,
        Some(text) => Keyspace::seed_from_text(text.as_bytes()),
    };
    Ok(Keyspace::new(seed, u16::try_from(databases).unwrap_or(u16::MAX)))
}

/// Starts the threads, waits until the server is stopped, and joins them.
fn run_until_stopped(server: &Arc<Server>, cluster: Option<cluster::PreparedCluster>) -> Result<()> {
    let count = server.config.get(keys::IO_THREADS);
    // `io-threads` workers serve clients, and one additional worker is in reserve.
    let workers: Vec<_> =
        (0..=count).map(|index| workers::spawn_worker(server, index)).collect::<Result<_, _>>()?;
    let background = workers::spawn_background_workers(server)?;
    let (replication, durability) = (server.replication.clone(), server.durability.clone());
    let replicating = replication::spawn_replication_thread(
        replication,
        durability,
        &server.network,
        server.stop_signal.clone(),
    )?;
    let migrating = cluster
        .is_some()
        .then(|| crate::migration::spawn_migration_thread(&server.migrations, server.stop_signal.clone()))
        .transpose()?;
    let relieving = workers::spawn_watchdog(server)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    install_scratch(&server.engine, &server.network);
    let outcome = runtime.block_on(run_control_thread(server, workers, background, cluster));
    server.stop_signal.stop();
    server.network.tick.notify_input();
    server.network.worker_pool.stop_and_join_workers();
    if relieving.is_some_and(|thread| thread.join().is_err()) {
        tracing::error!("the watch over the workers panicked");
    }
    if replicating.join().is_err() {
        tracing::error!("the replication thread panicked");
    }
    if migrating.is_some_and(|thread| thread.join().is_err()) {
        tracing::error!("the thread of slot migrations panicked");
    }
    outcome
}

fn new_cluster_task(
    server: &Server,
    handle: cluster::ClusterHandle,
    prepared_cluster: cluster::PreparedCluster,
) -> Result<cluster::ClusterTask> {
    let node = cluster::NodeContext {
        engine: server.engine.clone(),
        config: server.config.clone(),
        network: server.network.clone(),
        pause_gate: server.pause_gate.clone(),
        replication: server.replication.clone(),
        watcher: server.migrations.clone(),
    };
    cluster::ClusterTask::new(node, handle, prepared_cluster)
}

/// Logs a message of a script's `redis.log` call. `level` is 0 (debug) to 3 (warning).
fn log_from_script(level: u8, text: &str) {
    match level {
        0 => tracing::debug!("{text}"),
        1 => tracing::debug!(verbose = true, "{text}"),
        2 => tracing::info!("{text}"),
        _ => tracing::warn!("{text}"),
    }
}

/// Runs the control thread, which accepts clients, runs timers and waits for the end of the server.
async fn run_control_thread(
    server: &Arc<Server>,
    workers: Vec<WorkerHandle>,
    background: Option<BackgroundHandles>,
    cluster: Option<cluster::PreparedCluster>,
) -> Result<()> {
    daemon::ignore_hangups()?;
    alarm::log_threads_on_sigalrm()?;
    let of = Arc::downgrade(server);
    let spawn: SpawnWorker = Box::new(move |number| match of.upgrade() {
        Some(server) => workers::spawn_worker(&server, number),
        None => Err(std::io::ErrorKind::NotFound.into()),
    });
    server.network.listeners.set_event_loop();
    server.network.worker_pool.start(workers, background, spawn);
    tokio::spawn(cron::run_cron(server.housekeeping.clone(), server.migration_targets.clone()));
    tokio::spawn(cron::monitor_memory(server.housekeeping.clone()));
    tokio::spawn(cron::run_memory_purge(server.housekeeping.clone()));
    tokio::spawn(cron::run_active_expiry(server.housekeeping.clone()));
    tokio::spawn(cron::free_deleted_values(server.engine.clone()));
    tokio::spawn(cron::run_sleep_requests(server.housekeeping.clone()));
    wait_for_ports(server).await;
    let driven = server.cluster.clone().zip(cluster);
    let mut cluster = driven.map(|(own, prepared)| new_cluster_task(server, own, prepared)).transpose()?;
    // Clients that connect before the data is loaded get the LOADING error.
    server.engine.settings.set_node_flag(NodeFlags::LOADING, true);
    web::start_web_server(server)?;
    open_listeners(server).await?;
    daemon::write_pid_file(&server.config);
    // With this handler, exceeding the file size limit makes the write fail like a full disk instead of killing the
    // process.
    let _past_file_limit = signal(SignalKind::from_raw(SIGXFSZ))?;
    saving::remove_temporary_files(&server.durability);
    let found = saving::load_at_start(&server.durability).await?;
    // The handlers are installed before the first write is accepted, so that a signal always causes an orderly
    // shutdown.
    let (sigterm, sigint) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    // Prevents a full synchronization from loading a snapshot until startup is complete.
    let loads_later = server.replication.block_snapshot_loading().await;
    server.replication.follow_configured_master();
    if let Some(cluster) = &mut cluster {
        cluster.start(found)?;
    }
    server.replication.begin_history(&saving::take_skipped_keys(&server.durability));
    if !server.replication.is_replica() {
        server.migrations.drop_imports();
    }
    server.replication.start_empty_master_wait();
    server.engine.settings.set_node_flag(NodeFlags::LOADING, false);
    // An append-only file also contains keys that have expired; delete them before clients are served.
    cron::run_expiry_cycle(&server.housekeeping);
    drop(loads_later);
    tokio::spawn(saving::run_save_points(server.durability.clone(), server.network.tick.clone()));
    tokio::spawn(append_only::run_automatic_rewrites(server.durability.clone(), server.network.tick.clone()));
    tokio::spawn(replication::watch_followers(server.replication.clone()));
    if server.config.get(keys::PORT) != 0 {
        tracing::info!("Ready to accept connections tcp");
    }
    if server.config.get(keys::TLS_PORT) != 0 {
        tracing::info!("Ready to accept connections tls");
    }
    if server.config.get(keys::UNIXSOCKET).is_some() {
        tracing::info!("Ready to accept connections unix");
    }
    daemon::notify_ready(&server.config);
    wait_for_stop(server, cluster, sigterm, sigint).await
}

/// Waits until the ports are free. An earlier process of this server may not have exited yet.
async fn wait_for_ports(server: &Server) {
    let values = server.config.values().clone();
    let ListenPorts { plain_port: plain, tls_port: tls } = ListenPorts::from_values(&values);
    let bus = server.cluster.as_ref().and_then(|_| cluster::bus_port(&values).ok());
    listener::wait_until_ports_are_free(&values[keys::BIND], &[plain, tls, bus.unwrap_or(0)]).await;
    listener::wait_until_ports_are_free(&values[keys::METRICS_BIND], &[values[keys::METRICS_PORT]]).await;
}

async fn open_listeners(server: &Arc<Server>) -> Result<()> {
    let values = server.config.values().clone();
    let ports = ListenPorts::from_values(&values);
    server.network.listen_tcp(&values).await.map_err(|error| {
        tracing::warn!("Warning: {error:#}");
        let (port, kind) =
            if ports.plain_port == 0 { (ports.tls_port, "TLS") } else { (ports.plain_port, "TCP") };
        anyhow!("Failed listening on port {port} ({kind}), aborting.")
    })?;
    if values[keys::UNIXSOCKET].is_none()
        && (ports.plain_port, ports.tls_port) != (0, 0)
        && !server.network.listeners.is_listening()
    {
        bail!("Configured to not listen anywhere, exiting.");
    }
    if let Some(path) = &values[keys::UNIXSOCKET] {
        let mode = Some(values[keys::UNIXSOCKETPERM]).filter(|mode| *mode != 0);
        server.network.listen_unix(path, mode)?;
    }
    Ok(())
}

/// Runs the cluster driver until a signal or a client stops the server. A shutdown that is refused or aborted does not
/// end the loop.
async fn wait_for_stop(
    server: &Arc<Server>,
    cluster: Option<cluster::ClusterTask>,
    mut sigterm: Signal,
    mut sigint: Signal,
) -> Result<()> {
    let cluster = async {
        match cluster {
            Some(driver) => driver.run().await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(cluster);
    loop {
        let (signal, parameter) = tokio::select! {
            ended = &mut cluster => return ended,
            _ = sigterm.recv() => {
                tracing::warn!("Received SIGTERM scheduling shutdown...");
                ("SIGTERM", keys::SHUTDOWN_ON_SIGTERM)
            }
            _ = sigint.recv() => {
                tracing::warn!("Received SIGINT scheduling shutdown...");
                ("SIGINT", keys::SHUTDOWN_ON_SIGINT)
            }
            () = server.stop_signal.wait_until_stopped() => {
                tracing::warn!("User requested shutdown...");
                return Ok(());
            }
        };
        tracing::warn!("User requested shutdown...");
        let plan = ShutdownPlan::for_signal(&server.config.get(parameter));
        tokio::select! {
            stopped = shutdown::run_shutdown(server, plan) => match stopped {
                Ok(()) => return Ok(()),
                Err(ShutdownError::Aborted) => {}
                Err(_) => tracing::warn!(
                    "Received {signal} but errors trying to shut down the server, check the logs for more information"
                ),
            },
            // During a shutdown that waits for replicas, the cluster driver keeps running.
            ended = &mut cluster => return ended,
            _ = sigint.recv() => {
                tracing::warn!("You insist... exiting now.");
                std::process::exit(1);
            }
        }
    }
}

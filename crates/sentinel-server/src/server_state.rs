//! The state of a sentinel process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clock::Instant;
use config::Config;
use engine::{CommandSet, Engine, Worker};
use net::tls::Tls;
use sentinel::{JobId, LinkId, Sentinel};
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::ServerEvent;
use super::client::Client;
use super::files::Files;
use super::links::LinkHandle;
use super::traffic::{RecentRates, Traffic};

/// All state of a sentinel process. One thread owns it.
pub(super) struct ServerState {
    pub(super) sentinel: Sentinel,
    pub(super) config: Config,
    pub(super) tls: Arc<Tls>,
    pub(super) files: Files,
    /// Whether a disk write has blocked the thread since the last round of the event loop.
    pub(super) was_blocked_by_disk: bool,
    pub(super) links: BTreeMap<LinkId, LinkHandle>,
    pub(super) connection_count: u64,
    pub(super) clients: BTreeMap<u64, Client>,
    /// The engine, which manages users and client connections.
    pub(super) engine: Arc<Engine>,
    /// The commands that the engine runs for a sentinel. They concern only connections and users.
    pub(super) engine_commands: CommandSet,
    pub(super) worker: Worker,
    /// Whether the users differ from those in the configuration file.
    pub(super) users_changed: bool,
    /// Whether the configuration file has a line for the user `default`.
    pub(super) names_default: bool,
    pub(super) scripts: BTreeMap<JobId, JoinHandle<()>>,
    /// Senders that are notified when all events before their request have been processed.
    pub(super) flush_waiters: Vec<oneshot::Sender<()>>,
    pub(super) events: Sender<ServerEvent>,
    pub(super) started_at: std::time::Instant,
    pub(super) traffic: Arc<Traffic>,
    pub(super) recent_rates: RecentRates,
    pub(super) commands: u64,
    pub(super) connections: u64,
    pub(super) ends: bool,
}

/// Converts a time for the state machine, whose clock starts later than its origin, so that times before the start can
/// be represented.
pub(super) fn time_since(started_at: std::time::Instant) -> Instant {
    const CLOCK_MARGIN: Duration = Duration::from_secs(3600);
    Instant::ORIGIN + CLOCK_MARGIN + started_at.elapsed()
}

/// What [`ServerState`] gets from the process that it runs in.
pub(super) struct ProcessParts {
    pub(super) config: Config,
    pub(super) tls: Arc<Tls>,
    pub(super) files: Files,
    pub(super) engine: Arc<Engine>,
    /// Whether the configuration file has a line for the user `default`.
    pub(super) names_default: bool,
    pub(super) events: Sender<ServerEvent>,
    pub(super) traffic: Arc<Traffic>,
    pub(super) started_at: std::time::Instant,
}

impl ServerState {
    /// Creates the state without links and clients.
    pub(super) fn new(sentinel: Sentinel, process: ProcessParts) -> Self {
        let ProcessParts { config, tls, files, engine, names_default, events, traffic, started_at } = process;
        Self {
            sentinel,
            config,
            tls,
            files,
            was_blocked_by_disk: false,
            links: BTreeMap::new(),
            connection_count: 0,
            clients: BTreeMap::new(),
            engine_commands: CommandSet::new(::commands::sentinel_registry()),
            worker: engine.new_worker(process::time::nanos),
            engine,
            users_changed: false,
            names_default,
            scripts: BTreeMap::new(),
            flush_waiters: Vec::new(),
            events,
            started_at,
            traffic,
            recent_rates: RecentRates::new(started_at),
            commands: 0,
            connections: 0,
            ends: false,
        }
    }

    pub(super) fn config_path(&self) -> &std::path::Path {
        self.files.config_path()
    }

    pub(super) fn uptime(&self) -> Duration {
        self.started_at.elapsed()
    }

    pub(super) fn now(&self) -> Instant {
        time_since(self.started_at)
    }
}

//! Shared network state: connection limits, statistics, TLS settings, listeners and the worker pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use clock::Millis;
use config::{Config, Values, keys};
use engine::{Client, ClientKind, Engine};
use parking_lot::Mutex;
use process::adaptive_tick::AdaptiveTick;

use crate::listener::Listeners;
use crate::tls::Tls;
use crate::traffic::Traffic;
use crate::worker_pool::WorkerPool;

/// Network state that the listeners share with the connections they accept.
#[derive(Debug)]
pub struct NetworkContext {
    pub(super) config: Arc<Config>,
    /// The engine, which knows whether the default user has a password.
    pub(super) engine: Arc<Engine>,
    /// TLS settings for incoming and outgoing connections.
    pub tls: Arc<Tls>,
    /// Limits from the configuration, which CONFIG SET can change.
    pub limits: ClientLimits,
    /// Network counters shown in INFO.
    pub stats: NetworkStats,
    /// Number of connected clients, including those still in a TLS handshake.
    pub connected: AtomicUsize,
    /// The listening sockets, which CONFIG SET can replace.
    pub listeners: Listeners,
    /// The worker threads that serve clients.
    pub worker_pool: WorkerPool,
    /// The timer of periodic work. It slows down while the server is idle; incoming traffic speeds it up again.
    pub tick: Arc<AdaptiveTick>,
    /// Traffic counters, one set per thread. Sums over all sets give the server's traffic.
    pub traffic: Mutex<Vec<Arc<Traffic>>>,
}

impl NetworkContext {
    /// Creates the state without listeners and threads. [`ClientLimits::configure`] sets the limits later.
    pub fn new(config: Arc<Config>, engine: Arc<Engine>) -> Self {
        Self {
            config,
            engine,
            tls: Arc::default(),
            limits: ClientLimits::default(),
            stats: NetworkStats::default(),
            connected: AtomicUsize::new(0),
            listeners: Listeners::default(),
            worker_pool: WorkerPool::default(),
            tick: Arc::default(),
            traffic: Mutex::default(),
        }
    }

    /// Registers traffic counters for one more thread.
    pub(crate) fn new_traffic(&self) -> Arc<Traffic> {
        let traffic = Arc::new(Traffic::new(self.tick.clone()));
        self.traffic.lock().push(traffic.clone());
        traffic
    }
}

/// Network counters that are shared by all threads.
#[derive(Debug, Default)]
pub struct NetworkStats {
    /// Number of accepted connections, including those that were rejected.
    pub connections_received: AtomicU64,
    /// Number of clients rejected because of `maxclients` or protected mode.
    pub connections_rejected: AtomicU64,
    /// Number of clients closed because their query buffer exceeded its limit.
    pub query_limit_disconnections: AtomicU64,
    /// Number of clients closed because their output buffer exceeded its limit.
    pub output_limit_disconnections: AtomicU64,
    /// Number of cluster bus links, updated by the cluster driver.
    pub bus_links: AtomicUsize,
    /// Number of bytes queued for sending on the cluster bus links.
    pub bus_bytes: AtomicUsize,
    busiest: Mutex<BusiestClient>,
}

/// The client that used the most worker time in a sampling period.
#[derive(Debug, Clone, Copy, Default)]
pub struct BusiestClient {
    /// The client id, or 0 if no client did any work.
    pub id: u64,
    /// The client's share of one worker's time in the period, in thousandths.
    pub permille: u64,
}

impl NetworkStats {
    /// Finds the busiest client of the sampling period that lasted `nanos`, and resets the work counters.
    pub fn update_busiest_client(&self, clients: &[Arc<Client>], nanos: u64) {
        let works = clients.iter().map(|client| (client.take_worker_nanos(), client.id));
        let (work, id) = works.max().filter(|(work, _)| *work > 0).unwrap_or_default();
        let permille = work.saturating_mul(1000) / nanos.max(1);
        *self.busiest.lock() = BusiestClient { id, permille: permille.min(1000) };
    }

    /// Returns the busiest client of the last complete sampling period.
    pub fn busiest_client(&self) -> BusiestClient {
        *self.busiest.lock()
    }
}

/// Limits on the number of clients and on the buffers of each client.
#[derive(Debug, Default)]
pub struct ClientLimits {
    /// Maximum size of an incomplete request, in bytes.
    pub query_buffer: AtomicUsize,
    /// Output buffer limit of clients that are not subscribers.
    normal: OutputLimit,
    /// Output buffer limit of subscribers.
    pubsub: OutputLimit,
    /// Maximum number of clients (`maxclients`).
    pub clients: AtomicUsize,
}

impl ClientLimits {
    /// Loads the limits from the configuration.
    pub fn configure(&self, values: &Values) {
        self.query_buffer.store(values[keys::CLIENT_QUERY_BUFFER_LIMIT], Ordering::Relaxed);
        self.clients.store(values[keys::MAXCLIENTS], Ordering::Relaxed);
        let limits = &values[keys::CLIENT_OUTPUT_BUFFER_LIMIT];
        self.normal.configure(limits.normal);
        self.pubsub.configure(limits.pubsub);
    }

    /// Returns the output buffer limit that applies to this client. Replicas get the normal limit here, since the
    /// replication buffer has its own limit for them.
    pub fn output_limit_for(&self, client: &Client) -> &OutputLimit {
        match client.kind() {
            ClientKind::PubSub => &self.pubsub,
            ClientKind::Normal | ClientKind::Replica | ClientKind::Master => &self.normal,
        }
    }
}

/// An output buffer limit: the client is closed when its pending output reaches the hard limit, or has been above the
/// soft limit for too long.
#[derive(Debug, Default)]
pub struct OutputLimit {
    /// Hard limit in bytes; 0 disables it.
    pub hard: AtomicUsize,
    /// Soft limit in bytes; 0 disables it.
    pub soft: AtomicUsize,
    pub(crate) seconds: AtomicU64,
}

impl OutputLimit {
    fn configure(&self, limit: config::OutputLimit) {
        self.hard.store(limit.hard, Ordering::Relaxed);
        self.soft.store(limit.soft, Ordering::Relaxed);
        self.seconds.store(limit.soft_duration.as_secs(), Ordering::Relaxed);
    }

    /// Returns whether output has exceeded the soft limit for longer than allowed. `exceeded_since` is when it first
    /// exceeded the limit, in wall clock milliseconds.
    pub fn is_soft_limit_exceeded(&self, since: i64, now: Millis) -> bool {
        let allowed = i64::try_from(self.seconds.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        self.soft.load(Ordering::Relaxed) > 0 && now.0.saturating_sub(since) > allowed.saturating_mul(1000)
    }
}

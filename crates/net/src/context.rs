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
    pub client_count: AtomicUsize,
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
            client_count: AtomicUsize::new(0),
            listeners: Listeners::default(),
            worker_pool: WorkerPool::default(),
            tick: Arc::default(),
            traffic: Mutex::default(),
        }
    }

    /// Registers traffic counters for one more thread.
    pub(crate) fn register_traffic_counters(&self) -> Arc<Traffic> {
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
    pub bus_queued_bytes: AtomicUsize,
    busiest_client: Mutex<BusiestClient>,
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
        *self.busiest_client.lock() = BusiestClient { id, permille: permille.min(1000) };
    }

    /// Returns the busiest client of the last complete sampling period.
    pub fn busiest_client(&self) -> BusiestClient {
        *self.busiest_client.lock()
    }
}

/// Limits on the number of clients and on the buffers of each client.
#[derive(Debug, Default)]
pub struct ClientLimits {
    /// Maximum size of an incomplete request, in bytes.
    pub max_query_buffer: AtomicUsize,
    /// Output buffer limit of clients that are not subscribers.
    normal_output: OutputLimit,
    /// Output buffer limit of subscribers.
    pubsub_output: OutputLimit,
    /// Maximum number of clients (`maxclients`).
    pub max_clients: AtomicUsize,
}

impl ClientLimits {
    /// Loads the limits from the configuration.
    pub fn configure(&self, values: &Values) {
        self.max_query_buffer.store(values[keys::CLIENT_QUERY_BUFFER_LIMIT], Ordering::Relaxed);
        self.max_clients.store(values[keys::MAXCLIENTS], Ordering::Relaxed);
        let limits = &values[keys::CLIENT_OUTPUT_BUFFER_LIMIT];
        self.normal_output.configure(limits.normal);
        self.pubsub_output.configure(limits.pubsub);
    }

    /// Returns the output buffer limit that applies to this client. Replicas get the normal limit here, since the
    /// replication buffer has its own limit for them.
    pub fn output_limit_for(&self, client: &Client) -> &OutputLimit {
        match client.kind() {
            ClientKind::PubSub => &self.pubsub_output,
            ClientKind::Normal | ClientKind::Replica | ClientKind::Master => &self.normal_output,
        }
    }
}

/// An output buffer limit: the client is closed when its pending output reaches the hard limit, or has been above the
/// soft limit for too long.
#[derive(Debug, Default)]
pub struct OutputLimit {
    /// Hard limit in bytes; 0 disables it.
    pub hard_limit: AtomicUsize,
    /// Soft limit in bytes; 0 disables it.
    pub soft_limit: AtomicUsize,
    pub(crate) soft_limit_seconds: AtomicU64,
}

impl OutputLimit {
    fn configure(&self, limit: config::OutputLimit) {
        self.hard_limit.store(limit.hard_limit, Ordering::Relaxed);
        self.soft_limit.store(limit.soft_limit, Ordering::Relaxed);
        self.soft_limit_seconds.store(limit.soft_duration.as_secs(), Ordering::Relaxed);
    }

    /// Returns whether output has exceeded the soft limit for longer than allowed. `exceeded_since` is when it first
    /// exceeded the limit, in wall clock milliseconds.
    pub fn is_soft_limit_exceeded(&self, exceeded_since: i64, now: Millis) -> bool {
        let allowed = i64::try_from(self.soft_limit_seconds.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        self.soft_limit.load(Ordering::Relaxed) > 0
            && now.0.saturating_sub(exceeded_since) > allowed.saturating_mul(1000)
    }
}

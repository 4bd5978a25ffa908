//! Where clients come in: how many there are, how much each may make the server keep, and what they moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use clock::Millis;
use config::{Config, Values, keys};
use engine::{Client, ClientKind, Engine};
use parking_lot::Mutex;
use process::pulse::Pulse;

use crate::net::crew::Crew;
use crate::net::listener::Listeners;
use crate::net::tls::Tls;
use crate::net::traffic::Traffic;

/// The state that listening sockets share with the connections they accepted.
#[derive(Debug)]
pub(crate) struct Door {
    pub(super) config: Arc<Config>,
    /// Knows whether a password is asked for.
    pub(super) engine: Arc<Engine>,
    pub(crate) tls: Arc<Tls>,
    pub(crate) limits: Limits,
    pub(crate) network: NetworkStats,
    /// How many clients are connected.
    pub(crate) connected: AtomicUsize,
    pub(crate) listeners: Listeners,
    /// The threads that serve clients.
    pub(crate) crew: Crew,
    pub(crate) pulse: Arc<Pulse>,
    /// Every thread's counters.
    pub(crate) traffic: Mutex<Vec<Arc<Traffic>>>,
}

impl Door {
    pub(crate) fn new(config: Arc<Config>, engine: Arc<Engine>) -> Self {
        Self {
            config,
            engine,
            tls: Arc::default(),
            limits: Limits::default(),
            network: NetworkStats::default(),
            connected: AtomicUsize::new(0),
            listeners: Listeners::default(),
            crew: Crew::default(),
            pulse: Arc::default(),
            traffic: Mutex::default(),
        }
    }

    /// Counters for one more thread that serves connections.
    pub(crate) fn new_traffic(&self) -> Arc<Traffic> {
        let traffic = Arc::new(Traffic::new(self.pulse.clone()));
        self.traffic.lock().push(traffic.clone());
        traffic
    }
}

/// Counters of the network side that are not a thread's own.
#[derive(Debug, Default)]
pub(crate) struct NetworkStats {
    pub(crate) connections_received: AtomicU64,
    pub(crate) connections_rejected: AtomicU64,
    pub(crate) query_limit_disconnections: AtomicU64,
    pub(crate) output_limit_disconnections: AtomicU64,
    pub(crate) evicted_clients: AtomicU64,
    /// Links of the cluster bus, as its driver last counted them.
    pub(crate) bus_links: AtomicUsize,
    /// Bytes that wait to be sent on them.
    pub(crate) bus_bytes: AtomicUsize,
    busiest: Mutex<Busiest>,
}

/// The client that kept its worker busy the most, as of the last look.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Busiest {
    /// Its number, or 0 if there was none.
    pub(crate) id: u64,
    /// Of a thousand parts of the time.
    pub(crate) permille: u64,
}

impl NetworkStats {
    /// Looks which of the clients kept its worker at work the most for the last `nanos`.
    pub(crate) fn look_for_busiest(&self, clients: &[Arc<Client>], nanos: u64) {
        let works = clients.iter().map(|client| (client.take_work(), client.id));
        let (work, id) = works.max().filter(|(work, _)| *work > 0).unwrap_or_default();
        let permille = work.saturating_mul(1000) / nanos.max(1);
        *self.busiest.lock() = Busiest { id, permille: permille.min(1000) };
    }

    pub(crate) fn busiest(&self) -> Busiest {
        *self.busiest.lock()
    }
}

/// Bounds on what clients may make the server keep.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    /// Bytes of an unfinished request.
    pub(crate) query_buffer: AtomicUsize,
    /// Bytes that wait to be sent to a client without a class.
    normal: OutputLimit,
    /// Bytes that wait to be sent to a subscriber.
    pubsub: OutputLimit,
    /// Bytes of memory that all of them take; 0 is no limit.
    pub(crate) clients_memory: AtomicUsize,
    /// Clients.
    pub(crate) clients: AtomicUsize,
}

impl Limits {
    /// Takes what the configuration says now.
    pub(crate) fn configure(&self, values: &Values) {
        self.query_buffer.store(values[keys::CLIENT_QUERY_BUFFER_LIMIT], Ordering::Relaxed);
        self.clients.store(values[keys::MAXCLIENTS], Ordering::Relaxed);
        let memory = values[keys::MAXMEMORY_CLIENTS].of(values[keys::MAXMEMORY]);
        self.clients_memory.store(memory, Ordering::Relaxed);
        let limits = &values[keys::CLIENT_OUTPUT_BUFFER_LIMIT];
        self.normal.configure(limits.normal);
        self.pubsub.configure(limits.pubsub);
    }

    /// How much may wait to be sent to this client. A replica's is its master's machine's to keep.
    pub(crate) fn output_of(&self, client: &Client) -> &OutputLimit {
        match client.kind() {
            ClientKind::PubSub => &self.pubsub,
            ClientKind::Normal | ClientKind::Replica | ClientKind::Master => &self.normal,
        }
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
    fn configure(&self, limit: config::OutputLimit) {
        self.hard.store(limit.hard, Ordering::Relaxed);
        self.soft.store(limit.soft, Ordering::Relaxed);
        self.seconds.store(limit.soft_for.as_secs(), Ordering::Relaxed);
    }

    /// Whether more than `soft` has waited for longer than it may: since then.
    pub(crate) fn lasts_too_long(&self, since: i64, now: Millis) -> bool {
        let allowed = i64::try_from(self.seconds.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        self.soft.load(Ordering::Relaxed) > 0 && now.0.saturating_sub(since) > allowed.saturating_mul(1000)
    }
}

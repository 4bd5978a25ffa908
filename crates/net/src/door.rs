//! Where clients come in: how many there are, how much each may make the server keep, and what they moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use clock::Millis;
use config::{Config, Values, keys};
use engine::{Client, ClientKind, Engine};
use parking_lot::Mutex;
use process::pulse::Pulse;

use crate::crew::Crew;
use crate::listener::Listeners;
use crate::tls::Tls;
use crate::traffic::Traffic;

/// The state that listening sockets share with the connections they accepted.
#[derive(Debug)]
pub struct Door {
    pub(super) config: Arc<Config>,
    /// Knows whether a password is asked for.
    pub(super) engine: Arc<Engine>,
    /// How clients, and other servers, are spoken to by TLS.
    pub tls: Arc<Tls>,
    /// As the configuration has them.
    pub limits: Limits,
    /// Counters for INFO.
    pub network: NetworkStats,
    /// How many clients are connected.
    pub connected: AtomicUsize,
    /// Where clients come in.
    pub listeners: Listeners,
    /// The threads that serve clients.
    pub crew: Crew,
    /// Stirred by all that comes in.
    pub pulse: Arc<Pulse>,
    /// Every thread's counters.
    pub traffic: Mutex<Vec<Arc<Traffic>>>,
}

impl Door {
    /// Closed, and without threads yet.
    pub fn new(config: Arc<Config>, engine: Arc<Engine>) -> Self {
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
pub struct NetworkStats {
    /// Clients that came, refused ones among them.
    pub connections_received: AtomicU64,
    /// Clients that were refused.
    pub connections_rejected: AtomicU64,
    /// Clients that were cut off for too long an unfinished request.
    pub query_limit_disconnections: AtomicU64,
    /// Clients that were cut off since too much waited for them.
    pub output_limit_disconnections: AtomicU64,
    /// Links of the cluster bus, as its driver last counted them.
    pub bus_links: AtomicUsize,
    /// Bytes that wait to be sent on them.
    pub bus_bytes: AtomicUsize,
    busiest: Mutex<Busiest>,
}

/// The client that kept its worker busy the most, as of the last look.
#[derive(Debug, Clone, Copy, Default)]
pub struct Busiest {
    /// Its number, or 0 if there was none.
    pub id: u64,
    /// Of a thousand parts of the time.
    pub permille: u64,
}

impl NetworkStats {
    /// Looks which of the clients kept its worker at work the most for the last `nanos`.
    pub fn look_for_busiest(&self, clients: &[Arc<Client>], nanos: u64) {
        let works = clients.iter().map(|client| (client.take_work(), client.id));
        let (work, id) = works.max().filter(|(work, _)| *work > 0).unwrap_or_default();
        let permille = work.saturating_mul(1000) / nanos.max(1);
        *self.busiest.lock() = Busiest { id, permille: permille.min(1000) };
    }

    /// As of the last look.
    pub fn busiest(&self) -> Busiest {
        *self.busiest.lock()
    }
}

/// Bounds on what clients may make the server keep.
#[derive(Debug, Default)]
pub struct Limits {
    /// Bytes of an unfinished request.
    pub query_buffer: AtomicUsize,
    /// Bytes that wait to be sent to a client without a class.
    normal: OutputLimit,
    /// Bytes that wait to be sent to a subscriber.
    pubsub: OutputLimit,
    /// Clients.
    pub clients: AtomicUsize,
}

impl Limits {
    /// Takes what the configuration says now.
    pub fn configure(&self, values: &Values) {
        self.query_buffer.store(values[keys::CLIENT_QUERY_BUFFER_LIMIT], Ordering::Relaxed);
        self.clients.store(values[keys::MAXCLIENTS], Ordering::Relaxed);
        let limits = &values[keys::CLIENT_OUTPUT_BUFFER_LIMIT];
        self.normal.configure(limits.normal);
        self.pubsub.configure(limits.pubsub);
    }

    /// How much may wait to be sent to this client. A replica's is its master's machine's to keep.
    pub fn output_of(&self, client: &Client) -> &OutputLimit {
        match client.kind() {
            ClientKind::PubSub => &self.pubsub,
            ClientKind::Normal | ClientKind::Replica | ClientKind::Master => &self.normal,
        }
    }
}

/// How much may wait to be sent to a client: never more than `hard` bytes, and more than `soft` only for
/// `seconds`. 0 is no limit.
#[derive(Debug, Default)]
pub struct OutputLimit {
    /// Bytes that never may wait.
    pub hard: AtomicUsize,
    /// Bytes that may not wait for long.
    pub soft: AtomicUsize,
    pub(crate) seconds: AtomicU64,
}

impl OutputLimit {
    fn configure(&self, limit: config::OutputLimit) {
        self.hard.store(limit.hard, Ordering::Relaxed);
        self.soft.store(limit.soft, Ordering::Relaxed);
        self.seconds.store(limit.soft_for.as_secs(), Ordering::Relaxed);
    }

    /// Whether more than `soft` has waited for longer than it may: since then.
    pub fn lasts_too_long(&self, since: i64, now: Millis) -> bool {
        let allowed = i64::try_from(self.seconds.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        self.soft.load(Ordering::Relaxed) > 0 && now.0.saturating_sub(since) > allowed.saturating_mul(1000)
    }
}

//! What all threads of a server share.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use engine::{Engine, Gate};
use tokio::sync::{Notify, watch};

use crate::cluster::Cluster;
use crate::config::Config;
use crate::replication::{Replication, SharedLog};

/// Counters of the network side, as INFO shows them.
#[derive(Debug, Default)]
pub(crate) struct NetworkStats {
    pub(crate) connections_received: AtomicU64,
    pub(crate) connections_rejected: AtomicU64,
    pub(crate) input_bytes: AtomicU64,
    pub(crate) output_bytes: AtomicU64,
    pub(crate) query_limit_disconnections: AtomicU64,
    pub(crate) output_limit_disconnections: AtomicU64,
}

/// Bounds on what one client may make the server keep, in bytes; 0 is no bound.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    pub(crate) query_buffer: AtomicUsize,
    pub(crate) output_buffer: AtomicUsize,
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engine: Engine,
    pub(crate) config: Config,
    pub(crate) network: NetworkStats,
    pub(crate) limits: Limits,
    pub(crate) replication: Replication,
    /// The way to the cluster's driver, in cluster mode.
    pub(crate) cluster: OnceLock<Cluster>,
    /// How many clients are connected.
    pub(crate) connected: AtomicUsize,
    pub(crate) next_client_id: AtomicU64,
    /// Wakes connections whose commands were paused.
    pause_ended: Notify,
    /// Forty random hexadecimal characters that name this run.
    pub(crate) run_id: String,
    /// The wall clock at the start, in seconds.
    pub(crate) started: i64,
    stopping: watch::Sender<bool>,
}

impl Server {
    pub(crate) fn new(engine: Engine, config: Config, run_id: String, log: Arc<SharedLog>) -> Arc<Self> {
        Arc::new(Self {
            engine,
            replication: Replication::new(&config, log),
            config,
            network: NetworkStats::default(),
            limits: Limits::default(),
            cluster: OnceLock::new(),
            connected: AtomicUsize::new(0),
            next_client_id: AtomicU64::new(1),
            pause_ended: Notify::new(),
            run_id,
            started: crate::time::now().secs(),
            stopping: watch::Sender::new(false),
        })
    }

    /// Tells every task to come to its end.
    pub(crate) fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns when [`Server::stop`] has been called.
    pub(crate) async fn stopped(&self) {
        // The sender lives as long as the server, so waiting cannot fail.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// Returns when no pause holds commands back any more.
    pub(crate) async fn unpaused(&self) {
        loop {
            let ended = self.pause_ended.notified();
            if !self.engine.settings.gate().intersects(Gate::WRITES_PAUSED | Gate::ALL_PAUSED) {
                return;
            }
            ended.await;
        }
    }

    /// Ends a pause, and lets those go on whom it held back.
    pub(crate) fn resume(&self, pause: Gate) {
        self.engine.settings.set_gate(pause, false);
        self.pause_ended.notify_waiters();
    }

    pub(crate) fn client_id(&self) -> u64 {
        self.next_client_id.fetch_add(1, Ordering::Relaxed)
    }
}

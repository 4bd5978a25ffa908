//! Cluster mode: runs the state machine of the `gossip` crate.
//!
//! [`prepare_cluster`] reads `nodes.conf` before anything is served, because the topology determines what this node may serve.
//! [`ClusterTask`](cluster_task::ClusterTask) is a task of the control thread. It owns the state machine and passes it packets
//! ([`links`]), time and commands. It performs the resulting actions: sends packets (after persisting state where
//! required), publishes the topology ([`engine::Engine::apply_topology`]), and starts and stops replication. Slow work runs
//! on other threads ([`background`]): writing `nodes.conf` ([`nodes_file`]) and deleting keys of lost slots. Worker threads
//! use [`ClusterHandle`]: they send requests, and read the cluster from an immutable view ([`published_view`]).

mod background;
mod cluster_task;
pub(crate) mod failovers;
mod links;
mod nodes_file;
mod options;
mod publication_queue;
mod published_view;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use gossip::wire::Publication;
use gossip::{ClusterView, Gossip, OperatorCommand, OperatorError, OperatorReply};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use slot_routing::{Slot, Topology};
use tokio::sync::{mpsc, oneshot};

pub(crate) use cluster_task::{BusFaults, ClusterTask, ClusterWatcher, NodeContext};
pub(crate) use options::bus_port;

use config::{Config, keys};
use nodes_file::NodesFile;
use published_view::PublishedView;

type OperatorResult = Result<OperatorReply, OperatorError>;

/// A request of another thread to the [`ClusterTask`](cluster_task::ClusterTask), the driver of the state machine.
enum DriverRequest {
    Command {
        command: OperatorCommand,
        result_sender: oneshot::Sender<OperatorResult>,
    },
    RunQuery(Box<dyn FnOnce(&mut ClusterTask) + Send>),
    /// The replicas have acknowledged a replicated slot change, or the wait for them has timed out.
    ReplicasConfirmed {
        token: u64,
        slot: Slot,
        acknowledged: bool,
    },
    ConfigChanged,
    /// CONFIG RESETSTAT.
    ResetStatistics,
    Publish {
        publication: Publication,
        queued_bytes: publication_queue::QueuedBytes,
    },
}

/// A handle with which other threads send requests to the driver and read the cluster.
#[derive(Debug, Clone)]
pub(crate) struct ClusterHandle {
    requests: mpsc::UnboundedSender<DriverRequest>,
    view: Arc<PublishedView>,
    traffic: Arc<links::TrafficCounters>,
}

/// The state machine and its file, before the driver task exists.
#[derive(Debug)]
pub(crate) struct PreparedCluster {
    gossip: Gossip,
    nodes_file: NodesFile,
    requests: mpsc::UnboundedReceiver<DriverRequest>,
}

impl std::fmt::Debug for DriverRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Command { .. } => "Command",
            Self::RunQuery(_) => "Look",
            Self::ReplicasConfirmed { .. } => "ReplicasConfirmed",
            Self::ConfigChanged => "Configure",
            Self::ResetStatistics => "ResetStatistics",
            Self::Publish { .. } => "Publish",
        })
    }
}

/// Locks and reads `nodes.conf`. If there is no such file, creates a node with a new id.
pub(crate) fn prepare_cluster(config: &Config, seed: u64) -> Result<(ClusterHandle, PreparedCluster)> {
    check_bus_protection(config)?;
    let name = config.get(keys::CLUSTER_CONFIG_FILE);
    let (store, text) = NodesFile::open(Path::new(&*name))?;
    let (options, rng) = (options::read_cluster_config(&config.values())?, ChaCha8Rng::seed_from_u64(seed));
    let gossip = if text.is_empty() {
        let gossip = Gossip::new(options, rng);
        tracing::info!("No cluster configuration found, I'm {}", gossip.id());
        gossip
    } else {
        let text = std::str::from_utf8(&text)
            .context("nodes.conf is not text")
            .map_err(|e| corrupt_file_error(&name, &e))?;
        let gossip =
            Gossip::restore(options, rng, text).map_err(|error| corrupt_file_error(&name, &error.into()))?;
        tracing::info!("Node configuration loaded, I'm {}", gossip.id());
        gossip
    };
    let (sender, requests) = mpsc::unbounded_channel();
    let view = Arc::new(PublishedView::new(gossip.view()));
    Ok((
        ClusterHandle { requests: sender, view, traffic: Arc::default() },
        PreparedCluster { gossip, nodes_file: store, requests },
    ))
}

/// Warns about an unprotected bus: without TLS, anyone who reaches the bus port can act as a node.
fn check_bus_protection(config: &Config) -> Result<()> {
    if config.get(keys::TLS_CLUSTER) {
        return Ok(());
    }
    if config.get(keys::CLUSTER_BUS_PORT_PROTECTED_MODE) {
        return Err(anyhow!(
            "cluster-bus-port-protected-mode is enabled but tls-cluster is disabled: whoever reaches the port of the \
             cluster bus could join the cluster. Enable tls-cluster, or set 'cluster-bus-port-protected-mode no' if \
             only trusted hosts reach that port."
        ));
    }
    tracing::warn!(
        "The cluster bus port is not authenticated: only trusted hosts should reach it (a firewall, a private \
         network), or enable tls-cluster"
    );
    Ok(())
}

fn corrupt_file_error(name: &str, error: &anyhow::Error) -> anyhow::Error {
    anyhow!("Unrecoverable error: corrupted cluster config file \"{name}\": {error}")
}

impl PreparedCluster {
    pub(crate) fn topology(&self) -> Topology {
        self.gossip.topology()
    }
}

impl ClusterHandle {
    /// Returns the last published view, without waiting for the driver. The view is older than the cluster state by at
    /// most [`published_view::PUBLICATION_PERIOD`], unless the driver is busy. Changes of the topology and the effects
    /// of operator commands are published before anything shows that they have happened.
    pub(crate) fn view(&self) -> Arc<ClusterView> {
        self.view.load()
    }

    /// Returns a view that contains the effects of all earlier requests. Returns `None` while the server stops.
    pub(crate) async fn current_view(&self) -> Option<Arc<ClusterView>> {
        self.run_query(ClusterTask::publish_view).await?;
        Some(self.view())
    }

    /// Returns the text of CLUSTER INFO for `view`.
    pub(crate) fn info_text(&self, view: &ClusterView) -> String {
        view.info_text(&self.traffic.snapshot())
    }

    /// Executes an operator's command. Returns `None` while the server stops.
    pub(crate) async fn execute(&self, command: OperatorCommand) -> Option<OperatorResult> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(DriverRequest::Command { command, result_sender: answer }).ok()?;
        answered.await.ok()
    }

    /// Waits until the driver has processed all earlier requests. Returns `None` while the server stops.
    pub(crate) async fn wait_for_pending_requests(&self) -> Option<()> {
        self.run_query(|_| ()).await
    }

    /// Runs a query on the driver's thread. Returns `None` while the server stops.
    pub(crate) async fn run_query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut ClusterTask) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        let ask = DriverRequest::RunQuery(Box::new(move |driver| {
            // An error means that the task that made the request has ended.
            let _ = answer.send(query(driver));
        }));
        self.requests.send(ask).ok()?;
        answered.await.ok()
    }

    pub(crate) fn publication_queue(&self) -> publication_queue::PublicationQueue {
        publication_queue::PublicationQueue::new(self.requests.clone())
    }

    fn confirm_replicas(&self, token: u64, slot: Slot, acknowledged: bool) {
        // A send error means that the server is stopping, so nothing waits for the confirmation.
        let _ = self.requests.send(DriverRequest::ReplicasConfirmed { token, slot, acknowledged });
    }

    /// Resets the counters of messages and bytes.
    pub(crate) fn reset_statistics(&self) {
        self.traffic.reset();
        // A send error means that the server is stopping and the driver has ended.
        let _ = self.requests.send(DriverRequest::ResetStatistics);
    }

    pub(crate) fn notify_config_change(&self) {
        // A send error means that the server is stopping and the driver has ended.
        let _ = self.requests.send(DriverRequest::ConfigChanged);
    }
}

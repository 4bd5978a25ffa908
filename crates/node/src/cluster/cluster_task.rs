//! The task that drives the cluster state machine: passes events to it and performs its actions.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clock::Instant;
use config::{Config, MasterAddress, keys};
use driver::Driver;
use engine::Engine;
use gossip::wire::{MessageKind, Packet, Publication};
use gossip::{
    ClusterAction, ClusterDriver, ClusterDriverEvent, ClusterEvent, ClusterInput, Gossip, LinkId, LogLevel,
    ReplicaConfirmation, ReplicationSource, SlotChange, StepInputs,
};
use net::context::NetworkContext;
use net::dialer::Dialer;
use net::pauses::PauseGate;
use net::tls::TlsPeers;
use net::transport::SocketOptions;
use slot_routing::{NodeId, ReplOffset, Slot};
use tokio::sync::{mpsc, oneshot};

use super::background::{BackgroundWorkers, JobResult};
use super::links::{self, BusLinks, LinkEvent};
use super::published_view::ViewPublisher;
use super::{ClusterHandle, DriverRequest, OperatorResult, PreparedCluster, options};
use crate::replication::Replication;

/// How often to search for keys in slots of other nodes. A search takes about a millisecond.
const STRAY_KEY_SCAN_PERIOD: Duration = Duration::from_secs(5);

/// The components on which the state machine's actions are performed.
#[derive(Debug)]
pub(crate) struct NodeContext {
    pub(crate) engine: Arc<Engine>,
    pub(crate) config: Arc<Config>,
    pub(crate) network: Arc<NetworkContext>,
    pub(crate) pause_gate: Arc<PauseGate>,
    pub(crate) replication: Arc<Replication>,
    pub(crate) watcher: Arc<dyn ClusterWatcher>,
}

/// A component that is notified of the state machine's decisions.
pub(crate) trait ClusterWatcher: std::fmt::Debug + Send + Sync {
    fn on_topology_published(&self);

    fn on_node_promoted(&self);
}

/// Owns the cluster state machine, passes events to it and performs its actions.
#[derive(Debug)]
pub(crate) struct ClusterTask {
    gossip: Gossip,
    view: ViewPublisher,
    /// A handle to this driver, cloned for tasks that report back to it.
    handle: ClusterHandle,
    node: NodeContext,
    background: BackgroundWorkers,
    job_results: mpsc::UnboundedReceiver<JobResult>,
    links: BusLinks,
    link_events: mpsc::Receiver<LinkEvent>,
    requests: mpsc::UnboundedReceiver<DriverRequest>,
    pending_results: BTreeMap<u64, oneshot::Sender<OperatorResult>>,
    driver: ClusterDriver,
    /// Number of writes of `nodes.conf` requested so far, which is also the number of the latest request.
    save_count: u64,
    next_token: u64,
    /// The last time passed to the state machine. Times passed to it must never decrease.
    last_step_time: Instant,
    /// The replication offset at which the state machine asked to be called again.
    awaited_offset: Option<ReplOffset>,
    write_pause: Option<WritePause>,
    pause_count: u64,
    next_key_scan_at: Instant,
    /// Whether this replica failed to apply some of its master's commands. Such a replica does not stand for election.
    data_differs: bool,
    pub(crate) bus_faults: BusFaults,
}

/// Faults that DEBUG commands inject into the cluster bus.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BusFaults {
    /// The type of received packets to drop; -2 for all, -1 for none.
    pub(crate) dropped_packet_type: i64,
    /// Whether a dropped packet also closes its link.
    pub(crate) closes_link_on_drop: bool,
    /// Whether this node opens no links and only accepts those of peers (DEBUG).
    pub(crate) suppresses_outgoing_links: bool,
}

impl BusFaults {
    const NONE: Self =
        Self { dropped_packet_type: -1, closes_link_on_drop: false, suppresses_outgoing_links: false };

    fn drops_packet(&self, packet: &Packet) -> bool {
        self.dropped_packet_type == -2
            || self.dropped_packet_type >= 0
                && self.dropped_packet_type == i64::from(packet.body.type_number())
    }
}

/// A pause of writes during a manual failover.
#[derive(Debug, Clone, Copy)]
struct WritePause {
    /// Distinguishes this pause from an earlier one whose running writes may still be finishing.
    number: u64,
    deadline: Instant,
}

impl ClusterTask {
    /// Opens the bus port. Must be called on the control thread's event loop.
    pub(crate) fn new(
        node: NodeContext,
        handle: ClusterHandle,
        prepared_cluster: PreparedCluster,
    ) -> Result<Self> {
        let (sender, events) = mpsc::channel(links::MAX_QUEUED_EVENTS);
        let config = &node.config;
        let port = options::bus_port(&config.values())?;
        let PreparedCluster { gossip, nodes_file: store, requests } = prepared_cluster;
        // A keepalive detects vanished peers after twice the node timeout, as in Redis. The kernel counts in whole
        // seconds and rejects zero.
        let keepalive = Some((2 * gossip.config().node_timeout).max(Duration::from_secs(1)));
        for listener in net::listener::bind_at_startup(&config.get(keys::BIND), port, 511, "cluster")? {
            let options = SocketOptions { nodelay: true, keepalive };
            let listener = match config.get(keys::TLS_CLUSTER) {
                true => listener.with_tls(&node.network.tls, TlsPeers::ClusterNodes),
                false => listener,
            };
            tokio::spawn(links::accept_links(listener, options, sender.clone()));
        }
        let (report, done) = mpsc::unbounded_channel();
        let now = process::time::monotonic_now();
        let links = BusLinks::new(sender, handle.traffic.clone());
        Ok(Self {
            gossip,
            view: ViewPublisher::new(handle.view.clone(), now),
            background: BackgroundWorkers::start(node.engine.clone(), &node.config, store, report)?,
            handle,
            node,
            job_results: done,
            links,
            link_events: events,
            requests,
            pending_results: BTreeMap::new(),
            driver: ClusterDriver::default(),
            save_count: 0,
            next_token: 0,
            last_step_time: now,
            next_key_scan_at: now + STRAY_KEY_SCAN_PERIOD,
            awaited_offset: None,
            write_pause: None,
            pause_count: 0,
            data_differs: false,
            bus_faults: BusFaults::NONE,
        })
    }

    /// Starts the state machine. When this returns, the role of this node is settled. `loaded_offset` is the
    /// replication offset of the loaded data, if known.
    pub(crate) fn start(&mut self, loaded_offset: Option<ReplOffset>) -> Result<()> {
        if let Some(upto) = loaded_offset {
            self.step_state_machine(ClusterInput::DatasetLoaded { offset: upto })?;
        }
        self.step_state_machine(ClusterInput::NodeStarted)
    }

    /// Runs until the task is dropped. Must be called after [`ClusterTask::start`]. An error stops the node.
    pub(crate) async fn run(mut self) -> Result<()> {
        self.background.find_stray_keys(true);
        let replication = self.node.replication.clone();
        loop {
            let next = self.next_deadline().map(|at| {
                let ahead = at.since(self.now());
                tokio::time::Instant::now() + ahead
            });
            let timer = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = self.link_events.recv() => {
                    let event = event.expect("the driver holds a sender itself");
                    self.on_link_event(event)?;
                }
                ask = self.requests.recv() => {
                    let ask = ask.expect("the server, which is ours too, holds a sender");
                    self.on_request(ask)?;
                }
                done = self.job_results.recv() => {
                    let done = done.expect("the driver holds a sender itself");
                    self.on_job_result(done)?;
                }
                () = replication.cluster_stream.event_received.notified() => self.step_state_machine(ClusterInput::Deadline)?,
                () = replication.wait_for_offset(self.awaited_offset) => {
                    self.awaited_offset = None;
                    self.step_state_machine(ClusterInput::Deadline)?;
                }
                () = timer => self.on_timer()?,
            }
            self.view.publish_if_due(&self.gossip, self.now());
            let stats = &self.node.network.stats;
            stats.bus_links.store(self.links.link_count(), Ordering::Relaxed);
            stats.bus_queued_bytes.store(self.links.total_queued_bytes(), Ordering::Relaxed);
        }
    }

    fn now(&self) -> Instant {
        process::time::monotonic_now().max(self.last_step_time)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let pause = self.write_pause.map(|pause| pause.deadline);
        let machine = self.gossip.next_deadline();
        [machine, pause, self.view.next_deadline(), self.driver.next_deadline(), Some(self.next_key_scan_at)]
            .into_iter()
            .flatten()
            .min()
    }

    fn on_timer(&mut self) -> Result<()> {
        let now = self.now();
        self.report_to_driver(now, ClusterDriverEvent::Deadline)?;
        if now >= self.next_key_scan_at {
            self.next_key_scan_at = now + STRAY_KEY_SCAN_PERIOD;
            self.background.find_stray_keys(false);
        }
        if self.write_pause.is_some_and(|pause| now >= pause.deadline) {
            self.resume_writes();
        }
        self.step_state_machine(ClusterInput::Deadline)
    }

    fn on_job_result(&mut self, result: JobResult) -> Result<()> {
        match result {
            JobResult::NodesFileWritten(number, outcome) => {
                outcome.context("Fatal: can't update cluster config file")?;
                self.report_to_driver(self.now(), ClusterDriverEvent::Written(number))?;
                if self.driver.take_persisted() {
                    self.step_state_machine(ClusterInput::Persisted)
                } else {
                    Ok(())
                }
            }
            JobResult::KeysDeleted => {
                self.node.replication.start_new_history();
                self.report_to_driver(self.now(), ClusterDriverEvent::DatasetDeleted)
            }
            JobResult::StrayKeysFound { slots, at_start } => {
                let slots = self.background.slots_with_remaining_keys(&slots);
                self.step_state_machine(ClusterInput::ForeignKeysFound { slots, at_startup: at_start })
            }
            // Each slot was locked once since writes were paused, so no earlier command is still running.
            JobResult::WritesFinished { pause }
                if self.write_pause.is_some_and(|current| current.number == pause) =>
            {
                let offset = self.replication_status(self.now()).offset;
                self.step_state_machine(ClusterInput::WritesPaused { offset })
            }
            JobResult::WritesFinished { .. } => Ok(()),
            JobResult::DeletionPaused => {
                self.background.resume_deletion_after(self.node.pause_gate.clone());
                Ok(())
            }
        }
    }

    /// Publishes the changes of the state machine to the readers of the cluster.
    pub(super) fn publish_view(&mut self) {
        self.view.publish(&self.gossip, self.now());
    }

    fn send_result(&mut self, token: u64, result: OperatorResult) {
        if let Some(waiting) = self.pending_results.remove(&token) {
            // An error means that the client has disconnected.
            let _ = waiting.send(result);
        }
    }

    fn close_slow_links(&mut self, links: Vec<LinkId>) -> Result<()> {
        for link in links {
            self.links.close_link(link);
            self.step_state_machine(ClusterInput::Closed { link })?;
        }
        Ok(())
    }

    fn on_link_event(&mut self, event: LinkEvent) -> Result<()> {
        match event {
            LinkEvent::Accepted { stream, peer, local } => {
                let link = self.links.register_accepted_link(stream);
                self.step_state_machine(ClusterInput::LinkAccepted { link, peer_ip: peer, local_ip: local })
            }
            LinkEvent::Connected { link, stream } => {
                if self.links.start_link(link, stream) {
                    self.step_state_machine(ClusterInput::Connected { link })?;
                }
                Ok(())
            }
            LinkEvent::ConnectFailed { link, is_refused: refused } => {
                self.links.close_link(link);
                self.step_state_machine(ClusterInput::ConnectFailed { link, is_refused: refused })
            }
            LinkEvent::PacketReceived { link, packet } if self.bus_faults.drops_packet(&packet) => {
                let word = packet.body.kind().map_or("unknown", MessageKind::wire_name);
                tracing::warn!("Dropping packet of type {word} that matches debug drop filter");
                self.gossip.count_dropped(&packet.body);
                self.view.mark_changed();
                if self.bus_faults.closes_link_on_drop { self.close_slow_links(vec![link]) } else { Ok(()) }
            }
            LinkEvent::PacketReceived { link, packet } => {
                self.step_state_machine(ClusterInput::Packet { link, packet })
            }
            LinkEvent::Closed { link } => {
                self.links.close_link(link);
                self.step_state_machine(ClusterInput::Closed { link })
            }
        }
    }

    fn on_request(&mut self, request: DriverRequest) -> Result<()> {
        match request {
            DriverRequest::Command { command, result_sender: answer } => {
                let token = self.next_token;
                self.next_token += 1;
                self.pending_results.insert(token, answer);
                self.step_state_machine(ClusterInput::Command { token, command })
            }
            DriverRequest::Publish { publication, queued_bytes: ticket } => {
                drop(ticket);
                self.step_state_machine(ClusterInput::Publish(publication))
            }
            DriverRequest::ReplicasConfirmed { token, slot, acknowledged: held } => {
                let keys = self.node.engine.keyspace.keys_in_slot(slot);
                let keys_in_slot = u64::try_from(keys).unwrap_or(u64::MAX);
                self.step_state_machine(ClusterInput::ReplicasAcknowledged {
                    token,
                    is_acknowledged: held,
                    keys_in_slot,
                })?;
                self.node.replication.cluster_stream.on_change_completed(token);
                Ok(())
            }
            DriverRequest::RunQuery(look) => {
                look(self);
                Ok(())
            }
            DriverRequest::ResetStatistics => {
                self.gossip.reset_stats();
                self.view.mark_changed();
                Ok(())
            }
            DriverRequest::ConfigChanged => match self.gossip_config() {
                Ok(config) => self.step_state_machine(ClusterInput::Configure(Box::new(config))),
                Err(error) => {
                    tracing::warn!("{error:#}");
                    Ok(())
                }
            },
        }
    }

    /// Passes queued replication events and then `event` to the state machine, and performs the resulting actions.
    fn step_state_machine(&mut self, event: ClusterInput) -> Result<()> {
        let (now, wall) = (self.now(), process::time::now());
        self.last_step_time = now;
        let facts = self.replication_status(now);
        let replication = &self.node.replication;
        let differs = replication.unapplied_commands() > 0;
        let is_other = std::mem::replace(&mut self.data_differs, differs) != differs;
        let news = StepInputs {
            replication: facts,
            stream_events: replication.cluster_stream.take_received_events(),
            first_write: replication.log.take_first_write(),
            config: if is_other { Some(Box::new(self.gossip_config()?)) } else { None },
        };
        let step = self.driver.run_machine(&mut self.gossip, now, wall, news, event);
        let lease = self.gossip.serving_lease();
        self.view.mark_changed();
        self.report_to_driver(now, ClusterDriverEvent::MachineStepped(step))?;
        // The actions above have published the topology, so the lease covers only what this node may serve.
        let until = lease.map_or(u64::MAX, |lease| (now + lease).as_micros() * 1000);
        self.node.engine.renew_lease(until);
        Ok(())
    }

    /// Reports an event to the driver and performs the resulting actions.
    fn report_to_driver(&mut self, now: Instant, event: ClusterDriverEvent) -> Result<()> {
        let mut actions = Vec::new();
        self.driver.handle(now, event, &mut actions);
        self.perform_actions(actions)
    }

    /// Performs actions, and closes links whose peers do not read.
    fn perform_actions(&mut self, actions: impl IntoIterator<Item = ClusterAction>) -> Result<()> {
        let mut given_up = Vec::new();
        for action in actions {
            self.perform_action(action, &mut given_up);
        }
        self.close_slow_links(given_up)
    }

    /// Queues a packet. Returns the link if its peer does not read and the link must be closed.
    fn send_packet(&mut self, link: LinkId, packet: &Packet) -> Option<LinkId> {
        if tracing::enabled!(tracing::Level::TRACE) {
            self.log_sent_packet(link, packet);
        }
        let limit = self.node.config.get(keys::CLUSTER_LINK_SENDBUF_LIMIT);
        if self.links.queue_packet(link, packet, limit) {
            return None;
        }
        tracing::warn!(
            "Freeing cluster link because its peer does not read; the send buffer is over its limit"
        );
        Some(link)
    }

    /// Logs the packet with Valkey's message, because tools wait for these messages.
    fn log_sent_packet(&self, link: LinkId, packet: &Packet) {
        let word = packet.body.kind().map_or("unknown", MessageKind::wire_name);
        let side = if matches!(link, LinkId::Outbound(_)) { "outbound" } else { "inbound" };
        match self.gossip.peer_node(link) {
            Some(node) if node.human_name.is_empty() => {
                let ip = node.address.ip.map_or_else(String::new, |ip| ip.to_string());
                let (id, port) = (node.id, node.address.port);
                tracing::trace!("Sending {word} packet to node {id} ({ip}:{port}) on {side} link");
            }
            Some(node) => {
                let (id, name) = (node.id, &node.human_name);
                tracing::trace!("Sending {word} packet to node {id} ({name}) on {side} link");
            }
            None => tracing::trace!("Sending {word} packet to an unknown node on {side} link"),
        }
    }

    fn perform_action(&mut self, action: ClusterAction, slow_links: &mut Vec<LinkId>) {
        match action {
            ClusterAction::Connect { link, ip, port } => self.start_connecting(link, ip, port),
            ClusterAction::Close { link } => self.links.close_link(link),
            ClusterAction::Send { link, packet, .. } => slow_links.extend(self.send_packet(link, &packet)),
            ClusterAction::Persist { nodes_conf, must_sync } => {
                self.save_count += 1;
                self.background.request_save(self.save_count, nodes_conf, must_sync);
            }
            ClusterAction::Publish(topology) => {
                self.publish_view();
                self.background.empty_returning_slots(&topology);
                self.node.engine.apply_topology(*topology);
                self.node.watcher.on_topology_published();
            }
            ClusterAction::RestrictReplicas(copies) => {
                self.node.replication.replica_admission.store(Arc::new(copies));
            }
            ClusterAction::BecomeMaster => {
                self.node.replication.log.watch_first_write();
                self.node.replication.become_master();
                self.node.watcher.on_node_promoted();
                self.background.continue_master_deletion();
                // Search for stray keys now: slots that the former master was importing may have keys that are not
                // marked as imported.
                self.next_key_scan_at = self.now();
            }
            ClusterAction::BecomeReplica { ip, port, is_data_foreign: foreign, .. } => {
                self.follow_master(ip, port, foreign);
            }
            ClusterAction::PauseWrites { until } => self.pause_writes(until),
            ClusterAction::ReplicateSlotChange { slot, change, confirmation: confirm } => {
                self.replicate_slot_change(slot, &change, confirm);
            }
            ClusterAction::ResumeWrites => self.resume_writes(),
            ClusterAction::WatchOffset(offset) => self.awaited_offset = offset,
            ClusterAction::DeleteSlotKeys(slots) => self.background.delete_slot_keys(&slots),
            ClusterAction::DeleteDataset => self.background.delete_all_keys(),
            ClusterAction::DeliverPublication(publication) => {
                let Publication { is_sharded: sharded, channel, message } = &publication;
                self.node.engine.notifications.pubsub.deliver(*sharded, channel, message);
            }
            ClusterAction::Reply { token, result } => {
                // The client may read the effect of its command as soon as it has the result.
                self.publish_view();
                self.send_result(token, result);
            }
            ClusterAction::Log(event) => log_cluster_event(&event),
        }
    }

    fn start_connecting(&mut self, link: LinkId, ip: IpAddr, port: u16) {
        if self.bus_faults.suppresses_outgoing_links {
            // The connection attempt times out in the state machine, which then retries.
            return;
        }
        let timeout = self.gossip.config().node_timeout;
        let dialer = Dialer::with_link_tls(&self.node.config, &self.node.network.tls, keys::TLS_CLUSTER);
        self.links.start_connecting(link, SocketAddr::new(ip, port), timeout, dialer);
    }

    fn pause_writes(&mut self, until: Instant) {
        self.node.pause_gate.pause_for_failover(until.since(self.now()));
        self.pause_count += 1;
        self.write_pause = Some(WritePause { number: self.pause_count, deadline: until });
        self.background.wait_for_running_writes(self.pause_count);
    }

    /// Replicates a change of a slot, and confirms it to the state machine once all connected replicas have it.
    fn replicate_slot_change(
        &self,
        slot: Slot,
        change: &SlotChange,
        confirmation: Option<ReplicaConfirmation>,
    ) {
        let replication = self.node.replication.clone();
        let said = replication.replicate_slot_change(slot, change, confirmation.map(|confirm| confirm.token));
        let Some(ReplicaConfirmation { token, timeout }) = confirmation else { return };
        let own = self.handle.clone();
        tokio::spawn(async move {
            let held = match said {
                Some((offset, readers)) => replication.wait_for_replicas(offset, readers, timeout).await,
                None => true,
            };
            own.confirm_replicas(token, slot, held);
        });
    }

    fn gossip_config(&self) -> Result<gossip::ClusterConfig> {
        let mut options = options::read_cluster_config(&self.node.config.values())?;
        // A replica whose data differs can still be promoted by an operator with CLUSTER FAILOVER.
        options.replica_no_failover |= self.data_differs;
        Ok(options)
    }

    fn replication_status(&self, now: Instant) -> gossip::ReplicationStatus {
        let replication = &self.node.replication;
        let source = match (replication.is_replica(), replication.link_down_since()) {
            (false, _) => ReplicationSource::NeverSynchronized,
            // A connection can break without an error, so report when data was last received.
            (true, None) => ReplicationSource::Streaming {
                last_heard_at: replication.last_master_contact().unwrap_or(now),
            },
            (true, Some(since)) if replication.has_data() => ReplicationSource::Lost { since },
            (true, Some(_)) => ReplicationSource::NeverSynchronized,
        };
        gossip::ReplicationStatus { offset: replication.failover_offset(), source }
    }

    fn follow_master(&mut self, ip: IpAddr, port: u16, is_foreign: bool) {
        let master = MasterAddress { host: ip.to_string(), port };
        if is_foreign {
            self.node.replication.become_foreign_replica_of(master);
        } else {
            self.node.replication.become_replica_of(master);
        }
    }

    fn resume_writes(&mut self) {
        if self.write_pause.take().is_some() {
            self.node.pause_gate.resume_after_failover();
        }
    }

    /// Closes the selected links to and from a node (DEBUG CLUSTERLINK KILL). Returns false if the node is unknown.
    pub(crate) fn kill_links(&mut self, node: NodeId, is_selected: impl Fn(LinkId) -> bool) -> bool {
        let reports = self.link_reports();
        for report in reports.iter().filter(|report| report.node == node && is_selected(report.link)) {
            self.links.abort_link(report.link);
        }
        self.gossip.node(node).is_some()
    }

    pub(crate) fn link_reports(&self) -> Vec<gossip::LinkReport> {
        self.gossip.link_reports()
    }

    pub(crate) fn queued_bytes(&self, link: LinkId) -> usize {
        self.links.queued_bytes(link)
    }
}

impl Drop for ClusterTask {
    /// Writes the final `nodes.conf` when the server stops.
    fn drop(&mut self) {
        let mut actions = Vec::new();
        self.driver.handle(self.now(), ClusterDriverEvent::Stopping, &mut actions);
        for save in actions {
            self.perform_action(save, &mut Vec::new());
        }
    }
}

fn log_cluster_event(event: &ClusterEvent) {
    match event.level() {
        LogLevel::Debug => tracing::trace!("{event}"),
        LogLevel::Verbose => tracing::debug!("{event}"),
        LogLevel::Notice => tracing::info!("{event}"),
        LogLevel::Warning => tracing::warn!("{event}"),
    }
}

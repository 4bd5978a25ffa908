//! The task that drives the cluster state machine: passes events to it and performs its actions.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clock::Instant;
use config::{Config, MasterAddress, keys};
use engine::Engine;
use gossip::wire::{MessageKind, Packet, Publication};
use gossip::{
    ClusterAction, ClusterDriver, ClusterEvent, ClusterInput, LinkId, LogLevel, ReplicaConfirmation,
    ReplicationSource, SlotChange, StepInputs,
};
use net::context::NetworkContext;
use net::dialer::Dialer;
use net::pauses::PauseGate;
use net::tls::TlsPeers;
use net::transport::SocketOptions;
use slot_routing::{NodeId, ReplOffset, Slot};
use tokio::sync::{mpsc, oneshot};

use super::background::{BackgroundWorkers, Done};
use super::links::{self, LinkEvent, Links};
use super::{Answer, Cluster, DriverRequest, Machine, Prepared, options};
use crate::replication::Replication;

/// How often to search for keys in slots of other nodes. One pass takes about a millisecond.
const STRAY_KEY_SCAN_PERIOD: Duration = Duration::from_secs(5);

/// The parts of a node that the state machine controls.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) engine: Arc<Engine>,
    pub(crate) config: Arc<Config>,
    pub(crate) network: Arc<NetworkContext>,
    pub(crate) pauses: Arc<PauseGate>,
    pub(crate) replication: Arc<Replication>,
    pub(crate) watcher: Arc<dyn Watcher>,
}

/// Components that react to the state machine's decisions.
pub(crate) trait Watcher: std::fmt::Debug + Send + Sync {
    /// A new topology was published.
    fn republished(&self);

    /// This node became a master.
    fn promoted(&self);
}

/// The cluster state machine and everything it controls.
#[derive(Debug)]
pub(crate) struct Driver {
    machine: Arc<Machine>,
    /// The interface to this driver for other threads.
    own: Cluster,
    node: Node,
    background: BackgroundWorkers,
    done: mpsc::UnboundedReceiver<Done>,
    links: Links,
    events: mpsc::Receiver<LinkEvent>,
    requests: mpsc::UnboundedReceiver<DriverRequest>,
    waiting: BTreeMap<u64, oneshot::Sender<Answer>>,
    driving: ClusterDriver,
    /// The number of requested writes of `nodes.conf`.
    saves: u64,
    next_token: u64,
    /// The last time passed to the state machine, which must not go back.
    last: Instant,
    /// The offset whose processing the state machine waits for.
    watched: Option<ReplOffset>,
    pause: Option<Pause>,
    pauses: u64,
    look_at: Instant,
    /// Whether the data differs from the master's, so that this node does not stand for election.
    differs: bool,
    pub(crate) interference: Interference,
}

/// Faults injected into the bus by DEBUG.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interference {
    /// The type of received packets to drop; -2 for all, -1 for none.
    pub(crate) dropped: i64,
    /// Whether to close the link of a dropped packet.
    pub(crate) closes: bool,
    /// Whether to suppress outgoing links.
    pub(crate) isolates: bool,
}

impl Interference {
    const NONE: Self = Self { dropped: -1, closes: false, isolates: false };

    fn drops(&self, packet: &Packet) -> bool {
        self.dropped == -2 || self.dropped >= 0 && self.dropped == i64::from(packet.body.number())
    }
}

/// A pause of writes during a manual failover.
#[derive(Debug, Clone, Copy)]
struct Pause {
    /// Distinguishes this pause from earlier ones, whose drain may still complete.
    number: u64,
    until: Instant,
}

impl Driver {
    /// Opens the bus. Must be called on the control thread's event loop.
    pub(crate) fn new(node: Node, own: Cluster, prepared: Prepared) -> Result<Self> {
        let (sender, events) = mpsc::channel(links::WAITING_EVENTS);
        let config = &node.config;
        let port = options::bus_port(&config.values())?;
        let Prepared { machine, store, requests } = prepared;
        // A vanished peer is detected soon (Redis: after twice the node timeout). The kernel counts in whole seconds
        // and rejects zero.
        let keepalive = Some((2 * machine.gossip.lock().config().node_timeout).max(Duration::from_secs(1)));
        for listener in net::listener::bind_at_startup(&config.get(keys::BIND), port, 511, "cluster")? {
            let options = SocketOptions { nodelay: true, keepalive };
            let listener = match config.get(keys::TLS_CLUSTER) {
                true => listener.with_tls(&node.network.tls, TlsPeers::Bus),
                false => listener,
            };
            tokio::spawn(links::listen(listener, options, sender.clone()));
        }
        let (report, done) = mpsc::unbounded_channel();
        let now = process::time::instant();
        let links = Links::new(sender, machine.traffic.clone());
        Ok(Self {
            machine,
            background: BackgroundWorkers::start(node.engine.clone(), &node.config, store, report)?,
            own,
            node,
            done,
            links,
            events,
            requests,
            waiting: BTreeMap::new(),
            driving: ClusterDriver::default(),
            saves: 0,
            next_token: 0,
            last: now,
            look_at: now + STRAY_KEY_SCAN_PERIOD,
            watched: None,
            pause: None,
            pauses: 0,
            differs: false,
            interference: Interference::NONE,
        })
    }

    /// Starts the state machine; the role of this node is settled on return. `found` is the offset of the loaded data,
    /// if known.
    pub(crate) fn start(&mut self, found: Option<ReplOffset>) -> Result<()> {
        if let Some(upto) = found {
            self.feed(ClusterInput::Loaded { upto })?;
        }
        self.feed(ClusterInput::Start)
    }

    /// Runs after [`Driver::start`] until it is dropped. Returns an error that the node must not survive.
    pub(crate) async fn run(mut self) -> Result<()> {
        self.background.look_for_keys(true);
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
                event = self.events.recv() => {
                    let event = event.expect("the driver holds a sender itself");
                    self.on_event(event)?;
                }
                ask = self.requests.recv() => {
                    let ask = ask.expect("the server, which is ours too, holds a sender");
                    self.on_ask(ask)?;
                }
                done = self.done.recv() => {
                    let done = done.expect("the driver holds a sender itself");
                    self.on_done(done)?;
                }
                () = replication.cluster_stream.arrived.notified() => self.feed(ClusterInput::Deadline)?,
                () = replication.has(self.watched) => {
                    self.watched = None;
                    self.feed(ClusterInput::Deadline)?;
                }
                () = timer => self.on_timer()?,
            }
            let stats = &self.node.network.stats;
            stats.bus_links.store(self.links.len(), Ordering::Relaxed);
            stats.bus_bytes.store(self.links.all_queued(), Ordering::Relaxed);
        }
    }

    fn now(&self) -> Instant {
        process::time::instant().max(self.last)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let pause = self.pause.map(|pause| pause.until);
        let machine = self.machine.gossip.lock().next_deadline();
        [machine, pause, self.driving.next_deadline(), Some(self.look_at)].into_iter().flatten().min()
    }

    fn on_timer(&mut self) -> Result<()> {
        let now = self.now();
        let save = self.driving.take_due_save(now);
        self.carry_out(save)?;
        if now >= self.look_at {
            self.look_at = now + STRAY_KEY_SCAN_PERIOD;
            self.background.look_for_keys(false);
        }
        if self.pause.is_some_and(|pause| now >= pause.until) {
            self.resume_writes();
        }
        self.feed(ClusterInput::Deadline)
    }

    /// Handles the result of work on another thread.
    fn on_done(&mut self, done: Done) -> Result<()> {
        match done {
            Done::Written(number, outcome) => {
                outcome.context("Fatal: can't update cluster config file")?;
                let (released, is_all) = self.driving.note_written(number);
                self.carry_out(released)?;
                if is_all { self.feed(ClusterInput::Persisted) } else { Ok(()) }
            }
            Done::Emptied => {
                self.node.replication.forget_history();
                let reply = self.driving.note_emptied();
                self.carry_out(reply)
            }
            Done::KeysFound { slots, at_start } => {
                let slots = self.background.still_held(&slots);
                self.feed(ClusterInput::ForeignKeysFound { slots, at_start })
            }
            // Each slot was locked once since the gate closed, so every later command sees the gate.
            Done::Drained { pause } if self.pause.is_some_and(|current| current.number == pause) => {
                let offset = self.standing(self.now()).offset;
                self.feed(ClusterInput::WritesPaused { offset })
            }
            Done::Drained { .. } => Ok(()),
            Done::LeavingPaused => {
                self.background.leave_after(self.node.pauses.clone());
                Ok(())
            }
        }
    }

    fn answer(&mut self, token: u64, answer: Answer) {
        if let Some(waiting) = self.waiting.remove(&token) {
            // The client may have disconnected.
            let _ = waiting.send(answer);
        }
    }

    fn give_up(&mut self, links: Vec<LinkId>) -> Result<()> {
        for link in links {
            self.links.close(link);
            self.feed(ClusterInput::Closed { link })?;
        }
        Ok(())
    }

    fn on_event(&mut self, event: LinkEvent) -> Result<()> {
        match event {
            LinkEvent::Accepted { stream, peer, local } => {
                let link = self.links.accept(stream);
                self.feed(ClusterInput::Accepted { link, peer, local })
            }
            LinkEvent::Connected { link, stream } => {
                if self.links.begin(link, stream) {
                    self.feed(ClusterInput::Connected { link })?;
                }
                Ok(())
            }
            LinkEvent::ConnectFailed { link, refused } => {
                self.links.close(link);
                self.feed(ClusterInput::ConnectFailed { link, refused })
            }
            LinkEvent::Packet { link, packet } if self.interference.drops(&packet) => {
                let word = packet.body.kind().map_or("unknown", MessageKind::word);
                tracing::warn!("Dropping packet of type {word} that matches debug drop filter");
                self.machine.gossip.lock().count_dropped(&packet.body);
                if self.interference.closes { self.give_up(vec![link]) } else { Ok(()) }
            }
            LinkEvent::Packet { link, packet } => self.feed(ClusterInput::Packet { link, packet }),
            LinkEvent::Closed { link } => {
                self.links.close(link);
                self.feed(ClusterInput::Closed { link })
            }
        }
    }

    fn on_ask(&mut self, ask: DriverRequest) -> Result<()> {
        match ask {
            DriverRequest::Command { command, answer } => {
                let token = self.next_token;
                self.next_token += 1;
                self.waiting.insert(token, answer);
                self.feed(ClusterInput::Command { token, command })
            }
            DriverRequest::Publish { publication, ticket } => {
                drop(ticket);
                self.feed(ClusterInput::Publish(publication))
            }
            DriverRequest::ReplicasConfirmed { token, slot, held } => {
                let keys = self.node.engine.keyspace.keys_in_slot(slot);
                let keys_in_slot = u64::try_from(keys).unwrap_or(u64::MAX);
                self.feed(ClusterInput::ReplicasAcknowledged { token, held, keys_in_slot })?;
                self.node.replication.cluster_stream.on_carried_out(token);
                Ok(())
            }
            DriverRequest::Look(look) => {
                look(self);
                Ok(())
            }
            DriverRequest::Configure => match self.options() {
                Ok(config) => self.feed(ClusterInput::Configure(Box::new(config))),
                Err(error) => {
                    tracing::warn!("{error:#}");
                    Ok(())
                }
            },
        }
    }

    /// Passes an event to the state machine, after pending replication state, and performs its actions.
    fn feed(&mut self, input: ClusterInput) -> Result<()> {
        let (now, wall) = (self.now(), process::time::now());
        self.last = now;
        let facts = self.standing(now);
        let replication = &self.node.replication;
        let differs = replication.unapplied() > 0;
        let is_other = std::mem::replace(&mut self.differs, differs) != differs;
        let news = StepInputs {
            replication: facts,
            stream_events: replication.cluster_stream.take(),
            first_write: replication.log.take_first_write(),
            config: if is_other { Some(Box::new(self.options()?)) } else { None },
        };
        let (actions, lease) = {
            let mut gossip = self.machine.gossip.lock();
            let actions = self.driving.feed(&mut gossip, (now, wall), news, input);
            (actions, gossip.lease())
        };
        self.carry_out(actions)?;
        // Everything it has found is published by now.
        let until = lease.map_or(u64::MAX, |lease| (now + lease).as_micros() * 1000);
        self.node.engine.renew_lease(until);
        Ok(())
    }

    /// Performs actions, and closes links whose peers do not read.
    fn carry_out(&mut self, actions: impl IntoIterator<Item = ClusterAction>) -> Result<()> {
        let mut given_up = Vec::new();
        for action in actions {
            self.act(action, &mut given_up);
        }
        self.give_up(given_up)
    }

    /// Sends a packet. Returns the link if its peer does not read.
    fn send(&mut self, link: LinkId, packet: &Packet) -> Option<LinkId> {
        if tracing::enabled!(tracing::Level::TRACE) {
            self.log_sending(link, packet);
        }
        let limit = self.node.config.get(keys::CLUSTER_LINK_SENDBUF_LIMIT);
        if self.links.send(link, packet, limit) {
            return None;
        }
        tracing::warn!(
            "Freeing cluster link because its peer does not read; the send buffer is over its limit"
        );
        Some(link)
    }

    /// Logs in Valkey's words, for tools that wait for a message.
    fn log_sending(&self, link: LinkId, packet: &Packet) {
        let word = packet.body.kind().map_or("unknown", MessageKind::word);
        let side = if matches!(link, LinkId::Out(_)) { "outbound" } else { "inbound" };
        let gossip = self.machine.gossip.lock();
        match gossip.node_of(link) {
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

    fn act(&mut self, action: ClusterAction, given_up: &mut Vec<LinkId>) {
        match action {
            ClusterAction::Connect { link, ip, port } => self.connect(link, ip, port),
            ClusterAction::Close { link } => self.links.close(link),
            ClusterAction::Send { link, packet, .. } => given_up.extend(self.send(link, &packet)),
            ClusterAction::Persist { text, sync } => {
                self.saves += 1;
                self.background.save(self.saves, text, sync);
            }
            ClusterAction::Publish(topology) => {
                self.background.leave_returning(&topology);
                self.node.engine.apply_topology(*topology);
                self.node.watcher.republished();
            }
            ClusterAction::AllowReplicas(copies) => self.node.replication.copies.store(Arc::new(copies)),
            ClusterAction::BecomeMaster => {
                self.node.replication.log.watch_first_write();
                self.node.replication.become_master();
                self.node.watcher.promoted();
                self.background.leave_for_master();
                // Slots that the former master was importing may hold keys without a mark.
                self.look_at = self.now();
            }
            ClusterAction::BecomeReplica { ip, port, foreign, .. } => self.follow(ip, port, foreign),
            ClusterAction::PauseWrites { until } => self.pause_writes(until),
            ClusterAction::TellReplicas { slot, change, confirm } => {
                self.tell_replicas(slot, &change, confirm);
            }
            ClusterAction::ResumeWrites => self.resume_writes(),
            ClusterAction::WatchOffset(offset) => self.watched = offset,
            ClusterAction::DropSlots(slots) => self.background.leave(&slots),
            ClusterAction::DropEverything => self.background.empty(),
            ClusterAction::Deliver(publication) => {
                let Publication { sharded, channel, message } = &publication;
                self.node.engine.pubsub.deliver(*sharded, channel, message);
            }
            ClusterAction::Reply { token, result } => self.answer(token, result),
            ClusterAction::Log(event) => log(&event),
        }
    }

    fn connect(&mut self, link: LinkId, ip: IpAddr, port: u16) {
        if self.interference.isolates {
            // The state machine will time out and retry.
            return;
        }
        let timeout = self.machine.gossip.lock().config().node_timeout;
        let dialer = Dialer::for_links(&self.node.config, &self.node.network.tls, keys::TLS_CLUSTER);
        self.links.connect(link, SocketAddr::new(ip, port), timeout, dialer);
    }

    fn pause_writes(&mut self, until: Instant) {
        self.node.pauses.pause_for_failover(until.since(self.now()));
        self.pauses += 1;
        self.pause = Some(Pause { number: self.pauses, until });
        self.background.drain(self.pauses);
    }

    /// Replicates a change of a slot, and confirms it to the state machine once all connected replicas have it.
    fn tell_replicas(&self, slot: Slot, change: &SlotChange, confirm: Option<ReplicaConfirmation>) {
        let replication = self.node.replication.clone();
        let said = replication.say_slot_change(slot, change, confirm.map(|confirm| confirm.token));
        let Some(ReplicaConfirmation { token, timeout }) = confirm else { return };
        let own = self.own.clone();
        tokio::spawn(async move {
            let held = match said {
                Some((offset, readers)) => replication.reaches(offset, readers, timeout).await,
                None => true,
            };
            own.replicas_told(token, slot, held);
        });
    }

    /// Returns the parameters for the state machine.
    fn options(&self) -> Result<gossip::ClusterConfig> {
        let mut options = options::read(&self.node.config.values())?;
        // An operator can still promote such a replica with CLUSTER FAILOVER.
        options.replica_no_failover |= self.differs;
        Ok(options)
    }

    /// Returns the replication state for the state machine.
    fn standing(&self, now: Instant) -> gossip::ReplicationStatus {
        let replication = &self.node.replication;
        let source = match (replication.is_replica(), replication.link_down_since()) {
            (false, _) => ReplicationSource::Never,
            // An established link may be cut silently, so the time of the last received data counts.
            (true, None) => {
                ReplicationSource::Streaming { last_heard: replication.master_heard().unwrap_or(now) }
            }
            (true, Some(since)) if replication.has_data() => ReplicationSource::Lost { since },
            (true, Some(_)) => ReplicationSource::Never,
        };
        gossip::ReplicationStatus { offset: replication.reach(), source }
    }

    fn follow(&mut self, ip: IpAddr, port: u16, foreign: bool) {
        let master = MasterAddress { host: ip.to_string(), port };
        if foreign {
            self.node.replication.become_foreign_replica_of(master);
        } else {
            self.node.replication.become_replica_of(master);
        }
    }

    fn resume_writes(&mut self) {
        if self.pause.take().is_some() {
            self.node.pauses.resume_after_failover();
        }
    }

    /// Closes the selected links to and from a node (DEBUG CLUSTERLINK KILL). Returns false if the node is unknown.
    pub(crate) fn kill_links(&mut self, node: NodeId, which: impl Fn(LinkId) -> bool) -> bool {
        let reports = self.link_reports();
        for report in reports.iter().filter(|report| report.node == node && which(report.link)) {
            self.links.break_off(report.link);
        }
        self.machine.gossip.lock().node(node).is_some()
    }

    /// Returns the links known to the state machine.
    pub(crate) fn link_reports(&self) -> Vec<gossip::LinkReport> {
        self.machine.gossip.lock().link_reports()
    }

    /// Returns the number of bytes queued on a link.
    pub(crate) fn queued(&self, link: LinkId) -> usize {
        self.links.queued(link)
    }
}

impl Drop for Driver {
    /// The server is stopping.
    fn drop(&mut self) {
        if let Some(save) = self.driving.take_final_save() {
            self.act(save, &mut Vec::new());
        }
    }
}

fn log(event: &ClusterEvent) {
    match event.level() {
        LogLevel::Debug => tracing::trace!("{event}"),
        LogLevel::Verbose => tracing::debug!("{event}"),
        LogLevel::Notice => tracing::info!("{event}"),
        LogLevel::Warning => tracing::warn!("{event}"),
    }
}

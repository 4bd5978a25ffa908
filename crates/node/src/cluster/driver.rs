//! The task that owns the machine: feeds it and does what it says.

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
use super::{Answer, Ask, Cluster, Machine, Prepared, options};
use crate::replication::Replication;

/// How often it is looked for keys in slots of others. A pass over the slots' counts takes a millisecond.
const LOOK_FOR_KEYS: Duration = Duration::from_secs(5);

/// The parts of a node that the machine moves.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) engine: Arc<Engine>,
    pub(crate) config: Arc<Config>,
    pub(crate) network: Arc<NetworkContext>,
    pub(crate) pauses: Arc<PauseGate>,
    pub(crate) replication: Arc<Replication>,
    pub(crate) watcher: Arc<dyn Watcher>,
}

/// Others that go by what the machine says.
pub(crate) trait Watcher: std::fmt::Debug + Send + Sync {
    /// Another topology is published.
    fn republished(&self);

    /// This node is a master from now on.
    fn promoted(&self);
}

/// The machine and everything it moves.
#[derive(Debug)]
pub(crate) struct Driver {
    machine: Arc<Machine>,
    /// The way to this driver.
    own: Cluster,
    node: Node,
    background: BackgroundWorkers,
    done: mpsc::UnboundedReceiver<Done>,
    links: Links,
    events: mpsc::Receiver<LinkEvent>,
    asks: mpsc::UnboundedReceiver<Ask>,
    waiting: BTreeMap<u64, oneshot::Sender<Answer>>,
    driving: ClusterDriver,
    /// How often `nodes.conf` was to be written.
    saves: u64,
    next_token: u64,
    /// The last time that the machine was told; it must not go back, whatever the processor's clock does.
    last: Instant,
    /// The machine wants to know when this is processed.
    watched: Option<ReplOffset>,
    pause: Option<Pause>,
    pauses: u64,
    look_at: Instant,
    /// The data differs from the master's, as the machine was last told: it does not stand for election.
    differs: bool,
    pub(crate) interference: Interference,
}

/// Disturbances of the bus that DEBUG asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interference {
    /// Packets of this type that come are dropped; -2: all, -1: none.
    pub(crate) dropped: i64,
    /// A link on which one is dropped is closed.
    pub(crate) closes: bool,
    /// No links are made.
    pub(crate) isolates: bool,
}

impl Interference {
    const NONE: Self = Self { dropped: -1, closes: false, isolates: false };

    fn drops(&self, packet: &Packet) -> bool {
        self.dropped == -2 || self.dropped >= 0 && self.dropped == i64::from(packet.body.number())
    }
}

/// Writes are held back for a manual failover.
#[derive(Debug, Clone, Copy)]
struct Pause {
    /// So that what was drained for an earlier one is not taken for this one's.
    number: u64,
    until: Instant,
}

impl Driver {
    /// Opens the bus. To be called within the control thread's event loop.
    pub(crate) fn new(node: Node, own: Cluster, prepared: Prepared) -> Result<Self> {
        let (sender, events) = mpsc::channel(links::WAITING_EVENTS);
        let config = &node.config;
        let port = options::bus_port(&config.values())?;
        let Prepared { machine, store, asks } = prepared;
        // A peer that vanished is not waited for long (Redis: twice the node timeout). The kernel counts in seconds, and
        // refuses none.
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
            asks,
            waiting: BTreeMap::new(),
            driving: ClusterDriver::default(),
            saves: 0,
            next_token: 0,
            last: now,
            look_at: now + LOOK_FOR_KEYS,
            watched: None,
            pause: None,
            pauses: 0,
            differs: false,
            interference: Interference::NONE,
        })
    }

    /// Starts the machine; this node's role is settled when this returns. `found`: how far the loaded data reaches, if
    /// that is known.
    pub(crate) fn start(&mut self, found: Option<ReplOffset>) -> Result<()> {
        if let Some(upto) = found {
            self.feed(ClusterInput::Loaded { upto })?;
        }
        self.feed(ClusterInput::Start)
    }

    /// Runs until it is dropped, after [`Driver::start`]; ends with an error that the node must not live with.
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
                ask = self.asks.recv() => {
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
            self.look_at = now + LOOK_FOR_KEYS;
            self.background.look_for_keys(false);
        }
        if self.pause.is_some_and(|pause| now >= pause.until) {
            self.resume_writes();
        }
        self.feed(ClusterInput::Deadline)
    }

    /// A thread has done what it was asked for.
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
            // Each slot has been free once since the gate closed, and a command that locks one now sees that it is.
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
            // The client may have left.
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

    fn on_ask(&mut self, ask: Ask) -> Result<()> {
        match ask {
            Ask::Command { command, answer } => {
                let token = self.next_token;
                self.next_token += 1;
                self.waiting.insert(token, answer);
                self.feed(ClusterInput::Command { token, command })
            }
            Ask::Publish { publication, ticket } => {
                drop(ticket);
                self.feed(ClusterInput::Publish(publication))
            }
            Ask::ReplicasTold { token, slot, held } => {
                let keys = self.node.engine.keyspace.keys_in_slot(slot);
                let keys_in_slot = u64::try_from(keys).unwrap_or(u64::MAX);
                self.feed(ClusterInput::ReplicasAcknowledged { token, held, keys_in_slot })?;
                self.node.replication.cluster_stream.on_carried_out(token);
                Ok(())
            }
            Ask::Look(look) => {
                look(self);
                Ok(())
            }
            Ask::Configure => match self.options() {
                Ok(config) => self.feed(ClusterInput::Configure(Box::new(config))),
                Err(error) => {
                    tracing::warn!("{error:#}");
                    Ok(())
                }
            },
        }
    }

    /// Gives the machine an input, after what replication has to say, and does what it answers.
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
        // Whatever it has found is published.
        let until = lease.map_or(u64::MAX, |lease| (now + lease).as_micros() * 1000);
        self.node.engine.extend_lease(until);
        Ok(())
    }

    /// Does this, and gives up the links whose peers do not read.
    fn carry_out(&mut self, actions: impl IntoIterator<Item = ClusterAction>) -> Result<()> {
        let mut given_up = Vec::new();
        for action in actions {
            self.act(action, &mut given_up);
        }
        self.give_up(given_up)
    }

    /// Sends; gives back the link if its peer does not read.
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

    /// In Valkey's words, for tools that wait for a message.
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
                self.node.engine.route_by(*topology);
                self.node.watcher.republished();
            }
            ClusterAction::AllowReplicas(copies) => self.node.replication.copies.store(Arc::new(copies)),
            ClusterAction::BecomeMaster => {
                self.node.replication.log.watch_first_write();
                self.node.replication.become_master();
                self.node.watcher.promoted();
                self.background.leave_for_master();
                // Slots that its master had imported are here, without a mark: look for them.
                self.look_at = self.now();
            }
            ClusterAction::BecomeReplica { ip, port, foreign, .. } => self.follow(ip, port, foreign),
            ClusterAction::PauseWrites { until } => self.pause_writes(until),
            ClusterAction::TellReplicas { slot, change, confirm } => {
                self.tell_replicas(slot, &change, confirm)
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
            // The machine gives it up in time, and tries again.
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

    /// Says to the replicas what becomes of a slot, and has the machine told once all that are connected have it.
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

    /// The parameters, as the machine is to go by them.
    fn options(&self) -> Result<gossip::ClusterConfig> {
        let mut options = options::read(&self.node.config.values())?;
        // An operator who wants such a replica for a master says so (CLUSTER FAILOVER).
        options.replica_no_failover |= self.differs;
        Ok(options)
    }

    /// How replication stands, as the machine wants to know it.
    fn standing(&self, now: Instant) -> gossip::ReplicationStatus {
        let replication = &self.node.replication;
        let source = match (replication.is_replica(), replication.link_down_since()) {
            (false, _) => ReplicationSource::Never,
            // A link that stands may be cut all the same: what counts is when anything came over it.
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

    /// Closes those links to and from a node that `which` says (DEBUG CLUSTERLINK KILL); `false` without such a node.
    pub(crate) fn kill_links(&mut self, node: NodeId, which: impl Fn(LinkId) -> bool) -> bool {
        let reports = self.link_reports();
        for report in reports.iter().filter(|report| report.node == node && which(report.link)) {
            self.links.break_off(report.link);
        }
        self.machine.gossip.lock().node(node).is_some()
    }

    /// The links, as the machine knows them.
    pub(crate) fn link_reports(&self) -> Vec<gossip::LinkReport> {
        self.machine.gossip.lock().link_reports()
    }

    /// How many bytes wait to be sent on a link.
    pub(crate) fn queued(&self, link: LinkId) -> usize {
        self.links.queued(link)
    }
}

impl Drop for Driver {
    /// The server stops.
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

//! The state of a node and the order in which it processes an input.
//!
//! Each input is dispatched to the module that handles it. Then everything that is due is done
//! ([`Gossip::next_deadline`] tells when that is). Finally the node settles: it updates its serving state and its role,
//! publishes the topology, and saves what has changed. The other modules add their rules as `impl Gossip` blocks.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use clock::{Instant, Millis};
use rand_chacha::ChaCha8Rng;
use slot_routing::{Epoch, NodeId, Slot, SlotSet, Topology};

use crate::commands::{OperatorError, OperatorReply, SlotChange};
use crate::config::ClusterConfig;
use crate::contract::{ClusterAction, ClusterInput, LinkId};
use crate::effect::{Effect, GossipKind};
use crate::election::Election;
use crate::event::ClusterEvent;
use crate::failure_detector::{FailureDetector, max_undetected_pause};
use crate::given_away::GivenAwaySlots;
use crate::links::Links;
use crate::manual_failover::ManualFailover;
use crate::node::{Address, Extensions, Node, has_data};
use crate::nodes_conf::{self, NodesConfError, SavedConfig};
use crate::random::Randomness;
use crate::replica_migration::ReplicaMigration;
use crate::report::LinkReport;
use crate::role::FollowedMaster;
use crate::self_fail::SelfFail;
use crate::serving::ServiceState;
use crate::set_slot::SetSlotQueue;
use crate::slot_moves;
use crate::state::ClusterState;
use crate::stats::{LinkTraffic, MessageStats};
use crate::timeline::{FailoverTimeline, TimelineEntry};
use crate::votes::Votes;
use crate::wire::{Header, MessageBody, MessageFlags, Packet, Publication};

/// One node's view of the cluster: the state machine of the cluster bus.
#[derive(Debug)]
pub struct Gossip {
    pub(crate) state: ClusterState,
    pub(crate) given_away: GivenAwaySlots,
    pub(crate) set_slots: SetSlotQueue,
    pub(crate) votes: Votes,
    /// Forgotten nodes and when they may rejoin.
    pub(crate) blacklist: BTreeMap<NodeId, Instant>,
    pub(crate) links: Links,
    pub(crate) service: ServiceState,
    pub(crate) election: Election,
    pub(crate) manual_failover: ManualFailover,
    pub(crate) followed_master: FollowedMaster,
    pub(crate) migration: ReplicaMigration,
    pub(crate) self_fail: SelfFail,
    pub(crate) stats: MessageStats,
    pub(crate) timeline: FailoverTimeline,
    pub(crate) todo: PendingWork,
    pub(crate) out: Vec<ClusterAction>,
    /// Cached slot set of our headers, with its claimant and the version of the slot table.
    pub(crate) claim: Option<(NodeId, u64, SlotSet)>,
    started: bool,
    /// Whether the claim in our headers is not durable yet.
    claim_unsaved: bool,
    published: Option<Topology>,
    pub(crate) random: Randomness,
    pub(crate) failure_detector: FailureDetector,
}

/// Work left over for the end of the current input.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PendingWork {
    /// `nodes.conf` is outdated.
    pub(crate) save: bool,
    /// `nodes.conf` must be durable before the packets of this step leave.
    pub(crate) sync: bool,
    /// `nodes.conf` must be durable before any header leaves, because headers carry the new claim.
    pub(crate) claim: bool,
    /// The published topology may be outdated.
    pub(crate) publish: bool,
    /// Resume writes, after the topology with the new slot owners is published.
    pub(crate) resume: bool,
    /// Slot changes to write into the replication stream after publishing, so that a snapshot taken in between includes
    /// them as well.
    pub(crate) tell_replicas: Vec<(Slot, SlotChange)>,
}

impl Deref for Gossip {
    type Target = ClusterState;

    fn deref(&self) -> &ClusterState {
        &self.state
    }
}

impl Gossip {
    /// Creates a node with a new random id that knows no other node.
    #[must_use]
    pub fn new(config: ClusterConfig, rng: ChaCha8Rng) -> Self {
        let mut random = Randomness::new(rng);
        let me = random.node_id();
        let saved = SavedConfig {
            nodes: BTreeMap::from([(me, Node::new(me, Address::default(), Instant::ORIGIN))]),
            ..SavedConfig::empty(me)
        };
        let mut gossip = Self::with(config, random, saved);
        gossip.todo.save = true;
        gossip.todo.sync = true;
        gossip
    }

    /// Restores a node from the content of its `nodes.conf`.
    ///
    /// # Errors
    /// The first line that cannot be parsed.
    pub fn restore(config: ClusterConfig, rng: ChaCha8Rng, nodes_conf: &str) -> Result<Self, NodesConfError> {
        Ok(Self::with(config, Randomness::new(rng), nodes_conf::parse(nodes_conf)?))
    }

    fn with(config: ClusterConfig, random: Randomness, saved: SavedConfig) -> Self {
        let votes = Votes::restored(saved.last_vote_epoch);
        let state = saved.into_state(config);
        let mut gossip = Self {
            migration: ReplicaMigration::new(&state),
            votes,
            state,
            given_away: GivenAwaySlots::default(),
            set_slots: SetSlotQueue::default(),
            blacklist: BTreeMap::new(),
            links: Links::default(),
            service: ServiceState::default(),
            election: Election::default(),
            manual_failover: ManualFailover::default(),
            followed_master: FollowedMaster::default(),
            self_fail: SelfFail::default(),
            stats: MessageStats::default(),
            timeline: FailoverTimeline::default(),
            todo: PendingWork { publish: true, ..PendingWork::default() },
            out: Vec::new(),
            claim: None,
            started: false,
            claim_unsaved: false,
            published: None,
            random,
            failure_detector: FailureDetector::default(),
        };
        gossip.apply_announcement();
        gossip
    }

    /// Processes one input that happened at `now`, with `wall` as the wall-clock time, and appends the resulting
    /// actions to `out`. `now` must not go backwards.
    pub fn handle(&mut self, now: Instant, wall: Millis, input: ClusterInput, out: &mut Vec<ClusterAction>) {
        assert!(now >= self.state.now, "time went back");
        let before = std::mem::replace(&mut self.state.now, now);
        self.state.wall = wall;
        if self.started {
            self.detect_process_pause(before);
        } else {
            self.started = true;
            self.init_timers();
        }
        self.dispatch(input);
        self.on_time();
        self.settle();
        out.append(&mut self.out);
    }

    fn dispatch(&mut self, input: ClusterInput) {
        match input {
            ClusterInput::Start | ClusterInput::Deadline => {}
            ClusterInput::Loaded { upto } => {
                let effects = self.self_fail.start(&self.state, upto);
                self.apply(effects);
            }
            ClusterInput::Accepted { link, peer, local } => self.on_accepted(link, peer, local),
            ClusterInput::Connected { link } => self.on_connected(link),
            ClusterInput::ConnectFailed { link, refused } => self.on_connect_failed(link, refused),
            ClusterInput::Closed { link } => self.on_closed(link),
            ClusterInput::Packet { link, packet } => self.on_packet(link, *packet),
            ClusterInput::Replication(facts) => {
                self.todo.publish |= has_data(self.state.replication.offset) != has_data(facts.offset);
                self.state.replication = facts;
            }
            ClusterInput::WritesPaused { offset } => {
                if self.manual_failover.on_writes_paused(self.state.now) {
                    self.state.replication.offset = offset;
                }
            }
            ClusterInput::Persisted => self.claim_unsaved = false,
            ClusterInput::ForeignKeysFound { slots, at_start } => {
                let effects = slot_moves::mark_slots_with_keys(&mut self.state, &slots, at_start);
                self.apply(effects);
            }
            ClusterInput::Command { token, command } => {
                if let Some(result) = self.on_command(token, command) {
                    self.answer(token, result);
                }
            }
            ClusterInput::ReplicasAcknowledged { token, held, keys_in_slot } => {
                self.set_slots.on_acknowledged(token, held, keys_in_slot);
                self.execute_set_slots();
            }
            ClusterInput::SlotChanged { slot, change } => {
                let effects = slot_moves::apply_replicated_change(&mut self.state, slot, &change);
                self.apply(effects);
            }
            ClusterInput::MasterShutdown => {
                let effects = self.manual_failover.on_master_shutdown(&self.state);
                self.apply(effects);
            }
            ClusterInput::MovesLoaded(moves) => {
                if !self.myself().is_master() {
                    let refused = self.set_slots.refuse_all();
                    self.apply(refused);
                }
                let effects = slot_moves::load_marks(&mut self.state, &moves);
                self.apply(effects);
            }
            ClusterInput::FirstWrite { at } => self.timeline.record_first_write(self.state.me, at),
            ClusterInput::Publish(publication) => self.on_publish(&publication),
            ClusterInput::Configure(config) => self.configure(*config),
        }
    }

    fn configure(&mut self, config: ClusterConfig) {
        let before = std::mem::replace(&mut self.state.config, config);
        self.apply_announcement();
        self.state.nodes.touch_all();
        self.todo.publish = true;
        // Every node tells clients the addresses of the others, so changes spread at once. This takes a PING, because
        // nodes do not update addresses from a PONG.
        if before.announce != self.state.config.announce {
            for id in self.linked() {
                self.send_gossip(id, GossipKind::Ping);
            }
        }
    }

    /// Does everything that is due. Each call must advance its own deadline.
    fn on_time(&mut self) {
        self.drop_stale_handshakes();
        self.close_silent_unknown_peers();
        self.maintain_links();
        self.send_due_pings();
        let effects = self.failure_detector.step(&mut self.state, &mut self.random);
        self.apply(effects);
        let effects = self.self_fail.step(&self.state);
        self.apply(effects);
        let effects = self.manual_failover.step(&self.state);
        self.apply(effects);
        let manual = self.manual_failover.is_ready();
        let effects = self.election.prepare(&self.state, manual, &mut self.random);
        self.apply(effects);
        let effects = self.election.advance(&self.state, &mut self.random);
        self.apply(effects);
        if let Some(orphan) = self.migration.step(&self.state) {
            self.log(ClusterEvent::Migrating { to: orphan });
            self.become_replica_of(orphan);
        }
    }

    /// When to call [`Gossip::handle`] with [`ClusterInput::Deadline`] unless another input comes first.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.started {
            return Some(self.state.now);
        }
        let deadlines = [
            self.state.nodes.next_due(),
            self.unknown_peers_deadline(),
            self.manual_failover.next_deadline(),
            self.election.next_deadline(self.state.config.auth_timeout()),
            self.migration.next_deadline(self.state.now),
            self.self_fail.next_deadline(self.state.now),
            self.service_deadline(),
            self.heartbeat(),
        ];
        deadlines.into_iter().flatten().min()
    }

    fn settle(&mut self) {
        self.follow_chains();
        let effects = self.set_slots.write_to_stream(&self.state, self.manual_failover.stream_state());
        self.apply(effects);
        self.note_changes();
        self.update_serving_state();
        self.reconcile_role();
        if std::mem::take(&mut self.todo.publish) {
            let topology = self.topology();
            if self.published.as_ref() != Some(&topology) {
                self.published = Some(topology.clone());
                self.out.push(ClusterAction::Publish(Box::new(topology)));
            }
        }
        let todo = std::mem::take(&mut self.todo);
        for (slot, change) in todo.tell_replicas {
            self.out.push(ClusterAction::TellReplicas { slot, change, confirm: None });
        }
        if todo.resume {
            self.out.push(ClusterAction::ResumeWrites);
        }
        self.claim_unsaved |= todo.claim;
        if todo.sync || self.claim_unsaved {
            for action in &mut self.out {
                if let ClusterAction::Send { after_persist, .. } = action {
                    *after_persist = true;
                }
            }
        }
        if todo.save || todo.sync {
            self.out.insert(0, ClusterAction::Persist { text: self.nodes_conf(), sync: todo.sync });
        }
        self.note_changes();
    }

    /// The content of `nodes.conf`.
    pub(crate) fn nodes_conf(&self) -> String {
        self.state.nodes_conf_text(self.votes.newest())
    }

    /// Detects that this process was paused. The pause must not count as silence of other nodes, and a master that may
    /// have been replaced in the meantime must not serve before it knows.
    pub(crate) fn detect_process_pause(&mut self, before: Instant) {
        let gap = self.state.now.since(before);
        if gap < self.state.config.node_timeout / 2 || self.state.nodes.len() == 1 {
            return;
        }
        for node in self.state.nodes.values_mut() {
            node.contact.exclude_pause(gap);
        }
        if gap >= max_undetected_pause(self.state.config.node_timeout) {
            self.suspend_serving();
            self.log(ClusterEvent::ProcessPaused(gap));
        }
    }

    /// How long after the last call this node may serve without another call. `None` if there are no other nodes.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        (self.state.nodes.len() > 1).then(|| max_undetected_pause(self.state.config.node_timeout))
    }

    /// Limits the time between calls, so that a longer gap proves that the process was paused.
    pub(crate) fn heartbeat(&self) -> Option<Instant> {
        let quarter = self.state.config.node_timeout / 4;
        (self.state.nodes.len() > 1).then(|| self.state.now + quarter.max(Duration::from_millis(1)))
    }

    /// Executes the requests that the replicas have acknowledged.
    fn execute_set_slots(&mut self) {
        while let Some(confirmed) = self.set_slots.pop_confirmed() {
            let (result, effects) = confirmed.execute(&mut self.state);
            self.apply(effects);
            let stream = self.manual_failover.stream_state();
            let effects = self.set_slots.finish(&self.state, &confirmed, result, stream);
            self.apply(effects);
        }
    }

    /// Carries out what a part has decided.
    pub(crate) fn apply(&mut self, effects: impl IntoIterator<Item = Effect>) {
        for effect in effects {
            match effect {
                Effect::Log(event) => self.log(event),
                Effect::Act(action) => self.out.push(action),
                Effect::Record { node, entry } => self.record(node, entry),
                Effect::Send { to, body } => self.send(to, body),
                Effect::Gossip { to, kind } => self.send_gossip(to, kind),
                Effect::BroadcastPong => self.broadcast_pong(),
                Effect::SendOffsetToSiblings => self.send_offset_to_siblings(),
                Effect::RequestVote { to, forced } => {
                    let mut header = self.header();
                    header.message_flags |=
                        if forced { MessageFlags::FORCE_ACK } else { MessageFlags::default() };
                    self.send_packet(to, Packet { header, body: MessageBody::AuthRequest });
                }
                Effect::Vote { to, epoch } => {
                    let header = Header { current_epoch: epoch, ..self.header() };
                    self.send_packet(to, Packet { header, body: MessageBody::AuthAck });
                }
                Effect::VoteForMyself { epoch } => {
                    self.state.current_epoch = epoch;
                    self.votes.record(epoch, self.state.me);
                    self.save_before_sending();
                }
                Effect::BecomeReplicaOf(master) => self.become_replica_of(master),
                Effect::ClaimImportedSlots => {
                    if let Some(epoch) = self.bump_epoch() {
                        self.log(ClusterEvent::ImportedEpoch(epoch));
                    }
                    // The old owner gives the slot away when it sees the claim, so a claim lost in a power failure
                    // would leave the slot unassigned.
                    self.save_before_claiming();
                    self.broadcast_pong();
                }
                Effect::TakeOver { epoch } => self.take_over(epoch),
                Effect::Publish => self.todo.publish = true,
                Effect::ConfigChanged => (self.todo.save, self.todo.publish) = (true, true),
                Effect::SaveBeforeSending => self.save_before_sending(),
                Effect::SaveBeforeClaiming => self.save_before_claiming(),
                Effect::TellReplicas { slot, change } => self.todo.tell_replicas.push((slot, change)),
                Effect::Reply { token, result } => self.answer(token, result),
                Effect::ResumeWrites => self.todo.resume = true,
                Effect::KeepWritesPaused => self.todo.resume = false,
                Effect::TakeOverUnelected => {
                    self.bump_epoch();
                    self.take_over(self.myself().config_epoch);
                }
            }
        }
    }

    /// Adds an entry to the failover timeline.
    pub(crate) fn record(&mut self, node: NodeId, entry: TimelineEntry) {
        self.timeline.record(node, entry, self.state.wall);
    }

    /// Ends the manual failover on either side, whatever its result.
    pub(crate) fn end_manual_failover(&mut self) {
        let effect = self.manual_failover.end();
        self.apply(effect);
    }

    /// Requires `nodes.conf` to be durable before packets of this step leave.
    pub(crate) fn save_before_sending(&mut self) {
        self.todo.save = true;
        self.todo.sync = true;
    }

    /// Requires `nodes.conf` to be durable before any header with the new claim leaves.
    pub(crate) fn save_before_claiming(&mut self) {
        self.save_before_sending();
        self.todo.claim = true;
    }

    pub(crate) fn log(&mut self, event: impl Into<ClusterEvent>) {
        self.out.push(ClusterAction::Log(event.into()));
    }

    pub(crate) fn answer(&mut self, token: u64, result: Result<OperatorReply, OperatorError>) {
        self.out.push(ClusterAction::Reply { token, result });
    }

    /// The highest epoch in which this node voted.
    #[must_use]
    pub fn last_vote_epoch(&self) -> Epoch {
        self.votes.newest()
    }

    /// The most recent failovers that this node observed.
    #[must_use]
    pub fn timeline(&self) -> &FailoverTimeline {
        &self.timeline
    }

    /// Number of valid failure reports about a node (CLUSTER COUNT-FAILURE-REPORTS).
    ///
    /// # Errors
    /// The node is unknown.
    pub fn failure_reports(&mut self, node: &str) -> Result<usize, OperatorError> {
        let id = self.find_node(node)?;
        Ok(self.failure_detector.count_reports(&self.state, id))
    }

    /// The text of CLUSTER INFO.
    #[must_use]
    pub fn info_text(&self, traffic: &LinkTraffic) -> String {
        self.state.info_text(traffic, &self.stats)
    }

    /// All links whose peer is known.
    #[must_use]
    pub fn link_reports(&self) -> Vec<LinkReport> {
        self.state.link_reports(&self.links)
    }

    /// Message counters by type.
    #[must_use]
    pub fn stats(&self) -> &MessageStats {
        &self.stats
    }

    /// Resets the message counters (CONFIG RESETSTAT).
    pub fn reset_stats(&mut self) {
        self.stats.reset();
    }

    /// Counts a received message that DEBUG settings drop.
    pub fn count_dropped(&mut self, body: &MessageBody) {
        self.stats.count_received(body);
    }

    /// The peer of `link`, if it is known.
    #[must_use]
    pub fn node_of(&self, link: LinkId) -> Option<&Node> {
        let theirs = || self.links.inbound.get(&link).and_then(|inbound| inbound.node.as_ref());
        self.links.outbound.get(&link).or_else(theirs).and_then(|id| self.state.nodes.get(id))
    }

    /// Updates the indexes of the nodes, and what depends on them.
    pub(crate) fn note_changes(&mut self) {
        self.state.update_indexes();
        if self.state.nodes.take_changed() {
            self.update_coverage_deadlines();
        }
    }

    #[cfg(test)]
    pub(crate) fn assert_indexes_consistent(&self) {
        self.state.assert_indexes_consistent();
    }

    /// Applies the announced addresses and options to this node's own entry.
    fn apply_announcement(&mut self) {
        let announce = self.state.config.announce.clone();
        let no_failover = self.state.config.replica_no_failover;
        let me = self.state.myself_mut();
        me.address.ip = announce.ip.or(me.address.ip);
        let (first, other) = if announce.tls_cluster {
            (announce.tls_port, announce.port)
        } else {
            (announce.port, announce.tls_port)
        };
        (me.address.port, me.address.other_port) = (first, other);
        me.address.bus_port = announce.bus_port;
        me.hostname = announce.hostname;
        me.human_name = announce.human_name;
        me.client_endpoint = announce.client_endpoint;
        me.zone = announce.zone;
        me.no_failover = no_failover;
        me.extensions = Extensions::All;
        self.todo.save = true;
    }

    fn on_publish(&mut self, publication: &Publication) {
        let shard = publication.sharded.then(|| self.shard_members());
        for id in self.linked() {
            if shard.as_ref().is_none_or(|members| members.contains(&id)) {
                self.send(id, MessageBody::Publish(publication.clone()));
            }
        }
    }
}

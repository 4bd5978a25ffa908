//! The coordinator of the state machine: the order in which a node processes an input.
//!
//! The components of the state machine own their fields and make decisions. They read the [`ClusterState`] and return
//! [`Effect`]s, and know about each other only what they are passed. The coordinator dispatches each input to a
//! component and applies the effects in order. Next, every component performs its due work ([`Gossip::next_deadline`]
//! returns when work is due). Finally the node settles: it updates its serving state and its role, publishes the
//! topology, and saves what has changed.

mod apply;
mod operator;
mod packets;
mod roles;
mod sending;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use clock::{Instant, Millis};
use rand_chacha::ChaCha8Rng;
use slot_routing::Epoch;

use crate::announcements::apply_own_announcement;
use crate::config::ClusterConfig;
use crate::contract::{ClusterAction, ClusterInput, LinkId};
use crate::effect::{Effect, GossipKind};
use crate::election::Election;
use crate::event::ClusterEvent;
use crate::failure_detector::{FailureDetector, max_undetected_pause};
use crate::forget_list::ForgetList;
use crate::given_away::GivenAwaySlots;
use crate::links::{LinkReport, Links};
use crate::manual_failover::ManualFailover;
use crate::node::{Address, Node, has_data};
use crate::nodes_conf::{self, NodesConfError, SavedConfig};
use crate::outbox::{Outbox, SaveUrgency};
use crate::random::Randomness;
use crate::replica_migration::ReplicaMigration;
use crate::replication_target::ReplicationTarget;
use crate::self_fail::SelfFailCheck;
use crate::serving::{ServiceState, is_in_minority};
use crate::set_slot::SetSlotQueue;
use crate::state::ClusterState;
use crate::stats::MessageStats;
use crate::timeline::FailoverTimeline;
use crate::view::ClusterView;
use crate::votes::GivenVotes;
use crate::wire::MessageBody;
use crate::{membership, slot_moves};

/// The state machine of the cluster bus on one node. It dereferences to the node's view of the cluster.
#[derive(Debug)]
pub struct Gossip {
    state: ClusterState,
    phase: StartPhase,
    forget_list: ForgetList,
    links: Links,
    failure_detector: FailureDetector,
    service_state: ServiceState,
    votes: GivenVotes,
    election: Election,
    manual_failover: ManualFailover,
    self_fail: SelfFailCheck,
    replica_migration: ReplicaMigration,
    replication_target: ReplicationTarget,
    set_slot_queue: SetSlotQueue,
    given_away_slots: GivenAwaySlots,
    random: Randomness,
    outbox: Outbox,
}

/// Whether the state machine has processed an input, before which the time is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartPhase {
    Created,
    Started,
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
        let me = random.random_node_id();
        let saved = SavedConfig {
            nodes: BTreeMap::from([(me, Node::new(me, Address::default(), Instant::ORIGIN))]),
            ..SavedConfig::empty(me)
        };
        let mut gossip = Self::from_saved(config, random, saved);
        gossip.outbox.save(SaveUrgency::BeforeSending);
        gossip
    }

    /// Restores a node from the content of its `nodes.conf`.
    ///
    /// # Errors
    /// The first line that cannot be parsed.
    pub fn restore(config: ClusterConfig, rng: ChaCha8Rng, nodes_conf: &str) -> Result<Self, NodesConfError> {
        Ok(Self::from_saved(config, Randomness::new(rng), nodes_conf::parse(nodes_conf)?))
    }

    fn from_saved(config: ClusterConfig, random: Randomness, saved_config: SavedConfig) -> Self {
        let votes = GivenVotes::after_restart(saved_config.last_vote_epoch);
        let mut state = saved_config.into_state(config);
        apply_own_announcement(&mut state);
        let mut out = Outbox::default();
        out.save(SaveUrgency::Later);
        out.publish();
        Self {
            phase: StartPhase::Created,
            replica_migration: ReplicaMigration::new(&state),
            state,
            forget_list: ForgetList::default(),
            links: Links::default(),
            failure_detector: FailureDetector::default(),
            service_state: ServiceState::default(),
            votes,
            election: Election::default(),
            manual_failover: ManualFailover::default(),
            self_fail: SelfFailCheck::default(),
            replication_target: ReplicationTarget::default(),
            set_slot_queue: SetSlotQueue::default(),
            given_away_slots: GivenAwaySlots::default(),
            random,
            outbox: out,
        }
    }

    /// Processes one input that happened at `now`, with `wall_time` as the wall-clock time, and appends the resulting
    /// actions to `out`. `now` must not decrease between calls.
    pub fn handle(
        &mut self,
        now: Instant,
        wall_time: Millis,
        input: ClusterInput,
        out: &mut Vec<ClusterAction>,
    ) {
        let gap = self.state.begin_step(now, wall_time);
        match self.phase {
            StartPhase::Created => {
                self.phase = StartPhase::Started;
                self.votes.on_start(now);
                self.service_state.on_start(&mut self.state);
            }
            StartPhase::Started => self.detect_process_pause(gap),
        }
        self.dispatch(input);
        self.perform_due_work();
        self.finish_step();
        self.outbox.finish_step(&self.state, self.votes.newest_voted_epoch(), out);
        self.update_indexes();
    }

    fn dispatch(&mut self, input: ClusterInput) {
        let state = &mut self.state;
        let effects = match input {
            ClusterInput::NodeStarted | ClusterInput::Deadline => Vec::new(),
            ClusterInput::DatasetLoaded { offset: upto } => self.self_fail.start(state, upto),
            ClusterInput::LinkAccepted { link, peer_ip: peer, local_ip: local } => {
                self.links.on_accepted(state, link, peer, local).into_iter().collect()
            }
            ClusterInput::Connected { link } => return self.on_connected(link),
            ClusterInput::ConnectFailed { link, is_refused: refused } => {
                return self.links.on_connect_failed(state, link, refused);
            }
            ClusterInput::Closed { link } => self.links.on_closed(state, link).into_iter().collect(),
            ClusterInput::Packet { link, packet } => return self.on_packet(link, *packet),
            ClusterInput::ReplicationChanged(status) => {
                let before = state.set_replication(status);
                let changed = has_data(before.offset) != has_data(status.offset);
                if changed { vec![Effect::Publish] } else { Vec::new() }
            }
            ClusterInput::WritesPaused { offset } => {
                if self.manual_failover.on_writes_paused(state.now()) {
                    state.set_offset(offset);
                }
                return;
            }
            ClusterInput::Persisted => return self.outbox.on_persisted(),
            ClusterInput::ForeignKeysFound { slots, at_startup: at_start } => {
                slot_moves::mark_slots_with_keys(state, &slots, at_start)
            }
            ClusterInput::Command { token, command } => return self.on_command(token, command),
            ClusterInput::ReplicasAcknowledged { token, is_acknowledged: held, keys_in_slot } => {
                self.set_slot_queue.record_acknowledgement(token, held, keys_in_slot);
                return self.execute_set_slots();
            }
            ClusterInput::SlotChanged { slot, change } => {
                slot_moves::apply_replicated_change(state, slot, &change)
            }
            ClusterInput::MasterShutdown => self.manual_failover.on_master_shutdown(state),
            ClusterInput::SlotMarksLoaded(moves) => {
                let is_master = state.myself().is_master();
                let mut effects = if is_master { Vec::new() } else { self.set_slot_queue.refuse_all() };
                effects.extend(slot_moves::load_marks(state, &moves));
                effects
            }
            ClusterInput::FirstWrite { written_at: at } => {
                return self.outbox.record_first_write(state.id(), at);
            }
            ClusterInput::Publish(publication) => return self.send_publication(&publication),
            ClusterInput::Configure(config) => return self.configure(*config),
        };
        self.apply(effects);
    }

    fn configure(&mut self, config: ClusterConfig) {
        let before = self.state.configure(config);
        apply_own_announcement(&mut self.state);
        self.state.nodes.mark_all_changed();
        self.apply([Effect::ConfigChanged]);
        // Every node tells clients the addresses of all nodes, so address changes are sent at once. This takes a PING,
        // because nodes do not update addresses from a PONG.
        if before.announced_address != self.state.config().announced_address {
            for id in self.state.linked_nodes() {
                self.send_gossip(id, GossipKind::Ping);
            }
        }
    }

    /// Lets every component perform its due work. Each call must advance the component's deadline.
    fn perform_due_work(&mut self) {
        let effects = membership::drop_stale_handshakes(&mut self.state);
        self.apply(effects);
        let effects = self.links.close_silent_unknown_peers(&self.state);
        self.apply(effects);
        let effects = self.links.step(&mut self.state);
        self.apply(effects);
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
        if let Some(orphan) = self.replica_migration.step(&self.state) {
            self.outbox.log(ClusterEvent::ReplicaMigrating { new_master: orphan });
            self.become_replica_of(orphan);
        }
    }

    /// When to call [`Gossip::handle`] with [`ClusterInput::Deadline`] unless another input occurs before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let now = self.state.now();
        if self.phase == StartPhase::Created {
            return Some(now);
        }
        // Limit the time between calls, so that a longer gap proves that the process was paused.
        let quarter = self.state.config().node_timeout / 4;
        let heartbeat = self.serving_lease().map(|_| now + quarter.max(Duration::from_millis(1)));
        let deadlines = [
            self.state.nodes.next_deadline(),
            self.links.next_deadline(),
            self.manual_failover.next_deadline(),
            self.election.next_deadline(self.state.config().vote_timeout()),
            self.replica_migration.next_deadline(now),
            self.self_fail.next_deadline(now),
            self.service_state.next_deadline(now),
            heartbeat,
        ];
        deadlines.into_iter().flatten().min()
    }

    fn finish_step(&mut self) {
        self.follow_masters_master();
        let effects = self.set_slot_queue.write_to_stream(&self.state, self.manual_failover.stream_state());
        self.apply(effects);
        self.update_indexes();
        if is_in_minority(&self.state) {
            self.self_fail.postpone_timeout(&self.state);
        }
        let effects = self.service_state.update(&mut self.state, self.self_fail.blocks_serving());
        self.apply(effects);
        let effect = self.replication_target.update(&self.state);
        self.apply(effect);
    }

    /// Updates the indexes of the node table, and the slot coverage, which depends on them.
    fn update_indexes(&mut self) {
        self.state.update_indexes();
        if self.state.nodes.take_changed() {
            self.service_state.update_coverage(&self.state);
        }
    }

    /// Detects that this process was paused. The pause must not count as silence of other nodes, and a master that may
    /// have been replaced during the pause must not serve before it has checked.
    fn detect_process_pause(&mut self, elapsed: Duration) {
        let node_timeout = self.state.config().node_timeout;
        if elapsed < node_timeout / 2 || self.state.nodes.len() == 1 {
            return;
        }
        for node in self.state.nodes.values_mut() {
            node.contact_times.exclude_pause(elapsed);
        }
        if elapsed >= max_undetected_pause(node_timeout) {
            let effects = self.service_state.on_process_paused(&mut self.state);
            self.apply(effects);
            self.outbox.log(ClusterEvent::ProcessPaused(elapsed));
        }
    }

    /// How long after the last call this node may serve without another call; `None` if there are no other nodes.
    #[must_use]
    pub fn serving_lease(&self) -> Option<Duration> {
        (self.state.nodes.len() > 1).then(|| max_undetected_pause(self.state.config().node_timeout))
    }

    /// Executes the SETSLOT requests that the replicas have acknowledged.
    fn execute_set_slots(&mut self) {
        while let Some(confirmed) = self.set_slot_queue.pop_confirmed() {
            let (result, effects) = confirmed.execute(&mut self.state);
            self.apply(effects);
            let stream = self.manual_failover.stream_state();
            let effects = self.set_slot_queue.finish(&self.state, &confirmed, result, stream);
            self.apply(effects);
        }
    }

    /// The highest epoch in which this node voted.
    #[must_use]
    pub fn last_vote_epoch(&self) -> Epoch {
        self.votes.newest_voted_epoch()
    }

    /// The most recent failovers that this node observed.
    #[must_use]
    pub fn timeline(&self) -> &FailoverTimeline {
        self.outbox.timeline()
    }

    /// Copies what commands that read the cluster need. The cost grows with the number of nodes, so the caller must
    /// not copy after every packet.
    #[must_use]
    pub fn view(&self) -> ClusterView {
        ClusterView::new(
            self.state.clone(),
            self.outbox.stats().clone(),
            self.outbox.timeline().clone(),
            self.failure_detector.clone(),
        )
    }

    /// All links whose peer is known.
    #[must_use]
    pub fn link_reports(&self) -> Vec<LinkReport> {
        self.links.link_reports(&self.state)
    }

    /// Returns the entry of the node at the other end of `link`; `None` for an unknown peer.
    #[must_use]
    pub fn peer_node(&self, link: LinkId) -> Option<&Node> {
        self.state.node(self.links.peer(link)?)
    }

    /// Message counters by type, since the start or the last reset.
    #[must_use]
    pub fn stats(&self) -> &MessageStats {
        self.outbox.stats()
    }

    /// Resets the message counters (CONFIG RESETSTAT).
    pub fn reset_stats(&mut self) {
        self.outbox.stats_mut().reset();
    }

    /// Counts a received message that was dropped because of a DEBUG setting.
    pub fn count_dropped(&mut self, body: &MessageBody) {
        self.outbox.stats_mut().count_received(body);
    }
}

#[cfg(test)]
impl Gossip {
    pub(crate) fn nodes_conf(&self) -> String {
        self.state.nodes_conf_text(self.votes.newest_voted_epoch())
    }

    pub(crate) fn end_replacement_check(&mut self) {
        self.service_state.end_replacement_check();
    }

    /// Adopts an epoch that another node took without a vote, to create an epoch collision.
    pub(crate) fn adopt_epoch(&mut self, epoch: Epoch) {
        self.state.raise_epoch(epoch);
        self.state.myself_mut().config_epoch = epoch;
    }
}

//! The model of the whole system, which the checker explores.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::NODE_COUNT;
use crate::copy::{Leadership, Node, Role};
use crate::group::{Incarnation, Incarnations, ReplicaSetState};
use crate::message::{Acknowledgement, AppendMessage, GroupRequest};
use crate::omission::Omission;

/// What a node retains after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Durability {
    /// The node loses all its state.
    Memory,
    /// The node retains its log, incarnation and newest epoch.
    Disk,
}

/// The speed of a process's clock. The error is exaggerated: a timer of two ticks runs for one to three ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ClockSpeed {
    /// Timers end early, after one tick instead of two.
    Fast,
    /// Timers end on time.
    Exact,
    /// Timers end late, after three ticks instead of two.
    Slow,
}

impl ClockSpeed {
    const fn ticks(self) -> u8 {
        match self {
            Self::Fast => 1,
            Self::Exact => 2,
            Self::Slow => 3,
        }
    }

    /// The number of ticks for which a member must not request promotion after it has answered a lease round.
    pub(crate) const fn promise_ticks(self) -> u8 {
        self.ticks()
    }

    /// The length of a master's lease in ticks, counted from its request. The margin makes the lease end before the
    /// promise of any member.
    pub(crate) fn lease_ticks(self, omitted_rule: Option<Omission>) -> u8 {
        if omitted_rule == Some(Omission::LeaseWithoutMargin) { self.ticks() } else { 1 }
    }
}

/// The bounds within which the checker explores all states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateBounds {
    /// The maximum number of writes in total.
    pub(crate) max_writes: u8,
    /// The largest epoch that may be reached.
    pub(crate) max_epoch: u8,
    /// The maximum number of changes of the set in each epoch.
    pub(crate) max_versions: u8,
    /// The maximum number of lease rounds that each master begins.
    pub(crate) max_rounds: u8,
    /// The maximum number of crashes in total.
    pub(crate) max_crashes: u8,
    /// The maximum number of times that a node drops its data; at most 3.
    pub(crate) max_generations: u8,
}

/// The model of a shard, with the variant and bounds to check.
#[derive(Debug, Clone)]
pub(crate) struct ShardModel {
    pub(crate) bounds: StateBounds,
    /// What nodes retain after a crash.
    pub(crate) durability: Durability,
    /// Whether masters serve reads, which needs leases. Without reads there are no promises and far fewer states.
    pub(crate) serves_reads: bool,
    /// The clock speed of each node.
    pub(crate) speeds: [ClockSpeed; NODE_COUNT],
    /// The rule that is omitted; `None` checks the complete rules.
    pub(crate) omitted: Option<Omission>,
    /// Whether the liveness property is also checked, which takes longer.
    pub(crate) checks_liveness: bool,
}

/// A state of the whole system.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ModelState {
    pub(crate) nodes: Vec<Node>,
    /// All states of the group so far; the last one is current.
    pub(crate) replica_set_states: Vec<ReplicaSetState>,
    /// All messages that masters have sent.
    pub(crate) append_messages: BTreeSet<AppendMessage>,
    /// All acknowledgements that replicas have sent.
    pub(crate) acknowledgements: BTreeSet<Acknowledgement>,
    /// All requests that were sent to the group.
    pub(crate) requests: BTreeSet<GroupRequest>,
    /// The number of writes so far.
    pub(crate) write_count: u8,
    /// The number of crashes so far.
    pub(crate) crash_count: u8,
    /// The values that a client has seen, by a reply or a read, one bit each.
    pub(crate) acknowledged_value_bits: u8,
}

/// A step from one state to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ModelAction {
    /// A client writes to this node.
    Write(usize),
    /// A replica receives entries from a master.
    Append(usize, AppendMessage),
    /// A master receives an acknowledgement.
    Acknowledge(usize, Acknowledgement),
    /// The group decides a request.
    Decide(GroupRequest),
    /// A node learns a state of the group.
    Learn(usize, ReplicaSetState),
    /// A master proposes to add or remove a member.
    Propose(usize, Incarnations),
    /// A master gives up its proposal, which only happens with [`Omission::ForgetProposal`].
    ForgetProposal(usize),
    /// A member requests its promotion from the group.
    RequestPromotion(usize),
    /// A master begins a lease round.
    BeginLeaseRound(usize),
    /// One tick of time passes.
    Tick,
    /// A node's process crashes.
    Crash(usize),
    /// A node's process starts again.
    Restart(usize),
}

impl ModelState {
    pub(crate) fn current_set_state(&self) -> &ReplicaSetState {
        self.replica_set_states.last().expect("the group has a state from the start")
    }
}

impl ShardModel {
    /// The initial state: node 0 is the master, node 1 the only member of the in-sync set, and node 2 an empty replica.
    pub(crate) fn initial_state(&self) -> ModelState {
        let mut copies: Vec<Node> = (0..NODE_COUNT as u8).map(Node::new).collect();
        let members = Incarnations::default().with_member(copies[1].incarnation);
        let group = ReplicaSetState { epoch: 1, version: 0, master: copies[0].incarnation, members };
        copies[1].epoch = 1;
        copies[0].become_master(&group, self.omitted);
        ModelState {
            nodes: copies,
            replica_set_states: vec![group],
            append_messages: BTreeSet::new(),
            acknowledgements: BTreeSet::new(),
            requests: BTreeSet::new(),
            write_count: 0,
            crash_count: 0,
            acknowledged_value_bits: 0,
        }
    }

    fn add_proposals(&self, state: &ModelState, index: usize, actions: &mut Vec<ModelAction>) {
        let copy = &state.nodes[index];
        let Some(master) = copy.leadership() else { return };
        if master.proposed_members.is_some() || master.version >= self.bounds.max_versions {
            return;
        }
        for member in master.decided_members.iter() {
            actions.push(ModelAction::Propose(index, master.decided_members.without_member(member)));
        }
        for (&from, &len) in &master.acknowledged_lengths {
            let is_complete = usize::from(len) == copy.log.len();
            if is_complete && !master.decided_members.contains(from) && usize::from(from.node) != index {
                actions.push(ModelAction::Propose(index, master.decided_members.with_member(from)));
            }
        }
    }

    fn add_actions(&self, state: &ModelState, index: usize, actions: &mut Vec<ModelAction>) {
        let copy = &state.nodes[index];
        if !copy.is_up {
            if copy.incarnation.generation < self.bounds.max_generations {
                actions.push(ModelAction::Restart(index));
            }
            return;
        }
        if state.crash_count < self.bounds.max_crashes {
            actions.push(ModelAction::Crash(index));
        }
        if let Some(master) = copy.leadership() {
            if copy.served_length().is_some() && state.write_count < self.bounds.max_writes {
                actions.push(ModelAction::Write(index));
            }
            if self.serves_reads && master.lease_round < self.bounds.max_rounds {
                actions.push(ModelAction::BeginLeaseRound(index));
            }
            if self.omitted == Some(Omission::ForgetProposal) && master.proposed_members.is_some() {
                actions.push(ModelAction::ForgetProposal(index));
            }
            self.add_proposals(state, index, actions);
            let is_open = |message: &&Acknowledgement| {
                let counted = master
                    .acknowledged_lengths
                    .get(&message.sender)
                    .is_some_and(|len| *len >= message.acknowledged_length);
                let has_promise = message.lease_round != master.lease_round
                    || master.promised_members.contains(message.sender);
                !counted || !has_promise || self.omitted.is_some()
            };
            let open = state.acknowledgements.iter().filter(is_open);
            actions.extend(open.map(|message| ModelAction::Acknowledge(index, *message)));
        }
        if self.may_request_promotion(copy) {
            actions.push(ModelAction::RequestPromotion(index));
        }
        let may_drop = copy.incarnation.generation < self.bounds.max_generations;
        let is_open = |message: &&AppendMessage| {
            may_drop
                && (message.epoch > copy.epoch
                    || (message.epoch == copy.epoch && copy.leadership().is_none()))
        };
        let messages = state.append_messages.iter().filter(is_open);
        actions.extend(messages.map(|message| ModelAction::Append(index, message.clone())));
        let is_news = |decided: &&ReplicaSetState| {
            let has_newer =
                |master: &Leadership| decided.epoch == copy.epoch && decided.version > master.version;
            let is_removed =
                copy.role == Role::Candidate && decided.epoch == copy.epoch && decided.version > 0;
            decided.epoch > copy.epoch || is_removed || copy.leadership().is_some_and(has_newer)
        };
        actions.extend(
            state
                .replica_set_states
                .iter()
                .filter(is_news)
                .map(|decided| ModelAction::Learn(index, *decided)),
        );
    }

    fn promise_ticks_of(&self, index: usize) -> u8 {
        if self.serves_reads { self.speeds[index].promise_ticks() } else { 0 }
    }

    fn may_request_promotion(&self, node: &Node) -> bool {
        let is_complete = match node.role {
            Role::Replica => true,
            Role::Syncing => self.omitted == Some(Omission::AcknowledgeDuringFullSync),
            _ => false,
        };
        let may_stand =
            node.ticks_until_promise_end == 0 || self.omitted == Some(Omission::StandDespitePromise);
        is_complete && may_stand && node.epoch > 0 && node.epoch < self.bounds.max_epoch
    }

    fn perform(&self, state: &mut ModelState, action: &ModelAction) {
        let omitted = self.omitted;
        match action {
            ModelAction::Write(index) => {
                state.write_count += 1;
                let value = state.write_count;
                state.nodes[*index].write(value, omitted);
                if omitted == Some(Omission::AcknowledgeBeforeCommit) {
                    state.acknowledged_value_bits |= 1 << (value - 1);
                }
            }
            ModelAction::Append(index, message) => {
                let reply =
                    state.nodes[*index].receive_entries(message, self.promise_ticks_of(*index), omitted);
                state.acknowledgements.extend(reply);
            }
            ModelAction::Acknowledge(index, message) => {
                state.nodes[*index].count_acknowledgement(message, self.speeds[*index], omitted);
            }
            ModelAction::Decide(request) => {
                let decided = state.current_set_state().decide(request, omitted);
                state.replica_set_states.extend(decided);
            }
            ModelAction::Learn(index, decided) => state.nodes[*index].learn_state(decided, omitted),
            ModelAction::Propose(index, members) => {
                let copy = &mut state.nodes[*index];
                copy.propose(*members, omitted);
                let version = copy.leadership().map_or(0, |master| master.version) + 1;
                state.requests.insert(GroupRequest::Change { epoch: copy.epoch, version, members: *members });
            }
            ModelAction::ForgetProposal(index) => {
                if let Role::Master(leadership) = &mut state.nodes[*index].role {
                    leadership.proposed_members = None;
                }
            }
            ModelAction::RequestPromotion(index) => {
                let copy = &mut state.nodes[*index];
                copy.role = Role::Candidate;
                state
                    .requests
                    .insert(GroupRequest::Promote { epoch: copy.epoch, candidate: copy.incarnation });
            }
            ModelAction::BeginLeaseRound(index) => {
                state.nodes[*index].begin_lease_round(self.speeds[*index], omitted);
            }
            ModelAction::Tick => state.nodes.iter_mut().for_each(Node::tick),
            ModelAction::Crash(index) => {
                state.crash_count += 1;
                state.nodes[*index].crash(omitted);
            }
            ModelAction::Restart(index) => {
                let promise = self.promise_ticks_of(*index);
                state.nodes[*index].restart(self.durability, promise, omitted);
            }
        }
    }

    /// Sends the current log of each master, and records which values clients have seen.
    fn send_logs(&self, state: &mut ModelState) {
        for copy in &mut state.nodes {
            copy.check_lease(self.omitted);
            state.append_messages.extend(copy.append_message());
            if let Some(committed) = copy.served_length() {
                state.acknowledged_value_bits |= copy.log.value_bits(committed.into());
            }
        }
    }

    /// Removes messages that no node can act on any more, so that states that differ only in such messages become
    /// equal.
    fn drop_obsolete_messages(&self, state: &mut ModelState) {
        let decided = *state.current_set_state();
        let oldest = state.nodes.iter().map(|copy| copy.epoch).min().unwrap_or_default();
        state.append_messages.retain(|message| message.epoch >= oldest);
        state.requests.retain(|request| match *request {
            GroupRequest::Change { epoch, version, .. } => {
                let is_open = version > decided.version || self.omitted == Some(Omission::AcceptAnyVersion);
                epoch == decided.epoch && is_open
            }
            GroupRequest::Promote { epoch, .. } => epoch == decided.epoch,
        });
        let other_histories = self.omitted == Some(Omission::CountOtherHistories);
        let has_master = |epoch| {
            let leads = |copy: &Node| copy.epoch == epoch && matches!(copy.role, Role::Master(_));
            let may_lead = |copy: &Node| copy.epoch + 1 == epoch && copy.role == Role::Candidate;
            state.nodes.iter().any(|copy| leads(copy) || may_lead(copy))
        };
        let is_useful = |message: &Acknowledgement| other_histories || has_master(message.epoch);
        state.acknowledgements.retain(is_useful);
        let newest = decided;
        state.replica_set_states.retain(|known| {
            *known == newest || known.epoch > oldest || (known.epoch == oldest && has_master(known.epoch))
        });
    }

    pub(crate) fn state_after(&self, state: &ModelState, action: &ModelAction) -> ModelState {
        let mut next = state.clone();
        self.perform(&mut next, action);
        self.send_logs(&mut next);
        self.drop_obsolete_messages(&mut next);
        next
    }

    fn serving_master_has_all_acknowledged_writes(&self, state: &ModelState) -> bool {
        let newest = state.current_set_state().epoch;
        state.nodes.iter().filter(|copy| copy.epoch == newest && copy.served_length().is_some()).all(|copy| {
            copy.log.value_bits(copy.log.len()) & state.acknowledged_value_bits
                == state.acknowledged_value_bits
        })
    }

    fn reads_are_fresh(&self, state: &ModelState) -> bool {
        let readers = state.nodes.iter().filter(|copy| self.serves_reads && copy.serves_reads(self.omitted));
        readers.clone().all(|copy| {
            let seen = copy.log.value_bits(copy.served_length().unwrap_or_default().into());
            seen & state.acknowledged_value_bits == state.acknowledged_value_bits
        })
    }

    fn one_master_serves_reads(&self, state: &ModelState) -> bool {
        !self.serves_reads || state.nodes.iter().filter(|copy| copy.serves_reads(self.omitted)).count() <= 1
    }

    fn acknowledged_writes_are_on_disk(&self, state: &ModelState) -> bool {
        let has_all = |copy: &Node| {
            copy.log.value_bits(copy.log.len()) & state.acknowledged_value_bits
                == state.acknowledged_value_bits
        };
        self.durability == Durability::Memory || state.nodes.iter().any(has_all)
    }
}

/// Name of the safety property that every serving master has every acknowledged write.
pub(crate) const NO_ACKNOWLEDGED_WRITE_LOST: &str = "a serving master has every acknowledged write";
/// Name of the property that no read misses an acknowledged write.
pub(crate) const FRESH_READS: &str = "reads see every acknowledged write";
/// Name of the property that at most one master serves reads at a time.
pub(crate) const ONE_MASTER_SERVES_READS: &str = "one master serves reads";
/// Name of the property that acknowledged writes survive on a disk.
pub(crate) const ACKNOWLEDGED_WRITES_ON_DISK: &str = "a copy on disk has every acknowledged write";
/// Name of the liveness property.
pub(crate) const SHARD_SERVES_AGAIN: &str = "the shard serves again once faults end";

impl Model for ShardModel {
    type State = ModelState;
    type Action = ModelAction;

    fn init_states(&self) -> Vec<ModelState> {
        let mut first = self.initial_state();
        self.send_logs(&mut first);
        vec![first]
    }

    fn actions(&self, state: &ModelState, actions: &mut Vec<ModelAction>) {
        for index in 0..NODE_COUNT {
            self.add_actions(state, index, actions);
        }
        actions.extend(state.requests.iter().map(|request| ModelAction::Decide(*request)));
        if self.serves_reads {
            actions.push(ModelAction::Tick);
        }
    }

    fn next_state(&self, state: &ModelState, action: ModelAction) -> Option<ModelState> {
        let next = self.state_after(state, &action);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(NO_ACKNOWLEDGED_WRITE_LOST, Self::serving_master_has_all_acknowledged_writes),
            Property::always(FRESH_READS, Self::reads_are_fresh),
            Property::always(ONE_MASTER_SERVES_READS, Self::one_master_serves_reads),
            Property::always(ACKNOWLEDGED_WRITES_ON_DISK, Self::acknowledged_writes_are_on_disk),
        ];
        if self.checks_liveness {
            properties.push(Property::always(SHARD_SERVES_AGAIN, |model: &Self, state| {
                model.serves_again_after_faults(state)
            }));
        }
        properties
    }
}

/// Whether `incarnation` is alive: the process of its node runs and has not dropped its data since that generation.
pub(crate) fn is_alive(state: &ModelState, incarnation: Incarnation) -> bool {
    state.nodes.iter().any(|copy| copy.is_up && copy.incarnation == incarnation)
}

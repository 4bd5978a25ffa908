//! The model of the whole system, which the checker explores.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::COPY_COUNT;
use crate::copy::{Copy, Leadership, Role};
use crate::group::{Incarnation, Incarnations, SetState};
use crate::message::{Acknowledgement, Append, GroupRequest};
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
pub(crate) enum Speed {
    /// Timers end early, after one tick instead of two.
    Fast,
    /// Timers end on time.
    Exact,
    /// Timers end late, after three ticks instead of two.
    Slow,
}

impl Speed {
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
    pub(crate) fn lease_ticks(self, omitted: Option<Omission>) -> u8 {
        if omitted == Some(Omission::LeaseWithoutMargin) { self.ticks() } else { 1 }
    }
}

/// The bounds within which the checker explores all states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The maximum number of writes in total.
    pub(crate) writes: u8,
    /// The largest epoch that may be reached.
    pub(crate) epochs: u8,
    /// The maximum number of changes of the set in each epoch.
    pub(crate) versions: u8,
    /// The maximum number of lease rounds that each master begins.
    pub(crate) rounds: u8,
    /// The maximum number of crashes in total.
    pub(crate) crashes: u8,
    /// The maximum number of times that a node drops its data; at most 3.
    pub(crate) generations: u8,
}

/// The model of a shard, with the variant and bounds to check.
#[derive(Debug, Clone)]
pub(crate) struct Shard {
    pub(crate) bounds: Bounds,
    /// What nodes retain after a crash.
    pub(crate) durability: Durability,
    /// Whether masters serve reads, which needs leases. Without reads there are no promises and far fewer states.
    pub(crate) serves_reads: bool,
    /// The clock speed of each node.
    pub(crate) speeds: [Speed; COPY_COUNT],
    /// The rule that is omitted; `None` checks the complete rules.
    pub(crate) omitted: Option<Omission>,
    /// Whether the liveness property is also checked, which takes longer.
    pub(crate) checks_liveness: bool,
}

/// A state of the whole system.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) copies: Vec<Copy>,
    /// All states of the group so far; the last one is current.
    pub(crate) group: Vec<SetState>,
    /// All messages that masters have sent.
    pub(crate) append_messages: BTreeSet<Append>,
    /// All acknowledgements that replicas have sent.
    pub(crate) acknowledgements: BTreeSet<Acknowledgement>,
    /// All requests that were sent to the group.
    pub(crate) requests: BTreeSet<GroupRequest>,
    /// The number of writes so far.
    pub(crate) writes: u8,
    /// The number of crashes so far.
    pub(crate) crashes: u8,
    /// The values that a client has seen, by a reply or a read, one bit each.
    pub(crate) acknowledged_values: u8,
}

/// A step from one state to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// A client writes to this node.
    Write(usize),
    /// A replica receives entries from a master.
    Append(usize, Append),
    /// A master receives an acknowledgement.
    Acknowledge(usize, Acknowledgement),
    /// The group decides a request.
    Decide(GroupRequest),
    /// A node learns a state of the group.
    Learn(usize, SetState),
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

impl State {
    pub(crate) fn decided(&self) -> &SetState {
        self.group.last().expect("the group has a state from the start")
    }
}

impl Shard {
    /// The initial state: node 0 is the master, node 1 the only member of the in-sync set, and node 2 an empty replica.
    pub(crate) fn first_state(&self) -> State {
        let mut copies: Vec<Copy> = (0..COPY_COUNT as u8).map(Copy::new).collect();
        let members = Incarnations::default().with(copies[1].incarnation);
        let group = SetState { epoch: 1, version: 0, master: copies[0].incarnation, members };
        copies[1].epoch = 1;
        copies[0].become_master(&group, self.omitted);
        State {
            copies,
            group: vec![group],
            append_messages: BTreeSet::new(),
            acknowledgements: BTreeSet::new(),
            requests: BTreeSet::new(),
            writes: 0,
            crashes: 0,
            acknowledged_values: 0,
        }
    }

    fn add_proposals(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        let copy = &state.copies[index];
        let Some(master) = copy.leadership() else { return };
        if master.proposed_members.is_some() || master.version >= self.bounds.versions {
            return;
        }
        for member in master.decided_members.iter() {
            actions.push(Action::Propose(index, master.decided_members.without(member)));
        }
        for (&from, &len) in &master.acknowledged_lengths {
            let is_complete = usize::from(len) == copy.log.len();
            if is_complete && !master.decided_members.contains(from) && usize::from(from.node) != index {
                actions.push(Action::Propose(index, master.decided_members.with(from)));
            }
        }
    }

    fn add_actions(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        let copy = &state.copies[index];
        if !copy.is_up {
            if copy.incarnation.generation < self.bounds.generations {
                actions.push(Action::Restart(index));
            }
            return;
        }
        if state.crashes < self.bounds.crashes {
            actions.push(Action::Crash(index));
        }
        if let Some(master) = copy.leadership() {
            if copy.served_length().is_some() && state.writes < self.bounds.writes {
                actions.push(Action::Write(index));
            }
            if self.serves_reads && master.round < self.bounds.rounds {
                actions.push(Action::BeginLeaseRound(index));
            }
            if self.omitted == Some(Omission::ForgetProposal) && master.proposed_members.is_some() {
                actions.push(Action::ForgetProposal(index));
            }
            self.add_proposals(state, index, actions);
            let is_open = |message: &&Acknowledgement| {
                let counted = master
                    .acknowledged_lengths
                    .get(&message.sender)
                    .is_some_and(|len| *len >= message.acknowledged_length);
                let has_promise =
                    message.round != master.round || master.promised_members.contains(message.sender);
                !counted || !has_promise || self.omitted.is_some()
            };
            let open = state.acknowledgements.iter().filter(is_open);
            actions.extend(open.map(|message| Action::Acknowledge(index, *message)));
        }
        if self.may_request_promotion(copy) {
            actions.push(Action::RequestPromotion(index));
        }
        let may_drop = copy.incarnation.generation < self.bounds.generations;
        let is_open = |message: &&Append| {
            may_drop
                && (message.epoch > copy.epoch
                    || (message.epoch == copy.epoch && copy.leadership().is_none()))
        };
        let messages = state.append_messages.iter().filter(is_open);
        actions.extend(messages.map(|message| Action::Append(index, message.clone())));
        let is_news = |decided: &&SetState| {
            let has_newer =
                |master: &Leadership| decided.epoch == copy.epoch && decided.version > master.version;
            let is_removed =
                copy.role == Role::Candidate && decided.epoch == copy.epoch && decided.version > 0;
            decided.epoch > copy.epoch || is_removed || copy.leadership().is_some_and(has_newer)
        };
        actions.extend(state.group.iter().filter(is_news).map(|decided| Action::Learn(index, *decided)));
    }

    fn promise_ticks_of(&self, index: usize) -> u8 {
        if self.serves_reads { self.speeds[index].promise_ticks() } else { 0 }
    }

    fn may_request_promotion(&self, copy: &Copy) -> bool {
        let is_complete = match copy.role {
            Role::Replica => true,
            Role::Syncing => self.omitted == Some(Omission::AcknowledgeDuringFullSync),
            _ => false,
        };
        let may_stand =
            copy.ticks_until_promise_end == 0 || self.omitted == Some(Omission::StandDespitePromise);
        is_complete && may_stand && copy.epoch > 0 && copy.epoch < self.bounds.epochs
    }

    fn perform(&self, state: &mut State, action: &Action) {
        let omitted = self.omitted;
        match action {
            Action::Write(index) => {
                state.writes += 1;
                let value = state.writes;
                state.copies[*index].write(value, omitted);
                if omitted == Some(Omission::AcknowledgeBeforeCommit) {
                    state.acknowledged_values |= 1 << (value - 1);
                }
            }
            Action::Append(index, message) => {
                let reply =
                    state.copies[*index].receive_entries(message, self.promise_ticks_of(*index), omitted);
                state.acknowledgements.extend(reply);
            }
            Action::Acknowledge(index, message) => {
                state.copies[*index].count_acknowledgement(message, self.speeds[*index], omitted);
            }
            Action::Decide(request) => {
                let decided = state.decided().decide(request, omitted);
                state.group.extend(decided);
            }
            Action::Learn(index, decided) => state.copies[*index].learn_state(decided, omitted),
            Action::Propose(index, members) => {
                let copy = &mut state.copies[*index];
                copy.propose(*members, omitted);
                let version = copy.leadership().map_or(0, |master| master.version) + 1;
                state.requests.insert(GroupRequest::Change { epoch: copy.epoch, version, members: *members });
            }
            Action::ForgetProposal(index) => {
                if let Role::Master(leadership) = &mut state.copies[*index].role {
                    leadership.proposed_members = None;
                }
            }
            Action::RequestPromotion(index) => {
                let copy = &mut state.copies[*index];
                copy.role = Role::Candidate;
                state
                    .requests
                    .insert(GroupRequest::Promote { epoch: copy.epoch, candidate: copy.incarnation });
            }
            Action::BeginLeaseRound(index) => {
                state.copies[*index].begin_lease_round(self.speeds[*index], omitted);
            }
            Action::Tick => state.copies.iter_mut().for_each(Copy::tick),
            Action::Crash(index) => {
                state.crashes += 1;
                state.copies[*index].crash(omitted);
            }
            Action::Restart(index) => {
                let promise = self.promise_ticks_of(*index);
                state.copies[*index].restart(self.durability, promise, omitted);
            }
        }
    }

    /// Sends the current log of each master, and records which values clients have seen.
    fn send_logs(&self, state: &mut State) {
        for copy in &mut state.copies {
            copy.check_lease(self.omitted);
            state.append_messages.extend(copy.append_message());
            if let Some(committed) = copy.served_length() {
                state.acknowledged_values |= copy.log.value_bits(committed.into());
            }
        }
    }

    /// Removes messages that no node can act on any more, so that states that differ only in such messages become
    /// equal.
    fn forget_dead_messages(&self, state: &mut State) {
        let decided = *state.decided();
        let oldest = state.copies.iter().map(|copy| copy.epoch).min().unwrap_or_default();
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
            let leads = |copy: &Copy| copy.epoch == epoch && matches!(copy.role, Role::Master(_));
            let may_lead = |copy: &Copy| copy.epoch + 1 == epoch && copy.role == Role::Candidate;
            state.copies.iter().any(|copy| leads(copy) || may_lead(copy))
        };
        let is_useful = |message: &Acknowledgement| other_histories || has_master(message.epoch);
        state.acknowledgements.retain(is_useful);
        let newest = decided;
        state.group.retain(|known| {
            *known == newest || known.epoch > oldest || (known.epoch == oldest && has_master(known.epoch))
        });
    }

    pub(crate) fn state_after(&self, state: &State, action: &Action) -> State {
        let mut next = state.clone();
        self.perform(&mut next, action);
        self.send_logs(&mut next);
        self.forget_dead_messages(&mut next);
        next
    }

    fn serving_master_has_all(&self, state: &State) -> bool {
        let newest = state.decided().epoch;
        state.copies.iter().filter(|copy| copy.epoch == newest && copy.served_length().is_some()).all(
            |copy| {
                copy.log.value_bits(copy.log.len()) & state.acknowledged_values == state.acknowledged_values
            },
        )
    }

    fn reads_are_fresh(&self, state: &State) -> bool {
        let readers = state.copies.iter().filter(|copy| self.serves_reads && copy.serves_reads(self.omitted));
        readers.clone().all(|copy| {
            let seen = copy.log.value_bits(copy.served_length().unwrap_or_default().into());
            seen & state.acknowledged_values == state.acknowledged_values
        })
    }

    fn one_master_serves_reads(&self, state: &State) -> bool {
        !self.serves_reads || state.copies.iter().filter(|copy| copy.serves_reads(self.omitted)).count() <= 1
    }

    fn writes_are_on_disk(&self, state: &State) -> bool {
        let has_all = |copy: &Copy| {
            copy.log.value_bits(copy.log.len()) & state.acknowledged_values == state.acknowledged_values
        };
        self.durability == Durability::Memory || state.copies.iter().any(has_all)
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

impl Model for Shard {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut first = self.first_state();
        self.send_logs(&mut first);
        vec![first]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for index in 0..COPY_COUNT {
            self.add_actions(state, index, actions);
        }
        actions.extend(state.requests.iter().map(|request| Action::Decide(*request)));
        if self.serves_reads {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let next = self.state_after(state, &action);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(NO_ACKNOWLEDGED_WRITE_LOST, Self::serving_master_has_all),
            Property::always(FRESH_READS, Self::reads_are_fresh),
            Property::always(ONE_MASTER_SERVES_READS, Self::one_master_serves_reads),
            Property::always(ACKNOWLEDGED_WRITES_ON_DISK, Self::writes_are_on_disk),
        ];
        if self.checks_liveness {
            properties.push(Property::always(SHARD_SERVES_AGAIN, |model: &Self, state| model.heals(state)));
        }
        properties
    }
}

/// Whether `incarnation` is alive: the process of its node runs and has not dropped its data since that generation.
pub(crate) fn is_alive(state: &State, incarnation: Incarnation) -> bool {
    state.copies.iter().any(|copy| copy.is_up && copy.incarnation == incarnation)
}

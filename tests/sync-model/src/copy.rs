//! A node of the shard: a process with its log, which is a replica, a candidate or a master.

use std::collections::BTreeMap;

use crate::group::{Incarnation, Incarnations, ReplicaSetState};
use crate::log::Entry;
use crate::log::Log;
use crate::message::{Acknowledgement, AppendMessage};
use crate::model::{ClockSpeed, Durability};
use crate::omission::Omission;

/// The role of a node in the shard.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Role {
    /// The node follows the master of the newest epoch that it knows.
    Replica,
    /// The node has dropped its data for a full synchronisation and acknowledges nothing.
    Syncing,
    /// The node has requested its promotion from the group.
    Candidate,
    /// The node is the master of its epoch, as far as it knows.
    Master(Leadership),
}

/// The state that only a master has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Leadership {
    /// The newest in-sync set that the master knows to be decided. A decided set is one that the group has stored.
    pub(crate) decided_members: Incarnations,
    /// The version of `decided_members`.
    pub(crate) version: u8,
    /// The members of a proposal whose outcome is unknown.
    pub(crate) proposed_members: Option<Incarnations>,
    /// The number of entries that each incarnation has acknowledged in this epoch.
    pub(crate) acknowledged_lengths: BTreeMap<Incarnation, u8>,
    /// The number of entries that every member of the set has acknowledged.
    pub(crate) committed_length: u8,
    /// The committed length from which on the master serves clients.
    pub(crate) min_serving_length: u8,
    /// The number of the newest lease round.
    pub(crate) lease_round: u8,
    /// The number of ticks until the lease of the newest round ends.
    pub(crate) ticks_until_lease_end: u8,
    /// The incarnations that have answered in the newest round, and thereby promised not to request promotion.
    pub(crate) promised_members: Incarnations,
    /// Whether the master has ever held a lease, which counts only with [`Omission::CheckLeaseOnce`].
    pub(crate) had_lease: bool,
}

/// The state of one node of the shard.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    pub(crate) is_up: bool,
    /// The identity of the node's data.
    pub(crate) incarnation: Incarnation,
    /// The node's log, which survives a crash only with [`Durability::Disk`].
    pub(crate) log: Log,
    /// The newest epoch that the node has learned of.
    pub(crate) epoch: u8,
    pub(crate) role: Role,
    /// The number of ticks until the node may request its promotion.
    pub(crate) ticks_until_promise_end: u8,
}

impl Leadership {
    fn new(state: &ReplicaSetState, log: &Log) -> Self {
        Self {
            decided_members: state.members,
            version: state.version,
            proposed_members: None,
            acknowledged_lengths: BTreeMap::new(),
            committed_length: 0,
            min_serving_length: log.len() as u8,
            lease_round: 0,
            ticks_until_lease_end: 0,
            promised_members: Incarnations::default(),
            had_lease: false,
        }
    }

    /// The members whose acknowledgements a write requires.
    fn required_members(&self, omitted_rule: Option<Omission>) -> Incarnations {
        match (omitted_rule, self.proposed_members) {
            (Some(Omission::ShrinkBeforeDecision), Some(proposal)) => proposal,
            (Some(Omission::GrowWithoutWaiting), _) | (_, None) => self.decided_members,
            (_, Some(proposal)) => self.decided_members.union(proposal),
        }
    }

    fn commit(&mut self, log: &Log, omitted_rule: Option<Omission>) {
        let acknowledged = |member| self.acknowledged_lengths.get(&member).copied().unwrap_or_default();
        let of_all = self.required_members(omitted_rule).iter().map(acknowledged).min();
        let committed = of_all.map_or(log.len() as u8, |len| len.min(log.len() as u8));
        self.committed_length = self.committed_length.max(committed);
    }

    fn has_lease(&self, omitted_rule: Option<Omission>) -> bool {
        let has_promises =
            |members: Incarnations| members.iter().all(|member| self.promised_members.contains(member));
        let members = self.required_members(omitted_rule);
        members == Incarnations::default() || (self.ticks_until_lease_end > 0 && has_promises(members))
    }
}

impl Node {
    /// Creates a replica without data.
    pub(crate) fn new(node: u8) -> Self {
        Self {
            is_up: true,
            incarnation: Incarnation { node, generation: 0 },
            log: Log::default(),
            epoch: 0,
            role: Role::Replica,
            ticks_until_promise_end: 0,
        }
    }

    /// The master's state; `None` if the process is down or not a master.
    pub(crate) fn leadership(&self) -> Option<&Leadership> {
        match &self.role {
            Role::Master(leadership) if self.is_up => Some(leadership),
            _ => None,
        }
    }

    /// The number of committed entries; `None` unless this is a master that serves clients.
    pub(crate) fn served_length(&self) -> Option<u8> {
        self.leadership()
            .filter(|master| master.committed_length >= master.min_serving_length)
            .map(|master| master.committed_length)
    }

    /// Whether this is a master that serves reads.
    pub(crate) fn serves_reads(&self, omitted_rule: Option<Omission>) -> bool {
        let checked_once = omitted_rule == Some(Omission::CheckLeaseOnce);
        let has_lease =
            |master: &Leadership| master.has_lease(omitted_rule) || (checked_once && master.had_lease);
        self.served_length().is_some() && self.leadership().is_some_and(has_lease)
    }

    /// Makes this node the master that `state` names.
    pub(crate) fn become_master(&mut self, state: &ReplicaSetState, omitted_rule: Option<Omission>) {
        self.epoch = state.epoch;
        if state.epoch > 1 {
            self.log.push(Entry { epoch: state.epoch, value: 0 });
        }
        let mut leadership = Leadership::new(state, &self.log);
        if omitted_rule == Some(Omission::ServeBeforeCommit) {
            leadership.committed_length = leadership.min_serving_length;
        }
        leadership.commit(&self.log, omitted_rule);
        self.role = Role::Master(leadership);
    }

    /// Appends a client's write to the log.
    pub(crate) fn write(&mut self, value: u8, omitted_rule: Option<Omission>) {
        self.log.push(Entry { epoch: self.epoch, value });
        if let Role::Master(leadership) = &mut self.role {
            leadership.commit(&self.log, omitted_rule);
        }
    }

    /// Returns the message with which a master sends its log to replicas; `None` if this node is not a master.
    pub(crate) fn append_message(&self) -> Option<AppendMessage> {
        let round = self.leadership()?.lease_round;
        Some(AppendMessage { epoch: self.epoch, lease_round: round, log: self.log.clone() })
    }

    /// Accepts or rejects a master's entries. Returns the acknowledgement if they are accepted.
    pub(crate) fn receive_entries(
        &mut self,
        message: &AppendMessage,
        promise: u8,
        omitted_rule: Option<Omission>,
    ) -> Option<Acknowledgement> {
        if message.epoch < self.epoch {
            return None;
        }
        let is_newer = message.epoch > self.epoch;
        match self.role {
            Role::Master(_) if !is_newer => return None,
            Role::Candidate if !is_newer && omitted_rule != Some(Omission::AcknowledgeAsCandidate) => {
                return None;
            }
            Role::Master(_) | Role::Candidate if is_newer => self.role = Role::Replica,
            _ => {}
        }
        self.epoch = message.epoch;
        if self.role == Role::Syncing {
            self.log = message.log.clone();
            self.role = Role::Replica;
        } else if omitted_rule == Some(Omission::MergeOldTail) {
            self.log.append_by_length(&message.log);
        } else if self.log.is_prefix_of(&message.log) {
            self.log = message.log.clone();
        } else if !message.log.is_prefix_of(&self.log) {
            self.drop_data();
            self.role = Role::Syncing;
            let early = Acknowledgement {
                sender: self.incarnation,
                epoch: message.epoch,
                lease_round: message.lease_round,
                acknowledged_length: message.log.len() as u8,
            };
            return (omitted_rule == Some(Omission::AcknowledgeDuringFullSync)).then_some(early);
        }
        self.ticks_until_promise_end = promise;
        Some(Acknowledgement {
            sender: self.incarnation,
            epoch: message.epoch,
            lease_round: message.lease_round,
            acknowledged_length: self.log.len() as u8,
        })
    }

    /// Counts an acknowledgement, which may commit entries and renew the lease.
    pub(crate) fn count_acknowledgement(
        &mut self,
        message: &Acknowledgement,
        clock_speed: ClockSpeed,
        omitted_rule: Option<Omission>,
    ) {
        let own_epoch = message.epoch == self.epoch;
        let Role::Master(leadership) = &mut self.role else { return };
        if !own_epoch && omitted_rule != Some(Omission::CountOtherHistories) {
            return;
        }
        let mut from = message.sender;
        if omitted_rule == Some(Omission::IgnoreIncarnations) {
            let known =
                leadership.required_members(omitted_rule).iter().find(|member| member.node == from.node);
            from = known.unwrap_or(from);
        }
        let len = leadership.acknowledged_lengths.entry(from).or_default();
        *len = message.acknowledged_length.max(*len);
        if own_epoch && message.lease_round == leadership.lease_round && message.lease_round > 0 {
            if omitted_rule == Some(Omission::LeaseFromReply) {
                leadership.ticks_until_lease_end = clock_speed.lease_ticks(omitted_rule);
            }
            leadership.promised_members = leadership.promised_members.with_member(from);
        }
        leadership.commit(&self.log, omitted_rule);
    }

    /// Begins a lease round, which other nodes answer with a promise.
    pub(crate) fn begin_lease_round(&mut self, clock_speed: ClockSpeed, omitted_rule: Option<Omission>) {
        if let Role::Master(leadership) = &mut self.role {
            leadership.lease_round += 1;
            leadership.ticks_until_lease_end = clock_speed.lease_ticks(omitted_rule);
            leadership.promised_members = Incarnations::default();
        }
    }

    /// Proposes another in-sync set.
    pub(crate) fn propose(&mut self, members: Incarnations, omitted_rule: Option<Omission>) {
        if let Role::Master(leadership) = &mut self.role {
            leadership.proposed_members = Some(members);
            leadership.commit(&self.log, omitted_rule);
        }
    }

    /// Applies a state that the group has decided.
    pub(crate) fn learn_state(&mut self, state: &ReplicaSetState, omitted_rule: Option<Omission>) {
        if state.epoch > self.epoch {
            let is_promoted = self.role == Role::Candidate
                && state.master == self.incarnation
                && state.epoch == self.epoch + 1;
            if is_promoted {
                self.become_master(state, omitted_rule);
                return;
            }
            self.epoch = state.epoch;
            if matches!(self.role, Role::Master(_) | Role::Candidate) {
                self.role = Role::Replica;
            }
        } else if let Role::Master(leadership) = &mut self.role
            && state.epoch == self.epoch
            && state.version > leadership.version
        {
            leadership.decided_members = state.members;
            leadership.version = state.version;
            leadership.proposed_members = None;
            leadership.commit(&self.log, omitted_rule);
        } else if self.role == Role::Candidate
            && state.epoch == self.epoch
            && state.version > 0
            && !state.members.contains(self.incarnation)
        {
            // The master has removed this node from the set. A late request of the node may still begin an epoch, but
            // only a candidate becomes that epoch's master.
            self.role = Role::Replica;
        }
    }

    /// Lets one tick pass by this node's clock.
    pub(crate) fn tick(&mut self) {
        self.ticks_until_promise_end = self.ticks_until_promise_end.saturating_sub(1);
        if let Role::Master(leadership) = &mut self.role {
            leadership.ticks_until_lease_end = leadership.ticks_until_lease_end.saturating_sub(1);
        }
    }

    /// Ends the process. Whether it loses its data is decided at the restart.
    pub(crate) fn crash(&mut self, omitted_rule: Option<Omission>) {
        self.is_up = false;
        if omitted_rule != Some(Omission::RestartAsMaster) || !matches!(self.role, Role::Master(_)) {
            self.role = match self.role {
                Role::Syncing => Role::Syncing,
                _ => Role::Replica,
            };
        }
    }

    /// Starts the process again after a crash.
    pub(crate) fn restart(&mut self, durability: Durability, promise: u8, omitted_rule: Option<Omission>) {
        self.is_up = true;
        match durability {
            Durability::Memory => {
                self.drop_data();
                self.ticks_until_promise_end = 0;
                if let Role::Master(leadership) = &mut self.role {
                    leadership.acknowledged_lengths.clear();
                    (leadership.committed_length, leadership.min_serving_length) = (0, 0);
                } else {
                    self.role = Role::Replica;
                    self.epoch = 0;
                }
            }
            Durability::Disk => {
                self.ticks_until_promise_end =
                    if omitted_rule == Some(Omission::ForgetPromiseAtRestart) { 0 } else { promise };
                if omitted_rule == Some(Omission::ForgetEpochAtRestart) {
                    self.epoch = 0;
                }
            }
        }
    }

    fn drop_data(&mut self) {
        self.incarnation.generation += 1;
        self.log = Log::default();
    }

    /// Records that the lease was checked before a read.
    pub(crate) fn check_lease(&mut self, omitted_rule: Option<Omission>) {
        if omitted_rule == Some(Omission::CheckLeaseOnce)
            && self.serves_reads(omitted_rule)
            && let Role::Master(leadership) = &mut self.role
        {
            leadership.had_lease = true;
        }
    }
}

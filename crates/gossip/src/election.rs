//! Elections: how a replica takes over from its failed master, and how masters vote.
//!
//! Candidate: when the master is FAIL, or a manual failover is ready, the replica waits for the election delay, during
//! which the FAIL spreads and the replicas exchange offsets, plus one rank delay per better replica. A replica that has
//! heard from all other replicas since the failure and ranks first does not wait. It then takes a new epoch, saves it,
//! and requests the vote of every master. A FAIL message precedes the request in case the voter has not seen the FAIL
//! yet.
//!
//! Many masters can fail together (a rack), and each of their shards needs an epoch of its own. If other masters fail
//! as well, a candidate takes the next epoch that is congruent to the index of its master among all masters. Candidates
//! with the same epoch would split the votes; a candidate that sees another one in its epoch moves on to its shard's
//! next epoch at once. A master that has not voted is asked again from time to time, because it may have been
//! disconnected, or did not know yet that this node is a replica or that its master gave a slot away. If another node
//! took a newer epoch or won this one, the candidate starts over in a new epoch, because Redis votes only in the newest
//! epoch. Votes of earlier epochs still count, each in its own epoch. A candidate defers to a better replica of the
//! same master that also asks for votes.
//!
//! A majority of the masters with slots elects the candidate: both of the masters at the time of the request and of
//! those when the votes are counted. (Redis checks only the latter. If two masters are replaced during the election,
//! they are briefly replicas and their slots have no owner here. With their two votes the candidate would have a
//! majority of the three remaining masters, and another candidate could win the same epoch with the votes of those
//! three.)
//!
//! Voter: one vote per epoch ([`crate::votes`]), saved before it is sent. A master refuses its vote if the candidate's
//! master is not FAIL (unless the failover is forced), if it voted for another replica of that master within twice the
//! node timeout, if a slot of the claim has an owner with a newer epoch, if it was a candidate in the epoch itself or
//! another node claims slots under it, or if it may itself have been replaced ([`crate::serving`]). A node that already
//! has the vote gets it again on request. The header of a vote carries the epoch that the vote is for.

use std::collections::BTreeSet;
use std::time::Duration;

use clock::Instant;
use slot_routing::{Epoch, NodeId, ReplOffset, Slot};

use crate::contract::ReplicationSource;
use crate::event::{CannotFailoverReason, ElectionEvent, ElectionResetReason, VoteDenial};
use crate::machine::Gossip;
use crate::node::{Node, NodeHealth, Role, has_data};
use crate::timeline::{Candidate, Ineligibility, TimelineEntry};
use crate::wire::{Header, MessageBody, MessageFlags, Packet};

/// Base interval for repeating vote requests, plus up to as much random delay. The randomness separates two candidates
/// that keep making each other's epoch obsolete.
const REPEAT_INTERVAL: Duration = Duration::from_millis(100);

/// The current candidacy, and whether the log already says why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Election {
    pub(crate) candidacy: Option<Candidacy>,
    /// Limits the log to one line per obstacle instead of one per step.
    obstacle_logged: bool,
}

/// One attempt to be elected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidacy {
    /// When to request votes first.
    at: Instant,
    rank: u32,
    manual: bool,
    /// The epochs in which votes were requested, newest last; empty before the first request.
    rounds: Vec<Round>,
    /// When to repeat the request to masters that have not voted.
    repeat_at: Instant,
    /// Whether the repetition was rescheduled because the newest epoch may be lost.
    rescheduled: bool,
}

/// The votes received in one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Round {
    epoch: Epoch,
    /// The majority at the time of the request.
    quorum: usize,
    votes: BTreeSet<NodeId>,
}

/// Maximum number of epochs remembered per candidacy. More are in flight only if the bus loses most of its messages.
const MAX_ROUNDS: usize = 16;

impl Election {
    pub(crate) fn abandon(&mut self) {
        *self = Self::default();
    }
}

impl Gossip {
    /// The master that this replica may try to replace now, and whether an operator requested it.
    fn failover_target(&self) -> Option<(NodeId, bool)> {
        let me = self.myself();
        let master = self.state.nodes.get(&me.master()?)?;
        let manual = self.manual_failover.is_ready();
        // A master that declared itself FAIL needs a successor with data.
        let fit = !master.declared_fail || has_data(self.state.replication.offset);
        let wanted = manual || (master.has_failed() && !me.no_failover && fit);
        (wanted && self.state.slots.count(master.id) > 0).then_some((master.id, manual))
    }

    /// Advances the election as far as the time and the votes allow.
    pub(crate) fn step_election(&mut self) {
        let Some((master, manual)) = self.failover_target() else {
            self.election.abandon();
            return;
        };
        if !manual && self.is_data_too_old() {
            // This also ends a candidacy that was scheduled for a manual failover that has timed out.
            self.election.candidacy = None;
            return;
        }
        match &self.election.candidacy {
            None => self.schedule_election(master, manual),
            Some(candidacy) if manual && !candidacy.manual => {
                if let Some(round) = candidacy.rounds.last() {
                    self.log(ElectionEvent::Reset {
                        epoch: round.epoch,
                        why: ElectionResetReason::ManualFailover,
                    });
                }
                self.schedule_election(master, manual);
            }
            Some(candidacy) if candidacy.rounds.is_empty() && !manual => self.update_rank(master),
            Some(_) => {}
        }
        self.advance_election(master);
    }

    fn advance_election(&mut self, master: NodeId) {
        let Some(candidacy) = &self.election.candidacy else { return };
        if self.state.now < candidacy.at {
            return;
        }
        let (began, repeat_at, rescheduled, manual) =
            (candidacy.at, candidacy.repeat_at, candidacy.rescheduled, candidacy.manual);
        if let Some(epoch) = self.won_epoch() {
            self.log(ElectionEvent::Won(epoch));
            self.take_over(epoch);
            return;
        }
        let Some(epoch) = candidacy.rounds.last().map(|round| round.epoch) else {
            self.request_votes(master);
            return;
        };
        if self.state.now >= began + self.state.config.auth_timeout() {
            let (votes, needed) = self.count_votes();
            let reason = CannotFailoverReason::NotConfirmed { votes, needed };
            self.record(master, TimelineEntry::Obstacle(reason));
            self.log(ElectionEvent::CannotStand(reason));
            self.log(ElectionEvent::Expired(epoch));
            self.schedule_election(master, manual);
        } else if self.state.now >= repeat_at {
            if self.defer_to_better_replica() {
                // The deferral has rescheduled the next request.
            } else if self.is_epoch_contested(epoch) {
                self.request_votes(master);
            } else {
                self.schedule_repeated_request();
                for voter in self.linked() {
                    self.repeat_vote_request(voter);
                }
            }
        } else if !rescheduled {
            self.hurry_if_epoch_claimed(epoch);
        }
    }

    /// If another node claims slots under our epoch or a newer one, Redis nodes no longer vote in ours, so this hurries
    /// the move to a new epoch.
    fn hurry_if_epoch_claimed(&mut self, epoch: Epoch) {
        let winner = self.state.nodes.values().find(|node| node.config_epoch >= epoch);
        let Some((by, theirs)) = winner.map(|node| (node.id, node.config_epoch)) else { return };
        self.log(ElectionEvent::Reset { epoch, why: ElectionResetReason::Claim { by, epoch: theirs } });
        // A vote that was cast earlier may still arrive.
        let grace = self.state.config.election_delay() / 2;
        let chance = Duration::from_micros(self.random_below(grace.as_micros() as u64));
        let at = self.state.now + grace + chance;
        let Some(candidacy) = &mut self.election.candidacy else { return };
        (candidacy.rescheduled, candidacy.repeat_at) = (true, candidacy.repeat_at.min(at));
    }

    /// The epoch in which a majority has voted for this node.
    fn won_epoch(&self) -> Option<Epoch> {
        let rounds = &self.election.candidacy.as_ref()?.rounds;
        let quorum = self.quorum();
        let won = |round: &&Round| self.valid_votes(round) >= quorum.max(round.quorum);
        rounds.iter().find(won).map(|round| round.epoch)
    }

    /// Number of votes in the newest epoch, and number needed.
    fn count_votes(&self) -> (usize, usize) {
        let round = self.election.candidacy.as_ref().and_then(|candidacy| candidacy.rounds.last());
        round.map_or((0, 0), |round| (self.valid_votes(round), self.quorum().max(round.quorum)))
    }

    fn valid_votes(&self, round: &Round) -> usize {
        round.votes.iter().filter(|voter| self.is_voter(**voter)).count()
    }

    /// Schedules a candidacy and sends our offset to the other replicas.
    fn schedule_election(&mut self, master: NodeId, manual: bool) {
        let rank = if manual { 0 } else { self.rank() };
        let delay = if manual {
            Duration::ZERO
        } else {
            let fixed = self.state.config.election_delay();
            let chance = self.random_below(fixed.as_micros() as u64);
            fixed + Duration::from_micros(chance) + self.state.config.rank_delay() * rank
        };
        self.election.obstacle_logged = false;
        let best = !manual && self.is_certainly_best(master);
        let delay = if best { Duration::ZERO } else { delay };
        let at = self.state.now + delay;
        self.election.candidacy =
            Some(Candidacy { at, rank, manual, rounds: Vec::new(), repeat_at: at, rescheduled: false });
        let offset = self.state.replication.offset.0;
        self.rank_candidates(master);
        self.record(master, TimelineEntry::Ballot { rank, offset });
        if !manual {
            let primary_rank = self.state.nodes.failed_voters().filter(|failed| failed.id < master).count();
            self.log(ElectionEvent::Scheduled { delay, rank, primary_rank, offset });
            if best {
                self.log(ElectionEvent::BestReplica);
            }
            self.send_offset_to_siblings();
        }
    }

    /// Whether no other replica can have more data: all rivals were heard after the master failed, and none ranks
    /// before us.
    fn is_certainly_best(&self, master: NodeId) -> bool {
        let Some(NodeHealth::Failed { since }) = self.state.nodes.get(&master).map(|node| node.health) else {
            return false;
        };
        let heard = |node: &Node| node.contact.last_message.is_some_and(|at| at >= since);
        self.rank() == 0 && self.rivals().all(heard)
    }

    /// The other replicas of our master that may start an election.
    fn rivals(&self) -> impl Iterator<Item = &Node> {
        let master = self.myself().master();
        self.state.nodes.values().filter(move |node| {
            node.id != self.state.me
                && node.master() == master
                && node.is_healthy()
                && !node.no_failover
                && node.handshake.is_none()
        })
    }

    /// Number of rivals that rank before us: a larger offset, or the same offset and a smaller id.
    fn rank(&self) -> u32 {
        self.rivals().filter(|rival| self.ranks_before_us(rival.id, rival.offset)).count() as u32
    }

    fn ranks_before_us(&self, id: NodeId, offset: ReplOffset) -> bool {
        (offset, std::cmp::Reverse(id)) > (self.state.replication.offset, std::cmp::Reverse(self.state.me))
    }

    /// Offsets arrived since the candidacy was scheduled: defers to better replicas, or starts at once if this replica
    /// is now the best.
    fn update_rank(&mut self, master: NodeId) {
        let (rank, best, now) = (self.rank(), self.is_certainly_best(master), self.state.now);
        let step = self.state.config.rank_delay();
        let Some(candidacy) = &mut self.election.candidacy else { return };
        if rank > candidacy.rank {
            let added = step * (rank - candidacy.rank);
            candidacy.at += added;
            candidacy.rank = rank;
            self.log(ElectionEvent::RankChanged { rank, added });
        } else if best && candidacy.at > now {
            (candidacy.at, candidacy.rank) = (now, rank);
            self.log(ElectionEvent::BecameBest);
        }
    }

    fn request_votes(&mut self, master: NodeId) {
        let (epoch, quorum) = (self.choose_epoch(master), self.quorum());
        self.state.current_epoch = epoch;
        // Reserves our own vote: once elected, this node is a voter, and must not vote for a late request in this
        // epoch.
        self.votes.record(epoch, self.state.me);
        self.save_before_sending();
        let Some(candidacy) = &mut self.election.candidacy else { return };
        if candidacy.rounds.len() == MAX_ROUNDS {
            candidacy.rounds.remove(0);
        }
        candidacy.rounds.push(Round { epoch, quorum, votes: BTreeSet::new() });
        candidacy.rescheduled = false;
        self.record(master, TimelineEntry::VotesRequested { epoch });
        self.log(ElectionEvent::Started(epoch));
        self.schedule_repeated_request();
        for voter in self.linked() {
            self.request_vote(voter, master);
        }
    }

    /// The next epoch; if masters of other shards fail as well, the next epoch that is reserved for this shard.
    fn choose_epoch(&self, master: NodeId) -> Epoch {
        let next = self.state.current_epoch.next();
        let fails = |id: &NodeId| {
            let node = self.state.nodes.get(id);
            node.is_some_and(|node| !node.is_healthy() || node.contact.refused_since.is_some())
        };
        let asked_before =
            self.election.candidacy.as_ref().is_some_and(|candidacy| !candidacy.rounds.is_empty());
        if !asked_before && !self.state.slots.owners().any(|(id, _)| id != master && fails(&id)) {
            return next;
        }
        let shards = self.voters().max(1) as u64;
        let place = self.state.slots.owners().filter(|(id, _)| *id < master).count() as u64;
        let ahead = (place + shards - next.0 % shards) % shards;
        Epoch(next.0 + ahead)
    }

    fn request_vote(&mut self, voter: NodeId, master: NodeId) {
        let Some(manual) = self.election.candidacy.as_ref().map(|candidacy| candidacy.manual) else { return };
        // A FAIL this recent cannot have been cleared by any node.
        let fresh = |since: Instant| self.state.now.since(since) < self.state.config.node_timeout / 2;
        let condition = self.state.nodes.get(&master).map(|node| node.health);
        let failed = matches!(condition, Some(NodeHealth::Failed { since }) if fresh(since));
        if failed && !manual && self.is_voter(voter) {
            self.send(voter, MessageBody::Fail(master));
        }
        let request = self.vote_request(manual);
        self.send_packet(voter, request);
    }

    fn vote_request(&mut self, manual: bool) -> Packet {
        let mut header = self.header();
        if manual {
            header.message_flags |= MessageFlags::FORCE_ACK;
        }
        Packet { header, body: MessageBody::AuthRequest }
    }

    /// Whether voters may refuse `epoch` by now: a newer epoch exists, the epoch has a winner, or another candidate
    /// uses it as well.
    fn is_epoch_contested(&self, epoch: Epoch) -> bool {
        let rescheduled = self.election.candidacy.as_ref().is_some_and(|candidacy| candidacy.rescheduled);
        rescheduled
            || self.state.current_epoch > epoch
            || self.state.nodes.values().any(|node| node.config_epoch >= epoch)
    }

    /// Defers to a better replica that appeared after the candidacy was scheduled, so that it can ask the remaining
    /// voters first. Votes in flight can still elect this node.
    fn defer_to_better_replica(&mut self) -> bool {
        let (rank, step, now) = (self.rank(), self.state.config.rank_delay(), self.state.now);
        let Some(candidacy) = self.election.candidacy.as_mut().filter(|candidacy| !candidacy.manual) else {
            return false;
        };
        if rank <= candidacy.rank {
            return false;
        }
        let added = step * (rank - candidacy.rank);
        (candidacy.rank, candidacy.repeat_at) = (rank, now + added);
        self.log(ElectionEvent::RankChanged { rank, added });
        true
    }

    fn schedule_repeated_request(&mut self) {
        let chance = Duration::from_micros(self.random_below(REPEAT_INTERVAL.as_micros() as u64));
        if let Some(candidacy) = &mut self.election.candidacy {
            candidacy.repeat_at = self.state.now + REPEAT_INTERVAL + chance;
        }
    }

    /// Repeats the vote request to a voter that has not voted and still may.
    pub(crate) fn repeat_vote_request(&mut self, voter: NodeId) {
        let Some(master) = self.myself().master() else { return };
        let round = self.election.candidacy.as_ref().and_then(|candidacy| candidacy.rounds.last());
        let open = round.is_some_and(|round| {
            !self.is_epoch_contested(round.epoch) && !round.votes.contains(&voter) && self.is_voter(voter)
        });
        if open && !self.defer_to_better_replica() {
            // The first write may not be durable yet.
            self.save_before_sending();
            self.request_vote(voter, master);
        }
    }

    /// Another replica requests votes.
    fn on_rival_request(&mut self, header: &Header) {
        let sibling = header.replica_of == self.myself().master();
        let better = sibling && self.ranks_before_us(header.sender, header.offset);
        let (now, timeout) = (self.state.now, self.state.config.auth_timeout());
        let Some(candidacy) = &mut self.election.candidacy else { return };
        let Some(round) = candidacy.rounds.last() else { return };
        if better && !candidacy.manual {
            // Our voters do not vote for the better replica within this time. Votes in flight can still elect this
            // node.
            (candidacy.rescheduled, candidacy.repeat_at) = (true, now + timeout);
        } else if round.epoch == header.current_epoch && !candidacy.rescheduled {
            // The votes may be split, so each candidate moves on to an epoch of its shard.
            (candidacy.rescheduled, candidacy.repeat_at) = (true, now);
        }
    }

    pub(crate) fn on_auth_ack(&mut self, header: &Header) {
        let (voter, epoch) = (header.sender, header.current_epoch);
        let counts = self.is_voter(voter);
        let master = self.myself().master();
        let Some(candidacy) = &mut self.election.candidacy else { return };
        let Some(round) = candidacy.rounds.iter_mut().find(|round| round.epoch == epoch) else { return };
        // If a Redis node was elected in this epoch, it has not recorded a vote in it and may send one, although the
        // others voted for that node.
        if counts
            && header.own_epoch() < epoch
            && round.votes.insert(voter)
            && let Some(master) = master
        {
            self.record(master, TimelineEntry::VoteReceived { voter });
        }
    }

    /// Records the ranking of the replicas of `master`, as this node knows it, in the failover timeline.
    pub(crate) fn rank_candidates(&mut self, master: NodeId) {
        let Some(declared_fail) = self.state.nodes.get(&master).map(|master| master.declared_fail) else {
            return;
        };
        let ineligibility = |node: &Node| {
            let offset = if node.id == self.state.me { self.state.replication.offset } else { node.offset };
            match node {
                node if !node.is_healthy() => Some(Ineligibility::Down),
                node if node.no_failover => Some(Ineligibility::NoFailover),
                _ if declared_fail && !has_data(offset) => Some(Ineligibility::Empty),
                _ => None,
            }
        };
        let replicas = self.state.nodes.values().filter(|node| node.master() == Some(master));
        let mut candidates: Vec<Candidate> = replicas
            .map(|node| {
                let offset =
                    if node.id == self.state.me { self.state.replication.offset } else { node.offset };
                Candidate { node: node.id, offset: offset.0, rank: None, ineligibility: ineligibility(node) }
            })
            .collect();
        candidates.sort_by_key(|one| (one.ineligibility.is_some(), std::cmp::Reverse(one.offset), one.node));
        for (rank, candidate) in (0..).zip(candidates.iter_mut()) {
            candidate.rank = candidate.ineligibility.is_none().then_some(rank);
        }
        self.record(master, TimelineEntry::Ranking(candidates));
    }

    /// Takes over the master's slots under `epoch`.
    pub(crate) fn take_over(&mut self, epoch: Epoch) {
        let Some(old) = self.myself().master() else { return };
        self.set_role(self.state.me, Role::Master);
        let me = self.state.myself_mut();
        me.config_epoch = me.config_epoch.max(epoch);
        for slot in self.state.slots.release_all(old).iter() {
            self.state.slots.assign(slot, self.state.me);
        }
        self.drop_invalid_moves();
        self.record(old, TimelineEntry::Replacement { by: self.state.me, epoch });
        self.election.abandon();
        self.end_manual_failover();
        self.service.allow_serving(self.state.now);
        self.save_before_claiming();
        self.todo.publish = true;
        self.broadcast_pong();
    }

    pub(crate) fn election_deadline(&self) -> Option<Instant> {
        let candidacy = self.election.candidacy.as_ref()?;
        Some(match candidacy.rounds.is_empty() {
            true => candidacy.at,
            // Voters refuse other replicas of the same master for about as long. (Redis waits twice this time before
            // the next attempt.)
            false => candidacy.repeat_at.min(candidacy.at + self.state.config.auth_timeout()),
        })
    }

    /// Whether the data is too old to fail over with: the last contact with the master exceeds the validity limit.
    fn is_data_too_old(&mut self) -> bool {
        let factor = self.state.config.replica_validity_factor;
        let master = self.myself().master().and_then(|id| self.state.nodes.get(&id));
        // A master that declared itself FAIL has no newer data.
        if factor == 0 || master.is_some_and(|master| master.declared_fail) {
            return false;
        }
        let age = match self.state.replication.source {
            ReplicationSource::Streaming { last_heard } => Some(self.state.now.since(last_heard)),
            ReplicationSource::Lost { since } => Some(self.state.now.since(since)),
            ReplicationSource::Never => None,
        };
        // The time needed to detect the failure does not count against the replica.
        let limit = self.state.config.node_timeout * (factor + 1) + self.state.config.repl_ping_period;
        let too_old = age.is_none_or(|age| age > limit);
        if too_old && !self.election.obstacle_logged {
            self.election.obstacle_logged = true;
            let reason = CannotFailoverReason::DataTooOld { age };
            if let Some(master) = self.myself().master() {
                self.record(master, TimelineEntry::Obstacle(reason));
            }
            self.log(ElectionEvent::CannotStand(reason));
        }
        too_old
    }

    pub(crate) fn on_auth_request(&mut self, header: &Header) {
        if !self.is_voter(self.state.me) {
            self.on_rival_request(header);
            return;
        }
        let (candidate, epoch) = (header.sender, header.current_epoch);
        match self.check_vote_request(header) {
            Err(why) => {
                if let Some(master) = header.replica_of {
                    self.record(master, TimelineEntry::RefusedVote { candidate, epoch, why });
                }
                self.log(ElectionEvent::VoteDenied { candidate, epoch, why });
                // The candidate will ask again; by then either it knows the newer owner or we do.
                match why {
                    VoteDenial::StaleSlot { .. } => self.send_update_if_outdated(candidate, header),
                    VoteDenial::MayBeReplaced => self.ping_unconfirmed_voters(),
                    _ => {}
                }
            }
            Ok(master) => {
                if !self.votes.is_given(epoch) {
                    self.votes.record(epoch, candidate);
                    self.state.nodes.get_mut(&master).expect("judged").last_vote =
                        Some((candidate, self.state.now));
                    self.rank_candidates(master);
                    self.record(master, TimelineEntry::Vote { candidate, epoch });
                    self.log(ElectionEvent::VoteGranted { candidate, epoch });
                }
                // Also when repeating a vote: the first write may not be durable yet.
                self.save_before_sending();
                let header = Header { current_epoch: epoch, ..self.header() };
                self.send_packet(candidate, Packet { header, body: MessageBody::AuthAck });
            }
        }
    }

    /// Checks whether the candidate may get our vote, and returns the master that it replaces.
    fn check_vote_request(&self, header: &Header) -> Result<NodeId, VoteDenial> {
        let (candidate, epoch) = (header.sender, header.current_epoch);
        let forgotten = self.votes.is_before_start(epoch);
        if !forgotten && !self.votes.can_give(epoch, candidate) {
            return Err(VoteDenial::AlreadyVoted);
        }
        // Another node, or this one, already claims slots under the epoch. Our header would then carry a claim newer
        // than the epoch of the vote.
        let taken = self.state.nodes.values().any(|node| node.config_epoch == epoch);
        if forgotten || taken || epoch <= self.myself().config_epoch {
            return Err(VoteDenial::OldEpoch { current: self.state.current_epoch });
        }
        // A node that owns slots was already elected. A missing master means that its role change has not arrived yet.
        if header.replica_of.is_none() || self.is_voter(candidate) {
            return Err(VoteDenial::NotAReplica);
        }
        let master =
            header.replica_of.and_then(|id| self.state.nodes.get(&id)).ok_or(VoteDenial::MasterUnknown)?;
        let forced = header.message_flags.has(MessageFlags::FORCE_ACK);
        if !master.has_failed() && !forced && !self.self_fail.should_yield_to(header, self.state.me) {
            return Err(VoteDenial::MasterIsUp);
        }
        if self.may_have_been_replaced() {
            return Err(VoteDenial::MayBeReplaced);
        }
        let pause = self.state.config.vote_pause();
        if let Some((other, voted)) = master.last_vote
            && other != candidate
            && self.state.now < voted + pause
        {
            return Err(VoteDenial::VotedForMasterRecently { wait: (voted + pause).since(self.state.now) });
        }
        let outdated = |slot: &Slot| {
            let owner = self.state.slots.owner(*slot).and_then(|owner| self.state.nodes.get(&owner));
            owner.is_some_and(|owner| owner.config_epoch > header.config_epoch)
        };
        match header.slots.iter().find(outdated) {
            Some(slot) => Err(VoteDenial::StaleSlot { slot }),
            None => Ok(master.id),
        }
    }
}

//! How a replica takes over from its failed master.
//!
//! The candidate side: when our master is FAIL (or a manual failover is ready), wait the election delay
//! in which the FAIL spreads and the replicas tell each other their offsets, plus a delay per better
//! replica; then take a new epoch, save it, and ask every master for its vote. A master that has not given it is asked
//! again from time to time: it may have had no link with us, or not have heard yet that our master failed, that we
//! are a replica, or that our master gave a slot away. If another node took a newer epoch or won this one meanwhile, no
//! master votes in ours any more, and we ask in a new one. A majority of the masters
//! with slots makes us the new owner of our master's slots under that epoch: of those when we asked, and of
//! those when the votes are counted. (Redis looks at the latter only. Two masters that were replaced while
//! we ask are briefly replicas whose slots have no owner here; with their two votes a candidate would pass
//! three that are left, and another candidate be elected by those in the same epoch.)
//!
//! The voter side: one vote per epoch, saved before it leaves; none for a replica whose master is not
//! FAIL here (unless forced), none about the same master within twice the node timeout but for the same replica, none
//! for a claim that a newer one has outdated; none in an epoch in which we stood ourselves. The node that has our vote
//! gets it again when it asks again.

use std::collections::BTreeSet;
use std::time::Duration;

use clock::{Instant, Millis};
use slot_routing::{Epoch, NodeId, Slot};

use crate::contract::Source;
use crate::event::{Denial, ElectionEvent, Hindrance};
use crate::machine::Gossip;
use crate::node::{Node, Role, has_data};
use crate::timeline::Ballot;
use crate::wire::{Body, Header, MessageFlags, Packet};

/// How soon masters that have not voted are asked again, and by how much later at most: of two candidates that put each
/// other's epochs out of date, one is then alone for long enough.
const REPEAT: Duration = Duration::from_millis(100);

/// The candidacy, if there is one, and what was last said about why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Election {
    pub(crate) candidacy: Option<Candidacy>,
    /// So that the log says once, not at every step, why we do not stand.
    hindered: bool,
}

/// One attempt to be elected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidacy {
    /// When to ask.
    at: Instant,
    rank: u32,
    manual: bool,
    /// The epoch that we asked under, once we did, and how many votes made a majority then.
    epoch: Option<Epoch>,
    quorum: usize,
    /// When to ask again the masters that have not voted.
    repeat_at: Instant,
    votes: BTreeSet<NodeId>,
    expired: bool,
}

impl Election {
    pub(crate) fn abandon(&mut self) {
        *self = Self::default();
    }
}

impl Gossip {
    /// The master whose place we may try to take now, and whether by an operator's wish.
    fn contested(&self) -> Option<(NodeId, bool)> {
        let me = self.myself();
        let master = self.nodes.get(&me.master()?)?;
        let manual = self.manual.is_ready();
        // A master that resigned wants a successor with data.
        let fit = !master.resigned || has_data(self.replication.offset);
        let wanted = manual || (master.has_failed() && !me.no_failover && fit);
        (wanted && self.slots.count(master.id) > 0).then_some((master.id, manual))
    }

    /// Goes as far as time and votes allow.
    pub(crate) fn step_election(&mut self) {
        let Some((master, manual)) = self.contested() else {
            self.election.abandon();
            return;
        };
        if !manual && self.is_data_too_old() {
            // Also what was planned for a manual failover that ended meanwhile.
            self.election.candidacy = None;
            return;
        }
        let now = self.now;
        match &self.election.candidacy {
            None => self.stand(master, manual),
            Some(candidacy) if now >= self.retry_at(candidacy) || (manual && !candidacy.manual) => {
                self.stand(master, manual);
            }
            Some(candidacy) if candidacy.epoch.is_none() && !manual => self.update_rank(),
            Some(_) => {}
        }
        self.advance(master);
    }

    fn advance(&mut self, master: NodeId) {
        let Some(candidacy) = self.election.candidacy.clone() else { return };
        if self.now < candidacy.at || candidacy.expired {
            return;
        }
        let Some(epoch) = candidacy.epoch else {
            self.ask_for_votes(master);
            return;
        };
        let needed = self.quorum().max(candidacy.quorum);
        let votes = candidacy.votes.iter().filter(|voter| self.is_voter(**voter)).count();
        if votes >= needed {
            self.log(ElectionEvent::Won(epoch));
            self.take_over(epoch);
        } else if self.now >= candidacy.at + self.config.auth_timeout() {
            self.log(ElectionEvent::CannotStand(Hindrance::NotConfirmed { votes, needed }));
            self.log(ElectionEvent::Expired(epoch));
            self.election.candidacy.as_mut().expect("read above").expired = true;
        } else if self.now >= candidacy.repeat_at {
            if self.is_overtaken(epoch) {
                self.ask_for_votes(master);
            } else {
                self.plan_to_ask_again();
                for voter in self.linked() {
                    self.ask_for_vote_again(voter);
                }
            }
        }
    }

    /// Plans a candidacy, and tells the other replicas our offset.
    fn stand(&mut self, master: NodeId, manual: bool) {
        let rank = if manual { 0 } else { self.rank() };
        let delay = if manual {
            Duration::ZERO
        } else {
            let fixed = self.config.election_delay();
            let chance = self.random_below(fixed.as_micros() as u64);
            fixed + Duration::from_micros(chance) + self.config.rank_delay() * rank
        };
        let at = self.now + delay;
        self.election.hindered = false;
        let votes = BTreeSet::new();
        self.election.candidacy = Some(Candidacy {
            at,
            rank,
            manual,
            epoch: None,
            quorum: 0,
            repeat_at: at,
            votes,
            expired: false,
        });
        let offset = self.replication.offset.0;
        let scheduled = self.wall;
        self.timeline.open(master).ballot(Ballot { scheduled, rank, offset, asked: None, votes: Vec::new() });
        if !manual {
            self.log(ElectionEvent::Scheduled { delay, rank, offset });
            self.pong_siblings();
        }
    }

    /// How many replicas of our master come before us: a higher offset, or the same and a smaller id.
    fn rank(&self) -> u32 {
        let mine = (self.replication.offset, std::cmp::Reverse(self.me));
        let master = self.myself().master();
        let rival = |node: &&Node| {
            node.id != self.me
                && node.master() == master
                && node.is_well()
                && !node.no_failover
                && node.handshake.is_none()
        };
        let better = |node: &&Node| (node.offset, std::cmp::Reverse(node.id)) > mine;
        self.nodes.values().filter(rival).filter(better).count() as u32
    }

    /// The others' offsets came in since we planned: a better replica goes first. Never hurries.
    fn update_rank(&mut self) {
        let rank = self.rank();
        let step = self.config.rank_delay();
        let Some(candidacy) = &mut self.election.candidacy else { return };
        if rank > candidacy.rank {
            let added = step * (rank - candidacy.rank);
            candidacy.at += added;
            candidacy.rank = rank;
            self.log(ElectionEvent::RankChanged { rank, added });
        }
    }

    fn ask_for_votes(&mut self, master: NodeId) {
        self.current_epoch = self.current_epoch.next();
        let (epoch, quorum) = (self.current_epoch, self.quorum());
        // Elected, we shall be a voter: what others ask for late in this epoch they do not get.
        (self.last_vote_epoch, self.last_vote) = (epoch, Some(self.me));
        self.save_before_sending();
        let candidacy = self.election.candidacy.as_mut().expect("the caller has it");
        (candidacy.epoch, candidacy.quorum) = (Some(epoch), quorum);
        candidacy.votes.clear();
        let manual = candidacy.manual;
        let wall = self.wall;
        self.update_ballot(master, |ballot| (ballot.asked, ballot.votes) = (Some((epoch, wall)), Vec::new()));
        self.log(ElectionEvent::Started(epoch));
        self.plan_to_ask_again();
        let request = self.vote_request(manual);
        self.broadcast(&request);
    }

    fn vote_request(&mut self, manual: bool) -> Packet {
        let mut header = self.header();
        if manual {
            header.message_flags |= MessageFlags::FORCE_ACK;
        }
        Packet { header, body: Body::AuthRequest }
    }

    /// Whether nobody votes in `epoch` any more, or should: it is over, or has its winner.
    fn is_overtaken(&self, epoch: Epoch) -> bool {
        self.current_epoch > epoch || self.nodes.values().any(|node| node.config_epoch >= epoch)
    }

    fn plan_to_ask_again(&mut self) {
        let chance = Duration::from_micros(self.random_below(REPEAT.as_micros() as u64));
        if let Some(candidacy) = &mut self.election.candidacy {
            candidacy.repeat_at = self.now + REPEAT + chance;
        }
    }

    /// Asks `voter` once more, if we have asked, and it has not voted and may.
    pub(crate) fn ask_for_vote_again(&mut self, voter: NodeId) {
        let Some(candidacy) = &self.election.candidacy else { return };
        let open = candidacy.epoch.is_some_and(|epoch| !candidacy.expired && !self.is_overtaken(epoch));
        if open && !candidacy.votes.contains(&voter) && self.is_voter(voter) {
            let request = self.vote_request(candidacy.manual);
            // The first writing may not have ended.
            self.save_before_sending();
            self.send_packet(voter, request);
        }
    }

    pub(crate) fn on_auth_ack(&mut self, header: &Header) {
        let voter = header.sender;
        let counts = self.is_voter(voter);
        let (wall, master): (Millis, _) = (self.wall, self.myself().master());
        let Some(candidacy) = &mut self.election.candidacy else { return };
        let Some(epoch) = candidacy.epoch else { return };
        // A node elected in this epoch has, if it is a Redis, not voted in it before, and the others have voted for
        // that node.
        if counts
            && header.current_epoch >= epoch
            && header.own_epoch() < epoch
            && candidacy.votes.insert(voter)
            && let Some(master) = master
        {
            self.update_ballot(master, |ballot| ballot.votes.push((voter, wall)));
        }
    }

    fn update_ballot(&mut self, master: NodeId, change: impl FnOnce(&mut Ballot)) {
        if let Some(ballot) = self.timeline.open(master).ballots.last_mut() {
            change(ballot);
        }
    }

    /// Makes this node the owner of its master's slots under `epoch`.
    pub(crate) fn take_over(&mut self, epoch: Epoch) {
        let Some(old) = self.myself().master() else { return };
        self.set_role(self.me, Role::Master);
        let me = self.myself_mut();
        me.config_epoch = me.config_epoch.max(epoch);
        for slot in self.slots.release_all(old).iter() {
            self.slots.assign(slot, self.me);
        }
        self.drop_void_moves();
        self.timeline.replaced(old, self.me, epoch, self.wall);
        self.election.abandon();
        self.end_manual_failover();
        self.service.begin_as_new_master(self.now);
        self.save_before_claiming();
        self.todo.publish = true;
        self.broadcast_pong();
    }

    /// When a candidacy that did not succeed makes room for the next. Voters do not vote for another replica of the
    /// same master for twice the node timeout, so after a split vote there is no use in hurry (Redis: twice
    /// the vote timeout); if nobody voted at all, or an operator wants us alone, nothing stands in the way sooner.
    fn retry_at(&self, candidacy: &Candidacy) -> Instant {
        let wait = self.config.auth_timeout();
        candidacy.at + if candidacy.manual || candidacy.votes.is_empty() { wait } else { wait * 2 }
    }

    pub(crate) fn election_deadline(&self) -> Option<Instant> {
        let candidacy = self.election.candidacy.as_ref()?;
        Some(match candidacy.epoch {
            None => candidacy.at,
            Some(_) if !candidacy.expired => {
                candidacy.repeat_at.min(candidacy.at + self.config.auth_timeout())
            }
            Some(_) => self.retry_at(candidacy),
        })
    }

    /// Whether too long ago we last heard from our master to speak for its data.
    fn is_data_too_old(&mut self) -> bool {
        let factor = self.config.replica_validity_factor;
        let master = self.myself().master().and_then(|id| self.nodes.get(&id));
        // There is nothing newer at a master that resigned.
        if factor == 0 || master.is_some_and(|master| master.resigned) {
            return false;
        }
        let age = match self.replication.source {
            Source::Streaming { last_heard } => Some(self.now.since(last_heard)),
            Source::Lost { since } => Some(self.now.since(since)),
            Source::Never => None,
        };
        // The time until the failure was noticed is not held against us.
        let limit = self.config.node_timeout * (factor + 1) + self.config.repl_ping_period;
        let too_old = age.is_none_or(|age| age > limit);
        if too_old && !self.election.hindered {
            self.election.hindered = true;
            self.log(ElectionEvent::CannotStand(Hindrance::DataTooOld { age }));
        }
        too_old
    }

    pub(crate) fn on_auth_request(&mut self, header: &Header) {
        if !self.is_voter(self.me) {
            return;
        }
        let (candidate, epoch) = (header.sender, header.current_epoch);
        match self.judge_candidate(header) {
            Err(why) => {
                self.log(ElectionEvent::VoteDenied { candidate, epoch, why });
                if matches!(why, Denial::StaleSlot { .. }) {
                    // It asks again, and knows then.
                    self.correct(candidate, header);
                }
            }
            Ok(master) => {
                let again = self.last_vote_epoch == epoch;
                if !again {
                    (self.last_vote_epoch, self.last_vote) = (epoch, Some(candidate));
                    self.nodes.get_mut(&master).expect("judged").voted = Some((candidate, self.now));
                    self.timeline.voted(master, candidate, epoch, self.wall);
                    self.log(ElectionEvent::VoteGranted { candidate, epoch });
                }
                // Also when it is given again: the first writing may not have ended.
                self.save_before_sending();
                self.send(candidate, Body::AuthAck);
            }
        }
    }

    /// The master about which the candidate may have our vote.
    fn judge_candidate(&self, header: &Header) -> Result<NodeId, Denial> {
        if header.current_epoch < self.current_epoch {
            return Err(Denial::OldEpoch { current: self.current_epoch });
        }
        if self.last_vote_epoch == self.current_epoch && self.last_vote != Some(header.sender) {
            return Err(Denial::AlreadyVoted);
        }
        let candidate = header.sender;
        // A node that serves slots was elected before this came. Else we may not have heard yet that it is a replica.
        if header.replica_of.is_none() || self.is_voter(candidate) {
            return Err(Denial::NotAReplica);
        }
        let master = header.replica_of.and_then(|id| self.nodes.get(&id)).ok_or(Denial::MasterUnknown)?;
        let forced = header.message_flags.has(MessageFlags::FORCE_ACK);
        if !master.has_failed() && !forced && !self.yields_to(header) {
            return Err(Denial::MasterIsUp);
        }
        let pause = self.config.node_timeout * 2;
        if let Some((other, voted)) = master.voted
            && other != candidate
            && self.now < voted + pause
        {
            return Err(Denial::VotedForMasterRecently { wait: (voted + pause).since(self.now) });
        }
        let outdated = |slot: &Slot| {
            let owner = self.slots.owner(*slot).and_then(|owner| self.nodes.get(&owner));
            owner.is_some_and(|owner| owner.config_epoch > header.config_epoch)
        };
        match header.slots.iter().find(outdated) {
            Some(slot) => Err(Denial::StaleSlot { slot }),
            None => Ok(master.id),
        }
    }
}

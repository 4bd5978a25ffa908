//! How a replica takes over from its failed master.
//!
//! The candidate side: when our master is FAIL (or a manual failover is ready), wait the election delay
//! in which the FAIL spreads and the replicas tell each other their offsets, plus a delay per better
//! replica; then take a new epoch, save it, and ask every master for its vote. A majority of the masters
//! with slots makes us the new owner of our master's slots under that epoch: of those when we asked, and of
//! those when the votes are counted. (Redis looks at the latter only. Two masters that were replaced while
//! we ask are briefly replicas whose slots are nobody's here; with their two votes a candidate would pass
//! three that are left, and another candidate be elected by those in the same epoch.)
//!
//! The voter side: one vote per epoch, saved before it leaves; none for a replica whose master is not
//! FAIL here (unless forced), none about the same master within twice the node timeout, none for a claim
//! that a newer one has outdated.

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
        // Who resigned wants somebody with data.
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
        self.election.candidacy =
            Some(Candidacy { at, rank, manual, epoch: None, quorum: 0, votes, expired: false });
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

    /// The others' offsets came in since we planned: whoever is better goes first. Never hurries.
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
        self.save_before_sending();
        let candidacy = self.election.candidacy.as_mut().expect("the caller has it");
        (candidacy.epoch, candidacy.quorum) = (Some(epoch), quorum);
        let manual = candidacy.manual;
        let wall = self.wall;
        self.update_ballot(master, |ballot| ballot.asked = Some((epoch, wall)));
        self.log(ElectionEvent::Started(epoch));
        let mut header = self.header();
        if manual {
            header.message_flags |= MessageFlags::FORCE_ACK;
        }
        self.broadcast(&Packet { header, body: Body::AuthRequest });
    }

    pub(crate) fn on_auth_ack(&mut self, header: &Header) {
        let voter = header.sender;
        let counts = self.is_voter(voter);
        let (wall, master): (Millis, _) = (self.wall, self.myself().master());
        let Some(candidacy) = &mut self.election.candidacy else { return };
        let Some(epoch) = candidacy.epoch else { return };
        if counts
            && header.current_epoch >= epoch
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

    /// When a candidacy that did not succeed makes room for the next. Voters do not vote about the same
    /// master for twice the node timeout, so after a split vote there is no use in hurry (Redis: twice
    /// the vote timeout); if nobody voted at all, nothing stands in the way sooner.
    fn retry_at(&self, candidacy: &Candidacy) -> Instant {
        let wait = self.config.auth_timeout();
        candidacy.at + if candidacy.votes.is_empty() { wait } else { wait * 2 }
    }

    pub(crate) fn election_deadline(&self) -> Option<Instant> {
        let candidacy = self.election.candidacy.as_ref()?;
        Some(match candidacy.epoch {
            None => candidacy.at,
            Some(_) if !candidacy.expired => candidacy.at + self.config.auth_timeout(),
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
            Err(why) => self.log(ElectionEvent::VoteDenied { candidate, epoch, why }),
            Ok(master) => {
                self.last_vote_epoch = self.current_epoch;
                self.nodes.get_mut(&master).expect("judged").voted_at = Some(self.now);
                self.save_before_sending();
                self.timeline.voted(master, candidate, epoch, self.wall);
                self.log(ElectionEvent::VoteGranted { candidate, epoch });
                self.send(candidate, Body::AuthAck);
            }
        }
    }

    /// The master about which the candidate may have our vote.
    fn judge_candidate(&self, header: &Header) -> Result<NodeId, Denial> {
        if header.current_epoch < self.current_epoch {
            return Err(Denial::OldEpoch { current: self.current_epoch });
        }
        if self.last_vote_epoch == self.current_epoch {
            return Err(Denial::AlreadyVoted);
        }
        let candidate = &self.nodes[&header.sender];
        if candidate.is_master() {
            return Err(Denial::NotAReplica);
        }
        let master = candidate.master().and_then(|id| self.nodes.get(&id)).ok_or(Denial::MasterUnknown)?;
        let forced = header.message_flags.has(MessageFlags::FORCE_ACK);
        if !master.has_failed() && !forced && !self.yields_to(header) {
            return Err(Denial::MasterIsUp);
        }
        let pause = self.config.node_timeout * 2;
        if let Some(voted) = master.voted_at.filter(|voted| self.now < *voted + pause) {
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

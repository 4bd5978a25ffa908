//! How a master votes: at most one vote per epoch, saved before it is sent.
//!
//! Candidates of masters that fail together use different epochs and request votes at different times. A vote in an
//! epoch therefore stays available until it is given, even if this node has voted in newer epochs; electing at most one
//! node per epoch does not require any order of the epochs. `nodes.conf` contains only the newest epoch with a vote, so
//! after a restart no votes are given in that epoch and older ones.
//!
//! A master refuses its vote if the candidate's master is not FAIL (unless the failover is forced), if it voted for
//! another replica of that master within twice the node timeout, if a slot of the claim has an owner with a newer
//! epoch, if it was a candidate in the epoch itself or another node claims slots under the epoch, or if it may itself
//! have been replaced ([`crate::serving`]). A node that already has the vote gets it again on request. The header of a
//! vote carries the epoch in which the vote was given.

use std::collections::BTreeMap;

use clock::Instant;
use slot_routing::{Epoch, NodeId, Slot};

use crate::effect::{Effect, GossipKind};
use crate::event::{ElectionEvent, VoteDenial};
use crate::node::Node;
use crate::outdated_claim::correct_outdated_claim;
use crate::ranking::rank_candidates;
use crate::state::ClusterState;
use crate::timeline::TimelineEntry;
use crate::wire::{Header, MessageFlags};

/// Maximum number of remembered votes. Beyond it, the oldest epochs are closed.
const MAX_REMEMBERED_VOTES: usize = 4096;

/// The votes that this node has given, and the rules for further votes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct GivenVotes {
    /// This node must not vote in this epoch or in any older one.
    closed_epoch: Epoch,
    given_votes: BTreeMap<Epoch, NodeId>,
    /// For each master, the replica that this node last voted for, and when.
    voted_successors: BTreeMap<NodeId, (NodeId, Instant)>,
    /// When this process started; votes from before the start are forgotten.
    started_at: Instant,
}

/// State of other components that matters for a vote request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VoterStatus {
    /// Whether this node has declared itself FAIL in favour of the candidate.
    pub(crate) yields_to_candidate: bool,
    /// Whether another node may have replaced this one. Its vote may then belong to its successor.
    pub(crate) may_be_replaced: bool,
}

impl GivenVotes {
    /// Restores the votes after a restart. Closes the epoch `newest` and all older ones, because it is unknown for
    /// which candidates this node voted in them.
    pub(crate) fn after_restart(newest_epoch: Epoch) -> Self {
        Self { closed_epoch: newest_epoch, ..Self::default() }
    }

    pub(crate) fn on_start(&mut self, now: Instant) {
        self.started_at = now;
    }

    /// The newest epoch in which this node voted, for `nodes.conf`.
    pub(crate) fn newest_voted_epoch(&self) -> Epoch {
        self.given_votes.last_key_value().map_or(self.closed_epoch, |(epoch, _)| *epoch)
    }

    /// Whether this node can vote for `candidate` in `epoch`: it has not voted in that epoch, or has voted for
    /// `candidate`.
    fn can_vote(&self, epoch: Epoch, candidate: NodeId) -> bool {
        self.given_votes.get(&epoch).map_or(epoch > self.closed_epoch, |given| *given == candidate)
    }

    pub(crate) fn record_vote(&mut self, epoch: Epoch, candidate: NodeId) {
        self.given_votes.insert(epoch, candidate);
        if self.given_votes.len() > MAX_REMEMBERED_VOTES
            && let Some((oldest, _)) = self.given_votes.pop_first()
        {
            self.closed_epoch = self.closed_epoch.max(oldest);
        }
    }

    /// Forgets the vote for a successor of `master`, which is no longer a master. If the new master fails at once, its
    /// replicas can then be elected without a pause.
    pub(crate) fn on_master_replaced(&mut self, master: NodeId) {
        self.voted_successors.remove(&master);
    }

    /// Whether `node` is failing in this node's view, or may have been replaced by a candidate that this node voted
    /// for. That `node` declared itself FAIL does not count.
    pub(crate) fn considers_replaceable(&self, state: &ClusterState, node: &Node) -> bool {
        let pause = state.config().vote_pause();
        let voted = self.voted_successors.get(&node.id).is_some_and(|(_, at)| state.now() < *at + pause);
        // Only the highest epoch with a vote is known after a restart. A claim at or above that epoch shows that the
        // election has ended.
        let forgotten = state.now() < self.started_at + pause
            && state.nodes().all(|node| node.config_epoch < self.closed_epoch);
        voted || forgotten || !(node.is_healthy() || node.has_declared_fail)
    }

    /// Handles a request for this node's vote.
    pub(crate) fn on_vote_request(
        &mut self,
        state: &ClusterState,
        request: &Header,
        status: VoterStatus,
    ) -> Vec<Effect> {
        let (candidate, epoch) = (request.sender, request.current_epoch);
        match self.check_request(state, request, status) {
            Ok(master) => self.vote(state, master, candidate, epoch),
            Err(why) => refuse(state, request, why),
        }
    }

    fn vote(&mut self, state: &ClusterState, master: NodeId, candidate: NodeId, epoch: Epoch) -> Vec<Effect> {
        let mut effects = Vec::new();
        if !self.given_votes.contains_key(&epoch) {
            self.record_vote(epoch, candidate);
            self.voted_successors.insert(master, (candidate, state.now()));
            effects.extend(rank_candidates(state, master));
            effects.push(Effect::RecordTimeline {
                node: master,
                entry: TimelineEntry::Vote { candidate, epoch },
            });
            effects.push(Effect::log(ElectionEvent::VoteGranted { candidate, epoch }));
        }
        // Save again when a vote is repeated, because the first write may not be durable yet.
        effects.push(Effect::SaveBeforeSending);
        effects.push(Effect::Vote { to: candidate, epoch });
        effects
    }

    /// Checks whether this node may vote for the candidate. Returns the master that the candidate wants to replace.
    fn check_request(
        &self,
        state: &ClusterState,
        request: &Header,
        status: VoterStatus,
    ) -> Result<NodeId, VoteDenial> {
        let (candidate, epoch) = (request.sender, request.current_epoch);
        let forgotten = epoch < self.closed_epoch;
        if !forgotten && !self.can_vote(epoch, candidate) {
            return Err(VoteDenial::AlreadyVoted);
        }
        // Another node or this one already claims slots under the epoch. The header of this node's vote would then
        // carry a claim that is newer than the epoch of the vote.
        let taken = state.nodes().any(|node| node.config_epoch == epoch);
        if forgotten || taken || epoch <= state.myself().config_epoch {
            return Err(VoteDenial::OldEpoch { current_epoch: state.current_epoch() });
        }
        // A candidate that owns slots has already been elected. A candidate without a master is not yet known to be a
        // replica.
        if request.replica_of.is_none() || state.is_voter(candidate) {
            return Err(VoteDenial::NotAReplica);
        }
        let master = request.replica_of.and_then(|id| state.node(id)).ok_or(VoteDenial::MasterUnknown)?;
        let forced = request.message_flags.contains(MessageFlags::FORCE_ACK);
        if !master.has_failed() && !forced && !status.yields_to_candidate {
            return Err(VoteDenial::MasterIsUp);
        }
        if status.may_be_replaced {
            return Err(VoteDenial::MayBeReplaced);
        }
        let pause = state.config().vote_pause();
        if let Some((other, voted)) = self.voted_successors.get(&master.id).copied()
            && other != candidate
            && state.now() < voted + pause
        {
            return Err(VoteDenial::VotedForMasterRecently {
                remaining_time: (voted + pause).since(state.now()),
            });
        }
        let outdated = |slot: &Slot| {
            let owner = state.slot_owner(*slot).and_then(|owner| state.node(owner));
            owner.is_some_and(|owner| owner.config_epoch > request.config_epoch)
        };
        match request.slots.iter().find(outdated) {
            Some(slot) => Err(VoteDenial::StaleSlot { slot }),
            None => Ok(master.id),
        }
    }
}

/// Refuses the vote. The candidate will repeat its request; by then the candidate or this node has learned about the
/// newer owner.
fn refuse(state: &ClusterState, request: &Header, reason: VoteDenial) -> Vec<Effect> {
    let (candidate, epoch) = (request.sender, request.current_epoch);
    let entry = TimelineEntry::RefusedVote { candidate, epoch, reason };
    let record = request.replica_of.map(|node| Effect::RecordTimeline { node, entry });
    let mut effects: Vec<Effect> = record.into_iter().collect();
    effects.push(Effect::log(ElectionEvent::VoteDenied { candidate, epoch, reason }));
    match reason {
        VoteDenial::StaleSlot { .. } => effects.extend(correct_outdated_claim(state, candidate, request)),
        VoteDenial::MayBeReplaced => effects.extend(ping_unconfirmed_voters(state)),
        _ => {}
    }
    effects
}

/// Pings the voters that have not confirmed this node yet, because a candidate waits for this node's vote. Voters with
/// an unanswered PING are skipped.
fn ping_unconfirmed_voters(state: &ClusterState) -> impl Iterator<Item = Effect> {
    let is_silent = |id: &NodeId| {
        state.node(*id).is_some_and(|node| {
            node.link.is_up()
                && node.contact_times.ping_sent_at.is_none()
                && !node.contact_times.confirms_voting
        })
    };
    let silent = state.slots.owners().map(|(id, _)| id).filter(is_silent);
    silent.map(|to| Effect::SendGossip { to, kind: GossipKind::Ping })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::test_state::{TestCluster, id};

    const READY_STATUS: VoterStatus = VoterStatus { yields_to_candidate: false, may_be_replaced: false };

    /// A cluster of three masters, of which master 1 is FAIL and has the replicas 3 and 4.
    fn cluster() -> TestCluster {
        let mut cluster = TestCluster::new(3, &[(3, 1), (4, 1)]);
        cluster.mark_failed(1);
        cluster
    }

    fn vote_request(cluster: &TestCluster, candidate: u8, epoch: u64) -> Header {
        Header { current_epoch: Epoch(epoch), ..cluster.header_of(candidate) }
    }

    fn find_denial(effects: &[Effect]) -> Option<VoteDenial> {
        effects.iter().find_map(|effect| match effect {
            Effect::Log(crate::ClusterEvent::Election(ElectionEvent::VoteDenied { reason: why, .. })) => {
                Some(*why)
            }
            _ => None,
        })
    }

    #[test]
    fn each_epoch_has_one_vote_and_epochs_before_a_restart_have_none() {
        let mut votes = GivenVotes::after_restart(Epoch(5));
        assert!(!votes.can_vote(Epoch(5), id(1)) && !votes.can_vote(Epoch(4), id(1)));
        votes.record_vote(Epoch(9), id(1));
        votes.record_vote(Epoch(7), id(2));
        assert_eq!(votes.newest_voted_epoch(), Epoch(9));
        assert!(votes.can_vote(Epoch(9), id(1)) && !votes.can_vote(Epoch(9), id(2)));
        assert!(votes.can_vote(Epoch(7), id(2)) && !votes.can_vote(Epoch(7), id(1)));
        assert!(votes.can_vote(Epoch(8), id(1)) && votes.can_vote(Epoch(6), id(2)));
        let votes = GivenVotes::after_restart(votes.newest_voted_epoch());
        assert!((6..=9).all(|epoch| !votes.can_vote(Epoch(epoch), id(1))));
    }

    #[test]
    fn epochs_with_forgotten_votes_get_no_second_vote() {
        let mut votes = GivenVotes::default();
        (1..=MAX_REMEMBERED_VOTES as u64 + 2).for_each(|epoch| votes.record_vote(Epoch(epoch), id(1)));
        assert!(!votes.can_vote(Epoch(1), id(2)) && !votes.can_vote(Epoch(2), id(2)));
        assert!(!votes.can_vote(Epoch(3), id(2)) && votes.can_vote(Epoch(3), id(1)));
    }

    #[test]
    fn vote_is_saved_before_it_is_sent_and_repeated_on_request() {
        let (cluster, mut votes) = (cluster(), GivenVotes::default());
        let vote = [Effect::SaveBeforeSending, Effect::Vote { to: id(3), epoch: Epoch(9) }];
        let effects = votes.on_vote_request(&cluster.state, &vote_request(&cluster, 3, 9), READY_STATUS);
        assert!(effects.ends_with(&vote), "{effects:?}");
        assert_eq!(votes.on_vote_request(&cluster.state, &vote_request(&cluster, 3, 9), READY_STATUS), vote);
    }

    #[test]
    fn vote_is_refused_with_the_reason() {
        let (mut cluster, mut votes) = (cluster(), GivenVotes::default());
        let answer = |votes: &mut GivenVotes, cluster: &TestCluster, header: &Header, status| {
            find_denial(&votes.on_vote_request(&cluster.state, header, status))
        };
        let old = vote_request(&cluster, 3, 3);
        let current = Epoch(3);
        assert_eq!(
            answer(&mut votes, &cluster, &old, READY_STATUS),
            Some(VoteDenial::OldEpoch { current_epoch: current })
        );
        let master = vote_request(&cluster, 2, 9);
        assert_eq!(answer(&mut votes, &cluster, &master, READY_STATUS), Some(VoteDenial::NotAReplica));
        let replaced = VoterStatus { may_be_replaced: true, ..READY_STATUS };
        let valid = vote_request(&cluster, 3, 9);
        assert_eq!(answer(&mut votes, &cluster, &valid, replaced), Some(VoteDenial::MayBeReplaced));
        let stale = Header { config_epoch: Epoch(1), ..valid.clone() };
        assert!(matches!(
            answer(&mut votes, &cluster, &stale, READY_STATUS),
            Some(VoteDenial::StaleSlot { .. })
        ));
        assert_eq!(answer(&mut votes, &cluster, &valid, READY_STATUS), None);
        let rival = vote_request(&cluster, 4, 9);
        assert_eq!(answer(&mut votes, &cluster, &rival, READY_STATUS), Some(VoteDenial::AlreadyVoted));
        let rival = vote_request(&cluster, 4, 10);
        let wait = cluster.state.config().vote_pause();
        let recently = Some(VoteDenial::VotedForMasterRecently { remaining_time: wait });
        assert_eq!(answer(&mut votes, &cluster, &rival, READY_STATUS), recently);
        cluster.advance_time(wait);
        assert_eq!(answer(&mut votes, &cluster, &rival, READY_STATUS), None);
    }

    #[test]
    fn healthy_master_is_replaced_only_by_force_or_consent() {
        let (cluster, mut votes) = (TestCluster::new(3, &[(3, 1)]), GivenVotes::default());
        let header = vote_request(&cluster, 3, 9);
        assert_eq!(
            find_denial(&votes.on_vote_request(&cluster.state, &header, READY_STATUS)),
            Some(VoteDenial::MasterIsUp)
        );
        let consent = VoterStatus { yields_to_candidate: true, ..READY_STATUS };
        assert_eq!(find_denial(&votes.on_vote_request(&cluster.state, &header, consent)), None);
        let forced = Header { message_flags: MessageFlags::FORCE_ACK, ..vote_request(&cluster, 3, 10) };
        assert_eq!(find_denial(&votes.on_vote_request(&cluster.state, &forced, READY_STATUS)), None);
    }

    #[test]
    fn master_with_a_voted_successor_is_considered_replaceable() {
        let (mut cluster, mut votes) = (cluster(), GivenVotes::default());
        cluster.advance_time(Duration::from_secs(1));
        votes.on_vote_request(&cluster.state, &vote_request(&cluster, 3, 9), READY_STATUS);
        cluster.node(1).health = crate::NodeHealth::Healthy;
        let doubted = |votes: &GivenVotes, cluster: &TestCluster| {
            votes.considers_replaceable(&cluster.state, cluster.state.node(id(1)).unwrap())
        };
        assert!(doubted(&votes, &cluster));
        votes.on_master_replaced(id(1));
        assert!(!doubted(&votes, &cluster));
    }
}

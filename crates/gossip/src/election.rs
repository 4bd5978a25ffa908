//! Elections: how a replica takes over from its failed master, and how masters vote.
//!
//! Candidate: when the master is FAIL, or a manual failover is ready, the replica waits for the election delay, during
//! which FAIL messages arrive everywhere and the replicas exchange offsets, plus one rank delay per better replica. A
//! replica that has heard from all other replicas since the failure and ranks first does not wait. The candidate then
//! takes a new epoch, saves it, and requests the vote of every master. It sends a FAIL message before the request in
//! case the voter has not seen the FAIL yet.
//!
//! Many masters can fail together (a rack), and each of their shards needs an epoch of its own. If other masters fail
//! as well, a candidate takes the next epoch that is congruent to the index of its master among all masters. Candidates
//! with the same epoch would split the votes; a candidate that sees another candidate in its epoch moves on to its
//! shard's next epoch at once. The candidate repeats its request to a master that has not voted, because that master
//! may have been disconnected, or did not know yet that the candidate is a replica or that its master gave a slot away.
//! If another node took a newer epoch or won this one, the candidate starts over in a new epoch, because Redis votes
//! only in the newest epoch. Votes of earlier epochs still count, each in its own epoch. A candidate defers to a better
//! replica of the same master that also requests votes.
//!
//! A candidate is elected by a majority of the masters with slots, both of those at the time of the request and of
//! those when the votes are counted. (Redis checks only the latter. If two masters are replaced during the election,
//! they are briefly replicas and their slots have no owner here. With their two votes the candidate would have a
//! majority of the three remaining masters, and another candidate could win the same epoch with the votes of those
//! three.)

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use clock::Instant;
use slot_routing::{Epoch, NodeId, ReplOffset};

use crate::contract::ReplicationSource;
use crate::effect::Effect;
use crate::event::{CannotFailoverReason, ElectionEvent, ElectionResetReason};
use crate::node::{Node, NodeHealth, has_data};
use crate::random::Randomness;
use crate::ranking::rank_candidates;
use crate::state::ClusterState;
use crate::timeline::TimelineEntry;
use crate::wire::{Header, MessageBody};

/// Base interval for repeating vote requests; a random delay of up to the same length is added. The randomness
/// separates two candidates that keep making each other's epoch obsolete.
const REPEAT_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of epochs remembered per candidacy. Votes for more epochs are in flight only if the bus loses most of
/// its messages.
const MAX_ROUNDS: usize = 16;

/// The candidacy of this replica; idle if there is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Election {
    phase: ElectionPhase,
    /// Whether the current obstacle to a candidacy has been logged, so that it is logged once instead of in every step.
    is_obstacle_logged: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum ElectionPhase {
    #[default]
    Idle,
    /// The candidate waits for the election delay, or for better replicas.
    Scheduled(Candidacy),
    /// The candidate has requested votes and has not counted a majority yet.
    Voting(Candidacy, Ballots),
}

/// One attempt to be elected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Candidacy {
    /// When to request votes for the first time.
    request_at: Instant,
    rank: u32,
    /// Whether the operator requested the failover. Voters then vote even if the master is up.
    is_manual: bool,
    /// Whether an earlier candidacy for the same master got no majority. Another replica may rank itself first as well,
    /// so the retry has a random delay, or their votes would be split again.
    is_retry: bool,
}

/// The votes that were requested and received.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ballots {
    /// The epoch in which votes were last requested.
    newest_round: VotingRound,
    /// Earlier epochs, newest last.
    earlier_rounds: Vec<VotingRound>,
    /// When to repeat the request to masters that have not voted.
    repeat_at: Instant,
    /// Whether the newest epoch may no longer be winnable, so that the next request takes a new epoch.
    is_contested: bool,
}

/// The votes received in one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct VotingRound {
    epoch: Epoch,
    /// Number of votes that made a majority at the time of the request.
    quorum: usize,
    votes: BTreeSet<NodeId>,
}

impl Ballots {
    /// All epochs in which votes were requested, oldest first.
    fn rounds(&self) -> impl Iterator<Item = &VotingRound> {
        self.earlier_rounds.iter().chain([&self.newest_round])
    }

    fn round_mut(&mut self, epoch: Epoch) -> Option<&mut VotingRound> {
        self.earlier_rounds.iter_mut().chain([&mut self.newest_round]).find(|round| round.epoch == epoch)
    }
}

impl VotingRound {
    fn valid_vote_count(&self, state: &ClusterState) -> usize {
        self.votes.iter().filter(|voter| state.is_voter(**voter)).count()
    }

    fn needed_vote_count(&self, state: &ClusterState) -> usize {
        state.quorum().max(self.quorum)
    }
}

impl Election {
    /// Ends the candidacy without a result, for example because the master has recovered.
    pub(crate) fn abandon(&mut self) {
        *self = Self::default();
    }

    /// Starts, updates or ends the candidacy. `is_manual` says whether a manual failover is ready to elect this
    /// replica. The effects must be applied before [`Election::advance`].
    pub(crate) fn prepare(
        &mut self,
        state: &ClusterState,
        is_manual: bool,
        random: &mut Randomness,
    ) -> Vec<Effect> {
        let Some(master) = failover_target(state, is_manual) else {
            self.abandon();
            return Vec::new();
        };
        if !is_manual && let Err(obstacle) = check_data_age(state) {
            // This also ends a candidacy that was scheduled for a manual failover that has timed out.
            self.phase = ElectionPhase::Idle;
            return self.log_obstacle(master, obstacle);
        }
        match &self.phase {
            ElectionPhase::Idle => self.schedule(state, master, is_manual, false, random),
            ElectionPhase::Scheduled(candidacy) if is_manual && !candidacy.is_manual => {
                self.schedule(state, master, is_manual, false, random)
            }
            ElectionPhase::Voting(candidacy, ballots) if is_manual && !candidacy.is_manual => {
                let (epoch, why) = (ballots.newest_round.epoch, ElectionResetReason::ManualFailover);
                let mut effects = vec![Effect::log(ElectionEvent::Reset { epoch, reason: why })];
                effects.extend(self.schedule(state, master, is_manual, false, random));
                effects
            }
            ElectionPhase::Scheduled(_) if !is_manual => {
                self.update_rank(state, master).into_iter().collect()
            }
            ElectionPhase::Scheduled(_) | ElectionPhase::Voting(..) => Vec::new(),
        }
    }

    /// Advances the candidacy as far as the current time and the received votes allow.
    pub(crate) fn advance(&mut self, state: &ClusterState, random: &mut Randomness) -> Vec<Effect> {
        let Some(master) = state.myself().master() else { return Vec::new() };
        match &self.phase {
            ElectionPhase::Scheduled(candidacy) if state.now() >= candidacy.request_at => {
                self.request_votes(state, master, random)
            }
            ElectionPhase::Idle | ElectionPhase::Scheduled(_) => Vec::new(),
            ElectionPhase::Voting(candidacy, ballots) => {
                let has_won =
                    |round: &&VotingRound| round.valid_vote_count(state) >= round.needed_vote_count(state);
                if let Some(epoch) = ballots.rounds().find(has_won).map(|round| round.epoch) {
                    return vec![Effect::log(ElectionEvent::Won(epoch)), Effect::TakeOver { epoch }];
                }
                if state.now() >= candidacy.request_at + state.config().vote_timeout() {
                    self.restart(state, master, random)
                } else if state.now() >= ballots.repeat_at {
                    self.repeat_requests(state, master, random)
                } else if !ballots.is_contested {
                    self.retry_soon_if_epoch_claimed(state, random).into_iter().collect()
                } else {
                    Vec::new()
                }
            }
        }
    }

    /// Starts a new candidacy after the timeout expired without a majority.
    fn restart(&mut self, state: &ClusterState, master: NodeId, random: &mut Randomness) -> Vec<Effect> {
        let ElectionPhase::Voting(candidacy, ballots) = &self.phase else { return Vec::new() };
        let (round, manual) = (&ballots.newest_round, candidacy.is_manual);
        let (votes, needed) = (round.valid_vote_count(state), round.needed_vote_count(state));
        let reason = CannotFailoverReason::NotConfirmed { received_votes: votes, needed_votes: needed };
        let mut effects = vec![
            Effect::RecordTimeline { node: master, entry: TimelineEntry::Obstacle(reason) },
            Effect::log(ElectionEvent::CannotFailover(reason)),
            Effect::log(ElectionEvent::Expired(round.epoch)),
        ];
        effects.extend(self.schedule(state, master, manual, true, random));
        effects
    }

    fn repeat_requests(
        &mut self,
        state: &ClusterState,
        master: NodeId,
        random: &mut Randomness,
    ) -> Vec<Effect> {
        if let Some(deferred) = self.defer_to_better_replica(state) {
            return vec![deferred];
        }
        if self.is_epoch_contested(state) {
            return self.request_votes(state, master, random);
        }
        let ElectionPhase::Voting(_, ballots) = &mut self.phase else { return Vec::new() };
        ballots.repeat_at = next_repeat_time(state, random);
        state.linked_nodes().into_iter().flat_map(|voter| self.on_link_up(state, voter)).collect()
    }

    /// Shortens the wait for a new epoch if another node claims slots under this candidacy's epoch or a newer one,
    /// because Redis nodes then no longer vote in this candidacy's epoch.
    fn retry_soon_if_epoch_claimed(
        &mut self,
        state: &ClusterState,
        random: &mut Randomness,
    ) -> Option<Effect> {
        let ElectionPhase::Voting(_, ballots) = &mut self.phase else { return None };
        let epoch = ballots.newest_round.epoch;
        let winner = state.nodes().find(|node| node.config_epoch >= epoch)?;
        let why = ElectionResetReason::NewerClaim { claimant: winner.id, epoch: winner.config_epoch };
        // A vote granted before the other node's claim may still arrive.
        let grace = state.config().election_delay() / 2;
        let chance = Duration::from_micros(random.random_below(grace.as_micros() as u64));
        let at = state.now() + grace + chance;
        (ballots.is_contested, ballots.repeat_at) = (true, ballots.repeat_at.min(at));
        Some(Effect::log(ElectionEvent::Reset { epoch, reason: why }))
    }

    /// Schedules a candidacy and sends the offset of this node to the other replicas. `is_retry` says whether an earlier
    /// candidacy for this master expired.
    fn schedule(
        &mut self,
        state: &ClusterState,
        master: NodeId,
        is_manual: bool,
        is_retry: bool,
        random: &mut Randomness,
    ) -> Vec<Effect> {
        self.is_obstacle_logged = false;
        let rank = if is_manual { 0 } else { own_rank(state) };
        let mut delay = Duration::ZERO;
        if !is_manual {
            let fixed = state.config().election_delay();
            let chance = random.random_below(fixed.as_micros() as u64);
            delay = fixed + Duration::from_micros(chance) + state.config().rank_delay() * rank;
        }
        let best = !is_manual && !is_retry && is_certainly_best(state, master);
        if best {
            delay = Duration::ZERO;
        }
        let request_at = state.now() + delay;
        self.phase = ElectionPhase::Scheduled(Candidacy { request_at, rank, is_manual, is_retry });
        let offset = state.offset().0;
        let mut effects: Vec<Effect> = rank_candidates(state, master).into_iter().collect();
        effects.push(Effect::RecordTimeline { node: master, entry: TimelineEntry::Ballot { rank, offset } });
        if !is_manual {
            let primary_rank = state.nodes.failed_voters().filter(|failed| failed.id < master).count();
            effects.push(Effect::log(ElectionEvent::Scheduled { delay, rank, primary_rank, offset }));
            if best {
                effects.push(Effect::log(ElectionEvent::BestReplica));
            }
            effects.push(Effect::SendOffsetToSiblings);
        }
        effects
    }

    /// Processes offsets that arrived since the candidacy was scheduled: defers to better replicas, or starts at once
    /// if this replica now ranks first.
    fn update_rank(&mut self, state: &ClusterState, master: NodeId) -> Option<Effect> {
        let ElectionPhase::Scheduled(candidacy) = &mut self.phase else { return None };
        let rank = own_rank(state);
        if rank > candidacy.rank {
            let added = state.config().rank_delay() * (rank - candidacy.rank);
            candidacy.request_at += added;
            candidacy.rank = rank;
            Some(Effect::log(ElectionEvent::RankChanged { rank, added_delay: added }))
        } else if candidacy.request_at > state.now()
            && !candidacy.is_retry
            && is_certainly_best(state, master)
        {
            (candidacy.request_at, candidacy.rank) = (state.now(), rank);
            Some(Effect::log(ElectionEvent::BecameBestReplica))
        } else {
            None
        }
    }

    /// Takes a new epoch and requests votes in it.
    fn request_votes(
        &mut self,
        state: &ClusterState,
        master: NodeId,
        random: &mut Randomness,
    ) -> Vec<Effect> {
        let (candidacy, earlier) = match std::mem::take(&mut self.phase) {
            ElectionPhase::Idle => return Vec::new(),
            ElectionPhase::Scheduled(candidacy) => (candidacy, Vec::new()),
            ElectionPhase::Voting(
                candidacy,
                Ballots { newest_round: newest, earlier_rounds: mut earlier, .. },
            ) => {
                earlier.push(newest);
                if earlier.len() == MAX_ROUNDS {
                    earlier.remove(0);
                }
                (candidacy, earlier)
            }
        };
        let epoch = choose_epoch(state, master, !earlier.is_empty());
        let newest = VotingRound { epoch, quorum: state.quorum(), votes: BTreeSet::new() };
        let repeat_at = next_repeat_time(state, random);
        self.phase = ElectionPhase::Voting(
            candidacy,
            Ballots { newest_round: newest, earlier_rounds: earlier, repeat_at, is_contested: false },
        );
        let mut effects = vec![
            // Reserve this node's own vote: after its election this node is a voter, and must not answer a late request
            // in this epoch with a vote.
            Effect::VoteForMyself { epoch },
            Effect::RecordTimeline { node: master, entry: TimelineEntry::VotesRequested { epoch } },
            Effect::log(ElectionEvent::Started(epoch)),
        ];
        let voters = state.linked_nodes().into_iter();
        effects.extend(voters.flat_map(|voter| request_vote(state, candidacy, voter, master)));
        effects
    }

    /// Whether voters may already refuse the newest epoch: a newer epoch exists, the epoch has a winner, or another
    /// candidate uses the epoch as well.
    fn is_epoch_contested(&self, state: &ClusterState) -> bool {
        let ElectionPhase::Voting(_, ballots) = &self.phase else { return false };
        let epoch = ballots.newest_round.epoch;
        ballots.is_contested
            || state.current_epoch() > epoch
            || state.nodes().any(|node| node.config_epoch >= epoch)
    }

    /// Defers to a better replica that appeared after the candidacy was scheduled, so that the better replica can ask
    /// the remaining voters first. Votes in flight can still elect this node.
    fn defer_to_better_replica(&mut self, state: &ClusterState) -> Option<Effect> {
        let ElectionPhase::Voting(candidacy, ballots) = &mut self.phase else { return None };
        let rank = own_rank(state);
        if candidacy.is_manual || rank <= candidacy.rank {
            return None;
        }
        let added = state.config().rank_delay() * (rank - candidacy.rank);
        (candidacy.rank, ballots.repeat_at) = (rank, state.now() + added);
        Some(Effect::log(ElectionEvent::RankChanged { rank, added_delay: added }))
    }

    /// Repeats the vote request over a new link to a voter that has not voted yet.
    pub(crate) fn on_link_up(&mut self, state: &ClusterState, voter: NodeId) -> Vec<Effect> {
        let Some(master) = state.myself().master() else { return Vec::new() };
        let ElectionPhase::Voting(candidacy, ballots) = &self.phase else { return Vec::new() };
        let candidacy = *candidacy;
        let has_voted = ballots.newest_round.votes.contains(&voter);
        if self.is_epoch_contested(state) || has_voted || !state.is_voter(voter) {
            return Vec::new();
        }
        if let Some(deferred) = self.defer_to_better_replica(state) {
            return vec![deferred];
        }
        // The write of the first request may not be durable yet.
        let mut effects = vec![Effect::SaveBeforeSending];
        effects.extend(request_vote(state, candidacy, voter, master));
        effects
    }

    /// Handles the vote request of another replica.
    pub(crate) fn on_rival_request(&mut self, state: &ClusterState, header: &Header) {
        let ElectionPhase::Voting(candidacy, ballots) = &mut self.phase else { return };
        let is_sibling = header.replica_of == state.myself().master();
        let is_better = is_sibling && ranks_before_me(state, header.sender, header.offset);
        if is_better && !candidacy.is_manual {
            // Redoubt voters do not vote for the better replica within this time. Votes in flight can still elect this
            // node.
            let again = state.now() + state.config().vote_timeout();
            (ballots.is_contested, ballots.repeat_at) = (true, again);
        } else if ballots.newest_round.epoch == header.current_epoch && !ballots.is_contested {
            // Both candidates may get half of the votes, so each moves on to an epoch of its own shard.
            (ballots.is_contested, ballots.repeat_at) = (true, state.now());
        }
    }

    /// Counts a vote. Returns the effect that records it, if the vote is valid and new.
    pub(crate) fn on_vote(&mut self, state: &ClusterState, header: &Header) -> Option<Effect> {
        let (voter, epoch) = (header.sender, header.current_epoch);
        let ElectionPhase::Voting(_, ballots) = &mut self.phase else { return None };
        let round = ballots.round_mut(epoch)?;
        // A Redis node that was elected in this epoch has recorded no vote in it and may send one although the others
        // voted for that node.
        let counts = state.is_voter(voter) && header.own_epoch() < epoch;
        let is_new = counts && round.votes.insert(voter);
        let node = state.myself().master().filter(|_| is_new)?;
        Some(Effect::RecordTimeline { node, entry: TimelineEntry::VoteReceived { voter } })
    }

    pub(crate) fn next_deadline(&self, auth_timeout: Duration) -> Option<Instant> {
        match &self.phase {
            ElectionPhase::Idle => None,
            ElectionPhase::Scheduled(candidacy) => Some(candidacy.request_at),
            // Voters refuse other replicas of the same master for about this long. (Redis waits twice this time before
            // the next attempt.)
            ElectionPhase::Voting(candidacy, ballots) => {
                Some(ballots.repeat_at.min(candidacy.request_at + auth_timeout))
            }
        }
    }

    fn log_obstacle(&mut self, master: NodeId, reason: CannotFailoverReason) -> Vec<Effect> {
        if std::mem::replace(&mut self.is_obstacle_logged, true) {
            return Vec::new();
        }
        vec![
            Effect::RecordTimeline { node: master, entry: TimelineEntry::Obstacle(reason) },
            Effect::log(ElectionEvent::CannotFailover(reason)),
        ]
    }
}

/// The master that this replica may now try to replace.
fn failover_target(state: &ClusterState, is_manual: bool) -> Option<NodeId> {
    let me = state.myself();
    let master = state.node(me.master()?)?;
    // A master that declared itself FAIL wants a successor with data.
    let fit = !master.has_declared_fail || has_data(state.offset());
    let wanted = is_manual || (master.has_failed() && !me.disables_failover && fit);
    (wanted && state.slots.slot_count(master.id) > 0).then_some(master.id)
}

/// Checks that the data is recent enough for a failover: the last contact with the master must be within the validity
/// limit.
fn check_data_age(state: &ClusterState) -> Result<(), CannotFailoverReason> {
    let factor = state.config().replica_validity_factor;
    let master = state.myself().master().and_then(|id| state.node(id));
    // A master that declared itself FAIL has no newer data.
    if factor == 0 || master.is_some_and(|master| master.has_declared_fail) {
        return Ok(());
    }
    let age = match state.replication().source {
        ReplicationSource::Streaming { last_heard_at: last_heard } => Some(state.now().since(last_heard)),
        ReplicationSource::Lost { since } => Some(state.now().since(since)),
        ReplicationSource::NeverSynchronized => None,
    };
    // Allow for the time needed to detect the failure.
    let limit = state.config().node_timeout * (factor + 1) + state.config().repl_ping_period;
    if age.is_some_and(|age| age <= limit) { Ok(()) } else { Err(CannotFailoverReason::DataTooOld { age }) }
}

fn next_repeat_time(state: &ClusterState, random: &mut Randomness) -> Instant {
    let chance = Duration::from_micros(random.random_below(REPEAT_INTERVAL.as_micros() as u64));
    state.now() + REPEAT_INTERVAL + chance
}

/// Returns whether no other replica can have more data: this node has heard from all rivals since the master failed,
/// and none of them ranks before this node.
fn is_certainly_best(state: &ClusterState, master: NodeId) -> bool {
    let Some(NodeHealth::Failed { since }) = state.node(master).map(|node| node.health) else {
        return false;
    };
    let heard = |node: &Node| node.contact_times.last_message_at.is_some_and(|at| at >= since);
    own_rank(state) == 0 && rivals(state).all(heard)
}

/// The other replicas of this node's master that may start an election.
fn rivals(state: &ClusterState) -> impl Iterator<Item = &Node> {
    let master = state.myself().master();
    state.others().filter(move |node| {
        node.master() == master && node.is_healthy() && !node.disables_failover && node.handshake.is_none()
    })
}

/// Number of rivals that rank before this node: they have a larger offset, or the same offset and a smaller id.
fn own_rank(state: &ClusterState) -> u32 {
    rivals(state).filter(|rival| ranks_before_me(state, rival.id, rival.offset)).count() as u32
}

fn ranks_before_me(state: &ClusterState, id: NodeId, offset: ReplOffset) -> bool {
    (offset, Reverse(id)) > (state.offset(), Reverse(state.id()))
}

/// Returns the next epoch. If masters of other shards fail as well, or this candidate has requested votes before
/// (`has_requested_before`), returns the next epoch reserved for this shard.
fn choose_epoch(state: &ClusterState, master: NodeId, has_requested_before: bool) -> Epoch {
    let next = state.current_epoch().next();
    let fails = |id: NodeId| {
        let node = state.node(id);
        node.is_some_and(|node| !node.is_healthy() || node.contact_times.refused_since.is_some())
    };
    if !has_requested_before && !state.slots.owners().any(|(id, _)| id != master && fails(id)) {
        return next;
    }
    let shards = state.voter_count().max(1) as u64;
    let place = state.slots.owners().filter(|(id, _)| *id < master).count() as u64;
    let ahead = (place + shards - next.0 % shards) % shards;
    Epoch(next.0 + ahead)
}

fn request_vote(
    state: &ClusterState,
    candidacy: Candidacy,
    voter: NodeId,
    master: NodeId,
) -> impl Iterator<Item = Effect> {
    // A FAIL this recent cannot have been cleared by any node yet.
    let fresh = |since: Instant| state.now().since(since) < state.config().node_timeout / 2;
    let condition = state.node(master).map(|node| node.health);
    let failed = matches!(condition, Some(NodeHealth::Failed { since }) if fresh(since));
    let fail = failed && !candidacy.is_manual && state.is_voter(voter);
    let fail = fail.then_some(Effect::Send { to: voter, body: MessageBody::Fail(master) });
    fail.into_iter().chain([Effect::RequestVote { to: voter, forced: candidacy.is_manual }])
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::test_state::{TestCluster, id};

    fn seeded_randomness() -> Randomness {
        Randomness::new(ChaCha8Rng::seed_from_u64(1))
    }

    /// A cluster in which this node (0) is a replica of master 1. Master 1 and replica 5 are FAIL; the other masters
    /// are 2, 3 and 4.
    fn cluster() -> TestCluster {
        let mut cluster = TestCluster::new(5, &[(5, 1)]);
        cluster.become_replica_of(1);
        let now = cluster.state.now();
        cluster.state.set_source(ReplicationSource::Streaming { last_heard_at: now });
        cluster.state.set_offset(ReplOffset(100));
        cluster.mark_failed(1);
        cluster
    }

    /// Runs a step, applies a new epoch to the cluster, and returns the effects.
    fn step(election: &mut Election, cluster: &mut TestCluster, is_manual: bool) -> Vec<Effect> {
        let mut effects = election.prepare(&cluster.state, is_manual, &mut seeded_randomness());
        effects.extend(election.advance(&cluster.state, &mut seeded_randomness()));
        for effect in &effects {
            if let Effect::VoteForMyself { epoch } = effect {
                cluster.state.raise_epoch(*epoch);
            }
        }
        effects
    }

    fn count_vote_requests(effects: &[Effect]) -> usize {
        effects.iter().filter(|effect| matches!(effect, Effect::RequestVote { .. })).count()
    }

    fn vote_header(cluster: &TestCluster, voter: u8, epoch: u64) -> Header {
        Header { current_epoch: Epoch(epoch), ..cluster.header_of(voter) }
    }

    #[test]
    fn best_replica_requests_votes_at_once_and_wins_with_a_majority() {
        let (mut cluster, mut part) = (cluster(), Election::default());
        let effects = step(&mut part, &mut cluster, false);
        assert!(effects.contains(&Effect::VoteForMyself { epoch: Epoch(6) }), "{effects:?}");
        assert_eq!(count_vote_requests(&effects), 5);
        for voter in [2, 2, 3] {
            part.on_vote(&cluster.state, &vote_header(&cluster, voter, 6));
            assert_eq!(step(&mut part, &mut cluster, false), []);
        }
        // Four masters own slots, so three votes are needed.
        assert!(part.on_vote(&cluster.state, &vote_header(&cluster, 4, 6)).is_some());
        let effects = step(&mut part, &mut cluster, false);
        assert_eq!(effects.last(), Some(&Effect::TakeOver { epoch: Epoch(6) }));
    }

    #[test]
    fn worse_replica_waits_longer_per_better_rival() {
        let (mut cluster, mut part) = (cluster(), Election::default());
        cluster.node(5).offset = ReplOffset(200);
        let effects = step(&mut part, &mut cluster, false);
        assert_eq!(count_vote_requests(&effects), 0);
        assert_eq!(effects.last(), Some(&Effect::SendOffsetToSiblings));
        let delay = cluster.state.config().rank_delay() + cluster.state.config().election_delay();
        let at = part.next_deadline(cluster.state.config().vote_timeout()).unwrap();
        assert!(at >= cluster.state.now() + delay);
        // The better replica fails, so this node is the best remaining one.
        cluster.mark_failed(5);
        let effects = step(&mut part, &mut cluster, false);
        assert_eq!(effects[0], Effect::log(ElectionEvent::BecameBestReplica));
        assert_eq!(count_vote_requests(&effects), 5);
    }

    #[test]
    fn votes_of_replicas_and_of_winners_of_the_epoch_do_not_count() {
        let (mut cluster, mut part) = (cluster(), Election::default());
        step(&mut part, &mut cluster, false);
        assert_eq!(part.on_vote(&cluster.state, &vote_header(&cluster, 5, 6)), None);
        let winner = Header { config_epoch: Epoch(6), ..vote_header(&cluster, 2, 6) };
        assert_eq!(part.on_vote(&cluster.state, &winner), None);
        assert_eq!(
            part.on_vote(&cluster.state, &vote_header(&cluster, 2, 5)),
            None,
            "no request in this epoch"
        );
    }

    #[test]
    fn rival_in_the_same_epoch_makes_the_candidate_take_an_epoch_of_its_shard() {
        let (mut cluster, mut part) = (cluster(), Election::default());
        step(&mut part, &mut cluster, false);
        let rival = Header { replica_of: Some(id(2)), ..vote_header(&cluster, 5, 6) };
        part.on_rival_request(&cluster.state, &rival);
        let effects = step(&mut part, &mut cluster, false);
        // Four masters own slots, and master 1 is the first of them.
        assert!(effects.contains(&Effect::VoteForMyself { epoch: Epoch(8) }), "{effects:?}");
        // Votes of the first epoch still count.
        assert!(part.on_vote(&cluster.state, &vote_header(&cluster, 2, 6)).is_some());
    }

    #[test]
    fn request_is_repeated_to_voters_on_a_new_link() {
        let (mut cluster, mut part) = (cluster(), Election::default());
        assert_eq!(part.on_link_up(&cluster.state, id(2)), []);
        step(&mut part, &mut cluster, false);
        assert_eq!(count_vote_requests(&part.on_link_up(&cluster.state, id(2))), 1);
        part.on_vote(&cluster.state, &vote_header(&cluster, 2, 6));
        assert_eq!(part.on_link_up(&cluster.state, id(2)), []);
    }

    #[test]
    fn outdated_replica_logs_once_why_it_is_no_candidate() {
        let (mut cluster, mut part) = (cluster(), Election::default());
        cluster.state.set_source(ReplicationSource::NeverSynchronized);
        let reason = CannotFailoverReason::DataTooOld { age: None };
        let effects = step(&mut part, &mut cluster, false);
        assert_eq!(effects.last(), Some(&Effect::log(ElectionEvent::CannotFailover(reason))));
        assert_eq!(step(&mut part, &mut cluster, false), []);
        assert_eq!(count_vote_requests(&step(&mut part, &mut cluster, true)), 5, "an operator may insist");
    }

    #[test]
    fn candidate_without_a_majority_starts_over_after_the_timeout() {
        let (mut cluster, mut part) = (cluster(), Election::default());
        step(&mut part, &mut cluster, false);
        cluster.advance_time(cluster.state.config().vote_timeout());
        let effects = step(&mut part, &mut cluster, false);
        assert!(effects.contains(&Effect::log(ElectionEvent::Expired(Epoch(6)))));
    }

    /// Two replicas that both rank themselves first would otherwise split the votes again and again.
    #[test]
    fn candidate_waits_before_it_requests_votes_again() {
        let (mut cluster, mut part) = (cluster(), Election::default());
        assert!(
            count_vote_requests(&step(&mut part, &mut cluster, false)) > 0,
            "the best replica does not wait"
        );
        cluster.advance_time(cluster.state.config().vote_timeout());
        assert_eq!(count_vote_requests(&step(&mut part, &mut cluster, false)), 0);
        assert_eq!(count_vote_requests(&step(&mut part, &mut cluster, false)), 0);
        cluster.advance_time(cluster.state.config().election_delay() * 2);
        assert!(count_vote_requests(&step(&mut part, &mut cluster, false)) > 0);
    }

    #[test]
    fn recovery_of_the_master_ends_the_candidacy() {
        let (mut cluster, mut part) = (cluster(), Election::default());
        step(&mut part, &mut cluster, false);
        cluster.node(1).health = NodeHealth::Healthy;
        assert_eq!(step(&mut part, &mut cluster, false), []);
        assert_eq!(part, Election::default());
    }
}

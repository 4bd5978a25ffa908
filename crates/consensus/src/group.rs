//! The state machine of one group member.

use std::collections::BTreeSet;
use std::time::Duration;

use clock::Instant;
use raft::eraftpb::{Entry, Message, MessageType, Snapshot};
use raft::{Config, RawNode, StateRole};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::guard::{self, GroupView};
use crate::journal::{GroupChange, GroupRecord, SavedGroup};
use crate::store::{GroupStore, from_raft_entry};
use crate::wire::{self, Envelope};
use crate::{PeerId, RecordNumber, Term};

/// How often a leader sends heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(50);
/// Base timeout of the first election attempt; a random delay of up to the same length is added. It is three heartbeats
/// long, enough for two round trips within a region.
const ELECTION_TIMEOUT: Duration = Duration::from_millis(150);
/// Maximum number of timeout doublings, so that groups spread over continents can complete an election.
const MAX_TIMEOUT_DOUBLINGS: u32 = 3;
/// Delay between the candidacies of two members. All members activate the group at about the same time, when they
/// notice the failure of their master; the delay gives the first candidate time to win.
const CANDIDACY_DELAY: Duration = Duration::from_millis(25);
/// Maximum number of entries before the log is compacted into a snapshot. A failover takes three entries.
const MAX_LOG_ENTRIES: usize = 64;
/// Maximum size of a value in bytes. A value is an address and a few numbers, so it stays far below the message limit.
const MAX_VALUE_BYTES: usize = 4096;

/// An event that the caller reports to the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupInput<'a> {
    /// A message that another member produced with [`GroupAction::Send`].
    Message(&'a [u8]),
    /// Sets the members of the group, including this one. A leader postpones the change until it steps down; other
    /// members apply it at once.
    SetMembers {
        /// The ids of all members, including this one and the foreign ones.
        voters: BTreeSet<PeerId>,
        /// The members that speak the Redis Sentinel protocol and have no log.
        foreign_members: BTreeSet<PeerId>,
    },
    /// Starts the election of a leader in a term after `last_forbidden_term`. If the group is already active, this only
    /// raises the minimum term.
    Activate {
        /// Elections must use a term higher than this one.
        last_forbidden_term: Term,
    },
    /// Ends the leadership and all traffic until the next [`GroupInput::Activate`].
    Deactivate,
    /// Replaces the value. Ignored unless this member is the leader.
    Propose(Vec<u8>),
    /// A foreign member voted for this member.
    ForeignVote {
        /// The foreign member that voted.
        from: PeerId,
        /// The term in which the vote was given.
        term: Term,
    },
    /// The time returned by [`Group::next_deadline`] has come.
    Deadline,
}

/// An action for the caller. The field `after_record` of an action names the record that must be durable before the action is
/// performed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupAction {
    /// Append a record to the journal and sync it.
    Persist {
        /// The number by which later actions refer to this record.
        number: RecordNumber,
        /// The changes to append. Several records may share one sync.
        record: GroupRecord,
    },
    /// Send a message to a member.
    Send {
        /// The record that must be durable first.
        after_record: RecordNumber,
        /// The member that must receive the message.
        to: PeerId,
        /// The encoded message, for [`GroupInput::Message`] at the receiver.
        message: Vec<u8>,
    },
    /// Request the vote of a foreign member in its own protocol.
    RequestVote {
        /// The record that must be durable first.
        after_record: RecordNumber,
        /// The foreign member whose vote is requested.
        to: PeerId,
        /// The term in which this member is a candidate.
        term: Term,
    },
    /// Reports that another member voted for this one.
    VoteReceived {
        /// The member that voted for this one.
        from: PeerId,
        /// The term in which the vote was given.
        term: Term,
    },
    /// Reports a change of the leader known to this member.
    LeaderChanged {
        /// The record that must be durable first.
        after_record: RecordNumber,
        /// The current term of this member. A term has at most one leader.
        term: Term,
        /// The leader of the term; `None` while it is unknown.
        leader: Option<PeerId>,
    },
    /// Reports that a majority has stored this value.
    Committed {
        /// The record that must be durable first.
        after_record: RecordNumber,
        /// The term of the leader that proposed the value.
        term: Term,
        /// The index of the entry in the log.
        index: u64,
        /// The committed value, which replaces the previous one.
        value: Vec<u8>,
    },
    /// Reports that this member refused to vote for a candidate because the candidate does not know these members.
    VoteRefused {
        /// The candidate whose request was refused.
        candidate: PeerId,
        /// The members that the candidate does not know.
        unknown_members: BTreeSet<PeerId>,
    },
}

/// The state of one member of a group.
pub struct Group {
    name: String,
    id: PeerId,
    pub(crate) raft_node: RawNode<GroupStore>,
    pub(crate) members: BTreeSet<PeerId>,
    pub(crate) foreign_members: BTreeSet<PeerId>,
    /// The members and foreign members that take effect when this leader steps down.
    next_members: Option<(BTreeSet<PeerId>, BTreeSet<PeerId>)>,
    /// Foreign members that voted for this member, with the term of the vote.
    pub(crate) foreign_votes: BTreeSet<(Term, PeerId)>,
    /// Replies that this member creates on behalf of foreign members, to be processed like received messages.
    pub(crate) foreign_replies: Vec<Message>,
    next_deadline_at: Option<Instant>,
    /// This member starts elections only in terms higher than this one.
    last_forbidden_term: Term,
    /// Number of consecutive elections without a leader.
    election_attempts: u32,
    known_leader: (Term, Option<PeerId>),
    /// When this member last voted, received a message from its leader or, as the leader, from a follower. Another
    /// candidacy shortly afterwards would disrupt a recent or running election.
    pub(crate) last_activity_at: Option<Instant>,
    /// The last committed value; empty if there is none.
    value: Vec<u8>,
    applied_index: u64,
    pub(crate) record_number: RecordNumber,
    rng: ChaCha8Rng,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("name", &self.name)
            .field("id", &self.id)
            .field("saved", self.saved_state())
            .field("role", &self.raft_node.raft.state)
            .field("timer", &self.next_deadline_at)
            .finish_non_exhaustive()
    }
}

impl Group {
    /// Restores member `id` of the group `name` as inactive and with itself as the only member. `saved` must come from
    /// [`crate::journal::read_journal`], which validates it.
    #[must_use]
    pub fn new(name: &str, id: PeerId, saved_group: SavedGroup, seed: u64) -> Self {
        let (applied, value) = (saved_group.snapshot.1, saved_group.value.clone());
        let term = saved_group.term;
        let mut group = Self {
            name: name.to_owned(),
            id,
            raft_node: create_raft_node(id, applied, GroupStore::new(saved_group, vec![id.number()])),
            members: BTreeSet::from([id]),
            foreign_members: BTreeSet::new(),
            next_members: None,
            foreign_votes: BTreeSet::new(),
            foreign_replies: Vec::new(),
            next_deadline_at: None,
            last_forbidden_term: Term(0),
            election_attempts: 0,
            known_leader: (term, None),
            last_activity_at: None,
            value,
            applied_index: applied,
            record_number: RecordNumber::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        };
        // Reports values that were committed before the restart.
        let mut known = Vec::new();
        group.process_ready(&mut known);
        debug_assert!(known.iter().all(|action| matches!(action, GroupAction::Committed { .. })));
        group
    }

    /// The id of this member; it never changes.
    #[must_use]
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// The current term of this member; it never decreases.
    #[must_use]
    pub fn term(&self) -> Term {
        Term(self.raft_node.raft.term)
    }

    /// Whether this member is the leader.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.raft_node.raft.state == StateRole::Leader
    }

    /// Whether this member is the leader and knows all committed entries, because a majority has stored an entry of its
    /// term.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.is_leader() && self.raft_node.raft.commit_to_current_term()
    }

    /// Whether the group has been activated: it has a leader or is electing one.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.next_deadline_at.is_some()
    }

    /// The last committed value; empty if there is none.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// The index of the last log entry.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.raft_node.store().last_entry().1
    }

    /// The state that the journal contains once all pending records are durable.
    #[must_use]
    pub fn saved_state(&self) -> &SavedGroup {
        self.raft_node.store().saved_group()
    }

    /// Number of members that have stored the log up to `index`; only meaningful on the leader.
    #[must_use]
    pub fn count_acknowledged(&self, index: u64) -> usize {
        self.raft_node.raft.prs().iter().filter(|(_, progress)| progress.matched >= index).count()
    }

    /// When to feed [`GroupInput::Deadline`]; `None` while the group is inactive.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.next_deadline_at
    }

    /// Processes one event and appends the resulting actions to `out`.
    pub fn handle(&mut self, now: Instant, event: GroupInput<'_>, out: &mut Vec<GroupAction>) {
        match event {
            GroupInput::Message(bytes) => self.on_message(now, bytes, out),
            GroupInput::SetMembers { voters, foreign_members: foreign } => self.on_members(voters, foreign),
            GroupInput::Activate { last_forbidden_term: past } => self.on_activate(now, past, out),
            GroupInput::Deactivate => self.on_deactivate(),
            GroupInput::Propose(value) => {
                assert!(
                    !value.is_empty() && value.len() <= MAX_VALUE_BYTES,
                    "a value of {} bytes",
                    value.len()
                );
                if self.is_leader() {
                    // `propose` fails only during a leadership transfer, and this crate never transfers leadership.
                    let _ = self.raft_node.propose(Vec::new(), value);
                }
            }
            GroupInput::ForeignVote { from, term } => self.on_foreign_vote(from, term),
            GroupInput::Deadline => self.on_deadline(now, out),
        }
        self.process_ready(out);
        self.apply_role_change(now);
    }

    fn on_message(&mut self, now: Instant, bytes: &[u8], out: &mut Vec<GroupAction>) {
        let Some(Envelope { mut message, members }) = wire::decode(bytes) else { return };
        let raft = &self.raft_node.raft;
        let view = GroupView {
            store: self.raft_node.store(),
            myself: self.id.number(),
            term: raft.term,
            leader: raft.leader_id,
        };
        if !guard::is_plausible(view, &message) {
            return;
        }
        let kind = message.get_msg_type();
        let from = message.from;
        if matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote) {
            if kind == MessageType::MsgRequestPreVote && self.supports_another_leader(now, from) {
                return;
            }
            let missing = self.members_unknown_to(&members);
            if !missing.is_empty() {
                let candidate = PeerId::new(from).expect("a voter's number is not zero");
                out.push(GroupAction::VoteRefused { candidate, unknown_members: missing });
                return;
            }
        }
        if kind == MessageType::MsgSnapshot {
            // Members come from local configuration, so the list in the sender's snapshot is ignored.
            let conf_state = self.raft_node.store().conf_state();
            message.mut_snapshot().mut_metadata().set_conf_state(conf_state);
        }
        let before = self.raft_node.raft.state;
        let granted = kind == MessageType::MsgRequestVoteResponse
            && !message.reject
            && message.term == self.raft_node.raft.term;
        if granted && let Some(from) = PeerId::new(from) {
            out.push(GroupAction::VoteReceived { from, term: Term(message.term) });
        }
        self.step(message);
        let raft = &self.raft_node.raft;
        let voted = kind == MessageType::MsgRequestVote && raft.vote == from;
        let led = raft.leader_id == from;
        match raft.state {
            StateRole::Follower if voted || led => {
                self.last_activity_at = Some(now);
                if self.next_deadline_at.is_some() {
                    self.election_attempts = 0;
                    self.next_deadline_at = Some(now + self.election_timeout());
                }
            }
            // Start a new election timeout, because the pre-vote may have used up most of the previous one.
            StateRole::Candidate if before == StateRole::PreCandidate => {
                self.next_deadline_at = Some(now + self.election_timeout());
            }
            StateRole::Leader => self.last_activity_at = Some(now),
            _ => {}
        }
    }

    /// Returns whether this member recently supported a leader or candidate other than `candidate`.
    fn supports_another_leader(&self, now: Instant, candidate: u64) -> bool {
        let raft = &self.raft_node.raft;
        let theirs = raft.vote == candidate || raft.leader_id == candidate;
        !theirs && self.had_recent_activity(now)
    }

    fn had_recent_activity(&self, now: Instant) -> bool {
        self.last_activity_at.is_some_and(|at| now.since(at) < ELECTION_TIMEOUT)
    }

    /// Members known to this member but not to the candidate.
    fn members_unknown_to(&self, known_members: &[u64]) -> BTreeSet<PeerId> {
        self.members.iter().filter(|id| !known_members.contains(&id.number())).copied().collect()
    }

    fn on_members(&mut self, voters: BTreeSet<PeerId>, foreign_members: BTreeSet<PeerId>) {
        assert!(voters.contains(&self.id), "a member belongs to its own group");
        assert!(foreign_members.is_subset(&voters) && !foreign_members.contains(&self.id));
        self.next_members = Some((voters, foreign_members));
    }

    fn on_activate(&mut self, now: Instant, last_forbidden_term: Term, out: &mut Vec<GroupAction>) {
        self.last_forbidden_term = self.last_forbidden_term.max(last_forbidden_term);
        if self.next_deadline_at.is_some() {
            return;
        }
        if self.term() < last_forbidden_term {
            self.raft_node.raft.become_follower(last_forbidden_term.0, 0);
        }
        self.election_attempts = 0;
        // Some members notice the failure only after they have voted for another candidate. They wait for the result of
        // that election before starting their own.
        let wait = if self.had_recent_activity(now) {
            self.election_timeout()
        } else {
            CANDIDACY_DELAY * self.candidacy_rank()
        };
        self.next_deadline_at = Some(now + wait);
        self.process_ready(out);
        self.on_deadline(now, out);
    }

    /// Makes the leader of a deactivated group step down, because it no longer sends heartbeats.
    fn on_deactivate(&mut self) {
        self.next_deadline_at = None;
        if self.raft_node.raft.state != StateRole::Follower {
            let term = self.raft_node.raft.term;
            self.raft_node.raft.become_follower(term, 0);
        }
    }

    /// The position of this member in the order of candidacies. The order depends on the group's name, so that
    /// different sentinels lead the failovers when a host with many masters fails.
    fn candidacy_rank(&self) -> u32 {
        let count = self.members.len() as u32;
        let place = self.members.range(..self.id).count() as u32;
        let first =
            self.name.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
        (place + count - first % count) % count
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Vec<GroupAction>) {
        if self.next_deadline_at.is_none_or(|due| now < due) {
            return;
        }
        if self.is_leader() {
            self.raft_node.tick();
            self.next_deadline_at = Some(now + HEARTBEAT_INTERVAL);
            return;
        }
        self.next_deadline_at = Some(now + self.election_timeout());
        self.election_attempts += 1;
        // Process the output of earlier events first, so that it is not mixed with the messages of the candidate.
        self.process_ready(out);
        if self.term() < self.last_forbidden_term {
            self.raft_node.raft.become_follower(self.last_forbidden_term.0, 0);
        }
        self.raft_node.campaign().expect("a local step cannot fail");
    }

    fn election_timeout(&mut self) -> Duration {
        // A split vote is usually a coincidence, so the first repetition does not double the timeout.
        let base =
            ELECTION_TIMEOUT * 2u32.pow(self.election_attempts.saturating_sub(1).min(MAX_TIMEOUT_DOUBLINGS));
        let chance = self.rng.random_range(0..base.as_micros() as u64);
        base + Duration::from_micros(chance)
    }

    pub(crate) fn step(&mut self, message: Message) {
        // `step` fails for replies from non-members, which `guard` has already rejected.
        let _ = self.raft_node.step(message);
    }

    /// Applies the consequences of a role change. Must be called after an event has been processed completely.
    fn apply_role_change(&mut self, now: Instant) {
        if self.is_leader() && self.next_deadline_at.is_some_and(|due| due > now + HEARTBEAT_INTERVAL) {
            self.election_attempts = 0;
            self.next_deadline_at = Some(now + HEARTBEAT_INTERVAL);
        }
        let term = self.term();
        self.foreign_votes.retain(|(of, _)| *of >= term);
        if self.is_leader() {
            return;
        }
        let Some((members, foreign)) = self.next_members.take() else { return };
        if members != self.members {
            let voters = members.iter().map(|id| id.number()).collect();
            let store = GroupStore::new(self.saved_state().clone(), voters);
            self.raft_node = create_raft_node(self.id, self.applied_index, store);
        }
        (self.members, self.foreign_members) = (members, foreign);
    }

    /// Processes the output of the raft node until there is none left.
    pub(crate) fn process_ready(&mut self, out: &mut Vec<GroupAction>) {
        loop {
            while self.raft_node.has_ready() {
                self.take_ready(out);
            }
            let answers = std::mem::take(&mut self.foreign_replies);
            if answers.is_empty() {
                break;
            }
            for answer in answers {
                self.step(answer);
            }
        }
        let raft = &self.raft_node.raft;
        let leader = (Term(raft.term), PeerId::new(raft.leader_id));
        if leader != self.known_leader {
            self.known_leader = leader;
            out.push(GroupAction::LeaderChanged {
                after_record: self.record_number,
                term: leader.0,
                leader: leader.1,
            });
        }
    }

    fn take_ready(&mut self, out: &mut Vec<GroupAction>) {
        let before = self.record_number;
        let mut ready = self.raft_node.ready();
        let snapshot = ready.snapshot().clone();
        if !snapshot.is_empty() {
            self.install_snapshot(&snapshot);
        }
        let entries = ready.take_entries();
        if !entries.is_empty() {
            self.record_change(GroupChange::Entries(entries.iter().map(from_raft_entry).collect()));
        }
        if let Some(hard) = ready.hs() {
            let (term, vote, commit) = (Term(hard.term), hard.vote, hard.commit);
            self.record_change(GroupChange::Ballot { term, vote, commit });
        }
        let at_once = ready.take_messages();
        let once_synced = ready.take_persisted_messages();
        let mut committed = ready.take_committed_entries();
        let mut light = self.raft_node.advance(ready);
        if let Some(commit) = light.commit_index() {
            let saved = self.saved_state();
            let (term, vote) = (saved.term, saved.voted_for);
            self.record_change(GroupChange::Ballot { term, vote, commit });
        }
        committed.extend(light.take_committed_entries());
        let values = self.apply_committed(&committed);
        self.raft_node.advance_apply();
        self.write_record(out);
        let synced = self.record_number;
        // A leader may send entries while it is still persisting them. These messages wait only for earlier records.
        self.transmit(before, at_once, out);
        self.transmit(synced, once_synced, out);
        self.transmit(synced, light.take_messages(), out);
        let installed = (!snapshot.is_empty() && !snapshot.data.is_empty()).then(|| {
            let metadata = snapshot.get_metadata();
            (Term(metadata.term), metadata.index, snapshot.data.to_vec())
        });
        for (term, index, value) in installed.into_iter().chain(values) {
            out.push(GroupAction::Committed { after_record: synced, term, index, value });
        }
    }

    fn record_change(&mut self, change: GroupChange) {
        self.raft_node.mut_store().record_change(change);
    }

    fn install_snapshot(&mut self, snapshot: &Snapshot) {
        let metadata = snapshot.get_metadata();
        self.applied_index = metadata.index;
        self.value = snapshot.data.to_vec();
        let (term, index) = (Term(metadata.term), metadata.index);
        self.record_change(GroupChange::Snapshot { term, index, value: self.value.clone() });
    }

    fn apply_committed(&mut self, committed: &[Entry]) -> Vec<(Term, u64, Vec<u8>)> {
        let mut values = Vec::new();
        for entry in committed {
            self.applied_index = entry.index;
            if !entry.data.is_empty() {
                self.value = entry.data.to_vec();
                values.push((Term(entry.term), entry.index, self.value.clone()));
            }
        }
        if self.saved_state().entries.len() > MAX_LOG_ENTRIES {
            let index = self.applied_index;
            let term = self.raft_node.store().term_at(index).expect("an applied entry is in the log");
            self.record_change(GroupChange::Snapshot { term, index, value: self.value.clone() });
        }
        values
    }

    fn write_record(&mut self, out: &mut Vec<GroupAction>) {
        let changes = self.raft_node.mut_store().take_pending_changes();
        if !changes.is_empty() {
            self.record_number.0 += 1;
            let record = GroupRecord { group: self.name.clone(), changes };
            out.push(GroupAction::Persist { number: self.record_number, record });
        }
    }

    fn transmit(&mut self, after_record: RecordNumber, messages: Vec<Message>, out: &mut Vec<GroupAction>) {
        for message in messages {
            let Some(to) = PeerId::new(message.to) else { continue };
            if self.foreign_members.contains(&to) || !self.members.contains(&to) {
                self.transmit_foreign(after_record, to, &message, out);
            } else {
                let bytes = wire::encode(&message, self.raft_node.store().voters());
                out.push(GroupAction::Send { after_record, to, message: bytes });
            }
        }
    }
}

fn create_raft_node(id: PeerId, applied_index: u64, store: GroupStore) -> RawNode<GroupStore> {
    let config = Config {
        id: id.number(),
        // Only leaders call `tick`, to send heartbeats, so the election timeout that `raft` draws from this range is
        // never used.
        election_tick: 10,
        min_election_tick: 10,
        max_election_tick: 11,
        heartbeat_tick: 1,
        applied: applied_index,
        pre_vote: true,
        max_inflight_msgs: 16,
        ..Config::default()
    };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    RawNode::new(&config, store, &logger).expect("the configuration is a constant")
}

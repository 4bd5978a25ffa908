//! One group, as one of its members sees it.

use std::collections::BTreeSet;
use std::time::Duration;

use clock::Instant;
use raft::eraftpb::{Entry, Message, MessageType, Snapshot};
use raft::{Config, RawNode, StateRole};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::guard::{self, View};
use crate::journal::{Change, Record, Saved};
use crate::store::{Store, from_raft};
use crate::wire::{self, Envelope};
use crate::{PeerId, RecordNumber, Term};

/// How often a leader that is awake shows itself.
const HEARTBEAT: Duration = Duration::from_millis(50);
/// How long the first attempt waits for an answer or a leader before the next, plus as much again by
/// chance. Three heartbeats; enough for two round trips within a region.
const ELECTION_TIMEOUT: Duration = Duration::from_millis(150);
/// Doubling the timeout ends here, so that groups spread over continents still get an election done.
const LONGEST_DOUBLING: u32 = 3;
/// Members wake together, when the master that they watch is down. They stand as candidates one after
/// another, each this much later than the one before: enough for the first to have won.
const STAGGER: Duration = Duration::from_millis(25);
/// The log is folded into its value beyond this many entries; a change of master takes three.
const LONGEST_LOG: usize = 64;
/// A value is an address and a few numbers. Far below what one message may hold.
const MAX_VALUE: usize = 4096;

/// An event that a group is told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<'a> {
    /// Bytes that another member sent.
    Message(&'a [u8]),
    /// The members of the group, this one included, and those of them that speak Redis's protocol. Takes effect at
    /// once, except for a leader: once it leads no more.
    Members {
        /// All members.
        voters: BTreeSet<PeerId>,
        /// Those of them that speak Redis's protocol.
        foreign: BTreeSet<PeerId>,
    },
    /// Elect a leader, in a term after `past`. One that is awake hears of such a term only.
    Wake {
        /// A term that is over.
        past: Term,
    },
    /// Nothing is left to do: be quiet.
    Sleep,
    /// Replace the value. Only a leader can; from others it is dropped.
    Propose(Vec<u8>),
    /// A foreign member gave this one its vote.
    Vote {
        /// The member that votes.
        from: PeerId,
        /// For which term.
        term: Term,
    },
    /// The time that [`Group::next_deadline`] named has come.
    Deadline,
}

/// An action that a group wants done. `after` names the record that must be on disk before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Append to the journal and sync.
    Persist {
        /// The number that later actions wait for.
        number: RecordNumber,
        /// The record to append.
        record: Record,
    },
    /// Send a message to a member.
    Send {
        /// The record that must be on disk before.
        after: RecordNumber,
        /// The member.
        to: PeerId,
        /// Bytes for its [`Input::Message`].
        message: Vec<u8>,
    },
    /// Ask a foreign member for its vote, in its own protocol.
    AskVote {
        /// The record that must be on disk before.
        after: RecordNumber,
        /// The foreign member.
        to: PeerId,
        /// The term to ask for.
        term: Term,
    },
    /// Another member gave this one its vote.
    Granted {
        /// The member that votes.
        from: PeerId,
        /// For which term.
        term: Term,
    },
    /// The leader has changed, as far as this member knows.
    Leader {
        /// The record that must be on disk before.
        after: RecordNumber,
        /// The term it is about.
        term: Term,
        /// The leader, if one is known.
        leader: Option<PeerId>,
    },
    /// A majority holds this value.
    Committed {
        /// The record that must be on disk before.
        after: RecordNumber,
        /// The term of the entry.
        term: Term,
        /// The entry's place in the log.
        index: u64,
        /// The value.
        value: Vec<u8>,
    },
    /// This candidate got no vote because it does not count these members.
    Unknown {
        /// The candidate.
        candidate: PeerId,
        /// The members that it does not count.
        members: BTreeSet<PeerId>,
    },
}

/// One member's part in a group.
pub struct Group {
    name: String,
    id: PeerId,
    pub(crate) raw: RawNode<Store>,
    pub(crate) members: BTreeSet<PeerId>,
    pub(crate) foreign: BTreeSet<PeerId>,
    /// A membership that waits for the end of this leadership.
    next_members: Option<(BTreeSet<PeerId>, BTreeSet<PeerId>)>,
    /// Foreign members that voted for this one, and in which term.
    pub(crate) foreign_votes: BTreeSet<(Term, PeerId)>,
    /// Answers on behalf of foreign members, to be taken in.
    pub(crate) answers: Vec<Message>,
    timer: Option<Instant>,
    /// This member stands for election in a later term than this.
    past: Term,
    /// Elections in a row that brought no leader.
    attempts: u32,
    leader: (Term, Option<PeerId>),
    /// When this member last gave its vote away, heard its leader, or as a leader was heard: an election
    /// is on or over, and a member that stood for the next one now would undo it.
    pub(crate) settled: Option<Instant>,
    /// The last value committed.
    value: Vec<u8>,
    applied: u64,
    pub(crate) number: RecordNumber,
    rng: ChaCha8Rng,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("name", &self.name)
            .field("id", &self.id)
            .field("saved", self.saved())
            .field("role", &self.raw.raft.state)
            .field("timer", &self.timer)
            .finish_non_exhaustive()
    }
}

impl Group {
    /// The member `id` of the group `name`, asleep and alone, with what its journal held. `saved` must
    /// come from [`crate::journal::read`], which checks it.
    #[must_use]
    pub fn new(name: &str, id: PeerId, saved: Saved, seed: u64) -> Self {
        let (applied, value) = (saved.snapshot.1, saved.value.clone());
        let term = saved.term;
        let mut group = Self {
            name: name.to_owned(),
            id,
            raw: node(id, applied, Store::new(saved, vec![id.number()])),
            members: BTreeSet::from([id]),
            foreign: BTreeSet::new(),
            next_members: None,
            foreign_votes: BTreeSet::new(),
            answers: Vec::new(),
            timer: None,
            past: Term(0),
            attempts: 0,
            leader: (term, None),
            settled: None,
            value,
            applied,
            number: RecordNumber::default(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        };
        // A value that was committed before the restart is known again at once.
        let mut known = Vec::new();
        group.drain(&mut known);
        debug_assert!(known.iter().all(|action| matches!(action, Action::Committed { .. })));
        group
    }

    /// This member.
    #[must_use]
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// The term this member is in.
    #[must_use]
    pub fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    /// Whether this member leads.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// Whether this member leads and knows all that was ever committed: a majority has confirmed its
    /// leadership by taking an entry of its own term.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.is_leader() && self.raw.raft.commit_to_current_term()
    }

    /// Whether an election or a leader keeps the group busy.
    #[must_use]
    pub fn is_awake(&self) -> bool {
        self.timer.is_some()
    }

    /// The last value committed; empty if there is none yet.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// The index of the last entry.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.raw.store().last().1
    }

    /// All that is, or is about to be, on disk.
    #[must_use]
    pub fn saved(&self) -> &Saved {
        self.raw.store().saved()
    }

    /// How many members hold the log up to `index`. Only a leader knows.
    #[must_use]
    pub fn acknowledged(&self, index: u64) -> usize {
        self.raw.raft.prs().iter().filter(|(_, progress)| progress.matched >= index).count()
    }

    /// When [`Input::Deadline`] is due. None for a group that sleeps.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timer
    }

    /// Takes in what happened; appends what is to be done.
    pub fn handle(&mut self, now: Instant, input: Input<'_>, out: &mut Vec<Action>) {
        match input {
            Input::Message(bytes) => self.on_message(now, bytes, out),
            Input::Members { voters, foreign } => self.on_members(voters, foreign),
            Input::Wake { past } => self.on_wake(now, past, out),
            Input::Sleep => self.on_sleep(),
            Input::Propose(value) => {
                assert!(!value.is_empty() && value.len() <= MAX_VALUE, "a value of {} bytes", value.len());
                if self.is_leader() {
                    // Fails only while leadership is handed over, which nothing here does.
                    let _ = self.raw.propose(Vec::new(), value);
                }
            }
            Input::Vote { from, term } => self.on_foreign_vote(from, term),
            Input::Deadline => self.on_deadline(now, out),
        }
        self.drain(out);
        self.carry_out_role(now);
    }

    fn on_message(&mut self, now: Instant, bytes: &[u8], out: &mut Vec<Action>) {
        let Some(Envelope { mut message, members }) = wire::decode(bytes) else { return };
        let raft = &self.raw.raft;
        let view = View {
            store: self.raw.store(),
            myself: self.id.number(),
            term: raft.term,
            leader: raft.leader_id,
        };
        if !guard::acceptable(view, &message) {
            return;
        }
        let kind = message.get_msg_type();
        let from = message.from;
        if matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote) {
            if kind == MessageType::MsgRequestPreVote && self.is_settled_without(now, from) {
                return;
            }
            let missing = self.uncounted(&members);
            if !missing.is_empty() {
                let candidate = PeerId::new(from).expect("a voter's number is not zero");
                out.push(Action::Unknown { candidate, members: missing });
                return;
            }
        }
        if kind == MessageType::MsgSnapshot {
            // Membership is this member's own knowledge, never the sender's.
            let conf_state = self.raw.store().conf_state();
            message.mut_snapshot().mut_metadata().set_conf_state(conf_state);
        }
        let before = self.raw.raft.state;
        let granted = kind == MessageType::MsgRequestVoteResponse
            && !message.reject
            && message.term == self.raw.raft.term;
        if granted && let Some(from) = PeerId::new(from) {
            out.push(Action::Granted { from, term: Term(message.term) });
        }
        self.step(message);
        let raft = &self.raw.raft;
        let voted = kind == MessageType::MsgRequestVote && raft.vote == from;
        let led = raft.leader_id == from;
        match raft.state {
            StateRole::Follower if voted || led => {
                self.settled = Some(now);
                if self.timer.is_some() {
                    self.attempts = 0;
                    self.timer = Some(now + self.election_timeout());
                }
            }
            // The votes have their own time, whatever the question for them took.
            StateRole::Candidate if before == StateRole::PreCandidate => {
                self.timer = Some(now + self.election_timeout());
            }
            StateRole::Leader => self.settled = Some(now),
            _ => {}
        }
    }

    /// Whether somebody other than this candidate was elected, or was about to be, a moment ago.
    fn is_settled_without(&self, now: Instant, candidate: u64) -> bool {
        let raft = &self.raw.raft;
        let theirs = raft.vote == candidate || raft.leader_id == candidate;
        !theirs && self.has_settled(now)
    }

    fn has_settled(&self, now: Instant) -> bool {
        self.settled.is_some_and(|at| now.since(at) < ELECTION_TIMEOUT)
    }

    /// Members that this one counts and the candidate does not.
    fn uncounted(&self, theirs: &[u64]) -> BTreeSet<PeerId> {
        self.members.iter().filter(|id| !theirs.contains(&id.number())).copied().collect()
    }

    fn on_members(&mut self, voters: BTreeSet<PeerId>, foreign: BTreeSet<PeerId>) {
        assert!(voters.contains(&self.id), "a member belongs to its own group");
        assert!(foreign.is_subset(&voters) && !foreign.contains(&self.id));
        self.next_members = Some((voters, foreign));
    }

    fn on_wake(&mut self, now: Instant, past: Term, out: &mut Vec<Action>) {
        self.past = self.past.max(past);
        if self.timer.is_some() {
            return;
        }
        if self.term() < past {
            self.raw.raft.become_follower(past.0, 0);
        }
        self.attempts = 0;
        // Members wake when they learn that the master is down, some of them after they have voted.
        let wait = if self.has_settled(now) { self.election_timeout() } else { STAGGER * self.rank() };
        self.timer = Some(now + wait);
        self.drain(out);
        self.on_deadline(now, out);
    }

    /// A leader that goes to sleep leads no more: it would not be heard of.
    fn on_sleep(&mut self) {
        self.timer = None;
        if self.raw.raft.state != StateRole::Follower {
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, 0);
        }
    }

    /// This member's place in the order of candidates. Each group has another order, so that the work
    /// of a whole host going down is spread.
    fn rank(&self) -> u32 {
        let count = self.members.len() as u32;
        let place = self.members.range(..self.id).count() as u32;
        let first =
            self.name.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
        (place + count - first % count) % count
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.timer.is_none_or(|due| now < due) {
            return;
        }
        if self.is_leader() {
            self.raw.tick();
            self.timer = Some(now + HEARTBEAT);
            return;
        }
        self.timer = Some(now + self.election_timeout());
        self.attempts += 1;
        // Leftovers of earlier inputs must not end up in the candidate's first batch.
        self.drain(out);
        if self.term() < self.past {
            self.raw.raft.become_follower(self.past.0, 0);
        }
        self.raw.campaign().expect("a local step cannot fail");
    }

    fn election_timeout(&mut self) -> Duration {
        // One split vote is chance, and repeated at once.
        let base = ELECTION_TIMEOUT * 2u32.pow(self.attempts.saturating_sub(1).min(LONGEST_DOUBLING));
        let chance = self.rng.random_range(0..base.as_micros() as u64);
        base + Duration::from_micros(chance)
    }

    pub(crate) fn step(&mut self, message: Message) {
        // It refuses answers from non-members, which the guard has turned away already.
        let _ = self.raw.step(message);
    }

    /// Carries out the consequences of a change of role, once everything else is done.
    fn carry_out_role(&mut self, now: Instant) {
        if self.is_leader() && self.timer.is_some_and(|due| due > now + HEARTBEAT) {
            self.attempts = 0;
            self.timer = Some(now + HEARTBEAT);
        }
        let term = self.term();
        self.foreign_votes.retain(|(of, _)| *of >= term);
        if self.is_leader() {
            return;
        }
        let Some((members, foreign)) = self.next_members.take() else { return };
        if members != self.members {
            let voters = members.iter().map(|id| id.number()).collect();
            let store = Store::new(self.saved().clone(), voters);
            self.raw = node(self.id, self.applied, store);
        }
        (self.members, self.foreign) = (members, foreign);
    }

    /// Carries out what the raft node has ready, until it has nothing more.
    pub(crate) fn drain(&mut self, out: &mut Vec<Action>) {
        loop {
            while self.raw.has_ready() {
                self.take_ready(out);
            }
            let answers = std::mem::take(&mut self.answers);
            if answers.is_empty() {
                break;
            }
            for answer in answers {
                self.step(answer);
            }
        }
        let raft = &self.raw.raft;
        let leader = (Term(raft.term), PeerId::new(raft.leader_id));
        if leader != self.leader {
            self.leader = leader;
            out.push(Action::Leader { after: self.number, term: leader.0, leader: leader.1 });
        }
    }

    fn take_ready(&mut self, out: &mut Vec<Action>) {
        let before = self.number;
        let mut ready = self.raw.ready();
        let snapshot = ready.snapshot().clone();
        if !snapshot.is_empty() {
            self.install(&snapshot);
        }
        let entries = ready.take_entries();
        if !entries.is_empty() {
            self.note(Change::Entries(entries.iter().map(from_raft).collect()));
        }
        if let Some(hard) = ready.hs() {
            let (term, vote, commit) = (Term(hard.term), hard.vote, hard.commit);
            self.note(Change::Ballot { term, vote, commit });
        }
        let at_once = ready.take_messages();
        let once_synced = ready.take_persisted_messages();
        let mut committed = ready.take_committed_entries();
        let mut light = self.raw.advance(ready);
        if let Some(commit) = light.commit_index() {
            let saved = self.saved();
            let (term, vote) = (saved.term, saved.vote);
            self.note(Change::Ballot { term, vote, commit });
        }
        committed.extend(light.take_committed_entries());
        let values = self.apply(&committed);
        self.raw.advance_apply();
        self.write_record(out);
        let synced = self.number;
        // A leader may replicate while it writes; it waits only for what was written before.
        self.transmit(before, at_once, out);
        self.transmit(synced, once_synced, out);
        self.transmit(synced, light.take_messages(), out);
        let installed = (!snapshot.is_empty() && !snapshot.data.is_empty()).then(|| {
            let metadata = snapshot.get_metadata();
            (Term(metadata.term), metadata.index, snapshot.data.to_vec())
        });
        for (term, index, value) in installed.into_iter().chain(values) {
            out.push(Action::Committed { after: synced, term, index, value });
        }
    }

    fn note(&mut self, change: Change) {
        self.raw.mut_store().change(change);
    }

    fn install(&mut self, snapshot: &Snapshot) {
        let metadata = snapshot.get_metadata();
        self.applied = metadata.index;
        self.value = snapshot.data.to_vec();
        let (term, index) = (Term(metadata.term), metadata.index);
        self.note(Change::Snapshot { term, index, value: self.value.clone() });
    }

    fn apply(&mut self, committed: &[Entry]) -> Vec<(Term, u64, Vec<u8>)> {
        let mut values = Vec::new();
        for entry in committed {
            self.applied = entry.index;
            if !entry.data.is_empty() {
                self.value = entry.data.to_vec();
                values.push((Term(entry.term), entry.index, self.value.clone()));
            }
        }
        if self.saved().entries.len() > LONGEST_LOG {
            let index = self.applied;
            let term = self.raw.store().term_at(index).expect("an applied entry is in the log");
            self.note(Change::Snapshot { term, index, value: self.value.clone() });
        }
        values
    }

    fn write_record(&mut self, out: &mut Vec<Action>) {
        let changes = self.raw.mut_store().take_noted();
        if !changes.is_empty() {
            self.number.0 += 1;
            let record = Record { group: self.name.clone(), changes };
            out.push(Action::Persist { number: self.number, record });
        }
    }

    fn transmit(&mut self, after: RecordNumber, messages: Vec<Message>, out: &mut Vec<Action>) {
        for message in messages {
            let Some(to) = PeerId::new(message.to) else { continue };
            if self.foreign.contains(&to) || !self.members.contains(&to) {
                self.transmit_foreign(after, to, &message, out);
            } else {
                let bytes = wire::encode(&message, self.raw.store().voters());
                out.push(Action::Send { after, to, message: bytes });
            }
        }
    }
}

fn node(id: PeerId, applied: u64, store: Store) -> RawNode<Store> {
    let config = Config {
        id: id.number(),
        // Only a leader is ever ticked, for its heartbeats. So the election timeout, which the crate
        // draws by chance from this range of one, is never looked at.
        election_tick: 10,
        min_election_tick: 10,
        max_election_tick: 11,
        heartbeat_tick: 1,
        applied,
        pre_vote: true,
        max_inflight_msgs: 16,
        ..Config::default()
    };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    RawNode::new(&config, store, &logger).expect("the configuration is a constant")
}

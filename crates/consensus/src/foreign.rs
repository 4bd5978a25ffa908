//! Members that speak Redis's sentinel protocol: voters without a log.
//!
//! A Redis sentinel knows votes (`SENTINEL IS-MASTER-DOWN-BY-ADDR` with a run id) and nothing else of
//! Raft. It takes part like this:
//!
//! - As a voter: a request for its vote becomes [`Action::AskVote`], its answer comes back as
//!   [`crate::Input::Vote`]. It has no pre-vote, so that one is answered in its name.
//! - As a candidate: [`Group::vote_for`] puts its request through the same door as Raft's, so there is
//!   one vote per term over both protocols, and it is on disk before the answer leaves.
//! - As a follower: it keeps no log. A leader that has its vote counts it as holding every entry: its
//!   majority of votes is what makes a Redis sentinel's switch valid, too.
//!
//! So a mixed group is as safe as Redis's own rules: one leader per epoch, whose switch spreads by
//! hello messages. What a commit adds to that, holds among the members that keep a log.

use clock::Instant;
use raft::eraftpb::{Message, MessageType};

use crate::group::{Action, Group};
use crate::{PeerId, RecordNumber, Term};

/// Terms that a foreign candidate may name; leaves room to go on counting.
const MAX_TERM: Term = Term(1 << 47);

impl Group {
    /// A foreign candidate asks for the vote of `term`. Returns the member that has this one's vote, and in which
    /// term; the answer may leave once `self`'s last record is on disk.
    pub fn vote_for(
        &mut self,
        now: Instant,
        candidate: PeerId,
        term: Term,
        out: &mut Vec<Action>,
    ) -> (RecordNumber, Term, Option<PeerId>) {
        if candidate != self.id() && term > Term(0) && term < MAX_TERM {
            let mut message = Message {
                to: self.id().number(),
                from: candidate.number(),
                term: term.0,
                // It has no log to compare; Redis's rule asks for none.
                log_term: u64::from(u32::MAX),
                index: self.last_index() + 1,
                ..Message::default()
            };
            message.set_msg_type(MessageType::MsgRequestVote);
            self.step(message);
            self.handle(now, crate::Input::Deadline, out);
            if self.saved().vote == candidate.number() {
                self.settled = Some(now);
            }
        }
        (self.number, self.saved().term, PeerId::new(self.saved().vote))
    }

    pub(crate) fn on_foreign_vote(&mut self, from: PeerId, term: Term) {
        if !self.foreign.contains(&from) || term != self.term() {
            return;
        }
        self.foreign_votes.insert((term, from));
        self.answer(from, MessageType::MsgRequestVoteResponse, term.0, 0);
    }

    /// Sends a message to a member that cannot read it: asks in its protocol, or answers in its name.
    pub(crate) fn transmit_foreign(
        &mut self,
        after: RecordNumber,
        to: PeerId,
        message: &Message,
        out: &mut Vec<Action>,
    ) {
        let follows = self.foreign_votes.contains(&(Term(message.term), to));
        match message.get_msg_type() {
            MessageType::MsgRequestPreVote => {
                self.answer(to, MessageType::MsgRequestPreVoteResponse, message.term, 0);
            }
            MessageType::MsgRequestVote => {
                out.push(Action::AskVote { after, to, term: Term(message.term) });
            }
            MessageType::MsgAppend if follows => {
                let held = message.index + message.entries.len() as u64;
                self.answer(to, MessageType::MsgAppendResponse, message.term, held);
            }
            MessageType::MsgSnapshot if follows => {
                let held = message.get_snapshot().get_metadata().index;
                self.answer(to, MessageType::MsgAppendResponse, message.term, held);
            }
            MessageType::MsgHeartbeat if follows => {
                self.answer(to, MessageType::MsgHeartbeatResponse, message.term, 0);
            }
            _ => {}
        }
    }

    fn answer(&mut self, from: PeerId, kind: MessageType, term: u64, index: u64) {
        let mut answer =
            Message { to: self.id().number(), from: from.number(), term, index, ..Message::default() };
        answer.set_msg_type(kind);
        self.answers.push(answer);
    }
}

//! Members that speak the Redis Sentinel protocol: voters without a log.
//!
//! A Redis sentinel implements voting (`SENTINEL IS-MASTER-DOWN-BY-ADDR` with a run id) and nothing else of Raft. It
//! takes part as follows:
//!
//! * As a voter: a vote request becomes [`GroupAction::RequestVote`] and the reply is fed as
//!   [`crate::GroupInput::ForeignVote`]. Redis has no pre-vote, so the group answers pre-vote requests on its behalf.
//! * As a candidate: [`Group::vote_for`] handles its request with Raft's own voting rules. There is one vote per term
//!   across both protocols, and it is durable before the reply leaves.
//! * As a follower: it has no log. A leader that has its vote treats all entries as replicated to it, because a
//!   majority of votes is all that a Redis sentinel needs for a failover.
//!
//! A mixed group is therefore as safe as Redis Sentinel: one leader per epoch, whose configuration spreads through
//! hello messages. The additional guarantees of a commit hold among the members with a log.

use clock::Instant;
use raft::eraftpb::{Message, MessageType};

use crate::group::{Group, GroupAction};
use crate::{PeerId, RecordNumber, Term};

/// Terms of foreign candidates must be below this limit, so that later terms cannot overflow.
const MAX_TERM: Term = Term(1 << 47);

impl Group {
    /// Handles a vote request of a foreign candidate. Returns the member that this member voted for and the term of
    /// that vote. The caller may send the reply once the returned record is durable.
    pub fn vote_for(
        &mut self,
        now: Instant,
        candidate: PeerId,
        term: Term,
        out: &mut Vec<GroupAction>,
    ) -> (RecordNumber, Term, Option<PeerId>) {
        if candidate != self.id() && term > Term(0) && term < MAX_TERM {
            let mut message = Message {
                to: self.id().number(),
                from: candidate.number(),
                term: term.0,
                // A foreign candidate has no log, and the Redis protocol does not compare logs, so the candidate counts
                // as up to date.
                log_term: u64::from(u32::MAX),
                index: self.last_index() + 1,
                ..Message::default()
            };
            message.set_msg_type(MessageType::MsgRequestVote);
            self.step(message);
            self.handle(now, crate::GroupInput::Deadline, out);
            if self.saved_state().voted_for == candidate.number() {
                self.last_activity_at = Some(now);
            }
        }
        (self.record_number, self.saved_state().term, PeerId::new(self.saved_state().voted_for))
    }

    pub(crate) fn on_foreign_vote(&mut self, from: PeerId, term: Term) {
        if !self.foreign_members.contains(&from) || term != self.term() {
            return;
        }
        self.foreign_votes.insert((term, from));
        self.answer_for_foreign_member(from, MessageType::MsgRequestVoteResponse, term.0, 0);
    }

    /// Sends a message to a foreign member: translates vote requests into its protocol, and answers the other messages
    /// on its behalf.
    pub(crate) fn transmit_foreign(
        &mut self,
        after_record: RecordNumber,
        to: PeerId,
        message: &Message,
        out: &mut Vec<GroupAction>,
    ) {
        let follows = self.foreign_votes.contains(&(Term(message.term), to));
        match message.get_msg_type() {
            MessageType::MsgRequestPreVote => {
                self.answer_for_foreign_member(to, MessageType::MsgRequestPreVoteResponse, message.term, 0);
            }
            MessageType::MsgRequestVote => {
                out.push(GroupAction::RequestVote { after_record, to, term: Term(message.term) });
            }
            MessageType::MsgAppend if follows => {
                let held = message.index + message.entries.len() as u64;
                self.answer_for_foreign_member(to, MessageType::MsgAppendResponse, message.term, held);
            }
            MessageType::MsgSnapshot if follows => {
                let held = message.get_snapshot().get_metadata().index;
                self.answer_for_foreign_member(to, MessageType::MsgAppendResponse, message.term, held);
            }
            MessageType::MsgHeartbeat if follows => {
                self.answer_for_foreign_member(to, MessageType::MsgHeartbeatResponse, message.term, 0);
            }
            _ => {}
        }
    }

    fn answer_for_foreign_member(&mut self, from: PeerId, kind: MessageType, term: u64, index: u64) {
        let mut answer =
            Message { to: self.id().number(), from: from.number(), term, index, ..Message::default() };
        answer.set_msg_type(kind);
        self.foreign_replies.push(answer);
    }
}

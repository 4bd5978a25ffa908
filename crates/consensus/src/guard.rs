//! Validates messages before they reach the `raft` crate.
//!
//! The `raft` crate trusts its peers: a heartbeat that commits more than the log holds, or an entry that contradicts a
//! committed one, makes it panic. Anyone who can connect to a sentinel can send bytes, so every message is checked
//! against the current state first. Only messages that no correct member would send are rejected.

use raft::eraftpb::{Message, MessageType};

use crate::Term;
use crate::store::GroupStore;

/// Terms and indexes must not exceed this limit, which is far above realistic values, so that increments cannot
/// overflow.
const MAX_TERM_OR_INDEX: u64 = 1 << 48;

/// The part of a group's state that messages are checked against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupView<'a> {
    pub(crate) store: &'a GroupStore,
    pub(crate) myself: u64,
    pub(crate) term: u64,
    pub(crate) leader: u64,
}

/// Returns whether a correct member could have sent `message` to a group in this state.
pub(crate) fn is_plausible(view: GroupView<'_>, message: &Message) -> bool {
    let numbers = [message.term, message.index, message.commit, message.log_term, message.reject_hint];
    let known = view.store.voters().contains(&message.from);
    message.to == view.myself
        && message.from != view.myself
        && known
        && message.term > 0
        && numbers.iter().all(|&number| number < MAX_TERM_OR_INDEX)
        && match message.get_msg_type() {
            MessageType::MsgAppend => is_from_leader(view, message) && is_valid_append(view.store, message),
            MessageType::MsgHeartbeat => {
                is_from_leader(view, message) && message.commit <= view.store.last_entry().1
            }
            MessageType::MsgSnapshot => {
                is_from_leader(view, message) && is_valid_snapshot(view.store, message)
            }
            MessageType::MsgAppendResponse => message.index <= view.store.last_entry().1,
            MessageType::MsgRequestVote
            | MessageType::MsgRequestPreVote
            | MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVoteResponse
            | MessageType::MsgHeartbeatResponse => message.entries.is_empty(),
            _ => false,
        }
}

/// Returns whether `message` comes from the known leader of the term, or no leader of the term is known yet.
fn is_from_leader(view: GroupView<'_>, message: &Message) -> bool {
    message.term != view.term || view.leader == 0 || view.leader == message.from
}

fn is_valid_append(store: &GroupStore, message: &Message) -> bool {
    let mut term = message.log_term;
    for (entry, index) in message.entries.iter().zip(message.index + 1..) {
        if entry.index != index || entry.term < term || entry.term > message.term {
            return false;
        }
        term = entry.term;
        let committed = index <= store.saved_group().commit_index;
        if committed && store.term_at(index).is_some_and(|ours| ours != Term(entry.term)) {
            return false;
        }
    }
    message.log_term <= message.term
}

fn is_valid_snapshot(store: &GroupStore, message: &Message) -> bool {
    let metadata = message.get_snapshot().get_metadata();
    let committed = metadata.index <= store.saved_group().commit_index;
    metadata.index > 0
        && metadata.index < MAX_TERM_OR_INDEX
        && metadata.term > 0
        && metadata.term <= message.term
        && !(committed && store.term_at(metadata.index).is_some_and(|ours| ours != Term(metadata.term)))
}

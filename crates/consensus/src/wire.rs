//! The message format between members: a version byte followed by [`Envelope`] in bincode 2.
//!
//! The messages of the `raft` crate are protobuf values with many unused fields. This format contains only the fields
//! in use and is validated when decoded.

use raft::eraftpb::{Message, MessageType, Snapshot};
use serde::{Deserialize, Serialize};

use crate::journal::LogEntry;
use crate::store::{from_raft_entry, to_raft_entry};

const WIRE_VERSION: u8 = 1;
/// Maximum size of a message in bytes; messages contain at most a short log of short values.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum FrameKind {
    PreVote,
    PreVoteReply,
    Vote,
    VoteReply,
    Append,
    AppendReply,
    Snapshot,
    Heartbeat,
    HeartbeatReply,
}

const FRAME_KINDS: [(FrameKind, MessageType); 9] = [
    (FrameKind::PreVote, MessageType::MsgRequestPreVote),
    (FrameKind::PreVoteReply, MessageType::MsgRequestPreVoteResponse),
    (FrameKind::Vote, MessageType::MsgRequestVote),
    (FrameKind::VoteReply, MessageType::MsgRequestVoteResponse),
    (FrameKind::Append, MessageType::MsgAppend),
    (FrameKind::AppendReply, MessageType::MsgAppendResponse),
    (FrameKind::Snapshot, MessageType::MsgSnapshot),
    (FrameKind::Heartbeat, MessageType::MsgHeartbeat),
    (FrameKind::HeartbeatReply, MessageType::MsgHeartbeatResponse),
];

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WireMessage {
    kind: FrameKind,
    to: u64,
    from: u64,
    term: u64,
    log_term: u64,
    index: u64,
    entries: Vec<LogEntry>,
    commit: u64,
    commit_term: u64,
    /// Term and index of the last entry in the snapshot, and the value at that index.
    snapshot: Option<(u64, u64, Vec<u8>)>,
    is_rejection: bool,
    reject_hint: u64,
    /// The members known to the sender; empty except in vote and pre-vote requests.
    members: Vec<u64>,
}

/// A Raft message with the additional data of this crate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Envelope {
    pub(crate) message: Message,
    pub(crate) members: Vec<u64>,
}

pub(crate) fn encode(message: &Message, members: &[u64]) -> Vec<u8> {
    let kind = FRAME_KINDS.iter().find(|(_, theirs)| *theirs == message.get_msg_type());
    let (kind, _) = kind.expect("only messages between members are sent");
    let asks = matches!(kind, FrameKind::PreVote | FrameKind::Vote);
    let snapshot = (*kind == FrameKind::Snapshot).then(|| {
        let snapshot = message.get_snapshot();
        let metadata = snapshot.get_metadata();
        (metadata.term, metadata.index, snapshot.data.to_vec())
    });
    let wire = WireMessage {
        kind: *kind,
        to: message.to,
        from: message.from,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        entries: message.entries.iter().map(from_raft_entry).collect(),
        commit: message.commit,
        commit_term: message.commit_term,
        snapshot,
        is_rejection: message.reject,
        reject_hint: message.reject_hint,
        members: if asks { members.to_vec() } else { Vec::new() },
    };
    let mut bytes = vec![WIRE_VERSION];
    bincode::serde::encode_into_std_write(&wire, &mut bytes, bincode::config::standard())
        .expect("plain data is always encodable");
    bytes
}

/// Decodes a message; trailing bytes are an error.
pub(crate) fn decode(bytes: &[u8]) -> Option<Envelope> {
    let (&WIRE_VERSION, body) = bytes.split_first()? else { return None };
    if body.len() > MAX_MESSAGE_BYTES {
        return None;
    }
    let config = bincode::config::standard().with_limit::<MAX_MESSAGE_BYTES>();
    let (wire, used): (WireMessage, usize) = bincode::serde::decode_from_slice(body, config).ok()?;
    if used != body.len() {
        return None;
    }
    let (_, kind) = FRAME_KINDS.iter().find(|(ours, _)| *ours == wire.kind)?;
    let mut message = Message {
        to: wire.to,
        from: wire.from,
        term: wire.term,
        log_term: wire.log_term,
        index: wire.index,
        commit: wire.commit,
        commit_term: wire.commit_term,
        reject: wire.is_rejection,
        reject_hint: wire.reject_hint,
        ..Message::default()
    };
    message.set_msg_type(*kind);
    message.set_entries(wire.entries.iter().map(to_raft_entry).collect::<Vec<_>>().into());
    if let Some((term, index, value)) = wire.snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.set_data(value.into());
        (snapshot.mut_metadata().term, snapshot.mut_metadata().index) = (term, index);
        message.set_snapshot(snapshot);
    }
    Some(Envelope { message, members: wire.members })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use raft::eraftpb::Entry;

    use super::*;

    #[test]
    fn all_message_kinds_round_trip() {
        for (_, kind) in FRAME_KINDS {
            let mut message = Message { to: 1, from: 2, term: 3, index: 4, commit: 5, ..Message::default() };
            message.set_msg_type(kind);
            message.mut_entries().push(Entry {
                term: 3,
                index: 5,
                data: b"x".to_vec().into(),
                ..Entry::default()
            });
            if kind == MessageType::MsgSnapshot {
                message.mut_snapshot().mut_metadata().index = 9;
                message.mut_snapshot().data = b"value".to_vec().into();
            }
            let back = decode(&encode(&message, &[1, 2])).unwrap();
            assert_eq!(back.message, message);
            assert_eq!(
                back.members.is_empty(),
                !matches!(kind, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote)
            );
        }
    }

    #[test]
    fn unknown_versions_and_trailing_bytes_are_rejected() {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgHeartbeat);
        let good = encode(&message, &[]);
        let mut longer = good.clone();
        longer.push(0);
        let mut newer = good;
        newer[0] = 2;
        assert_eq!(decode(&longer), None);
        assert_eq!(decode(&newer), None);
        assert_eq!(decode(b""), None);
    }

    proptest! {
        #[test]
        fn decoding_arbitrary_bytes_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
            let _ = decode(&bytes);
            bytes[0] = WIRE_VERSION;
            let _ = decode(&bytes);
        }
    }
}

//! Collects the commands that recreate a stream.

use std::collections::BTreeMap;

use clock::Millis;
use keyspace::{StreamHead, StreamId, StreamPiece, node_entries};

use crate::value::commands::{CommandWords, Commands};

/// Progress within the current stream.
#[derive(Debug, Default)]
pub(in crate::value) struct StreamCommands {
    /// Number of entries written so far.
    entries: u64,
    group: GroupState,
    producer: Vec<u8>,
}

/// The current consumer group.
#[derive(Debug, Default)]
struct GroupState {
    name: Vec<u8>,
    consumer: Vec<u8>,
    pending: BTreeMap<StreamId, (Millis, u64)>,
}

pub(super) fn add_piece(piece: &StreamPiece<'_>, out: &mut Commands) {
    match *piece {
        StreamPiece::Nodes(_) | StreamPiece::Consumers(_) => {}
        StreamPiece::Node { id, bytes } => node_entries(id, bytes, &mut |entry| {
            out.stream.entries += 1;
            let mut words = CommandWords::default();
            words.push(entry.id.to_string().as_bytes());
            entry.for_each(&mut |name, value| {
                words.push(name);
                words.push(value);
            });
            out.add_key_command_with_words("XADD", &mut words);
        }),
        StreamPiece::Head { head, .. } => add_counters(&head, out),
        StreamPiece::Group { name, last_delivered: last, entries_read: read, .. } => {
            out.stream.group = GroupState { name: name.to_vec(), ..GroupState::default() };
            let read = read.map_or_else(|| "-1".to_owned(), |read| read.to_string());
            let last = last.to_string();
            let counts: [&[u8]; 2] = [b"ENTRIESREAD", read.as_bytes()];
            let name = &out.stream.group.name.clone();
            out.add_key_subcommand(
                "XGROUP",
                "CREATE",
                &[&[&name[..], last.as_bytes()][..], &counts].concat(),
            );
        }
        StreamPiece::Pending { id, delivery_time: delivered, delivery_count: count } => {
            out.stream.group.pending.insert(id, (delivered, count));
        }
        StreamPiece::Consumer { name, .. } => {
            out.stream.group.consumer = name.to_vec();
            let group = &out.stream.group.name.clone();
            out.add_key_subcommand("XGROUP", "CREATECONSUMER", &[group, name]);
        }
        StreamPiece::ConsumerPending(id) => add_claim(id, out),
        StreamPiece::Producers { bounds, .. } => {
            let (duration, most) = (bounds.duration_secs.to_string(), bounds.max_iids.to_string());
            let words: [&[u8]; 4] = [b"IDMP-DURATION", duration.as_bytes(), b"IDMP-MAXSIZE", most.as_bytes()];
            out.add_key_command("XCFGSET", &words);
        }
        StreamPiece::Producer { name, .. } => out.stream.producer = name.to_vec(),
        StreamPiece::Iid { iid, id } => {
            let producer = out.stream.producer.clone();
            out.add_key_command("XIDMPRECORD", &[&producer, iid, id.to_string().as_bytes()]);
        }
        // These totals are lost, because no command can set them.
        StreamPiece::Totals(_) => {}
    }
}

/// Adds the commands that set the stream's counters. An empty stream is created by adding an entry that is trimmed at
/// once.
fn add_counters(head: &StreamHead, out: &mut Commands) {
    if out.stream.entries == 0 {
        let first = StreamId { millis: 0, sequence: 1 };
        let id = head.last_id.max(first).to_string();
        out.add_key_command("XADD", &[b"MAXLEN", b"0", id.as_bytes(), b"x", b"y"]);
    }
    let (last, added, deleted) =
        (head.last_id.to_string(), head.entries_added.to_string(), head.max_deleted_id.to_string());
    let counts: [&[u8]; 4] = [b"ENTRIESADDED", added.as_bytes(), b"MAXDELETEDID", deleted.as_bytes()];
    out.add_key_command("XSETID", &[&[last.as_bytes()][..], &counts].concat());
}

/// Adds an XCLAIM that assigns a pending entry to the current consumer.
fn add_claim(id: StreamId, out: &mut Commands) {
    let group = &mut out.stream.group;
    let Some((Millis(delivered), count)) = group.pending.remove(&id) else { return };
    let (id, delivered, count) = (id.to_string(), delivered.to_string(), count.to_string());
    let (name, consumer) = (group.name.clone(), group.consumer.clone());
    let whose: [&[u8]; 4] = [&name, &consumer, b"0", id.as_bytes()];
    let how: [&[u8]; 6] =
        [b"TIME", delivered.as_bytes(), b"RETRYCOUNT", count.as_bytes(), b"JUSTID", b"FORCE"];
    out.add_key_command("XCLAIM", &[&whose[..], &how].concat());
}

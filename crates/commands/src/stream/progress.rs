//! Progress of a consumer group: its read counter and its lag.
//!
//! Neither number is updated with each entry. The stream counts all entries ever added, and the group stores its last
//! known read counter, which deletions can make unknown. Entries that were trimmed before the group read them do not
//! count as lag: XINFO GROUPS documents the lag as the number of entries in the stream that are still to be delivered.
//! Redis 8 replies this way (Valkey 9.1 counts the trimmed entries).

use std::cmp::Ordering;

use keyspace::{Group, Stream, StreamId};

/// Whether an entry at or after `from` may have been deleted.
fn has_gaps(stream: &Stream, from: StreamId) -> bool {
    let head = stream.head();
    head.len > 0 && head.max_deleted_id != StreamId::MIN && from <= head.max_deleted_id
}

/// The number of entries added up to and including `id`, or `None` if it is unknown.
pub(super) fn entries_added_up_to(stream: &Stream, id: StreamId) -> Option<u64> {
    let head = stream.head();
    if head.entries_added == 0 {
        return Some(0);
    }
    if head.len == 0 && id <= head.last_id {
        return Some(head.entries_added);
    }
    if id != StreamId::MIN && id < head.max_deleted_id {
        return None;
    }
    match id.cmp(&head.last_id) {
        Ordering::Equal => return Some(head.entries_added),
        // The id is in the future, so the number of entries before it is unknown.
        Ordering::Greater => return None,
        Ordering::Less => {}
    }
    let first = stream.first_id();
    if head.max_deleted_id != StreamId::MIN && head.max_deleted_id >= first {
        return None;
    }
    match id.cmp(&first) {
        Ordering::Less => Some(head.entries_added.wrapping_sub(head.len)),
        Ordering::Equal => Some(head.entries_added.wrapping_sub(head.len).wrapping_add(1)),
        Ordering::Greater => None,
    }
}

/// The number of entries that the group has not read yet, or `None` if it is unknown.
pub(super) fn lag(stream: &Stream, group: &Group) -> Option<i64> {
    let head = stream.head();
    if head.entries_added == 0 || head.len == 0 {
        return Some(0);
    }
    let first = stream.first_id();
    if group.last_delivered < first && head.max_deleted_id < first {
        return Some(head.len as i64);
    }
    let known = group.entries_read.filter(|_| !has_gaps(stream, group.last_delivered));
    let read = known.or_else(|| entries_added_up_to(stream, group.last_delivered))?;
    // ENTRIESREAD can set the read counter above the number of added entries.
    Some((head.entries_added.wrapping_sub(read) as i64).max(0))
}

/// The read counter of a group and its last delivered id.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupProgress {
    pub(super) last_delivered: StreamId,
    pub(super) entries_read: Option<u64>,
}

impl GroupProgress {
    pub(super) fn from_group(group: &Group) -> Self {
        Self { last_delivered: group.last_delivered, entries_read: group.entries_read }
    }

    /// The progress after delivery of entry `id`.
    pub(super) fn advance_to(self, stream: &Stream, id: StreamId) -> Self {
        let read = match self.entries_read {
            Some(read)
                if self.last_delivered >= stream.first_id() && !has_gaps(stream, self.last_delivered) =>
            {
                Some(read.wrapping_add(1))
            }
            read if stream.head().entries_added == 0 => read,
            _ => entries_added_up_to(stream, id),
        };
        Self { last_delivered: id, entries_read: read }
    }
}

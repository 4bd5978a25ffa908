//! How far a group has come: how many entries it has read, and how many are left.
//!
//! Neither is counted entry by entry. A stream knows how many entries were ever added, a group how many it had read
//! when that was last known; entries that were deleted in between make it unknown. Entries that were cut off before the
//! group read them are not left to be read: XINFO GROUPS documents the lag as the number of entries in the stream that
//! are still waiting to be delivered, and Redis 8 replies so (Valkey 9.1 counts the entries that are gone).

use std::cmp::Ordering;

use keyspace::{Group, Stream, StreamId};

/// Whether an entry from this id on may have been deleted.
fn has_gaps(stream: &Stream, from: StreamId) -> bool {
    let head = stream.head();
    head.len > 0 && head.max_deleted != StreamId::MIN && from <= head.max_deleted
}

/// How many entries were added up to this id, if that is known.
pub(super) fn added_up_to(stream: &Stream, id: StreamId) -> Option<u64> {
    let head = stream.head();
    if head.added == 0 {
        return Some(0);
    }
    if head.len == 0 && id <= head.last {
        return Some(head.added);
    }
    if id != StreamId::MIN && id < head.max_deleted {
        return None;
    }
    match id.cmp(&head.last) {
        Ordering::Equal => return Some(head.added),
        // It is not known how many entries will come before it.
        Ordering::Greater => return None,
        Ordering::Less => {}
    }
    let first = stream.first_id();
    if head.max_deleted != StreamId::MIN && head.max_deleted >= first {
        return None;
    }
    match id.cmp(&first) {
        Ordering::Less => Some(head.added.wrapping_sub(head.len)),
        Ordering::Equal => Some(head.added.wrapping_sub(head.len).wrapping_add(1)),
        Ordering::Greater => None,
    }
}

/// How many entries a group has still to read, if that is known.
pub(super) fn lag(stream: &Stream, group: &Group) -> Option<i64> {
    let head = stream.head();
    if head.added == 0 || head.len == 0 {
        return Some(0);
    }
    let first = stream.first_id();
    if group.last < first && head.max_deleted < first {
        return Some(head.len as i64);
    }
    let known = group.read.filter(|_| !has_gaps(stream, group.last));
    let read = known.or_else(|| added_up_to(stream, group.last))?;
    // A group may be told that it has read more than there ever was.
    Some((head.added.wrapping_sub(read) as i64).max(0))
}

/// How many entries a group has read, and which was the last of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    pub(super) last: StreamId,
    pub(super) read: Option<u64>,
}

impl Progress {
    pub(super) fn of(group: &Group) -> Self {
        Self { last: group.last, read: group.read }
    }

    /// When it comes to the entry `id`.
    pub(super) fn to(self, stream: &Stream, id: StreamId) -> Self {
        let read = match self.read {
            Some(read) if self.last >= stream.first_id() && !has_gaps(stream, self.last) => {
                Some(read.wrapping_add(1))
            }
            read if stream.head().added == 0 => read,
            _ => added_up_to(stream, id),
        };
        Self { last: id, read }
    }
}

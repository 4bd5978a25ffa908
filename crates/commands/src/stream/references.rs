//! KEEPREF, DELREF and ACKED, which control the consumer groups' references to deleted entries; XDELEX and XACKDEL.
//!
//! Their effects are replicated as XACK and XDEL, so that replicas without these options have the same data. The
//! behaviour follows Redis 8.6.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::{CommandError, Context, EventClass};
use keyspace::{Key, Stream, StreamId};
use resp::Args;
use smallvec::SmallVec;

use super::common::StreamAccess;
use super::id;

/// What happens to pending entries whose stream entry is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ReferencePolicy {
    /// KEEPREF: the entries stay pending.
    #[default]
    Keep,
    /// DELREF: the entries are removed from the pending lists of all groups.
    Delete,
    /// ACKED: the stream entry is deleted only if all groups have acknowledged it.
    Acknowledged,
}

impl ReferencePolicy {
    pub(super) fn parse_option_word(word: &[u8]) -> Option<Self> {
        match () {
            () if word.eq_ignore_ascii_case(b"keepref") => Some(Self::Keep),
            () if word.eq_ignore_ascii_case(b"delref") => Some(Self::Delete),
            () if word.eq_ignore_ascii_case(b"acked") => Some(Self::Acknowledged),
            () => None,
        }
    }
}

/// Reply of XDELEX and XACKDEL for an entry that does not exist.
const MISSING_REPLY: i64 = -1;
const DELETED_REPLY: i64 = 1;
const REFERENCED_REPLY: i64 = 2;

/// Entries deleted from the stream, and entries removed from the groups' pending lists.
#[derive(Debug, Default)]
pub(super) struct RemovedEntries {
    pub(super) deleted_ids: Vec<StreamId>,
    acknowledged_ids: BTreeMap<Arc<[u8]>, Vec<StreamId>>,
}

impl RemovedEntries {
    fn is_empty(&self) -> bool {
        self.deleted_ids.is_empty() && self.acknowledged_ids.is_empty()
    }

    /// Removes an entry from the pending lists of all groups.
    pub(super) fn remove_from_pending(&mut self, stream: &mut Stream, id: StreamId) {
        for name in stream.remove_pending_references(id) {
            self.acknowledged_ids.entry(name).or_default().push(id);
        }
    }

    /// Removes an entry from the pending list of one group. Returns whether it was pending.
    fn acknowledge(&mut self, stream: &mut Stream, name: &[u8], id: StreamId) -> bool {
        let was_pending = stream.group_mut(name).is_some_and(|group| group.acknowledge(id));
        if was_pending {
            self.acknowledged_ids.entry(name.into()).or_default().push(id);
        }
        was_pending
    }

    fn delete(&mut self, stream: &mut Stream, id: StreamId) -> bool {
        let was_there = stream.delete(id);
        if was_there {
            self.deleted_ids.push(id);
        }
        was_there
    }

    /// Replicates the removal from pending lists as XACK.
    pub(super) fn log_acknowledged_ids(&self, context: &mut Context<'_>, key: &Key<'_>) {
        for (name, ids) in &self.acknowledged_ids {
            log_ids(context, &[b"XACK", key.bytes(), name], ids);
        }
    }

    /// Replicates the deletion of stream entries as XDEL.
    pub(super) fn log_deleted_ids(&self, context: &mut Context<'_>, key: &Key<'_>) {
        if !self.deleted_ids.is_empty() {
            log_ids(context, &[b"XDEL", key.bytes()], &self.deleted_ids);
        }
    }

    /// Replicates the changes and notifies subscribers.
    fn report_and_replicate(&self, context: &mut Context<'_>, key: &Key<'_>) {
        if self.is_empty() {
            return;
        }
        context.report_changes(key, self.deleted_ids.len());
        if !self.deleted_ids.is_empty() {
            context.notify(EventClass::STREAM, "xdel", key);
        }
        self.log_acknowledged_ids(context, key);
        self.log_deleted_ids(context, key);
    }
}

fn log_ids(context: &mut Context<'_>, words: &[&[u8]], ids: &[StreamId]) {
    let ids: Vec<_> = ids.iter().map(|id| id::format_id(*id)).collect();
    let mut effect = words.to_vec();
    effect.extend(ids.iter().map(|id| &id[..]));
    context.log_effect(&effect);
}

/// The arguments of XDELEX and XACKDEL: `[KEEPREF | DELREF | ACKED] IDS numids id [id ...]`.
struct RemovalArguments<'a> {
    reference_policy: ReferencePolicy,
    ids: Args<'a>,
}

impl<'a> RemovalArguments<'a> {
    fn parse(context: &Context<'a>, from: usize) -> Result<Self, CommandError> {
        const INVALID_COUNT: CommandError =
            CommandError::text("ERR Number of IDs must be a positive integer");
        const COUNT_MISMATCH: CommandError =
            CommandError::text("ERR The `numids` parameter must match the number of arguments");
        let args = context.args;
        let (mut references, mut ids, mut index) = (None, None, from);
        while let Some(word) = args.get(index) {
            if let Some(said) = ReferencePolicy::parse_option_word(word) {
                if references.replace(said).is_some() {
                    return Err(CommandError::Syntax);
                }
                index += 1;
            } else if word.eq_ignore_ascii_case(b"ids") && index + 1 < args.len() {
                let count =
                    context.integer_arg(index + 1).ok().filter(|count| *count > 0).ok_or(INVALID_COUNT)?;
                let (first, count) = (index + 2, usize::try_from(count).unwrap_or(usize::MAX));
                if count > args.len() - first {
                    return Err(COUNT_MISMATCH);
                }
                ids = Some(args.skip(first).prefix(count));
                index = first + count;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(Self { reference_policy: references.unwrap_or_default(), ids: ids.ok_or(CommandError::Syntax)? })
    }

    fn parse_ids(&self) -> Result<SmallVec<[StreamId; 8]>, CommandError> {
        self.ids.iter().map(id::parse_id).collect()
    }

    fn reply_all_missing(&self, context: &mut Context<'_>) {
        context.reply.array(self.ids.len());
        (0..self.ids.len()).for_each(|_| context.reply.integer(MISSING_REPLY));
    }
}

/// Handles `XDELEX key [KEEPREF | DELREF | ACKED] IDS numids id [id ...]`.
pub(super) fn xdelex(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.find_stream(&key)?;
    let removal = RemovalArguments::parse(context, 2)?;
    let Some(place) = found else {
        removal.reply_all_missing(context);
        return Ok(());
    };
    let ids = removal.parse_ids()?;
    let (_, (outcomes, removed)) = context.edit_stream(&key, place, |stream| {
        let mut removed = RemovedEntries::default();
        let delete = |id: &StreamId| {
            let id = *id;
            if removal.reference_policy == ReferencePolicy::Delete {
                // Remove the entry from the pending lists even if the stream entry was deleted earlier.
                removed.remove_from_pending(stream, id);
            }
            // An id beyond a group's last delivered id counts as unacknowledged, even if no such entry exists.
            if removal.reference_policy == ReferencePolicy::Acknowledged && !stream.is_acknowledged(id) {
                return REFERENCED_REPLY;
            }
            if removed.delete(stream, id) { DELETED_REPLY } else { MISSING_REPLY }
        };
        let outcomes: SmallVec<[i64; 8]> = ids.iter().map(delete).collect();
        (outcomes, removed)
    });
    removed.report_and_replicate(context, &key);
    context.reply.array(outcomes.len());
    outcomes.iter().for_each(|outcome| context.reply.integer(*outcome));
    Ok(())
}

/// Handles `XACKDEL key group [KEEPREF | DELREF | ACKED] IDS numids id [id ...]`.
pub(super) fn xackdel(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, name) = (context.key(1)?, context.arg(2));
    let found = context.read_stream(&key)?;
    let removal = RemovalArguments::parse(context, 3)?;
    let place = found.filter(|place| context.stream_at(&key, *place).group(name).is_some());
    let Some(place) = place else {
        removal.reply_all_missing(context);
        return Ok(());
    };
    let ids = removal.parse_ids()?;
    let (_, (outcomes, removed)) = context.edit_stream(&key, place, |stream| {
        let mut removed = RemovedEntries::default();
        let remove = |id: &StreamId| {
            let id = *id;
            if !removed.acknowledge(stream, name, id) {
                return MISSING_REPLY;
            }
            match removal.reference_policy {
                ReferencePolicy::Keep => {}
                ReferencePolicy::Delete => removed.remove_from_pending(stream, id),
                ReferencePolicy::Acknowledged if stream.is_acknowledged(id) => {}
                ReferencePolicy::Acknowledged => return REFERENCED_REPLY,
            }
            removed.delete(stream, id);
            DELETED_REPLY
        };
        let outcomes: SmallVec<[i64; 8]> = ids.iter().map(remove).collect();
        (outcomes, removed)
    });
    removed.report_and_replicate(context, &key);
    context.reply.array(outcomes.len());
    outcomes.iter().for_each(|outcome| context.reply.integer(*outcome));
    Ok(())
}

#[cfg(test)]
mod tests;

//! XREADGROUP's CLAIM: entries that have been pending for a long time are delivered to the next reader, the longest
//! pending first.
//!
//! Each entry of the reply also has its idle time and its delivery count; both are 0 for a new entry. An entry that is
//! no longer in the stream is acknowledged, as by XAUTOCLAIM. The behaviour follows the documentation of Redis 8.4.

use clock::Millis;
use engine::{CommandError, Context};
use keyspace::{EntryRef, Group, Key, PendingEntry, Stream, StreamEntry, StreamId};
use resp::Writer;

use super::claim::ClaimResult;
use super::common::StreamAccess;
use super::common::{consumer_name, reply_fields, reply_id};

/// Interval in milliseconds at which a blocked reader polls if it is unknown when the next entry becomes claimable.
const POLL_INTERVAL_MILLIS: i64 = 100;

/// A claimed entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClaimedEntry {
    id: StreamId,
    /// Idle time of the entry before the claim, in milliseconds.
    idle_millis: i64,
    /// Number of deliveries of the entry before the claim.
    delivery_count: u64,
}

impl ClaimedEntry {
    pub(super) fn reply(&self, reply: &mut Writer<'_>, stream: &Stream) {
        if let Some(entry) = stream.entry(self.id) {
            reply_entry_with_times(reply, &entry, self.idle_millis, self.delivery_count);
        }
    }
}

/// Replies with an entry, its idle time and its delivery count.
pub(super) fn reply_entry_with_times(reply: &mut Writer<'_>, entry: &StreamEntry<'_>, idle: i64, count: u64) {
    reply.array(4);
    reply_id(reply, entry.id);
    reply_fields(reply, entry);
    reply.integer(idle);
    reply.integer(i64::try_from(count).unwrap_or(i64::MAX));
}

/// Parses the minimum idle time of CLAIM.
pub(super) fn parse_min_idle(context: &Context<'_>, index: usize) -> Result<i64, CommandError> {
    const INVALID_MIN_IDLE: CommandError =
        CommandError::text("ERR min-idle-time is not an integer or out of range");
    const NEGATIVE_MIN_IDLE: CommandError =
        CommandError::text("ERR min-idle-time must be a positive integer");
    let min_idle = context.integer_arg(index).map_err(|_| INVALID_MIN_IDLE)?;
    if min_idle < 0 { Err(NEGATIVE_MIN_IDLE) } else { Ok(min_idle) }
}

/// The time at which the next entry of the group may become claimable.
pub(super) fn next_claimable_at(group: &Group, min_idle: i64, now: Millis) -> Millis {
    // An entry that is delivered from now on becomes claimable no earlier than `latest`.
    let latest = now.0.saturating_add(min_idle.max(POLL_INTERVAL_MILLIS));
    let longest = group.pending_by_time().next();
    let due = longest.map_or(latest, |(delivered, _)| delivered.0.saturating_add(min_idle));
    Millis(due.clamp(now.0.saturating_add(1), latest))
}

/// Which pending entries CLAIM takes from other consumers.
#[derive(Debug, Clone, Copy)]
pub(super) struct OverdueFilter {
    /// How long an entry must have been pending, in milliseconds.
    pub(super) min_idle: i64,
    pub(super) max_entries: usize,
}

impl OverdueFilter {
    /// Returns the claimable entries, the longest pending first.
    fn claimable_entries(self, group: &Group, now: Millis) -> Vec<(Millis, StreamId)> {
        let is_overdue =
            |(delivered, _): &(Millis, StreamId)| now.0.saturating_sub(delivered.0) >= self.min_idle;
        group.pending_by_time().take_while(is_overdue).take(self.max_entries).collect()
    }
}

/// Transfers entries that were pending for too long to a consumer, and replicates the transfer.
pub(super) fn claim_idle_entries(
    context: &mut Context<'_>,
    key: &Key<'_>,
    entry_ref: EntryRef,
    name: &[u8],
    consumer: &[u8],
    filter: OverdueFilter,
) -> (EntryRef, Vec<ClaimedEntry>) {
    let now = context.now;
    let stream = context.stream_at(key, entry_ref);
    let found = stream.group(name).map_or_else(Vec::new, |group| filter.claimable_entries(group, now));
    let (there, gone): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, id)| stream.entry(*id).is_some());
    drop(stream);
    if there.is_empty() && gone.is_empty() {
        return (entry_ref, Vec::new());
    }
    let (place, (claimed, overdue)) = context.edit_stream(key, entry_ref, |stream| {
        let (mut claimed, mut overdue) = (ClaimResult::default(), Vec::new());
        let Some(group) = stream.group_mut(name) else { return (claimed, overdue) };
        claimed.last_delivered = group.last_delivered;
        claimed.deleted_ids =
            gone.into_iter().map(|(_, id)| id).filter(|id| group.acknowledge(*id)).collect();
        let consumer = consumer_name(group, consumer);
        for (delivered, id) in there {
            let Some(before) = group.pending(id).map(|pending| pending.delivery_count) else { continue };
            let count = before.saturating_add(1);
            group.assign(id, &consumer, now, count);
            claimed.claimed_entries.push((
                id,
                PendingEntry { consumer: consumer.clone(), delivery_time: now, delivery_count: count },
            ));
            overdue.push(ClaimedEntry {
                id,
                idle_millis: now.0.saturating_sub(delivered.0),
                delivery_count: before,
            });
        }
        if let Some(consumer) = group.consumer_mut(&consumer) {
            consumer.last_seen = now;
            consumer.last_active = if overdue.is_empty() { consumer.last_active } else { Some(now) };
        }
        (claimed, overdue)
    });
    claimed.log_claims(context, key, name, consumer);
    (place, overdue)
}

//! XCLAIM and XAUTOCLAIM: transfer pending entries to another consumer.

use std::sync::Arc;

use clock::Millis;
use engine::{CommandError, Context, EventClass};
use keyspace::{EntryRef, Key, PendingEntry, Stream, StreamId};
use resp::Writer;
use smallvec::SmallVec;

use super::common::StreamAccess;
use super::common::{consumer_name, no_group_error, reply_entry, reply_id};
use super::id;

/// Finds the stream and checks that the group exists.
fn find_stream_with_group(
    context: &mut Context<'_>,
    key: &Key<'_>,
    group: &[u8],
) -> Result<EntryRef, CommandError> {
    let found = context.read_stream(key)?;
    let place = found.filter(|place| context.stream_at(key, *place).group(group).is_some());
    place.ok_or_else(|| no_group_error(key.bytes(), group, ""))
}

/// Parses an integer with the given error message.
fn parse_number(context: &Context<'_>, index: usize, error: &'static str) -> Result<i64, CommandError> {
    context.integer_arg(index).map_err(|_| CommandError::text(error))
}

/// The result of a claim.
#[derive(Default)]
pub(super) struct ClaimResult {
    pub(super) claimed_entries: Vec<(StreamId, PendingEntry)>,
    /// Ids that were pending although their entries are no longer in the stream.
    pub(super) deleted_ids: Vec<StreamId>,
    /// The group's last delivered id after the claim.
    pub(super) last_delivered: StreamId,
    /// Whether the claim created the consumer.
    pub(super) creates_consumer: bool,
}

impl ClaimResult {
    /// Reports the modification of the key and replicates the claims.
    pub(super) fn log_claims(&self, context: &mut Context<'_>, key: &Key<'_>, group: &[u8], consumer: &[u8]) {
        let changes =
            usize::from(self.creates_consumer) + self.claimed_entries.len() + self.deleted_ids.len();
        if changes > 0 {
            context.report_changes(key, changes);
        }
        if self.creates_consumer {
            context.notify(EventClass::STREAM, "xgroup-createconsumer", key);
            context.log_effect(&[b"XGROUP", b"CREATECONSUMER", key.bytes(), group, consumer]);
        }
        for id in &self.deleted_ids {
            context.log_effect(&[b"XACK", key.bytes(), group, &id::format_id(*id)]);
        }
        for (id, pending) in &self.claimed_entries {
            context.log_pending(key, group, self.last_delivered, *id, pending);
        }
    }

    fn reply(&self, reply: &mut Writer<'_>, stream: &Stream, only_ids: bool) {
        reply.array(self.claimed_entries.len());
        for (id, _) in &self.claimed_entries {
            match stream.entry(*id).filter(|_| !only_ids) {
                Some(entry) => reply_entry(reply, &entry),
                None => reply_id(reply, *id),
            }
        }
    }
}

/// The arguments of XCLAIM.
struct ClaimArguments {
    min_idle: i64,
    ids: SmallVec<[StreamId; 8]>,
    delivery_time: Millis,
    count: Option<u64>,
    is_forced: bool,
    returns_only_ids: bool,
    last_delivered: StreamId,
}

impl ClaimArguments {
    fn parse(context: &Context<'_>) -> Result<Self, CommandError> {
        let idle = parse_number(context, 4, "ERR Invalid min-idle-time argument for XCLAIM")?.max(0);
        let ids: SmallVec<[StreamId; 8]> =
            context.args.skip(5).iter().map_while(|word| id::parse_id(word).ok()).collect();
        let (now, mut delivered, mut index) = (context.now, None, 5 + ids.len());
        let mut claiming = Self {
            min_idle: idle,
            ids,
            delivery_time: now,
            count: None,
            is_forced: false,
            returns_only_ids: false,
            last_delivered: StreamId::MIN,
        };
        while let Some(word) = context.args.get(index) {
            let behind = context.args.len() - 1 - index;
            let is = |name: &[u8], least: usize| word.eq_ignore_ascii_case(name) && behind >= least;
            index += 1;
            if is(b"force", 0) {
                claiming.is_forced = true;
                continue;
            }
            if is(b"justid", 0) {
                claiming.returns_only_ids = true;
                continue;
            }
            if is(b"idle", 1) {
                let idle = parse_number(context, index, "ERR Invalid IDLE option argument for XCLAIM")?;
                delivered = Some(now.0.wrapping_sub(idle));
            } else if is(b"time", 1) {
                delivered =
                    Some(parse_number(context, index, "ERR Invalid TIME option argument for XCLAIM")?);
            } else if is(b"retrycount", 1) {
                let count =
                    parse_number(context, index, "ERR Invalid RETRYCOUNT option argument for XCLAIM")?;
                claiming.count = u64::try_from(count).ok();
            } else if is(b"lastid", 1) {
                claiming.last_delivered = id::parse_id(context.arg(index))?;
            } else {
                let word = engine::quote(word, usize::MAX);
                return Err(CommandError::Text(format!("ERR Unrecognized XCLAIM option '{word}'").into()));
            }
            index += 1;
        }
        // Clients' clocks may differ from the server's clock, so an invalid time is replaced by the current time.
        let sound = delivered.filter(|delivered| (0..=now.0).contains(delivered));
        claiming.delivery_time = sound.map_or(now, Millis);
        Ok(claiming)
    }

    fn claim_entries(&self, stream: &mut Stream, group: &[u8], consumer: &[u8], now: Millis) -> ClaimResult {
        let mut claimed = ClaimResult::default();
        let there: SmallVec<[bool; 8]> = self.ids.iter().map(|id| stream.entry(*id).is_some()).collect();
        let Some(group) = stream.group_mut(group) else { return claimed };
        group.last_delivered = group.last_delivered.max(self.last_delivered);
        claimed.last_delivered = group.last_delivered;
        // Create the consumer even if no entry is claimed, as Redis does.
        claimed.creates_consumer = group.create_consumer(consumer, now);
        let consumer = consumer_name(group, consumer);
        for (id, there) in self.ids.iter().zip(there) {
            let pending = group.pending(*id);
            if !there {
                if pending.is_some() {
                    group.acknowledge(*id);
                    claimed.deleted_ids.push(*id);
                }
                continue;
            }
            let before = match pending {
                Some(pending) if now.0.saturating_sub(pending.delivery_time.0) < self.min_idle => continue,
                Some(pending) => pending.delivery_count,
                None if self.is_forced => 1,
                None => continue,
            };
            let count =
                self.count.unwrap_or_else(|| before.saturating_add(u64::from(!self.returns_only_ids)));
            group.assign(*id, &consumer, self.delivery_time, count);
            let pending = PendingEntry {
                consumer: consumer.clone(),
                delivery_time: self.delivery_time,
                delivery_count: count,
            };
            claimed.claimed_entries.push((*id, pending));
        }
        if let Some(consumer) = group.consumer_mut(&consumer) {
            consumer.last_seen = now;
            consumer.last_active =
                if claimed.claimed_entries.is_empty() { consumer.last_active } else { Some(now) };
        }
        claimed
    }
}

pub(super) fn xclaim(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, group, consumer, now) = (context.key(1)?, context.arg(2), context.arg(3), context.now);
    let place = find_stream_with_group(context, &key, group)?;
    let claiming = ClaimArguments::parse(context)?;
    let before =
        context.stream_at(&key, place).group(group).map_or(StreamId::MIN, |group| group.last_delivered);
    let (place, claimed) =
        context.edit_stream(&key, place, |stream| claiming.claim_entries(stream, group, consumer, now));
    claimed.log_claims(context, &key, group, consumer);
    if claimed.claimed_entries.is_empty() && claimed.last_delivered > before {
        context.report_modified(&key);
        let stream = context.stream_at(&key, place).into_owned();
        stream.group(group).into_iter().for_each(|found| context.log_group(&key, group, found));
    }
    let (stream, reply) = context.stream_and_reply(&key, place);
    claimed.reply(reply, &stream, claiming.returns_only_ids);
    Ok(())
}

/// Number of pending entries to scan for each requested entry.
const SCANNED_PER_REQUESTED_ENTRY: usize = 10;
const DEFAULT_CLAIM_COUNT: i64 = 100;
/// Maximum COUNT of XAUTOCLAIM, as in Redis.
const MAX_COUNT: i64 = i64::MAX / 16;

/// The arguments of XAUTOCLAIM.
struct AutoClaimArguments {
    min_idle: i64,
    start_id: StreamId,
    count: usize,
    returns_only_ids: bool,
}

impl AutoClaimArguments {
    fn parse(context: &Context<'_>) -> Result<Self, CommandError> {
        const INVALID_COUNT_ERROR: CommandError = CommandError::text("ERR COUNT must be > 0");
        let idle = parse_number(context, 4, "ERR Invalid min-idle-time argument for XAUTOCLAIM")?.max(0);
        let from = id::parse_range_start(context.arg(5))?;
        let (mut count, mut only_ids, mut index) = (DEFAULT_CLAIM_COUNT, false, 6);
        while let Some(word) = context.args.get(index) {
            if word.eq_ignore_ascii_case(b"count") && index + 1 < context.args.len() {
                let number =
                    context.integer_arg(index + 1).ok().filter(|count| (1..=MAX_COUNT).contains(count));
                count = number.ok_or(INVALID_COUNT_ERROR)?;
                index += 2;
            } else if word.eq_ignore_ascii_case(b"justid") {
                only_ids = true;
                index += 1;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(Self {
            min_idle: idle,
            start_id: from,
            count: usize::try_from(count).unwrap_or(usize::MAX),
            returns_only_ids: only_ids,
        })
    }

    /// Claims idle entries. Returns the result and the cursor for the next call.
    fn claim_idle_entries(
        &self,
        stream: &mut Stream,
        group: &[u8],
        consumer: &[u8],
        now: Millis,
    ) -> (ClaimResult, StreamId) {
        let (mut claimed, mut left) = (ClaimResult::default(), self.count);
        let (mut found, mut next): (Vec<(StreamId, u64)>, _) = (Vec::new(), StreamId::MIN);
        if let Some(group) = stream.group(group) {
            let mut tries = self.count.saturating_mul(SCANNED_PER_REQUESTED_ENTRY);
            for (id, pending) in group.pending_from(self.start_id) {
                if tries == 0 || left == 0 {
                    next = id;
                    break;
                }
                tries -= 1;
                if stream.entry(id).is_none() {
                    claimed.deleted_ids.push(id);
                } else if now.0.saturating_sub(pending.delivery_time.0) >= self.min_idle {
                    found
                        .push((id, pending.delivery_count.saturating_add(u64::from(!self.returns_only_ids))));
                } else {
                    continue;
                }
                left -= 1;
            }
        }
        let Some(group) = stream.group_mut(group) else { return (claimed, next) };
        claimed.creates_consumer = group.create_consumer(consumer, now);
        let consumer: Arc<[u8]> = consumer_name(group, consumer);
        claimed.last_delivered = group.last_delivered;
        for id in &claimed.deleted_ids {
            group.acknowledge(*id);
        }
        for (id, count) in found {
            group.assign(id, &consumer, now, count);
            claimed.claimed_entries.push((
                id,
                PendingEntry { consumer: consumer.clone(), delivery_time: now, delivery_count: count },
            ));
        }
        if let Some(consumer) = group.consumer_mut(&consumer) {
            consumer.last_seen = now;
            consumer.last_active =
                if claimed.claimed_entries.is_empty() { consumer.last_active } else { Some(now) };
        }
        (claimed, next)
    }
}

pub(super) fn xautoclaim(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, group, consumer, now) = (context.key(1)?, context.arg(2), context.arg(3), context.now);
    let searching = AutoClaimArguments::parse(context)?;
    let place = find_stream_with_group(context, &key, group)?;
    let (place, (claimed, next)) =
        context.edit_stream(&key, place, |stream| searching.claim_idle_entries(stream, group, consumer, now));
    claimed.log_claims(context, &key, group, consumer);
    let (stream, reply) = context.stream_and_reply(&key, place);
    reply.array(3);
    reply_id(reply, next);
    claimed.reply(reply, &stream, searching.returns_only_ids);
    reply.array(claimed.deleted_ids.len());
    claimed.deleted_ids.iter().for_each(|id| reply_id(reply, *id));
    Ok(())
}

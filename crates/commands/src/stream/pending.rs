//! Implements XACK and XPENDING.

use std::sync::Arc;

use engine::{CommandError, Context};
use keyspace::{Group, PendingEntry, StreamId};
use resp::Writer;

use super::common::StreamAccess;
use super::common::{no_group_error, reply_id};
use super::{id, range};

pub(super) fn xack(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, name) = (context.key(1)?, context.arg(2));
    let found = context.read_stream(&key)?;
    let place = found.filter(|place| context.stream_at(&key, *place).group(name).is_some());
    let Some(place) = place else {
        context.reply.integer(0);
        return Ok(());
    };
    let ids = range::parse_ids(context, 3)?;
    let (_, done) = context.edit_stream(&key, place, |stream| {
        let Some(group) = stream.group_mut(name) else { return 0 };
        ids.iter().filter(|id| group.acknowledge(**id)).count()
    });
    if done > 0 {
        context.report_changes(&key, done);
    }
    context.reply.integer(done as i64);
    Ok(())
}

/// The extended form of XPENDING: the filter for pending entries.
struct PendingQuery<'a> {
    min_idle: i64,
    start_id: StreamId,
    end_id: StreamId,
    count: usize,
    consumer: Option<&'a [u8]>,
}

impl<'a> PendingQuery<'a> {
    fn parse(context: &Context<'a>) -> Result<Self, CommandError> {
        let (mut idle, mut at) = (0, 3);
        if context.arg(3).eq_ignore_ascii_case(b"idle") {
            idle = context.integer_arg(4)?;
            if context.args.len() < 8 {
                return Err(CommandError::Syntax);
            }
            at = 5;
        }
        let count = usize::try_from(context.integer_arg(at + 2)?).unwrap_or(0);
        let (from, to) = (id::parse_range_start(context.arg(at))?, id::parse_range_end(context.arg(at + 1))?);
        Ok(Self { min_idle: idle, start_id: from, end_id: to, count, consumer: context.args.get(at + 3) })
    }
}

pub(super) fn xpending(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, name, now) = (context.key(1)?, context.arg(2), context.now);
    let asked = match context.args.len() {
        3 => None,
        6..=9 => Some(PendingQuery::parse(context)?),
        _ => return Err(CommandError::Syntax),
    };
    let Some(place) = context.read_stream(&key)? else { return Err(no_group_error(key.bytes(), name, "")) };
    let (stream, reply) = context.stream_and_reply(&key, place);
    let Some(group) = stream.group(name) else { return Err(no_group_error(key.bytes(), name, "")) };
    let Some(PendingQuery { min_idle: idle, start_id: from, end_id: to, count, consumer }) = asked else {
        reply_pending_summary(reply, group);
        return Ok(());
    };
    let mut rows: Vec<(StreamId, &PendingEntry)> = Vec::new();
    let long_enough =
        |pending: &PendingEntry| idle == 0 || now.0.saturating_sub(pending.delivery_time.0) >= idle;
    match consumer {
        None => {
            let pending = group.pending_from(from).take_while(|(id, _)| *id <= to);
            rows.extend(pending.filter(|(_, pending)| long_enough(pending)).take(count));
        }
        Some(name) => {
            let own = group.consumer(name).into_iter().flat_map(|consumer| consumer.pending_from(from));
            let own = own.take_while(|id| *id <= to).filter_map(|id| Some((id, group.pending(id)?)));
            rows.extend(own.filter(|(_, pending)| long_enough(pending)).take(count));
        }
    }
    reply.array(rows.len());
    for (id, pending) in rows {
        reply.array(4);
        reply_id(reply, id);
        reply.bulk(&pending.consumer);
        reply.integer(now.0.saturating_sub(pending.delivery_time.0).max(0));
        reply.integer(pending.delivery_count as i64);
    }
    Ok(())
}

/// Replies with the summary form: the number of pending entries, the lowest and the highest id, and the number per
/// consumer.
fn reply_pending_summary(reply: &mut Writer<'_>, group: &Group) {
    reply.array(4);
    reply.integer(group.pending_len() as i64);
    let first = group.pending_from(StreamId::MIN).next().map(|(id, _)| id);
    let (Some(first), Some(last)) = (first, group.last_pending()) else {
        reply.null();
        reply.null();
        reply.null_array();
        return;
    };
    reply_id(reply, first);
    reply_id(reply, last);
    let with: Vec<(&Arc<[u8]>, usize)> = group
        .consumers()
        .map(|(name, consumer)| (name, consumer.pending_len()))
        .filter(|(_, pending)| *pending > 0)
        .collect();
    reply.array(with.len());
    for (name, pending) in with {
        reply.array(2);
        reply.bulk(name);
        reply.bulk_integer(pending as i64);
    }
}

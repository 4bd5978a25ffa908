//! Implements XLEN, XRANGE, XREVRANGE and XDEL.

use engine::{CommandError, Context, EventClass};
use keyspace::{Stream, StreamId};
use resp::Writer;
use smallvec::SmallVec;

use super::common::StreamAccess;
use super::common::reply_entries;
use super::id;

pub(super) fn xlen(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let found = context.read_stream(&key)?;
    let stream = found.and_then(|place| context.table_ref(&key).stream(place));
    let len = stream.map_or(0, |stream| stream.head().len);
    context.reply.integer(len as i64);
    Ok(())
}

pub(super) fn xrange(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_range(context, 2, 3, false)
}

pub(super) fn xrevrange(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_range(context, 3, 2, true)
}

/// Replies with the entries between the ids at arguments `first` and `last`.
fn reply_range(
    context: &mut Context<'_>,
    first: usize,
    last: usize,
    backward: bool,
) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let (from, to) = (id::parse_range_start(context.arg(first))?, id::parse_range_end(context.arg(last))?);
    let (mut count, mut index) = (None, 4);
    while index < context.args.len() {
        if !context.arg(index).eq_ignore_ascii_case(b"count") || index + 1 == context.args.len() {
            return Err(CommandError::Syntax);
        }
        count = Some(usize::try_from(context.integer_arg(index + 1)?).unwrap_or(0));
        index += 2;
    }
    let Some(place) = context.read_stream(&key)? else {
        context.reply.array(0);
        return Ok(());
    };
    if count == Some(0) {
        context.reply.null_array();
        return Ok(());
    }
    let count = count.unwrap_or(0);
    let reply_range = |stream: &Stream, reply: &mut Writer<'_>| {
        if backward {
            reply_entries(reply, stream.range_backward(from, to), count);
        } else {
            reply_entries(reply, stream.range(from, to), count);
        }
    };
    if context.may_release_slots() {
        let copy = context.stream_at(&key, place).into_owned();
        context.release_slots();
        reply_range(&copy, &mut context.reply);
    } else {
        let (stream, reply) = context.stream_and_reply(&key, place);
        reply_range(&stream, reply);
    }
    Ok(())
}

/// Parses all arguments from index `from` on as ids.
pub(super) fn parse_ids(context: &Context<'_>, from: usize) -> Result<SmallVec<[StreamId; 8]>, CommandError> {
    context.args.skip(from).iter().map(id::parse_id).collect()
}

pub(super) fn xdel(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(1)?;
    let Some(place) = context.find_stream(&key)? else {
        context.reply.integer(0);
        return Ok(());
    };
    let ids = parse_ids(context, 2)?;
    let (_, deleted) =
        context.edit_stream(&key, place, |stream| ids.iter().filter(|id| stream.delete(**id)).count());
    if deleted > 0 {
        context.report_changes(&key, deleted);
        context.notify(EventClass::STREAM, "xdel", &key);
    }
    context.reply.integer(deleted as i64);
    Ok(())
}

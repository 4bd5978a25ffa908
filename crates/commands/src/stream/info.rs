//! XINFO: information about streams, groups and consumers.

use clock::Millis;
use engine::{CommandError, Context, wrong_subcommand_arguments};
use keyspace::{Consumer, Group, Producers, Stream, StreamEntry, StreamId};
use resp::Writer;

use super::common::{StreamAccess, no_such_group_error, reply_entries, reply_entry, reply_id};
use super::progress;
use crate::help::reply_help;

/// Default number of entries and pending entries in XINFO STREAM FULL.
const DEFAULT_ENTRY_COUNT: usize = 10;

/// Converts COUNT to a limit; 0 means unlimited.
fn count_to_limit(count: usize) -> usize {
    if count == 0 { usize::MAX } else { count }
}

pub(super) fn reply_stream_info(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(2)?;
    let place = context.read_stream(&key)?.ok_or(CommandError::NoSuchKey)?;
    let args = context.args;
    let is = |index: usize, word: &[u8]| args.get(index).is_some_and(|arg| arg.eq_ignore_ascii_case(word));
    let full = match args.len() {
        3 => None,
        4 if is(3, b"full") => Some(DEFAULT_ENTRY_COUNT),
        6 if is(3, b"full") && is(4, b"count") => {
            Some(usize::try_from(context.integer_arg(5)?).unwrap_or(DEFAULT_ENTRY_COUNT))
        }
        _ => return Err(wrong_subcommand_arguments("XINFO", context.arg(1))),
    };
    let (stream, reply) = context.stream_and_reply(&key, place);
    let producers = if stream.producers().is_some() { 6 } else { 0 };
    reply.map(producers + if full.is_some() { 9 } else { 10 });
    let head = stream.head();
    reply_number(reply, "length", head.len);
    reply_number(reply, "radix-tree-keys", stream.node_count() as u64);
    reply_number(reply, "radix-tree-nodes", stream.node_count() as u64 + 1);
    for (name, id) in [("last-generated-id", head.last_id), ("max-deleted-entry-id", head.max_deleted_id)] {
        reply.bulk(name.as_bytes());
        reply_id(reply, id);
    }
    reply_number(reply, "entries-added", head.entries_added);
    reply.bulk(b"recorded-first-entry-id");
    reply_id(reply, stream.first_id());
    // Redis 8.6 shows these fields for every stream. Older releases of go-redis 9 refuse a reply with unknown fields,
    // so the fields are omitted for a stream that no idempotent producer has used, as in Valkey.
    if let Some(producers) = stream.producers() {
        reply_producers(reply, producers);
    }
    match full {
        None => reply_first_and_last(reply, &stream),
        Some(count) => reply_entries_and_groups(reply, &stream, count),
    }
    Ok(())
}

fn reply_number(reply: &mut Writer<'_>, name: &str, value: u64) {
    reply.bulk(name.as_bytes());
    reply.integer(value as i64);
}

fn reply_producers(reply: &mut Writer<'_>, producers: &Producers) {
    let (bounds, totals) = (producers.bounds(), producers.lifetime_totals());
    reply_number(reply, "idmp-duration", bounds.duration_secs);
    reply_number(reply, "idmp-maxsize", bounds.max_iids);
    reply_number(reply, "pids-tracked", producers.producer_count() as u64);
    reply_number(reply, "iids-tracked", producers.iid_count() as u64);
    reply_number(reply, "iids-added", totals.added);
    reply_number(reply, "iids-duplicates", totals.duplicates);
}

fn reply_first_and_last(reply: &mut Writer<'_>, stream: &Stream) {
    reply_number(reply, "groups", stream.group_count() as u64);
    let mut end = |name: &str, entry: Option<StreamEntry<'_>>| {
        reply.bulk(name.as_bytes());
        match entry {
            Some(entry) => reply_entry(reply, &entry),
            None => reply.null(),
        }
    };
    end("first-entry", stream.range(StreamId::MIN, StreamId::MAX).next());
    end("last-entry", stream.range_backward(StreamId::MIN, StreamId::MAX).next());
}

fn reply_entries_and_groups(reply: &mut Writer<'_>, stream: &Stream, count: usize) {
    reply.bulk(b"entries");
    reply_entries(reply, stream.range(StreamId::MIN, StreamId::MAX), count);
    reply.bulk(b"groups");
    reply.array(stream.group_count());
    for (name, group) in stream.groups() {
        reply.map(7);
        reply.bulk(b"name");
        reply.bulk(name);
        reply_group_progress(reply, stream, group);
        reply_number(reply, "pel-count", group.pending_len() as u64);
        reply.bulk(b"pending");
        reply.array(group.pending_len().min(count_to_limit(count)));
        for (id, pending) in group.pending_from(StreamId::MIN).take(count_to_limit(count)) {
            reply.array(4);
            reply_id(reply, id);
            reply.bulk(&pending.consumer);
            reply.integer(pending.delivery_time.0);
            reply.integer(pending.delivery_count as i64);
        }
        reply.bulk(b"consumers");
        reply.array(group.consumer_count());
        for (name, consumer) in group.consumers() {
            reply_consumer(reply, name, consumer, group, count);
        }
    }
}

fn reply_consumer(reply: &mut Writer<'_>, name: &[u8], consumer: &Consumer, group: &Group, count: usize) {
    reply.map(5);
    reply.bulk(b"name");
    reply.bulk(name);
    reply.bulk(b"seen-time");
    reply.integer(consumer.last_seen.0);
    reply.bulk(b"active-time");
    reply.integer(consumer.last_active.map_or(-1, |active| active.0));
    reply_number(reply, "pel-count", consumer.pending_len() as u64);
    reply.bulk(b"pending");
    reply.array(consumer.pending_len().min(count_to_limit(count)));
    for id in consumer.pending_from(StreamId::MIN).take(count_to_limit(count)) {
        let pending = group.pending(id);
        reply.array(3);
        reply_id(reply, id);
        reply.integer(pending.map_or(0, |pending| pending.delivery_time.0));
        reply.integer(pending.map_or(0, |pending| pending.delivery_count as i64));
    }
}

/// Replies with the read counter and the lag of a group.
fn reply_group_progress(reply: &mut Writer<'_>, stream: &Stream, group: &Group) {
    reply.bulk(b"last-delivered-id");
    reply_id(reply, group.last_delivered);
    let mut known = |name: &str, value: Option<i64>| {
        reply.bulk(name.as_bytes());
        match value {
            Some(value) => reply.integer(value),
            None => reply.null(),
        }
    };
    known("entries-read", group.entries_read.map(|read| read as i64));
    known("lag", progress::lag(stream, group));
}

pub(super) fn reply_groups(context: &mut Context<'_>) -> Result<(), CommandError> {
    let key = context.key(2)?;
    let place = context.read_stream(&key)?.ok_or(CommandError::NoSuchKey)?;
    let (stream, reply) = context.stream_and_reply(&key, place);
    reply.array(stream.group_count());
    for (name, group) in stream.groups() {
        reply.map(6);
        reply.bulk(b"name");
        reply.bulk(name);
        reply_number(reply, "consumers", group.consumer_count() as u64);
        reply_number(reply, "pending", group.pending_len() as u64);
        reply_group_progress(reply, &stream, group);
    }
    Ok(())
}

pub(super) fn reply_consumers(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, name, now) = (context.key(2)?, context.arg(3), context.now);
    let place = context.read_stream(&key)?.ok_or(CommandError::NoSuchKey)?;
    let (stream, reply) = context.stream_and_reply(&key, place);
    let Some(group) = stream.group(name) else { return Err(no_such_group_error(key.bytes(), name)) };
    reply.array(group.consumer_count());
    let since = |time: Millis| now.0.saturating_sub(time.0).max(0);
    for (name, consumer) in group.consumers() {
        reply.map(4);
        reply.bulk(b"name");
        reply.bulk(name);
        reply_number(reply, "pending", consumer.pending_len() as u64);
        reply.bulk(b"idle");
        reply.integer(since(consumer.last_seen));
        reply.bulk(b"inactive");
        reply.integer(consumer.last_active.map_or(-1, since));
    }
    Ok(())
}

pub(super) fn help(context: &mut Context<'_>) -> Result<(), CommandError> {
    reply_help(
        context,
        "XINFO",
        &[
            "CONSUMERS <key> <groupname>",
            "    Describes the consumers of a group.",
            "GROUPS <key>",
            "    Describes the groups of a stream.",
            "STREAM <key> [FULL [COUNT <count>]",
            "    Describes a stream.",
        ],
    );
    Ok(())
}

//! Implements XREAD and XREADGROUP.
//!
//! XREADGROUP with `>` delivers new entries of the group; with CLAIM it first delivers entries that other consumers
//! have left pending for a long time ([`super::overdue`]). With another id it repeats the consumer's own pending
//! entries. Each delivery is replicated as XCLAIM, followed by the group's last delivered id.

use std::ops::Range;

use clock::Millis;
use engine::{CommandError, CommandOutcome, Context, KeyWait, RequestKeys};
use keyspace::{EntryRef, Group, Key, Kind, PendingEntry, StreamEntry, StreamId};
use resp::{Args, Protocol, Request, Writer};
use smallvec::SmallVec;

use super::common::StreamAccess;
use super::common::{no_group_error, reply_entry, reply_id};
use super::id;
use super::overdue::{self, ClaimedEntry, OverdueFilter};
use super::progress::GroupProgress;
use crate::rows::key;

/// The group and consumer of XREADGROUP, with its options.
#[derive(Debug, Clone, Copy)]
struct GroupReader<'a> {
    group: &'a [u8],
    consumer: &'a [u8],
    /// Whether delivered entries do not become pending (NOACK).
    no_ack: bool,
    /// The minimum idle time in milliseconds that CLAIM requires; `None` without CLAIM.
    claim_min_idle: Option<i64>,
}

/// The arguments of XREAD or XREADGROUP.
struct ReadArguments<'a> {
    reader: Option<GroupReader<'a>>,
    /// Maximum number of entries per stream; 0 means all.
    count: usize,
    /// The deadline of BLOCK: the outer `None` means no BLOCK, the inner `None` means to wait without a limit.
    deadline: Option<Option<Millis>>,
    /// Argument index of the BLOCK timeout.
    timeout_index: usize,
    keys: Range<usize>,
}

/// The position from which a stream is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartPosition {
    AfterId(StreamId),
    /// Only entries that the group has not delivered yet (`>`).
    NewEntries,
}

/// An option of XREAD or XREADGROUP. Numbers are argument indexes.
enum ReadOption {
    Block(usize),
    Count(usize),
    Claim(usize),
    /// The option GROUP; holds the index of the group's name, which the consumer's name follows.
    Group(usize),
    NoAck,
    /// The option STREAMS; holds the range of the keys and ids, up to the last argument.
    Streams(Range<usize>),
    Unknown,
}

/// Returns the option at `index` and the index of the next option. Both the handlers and [`parse_xread_keys`] use this
/// function, so that they agree on the keys.
fn parse_option(args: Args<'_>, index: usize) -> (ReadOption, usize) {
    let word = args.get(index).unwrap_or_default();
    let behind = args.len().saturating_sub(index + 1);
    let is = |name: &[u8], least: usize| word.eq_ignore_ascii_case(name) && behind >= least;
    match () {
        () if is(b"block", 1) => (ReadOption::Block(index + 1), index + 2),
        () if is(b"count", 1) => (ReadOption::Count(index + 1), index + 2),
        () if is(b"claim", 1) => (ReadOption::Claim(index + 1), index + 2),
        () if is(b"group", 2) => (ReadOption::Group(index + 1), index + 3),
        () if is(b"noack", 0) => (ReadOption::NoAck, index + 1),
        () if is(b"streams", 1) => (ReadOption::Streams(index + 1..args.len()), args.len()),
        () => (ReadOption::Unknown, index + 1),
    }
}

/// The keys of XREAD and XREADGROUP: the first half of the arguments after STREAMS. A group or consumer may also be
/// named `streams`, so options are parsed in order.
pub(super) fn parse_xread_keys(args: Args<'_>) -> RequestKeys {
    let mut index = 1;
    while index < args.len() {
        let (option, next) = parse_option(args, index);
        if let ReadOption::Streams(Range { start, end }) = option {
            return RequestKeys::default().keys(start..start + (end - start) / 2, key::READ);
        }
        index = next;
    }
    RequestKeys::default()
}

impl<'a> ReadArguments<'a> {
    fn parse(context: &Context<'a>, is_group_read: bool) -> Result<Self, CommandError> {
        let args = context.args;
        let (mut group, mut no_ack, mut claims) = (None, false, None);
        let (mut count, mut waits, mut block, mut index) = (0, None, 0, 1);
        while index < args.len() {
            let (option, next) = parse_option(args, index);
            index = next;
            match option {
                ReadOption::Block(place) => {
                    waits = Some(parse_block_deadline(context, place)?);
                    block = place;
                }
                ReadOption::Count(place) => count = usize::try_from(context.integer_arg(place)?).unwrap_or(0),
                ReadOption::Streams(keys) => {
                    let reader = group.map(|(group, consumer)| GroupReader {
                        group,
                        consumer,
                        no_ack,
                        claim_min_idle: claims,
                    });
                    return Self { reader, count, deadline: waits, timeout_index: block, keys }
                        .check_ids(is_group_read);
                }
                ReadOption::Claim(place) if is_group_read => {
                    claims = Some(overdue::parse_min_idle(context, place)?);
                }
                ReadOption::Group(_) if !is_group_read => {
                    return Err(CommandError::text(
                        "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
                ReadOption::Group(place) => group = Some((context.arg(place), context.arg(place + 1))),
                ReadOption::NoAck if !is_group_read => {
                    return Err(CommandError::text(
                        "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
                ReadOption::NoAck => no_ack = true,
                ReadOption::Claim(_) | ReadOption::Unknown => return Err(CommandError::Syntax),
            }
        }
        Err(CommandError::Syntax)
    }

    /// Checks that STREAMS is followed by one id for each key.
    fn check_ids(mut self, is_group_read: bool) -> Result<Self, CommandError> {
        if !self.keys.len().is_multiple_of(2) {
            return Err(CommandError::text(if is_group_read {
                "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified."
            } else {
                "ERR Unbalanced 'xread' list of streams: for each stream key an ID or '$' must be specified."
            }));
        }
        if is_group_read && self.reader.is_none() {
            return Err(CommandError::text("ERR Missing GROUP option for XREADGROUP"));
        }
        self.keys.end -= self.keys.len() / 2;
        Ok(self)
    }

    /// Resolves the keys to their entries and start positions.
    fn resolve_streams(&self, context: &mut Context<'a>) -> Result<ResolvedStreams<'a>, CommandError> {
        let mut found = ResolvedStreams::new();
        for index in self.keys.clone() {
            let (key, word) = (context.key(index)?, context.arg(index + self.keys.len()));
            let place = context.read_stream(&key)?;
            if let Some(reader) = &self.reader {
                let there =
                    place.is_some_and(|place| context.stream_at(&key, place).group(reader.group).is_some());
                if !there {
                    return Err(no_group_error(
                        key.bytes(),
                        reader.group,
                        " in XREADGROUP with GROUP option",
                    ));
                }
            }
            let from = match (word, self.reader) {
                (b"$", Some(_)) => {
                    return Err(CommandError::text(
                        "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of \
                         this consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would \
                         just return an empty result set.",
                    ));
                }
                (b"$", None) => StartPosition::AfterId(
                    place.map_or(StreamId::MIN, |place| context.stream_at(&key, place).head().last_id),
                ),
                (b"+", Some(_)) => {
                    return Err(CommandError::text(
                        "ERR The + ID is meaningless in the context of XREADGROUP: you want to read the history of \
                         this consumer by specifying a proper ID, or use the > ID to get new messages. The + ID would \
                         just return an empty result set.",
                    ));
                }
                // `+` means the last existing entry, or the next entry if the stream is empty.
                (b"+", None) => StartPosition::AfterId(place.map_or(StreamId::MIN, |place| {
                    let stream = context.stream_at(&key, place);
                    match stream.last_entry_id().previous() {
                        Some(before) if stream.head().len > 0 => before,
                        _ => stream.head().last_id,
                    }
                })),
                (b">", None) => {
                    return Err(CommandError::text(
                        "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> \
                         option.",
                    ));
                }
                (b">", Some(_)) => StartPosition::NewEntries,
                (word, reader) => match id::parse_id(word)? {
                    // Redis represents `>` by this id as well.
                    StreamId::MAX if reader.is_some() => StartPosition::NewEntries,
                    id => StartPosition::AfterId(id),
                },
            };
            found.push((key, place, from));
        }
        Ok(found)
    }

    /// Finishes the reply, which begins at byte `start`. Without results, replies with null or blocks the client.
    fn reply_or_block(
        &self,
        context: &mut Context<'a>,
        start: usize,
        stream_count: usize,
        found: &ResolvedStreams<'a>,
    ) -> CommandOutcome {
        if stream_count > 0 {
            insert_reply_header(&mut context.reply, start, stream_count);
            return CommandOutcome::Done;
        }
        let Some(until) = self.deadline else {
            context.reply.null_array();
            return CommandOutcome::Done;
        };
        let early = self.reader.and_then(|reader| reader.next_claimable_at(context, found));
        let early = early.filter(|early| until.is_none_or(|until| *early < until));
        let left = until.zip(early).map(|(until, early)| until.0.saturating_sub(early.0).to_string());
        // A blocked command runs again later. Therefore replace `$` by the id that it means now, and the timeout by the
        // remaining time.
        let resolved =
            |index: usize| match index.checked_sub(self.keys.end).and_then(|place| found.get(place)) {
                Some((_, _, StartPosition::AfterId(id))) => id::format_id(*id),
                _ => match &left {
                    Some(left) if index == self.timeout_index => left.as_bytes().into(),
                    _ => context.arg(index).into(),
                },
            };
        let request: Request = (0..context.args.len()).map(resolved).collect();
        CommandOutcome::Block(KeyWait {
            key_arguments: self.keys.clone(),
            value_type: Kind::Stream,
            deadline: early.or(until),
            retries_at_deadline: early.is_some(),
            timeout_reply: |reply| reply.null_array(),
            resolved_request: Some(request),
            retries_on_removal: self.reader.is_some(),
        })
    }
}

/// The deadline for the timeout at argument `index`; 0 means no limit.
fn parse_block_deadline(context: &Context<'_>, index: usize) -> Result<Option<Millis>, CommandError> {
    const NOT_AN_INTEGER_ERROR: CommandError =
        CommandError::text("ERR timeout is not an integer or out of range");
    let timeout = context.integer_arg(index).map_err(|_| NOT_AN_INTEGER_ERROR)?;
    match timeout {
        ..0 => Err(CommandError::text("ERR timeout is negative")),
        0 => Ok(None),
        _ => match context.now.0.checked_add(timeout) {
            Some(until) => Ok(Some(Millis(until))),
            None => Err(CommandError::text("ERR timeout is out of range")),
        },
    }
}

impl GroupReader<'_> {
    /// The time at which the next pending entry may become claimable. `None` without CLAIM or without an existing
    /// group.
    fn next_claimable_at(&self, context: &Context<'_>, found: &ResolvedStreams<'_>) -> Option<Millis> {
        let min_idle = self.claim_min_idle?;
        let new = found.iter().filter(|(_, _, from)| *from == StartPosition::NewEntries);
        let streams = new.filter_map(|(key, place, _)| Some(context.stream_at(key, (*place)?)));
        let due = streams.filter_map(|stream| {
            Some(overdue::next_claimable_at(stream.group(self.group)?, min_idle, context.now))
        });
        due.min()
    }
}

/// Keys with their entries and start positions.
type ResolvedStreams<'a> = SmallVec<[(Key<'a>, Option<EntryRef>, StartPosition); 2]>;

/// Inserts the header of the reply at byte `start`, before the streams that were already written.
fn insert_reply_header(reply: &mut Writer<'_>, start: usize, stream_count: usize) {
    let body = reply.buffer().split_off(start);
    match reply.protocol() {
        Protocol::Resp2 => reply.array(stream_count),
        Protocol::Resp3 => reply.map(stream_count),
    }
    reply.raw(&body);
}

/// Writes the header of one stream's entries.
fn write_stream_header(reply: &mut Writer<'_>, key: &Key<'_>) {
    if reply.protocol() == Protocol::Resp2 {
        reply.array(2);
    }
    reply.bulk(key.bytes());
}

pub(super) fn xread(context: &mut Context<'_>) -> Result<CommandOutcome, CommandError> {
    let reading = ReadArguments::parse(context, false)?;
    let found = reading.resolve_streams(context)?;
    let (start, mut streams) = (context.reply.len(), 0);
    for (key, place, from) in &found {
        let (Some(place), StartPosition::AfterId(last)) = (place, from) else { continue };
        let head = context.table_ref(key).stream(*place).map(|stream| stream.head()).unwrap_or_default();
        let (true, Some(first)) = (head.len > 0 && head.last_id > *last, last.next()) else { continue };
        let (stream, reply) = context.stream_and_reply(key, *place);
        let most = if reading.count == 0 { usize::MAX } else { reading.count };
        let entries: SmallVec<[StreamEntry<'_>; 16]> =
            stream.range(first, StreamId::MAX).take(most).collect();
        if !entries.is_empty() {
            write_stream_header(reply, key);
            reply.array(entries.len());
            entries.iter().for_each(|entry| reply_entry(reply, entry));
            streams += 1;
        }
    }
    Ok(reading.reply_or_block(context, start, streams, &found))
}

pub(super) fn xreadgroup(context: &mut Context<'_>) -> Result<CommandOutcome, CommandError> {
    let reading = ReadArguments::parse(context, true)?;
    let found = reading.resolve_streams(context)?;
    let Some(reader) = reading.reader else { return Err(CommandError::Syntax) };
    let (start, mut streams) = (context.reply.len(), 0);
    for (key, place, from) in &found {
        let Some(place) = *place else { continue };
        // Create the consumer even if it receives no entry, as Redis does.
        let place = context.touch_consumer(key, place, reader.group, reader.consumer);
        let given = match from {
            StartPosition::NewEntries => deliver_new_entries(context, key, place, &reader, reading.count),
            StartPosition::AfterId(last) => {
                redeliver(context, key, place, &reader, *last, reading.count);
                true
            }
        };
        streams += usize::from(given);
    }
    Ok(reading.reply_or_block(context, start, streams, &found))
}

/// Delivers overdue and new entries. Returns whether any entry was delivered.
fn deliver_new_entries(
    context: &mut Context<'_>,
    key: &Key<'_>,
    entry_ref: EntryRef,
    reader: &GroupReader<'_>,
    count: usize,
) -> bool {
    let now = context.now;
    let most = if count == 0 { usize::MAX } else { count };
    let (place, overdue) = match reader.claim_min_idle {
        Some(min_idle) => overdue::claim_idle_entries(
            context,
            key,
            entry_ref,
            reader.group,
            reader.consumer,
            OverdueFilter { min_idle, max_entries: most },
        ),
        None => (entry_ref, Vec::new()),
    };
    let Some((ids, read)) = reply_new_entries(context, key, place, reader, most, &overdue) else {
        return false;
    };
    let Some(last) = ids.last().copied() else { return !overdue.is_empty() };
    let (_, name) = context.edit_stream(key, place, |stream| {
        let group = stream.group_mut(reader.group)?;
        let name = group.consumer_name(reader.consumer)?;
        if let Some(consumer) = group.consumer_mut(reader.consumer) {
            // With NOACK, entries are not assigned to the consumer, so the delivery does not make the consumer active.
            consumer.last_active = if reader.no_ack { consumer.last_active } else { Some(now) };
        }
        (group.last_delivered, group.entries_read) = (last, read);
        if !reader.no_ack {
            ids.iter().for_each(|id| group.assign(*id, &name, now, 1));
        }
        Some(name)
    });
    let Some(consumer) = name else { return false };
    context.report_modified(key);
    if !reader.no_ack {
        let pending = PendingEntry { consumer, delivery_time: now, delivery_count: 1 };
        ids.iter().for_each(|id| context.log_pending(key, reader.group, *id, *id, &pending));
    }
    context.log_group(key, reader.group, &Group::new(last, read));
    true
}

/// Replies with overdue and new entries, if there are any. Returns the ids of the new entries and the read counter that
/// the group has after them.
fn reply_new_entries(
    context: &mut Context<'_>,
    key: &Key<'_>,
    entry_ref: EntryRef,
    reader: &GroupReader<'_>,
    max_entries: usize,
    overdue: &[ClaimedEntry],
) -> Option<(SmallVec<[StreamId; 16]>, Option<u64>)> {
    let (stream, reply) = context.stream_and_reply(key, entry_ref);
    let group = stream.group(reader.group)?;
    let most = max_entries.saturating_sub(overdue.len());
    let entries: SmallVec<[StreamEntry<'_>; 16]> = match group.last_delivered.next() {
        Some(first) if stream.head().len > 0 => stream.range(first, StreamId::MAX).take(most).collect(),
        _ => SmallVec::new(),
    };
    if !entries.is_empty() || !overdue.is_empty() {
        write_stream_header(reply, key);
        reply.array(overdue.len() + entries.len());
        overdue.iter().for_each(|claimed| claimed.reply(reply, &stream));
    }
    for entry in &entries {
        match reader.claim_min_idle {
            Some(_) => overdue::reply_entry_with_times(reply, entry, 0, 0),
            None => reply_entry(reply, entry),
        }
    }
    let progress = entries
        .iter()
        .fold(GroupProgress::from_group(group), |before, entry| before.advance_to(&stream, entry.id));
    Some((entries.iter().map(|entry| entry.id).collect(), progress.entries_read))
}

/// Delivers again those pending entries of the consumer that follow an id.
fn redeliver(
    context: &mut Context<'_>,
    key: &Key<'_>,
    entry_ref: EntryRef,
    reader: &GroupReader<'_>,
    last: StreamId,
    count: usize,
) {
    let now = context.now;
    let most = if count == 0 { usize::MAX } else { count };
    let (table, reply) = context.table_and_reply(key);
    let stream = table.stream(entry_ref).expect("a stream was found there").to_stream();
    let own = stream.group(reader.group).and_then(|group| group.consumer(reader.consumer));
    let ids: Vec<StreamId> = match (own, last.next()) {
        (Some(consumer), Some(first)) => consumer.pending_from(first).take(most).collect(),
        _ => Vec::new(),
    };
    write_stream_header(reply, key);
    reply.array(ids.len());
    let mut there = Vec::new();
    for id in ids {
        match stream.entry(id) {
            Some(entry) => {
                reply_entry(reply, &entry);
                there.push(id);
            }
            None => {
                reply.array(2);
                reply_id(reply, id);
                reply.null_array();
            }
        }
    }
    drop(stream);
    let (_, (last, given)) = context.edit_stream(key, entry_ref, |stream| {
        let Some(group) = stream.group_mut(reader.group) else { return (StreamId::MIN, Vec::new()) };
        let again = there.iter().filter_map(|id| Some((*id, group.pending(*id)?.clone())));
        let given: Vec<_> = again.collect();
        for (id, pending) in &given {
            group.assign(*id, &pending.consumer, now, pending.delivery_count.saturating_add(1));
        }
        (group.last_delivered, given)
    });
    // The command counts as one change whether or not there were entries, as in Valkey.
    context.count_unlogged_changes(1);
    for (id, pending) in given {
        let count = pending.delivery_count.saturating_add(1);
        context.log_pending(
            key,
            reader.group,
            last,
            id,
            &PendingEntry { delivery_time: now, delivery_count: count, ..pending },
        );
    }
}

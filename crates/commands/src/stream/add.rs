//! Implements XADD and XSETID.

use engine::{CommandError, CommandOrigin, Context, EventClass};
use keyspace::{Key, StreamHead, StreamId};
use smallvec::SmallVec;

use super::common::StreamAccess;
use super::id::{self, RequestedId};
use super::idempotence::{Idempotence, IdempotenceId};
use super::trim::{TrimOptions, TrimRequest, TrimResult};

/// Entries of at least this size in bytes are refused, as in Redis.
const ENTRY_SIZE_LIMIT: usize = 1 << 30;

/// The arguments of XADD except the fields.
struct AddArguments<'a> {
    requested_id: RequestedId,
    trim: Option<TrimRequest>,
    idempotence: Option<Idempotence<'a>>,
    creates_stream: bool,
    /// Whether KEEPREF, DELREF or ACKED, which only Redis has, were given.
    has_reference_options: bool,
    /// Argument index of the first field.
    first_field_index: usize,
}

impl<'a> AddArguments<'a> {
    fn parse(context: &Context<'a>) -> Result<Self, CommandError> {
        let (mut words, mut creates_stream, mut idempotence, mut index) =
            (TrimOptions::default(), true, None, 2);
        let wanted = loop {
            let Some(word) = context.args.get(index) else {
                // The arguments ended before an id, so report the error.
                words.into_request(context)?;
                return Err(CommandError::WrongArity("xadd".to_owned()));
            };
            if word.eq_ignore_ascii_case(b"nomkstream") {
                creates_stream = false;
                index += 1;
            } else if let Some(next) = words.parse_option(context, index)? {
                index = next;
            } else if let Some(next) = Idempotence::parse_option(&mut idempotence, context, index)? {
                index = next;
            } else {
                break id::parse_requested_id(word)?;
            }
        };
        let (trimming, fields) = (words.into_request(context)?, index + 1);
        if idempotence.is_some()
            && wanted != RequestedId::Generated
            && context.session.origin() == CommandOrigin::Client
        {
            return Err(CommandError::text(
                "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs",
            ));
        }
        let count = context.args.len() - fields;
        if count < 2 || !count.is_multiple_of(2) {
            return Err(CommandError::WrongArity("xadd".to_owned()));
        }
        if wanted == RequestedId::Explicit(StreamId::MIN) {
            return Err(CommandError::text("ERR The ID specified in XADD must be greater than 0-0"));
        }
        let has_reference_options = words.has_reference_options();
        Ok(Self {
            requested_id: wanted,
            trim: trimming,
            idempotence,
            creates_stream,
            has_reference_options,
            first_field_index: fields,
        })
    }

    /// Whether the options before the id can be replicated verbatim, because they have the same effect on any server
    /// with the same stream.
    fn has_portable_options(&self) -> bool {
        self.idempotence.is_none()
            && !self.has_reference_options
            && self.trim.is_none_or(|trimming| trimming.is_exact())
    }

    /// Determines the id of the new entry.
    fn resolve_id(&self, last: StreamId, now: clock::Millis) -> Result<StreamId, CommandError> {
        const ID_SPACE_EXHAUSTED: CommandError =
            CommandError::text("ERR The stream has exhausted the last possible ID, unable to add more items");
        const ID_NOT_GREATER: CommandError = CommandError::text(
            "ERR The ID specified in XADD is equal or smaller than the target stream top item",
        );
        let next = last.next().ok_or(ID_SPACE_EXHAUSTED)?;
        let id = match self.requested_id {
            RequestedId::Generated => {
                let by_clock = StreamId { millis: u64::try_from(now.0).unwrap_or(0), sequence: 0 };
                if by_clock.millis > last.millis { by_clock } else { next }
            }
            RequestedId::GeneratedSequence(millis) if millis == last.millis => {
                if next.millis != millis {
                    return Err(ID_NOT_GREATER);
                }
                next
            }
            RequestedId::GeneratedSequence(millis) => StreamId { millis, sequence: 0 },
            RequestedId::Explicit(id) => id,
        };
        if id <= last { Err(ID_NOT_GREATER) } else { Ok(id) }
    }
}

pub(super) fn xadd(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, adding) = (context.key(1)?, AddArguments::parse(context)?);
    let found = context.find_stream(&key)?;
    if found.is_none() && !adding.creates_stream {
        context.reply.null();
        return Ok(());
    }
    let words: SmallVec<[&[u8]; 16]> = context.args.skip(adding.first_field_index).iter().collect();
    let iid = adding.idempotence.map(|idempotence| idempotence.resolve_iid(&words));
    if let Some((iid, place)) = iid.as_ref().zip(found)
        && let Some(id) = iid.find_duplicate(context, &key, place)
    {
        context.reply.bulk(&id::format_id(id));
        return Ok(());
    }
    let last = found.map_or(StreamId::MIN, |place| stream_head(context, &key, place).last_id);
    let id = adding.resolve_id(last, context.now)?;
    if words.iter().map(|word| word.len()).sum::<usize>() > ENTRY_SIZE_LIMIT {
        return Err(CommandError::text("ERR Elements are too large to be stored"));
    }
    let settings = &context.engine.settings;
    let (bounds, idempotence) =
        (settings.value_limits.stream_node_bounds(), settings.value_limits.idempotence_bounds());
    let place = found.unwrap_or_else(|| context.create_stream(&key));
    let (_, trimmed) = context.edit_stream(&key, place, |stream| {
        stream.append(id, &words, bounds);
        if let Some(iid) = &iid {
            stream.add_iid(iid.producer, iid.as_bytes(), id, idempotence);
        }
        adding.trim.map(|trimming| trimming.apply(stream))
    });
    context.report_modified(&key);
    context.notify(EventClass::STREAM, "xadd", &key);
    let trimmed = trimmed.map(|mut trimmed| {
        context.free_stream_parts(std::mem::take(&mut trimmed.removed_nodes));
        trimmed
    });
    if trimmed.as_ref().is_some_and(|trimmed| trimmed.deleted_count > 0) {
        context.notify(EventClass::STREAM, "xtrim", &key);
    }
    let text = id::format_id(id);
    if !matches!(adding.requested_id, RequestedId::Explicit(_)) || !adding.has_portable_options() {
        log_xadd(context, &key, &adding, &AddedEntry { id: &text, iid, trim_result: trimmed });
    }
    context.reply.bulk(&text);
    Ok(())
}

fn stream_head(context: &Context<'_>, key: &Key<'_>, entry_ref: keyspace::EntryRef) -> StreamHead {
    context.table_ref(key).stream(entry_ref).map(|stream| stream.head()).unwrap_or_default()
}

/// The added entry and the result of the trim.
struct AddedEntry<'a> {
    id: &'a [u8],
    iid: Option<IdempotenceId<'a>>,
    trim_result: Option<TrimResult>,
}

/// Replicates the entry with its actual id and the exact trim.
fn log_xadd(context: &mut Context<'_>, key: &Key<'_>, arguments: &AddArguments<'_>, entry: &AddedEntry<'_>) {
    let args = context.args;
    let mut words: SmallVec<[&[u8]; 24]> = smallvec::smallvec![&b"XADD"[..], key.bytes()];
    if arguments.has_portable_options() {
        // The trim options are already exact, so they are replicated verbatim. The id is the last argument before the
        // fields.
        words.extend(args.skip(2).iter().take(arguments.first_field_index - 3));
    } else {
        if let Some(iid) = &entry.iid {
            words.extend([b"IDMP", iid.producer, iid.as_bytes()]);
        }
        if let Some((word, value)) = entry.trim_result.as_ref().and_then(TrimResult::exact_arguments) {
            words.extend([word, b"=", value]);
        }
    }
    words.push(entry.id);
    words.extend(args.skip(arguments.first_field_index).iter());
    context.log_effect(&words);
    if let Some(trimmed) = &entry.trim_result {
        trimmed.log_removed_entries(context, key);
    }
}

pub(super) fn xsetid(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, last) = (context.key(1)?, id::parse_id(context.arg(2))?);
    let (mut added, mut max_deleted, mut index) = (None, StreamId::MIN, 3);
    while index < context.args.len() {
        let word = context.arg(index);
        let has_value = index + 1 < context.args.len();
        if word.eq_ignore_ascii_case(b"entriesadded") && has_value {
            let number = u64::try_from(context.integer_arg(index + 1)?);
            added = Some(number.map_err(|_| CommandError::text("ERR entries_added must be positive"))?);
        } else if word.eq_ignore_ascii_case(b"maxdeletedid") && has_value {
            max_deleted = id::parse_id(context.arg(index + 1))?;
            if last < max_deleted {
                return Err(CommandError::text(
                    "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                ));
            }
        } else {
            return Err(CommandError::Syntax);
        }
        index += 2;
    }
    let place = context.find_stream(&key)?.ok_or(CommandError::NoSuchKey)?;
    let before = stream_head(context, &key, place);
    let refusal = match () {
        // Reply with an error only to clients, because a Redis 7.0 master may replicate a command with this id.
        () if last < before.max_deleted_id && context.session.origin() == CommandOrigin::Client => {
            Some("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id")
        }
        () if before.len > 0 && last < context.stream_at(&key, place).last_entry_id() => {
            Some("ERR The ID specified in XSETID is smaller than the target stream top item")
        }
        () if before.len > 0 && added.is_some_and(|added| added < before.len) => {
            Some("ERR The entries_added specified in XSETID is smaller than the target stream length")
        }
        () => None,
    };
    if let Some(text) = refusal {
        return Err(CommandError::text(text));
    }
    let max_deleted = if max_deleted == StreamId::MIN { before.max_deleted_id } else { max_deleted };
    context.edit_stream(&key, place, |stream| {
        stream.set_head(last, added.unwrap_or(before.entries_added), max_deleted);
    });
    context.report_modified(&key);
    context.notify(EventClass::STREAM, "xsetid", &key);
    context.reply.ok();
    Ok(())
}

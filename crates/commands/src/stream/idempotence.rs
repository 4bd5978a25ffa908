//! Idempotent producers: XADD's IDMP and IDMPAUTO, XCFGSET and XIDMPRECORD.
//!
//! A producer that repeats a message receives the id of the entry it added before. The behaviour follows Redis 8.6.

use engine::{CommandError, CommandOrigin, Context};
use keyspace::{EntryRef, Key, StreamId};
use smallvec::SmallVec;

use super::common::StreamAccess;
use super::id;

/// How a message receives its idempotence id (iid).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Idempotence<'a> {
    /// IDMP: the producer supplies the idempotence id.
    Explicit { producer: &'a [u8], iid: &'a [u8] },
    /// IDMPAUTO: the idempotence id is computed from the message's fields.
    Computed { producer: &'a [u8] },
}

/// An idempotence id together with its producer.
#[derive(Debug)]
pub(super) struct IdempotenceId<'a> {
    pub(super) producer: &'a [u8],
    text: SmallVec<[u8; 16]>,
}

impl<'a> Idempotence<'a> {
    /// Parses IDMP or IDMPAUTO at argument `index`. Returns the index of the next argument, or `None` if argument
    /// `index` is another word.
    pub(super) fn parse_option(
        parsed: &mut Option<Self>,
        context: &Context<'a>,
        index: usize,
    ) -> Result<Option<usize>, CommandError> {
        const GIVEN_TWICE_ERROR: CommandError =
            CommandError::text("ERR syntax error, IDMP/IDMPAUTO specified multiple times");
        let (word, behind) = (context.arg(index), context.args.len() - 1 - index);
        let argument = |offset: usize, empty: &'static str| match context.arg(index + offset) {
            b"" => Err(CommandError::text(empty)),
            argument => Ok(argument),
        };
        let (idempotence, next) = if word.eq_ignore_ascii_case(b"idmp") && behind >= 2 {
            if parsed.is_some() {
                return Err(GIVEN_TWICE_ERROR);
            }
            let producer = argument(1, "ERR syntax error, IDMP requires a non-empty producer ID")?;
            let iid = argument(2, "ERR syntax error, IDMP requires a non-empty idempotent ID")?;
            (Self::Explicit { producer, iid }, index + 3)
        } else if word.eq_ignore_ascii_case(b"idmpauto") && behind >= 1 {
            if parsed.is_some() {
                return Err(GIVEN_TWICE_ERROR);
            }
            let producer = argument(1, "ERR syntax error, IDMPAUTO requires a non-empty producer ID")?;
            (Self::Computed { producer }, index + 2)
        } else {
            return Ok(None);
        };
        *parsed = Some(idempotence);
        Ok(Some(next))
    }

    /// The idempotence id of a message with these field names and values.
    pub(super) fn resolve_iid(self, words: &[&[u8]]) -> IdempotenceId<'a> {
        match self {
            Self::Explicit { producer, iid } => IdempotenceId { producer, text: iid.into() },
            Self::Computed { producer } => {
                IdempotenceId { producer, text: hash_message(words).to_be_bytes().into() }
            }
        }
    }
}

/// Hashes a message independently of the order of its fields.
fn hash_message(words: &[&[u8]]) -> u128 {
    let of_field = |pair: &[&[u8]]| {
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        for word in pair {
            hasher.update(&(word.len() as u64).to_le_bytes());
            hasher.update(word);
        }
        hasher.digest128()
    };
    words.chunks(2).map(of_field).fold(0, u128::wrapping_add)
}

impl IdempotenceId<'_> {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// Finds the entry that the producer has already added for this message.
    pub(super) fn find_duplicate(
        &self,
        context: &mut Context<'_>,
        key: &Key<'_>,
        entry_ref: EntryRef,
    ) -> Option<StreamId> {
        context.stream_at(key, entry_ref).producers()?;
        let now = context.now;
        context.edit_stream(key, entry_ref, |stream| stream.find_duplicate(self.producer, &self.text, now)).1
    }
}

/// A parameter of XCFGSET with a value from 1 to `max`.
struct BoundParameter {
    max: i64,
    /// The error reply if the parameter is given twice.
    repeated_error: &'static str,
    /// The error reply if the value is not between 1 and `max`.
    range_error: &'static str,
}

/// Parses the value of a parameter of XCFGSET.
fn parse_bound(
    context: &Context<'_>,
    index: usize,
    previous: Option<u64>,
    parameter: &BoundParameter,
) -> Result<Option<u64>, CommandError> {
    if previous.is_some() {
        return Err(CommandError::text(parameter.repeated_error));
    }
    let value = context.integer_arg(index)?;
    match u64::try_from(value) {
        Ok(bound) if (1..=parameter.max).contains(&value) => Ok(Some(bound)),
        _ => Err(CommandError::text(parameter.range_error)),
    }
}

/// Handles `XCFGSET key [IDMP-DURATION seconds] [IDMP-MAXSIZE iids]`.
pub(super) fn xcfgset(context: &mut Context<'_>) -> Result<(), CommandError> {
    const DURATION_PARAMETER: BoundParameter = BoundParameter {
        max: 86400,
        repeated_error: "ERR IDMP-DURATION specified multiple times",
        range_error: "ERR IDMP-DURATION must be between 1 and 86400 seconds",
    };
    const MAXSIZE_PARAMETER: BoundParameter = BoundParameter {
        max: 10000,
        repeated_error: "ERR IDMP-MAXSIZE specified multiple times",
        range_error: "ERR IDMP-MAXSIZE must be between 1 and 10000 entries",
    };
    let key = context.key(1)?;
    let place = context.find_stream(&key)?.ok_or(CommandError::NoSuchKey)?;
    let (mut duration, mut most, mut index) = (None, None, 2);
    while let Some(word) = context.args.get(index) {
        let has_value = index + 1 < context.args.len();
        if word.eq_ignore_ascii_case(b"idmp-duration") && has_value {
            duration = parse_bound(context, index + 1, duration, &DURATION_PARAMETER)?;
        } else if word.eq_ignore_ascii_case(b"idmp-maxsize") && has_value {
            most = parse_bound(context, index + 1, most, &MAXSIZE_PARAMETER)?;
        } else {
            return Err(CommandError::Syntax);
        }
        index += 2;
    }
    if duration.is_none() && most.is_none() {
        return Err(CommandError::text("ERR At least one parameter must be specified"));
    }
    let default = context.engine.settings.value_limits.idempotence_bounds();
    context.edit_stream(&key, place, |stream| {
        let before = stream.producers().map(keyspace::Producers::bounds);
        let mut bounds = before.unwrap_or(default);
        bounds.duration_secs = duration.unwrap_or(bounds.duration_secs);
        bounds.max_iids = most.unwrap_or(bounds.max_iids);
        // Any change of the parameters clears the known idempotence ids.
        if before != Some(bounds) {
            stream.set_idempotence(bounds);
        }
    });
    context.report_modified(&key);
    context.reply.ok();
    Ok(())
}

/// Handles `XIDMPRECORD key producer iid id`, with which a rewritten AOF restores the idempotence ids of a stream.
pub(super) fn xidmprecord(context: &mut Context<'_>) -> Result<(), CommandError> {
    let (key, producer, iid) = (context.key(1)?, context.arg(2), context.arg(3));
    let id = id::parse_id(context.arg(4))?;
    if producer.is_empty() {
        return Err(CommandError::text("ERR producer ID must be non-empty"));
    }
    if iid.is_empty() {
        return Err(CommandError::text("ERR idempotent ID must be non-empty"));
    }
    let place = context.find_stream(&key)?.ok_or(CommandError::NoSuchKey)?;
    let stream = context.stream_at(&key, place);
    // An AOF also contains idempotence ids of entries that were trimmed later.
    if stream.entry(id).is_none() && context.session.origin() == CommandOrigin::Client {
        return Err(CommandError::text("ERR No such message in stream"));
    }
    let known = stream.producers().and_then(|producers| producers.find(producer, iid));
    drop(stream);
    match known {
        Some(other) if other != id => {
            return Err(CommandError::text(
                "ERR IID already exists for this producer with a different stream ID",
            ));
        }
        Some(_) => {}
        None => {
            let bounds = context.engine.settings.value_limits.idempotence_bounds();
            context.edit_stream(&key, place, |stream| stream.add_iid(producer, iid, id, bounds));
            context.report_modified(&key);
        }
    }
    context.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests;

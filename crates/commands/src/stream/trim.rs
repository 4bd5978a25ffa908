//! XTRIM, and the trim options of XADD.

use engine::{CommandError, Context, EventClass};
use keyspace::{Key, Stream, StreamHead, StreamId, StreamTrim, TrimPrecision};

use super::common::StreamAccess;
use super::id;
use super::references::{ReferencePolicy, RemovedEntries};

/// Number of nodes whose entries an approximate trim may delete if no LIMIT is given.
const DEFAULT_LIMIT_NODES: u64 = 100;
const MIN_DEFAULT_LIMIT: u64 = 10_000;
const MAX_DEFAULT_LIMIT: u64 = 1_000_000;

/// The trim options parsed so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TrimOptions {
    trim: Option<StreamTrim>,
    is_approximate: bool,
    limit: Option<u64>,
    reference_policy: Option<ReferencePolicy>,
}

/// Parses a number, which must not be negative. `negative_error` is the error message for a negative number.
fn parse_amount(
    context: &Context<'_>,
    index: usize,
    negative_error: &'static str,
) -> Result<u64, CommandError> {
    u64::try_from(context.integer_arg(index)?).map_err(|_| CommandError::text(negative_error))
}

impl TrimOptions {
    /// Parses a trim option at argument `index`. Returns the index of the next argument, or `None` if argument `index`
    /// is another word.
    pub(super) fn parse_option(
        &mut self,
        context: &Context<'_>,
        index: usize,
    ) -> Result<Option<usize>, CommandError> {
        const GIVEN_TWICE_ERROR: CommandError = CommandError::text(
            "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
        );
        let (args, is) = (context.args, |word: &[u8]| context.arg(index).eq_ignore_ascii_case(word));
        let behind = args.len() - 1 - index;
        if self.reference_policy.is_none()
            && let Some(references) = ReferencePolicy::parse_option_word(context.arg(index))
        {
            self.reference_policy = Some(references);
            return Ok(Some(index + 1));
        }
        if behind == 0 {
            return Ok(None);
        }
        let is_len = is(b"maxlen");
        if is_len || is(b"minid") {
            if self.trim.is_some() {
                return Err(GIVEN_TWICE_ERROR);
            }
            let sign =
                Some(context.arg(index + 1)).filter(|sign| behind >= 2 && matches!(*sign, b"~" | b"="));
            self.is_approximate = sign == Some(b"~");
            let at = index + 1 + usize::from(sign.is_some());
            self.trim = Some(if is_len {
                StreamTrim::MaxLen(parse_amount(context, at, "ERR The MAXLEN argument must be >= 0.")?)
            } else {
                StreamTrim::MinId(id::parse_id(context.arg(at))?)
            });
            return Ok(Some(at + 1));
        }
        if is(b"limit") {
            self.limit = Some(parse_amount(context, index + 1, "ERR The LIMIT argument must be >= 0.")?);
            return Ok(Some(index + 2));
        }
        Ok(None)
    }

    /// Whether KEEPREF, DELREF or ACKED, which only Redis has, were given.
    pub(super) fn has_reference_options(&self) -> bool {
        self.reference_policy.is_some()
    }

    /// Combines the parsed options into a trim. Returns `None` if the command requests no trim.
    pub(super) fn into_request(self, context: &Context<'_>) -> Result<Option<TrimRequest>, CommandError> {
        const LIMIT_WITHOUT_APPROXIMATE: CommandError = CommandError::text(
            "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
        );
        const LIMIT_WITH_EXACT: CommandError =
            CommandError::text("ERR syntax error, LIMIT cannot be used without the special ~ option");
        let Some(trim) = self.trim else {
            return if self.limit.is_some_and(|limit| limit > 0) {
                Err(LIMIT_WITHOUT_APPROXIMATE)
            } else {
                Ok(None)
            };
        };
        let exactness = match (self.is_approximate, self.limit) {
            (is_approximate, _) if context.session.origin().is_stream() => {
                if is_approximate {
                    TrimPrecision::Nodes(0)
                } else {
                    TrimPrecision::Exact
                }
            }
            (false, Some(_)) => return Err(LIMIT_WITH_EXACT),
            (false, None) => TrimPrecision::Exact,
            (true, Some(limit)) => TrimPrecision::Nodes(limit),
            (true, None) => {
                let most = context.engine.settings.value_limits.stream_node_bounds().max_entries as u64;
                let most = most.saturating_mul(DEFAULT_LIMIT_NODES).min(MAX_DEFAULT_LIMIT);
                TrimPrecision::Nodes(if most == 0 { MIN_DEFAULT_LIMIT } else { most })
            }
        };
        Ok(Some(TrimRequest {
            trim,
            precision: exactness,
            reference_policy: self.reference_policy.unwrap_or_default(),
        }))
    }
}

/// A validated trim, which can be applied to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TrimRequest {
    trim: StreamTrim,
    precision: TrimPrecision,
    reference_policy: ReferencePolicy,
}

/// The result of a trim.
pub(super) struct TrimResult {
    /// Number of entries that the trim deleted.
    pub(super) deleted_count: u64,
    /// The nodes that the trim removed. The caller drops them, in the background if they are large.
    pub(super) removed_nodes: Stream,
    removed_entries: RemovedEntries,
    /// The arguments of an equivalent trim with an exact bound. `None` if the stream still has entries that are older
    /// than deleted ones, so that no exact bound has the same effect.
    exact_arguments: Option<(&'static [u8], Vec<u8>)>,
}

impl TrimRequest {
    /// Whether the trim has the same result on every server with the same stream.
    pub(super) fn is_exact(&self) -> bool {
        self.precision == TrimPrecision::Exact && self.reference_policy == ReferencePolicy::Keep
    }

    /// Deletes entries from the stream as the trim requests.
    pub(super) fn apply(&self, stream: &mut Stream) -> TrimResult {
        if self.reference_policy != ReferencePolicy::Keep {
            return self.apply_with_references(stream);
        }
        let (cut, gone) = stream.trim(self.trim, self.precision);
        let exactly = Some(self.exact_trim_arguments(stream.head(), stream.first_id()));
        TrimResult {
            deleted_count: cut,
            removed_nodes: gone,
            removed_entries: RemovedEntries::default(),
            exact_arguments: exactly,
        }
    }

    fn apply_with_references(&self, stream: &mut Stream) -> TrimResult {
        let limit = match self.precision {
            TrimPrecision::Exact => 0,
            TrimPrecision::Nodes(most) => most,
        };
        let all = self.reference_policy == ReferencePolicy::Delete;
        let ids = stream.trimmable_entries(self.trim, limit, |id| all || stream.is_acknowledged(id));
        let mut removed = RemovedEntries::default();
        if all {
            ids.iter().for_each(|id| removed.remove_from_pending(stream, *id));
        }
        let (cut, mut gone, mut exactly) = (ids.len() as u64, Stream::default(), None);
        match ids.last() {
            Some(last) if stream.starts_with_ids(&ids) => {
                gone = stream.trim_through(*last);
                exactly = Some(self.exact_trim_arguments(stream.head(), stream.first_id()));
            }
            // This trim leaves gaps in the stream. Like deletions by XDEL, they make the lag of a group that has yet to
            // read past them unknown.
            _ => {
                for id in &ids {
                    stream.delete(*id);
                }
                removed.deleted_ids = ids;
            }
        }
        TrimResult {
            deleted_count: cut,
            removed_nodes: gone,
            removed_entries: removed,
            exact_arguments: exactly,
        }
    }

    /// The arguments of an equivalent exact trim. `head` and `first` describe the stream after the trim.
    fn exact_trim_arguments(&self, head: StreamHead, first: StreamId) -> (&'static [u8], Vec<u8>) {
        match self.trim {
            StreamTrim::MaxLen(_) => (b"MAXLEN", head.len.to_string().into_bytes()),
            StreamTrim::MinId(_) => {
                let first = if head.len == 0 { StreamId::MAX } else { first };
                (b"MINID", id::format_id(first).to_vec())
            }
        }
    }
}

impl TrimResult {
    /// Replicates the trim by its effect instead of its arguments.
    pub(super) fn log_trim(&self, context: &mut Context<'_>, key: &Key<'_>) {
        self.log_removed_entries(context, key);
        if let Some((word, value)) = &self.exact_arguments {
            context.log_effect(&[b"XTRIM", key.bytes(), word, b"=", value]);
        }
    }

    /// The arguments of an equivalent exact trim on a server with the same pending entries.
    pub(super) fn exact_arguments(&self) -> Option<(&'static [u8], &[u8])> {
        self.exact_arguments.as_ref().map(|(word, value)| (*word, &value[..]))
    }

    /// Replicates the deletions and acknowledgements that an exact trim does not cover.
    pub(super) fn log_removed_entries(&self, context: &mut Context<'_>, key: &Key<'_>) {
        self.removed_entries.log_acknowledged_ids(context, key);
        self.removed_entries.log_deleted_ids(context, key);
    }
}

pub(super) fn xtrim(context: &mut Context<'_>) -> Result<(), CommandError> {
    const MISSING_STRATEGY_ERROR: CommandError =
        CommandError::text("ERR syntax error, XTRIM must be called with a trimming strategy");
    let (key, mut words, mut index) = (context.key(1)?, TrimOptions::default(), 2);
    while index < context.args.len() {
        index = words.parse_option(context, index)?.ok_or(CommandError::Syntax)?;
    }
    let trimming = words.into_request(context)?.ok_or(MISSING_STRATEGY_ERROR)?;
    let Some(place) = context.find_stream(&key)? else {
        context.reply.integer(0);
        return Ok(());
    };
    let (_, mut trimmed) = context.edit_stream(&key, place, |stream| trimming.apply(stream));
    context.free_stream_parts(std::mem::take(&mut trimmed.removed_nodes));
    if trimmed.deleted_count > 0 {
        context.report_changes(&key, trimmed.deleted_count as usize);
        context.notify(EventClass::STREAM, "xtrim", &key);
        if !trimming.is_exact() || words.has_reference_options() {
            trimmed.log_trim(context, &key);
        }
    }
    context.reply.integer(trimmed.deleted_count as i64);
    Ok(())
}

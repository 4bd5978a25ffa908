//! Options and indexes of list commands.

use std::ops::Range;

use engine::{CommandError, Context};
use keyspace::ListEnd;

/// Parses LEFT or RIGHT.
pub(super) fn parse_list_end(word: &[u8]) -> Result<ListEnd, CommandError> {
    match () {
        () if word.eq_ignore_ascii_case(b"left") => Ok(ListEnd::Head),
        () if word.eq_ignore_ascii_case(b"right") => Ok(ListEnd::Tail),
        () => Err(CommandError::Syntax),
    }
}

/// Converts two inclusive indexes, which count from the end if negative, to a range within a list of `len` elements.
pub(super) fn resolve_range(start: i64, stop: i64, len: usize) -> Range<usize> {
    let len = len as i64;
    let from_end = |index: i64| if index < 0 { index.saturating_add(len) } else { index };
    let (start, stop) = (from_end(start).max(0), from_end(stop).min(len - 1));
    if start > stop { 0..0 } else { start as usize..stop as usize + 1 }
}

/// Resolves an index, which counts from the end if negative. `None` if it is out of range.
pub(super) fn resolve_index(index: i64, len: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(len as i64)? } else { index };
    usize::try_from(index).ok().filter(|index| *index < len)
}

/// The arguments of LMPOP and BLMPOP: `numkeys key [key ...] LEFT | RIGHT [COUNT count]`.
pub(super) struct MultiPopArguments {
    pub(super) keys: Range<usize>,
    pub(super) end: ListEnd,
    pub(super) count: usize,
}

impl MultiPopArguments {
    pub(super) fn parse(context: &Context<'_>, from: usize) -> Result<Self, CommandError> {
        let args = context.args;
        let keys = resp::parse_i64(context.arg(from))
            .filter(|keys| *keys > 0)
            .ok_or(CommandError::text("ERR numkeys should be greater than 0"))?;
        let behind = usize::try_from(keys).ok().and_then(|keys| keys.checked_add(from + 1));
        let behind = behind.filter(|behind| *behind < args.len()).ok_or(CommandError::Syntax)?;
        let end = parse_list_end(context.arg(behind))?;
        let count = match args.get(behind + 1).zip(args.get(behind + 2)) {
            None => 1,
            Some((word, count)) if word.eq_ignore_ascii_case(b"count") => resp::parse_i64(count)
                .filter(|count| *count > 0)
                .ok_or(CommandError::text("ERR count should be greater than 0"))?,
            Some(_) => return Err(CommandError::Syntax),
        };
        if ![behind + 1, behind + 3].contains(&args.len()) {
            return Err(CommandError::Syntax);
        }
        Ok(Self { keys: from + 1..behind, end, count: usize::try_from(count).unwrap_or(usize::MAX) })
    }
}

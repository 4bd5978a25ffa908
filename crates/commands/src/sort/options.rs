//! Options of SORT.

use std::ops::Range;

use engine::{CommandError, Context, RequestKeys};
use resp::Args;
use slot_routing::Slot;

use crate::rows::key;

/// The values by which SORT compares elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SortBy<'a> {
    Element,
    /// SORT compares the values of the keys that this pattern names.
    Pattern(&'a [u8]),
    /// SORT does not sort, because the pattern has no placeholder.
    Unsorted,
}

/// Whether the command accepts STORE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreOption {
    Allowed,
    Forbidden,
}

/// An option of SORT. Numbers are argument indexes.
enum SortOption {
    Ascending,
    Descending,
    Alpha,
    /// The option LIMIT; holds the index of the offset, which the count follows.
    Limit(usize),
    Store(usize),
    By(usize),
    Get(usize),
    Unknown,
}

/// Returns the option at `index` and the index of the next option. Both the handlers and [`parse_sort_keys`] use this
/// function, so that they agree on the keys.
fn parse_option(args: Args<'_>, store_option: StoreOption, index: usize) -> (SortOption, usize) {
    let word = args.get(index).unwrap_or_default();
    let is =
        |name: &str, more: usize| word.eq_ignore_ascii_case(name.as_bytes()) && index + more < args.len();
    match () {
        () if is("asc", 0) => (SortOption::Ascending, index + 1),
        () if is("desc", 0) => (SortOption::Descending, index + 1),
        () if is("alpha", 0) => (SortOption::Alpha, index + 1),
        () if is("limit", 2) => (SortOption::Limit(index + 1), index + 3),
        () if is("store", 1) && store_option == StoreOption::Allowed => {
            (SortOption::Store(index + 1), index + 2)
        }
        () if is("by", 1) => (SortOption::By(index + 1), index + 2),
        () if is("get", 1) => (SortOption::Get(index + 1), index + 2),
        () => (SortOption::Unknown, index + 1),
    }
}

/// The keys of SORT that are known before execution. If STORE is repeated, the last one wins.
pub(super) fn parse_sort_keys(args: Args<'_>) -> RequestKeys {
    let (mut stored, mut index) = (None, 2);
    while index < args.len() {
        let (option, next) = parse_option(args, StoreOption::Allowed, index);
        if let SortOption::Store(place) = option {
            stored = Some(place);
        }
        index = next;
    }
    RequestKeys::default().key(1, key::READ).keys(stored, key::OVERWRITE)
}

#[derive(Debug)]
pub(super) struct SortOptions<'a> {
    pub(super) sort_by: SortBy<'a>,
    pub(super) get_patterns: Vec<&'a [u8]>,
    pub(super) is_alphabetic: bool,
    pub(super) is_descending: bool,
    /// Argument index of the destination key, if the result is stored.
    pub(super) destination_index: Option<usize>,
    limit_offset: i64,
    limit_count: i64,
}

impl<'a> SortOptions<'a> {
    pub(super) fn parse(context: &Context<'a>, store_option: StoreOption) -> Result<Self, CommandError> {
        let mut options = Self {
            sort_by: SortBy::Element,
            get_patterns: Vec::new(),
            is_alphabetic: false,
            is_descending: false,
            destination_index: None,
            limit_offset: 0,
            limit_count: -1,
        };
        let mut index = 2;
        while index < context.args.len() {
            let (option, next) = parse_option(context.args, store_option, index);
            index = next;
            match option {
                SortOption::Ascending => options.is_descending = false,
                SortOption::Descending => options.is_descending = true,
                SortOption::Alpha => options.is_alphabetic = true,
                SortOption::Limit(place) => {
                    options.limit_offset = context.integer_arg(place)?;
                    options.limit_count = context.integer_arg(place + 1)?;
                }
                SortOption::Store(place) => options.destination_index = Some(place),
                SortOption::By(place) => {
                    let pattern = context.arg(place);
                    options.sort_by = SortBy::Unsorted;
                    if pattern.contains(&b'*') {
                        check_pattern(context, pattern, BY_ERRORS)?;
                        options.sort_by = SortBy::Pattern(pattern);
                    }
                }
                SortOption::Get(place) => {
                    let pattern = context.arg(place);
                    check_pattern(context, pattern, GET_ERRORS)?;
                    options.get_patterns.push(pattern);
                }
                SortOption::Unknown => return Err(CommandError::Syntax),
            }
        }
        Ok(options)
    }

    /// Whether elements with equal weights keep their order (a stable sort).
    pub(super) fn is_stable(&self) -> bool {
        self.is_alphabetic && matches!(self.sort_by, SortBy::Pattern(_))
    }

    /// The range selected by LIMIT out of `len` elements.
    pub(super) fn limit_range(&self, len: usize) -> Range<usize> {
        let start = usize::try_from(self.limit_offset.max(0)).unwrap_or(usize::MAX).min(len);
        match usize::try_from(self.limit_count) {
            Ok(count) => start..start.saturating_add(count).min(len),
            Err(_) => start..len,
        }
    }
}

/// The errors for a pattern that the command may not use.
struct PatternErrors {
    /// The error in cluster mode if the pattern can name keys of other slots.
    other_slot_error: CommandError,
    /// The error if the user may not read all keys.
    no_permission_error: CommandError,
}

const BY_ERRORS: PatternErrors = PatternErrors {
    other_slot_error: CommandError::text(
        "ERR BY option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.",
    ),
    no_permission_error: CommandError::text(
        "ERR BY option of SORT denied due to insufficient ACL permissions.",
    ),
};
const GET_ERRORS: PatternErrors = PatternErrors {
    other_slot_error: CommandError::text(
        "ERR GET option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.",
    ),
    no_permission_error: CommandError::text(
        "ERR GET option of SORT denied due to insufficient ACL permissions.",
    ),
};

/// Checks that the command may read all keys that a pattern can name. As in Redis, a user without access to all keys
/// may not use `GET #` either, although it names no key.
fn check_pattern(context: &Context<'_>, pattern: &[u8], errors: PatternErrors) -> Result<(), CommandError> {
    let is_here = || pattern == b"#" || pattern_slot(pattern) == Some(Slot::of_key(context.arg(1)));
    if context.engine.topology.is_some() && !is_here() {
        return Err(errors.other_slot_error);
    }
    if context.may_read_all_keys() { Ok(()) } else { Err(errors.no_permission_error) }
}

/// If a pattern's hash tag precedes every placeholder, returns the single slot of all keys that the pattern can name.
fn pattern_slot(pattern: &[u8]) -> Option<Slot> {
    let mut tag = None;
    for (index, byte) in pattern.iter().enumerate() {
        match (byte, tag) {
            (b'*' | b'?' | b'[' | b'\\', _) => return None,
            (b'{', None) => tag = Some(index),
            (b'}', Some(start)) if index > start + 1 => return Some(Slot::of_key(&pattern[..=index])),
            // An empty hash tag counts as no tag.
            (b'}', Some(start)) if index == start + 1 => tag = Some(usize::MAX - 1),
            _ => {}
        }
    }
    Some(Slot::of_key(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_slot_is_determined_by_hash_tag() {
        let slot = |text: &str| Some(Slot::of_key(text.as_bytes()));
        for (pattern, expected) in [
            ("{a}w*", slot("a")),
            ("x{a}*->f", slot("a")),
            ("w*{a}", None),
            ("*", None),
            ("const", slot("const")),
            ("{}a*", None),
            ("{a*}", None),
        ] {
            assert_eq!(pattern_slot(pattern.as_bytes()), expected, "{pattern}");
        }
    }
}

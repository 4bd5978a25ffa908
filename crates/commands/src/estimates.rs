//! About how long requests take that walk much, for the rows of the table ([`engine::Command::long`]).
//!
//! Each is so many nanoseconds for an element, as measured of elements of a few bytes on one core, times the elements
//! that the request will come to; only whether that makes about a millisecond matters. A search in space has none: most
//! find few, and to be taken for long costs a short request more than it takes.

use engine::{Estimated, FEW_KEYS};
use keyspace::Value;

/// All elements of all values that are read.
pub(super) fn elements<const NANOS: u64>(request: &Estimated<'_>) -> u64 {
    let mut sum = 0;
    request.each_extent(|extent| sum += extent as u64);
    sum * NANOS
}

/// All bytes of all strings that are read.
pub(super) fn bytes<const PICOS: u64>(request: &Estimated<'_>) -> u64 {
    let mut sum = 0;
    request.each_extent(|extent| sum += extent as u64);
    sum * PICOS / 1000
}

/// The elements of the smallest value, looked for in all others.
pub(super) fn smallest<const NANOS: u64>(request: &Estimated<'_>) -> u64 {
    let (mut least, mut values) = (usize::MAX, 0);
    request.each_extent(|extent| (least, values) = (least.min(extent), values + 1));
    if values == 0 { 0 } else { least as u64 * values * NANOS }
}

/// The elements between the indexes behind the key, counted from the end where negative.
pub(super) fn between<const NANOS: u64>(request: &Estimated<'_>) -> u64 {
    among(request).unwrap_or(0) * NANOS
}

/// The elements outside of that range.
pub(super) fn trimmed<const NANOS: u64>(request: &Estimated<'_>) -> u64 {
    (request.extent(1) as u64).saturating_sub(among(request).unwrap_or(u64::MAX)) * NANOS
}

fn among(request: &Estimated<'_>) -> Option<u64> {
    let len = i64::try_from(request.extent(1)).unwrap_or(i64::MAX);
    let index = |at| {
        let index = resp::parse_i64(request.args.get(at).unwrap_or_default())?;
        Some(if index < 0 { (index + len).max(0) } else { index.min(len) })
    };
    Some((index(3)? - index(2)? + 1).max(0).unsigned_abs())
}

/// As many elements as are asked for behind the key, of those that there are, or if negative, the same ones again.
pub(super) fn counted<const NANOS: u64>(request: &Estimated<'_>) -> u64 {
    let count = request.args.get(2).and_then(resp::parse_i64).unwrap_or(0);
    let most = if count < 0 { u64::MAX } else { request.extent(1) as u64 };
    count.unsigned_abs().min(most).saturating_mul(NANOS)
}

/// The entries of a stream, or the so many that are asked for.
pub(super) fn entries<const NANOS: u64>(request: &Estimated<'_>) -> u64 {
    let whole = |at: usize, sign: &[u8]| request.args.get(at).is_some_and(|id| id == sign);
    let all = whole(2, b"-") && whole(3, b"+") || whole(2, b"+") && whole(3, b"-");
    if !all {
        return 0;
    }
    let count = request.args.get(5).and_then(resp::parse_i64).and_then(|count| u64::try_from(count).ok());
    (request.extent(1) as u64).min(count.unwrap_or(u64::MAX)) * NANOS
}

/// One value as it is saved or copied: a string's bytes are few nanoseconds, an element of anything else more.
pub(super) fn copied<const NANOS: u64>(request: &Estimated<'_>) -> u64 {
    let of_value = |value: Value<'_>| match value {
        Value::String(string) => string.bytes.len() as u64 / 2,
        _ => value.extent() as u64 * NANOS,
    };
    request.value(1, of_value).unwrap_or(0)
}

/// The bytes that came with the request.
pub(super) fn sent<const NANOS: u64>(request: &Estimated<'_>) -> u64 {
    request.args.span() as u64 * NANOS
}

/// The names of all keys; where these are not few, every slot is held for a moment.
pub(super) fn names(request: &Estimated<'_>) -> u64 {
    let keys = request.keys();
    let cut = if keys > FEW_KEYS { 1_000_000 } else { 0 };
    keys as u64 * 70 + cut
}

/// All keys, if the request says that it waits until they are gone from memory.
pub(super) fn flushed(request: &Estimated<'_>) -> u64 {
    let waits = request.args.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"sync"));
    if waits { request.keys() as u64 * 50 } else { 0 }
}

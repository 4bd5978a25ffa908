//! Estimated run times of commands that iterate over many elements, for the command table
//! ([`engine::Command::with_estimate`]).
//!
//! Each estimate multiplies the expected number of elements by nanoseconds per element, measured on one core with
//! elements of a few bytes. Only the order of magnitude matters: whether the result exceeds about a millisecond. Geo
//! searches have their own estimate, since most of them find few places and offloading a short request costs more than
//! running it.

use engine::{EstimateInput, MAX_KEYS_LOCKED_TOGETHER};
use keyspace::Value;

/// Cost of reading all elements of all keys.
pub(super) fn elements_cost<const NANOS: u64>(request: &EstimateInput<'_>) -> u64 {
    let mut sum = 0;
    request.visit_value_sizes(|extent| sum += extent as u64);
    sum * NANOS
}

/// Cost of reading all bytes of all strings.
pub(super) fn bytes_cost<const PICOS: u64>(request: &EstimateInput<'_>) -> u64 {
    let mut sum = 0;
    request.visit_value_sizes(|extent| sum += extent as u64);
    sum * PICOS / 1000
}

/// Cost of looking up each element of the smallest value in all other values.
pub(super) fn smallest_set_cost<const NANOS: u64>(request: &EstimateInput<'_>) -> u64 {
    let (mut least, mut values) = (usize::MAX, 0);
    request.visit_value_sizes(|extent| (least, values) = (least.min(extent), values + 1));
    if values == 0 { 0 } else { least as u64 * values * NANOS }
}

/// Cost of the elements between the two indexes after the key; negative indexes count from the end.
pub(super) fn range_cost<const NANOS: u64>(request: &EstimateInput<'_>) -> u64 {
    range_len(request).unwrap_or(0) * NANOS
}

/// Cost of removing the elements outside of the range.
pub(super) fn outside_range_cost<const NANOS: u64>(request: &EstimateInput<'_>) -> u64 {
    (request.value_size(1) as u64).saturating_sub(range_len(request).unwrap_or(u64::MAX)) * NANOS
}

fn range_len(request: &EstimateInput<'_>) -> Option<u64> {
    let len = i64::try_from(request.value_size(1)).unwrap_or(i64::MAX);
    let index = |at| {
        let index = resp::parse_i64(request.args.get(at).unwrap_or_default())?;
        Some(if index < 0 { (index + len).max(0) } else { index.min(len) })
    };
    Some((index(3)? - index(2)? + 1).max(0).unsigned_abs())
}

/// Cost of returning as many elements as the count argument requests. A positive count is limited to the cardinality. A
/// negative count is not, because elements may repeat.
pub(super) fn count_cost<const NANOS: u64>(request: &EstimateInput<'_>) -> u64 {
    let count = request.args.get(2).and_then(resp::parse_i64).unwrap_or(0);
    let most = if count < 0 { u64::MAX } else { request.value_size(1) as u64 };
    count.unsigned_abs().min(most).saturating_mul(NANOS)
}

/// Cost of the entries of a stream, or of the requested COUNT.
pub(super) fn entries_cost<const NANOS: u64>(request: &EstimateInput<'_>) -> u64 {
    let whole = |at: usize, sign: &[u8]| request.args.get(at).is_some_and(|id| id == sign);
    let all = whole(2, b"-") && whole(3, b"+") || whole(2, b"+") && whole(3, b"-");
    if !all {
        return 0;
    }
    let count = request.args.get(5).and_then(resp::parse_i64).and_then(|count| u64::try_from(count).ok());
    (request.value_size(1) as u64).min(count.unwrap_or(u64::MAX)) * NANOS
}

/// Cost of saving or copying one value. A byte of a string is much cheaper than an element of another type.
pub(super) fn copy_cost<const NANOS: u64>(request: &EstimateInput<'_>) -> u64 {
    let of_value = |value: Value<'_>| match value {
        Value::String(string) => string.bytes.len() as u64 / 2,
        _ => value.element_count() as u64 * NANOS,
    };
    request.with_value(1, of_value).unwrap_or(0)
}

/// Cost proportional to the size of the request in bytes.
pub(super) fn request_cost<const NANOS: u64>(request: &EstimateInput<'_>) -> u64 {
    request.args.span_len() as u64 * NANOS
}

/// Cost of listing all keys. A large keyspace also pays for locking every slot briefly.
pub(super) fn key_listing_cost(request: &EstimateInput<'_>) -> u64 {
    let keys = request.key_count();
    let cut = if keys > MAX_KEYS_LOCKED_TOGETHER { 1_000_000 } else { 0 };
    keys as u64 * 70 + cut
}

/// Cost of deleting all keys, if the request waits until their memory is freed.
pub(super) fn flush_cost(request: &EstimateInput<'_>) -> u64 {
    let waits = request.args.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"sync"));
    if waits { request.key_count() as u64 * 50 } else { 0 }
}

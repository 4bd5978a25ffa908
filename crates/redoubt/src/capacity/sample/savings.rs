//! Estimates how much memory other key names, field names or types would save.
//!
//! Savings from shorter names are exact byte counts. Savings from another type are the difference that the memory
//! models predict for values of mean length. Both are upper bounds.

use ::capacity::KeyGroup;
use ::capacity::own;
use keyspace::Kind;
use serde::Serialize;

use crate::capacity::thread_heap_bytes;

/// Strings per hash when strings are grouped by the last two digits of their ids.
const STRINGS_PER_HASH: u64 = 100;
/// Maximum length of values that are worth moving into a listpack.
const MAX_VALUE_BYTES: u64 = 64;

/// A possible change and its savings in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct MemorySaving {
    pub(super) change: String,
    pub(super) saves: u64,
}

/// Statistics of one pattern that the estimates use.
#[derive(Debug, Clone, Copy)]
pub(super) struct PatternStats<'a> {
    pub(super) pattern: &'a str,
    pub(super) separator: &'a str,
    pub(super) keys: u64,
    /// Sum of the lengths of all keys in bytes.
    pub(super) key_bytes: u64,
    /// Sum of the lengths of all string values in bytes.
    pub(super) string_bytes: u64,
    pub(super) strings: u64,
    /// Number of hash fields. The lengths of the names are known only for sampled fields.
    pub(super) fields: u64,
    pub(super) sampled_fields: u64,
    pub(super) sampled_field_bytes: u64,
    pub(super) expiring: u64,
}

/// Returns the changes that are worthwhile, the largest saving first.
pub(super) fn find_savings(stats: PatternStats<'_>) -> Vec<MemorySaving> {
    let mut all: Vec<MemorySaving> = [
        estimate_shorter_key_names(stats),
        estimate_shorter_field_names(stats),
        estimate_grouped_strings(stats),
    ]
    .into_iter()
    .flatten()
    .collect();
    all.sort_by_key(|what_if| std::cmp::Reverse(what_if.saves));
    all
}

/// Returns the savings if each fixed part of the key name had only one letter.
fn estimate_shorter_key_names(stats: PatternStats<'_>) -> Option<MemorySaving> {
    let parts = stats.pattern.split(stats.separator).filter(|part| !part.contains('*'));
    let each: usize = parts.map(|part| part.len().saturating_sub(1)).sum();
    let saves = each as u64 * stats.keys;
    (saves > 0)
        .then(|| MemorySaving { change: "shorten each part of the key name to one letter".to_owned(), saves })
}

/// Returns the savings if each field name had only two letters.
fn estimate_shorter_field_names(stats: PatternStats<'_>) -> Option<MemorySaving> {
    let seen = stats.sampled_fields.max(1);
    let each = (stats.sampled_field_bytes / seen).saturating_sub(2);
    let saves = each * stats.fields;
    let change = format!("shorten field names from {} to 2 bytes", stats.sampled_field_bytes / seen);
    (saves > 0).then_some(MemorySaving { change, saves })
}

/// Returns the savings if small strings without a time to live were grouped into hashes.
fn estimate_grouped_strings(stats: PatternStats<'_>) -> Option<MemorySaving> {
    let strings = stats.strings;
    let value_bytes = stats.string_bytes / strings.max(1);
    if strings != stats.keys
        || strings < STRINGS_PER_HASH
        || stats.expiring > 0
        || value_bytes > MAX_VALUE_BYTES
    {
        return None;
    }
    let key_bytes = stats.key_bytes / stats.keys.max(1);
    let one = KeyGroup {
        name: String::new(),
        kind: Kind::String,
        keys: strings,
        elements: 1,
        key_bytes,
        field_bytes: 0,
        value_bytes,
        longest_value_bytes: None,
        expires: false,
        values_are_integers: false,
    };
    let hashes = strings.div_ceil(STRINGS_PER_HASH);
    let hash = KeyGroup {
        kind: Kind::Hash,
        keys: hashes,
        elements: STRINGS_PER_HASH,
        key_bytes: key_bytes.saturating_sub(2),
        field_bytes: 2,
        ..one.clone()
    };
    let now = own::sampled_memory(&one, strings, thread_heap_bytes).total() * strings as f64;
    let then = own::sampled_memory(&hash, hashes, thread_heap_bytes).total() * hashes as f64;
    (then < now).then(|| MemorySaving {
        change: format!(
            "group strings into hashes of {STRINGS_PER_HASH} fields named by the last two digits of the id"
        ),
        saves: (now - then) as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY_STATS: PatternStats<'_> = PatternStats {
        pattern: "session:*",
        separator: ":",
        keys: 1000,
        key_bytes: 16_000,
        string_bytes: 0,
        strings: 0,
        fields: 0,
        sampled_fields: 0,
        sampled_field_bytes: 0,
        expiring: 0,
    };

    #[test]
    fn shorter_key_names_save_memory() {
        assert_eq!(find_savings(EMPTY_STATS)[0].saves, 6000);
        assert!(find_savings(PatternStats { pattern: "s:*", ..EMPTY_STATS }).is_empty());
    }

    #[test]
    fn shorter_field_names_save_memory() {
        let hashes =
            PatternStats { fields: 11_000, sampled_fields: 100, sampled_field_bytes: 1200, ..EMPTY_STATS };
        assert_eq!(find_savings(hashes)[0].saves, 110_000);
    }

    #[test]
    fn small_strings_without_ttl_can_be_grouped() {
        let strings = PatternStats {
            pattern: "s:*",
            strings: 100_000,
            keys: 100_000,
            key_bytes: 1_600_000,
            ..EMPTY_STATS
        };
        let small = PatternStats { string_bytes: 1_000_000, ..strings };
        assert!(find_savings(small)[0].saves > 500_000, "{:?}", find_savings(small));
        assert!(find_savings(PatternStats { expiring: 1, ..small }).is_empty());
        assert!(find_savings(PatternStats { string_bytes: 100_000_000, ..small }).is_empty());
    }
}

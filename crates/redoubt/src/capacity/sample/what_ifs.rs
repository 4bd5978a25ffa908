//! The savings from keeping the data in another way.
//!
//! Of names the saving is counted: each byte that is not there. Of another type it is the models' difference, here, for
//! values of the mean length. Either is an upper bound for what a program that must be changed for it gains.

use ::capacity::KeyGroup;
use ::capacity::own;
use keyspace::Kind;
use serde::Serialize;

use crate::capacity::heap;

/// Fields of a hash in which strings are packed, as two digits of their ids name them.
const PACKED: u64 = 100;
/// A longer element gains nothing by being packed.
const SMALL: u64 = 64;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct WhatIf {
    pub(super) change: String,
    pub(super) saves: u64,
}

/// Keys of one pattern, as far as what-ifs go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Means<'a> {
    pub(super) pattern: &'a str,
    pub(super) separator: &'a str,
    pub(super) keys: u64,
    /// Of all keys together.
    pub(super) key_bytes: u64,
    /// Of all strings together, and how many they are.
    pub(super) string_bytes: u64,
    pub(super) strings: u64,
    /// Of all hashes together: their fields, and of the fields that were looked at their number and bytes.
    pub(super) fields: u64,
    pub(super) fields_seen: u64,
    pub(super) field_bytes_seen: u64,
    pub(super) expiring: u64,
}

/// Returns the changes that are worthwhile, the largest saving first.
pub(super) fn of(means: Means<'_>) -> Vec<WhatIf> {
    let mut all: Vec<WhatIf> =
        [shorter_names(means), shorter_fields(means), packed(means)].into_iter().flatten().collect();
    all.sort_by_key(|what_if| std::cmp::Reverse(what_if.saves));
    all
}

/// The words in a key's name, one letter each.
fn shorter_names(means: Means<'_>) -> Option<WhatIf> {
    let parts = means.pattern.split(means.separator).filter(|part| !part.contains('*'));
    let each: usize = parts.map(|part| part.len().saturating_sub(1)).sum();
    let saves = each as u64 * means.keys;
    (saves > 0).then(|| WhatIf { change: "one letter for each word of the keys' names".to_owned(), saves })
}

/// The names of fields, of two letters.
fn shorter_fields(means: Means<'_>) -> Option<WhatIf> {
    let seen = means.fields_seen.max(1);
    let each = (means.field_bytes_seen / seen).saturating_sub(2);
    let saves = each * means.fields;
    let change = format!("names of fields of 2 bytes, not {}", means.field_bytes_seen / seen);
    (saves > 0).then_some(WhatIf { change, saves })
}

/// Small strings that stay, a hundred in a hash.
fn packed(means: Means<'_>) -> Option<WhatIf> {
    let strings = means.strings;
    let value_bytes = means.string_bytes / strings.max(1);
    if strings != means.keys || strings < PACKED || means.expiring > 0 || value_bytes > SMALL {
        return None;
    }
    let key_bytes = means.key_bytes / means.keys.max(1);
    let one = KeyGroup {
        name: String::new(),
        kind: Kind::String,
        keys: strings,
        elements: 1,
        key_bytes,
        field_bytes: 0,
        value_bytes,
        longest_bytes: None,
        expires: false,
        integers: false,
    };
    let hashes = strings.div_ceil(PACKED);
    let hash = KeyGroup {
        kind: Kind::Hash,
        keys: hashes,
        elements: PACKED,
        key_bytes: key_bytes.saturating_sub(2),
        field_bytes: 2,
        ..one.clone()
    };
    let now = own::bytes(&one, strings, heap).total() * strings as f64;
    let then = own::bytes(&hash, hashes, heap).total() * hashes as f64;
    (then < now).then(|| WhatIf {
        change: format!("hashes of {PACKED} fields, the last two digits of the id, for strings"),
        saves: (now - then) as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Means<'_> = Means {
        pattern: "session:*",
        separator: ":",
        keys: 1000,
        key_bytes: 16_000,
        string_bytes: 0,
        strings: 0,
        fields: 0,
        fields_seen: 0,
        field_bytes_seen: 0,
        expiring: 0,
    };

    #[test]
    fn words_of_names_can_be_letters() {
        assert_eq!(of(NONE)[0].saves, 6000);
        assert!(of(Means { pattern: "s:*", ..NONE }).is_empty());
    }

    #[test]
    fn long_names_of_fields_are_told_of() {
        let hashes = Means { fields: 11_000, fields_seen: 100, field_bytes_seen: 1200, ..NONE };
        assert_eq!(of(hashes)[0].saves, 110_000);
    }

    #[test]
    fn small_strings_that_stay_can_be_packed() {
        let strings = Means { pattern: "s:*", strings: 100_000, keys: 100_000, key_bytes: 1_600_000, ..NONE };
        let small = Means { string_bytes: 1_000_000, ..strings };
        assert!(of(small)[0].saves > 500_000, "{:?}", of(small));
        assert!(of(Means { expiring: 1, ..small }).is_empty());
        assert!(of(Means { string_bytes: 100_000_000, ..small }).is_empty());
    }
}

//! The pattern of a key: what it has in common with the keys that are made in the same place, with `*` for the rest.
//!
//! A key is cut where names are put together (`:`, `/`, `.` and such). A part with a number in it varies there; one that
//! is a number in any base, as ids and hashes are, varies as a whole.

/// The characters that parts are put together with.
const BETWEEN: &[char] = &[':', '/', '.', '|', '-', '_', ',', ';', '#', '@', '{', '}', ' '];
/// A part of hexadecimal digits is an id from this length on.
const ID: usize = 8;
/// Characters of a pattern that are kept.
const LONGEST: usize = 80;

/// The pattern of this key.
pub(super) fn pattern_of(key: &[u8]) -> String {
    let text = without_uuids(&super::shown(key, 256));
    let mut pattern = String::new();
    for piece in text.split_inclusive(BETWEEN) {
        let part = piece.trim_end_matches(BETWEEN);
        push(&mut pattern, &pattern_of_part(part));
        push(&mut pattern, &piece[part.len()..]);
    }
    // The parts of a date vary together.
    for between in ["*-*", "*_*", "*.*"] {
        while pattern.contains(between) {
            pattern = pattern.replace(between, "*");
        }
    }
    pattern.chars().take(LONGEST).collect()
}

/// Where the hyphens of a UUID are, and how long it is.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];
const UUID: usize = 36;

/// The text with `*` for each UUID, whose parts alone look like names.
fn without_uuids(text: &str) -> String {
    let is_uuid = |part: &str| {
        let fits =
            |(at, c): (usize, char)| if HYPHENS.contains(&at) { c == '-' } else { c.is_ascii_hexdigit() };
        part.char_indices().all(fits)
    };
    let (mut left, mut rest) = (String::new(), text);
    while let Some(c) = rest.chars().next() {
        let skipped = match rest.get(..UUID) {
            Some(part) if is_uuid(part) => UUID,
            _ => c.len_utf8(),
        };
        left.push(if skipped == UUID { '*' } else { c });
        rest = &rest[skipped..];
    }
    left
}

fn push(pattern: &mut String, part: &str) {
    let part = if pattern.ends_with('*') { part.trim_start_matches('*') } else { part };
    pattern.push_str(part);
}

fn pattern_of_part(part: &str) -> String {
    let has_digit = part.chars().any(|c| c.is_ascii_digit());
    if has_digit && part.len() >= ID && part.chars().all(|c| c.is_ascii_hexdigit()) {
        return "*".to_owned();
    }
    let mut pattern = String::new();
    for c in part.chars() {
        if !c.is_ascii_digit() {
            pattern.push(c);
        } else if !pattern.ends_with('*') {
            pattern.push('*');
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_vary_and_names_stay() {
        let table: &[(&str, &str)] = &[
            ("user:1000:profile", "user:*:profile"),
            ("user:1000", "user:*"),
            ("key:000000001234", "key:*"),
            ("session:9f86d081884c7d659a2feaa0c55ad015", "session:*"),
            ("cart:550e8400-e29b-41d4-a716-446655440000:items", "cart:*:items"),
            ("{user1000}.followers", "{user*}.followers"),
            ("visits:2024-05-01", "visits:*"),
            ("lock", "lock"),
            ("cafe", "cafe"),
            ("deadbeef", "deadbeef"),
            ("k12v7", "k*v*"),
            ("", ""),
        ];
        for (key, pattern) in table {
            assert_eq!(pattern_of(key.as_bytes()), *pattern, "{key}");
        }
    }

    #[test]
    fn bytes_of_any_kind_have_a_pattern_that_ends() {
        assert_eq!(pattern_of(b"a\xff\x00b"), "a\\xff\\x*b");
        assert!(pattern_of(&[b'x'; 10_000]).chars().count() <= LONGEST);
    }
}

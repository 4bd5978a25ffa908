//! Key patterns: replaces the variable parts of a key by `*`, to group keys of the same kind.
//!
//! A key is split at common separators (`:`, `/`, `.` and so on). In a part that contains a number, the digits are
//! replaced. A part that is a number in any base, such as an id or a hash, is replaced as a whole.

const KEY_SEPARATORS: &[char] = &[':', '/', '.', '|', '-', '_', ',', ';', '#', '@', '{', '}', ' '];
/// A part that consists of hexadecimal digits counts as an id from this length on.
const MIN_ID_LENGTH: usize = 8;
/// The maximum length of a pattern in characters.
const MAX_PATTERN_CHARS: usize = 80;

pub(super) fn key_pattern(key: &[u8]) -> String {
    let text = replace_uuids(&super::format_bytes(key, 256));
    let mut pattern = String::new();
    for piece in text.split_inclusive(KEY_SEPARATORS) {
        let part = piece.trim_end_matches(KEY_SEPARATORS);
        push_part(&mut pattern, &part_pattern(part));
        push_part(&mut pattern, &piece[part.len()..]);
    }
    // The parts of a date or a version vary together, so they become one wildcard.
    for between in ["*-*", "*_*", "*.*"] {
        while pattern.contains(between) {
            pattern = pattern.replace(between, "*");
        }
    }
    pattern.chars().take(MAX_PATTERN_CHARS).collect()
}

/// The positions of the four hyphens in a UUID.
const UUID_HYPHENS: [usize; 4] = [8, 13, 18, 23];
const UUID_LENGTH: usize = 36;

/// Replaces UUIDs by `*` first, since the parts of a UUID, taken alone, may look like names.
fn replace_uuids(text: &str) -> String {
    let is_uuid = |part: &str| {
        let fits = |(at, c): (usize, char)| {
            if UUID_HYPHENS.contains(&at) { c == '-' } else { c.is_ascii_hexdigit() }
        };
        part.char_indices().all(fits)
    };
    let (mut left, mut rest) = (String::new(), text);
    while let Some(c) = rest.chars().next() {
        let skipped = match rest.get(..UUID_LENGTH) {
            Some(part) if is_uuid(part) => UUID_LENGTH,
            _ => c.len_utf8(),
        };
        left.push(if skipped == UUID_LENGTH { '*' } else { c });
        rest = &rest[skipped..];
    }
    left
}

fn push_part(pattern: &mut String, part: &str) {
    let part = if pattern.ends_with('*') { part.trim_start_matches('*') } else { part };
    pattern.push_str(part);
}

fn part_pattern(part: &str) -> String {
    let has_digit = part.chars().any(|c| c.is_ascii_digit());
    if has_digit && part.len() >= MIN_ID_LENGTH && part.chars().all(|c| c.is_ascii_hexdigit()) {
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
    fn ids_become_wildcards_and_names_stay() {
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
            assert_eq!(key_pattern(key.as_bytes()), *pattern, "{key}");
        }
    }

    #[test]
    fn pattern_of_arbitrary_bytes_has_bounded_length() {
        assert_eq!(key_pattern(b"a\xff\x00b"), "a\\xff\\x*b");
        assert!(key_pattern(&[b'x'; 10_000]).chars().count() <= MAX_PATTERN_CHARS);
    }
}

//! Matches the glob patterns of KEYS, SCAN, CONFIG GET and PSUBSCRIBE: `*`, `?`, `[abc]`, `[^a]`,
//! `[a-z]`, `\x`.
//!
//! After a mismatch only the last `*` is retried, one byte further on. The running time is
//! therefore at most pattern length times text length, and a hostile pattern cannot hang the
//! server.
#![forbid(unsafe_code)]

/// Returns whether `pattern` matches the whole of `text`.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // As in Redis, only the empty pattern matches the empty text. KEYS and SCAN special-case the
    // pattern `*`.
    if text.is_empty() {
        return pattern.is_empty();
    }
    let (mut p, mut t) = (0, 0);
    // Backtracking state: the pattern position after the last `*`, and the text position where that
    // `*` ends.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if p < pattern.len() && pattern[p] == b'*' {
            p += 1;
            retry = Some((p, t));
            continue;
        }
        if t == text.len() {
            return p == pattern.len();
        }
        match match_element(&pattern[p..], text[t]) {
            Some(len) => {
                p += len;
                t += 1;
            }
            None => match retry {
                Some((after_star, taken)) => {
                    p = after_star;
                    t = taken + 1;
                    retry = Some((after_star, t));
                }
                None => return false,
            },
        }
    }
}

/// Matches `byte` against the first element of `pattern`, which is not `*`, and returns the
/// element's length on a match.
fn match_element(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', ..] => match_class(pattern, byte),
        [b'\\', escaped, ..] => (escaped == byte).then_some(2),
        [literal, ..] => (literal == byte).then_some(1),
    }
}

/// Matches a class `[...]`. An unclosed class extends to the end of the pattern.
fn match_class(pattern: &[u8], byte: u8) -> Option<usize> {
    let negated = pattern.get(1) == Some(&b'^');
    let mut at = if negated { 2 } else { 1 };
    let mut found = false;
    loop {
        match pattern[at.min(pattern.len())..] {
            [] => break,
            [b'\\', escaped, ..] => {
                found |= escaped == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [first, b'-', last, ..] => {
                found |= (first.min(last)..=first.max(last)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= literal == byte;
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_like_redis() {
        let table = [
            ("*", "", false),
            ("**", "", false),
            ("*", "anything", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "xxaxxbxx", false),
            ("[abc", "b", true),
            ("a[]", "a", false),
            ("", "", true),
            ("", "a", false),
            ("a**", "a", true),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn hostile_pattern_matches_in_bounded_time() {
        let pattern = "a*".repeat(1000) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(10_000).as_bytes()));
    }
}

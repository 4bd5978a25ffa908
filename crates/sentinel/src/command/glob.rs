//! Patterns as in Redis: `*`, `?`, `[a-c]`, `[^a]`, and `\` before what is meant literally.

/// Whether `text` matches `pattern`, as text in which upper and lower case differ.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // Where to go on after the last star if what follows it does not match here.
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, t));
            p += 1;
        } else if let Some(next) = one(&pattern[p..], text[t]) {
            p += next;
            t += 1;
        } else if let Some((after, from)) = star {
            star = Some((after, from + 1));
            (p, t) = (after, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// How many bytes of the pattern `byte` uses up, if it matches its first element.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', rest @ ..] => class(rest, byte),
        [first, ..] => (*first == byte).then_some(1),
        [] => None,
    }
}

fn class(mut rest: &[u8], byte: u8) -> Option<usize> {
    let whole = rest.len();
    let negated = rest.first() == Some(&b'^');
    if negated {
        rest = &rest[1..];
    }
    let mut found = false;
    loop {
        match rest {
            [b']', after @ ..] => return (found != negated).then(|| 1 + whole - after.len()),
            [] => return (found != negated).then_some(1 + whole),
            [b'\\', escaped, after @ ..] => {
                found |= *escaped == byte;
                rest = after;
            }
            [low, b'-', high, after @ ..] => {
                found |= (*low.min(high)..=*low.max(high)).contains(&byte);
                rest = after;
            }
            [single, after @ ..] => {
                found |= *single == byte;
                rest = after;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let table = [
            ("*", "", true),
            ("m*r", "mymaster", true),
            ("m*x", "mymaster", false),
            ("a*b*c", "aXXbYYbc", true),
            ("h?llo", "hello", true),
            ("h[a-e]llo", "hello", true),
            ("h[^e]llo", "hello", false),
            ("h[e-a]llo", "hello", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[", "a", false),
            ("", "a", false),
            ("**", "a", true),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}

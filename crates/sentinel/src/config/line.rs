//! One line of redis.conf syntax.

/// The words of a line; `None` if a quote is left open or stuck to a following word. Double quotes know
/// `\n \r \t \b \a \xHH` and an escaped character, single quotes only `\'`.
pub(super) fn split_line(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut chars = line.trim().chars().peekable();
    if chars.peek() == Some(&'#') {
        return Some(words);
    }
    loop {
        while chars.next_if(|char| char.is_whitespace()).is_some() {}
        let Some(&first) = chars.peek() else { return Some(words) };
        let mut word = String::new();
        if first == '"' || first == '\'' {
            chars.next();
            loop {
                match chars.next()? {
                    char if char == first => break,
                    '\\' if first == '"' => word.push(escaped(&mut chars)?),
                    '\\' if chars.peek() == Some(&'\'') => word.push(chars.next()?),
                    char => word.push(char),
                }
            }
            if chars.peek().is_some_and(|char| !char.is_whitespace()) {
                return None;
            }
        } else {
            while let Some(char) = chars.next_if(|char| !char.is_whitespace()) {
                word.push(char);
            }
        }
        words.push(word);
    }
}

fn escaped(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<char> {
    Some(match chars.next()? {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'b' => '\u{8}',
        'a' => '\u{7}',
        'x' => {
            let mut code = chars.clone();
            let digits: String = code.by_ref().take(2).collect();
            match u8::from_str_radix(&digits, 16) {
                Ok(byte) if digits.len() == 2 => {
                    *chars = code;
                    char::from(byte)
                }
                _ => 'x',
            }
        }
        char => char,
    })
}

/// `word` so that [`split_line`] reads it back as one.
pub(super) fn quoted(word: &str) -> String {
    let plain = |char: char| char.is_ascii_graphic() && !matches!(char, '"' | '\'' | '\\');
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    let mut text = String::from('"');
    for char in word.chars() {
        match char {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '"' | '\\' => text.extend(['\\', char]),
            char if char.is_ascii_control() => text.push_str(&format!("\\x{:02x}", char as u32)),
            char => text.push(char),
        }
    }
    text.push('"');
    text
}

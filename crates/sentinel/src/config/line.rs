//! Splits and quotes lines in redis.conf syntax. Lines are bytes, because names and passwords need not be UTF-8.

/// Splits a line into words. Returns `None` if a quote is not closed or is followed by a non-blank. Double quotes
/// support `\n \r \t \b \a \xHH` and escaped characters, single quotes only `\'`.
pub(super) fn split_line(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line;
    if line.trim_ascii().first() == Some(&b'#') {
        return Some(words);
    }
    loop {
        let blanks = rest.iter().take_while(|byte| is_blank(**byte)).count();
        rest = &rest[blanks..];
        if rest.is_empty() {
            return Some(words);
        }
        let (word, after) = take_word(rest)?;
        words.push(word);
        rest = after;
    }
}

fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Takes the first word. A quote can start anywhere in a word; the closing quote ends the word.
fn take_word(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    while let Some((&byte, after)) = rest.split_first() {
        if is_blank(byte) {
            break;
        }
        rest = after;
        if byte == b'"' || byte == b'\'' {
            rest = take_quoted(byte, rest, &mut word)?;
            let ends = rest.first().is_none_or(|byte| is_blank(*byte));
            return ends.then_some((word, rest));
        }
        word.push(byte);
    }
    Some((word, rest))
}

/// Reads up to the closing quote, appends to `word`, and returns the rest of the line.
fn take_quoted<'a>(quote: u8, mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            byte if byte == quote => return Some(rest),
            b'\\' if quote == b'"' => rest = take_escaped(rest, word)?,
            b'\\' if rest.first() == Some(&b'\'') => {
                word.push(b'\'');
                rest = &rest[1..];
            }
            byte => word.push(byte),
        }
    }
}

fn take_escaped<'a>(rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    let (&byte, after) = rest.split_first()?;
    let code = after.get(..2).filter(|code| code.iter().all(u8::is_ascii_hexdigit));
    if let (b'x', Some(code)) = (byte, code) {
        let code = std::str::from_utf8(code).expect("hexadecimal digits");
        word.push(u8::from_str_radix(code, 16).expect("hexadecimal digits"));
        return Some(&after[2..]);
    }
    word.push(match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        byte => byte,
    });
    Some(after)
}

/// Quotes `word` so that [`split_line`] reads it back; the result is ASCII.
pub(super) fn quoted(word: impl AsRef<[u8]>) -> String {
    let word = word.as_ref();
    let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    let mut text = String::new();
    let bare = !word.is_empty() && word.iter().all(plain);
    for chunk in word.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                char if bare => text.push(char),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '"' | '\\' => text.extend(['\\', char]),
                char if char.is_ascii_control() => text.push_str(&format!("\\x{:02x}", char as u32)),
                char => text.push(char),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    if bare { text } else { format!("\"{text}\"") }
}

//! Splits an inline request into words, with the quoting of `redis-cli` and configuration files. `"..."` supports
//! `\n \r \t \b \a \xHH` and a backslash before any other character; `'...'` supports only `\'`. Quoted and plain parts
//! can be joined in one word.

use super::{ArgSpan, ProtocolError};

/// Unquotes the words of `line` in place and appends their ranges. `base_offset` is added to their offsets in the line.
pub(super) fn split_words(
    line: &mut [u8],
    base_offset: u32,
    words: &mut Vec<ArgSpan>,
) -> Result<(), ProtocolError> {
    let mut read = 0;
    loop {
        while line.get(read).is_some_and(|byte| is_space(*byte)) {
            read += 1;
        }
        // Stop at a NUL, because Redis handles the line as a C string.
        if matches!(line.get(read), None | Some(0)) {
            return Ok(());
        }
        let start = read;
        let mut write = read;
        while let Some(&byte) = line.get(read) {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' | 0 => break,
                b'"' | b'\'' => (read, write) = unquote(line, read, write)?,
                _ => {
                    line[write] = byte;
                    read += 1;
                    write += 1;
                }
            }
        }
        words.push((base_offset + start as u32, (write - start) as u32));
    }
}

/// Unquotes the string whose opening quote is at `read_offset`. Returns the offsets at which reading and writing
/// continue.
fn unquote(
    line: &mut [u8],
    read_offset: usize,
    mut write_offset: usize,
) -> Result<(usize, usize), ProtocolError> {
    let quote = line[read_offset];
    let mut read = read_offset + 1;
    loop {
        let Some(&byte) = line.get(read) else { return Err(ProtocolError::UnbalancedQuotes) };
        // A backslash before the last quote of a line is a plain character.
        let next = line.get(read + 1).copied().filter(|_| line.len() > read + 2);
        let (value, taken) = match (byte, next) {
            (b'\\', Some(b'x')) if quote == b'"' => match parse_hex_pair(line, read + 2) {
                Some(value) => (value, 4),
                None => (b'x', 2),
            },
            (b'\\', Some(next)) if quote == b'"' => (unescape(next), 2),
            (b'\\', Some(b'\'')) if quote == b'\'' => (b'\'', 2),
            _ if byte == quote => {
                return Ok((read + 1, write_offset));
            }
            _ => (byte, 1),
        };
        line[write_offset] = value;
        write_offset += 1;
        read += taken;
    }
}

/// Returns whether the byte is space before a word. Vertical tab and form feed do not end a word.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

fn parse_hex_pair(line: &[u8], offset: usize) -> Option<u8> {
    let digit = |index: usize| char::from(*line.get(index)?).to_digit(16);
    Some((digit(offset)? * 16 + digit(offset + 1)?) as u8)
}

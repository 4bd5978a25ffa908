//! Formats Lua values and replies for the debugger.

use std::fmt::Write as _;

use mlua::{Table, Value};

use crate::number::format_g;

/// Maximum nesting of printed tables.
const MAX_DEPTH: usize = 10;

fn quoted(bytes: &[u8]) -> String {
    let mut text = "\"".to_owned();
    for &byte in bytes {
        match byte {
            b'\\' | b'"' => text.extend(['\\', char::from(byte)]),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            0x07 => text.push_str("\\a"),
            0x08 => text.push_str("\\b"),
            0x20..0x7f => text.push(char::from(byte)),
            _ => {
                // Writing to a String cannot fail.
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text.push('"');
    text
}

/// Formats a Lua value.
pub(super) fn value(value: &Value) -> String {
    let mut text = String::new();
    append(&mut text, value, 0);
    text
}

fn append(text: &mut String, value: &Value, depth: usize) {
    if depth >= MAX_DEPTH {
        return text.push_str("<max recursion level reached! Nested table?>");
    }
    match value {
        Value::Nil => text.push_str("nil"),
        Value::Boolean(value) => text.push_str(if *value { "true" } else { "false" }),
        Value::Integer(number) => text.push_str(&number.to_string()),
        // The shortest notation that reads back as the same number.
        Value::Number(number) => match number.fract() == 0.0 || !number.is_finite() {
            true => text.push_str(&format_g(*number, 17)),
            false => text.push_str(&number.to_string()),
        },
        Value::String(bytes) => text.push_str(&quoted(&bytes.as_bytes())),
        Value::Table(table) => append_table(text, table, depth),
        other => {
            let _ = write!(text, "\"{}@{:p}\"", other.type_name(), other.to_pointer());
        }
    }
}

fn append_table(text: &mut String, table: &Table, depth: usize) {
    text.push('{');
    let (mut expected, mut any) = (1, false);
    for pair in table.pairs::<Value, Value>().map_while(Result::ok) {
        let (key, value) = pair;
        if std::mem::replace(&mut any, true) {
            text.push_str("; ");
        }
        if key.as_i64() == Some(expected) || key.as_f64() == Some(expected as f64) {
            expected += 1;
        } else {
            text.push('[');
            append(text, &key, depth + 1);
            text.push_str("]=");
        }
        append(text, &value, depth + 1);
    }
    text.push('}');
}

/// Formats a reply in wire format.
pub(super) fn reply(wire: &[u8]) -> String {
    let mut text = String::new();
    if append_reply(&mut text, wire, 0).is_none() {
        text.push_str("<unreadable reply>");
    }
    text
}

/// Appends a reply and returns its length in the input, or `None` if it is incomplete.
fn append_reply(text: &mut String, wire: &[u8], depth: usize) -> Option<usize> {
    let end = memchr::memmem::find(wire, b"\r\n")?;
    let (kind, line, next) = (*wire.first()?, wire.get(1..end)?, end + 2);
    let number = || resp::parse_i64(line);
    match kind {
        b':' => text.push_str(&String::from_utf8_lossy(line)),
        b'$' | b'=' => {
            let Ok(len) = usize::try_from(number()?) else {
                text.push_str("NULL");
                return Some(next);
            };
            text.push_str(&quoted(wire.get(next..next + len)?));
            return Some(next + len + 2);
        }
        b'+' | b'-' => text.push_str(&quoted(&wire[..end])),
        b'_' => text.push_str("(null)"),
        b'#' => text.push_str(if line == b"t" { "#true" } else { "#false" }),
        b',' => {
            let _ = write!(text, "(double) {}", String::from_utf8_lossy(line));
        }
        b'*' | b'~' | b'%' => {
            let Ok(len) = usize::try_from(number()?) else {
                text.push_str("NULL");
                return Some(next);
            };
            return append_items(text, wire, (kind, len, next), depth);
        }
        _ => text.push_str(&String::from_utf8_lossy(line)),
    }
    Some(next)
}

fn append_items(
    text: &mut String,
    wire: &[u8],
    (kind, len, mut at): (u8, usize, usize),
    depth: usize,
) -> Option<usize> {
    let (open, close) = match kind {
        b'~' => ("~(", ")"),
        b'%' => ("{", "}"),
        _ => ("[", "]"),
    };
    if depth >= MAX_DEPTH {
        return None;
    }
    text.push_str(open);
    let items = if kind == b'%' { len.checked_mul(2)? } else { len };
    for item in 0..items {
        if item > 0 {
            text.push_str(if kind == b'%' && item % 2 == 1 { " => " } else { "," });
        }
        at += append_reply(text, wire.get(at..)?, depth + 1)?;
    }
    text.push_str(close);
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_formatted_on_one_line() {
        for (wire, shown) in [
            (":12\r\n", "12"),
            ("$-1\r\n", "NULL"),
            ("$3\r\na\"b\r\n", "\"a\\\"b\""),
            ("+OK\r\n", "\"+OK\""),
            ("*2\r\n:1\r\n*1\r\n$1\r\nx\r\n", "[1,[\"x\"]]"),
            ("%1\r\n+k\r\n#t\r\n", "{\"+k\" => #true}"),
            ("~1\r\n_\r\n", "~((null))"),
            ("*3\r\n:1\r\n", "[1,<unreadable reply>"),
        ] {
            assert_eq!(reply(wire.as_bytes()), shown);
        }
    }
}

//! Formats Lua values and replies for the debugger.

use std::borrow::Cow;
use std::fmt::Write as _;

use mlua::{Table, Value};
use resp::Args;

use crate::number::format_g;

/// Maximum nesting of printed tables.
const MAX_DEPTH: usize = 10;

/// Number of significant digits of a printed number.
const NUMBER_DIGITS: usize = 6;

fn quote(bytes: &[u8]) -> String {
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

/// Formats a Lua value for the debugger. Strings are printed without quotes.
pub(super) fn format_value(value: &Value) -> Vec<u8> {
    let mut text = Vec::new();
    append_value(&mut text, value, 0);
    text
}

fn append_value(text: &mut Vec<u8>, value: &Value, depth: usize) {
    if depth >= MAX_DEPTH {
        return text.extend_from_slice(b"<max recursion level reached! Nested table?>");
    }
    match value {
        Value::Nil => text.extend_from_slice(b"nil"),
        Value::Boolean(value) => text.extend_from_slice(if *value { b"true" } else { b"false" }),
        Value::Integer(number) => text.extend(format_g(*number as f64, NUMBER_DIGITS).bytes()),
        Value::Number(number) => text.extend(format_g(*number, NUMBER_DIGITS).bytes()),
        Value::String(bytes) => text.extend_from_slice(&bytes.as_bytes()),
        Value::Table(table) => append_table(text, table, depth),
        other => text.extend(format!(" \"{}@{:p}\"", other.type_name(), other.to_pointer()).bytes()),
    }
}

/// Returns the table behind a proxy that the prelude created to freeze a table such as `redis`. Returns any other table
/// itself.
fn unwrap_proxy(table: &Table) -> Table {
    let real = || {
        let metatable = table.metatable().filter(|_| table.is_empty())?;
        let is_frozen = matches!(metatable.raw_get("__metatable"), Ok(Value::Boolean(false)));
        metatable.raw_get::<Option<Table>>("__index").ok().flatten().filter(|_| is_frozen)
    };
    real().unwrap_or_else(|| table.clone())
}

fn append_table(text: &mut Vec<u8>, table: &Table, depth: usize) {
    let table = &unwrap_proxy(table);
    let is_list = is_list(table);
    text.push(b'{');
    for (key, value) in table.pairs::<Value, Value>().map_while(Result::ok) {
        if !is_list {
            text.push(b'[');
            append_value(text, &key, depth + 1);
            text.extend_from_slice(b"]=");
        }
        append_value(text, &value, depth + 1);
        text.extend_from_slice(b"; ");
    }
    text.push(b'}');
}

/// Whether the keys are 1, 2, 3 and so on, without a gap.
fn is_list(table: &Table) -> bool {
    let keys = table.pairs::<Value, Value>().map_while(Result::ok).map(|(key, _)| key);
    (1..).zip(keys).all(|(number, key)| key.as_i64() == Some(number) || key.as_f64() == Some(number as f64))
}

/// Formats Valkey's reply to a request that was refused before execution, such as an unknown command. Returns the reply
/// to show and the error text that the script receives.
pub(super) fn format_unknown_command<'r>(
    request: Args<'_>,
    reply: &'r [u8],
) -> Option<(String, Cow<'r, str>)> {
    let error = String::from_utf8_lossy(reply.strip_prefix(b"-ERR ")?.trim_ascii_end());
    let name = String::from_utf8_lossy(request.get(0)?).into_owned();
    let refused = |word: &str| error.starts_with(word);
    let reply = if refused("Unknown command called") {
        let args = request.iter().skip(1).map(|arg| format!("'{}' ", String::from_utf8_lossy(arg)));
        format!("unknown command '{name}', with args beginning with: {}", args.collect::<String>())
    } else if refused("Wrong number of args") {
        format!("wrong number of arguments for '{}' command", name.to_ascii_lowercase())
    } else if refused("This Valkey command is not allowed") {
        format!("command '{}' is not allowed on script mode", name.to_ascii_lowercase())
    } else {
        return None;
    };
    Some((format!("-ERR {reply}\r\n"), error))
}

/// Formats a reply in wire format for the debugger.
pub(super) fn format_reply(wire: &[u8]) -> Vec<u8> {
    let mut text = String::new();
    if append_reply(&mut text, wire, 0).is_none() {
        text.push_str("<unreadable reply>");
    }
    text.into_bytes()
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
            text.push_str(&quote(wire.get(next..next + len)?));
            return Some(next + len + 2);
        }
        b'+' | b'-' => text.push_str(&quote(&wire[..end])),
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
            return append_items(text, wire, kind, len, next, depth);
        }
        _ => text.push_str(&String::from_utf8_lossy(line)),
    }
    Some(next)
}

fn append_items(
    text: &mut String,
    wire: &[u8],
    kind: u8,
    len: usize,
    mut at: usize,
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
            assert_eq!(format_reply(wire.as_bytes()), shown.as_bytes());
        }
    }
}

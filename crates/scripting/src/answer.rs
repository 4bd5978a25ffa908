//! What a script returns as a reply.
//!
//! The rules are Redis's: a number loses its fraction, `true` is 1 and `false` null unless the script speaks version
//! 3, a table is an array up to its first `nil` unless a field says that it is something else.

use mlua::{Result, Table, Value};
use resp::{Protocol, Writer};

use crate::number::to_integer;

/// A table within a table, and so on: no deeper than this. Redis's bound is that of Lua's stack.
const MAX_DEPTH: usize = 1000;

/// Writes `value`; `spoken` is the version that the script said it speaks.
pub(crate) fn write(value: &Value, spoken: Protocol, reply: &mut Writer<'_>) -> Result<()> {
    write_at(value, spoken, reply, 0)
}

fn write_at(value: &Value, spoken: Protocol, reply: &mut Writer<'_>, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        reply.error("ERR reached lua stack limit");
        return Ok(());
    }
    match value {
        Value::String(text) => reply.bulk(&text.as_bytes()),
        Value::Boolean(value) => match (spoken, value) {
            (Protocol::Resp3, value) => reply.boolean(*value),
            (Protocol::Resp2, true) => reply.integer(1),
            (Protocol::Resp2, false) => reply.null(),
        },
        Value::Integer(value) => reply.integer(*value),
        Value::Number(value) => reply.integer(to_integer(*value)),
        Value::Table(table) => return write_table(table, spoken, reply, depth),
        _ => reply.null(),
    }
    Ok(())
}

fn write_table(table: &Table, spoken: Protocol, reply: &mut Writer<'_>, depth: usize) -> Result<()> {
    if let Value::String(text) = table.raw_get("err")? {
        reply.error(&one_line(&text.as_bytes(), true));
        return Ok(());
    }
    if let Value::String(text) = table.raw_get("ok")? {
        reply.simple(&one_line(&text.as_bytes(), false));
        return Ok(());
    }
    match table.raw_get("double")? {
        Value::Number(value) => {
            reply.double(value);
            return Ok(());
        }
        Value::Integer(value) => {
            reply.double(value as f64);
            return Ok(());
        }
        _ => {}
    }
    if let Value::Table(map) = table.raw_get("map")? {
        let pairs: Vec<(Value, Value)> = map.pairs().collect::<Result<_>>()?;
        reply.map(pairs.len());
        for (key, value) in &pairs {
            write_at(key, spoken, reply, depth + 1)?;
            write_at(value, spoken, reply, depth + 1)?;
        }
        return Ok(());
    }
    if let Value::Table(set) = table.raw_get("set")? {
        let pairs: Vec<(Value, Value)> = set.pairs().collect::<Result<_>>()?;
        reply.set(pairs.len());
        return pairs.iter().try_for_each(|(key, _)| write_at(key, spoken, reply, depth + 1));
    }
    write_text(table, spoken, reply, depth)
}

/// The texts of version 3, and lists.
fn write_text(table: &Table, spoken: Protocol, reply: &mut Writer<'_>, depth: usize) -> Result<()> {
    if let Value::String(digits) = table.raw_get("big_number")? {
        write_big_number(&one_line(&digits.as_bytes(), false), reply);
        return Ok(());
    }
    if let Value::Table(verbatim) = table.raw_get("verbatim_string")?
        && let (Value::String(format), Value::String(text)) =
            (verbatim.raw_get("format")?, verbatim.raw_get("string")?)
    {
        let mut three = *b"   ";
        let format = format.as_bytes();
        let len = format.len().min(3);
        three[..len].copy_from_slice(&format[..len]);
        reply.verbatim(&three, &text.as_bytes());
        return Ok(());
    }
    let mut items = Vec::new();
    for index in 1.. {
        match table.raw_get(index)? {
            Value::Nil => break,
            value => items.push(value),
        }
    }
    reply.array(items.len());
    items.iter().try_for_each(|item| write_at(item, spoken, reply, depth + 1))
}

fn write_big_number(digits: &str, reply: &mut Writer<'_>) {
    match reply.protocol() {
        Protocol::Resp2 => reply.bulk(digits.as_bytes()),
        Protocol::Resp3 => reply.raw(format!("({digits}\r\n").as_bytes()),
    }
}

/// Text as it fits in one line.
pub(crate) fn one_line(text: &[u8], trim: bool) -> String {
    let text = String::from_utf8_lossy(text);
    let text = if trim { text.trim_end_matches(['\r', '\n']) } else { &*text };
    text.replace(['\r', '\n'], " ")
}

//! Values of Lua as JSON.

use mlua::{Table, Value};

use super::{Complaint, Invalid, Returned, Settings};
use crate::libraries::{MAX_STRING, type_name};
use crate::number::format_g;

/// A deeper one would need more of the stack than a thread has.
const DEEPEST: usize = 4000;

pub(super) fn encode(out: &mut Vec<u8>, value: &Value, settings: &Settings) -> Returned<()> {
    write(out, value, settings, 0)
}

fn refuse(value: &Value, why: &str) -> Complaint {
    format!("Cannot serialise {}: {why}", type_name(value)).into()
}

fn write(out: &mut Vec<u8>, value: &Value, settings: &Settings, depth: usize) -> Returned<()> {
    if out.len() > MAX_STRING {
        return Err("resulting string too large".into());
    }
    match value {
        Value::Nil => out.extend_from_slice(b"null"),
        Value::LightUserData(pointer) if pointer.0.is_null() => out.extend_from_slice(b"null"),
        Value::Boolean(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
        Value::Integer(number) => write_number(out, value, *number as f64, settings)?,
        Value::Number(number) => write_number(out, value, *number, settings)?,
        Value::String(text) => write_text(out, &text.as_bytes()),
        Value::Table(table) => write_table(out, table, settings, depth + 1)?,
        other => return Err(refuse(other, "type not supported")),
    }
    Ok(())
}

fn write_number(out: &mut Vec<u8>, value: &Value, number: f64, settings: &Settings) -> Returned<()> {
    if !number.is_finite() {
        match settings.encode_invalid {
            Invalid::Refused => return Err(refuse(value, "must not be NaN or Inf")),
            Invalid::Null => {
                out.extend_from_slice(b"null");
                return Ok(());
            }
            Invalid::Written if number.is_nan() => {
                out.extend_from_slice(b"nan");
                return Ok(());
            }
            Invalid::Written => {}
        }
    }
    out.extend_from_slice(format_g(number, settings.precision).as_bytes());
    Ok(())
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'/' => out.extend_from_slice(b"\\/"),
            8 => out.extend_from_slice(b"\\b"),
            9 => out.extend_from_slice(b"\\t"),
            10 => out.extend_from_slice(b"\\n"),
            12 => out.extend_from_slice(b"\\f"),
            13 => out.extend_from_slice(b"\\r"),
            0..32 | 127 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            other => out.push(*other),
        }
    }
    out.push(b'"');
}

/// How long an array of these keys is, or `None` if they are an object's.
fn array_len(table: &Table, settings: &Settings) -> Returned<Option<usize>> {
    let (mut last, mut items) = (0.0, 0);
    for pair in table.pairs::<Value, Value>() {
        let key = match pair?.0 {
            Value::Integer(key) => key as f64,
            Value::Number(key) => key,
            _ => return Ok(None),
        };
        if key.fract() != 0.0 || key < 1.0 {
            return Ok(None);
        }
        last = f64::max(last, key);
        items += 1;
    }
    let (ratio, safe) = (settings.sparse_ratio, settings.sparse_safe);
    if ratio > 0 && last > items as f64 * ratio as f64 && last > safe as f64 {
        if !settings.sparse_converted {
            return Err("Cannot serialise table: excessively sparse array".into());
        }
        return Ok(None);
    }
    Ok(Some(last as usize))
}

fn write_table(out: &mut Vec<u8>, table: &Table, settings: &Settings, depth: usize) -> Returned<()> {
    if depth > settings.encode_depth.min(DEEPEST) {
        return Err(format!("Cannot serialise, excessive nesting ({depth})").into());
    }
    if let Some(len @ 1..) = array_len(table, settings)? {
        out.push(b'[');
        for index in 1..=len {
            if index > 1 {
                out.push(b',');
            }
            write(out, &table.raw_get(index)?, settings, depth)?;
        }
        out.push(b']');
        return Ok(());
    }
    out.push(b'{');
    for (number, pair) in table.pairs::<Value, Value>().enumerate() {
        let (key, value) = pair?;
        if number > 0 {
            out.push(b',');
        }
        match &key {
            Value::String(text) => write_text(out, &text.as_bytes()),
            Value::Integer(_) | Value::Number(_) => {
                out.push(b'"');
                write(out, &key, settings, depth)?;
                out.push(b'"');
            }
            other => return Err(refuse(other, "table key must be a number or string")),
        }
        out.push(b':');
        write(out, &value, settings, depth)?;
    }
    out.push(b'}');
    Ok(())
}

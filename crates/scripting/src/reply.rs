//! Replies of commands as values of Lua.
//!
//! A status becomes `{ok=...}`, an error `{err=...}`, null `false` (`nil` where the script speaks version 3), a map
//! `{map={...}}`, a set `{set={x=true}}`, a double `{double=...}`: whatever Redis's scripts get.

use mlua::{Lua, Result, Value};
use resp::parse_i64;

/// Replies nest no deeper than this: they come from this server.
const MAX_DEPTH: usize = 64;

/// A reply as a script gets it.
pub(crate) enum Converted<'a> {
    /// A value.
    Value(Value),
    /// The text of an error.
    Error(&'a [u8]),
}

/// The first reply in `wire`.
pub(crate) fn to_lua<'a>(lua: &Lua, wire: &'a [u8]) -> Result<Converted<'a>> {
    let mut reader = Reader { wire, place: 0 };
    if let Some(text) = wire.strip_prefix(b"-") {
        let end = text.iter().position(|byte| *byte == b'\r').unwrap_or(text.len());
        return Ok(Converted::Error(&text[..end]));
    }
    Ok(Converted::Value(reader.value(lua, 0)?))
}

/// An error as scripts know it. `counted`: it was counted among the server's errors when it was made.
pub(crate) fn error_table(lua: &Lua, text: &[u8], counted: bool) -> Result<mlua::Table> {
    let table = lua.create_table_with_capacity(0, 4)?;
    if text.contains(&b' ') {
        table.raw_set("err", lua.create_string(text)?)?;
    } else {
        table.raw_set("err", lua.create_string([b"ERR ", text].concat())?)?;
    }
    if counted {
        table.raw_set("ignore_error_stats_update", true)?;
    }
    Ok(table)
}

struct Reader<'a> {
    wire: &'a [u8],
    place: usize,
}

impl<'a> Reader<'a> {
    fn line(&mut self) -> &'a [u8] {
        let rest = &self.wire[self.place.min(self.wire.len())..];
        let len = rest.iter().position(|byte| *byte == b'\r').unwrap_or(rest.len());
        self.place += len + 2;
        &rest[..len]
    }

    fn bulk(&mut self, len: i64) -> &'a [u8] {
        let start = self.place.min(self.wire.len());
        let end = start.saturating_add(len as usize).min(self.wire.len());
        self.place = end + 2;
        &self.wire[start..end]
    }

    fn value(&mut self, lua: &Lua, depth: usize) -> Result<Value> {
        let line = self.line();
        let Some((&kind, rest)) = line.split_first() else { return Ok(Value::Nil) };
        if depth > MAX_DEPTH {
            return Err(mlua::Error::runtime("reached lua stack limit"));
        }
        let count = || parse_i64(rest).unwrap_or(0);
        Ok(match kind {
            b':' => Value::Number(count() as f64),
            b'$' if count() < 0 => Value::Boolean(false),
            b'$' => Value::String(lua.create_string(self.bulk(count()))?),
            b'+' => named(lua, "ok", lua.create_string(rest)?)?,
            b'-' => Value::Table(error_table(lua, rest, true)?),
            b'*' if count() < 0 => Value::Boolean(false),
            b'*' | b'>' => {
                let count = count();
                let table = lua.create_table_with_capacity(count.min(1 << 16) as usize, 0)?;
                for index in 1..=count {
                    table.raw_set(index, self.value(lua, depth + 1)?)?;
                }
                Value::Table(table)
            }
            b'_' => Value::Nil,
            b'#' => Value::Boolean(rest == b"t"),
            b',' => named(lua, "double", double(rest))?,
            b'(' => named(lua, "big_number", lua.create_string(rest)?)?,
            b'=' => {
                let text = self.bulk(count());
                let (format, text) = text.split_at(text.len().min(3));
                let table = lua.create_table_with_capacity(0, 2)?;
                table.raw_set("format", lua.create_string(format)?)?;
                table.raw_set("string", lua.create_string(text.get(1..).unwrap_or_default())?)?;
                named(lua, "verbatim_string", table)?
            }
            b'%' => {
                let table = lua.create_table()?;
                for _ in 0..count() {
                    let key = self.value(lua, depth + 1)?;
                    let value = self.value(lua, depth + 1)?;
                    if !key.is_nil() {
                        table.raw_set(key, value)?;
                    }
                }
                named(lua, "map", table)?
            }
            b'~' => {
                let table = lua.create_table()?;
                for _ in 0..count() {
                    let key = self.value(lua, depth + 1)?;
                    if !key.is_nil() {
                        table.raw_set(key, true)?;
                    }
                }
                named(lua, "set", table)?
            }
            _ => Value::Nil,
        })
    }
}

fn named(lua: &Lua, name: &str, value: impl mlua::IntoLua) -> Result<Value> {
    let table = lua.create_table_with_capacity(0, 1)?;
    table.raw_set(name, value)?;
    Ok(Value::Table(table))
}

fn double(text: &[u8]) -> f64 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

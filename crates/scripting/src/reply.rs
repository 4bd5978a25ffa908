//! Parses replies in wire format for conversion to Lua values.
//!
//! As in Redis, a status becomes `{ok=...}`, an error `{err=...}`, null `false` (`nil` in RESP3), a map `{map={...}}`,
//! a set `{set={x=true}}` and a double `{double=...}`.

use mlua::{Lua, Result};

/// The table that scripts receive for an error. `is_counted` says whether the error statistics already include it.
pub(crate) fn error_table(lua: &Lua, text: &[u8], is_counted: bool) -> Result<mlua::Table> {
    let table = lua.create_table_with_capacity(0, 4)?;
    if text.contains(&b' ') {
        table.raw_set("err", lua.create_string(text)?)?;
    } else {
        table.raw_set("err", lua.create_string([b"ERR ", text].concat())?)?;
    }
    if is_counted {
        table.raw_set("ignore_error_stats_update", true)?;
    }
    Ok(table)
}

/// Reads a reply from its start. The type must not have a destructor, because Lua may leave the function that uses a
/// reader by `longjmp`.
pub(crate) struct Reader<'a> {
    wire: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    /// Maximum nesting of replies. This server produces all replies, and none of them exceeds the limit.
    pub(crate) const MAX_REPLY_DEPTH: usize = 64;

    /// Creates a reader at the start of `wire`, a complete reply.
    pub(crate) fn new(wire: &'a [u8]) -> Self {
        Self { wire, position: 0 }
    }

    /// Reads a line without its terminator.
    pub(crate) fn read_line(&mut self) -> &'a [u8] {
        let rest = &self.wire[self.position.min(self.wire.len())..];
        let len = rest.iter().position(|byte| *byte == b'\r').unwrap_or(rest.len());
        self.position += len + 2;
        &rest[..len]
    }

    /// Reads a bulk string of `len` bytes and its terminator.
    pub(crate) fn read_bulk(&mut self, len: i64) -> &'a [u8] {
        let start = self.position.min(self.wire.len());
        let end = start.saturating_add(len as usize).min(self.wire.len());
        self.position = end + 2;
        &self.wire[start..end]
    }

    /// Parses the value of a double.
    pub(crate) fn read_double(text: &[u8]) -> f64 {
        std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
    }
}

//! Replies of commands on the wire, as they are read for values of Lua.
//!
//! A status becomes `{ok=...}`, an error `{err=...}`, null `false` (`nil` where the script speaks version 3), a map
//! `{map={...}}`, a set `{set={x=true}}`, a double `{double=...}`: whatever Redis's scripts get.

use mlua::{Lua, Result};

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

/// A reply that is read from its beginning on. It is nothing that would have to be dropped.
pub(crate) struct Reader<'a> {
    wire: &'a [u8],
    place: usize,
}

impl<'a> Reader<'a> {
    /// Replies nest no deeper than this: they come from this server.
    pub(crate) const MAX_DEPTH: usize = 64;

    /// Of a reply.
    pub(crate) fn of(wire: &'a [u8]) -> Self {
        Self { wire, place: 0 }
    }

    /// The next line.
    pub(crate) fn line(&mut self) -> &'a [u8] {
        let rest = &self.wire[self.place.min(self.wire.len())..];
        let len = rest.iter().position(|byte| *byte == b'\r').unwrap_or(rest.len());
        self.place += len + 2;
        &rest[..len]
    }

    /// So many bytes, and the end of the line behind them.
    pub(crate) fn bulk(&mut self, len: i64) -> &'a [u8] {
        let start = self.place.min(self.wire.len());
        let end = start.saturating_add(len as usize).min(self.wire.len());
        self.place = end + 2;
        &self.wire[start..end]
    }

    /// A double's value.
    pub(crate) fn double(text: &[u8]) -> f64 {
        std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
    }
}

//! Converts the value that a script returns to a RESP reply.
//!
//! The rules are Redis's: a number loses its fraction, `true` is 1 and `false` is null unless the script selected
//! RESP3, and a table is an array up to its first `nil` unless a field such as `ok` or `err` says otherwise.
//!
//! Tables that contain themselves, or share subtables, can expand without end, so the conversion remains interruptible.

use mlua::{Table, Value};
use resp::{Protocol, Writer};

use crate::libraries::walk::visit_entries;
use crate::libraries::{LibraryResult, StepCounter};
use crate::number::to_integer;

/// Maximum nesting of tables in a reply. Redis's limit is Lua's stack size.
const MAX_REPLY_DEPTH: usize = 1000;

/// Writes a script's value as a reply.
pub(crate) struct ReplyWriter<'a, 'r, 'w> {
    /// The protocol version that the script selected with `redis.setresp`.
    pub(crate) protocol: Protocol,
    pub(crate) reply: &'r mut Writer<'w>,
    pub(crate) step_counter: StepCounter<'a>,
    /// Called for each error in the reply. The second argument says whether the error statistics already include the
    /// error.
    pub(crate) on_error: &'r mut dyn FnMut(&[u8], bool),
}

impl ReplyWriter<'_, '_, '_> {
    pub(crate) fn write(&mut self, value: &Value, depth: usize) -> LibraryResult<()> {
        if depth > MAX_REPLY_DEPTH {
            self.write_error(b"ERR reached lua stack limit", false);
            return Ok(());
        }
        let reply = &mut *self.reply;
        match value {
            Value::String(text) => reply.bulk(&text.as_bytes()),
            Value::Boolean(value) => match (self.protocol, value) {
                (Protocol::Resp3, value) => reply.boolean(*value),
                (Protocol::Resp2, true) => reply.integer(1),
                (Protocol::Resp2, false) => reply.null(),
            },
            Value::Integer(value) => reply.integer(*value),
            Value::Number(value) => reply.integer(to_integer(*value)),
            Value::Table(table) => self.write_table(table, depth)?,
            _ => reply.null(),
        }
        self.step_counter.step(0, self.reply.len())
    }

    pub(crate) fn write_error(&mut self, text: &[u8], is_counted: bool) {
        (self.on_error)(text, is_counted);
        self.reply.error_bytes(text);
    }

    fn write_table(&mut self, table: &Table, depth: usize) -> LibraryResult<()> {
        if let Value::String(text) = table.raw_get("err")? {
            let counted = matches!(table.raw_get("ignore_error_stats_update")?, Value::Boolean(true));
            self.write_error(&to_one_line(&text.as_bytes(), true), counted);
            return Ok(());
        }
        if let Value::String(text) = table.raw_get("ok")? {
            self.reply.simple_bytes(&to_one_line(&text.as_bytes(), false));
            return Ok(());
        }
        match table.raw_get("double")? {
            Value::Number(value) => {
                self.reply.double(value);
                return Ok(());
            }
            Value::Integer(value) => {
                self.reply.double(value as f64);
                return Ok(());
            }
            _ => {}
        }
        if let Value::Table(map) = table.raw_get("map")? {
            let pairs = self.count_entries(&map, depth)?;
            self.reply.map(pairs);
            return self.write_entries(&map, true, depth);
        }
        if let Value::Table(set) = table.raw_get("set")? {
            let members = self.count_entries(&set, depth)?;
            self.reply.set(members);
            return self.write_entries(&set, false, depth);
        }
        self.write_text(table, depth)
    }

    fn count_entries(&mut self, table: &Table, depth: usize) -> LibraryResult<usize> {
        let mut entries = 0;
        visit_entries(table, depth, |_, _: bool| {
            entries += 1;
            self.step_counter.step(0, 0).map(|()| true)
        })?;
        Ok(entries)
    }

    fn write_entries(&mut self, table: &Table, with_values: bool, depth: usize) -> LibraryResult<()> {
        visit_entries(table, depth, |key, value: Value| {
            self.write(&key, depth + 1)?;
            if with_values {
                self.write(&value, depth + 1)?;
            }
            Ok(true)
        })?;
        Ok(())
    }

    /// Writes RESP3 text types (big number, verbatim string) and lists.
    fn write_text(&mut self, table: &Table, depth: usize) -> LibraryResult<()> {
        if let Value::String(digits) = table.raw_get("big_number")? {
            write_big_number(&to_one_line(&digits.as_bytes(), false), self.reply);
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
            self.reply.verbatim(&three, &text.as_bytes());
            return Ok(());
        }
        let mut len = 0;
        while table.raw_get::<Option<bool>>(len + 1)?.is_some() {
            len += 1;
            self.step_counter.step(0, 0)?;
        }
        self.reply.array(len);
        (1..=len).try_for_each(|index| self.write(&table.raw_get(index)?, depth + 1))
    }
}

fn write_big_number(digits: &[u8], reply: &mut Writer<'_>) {
    match reply.protocol() {
        Protocol::Resp2 => reply.bulk(digits),
        Protocol::Resp3 => [b"(", digits, b"\r\n"].into_iter().for_each(|part| reply.raw(part)),
    }
}

/// Trims text to one line. The text ends at the first NUL, because Redis handles it as a C string.
pub(crate) fn to_one_line(text: &[u8], trim: bool) -> Vec<u8> {
    let is_break = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let mut text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    while trim
        && let Some((last, rest)) = text.split_last()
        && is_break(last)
    {
        text = rest;
    }
    text.iter().map(|byte| if is_break(byte) { b' ' } else { *byte }).collect()
}

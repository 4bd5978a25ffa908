//! JSON encoder.
//!
//! Holds only one table element at a time: mlua references occupy slots of a stack with only eight thousand slots.

use mlua::{Table, Value};

use super::{InvalidNumberPolicy, JsonOptions, LibraryError, LibraryResult};
use crate::libraries::walk::visit_entries;
use crate::libraries::{StepCounter, type_name};
use crate::number::format_g;

/// Maximum nesting, limited by the stack size of threads.
const MAX_NESTING: usize = 2000;
/// Initial capacity, sufficient for most texts.
const INITIAL_CAPACITY: usize = 256;
/// Integers below this limit are printed in full, since they have no more digits than the default precision.
const MAX_PLAIN_INTEGER: f64 = 1e14;

pub(super) fn encode(
    value: &Value,
    settings: &JsonOptions,
    step_counter: StepCounter<'_>,
) -> LibraryResult<Vec<u8>> {
    let mut encoder = Encoder { out: Vec::with_capacity(INITIAL_CAPACITY), settings, step_counter };
    encoder.write(value, 0)?;
    Ok(encoder.out)
}

fn unsupported_value_error(value: &Value, reason: &str) -> LibraryError {
    format!("Cannot serialise {}: {reason}", type_name(value)).into()
}

struct Encoder<'a> {
    out: Vec<u8>,
    settings: &'a JsonOptions,
    step_counter: StepCounter<'a>,
}

impl Encoder<'_> {
    fn write(&mut self, value: &Value, depth: usize) -> LibraryResult<()> {
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(pointer) if pointer.0.is_null() => self.out.extend_from_slice(b"null"),
            Value::Boolean(value) => self.out.extend_from_slice(if *value { b"true" } else { b"false" }),
            Value::Integer(number) => self.write_number(value, *number as f64)?,
            Value::Number(number) => self.write_number(value, *number)?,
            Value::String(text) => self.write_text(&text.as_bytes())?,
            Value::Table(table) => self.write_table(table, depth + 1)?,
            other => return Err(unsupported_value_error(other, "type not supported")),
        }
        self.step_counter.step(0, self.out.len())
    }

    fn write_number(&mut self, value: &Value, number: f64) -> LibraryResult<()> {
        if !number.is_finite() {
            match self.settings.encode_invalid_numbers {
                InvalidNumberPolicy::Reject => {
                    return Err(unsupported_value_error(value, "must not be NaN or Inf"));
                }
                InvalidNumberPolicy::Null => {
                    self.out.extend_from_slice(b"null");
                    return Ok(());
                }
                InvalidNumberPolicy::Write if number.is_nan() => {
                    self.out.extend_from_slice(b"nan");
                    return Ok(());
                }
                InvalidNumberPolicy::Write => {}
            }
        }
        let whole = number as i64;
        if self.settings.precision == 14
            && number.abs() < MAX_PLAIN_INTEGER
            && (whole as f64).to_bits() == number.to_bits()
        {
            self.out.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
        } else {
            self.out.extend_from_slice(format_g(number, self.settings.precision).as_bytes());
        }
        Ok(())
    }

    fn write_text(&mut self, text: &[u8]) -> LibraryResult<()> {
        self.out.push(b'"');
        let mut rest = text;
        while let Some(place) = rest.iter().position(|byte| IS_ESCAPED[usize::from(*byte)]) {
            self.out.extend_from_slice(&rest[..place]);
            self.write_escaped(rest[place]);
            rest = &rest[place + 1..];
            self.step_counter.step(place, self.out.len())?;
        }
        self.out.extend_from_slice(rest);
        self.out.push(b'"');
        self.step_counter.step(rest.len(), self.out.len())
    }

    fn write_escaped(&mut self, byte: u8) {
        match byte {
            b'"' => self.out.extend_from_slice(b"\\\""),
            b'\\' => self.out.extend_from_slice(b"\\\\"),
            b'/' => self.out.extend_from_slice(b"\\/"),
            8 => self.out.extend_from_slice(b"\\b"),
            9 => self.out.extend_from_slice(b"\\t"),
            10 => self.out.extend_from_slice(b"\\n"),
            12 => self.out.extend_from_slice(b"\\f"),
            13 => self.out.extend_from_slice(b"\\r"),
            other => self.out.extend_from_slice(format!("\\u{other:04x}").as_bytes()),
        }
    }

    /// The array length of a table, or `None` if its keys are those of an object.
    fn array_len(&mut self, table: &Table, depth: usize) -> LibraryResult<Option<usize>> {
        let (mut last, mut items) = (0.0, 0);
        let is_array = visit_entries(table, depth, |key: Value, _: bool| {
            let key = match key {
                Value::Integer(key) => key as f64,
                Value::Number(key) => key,
                _ => return Ok(false),
            };
            last = f64::max(last, key);
            items += 1;
            self.step_counter.step(0, 0)?;
            Ok(key.fract() == 0.0 && key >= 1.0)
        })?;
        if !is_array {
            return Ok(None);
        }
        let (ratio, safe) = (self.settings.sparse_ratio, self.settings.sparse_min_index);
        if ratio > 0 && last > items as f64 * ratio as f64 && last > safe as f64 {
            if !self.settings.converts_sparse_arrays {
                return Err("Cannot serialise table: excessively sparse array".into());
            }
            return Ok(None);
        }
        Ok(Some(last as usize))
    }

    fn write_table(&mut self, table: &Table, depth: usize) -> LibraryResult<()> {
        if depth > self.settings.max_encode_depth.min(MAX_NESTING) {
            return Err(format!("Cannot serialise, excessive nesting ({depth})").into());
        }
        // The first key of most objects is a string, which rules out an array, so one pass is enough.
        if table.raw_len() == 0 && self.write_object(table, depth, true)? {
            return Ok(());
        }
        if let Some(len @ 1..) = self.array_len(table, depth)? {
            self.out.push(b'[');
            for index in 1..=len {
                if index > 1 {
                    self.out.push(b',');
                }
                self.write(&table.raw_get(index)?, depth)?;
            }
            self.out.push(b']');
            return Ok(());
        }
        self.write_object(table, depth, false).map(drop)
    }

    /// Writes a table as an object. With `only_text_keys`, the table is written only if its first key is a string.
    /// Returns whether the table was written.
    fn write_object(&mut self, table: &Table, depth: usize, only_text_keys: bool) -> LibraryResult<bool> {
        let start = self.out.len();
        self.out.push(b'{');
        let mut number = 0;
        let is_written = visit_entries(table, depth, |key: Value, value: Value| {
            if number > 0 {
                self.out.push(b',');
            } else if only_text_keys && !matches!(key, Value::String(_)) {
                return Ok(false);
            }
            number += 1;
            self.write_pair(&key, &value, depth).map(|()| true)
        })?;
        if !is_written {
            self.out.truncate(start);
            return Ok(false);
        }
        self.out.push(b'}');
        Ok(true)
    }

    fn write_pair(&mut self, key: &Value, value: &Value, depth: usize) -> LibraryResult<()> {
        match key {
            Value::String(text) => self.write_text(&text.as_bytes())?,
            Value::Integer(_) | Value::Number(_) => {
                self.out.push(b'"');
                self.write(key, depth)?;
                self.out.push(b'"');
            }
            other => return Err(unsupported_value_error(other, "table key must be a number or string")),
        }
        self.out.push(b':');
        self.write(value, depth)
    }
}

/// The bytes that must be escaped in a JSON string.
const IS_ESCAPED: [bool; 256] = {
    let mut escaped = [false; 256];
    let mut byte = 0;
    while byte < 32 {
        escaped[byte] = true;
        byte += 1;
    }
    escaped[b'"' as usize] = true;
    escaped[b'\\' as usize] = true;
    escaped[b'/' as usize] = true;
    escaped[127] = true;
    escaped
};

//! `cmsgpack`: MessagePack.
//!
//! A table with the keys 1 to n is an array, any other table a map. Numbers without a fraction are integers. Tables
//! nested deeper than [`MAX_NESTING`] are encoded as nil.

use mlua::{Either, IntoLua, Lua, MultiValue, Table, Value};

use super::walk::visit_entries;
use super::{
    Arguments, FunctionLimits, LibraryError, LibraryResult, StepCounter, create_function, to_number,
};

const MAX_NESTING: usize = 16;
/// Maximum nesting when decoding, which is higher than when encoding.
const MAX_READ_NESTING: usize = 200;
const MAX_RESULTS: usize = 7900;
/// Initial capacity, sufficient for most results.
const INITIAL_CAPACITY: usize = 256;

fn pack(lua: &Lua, args: &Arguments, limits: &FunctionLimits) -> LibraryResult<mlua::LuaString> {
    if args.len() == 0 {
        return Err("bad argument #0 to 'pack' (MessagePack pack needs input.)".into());
    }
    let packed = limits.with_limit_lifted(lua, |pace| {
        let mut packer = Packer { out: Vec::with_capacity(INITIAL_CAPACITY), step_counter: pace };
        (1..=args.len()).try_for_each(|index| packer.write(args.value(index), 0))?;
        Ok(packer.out)
    })?;
    Ok(lua.create_string(packed)?)
}

struct Packer<'a> {
    out: Vec<u8>,
    step_counter: StepCounter<'a>,
}

impl Packer<'_> {
    fn write(&mut self, value: &Value, level: usize) -> LibraryResult<()> {
        let out = &mut self.out;
        match value {
            Value::String(text) => write_text(out, &text.as_bytes()),
            Value::Boolean(value) => out.push(if *value { 0xc3 } else { 0xc2 }),
            Value::Integer(number) => write_integer(out, *number),
            Value::Number(number) => write_number(out, *number),
            Value::Table(table) if level < MAX_NESTING => self.write_table(table, level)?,
            _ => out.push(0xc0),
        }
        self.step_counter.step(0, self.out.len())
    }

    /// Writes a table as a map in a single pass if its first key rules out an array. Returns false otherwise.
    fn write_map(&mut self, table: &Table, level: usize) -> LibraryResult<bool> {
        let (start, mut len) = (self.out.len(), 0);
        self.out.push(0);
        let is_map = visit_entries(table, level, |key: Value, value: Value| {
            if len == 0 && !matches!(key, Value::String(_)) {
                return Ok(false);
            }
            len += 1;
            self.write(&key, level + 1)?;
            self.write(&value, level + 1).map(|()| true)
        })?;
        if !is_map || len == 0 {
            self.out.truncate(start);
            return Ok(false);
        }
        let mut head = Vec::with_capacity(5);
        write_len(&mut head, len, &MAP_CODES);
        self.out.splice(start..=start, head);
        Ok(true)
    }

    fn write_table(&mut self, table: &Table, level: usize) -> LibraryResult<()> {
        if table.raw_len() == 0 && self.write_map(table, level)? {
            return Ok(());
        }
        let (mut len, mut last, mut is_array) = (0, 0.0, true);
        visit_entries(table, level, |key: Value, _: bool| {
            len += 1;
            is_array &= match to_number(&key).filter(|_| !matches!(key, Value::String(_))) {
                Some(index) if index > 0.0 && index.fract() == 0.0 => {
                    last = f64::max(last, index);
                    true
                }
                _ => false,
            };
            self.step_counter.step(0, 0).map(|()| true)
        })?;
        if is_array && last == len as f64 {
            write_len(&mut self.out, len, &ARRAY_CODES);
            for index in 1..=len {
                self.write(&table.raw_get(index)?, level + 1)?;
            }
            return Ok(());
        }
        write_len(&mut self.out, len, &MAP_CODES);
        visit_entries(table, level, |key: Value, value: Value| {
            self.write(&key, level + 1)?;
            self.write(&value, level + 1).map(|()| true)
        })?;
        Ok(())
    }
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    match text.len() {
        len @ 0..32 => out.push(0xa0 | len as u8),
        len @ 32..=0xff => out.extend_from_slice(&[0xd9, len as u8]),
        len @ 0x100..=0xffff => {
            out.push(0xda);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(0xdb);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(text);
}

fn write_number(out: &mut Vec<u8>, number: f64) {
    if number as i64 as f64 == number && number.abs() < 9.2e18 {
        write_integer(out, number as i64);
    } else if f64::from(number as f32) == number {
        out.push(0xca);
        out.extend_from_slice(&(number as f32).to_be_bytes());
    } else {
        out.push(0xcb);
        out.extend_from_slice(&number.to_be_bytes());
    }
}

fn write_integer(out: &mut Vec<u8>, number: i64) {
    match number {
        0..=127 => out.push(number as u8),
        128..=0xff => out.extend_from_slice(&[0xcc, number as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend_from_slice(&(number as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend_from_slice(&(number as u32).to_be_bytes());
        }
        0x1_0000_0000.. => {
            out.push(0xcf);
            out.extend_from_slice(&number.to_be_bytes());
        }
        -32..0 => out.push(number as i8 as u8),
        -128..-32 => out.extend_from_slice(&[0xd0, number as i8 as u8]),
        -0x8000..-128 => {
            out.push(0xd1);
            out.extend_from_slice(&(number as i16).to_be_bytes());
        }
        -0x8000_0000..-0x8000 => {
            out.push(0xd2);
            out.extend_from_slice(&(number as i32).to_be_bytes());
        }
        _ => {
            out.push(0xd3);
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

/// The first bytes of a collection, by the size of its length field.
struct LengthCodes {
    /// The length is in the lower four bits of this byte.
    four_bits: u8,
    two_bytes: u8,
    four_bytes: u8,
}

const ARRAY_CODES: LengthCodes = LengthCodes { four_bits: 0x90, two_bytes: 0xdc, four_bytes: 0xdd };
const MAP_CODES: LengthCodes = LengthCodes { four_bits: 0x80, two_bytes: 0xde, four_bytes: 0xdf };

fn write_len(out: &mut Vec<u8>, len: usize, codes: &LengthCodes) {
    match len {
        0..=15 => out.push(codes.four_bits | len as u8),
        16..=0xffff => {
            out.push(codes.two_bytes);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        _ => {
            out.push(codes.four_bytes);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
}

/// A value to be stored in a table. UTF-8 text needs no mlua reference.
type UnpackedValue<'a> = Either<&'a str, Value>;

struct Reader<'a> {
    data: &'a [u8],
    position: usize,
    step_counter: StepCounter<'a>,
}

impl<'a> Reader<'a> {
    fn read_bytes(&mut self, len: usize) -> Result<&'a [u8], LibraryError> {
        let left = &self.data[self.position..];
        let taken = left.get(..len).ok_or_else(|| LibraryError::from("Missing bytes in input."))?;
        self.position += len;
        Ok(taken)
    }

    fn read_unsigned(&mut self, len: usize) -> Result<u64, LibraryError> {
        Ok(self.read_bytes(len)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn read_signed(&mut self, len: usize) -> Result<f64, LibraryError> {
        let unused = 64 - 8 * len;
        Ok(((self.read_unsigned(len)? << unused) as i64 >> unused) as f64)
    }

    fn unpack_value(&mut self, lua: &Lua, depth: usize) -> LibraryResult<UnpackedValue<'a>> {
        if depth > MAX_READ_NESTING {
            return Err("Bad data format in input.".into());
        }
        self.step_counter.step(0, 0)?;
        let kind = self.read_bytes(1)?[0];
        Ok(Either::Right(match kind {
            0x00..=0x7f => Value::Number(f64::from(kind)),
            0xe0..=0xff => Value::Number(f64::from(kind as i8)),
            0x80..=0x8f => self.unpack_map(lua, usize::from(kind & 15), depth)?,
            0x90..=0x9f => self.unpack_array(lua, usize::from(kind & 15), depth)?,
            0xa0..=0xbf => return self.read_string(lua, usize::from(kind & 31)),
            0xc0 => Value::Nil,
            0xc2 => Value::Boolean(false),
            0xc3 => Value::Boolean(true),
            0xca => Value::Number(f64::from(f32::from_bits(self.read_unsigned(4)? as u32))),
            0xcb => Value::Number(f64::from_bits(self.read_unsigned(8)?)),
            0xcc..=0xcf => Value::Number(self.read_unsigned(1 << (kind - 0xcc))? as f64),
            0xd0..=0xd3 => Value::Number(self.read_signed(1 << (kind - 0xd0))?),
            0xc4..=0xc6 => {
                let len = self.read_unsigned(1 << (kind - 0xc4))?;
                return self.read_string(lua, len as usize);
            }
            0xd9..=0xdb => {
                let len = self.read_unsigned(1 << (kind - 0xd9))?;
                return self.read_string(lua, len as usize);
            }
            0xdc | 0xdd => {
                let len = self.read_unsigned(2 << (kind - 0xdc))?;
                self.unpack_array(lua, len as usize, depth)?
            }
            0xde | 0xdf => {
                let len = self.read_unsigned(2 << (kind - 0xde))?;
                self.unpack_map(lua, len as usize, depth)?
            }
            _ => return Err("Bad data format in input.".into()),
        }))
    }

    fn read_string(&mut self, lua: &Lua, len: usize) -> LibraryResult<UnpackedValue<'a>> {
        let bytes = self.read_bytes(len)?;
        let text = std::str::from_utf8(bytes).map(Either::Left);
        text.or_else(|_| Ok(Either::Right(Value::String(lua.create_string(bytes)?))))
    }

    /// Capacity for the announced number of elements, limited by the remaining input.
    fn capacity_hint(&self, len: usize) -> usize {
        len.min(self.data.len() - self.position)
    }

    fn unpack_array(&mut self, lua: &Lua, len: usize, depth: usize) -> LibraryResult<Value> {
        let table = lua.create_table_with_capacity(self.capacity_hint(len), 0)?;
        for index in 1..=len {
            table.raw_set(index, self.unpack_value(lua, depth + 1)?)?;
        }
        Ok(Value::Table(table))
    }

    fn unpack_map(&mut self, lua: &Lua, len: usize, depth: usize) -> LibraryResult<Value> {
        let table = lua.create_table_with_capacity(0, self.capacity_hint(len))?;
        for _ in 0..len {
            let key = self.unpack_value(lua, depth + 1)?;
            let value = self.unpack_value(lua, depth + 1)?;
            let usable = match &key {
                Either::Right(Value::Nil) => false,
                Either::Right(Value::Number(number)) => !number.is_nan(),
                _ => true,
            };
            if !usable {
                return Err("Bad data format in input.".into());
            }
            table.raw_set(key, value)?;
        }
        Ok(Value::Table(table))
    }
}

/// The part of the input to decode.
struct UnpackRange {
    limit: f64,
    offset: f64,
    /// Whether the result includes the offset of the next value in the input.
    returns_offset: bool,
}

fn unpack_range(
    lua: &Lua,
    data: &[u8],
    range: &UnpackRange,
    limits: &FunctionLimits,
) -> LibraryResult<MultiValue> {
    let UnpackRange { limit, offset, returns_offset } = *range;
    if offset < 0.0 || limit < 0.0 {
        return Err(format!(
            "Invalid request to unpack with offset of {offset} and limit of {}.",
            data.len()
        )
        .into());
    }
    if offset > data.len() as f64 {
        return Err(format!("Start offset {offset} greater than input length {}.", data.len()).into());
    }
    limits.with_limit_lifted(lua, |pace| {
        let (mut reader, mut results) =
            (Reader { data, position: offset as usize, step_counter: pace }, MultiValue::new());
        while reader.position < data.len() && (results.len() as f64) < limit {
            if results.len() > MAX_RESULTS {
                return Err("too many return values at once; use unpack_one or unpack_limit instead.".into());
            }
            results.push_back(reader.unpack_value(lua, 0)?.into_lua(lua)?);
        }
        if returns_offset {
            let next = if reader.position >= data.len() { -1.0 } else { reader.position as f64 };
            results.push_front(Value::Number(next));
        }
        Ok(results)
    })
}

pub(super) fn create_library(lua: &Lua, limits: &FunctionLimits) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.set("_NAME", "cmsgpack")?;
    table.set("_VERSION", "lua-cmsgpack 0.4.0")?;
    table.set("_COPYRIGHT", "Copyright (C) 2012, Salvatore Sanfilippo")?;
    table.set("_DESCRIPTION", "MessagePack C implementation for Lua")?;
    let bounds = limits.clone();
    table.set("pack", create_function(lua, move |lua, args| pack(lua, args, &bounds))?)?;
    let bounds = limits.clone();
    let unpack = move |lua: &Lua, args: &Arguments| {
        let all = UnpackRange { limit: f64::INFINITY, offset: 0.0, returns_offset: false };
        unpack_range(lua, &args.text(1, "unpack")?, &all, &bounds)
    };
    table.set("unpack", create_function(lua, unpack)?)?;
    let bounds = limits.clone();
    let unpack_one = move |lua: &Lua, args: &Arguments| {
        let offset = args.optional_number(2, "unpack_one", 0.0)?;
        let one = UnpackRange { limit: 1.0, offset, returns_offset: true };
        unpack_range(lua, &args.text(1, "unpack_one")?, &one, &bounds)
    };
    table.set("unpack_one", create_function(lua, unpack_one)?)?;
    let bounds = limits.clone();
    let unpack_limit = move |lua: &Lua, args: &Arguments| {
        let limit = args.number(2, "unpack_limit")?;
        let offset = args.optional_number(3, "unpack_limit", 0.0)?;
        // Limit and offset 0 decode everything, like `unpack`. With an offset, limit 0 decodes nothing.
        let part = match (limit, offset) {
            (0.0, 0.0) => UnpackRange { limit: f64::INFINITY, offset, returns_offset: false },
            _ => UnpackRange { limit, offset, returns_offset: true },
        };
        unpack_range(lua, &args.text(1, "unpack_limit")?, &part, &bounds)
    };
    table.set("unpack_limit", create_function(lua, unpack_limit)?)?;
    Ok(table)
}

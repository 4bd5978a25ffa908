//! `struct`: packs numbers and strings in C layouts.
//!
//! A format is a sequence of letters, some followed by a number; see [`Format::next_option`]. The default is
//! little-endian without alignment.

use mlua::{Lua, MultiValue, Table, Value};

use super::{Arguments, LibraryError, LibraryResult, MAX_STRING_BYTES, argument_error, create_function};

/// Maximum integer width in bytes.
const MAX_INTEGER_BYTES: usize = 32;
/// The alignment in bytes set by `!` without a number.
const MAX_ALIGNMENT: usize = 8;
/// Maximum number of results, limited by Lua's stack.
const MAX_RESULTS: usize = 7999;

/// A format string during parsing.
struct Format<'a> {
    remaining: &'a [u8],
    is_little_endian: bool,
    alignment: usize,
}

impl<'a> Format<'a> {
    fn new(format: &'a [u8]) -> Self {
        Self { remaining: format, is_little_endian: true, alignment: 1 }
    }

    fn read_number(&mut self, default: usize) -> Result<usize, LibraryError> {
        let digits = self.remaining.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Ok(default);
        }
        let (number, rest) = self.remaining.split_at(digits);
        self.remaining = rest;
        let number = std::str::from_utf8(number).ok().and_then(|digits| digits.parse::<i32>().ok());
        number.map(|number| number as usize).ok_or_else(|| "integral size overflow".into())
    }

    /// Reads the next option. Returns the option and the size of its value in bytes, or `None` at the end of the
    /// format.
    fn next_option(&mut self) -> Result<Option<(u8, usize)>, LibraryError> {
        let Some((&option, rest)) = self.remaining.split_first() else { return Ok(None) };
        self.remaining = rest;
        let size = match option {
            b'b' | b'B' | b'x' => 1,
            b'h' | b'H' => 2,
            b'l' | b'L' | b'T' | b'd' => 8,
            b'f' => 4,
            b'c' => self.read_number(1)?,
            b'i' | b'I' => {
                let size = self.read_number(4)?;
                if size > MAX_INTEGER_BYTES {
                    let text = format!("integral size {size} is larger than limit of {MAX_INTEGER_BYTES}");
                    return Err(text.into());
                }
                size
            }
            _ => 0,
        };
        Ok(Some((option, size)))
    }

    /// Number of padding bytes needed at this offset to align a value of this size.
    fn padding(&self, offset: usize, option: u8, size: usize) -> usize {
        if size == 0 || option == b'c' {
            return 0;
        }
        let size = size.min(self.alignment);
        (size - (offset & (size - 1))) & (size - 1)
    }

    /// Applies an option without a value, such as the byte order.
    fn apply_option(&mut self, option: u8, function: &str) -> Result<(), LibraryError> {
        match option {
            b' ' => {}
            b'<' => self.is_little_endian = true,
            b'>' => self.is_little_endian = false,
            b'!' => {
                let alignment = self.read_number(MAX_ALIGNMENT)?;
                if !alignment.is_power_of_two() {
                    return Err(format!("alignment {alignment} is not a power of 2").into());
                }
                self.alignment = alignment;
            }
            other => {
                return Err(argument_error(
                    1,
                    function,
                    &format!("invalid format option '{}'", char::from(other)),
                ));
            }
        }
        Ok(())
    }

    fn append(&self, out: &mut Vec<u8>, mut bytes: Vec<u8>) {
        if !self.is_little_endian {
            bytes.reverse();
        }
        out.append(&mut bytes);
    }

    fn to_native_order(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        if !self.is_little_endian {
            bytes.reverse();
        }
        bytes
    }
}

fn pack(lua: &Lua, args: &Arguments) -> LibraryResult<mlua::LuaString> {
    let text = args.text(1, "pack")?;
    let (mut format, mut out, mut argument) = (Format::new(&text), Vec::new(), 1);
    while let Some((option, size)) = format.next_option()? {
        let padding = format.padding(out.len(), option, size);
        out.resize(out.len() + padding, 0);
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                argument += 1;
                let number = args.number(argument, "pack")?;
                let value = if number < 0.0 { number as i64 as u64 } else { number as u64 };
                let mut bytes = value.to_le_bytes().to_vec();
                bytes.resize(size, 0);
                format.append(&mut out, bytes);
            }
            b'x' => out.push(0),
            b'f' => {
                argument += 1;
                format.append(&mut out, (args.number(argument, "pack")? as f32).to_le_bytes().to_vec());
            }
            b'd' => {
                argument += 1;
                format.append(&mut out, args.number(argument, "pack")?.to_le_bytes().to_vec());
            }
            b'c' | b's' => {
                argument += 1;
                let text = args.text(argument, "pack")?;
                let size = if size == 0 { text.len() } else { size };
                if text.len() < size {
                    // As in the C library, the error contains the number of the next argument.
                    return Err(argument_error(argument + 1, "pack", "string too short"));
                }
                out.extend_from_slice(&text[..size]);
                if option == b's' {
                    out.push(0);
                }
            }
            other => format.apply_option(other, "pack")?,
        }
        if out.len() > MAX_STRING_BYTES {
            return Err("resulting string too large".into());
        }
    }
    Ok(lua.create_string(out)?)
}

fn unpack(lua: &Lua, args: &Arguments) -> LibraryResult<MultiValue> {
    let (text, data) = (args.text(1, "unpack")?, args.text(2, "unpack")?);
    let from = args.optional_number(3, "unpack", 1.0)?;
    if from < 1.0 {
        return Err(argument_error(3, "unpack", "offset must be 1 or greater"));
    }
    let (mut format, mut place, mut results) = (Format::new(&text), from as usize - 1, MultiValue::new());
    let short = || argument_error(2, "unpack", "data string too short");
    while let Some((option, mut size)) = format.next_option()? {
        place = place.saturating_add(format.padding(place, option, size));
        if size > data.len() || place > data.len() - size {
            return Err(short());
        }
        if results.len() > MAX_RESULTS {
            return Err("stack overflow (too many results)".into());
        }
        let bytes = &data[place..place + size];
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                results.push_back(Value::Number(decode_integer(
                    &format.to_native_order(bytes),
                    option.is_ascii_lowercase(),
                )));
            }
            b'x' => {}
            b'f' => {
                let four = format.to_native_order(bytes).try_into().unwrap_or_default();
                results.push_back(Value::Number(f64::from(f32::from_le_bytes(four))));
            }
            b'd' => {
                let eight = format.to_native_order(bytes).try_into().unwrap_or_default();
                results.push_back(Value::Number(f64::from_le_bytes(eight)));
            }
            b'c' => {
                if size == 0 {
                    let before = results.pop_back().and_then(|value| super::to_number(&value));
                    let Some(before) = before else { return Err("format 'c0' needs a previous size".into()) };
                    size = before as usize;
                    if before < 0.0 || size > data.len() || place > data.len() - size {
                        return Err(short());
                    }
                }
                results.push_back(Value::String(lua.create_string(&data[place..place + size])?));
            }
            b's' => {
                let end = data[place..].iter().position(|byte| *byte == 0);
                let Some(len) = end else { return Err("unfinished string in data".into()) };
                results.push_back(Value::String(lua.create_string(&data[place..place + len])?));
                size = len + 1;
            }
            other => format.apply_option(other, "unpack")?,
        }
        place += size;
    }
    results.push_back(Value::Number((place + 1) as f64));
    Ok(results)
}

/// Decodes a little-endian integer as a Lua number.
fn decode_integer(bytes: &[u8], signed: bool) -> f64 {
    let mut eight = [0; 8];
    let len = bytes.len().min(8);
    eight[..len].copy_from_slice(&bytes[..len]);
    let value = u64::from_le_bytes(eight);
    if !signed {
        return value as f64;
    }
    let unused = 64 - 8 * len as u32;
    if unused == 64 { 0.0 } else { ((value << unused) as i64 >> unused) as f64 }
}

fn size(_: &Lua, args: &Arguments) -> LibraryResult<f64> {
    let text = args.text(1, "size")?;
    let (mut format, mut place) = (Format::new(&text), 0_usize);
    while let Some((option, size)) = format.next_option()? {
        place = place.saturating_add(format.padding(place, option, size));
        match (option, size) {
            (b's', _) => return Err(argument_error(1, "size", "option 's' has no fixed size")),
            (b'c', 0) => return Err(argument_error(1, "size", "option 'c0' has no fixed size")),
            (b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' | b'x' | b'f' | b'd' | b'c', _) => {
            }
            (other, _) => format.apply_option(other, "size")?,
        }
        place = place.saturating_add(size);
    }
    Ok(place as f64)
}

pub(super) fn create_library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.set("pack", create_function(lua, pack)?)?;
    table.set("unpack", create_function(lua, unpack)?)?;
    table.set("size", create_function(lua, size)?)?;
    Ok(table)
}

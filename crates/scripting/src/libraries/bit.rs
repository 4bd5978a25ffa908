//! `bit`: operations on 32 bits, with the conventions of the BitOp library.

use mlua::{Lua, Table};

use super::{Arguments, LibraryResult, create_function};

/// Adding this constant to a number leaves its lowest 32 bits, rounded, in the low end of the mantissa.
const ROUNDING_BIAS: f64 = 6_755_399_441_055_744.0;

fn to_int32(args: &Arguments, index: usize, name: &str) -> LibraryResult<i32> {
    Ok((args.number(index, name)? + ROUNDING_BIAS).to_bits() as u32 as i32)
}

type UnaryOperation = fn(i32) -> i32;
type BinaryOperation = fn(i32, i32) -> i32;
type ShiftOperation = fn(i32, u32) -> i32;

pub(super) fn create_library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let unary: [(&'static str, UnaryOperation); 3] =
        [("tobit", |x| x), ("bnot", |x| !x), ("bswap", i32::swap_bytes)];
    for (name, operation) in unary {
        table.set(
            name,
            create_function(lua, move |_, args| Ok(f64::from(operation(to_int32(args, 1, name)?))))?,
        )?;
    }
    let folds: [(&'static str, BinaryOperation); 3] =
        [("band", |x, y| x & y), ("bor", |x, y| x | y), ("bxor", |x, y| x ^ y)];
    for (name, operation) in folds {
        let fold = move |_: &Lua, args: &Arguments| -> LibraryResult<f64> {
            let mut result = to_int32(args, 1, name)?;
            for index in 2..=args.len() {
                result = operation(result, to_int32(args, index, name)?);
            }
            Ok(f64::from(result))
        };
        table.set(name, create_function(lua, fold)?)?;
    }
    let shifts: [(&'static str, ShiftOperation); 5] = [
        ("lshift", |x, n| x << n),
        ("rshift", |x, n| (x as u32 >> n) as i32),
        ("arshift", |x, n| x >> n),
        ("rol", i32::rotate_left),
        ("ror", i32::rotate_right),
    ];
    for (name, operation) in shifts {
        let shift = move |_: &Lua, args: &Arguments| -> LibraryResult<f64> {
            let (value, by) = (to_int32(args, 1, name)?, to_int32(args, 2, name)?);
            Ok(f64::from(operation(value, by as u32 & 31)))
        };
        table.set(name, create_function(lua, shift)?)?;
    }
    let tohex = |lua: &Lua, args: &Arguments| -> LibraryResult<mlua::LuaString> {
        let value = to_int32(args, 1, "tohex")? as u32;
        let digits = if args.len() < 2 { 8 } else { to_int32(args, 2, "tohex")? };
        let shown = (digits.unsigned_abs() as usize).min(8);
        let text = if digits < 0 { format!("{value:08X}") } else { format!("{value:08x}") };
        Ok(lua.create_string(&text[8 - shown..])?)
    };
    table.set("tohex", create_function(lua, tohex)?)?;
    Ok(table)
}

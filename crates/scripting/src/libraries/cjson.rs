//! `cjson`: JSON.
//!
//! A table with positive integer keys is an array unless it is too sparse; an empty table is an object. Settings
//! changed by a script last until it ends.

mod decode;
mod encode;

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{IntoLua, Lua, MultiValue, Table, Value};

use super::{Arguments, FunctionLimits, LibraryError, LibraryResult, bad, function};

/// The treatment of numbers that JSON cannot represent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Invalid {
    Refused,
    Written,
    Null,
}

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    sparse_converted: bool,
    sparse_ratio: usize,
    sparse_safe: usize,
    encode_depth: usize,
    decode_depth: usize,
    precision: usize,
    keep_buffer: bool,
    encode_invalid: Invalid,
    decode_invalid: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sparse_converted: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_depth: 1000,
            decode_depth: 1000,
            precision: 14,
            keep_buffer: true,
            encode_invalid: Invalid::Refused,
            decode_invalid: true,
        }
    }
}

/// The settings, shared with the library's functions that change them.
pub(crate) type Shared = Rc<RefCell<Settings>>;

/// Argument `index` as an integer within bounds, if it is given.
fn bounded(
    args: &Arguments,
    index: usize,
    name: &str,
    (least, most): (i64, i64),
) -> LibraryResult<Option<usize>> {
    if matches!(args.value(index), Value::Nil) {
        return Ok(None);
    }
    let number = args.number(index, name)? as i64;
    if !(least..=most).contains(&number) {
        let what = format!("expected integer between {least} and {most}");
        return Err(bad(index, name, &what));
    }
    Ok(Some(number as usize))
}

/// Argument `index` as a boolean, if it is given: `true`, `false`, `"on"`, `"off"`.
fn switch(args: &Arguments, index: usize, name: &str) -> LibraryResult<Option<bool>> {
    match args.value(index) {
        Value::Nil => Ok(None),
        Value::Boolean(value) => Ok(Some(*value)),
        Value::String(word) if &*word.as_bytes() == b"on" => Ok(Some(true)),
        Value::String(word) if &*word.as_bytes() == b"off" => Ok(Some(false)),
        Value::String(word) => {
            let word = String::from_utf8_lossy(&word.as_bytes()).into_owned();
            Err(bad(index, name, &format!("invalid option '{word}'")))
        }
        other => {
            let got = super::type_name(other);
            Err(bad(index, name, &format!("string expected, got {got}")))
        }
    }
}

fn at_most(args: &Arguments, most: usize, name: &str) -> LibraryResult<()> {
    if args.len() > most { Err(bad(most + 1, name, "found too many arguments")) } else { Ok(()) }
}

fn exactly_one(args: &Arguments, name: &str) -> LibraryResult<()> {
    if args.len() == 1 { Ok(()) } else { Err(bad(1, name, "expected 1 argument")) }
}

/// Reads or changes an integer setting.
fn depth(
    lua: &Lua,
    settings: &Shared,
    name: &'static str,
    most: i64,
    field: fn(&mut Settings) -> &mut usize,
) -> mlua::Result<mlua::Function> {
    let settings = settings.clone();
    function(lua, move |_, args| -> LibraryResult<usize> {
        at_most(args, 1, name)?;
        let wanted = bounded(args, 1, name, (1, most))?;
        let settings = &mut *settings.borrow_mut();
        if let Some(wanted) = wanted {
            *field(settings) = wanted;
        }
        Ok(*field(settings))
    })
}

pub(super) fn library(lua: &Lua, settings: &Shared, limits: &FunctionLimits) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.set("_NAME", "cjson")?;
    table.set("_VERSION", "2.1.0")?;
    table.set("null", Value::NULL)?;
    let most = i64::from(i32::MAX);
    table.set(
        "encode_max_depth",
        depth(lua, settings, "encode_max_depth", most, |settings| &mut settings.encode_depth)?,
    )?;
    table.set(
        "decode_max_depth",
        depth(lua, settings, "decode_max_depth", most, |settings| &mut settings.decode_depth)?,
    )?;
    table.set(
        "encode_number_precision",
        depth(lua, settings, "encode_number_precision", 14, |settings| &mut settings.precision)?,
    )?;
    let (shared, bounds) = (settings.clone(), limits.clone());
    let encode = move |lua: &Lua, args: &Arguments| -> LibraryResult<mlua::LuaString> {
        exactly_one(args, "encode")?;
        let text = bounds.lifted(lua, |pace| encode::encode(args.value(1), &shared.borrow(), pace))?;
        Ok(lua.create_string(text)?)
    };
    table.set("encode", function(lua, encode)?)?;
    let (shared, bounds) = (settings.clone(), limits.clone());
    let decode = move |lua: &Lua, args: &Arguments| -> LibraryResult<Value> {
        exactly_one(args, "decode")?;
        let text = args.text(1, "decode")?;
        bounds.lifted(lua, |pace| decode::decode(lua, &text, &shared.borrow(), pace))
    };
    table.set("decode", function(lua, decode)?)?;
    add_switches(lua, &table, settings)?;
    Ok(table)
}

fn add_switches(lua: &Lua, table: &Table, settings: &Shared) -> mlua::Result<()> {
    let shared = settings.clone();
    let keep = move |_: &Lua, args: &Arguments| -> LibraryResult<bool> {
        at_most(args, 1, "encode_keep_buffer")?;
        let settings = &mut *shared.borrow_mut();
        if let Some(keep) = switch(args, 1, "encode_keep_buffer")? {
            settings.keep_buffer = keep;
        }
        Ok(settings.keep_buffer)
    };
    table.set("encode_keep_buffer", function(lua, keep)?)?;
    let shared = settings.clone();
    let decode = move |_: &Lua, args: &Arguments| -> LibraryResult<bool> {
        at_most(args, 1, "decode_invalid_numbers")?;
        let settings = &mut *shared.borrow_mut();
        if let Some(allowed) = switch(args, 1, "decode_invalid_numbers")? {
            settings.decode_invalid = allowed;
        }
        Ok(settings.decode_invalid)
    };
    table.set("decode_invalid_numbers", function(lua, decode)?)?;
    let shared = settings.clone();
    let encode = move |lua: &Lua, args: &Arguments| -> LibraryResult<Value> {
        at_most(args, 1, "encode_invalid_numbers")?;
        let null = matches!(args.value(1), Value::String(word) if &*word.as_bytes() == b"null");
        let wanted = if null { None } else { switch(args, 1, "encode_invalid_numbers")? };
        let settings = &mut *shared.borrow_mut();
        match (null, wanted) {
            (true, _) => settings.encode_invalid = Invalid::Null,
            (_, Some(true)) => settings.encode_invalid = Invalid::Written,
            (_, Some(false)) => settings.encode_invalid = Invalid::Refused,
            (_, None) => {}
        }
        Ok(match settings.encode_invalid {
            Invalid::Null => "null".into_lua(lua)?,
            Invalid::Written => Value::Boolean(true),
            Invalid::Refused => Value::Boolean(false),
        })
    };
    table.set("encode_invalid_numbers", function(lua, encode)?)?;
    let shared = settings.clone();
    let sparse = move |lua: &Lua, args: &Arguments| -> LibraryResult<MultiValue> {
        const NAME: &str = "encode_sparse_array";
        at_most(args, 3, NAME)?;
        let settings = &mut *shared.borrow_mut();
        let most = i64::from(i32::MAX);
        if let Some(converted) = switch(args, 1, NAME)? {
            settings.sparse_converted = converted;
        }
        if let Some(ratio) = bounded(args, 2, NAME, (0, most))? {
            settings.sparse_ratio = ratio;
        }
        if let Some(safe) = bounded(args, 3, NAME, (0, most))? {
            settings.sparse_safe = safe;
        }
        let all = (settings.sparse_converted, settings.sparse_ratio, settings.sparse_safe);
        mlua::IntoLuaMulti::into_lua_multi(all, lua).map_err(LibraryError::Lua)
    };
    table.set("encode_sparse_array", function(lua, sparse)?)
}

//! `cjson`: JSON.
//!
//! A table with positive integer keys is an array unless it is too sparse; an empty table is an object. Settings
//! changed by a script last until it ends.

mod decode;
mod encode;

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{IntoLua, Lua, MultiValue, Table, Value};

use super::{Arguments, FunctionLimits, LibraryError, LibraryResult, argument_error, create_function};

/// What the encoder and decoder do with numbers that JSON cannot represent, such as NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InvalidNumberPolicy {
    Reject,
    Write,
    Null,
}

#[derive(Debug, Clone)]
pub(crate) struct JsonOptions {
    converts_sparse_arrays: bool,
    sparse_ratio: usize,
    sparse_min_index: usize,
    max_encode_depth: usize,
    max_decode_depth: usize,
    precision: usize,
    keeps_buffer: bool,
    encode_invalid_numbers: InvalidNumberPolicy,
    accepts_invalid_numbers: bool,
}

impl Default for JsonOptions {
    fn default() -> Self {
        Self {
            converts_sparse_arrays: false,
            sparse_ratio: 2,
            sparse_min_index: 10,
            max_encode_depth: 1000,
            max_decode_depth: 1000,
            precision: 14,
            keeps_buffer: true,
            encode_invalid_numbers: InvalidNumberPolicy::Reject,
            accepts_invalid_numbers: true,
        }
    }
}

/// JSON settings, shared with the functions of `cjson` that change them.
pub(crate) type SharedJsonOptions = Rc<RefCell<JsonOptions>>;

/// Argument `index` as an integer within bounds, if it is given.
fn bounded_integer(
    args: &Arguments,
    index: usize,
    name: &str,
    least: i64,
    most: i64,
) -> LibraryResult<Option<usize>> {
    if matches!(args.value(index), Value::Nil) {
        return Ok(None);
    }
    let number = args.number(index, name)? as i64;
    if !(least..=most).contains(&number) {
        let what = format!("expected integer between {least} and {most}");
        return Err(argument_error(index, name, &what));
    }
    Ok(Some(number as usize))
}

/// Argument `index` as a boolean, if it is given: `true`, `false`, `"on"`, `"off"`.
fn optional_boolean(args: &Arguments, index: usize, name: &str) -> LibraryResult<Option<bool>> {
    match args.value(index) {
        Value::Nil => Ok(None),
        Value::Boolean(value) => Ok(Some(*value)),
        Value::String(word) if &*word.as_bytes() == b"on" => Ok(Some(true)),
        Value::String(word) if &*word.as_bytes() == b"off" => Ok(Some(false)),
        Value::String(word) => {
            let word = String::from_utf8_lossy(&word.as_bytes()).into_owned();
            Err(argument_error(index, name, &format!("invalid option '{word}'")))
        }
        other => {
            let got = super::type_name(other);
            Err(argument_error(index, name, &format!("string expected, got {got}")))
        }
    }
}

fn check_max_arguments(args: &Arguments, max: usize, name: &str) -> LibraryResult<()> {
    if args.len() > max { Err(argument_error(max + 1, name, "found too many arguments")) } else { Ok(()) }
}

fn check_one_argument(args: &Arguments, name: &str) -> LibraryResult<()> {
    if args.len() == 1 { Ok(()) } else { Err(argument_error(1, name, "expected 1 argument")) }
}

/// Reads or changes an integer setting.
fn depth_function(
    lua: &Lua,
    settings: &SharedJsonOptions,
    name: &'static str,
    max_depth: i64,
    field: fn(&mut JsonOptions) -> &mut usize,
) -> mlua::Result<mlua::Function> {
    let settings = settings.clone();
    create_function(lua, move |_, args| -> LibraryResult<usize> {
        check_max_arguments(args, 1, name)?;
        let wanted = bounded_integer(args, 1, name, 1, max_depth)?;
        let settings = &mut *settings.borrow_mut();
        if let Some(wanted) = wanted {
            *field(settings) = wanted;
        }
        Ok(*field(settings))
    })
}

pub(super) fn create_library(
    lua: &Lua,
    settings: &SharedJsonOptions,
    limits: &FunctionLimits,
) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.set("_NAME", "cjson")?;
    table.set("_VERSION", "2.1.0")?;
    table.set("null", Value::NULL)?;
    let most = i64::from(i32::MAX);
    table.set(
        "encode_max_depth",
        depth_function(lua, settings, "encode_max_depth", most, |settings| &mut settings.max_encode_depth)?,
    )?;
    table.set(
        "decode_max_depth",
        depth_function(lua, settings, "decode_max_depth", most, |settings| &mut settings.max_decode_depth)?,
    )?;
    table.set(
        "encode_number_precision",
        depth_function(lua, settings, "encode_number_precision", 14, |settings| &mut settings.precision)?,
    )?;
    let (shared, bounds) = (settings.clone(), limits.clone());
    let encode = move |lua: &Lua, args: &Arguments| -> LibraryResult<mlua::LuaString> {
        check_one_argument(args, "encode")?;
        let text =
            bounds.with_limit_lifted(lua, |pace| encode::encode(args.value(1), &shared.borrow(), pace))?;
        Ok(lua.create_string(text)?)
    };
    table.set("encode", create_function(lua, encode)?)?;
    let (shared, bounds) = (settings.clone(), limits.clone());
    let decode = move |lua: &Lua, args: &Arguments| -> LibraryResult<Value> {
        check_one_argument(args, "decode")?;
        let text = args.text(1, "decode")?;
        bounds.with_limit_lifted(lua, |pace| decode::decode(lua, &text, &shared.borrow(), pace))
    };
    table.set("decode", create_function(lua, decode)?)?;
    add_option_functions(lua, &table, settings)?;
    Ok(table)
}

fn add_option_functions(lua: &Lua, table: &Table, settings: &SharedJsonOptions) -> mlua::Result<()> {
    let shared = settings.clone();
    let keep = move |_: &Lua, args: &Arguments| -> LibraryResult<bool> {
        check_max_arguments(args, 1, "encode_keep_buffer")?;
        let settings = &mut *shared.borrow_mut();
        if let Some(keep) = optional_boolean(args, 1, "encode_keep_buffer")? {
            settings.keeps_buffer = keep;
        }
        Ok(settings.keeps_buffer)
    };
    table.set("encode_keep_buffer", create_function(lua, keep)?)?;
    let shared = settings.clone();
    let decode = move |_: &Lua, args: &Arguments| -> LibraryResult<bool> {
        check_max_arguments(args, 1, "decode_invalid_numbers")?;
        let settings = &mut *shared.borrow_mut();
        if let Some(allowed) = optional_boolean(args, 1, "decode_invalid_numbers")? {
            settings.accepts_invalid_numbers = allowed;
        }
        Ok(settings.accepts_invalid_numbers)
    };
    table.set("decode_invalid_numbers", create_function(lua, decode)?)?;
    let shared = settings.clone();
    let encode = move |lua: &Lua, args: &Arguments| -> LibraryResult<Value> {
        check_max_arguments(args, 1, "encode_invalid_numbers")?;
        let null = matches!(args.value(1), Value::String(word) if &*word.as_bytes() == b"null");
        let wanted = if null { None } else { optional_boolean(args, 1, "encode_invalid_numbers")? };
        let settings = &mut *shared.borrow_mut();
        match (null, wanted) {
            (true, _) => settings.encode_invalid_numbers = InvalidNumberPolicy::Null,
            (_, Some(true)) => settings.encode_invalid_numbers = InvalidNumberPolicy::Write,
            (_, Some(false)) => settings.encode_invalid_numbers = InvalidNumberPolicy::Reject,
            (_, None) => {}
        }
        Ok(match settings.encode_invalid_numbers {
            InvalidNumberPolicy::Null => "null".into_lua(lua)?,
            InvalidNumberPolicy::Write => Value::Boolean(true),
            InvalidNumberPolicy::Reject => Value::Boolean(false),
        })
    };
    table.set("encode_invalid_numbers", create_function(lua, encode)?)?;
    let shared = settings.clone();
    let sparse = move |lua: &Lua, args: &Arguments| -> LibraryResult<MultiValue> {
        const FUNCTION_NAME: &str = "encode_sparse_array";
        check_max_arguments(args, 3, FUNCTION_NAME)?;
        let settings = &mut *shared.borrow_mut();
        let most = i64::from(i32::MAX);
        if let Some(converted) = optional_boolean(args, 1, FUNCTION_NAME)? {
            settings.converts_sparse_arrays = converted;
        }
        if let Some(ratio) = bounded_integer(args, 2, FUNCTION_NAME, 0, most)? {
            settings.sparse_ratio = ratio;
        }
        if let Some(safe) = bounded_integer(args, 3, FUNCTION_NAME, 0, most)? {
            settings.sparse_min_index = safe;
        }
        let all = (settings.converts_sparse_arrays, settings.sparse_ratio, settings.sparse_min_index);
        mlua::IntoLuaMulti::into_lua_multi(all, lua).map_err(LibraryError::Lua)
    };
    table.set("encode_sparse_array", create_function(lua, sparse)?)
}

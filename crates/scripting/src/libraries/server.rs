//! Functions of `redis` that execute no command: `redis.setresp`, `redis.log` and similar.
//!
//! These functions are not written in Lua, because a tail call in Lua would drop the caller from the stack, and with it
//! the position in error messages.

use mlua::{Function, IntoLua, Lua, MultiValue, Table, Value};

use super::{RaisedError, to_number};
use crate::number::{format_g, to_integer};

/// The numbers of internal queries to the host.
pub(crate) mod question {
    pub(crate) const PROTECTED_CALL: i64 = 0;
    pub(crate) const SET_PROTOCOL: i64 = 1;
    pub(crate) const SET_REPLICATION: i64 = 2;
    pub(crate) const IS_PERMITTED: i64 = 3;
    pub(crate) const BREAKPOINT: i64 = 4;
    pub(crate) const DEBUG: i64 = 5;
}

/// An error in the style of the server's own errors, without a position.
pub(crate) fn script_error(text: &str) -> mlua::Error {
    mlua::Error::external(RaisedError {
        text: format!("ERR {text}").into_bytes(),
        error_table_counted: Some(false),
    })
}

/// Returns the integer part of a number or of a text that contains a number.
fn integer_part(value: &Value) -> Option<i64> {
    to_number(value).map(to_integer)
}

/// Returns a text, or a number converted to text. `None` for other values.
fn to_text(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(_) | Value::Number(_) => {
            to_number(value).map(|number| format_g(number, 14).into_bytes())
        }
        _ => None,
    }
}

/// Sends a query to the host of the running script. While a script runs, `current` returns the function that queries
/// the host, and the query marker.
fn send_query(lua: &Lua, current: &Function, query: i64, args: MultiValue) -> mlua::Result<Value> {
    let (host, mark): (Option<Function>, Table) = current.call(())?;
    let host = host.ok_or_else(|| script_error("This function can only be called from a script"))?;
    let mut words = MultiValue::with_capacity(args.len() + 2);
    words.push_back(Value::Table(mark));
    words.push_back(query.into_lua(lua)?);
    words.extend(args);
    let (value, failure): (Value, Value) = host.call(words)?;
    match failure {
        Value::String(text) => Err(script_error(&text.to_string_lossy())),
        _ => Ok(value),
    }
}

fn single_value(lua: &Lua, number: i64) -> mlua::Result<MultiValue> {
    Ok([number.into_lua(lua)?].into_iter().collect())
}

fn set_protocol(lua: &Lua, current: &Function, args: &MultiValue) -> mlua::Result<()> {
    if args.len() != 1 {
        return Err(script_error("server.setresp() requires one argument."));
    }
    match integer_part(&args[0]) {
        Some(version @ (2 | 3)) => {
            send_query(lua, current, question::SET_PROTOCOL, single_value(lua, version)?).map(drop)
        }
        _ => Err(script_error("RESP version must be 2 or 3.")),
    }
}

fn set_replication(lua: &Lua, current: &Function, args: &MultiValue) -> mlua::Result<()> {
    if args.len() != 1 {
        return Err(script_error("server.set_repl() requires one argument."));
    }
    match integer_part(&args[0]).unwrap_or(0) {
        flags @ 0..=3 => {
            send_query(lua, current, question::SET_REPLICATION, single_value(lua, flags)?).map(drop)
        }
        _ => {
            Err(script_error("Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE."))
        }
    }
}

fn is_permitted(lua: &Lua, current: &Function, args: MultiValue) -> mlua::Result<Value> {
    if args.is_empty() {
        return Err(script_error("Please specify at least one argument for this call"));
    }
    send_query(lua, current, question::IS_PERMITTED, args)
}

fn write_log(log: fn(u8, &str), args: &MultiValue) -> mlua::Result<()> {
    if args.len() < 2 {
        return Err(script_error("server.log() requires two arguments or more."));
    }
    let level =
        integer_part(&args[0]).ok_or_else(|| script_error("First argument must be a number (log level)."))?;
    let level = u8::try_from(level).ok().filter(|level| *level <= 3);
    let level = level.ok_or_else(|| script_error("Invalid log level."))?;
    let words: Vec<Vec<u8>> = args.iter().skip(1).filter_map(to_text).collect();
    log(level, &String::from_utf8_lossy(&words.join(&b' ')));
    Ok(())
}

fn sha1(lua: &Lua, args: &MultiValue) -> mlua::Result<Value> {
    if args.len() != 1 {
        return Err(script_error("wrong number of arguments"));
    }
    // As in Redis, an argument that is not text counts as empty.
    let text = to_text(&args[0]).unwrap_or_default();
    lua.create_string(crate::script::sha1_hex(&text)).map(Value::String)
}

/// Creates the function table; see [`send_query`] for `current`. `log` is also available to library code, and some
/// functions are for scripts only.
pub(super) fn create_library(lua: &Lua, current: &Function, log: fn(u8, &str)) -> mlua::Result<Table> {
    let (at_run, scripts_only) = (lua.create_table()?, lua.create_table()?);
    let host = current.clone();
    at_run.set("setresp", lua.create_function(move |lua, args| set_protocol(lua, &host, &args))?)?;
    at_run.set("sha1hex", lua.create_function(|lua, args| sha1(lua, &args))?)?;
    let host = current.clone();
    at_run.set("set_repl", lua.create_function(move |lua, args| set_replication(lua, &host, &args))?)?;
    let host = current.clone();
    at_run.set("acl_check_cmd", lua.create_function(move |lua, args| is_permitted(lua, &host, args))?)?;
    for (name, number) in [("breakpoint", question::BREAKPOINT), ("debug", question::DEBUG)] {
        let host = current.clone();
        scripts_only
            .set(name, lua.create_function(move |lua, args| send_query(lua, &host, number, args))?)?;
    }
    let all = lua.create_table()?;
    all.set("log", lua.create_function(move |_, args| write_log(log, &args))?)?;
    all.set("at_run", at_run)?;
    all.set("scripts_only", scripts_only)?;
    Ok(all)
}

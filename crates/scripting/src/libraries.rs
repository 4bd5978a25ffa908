//! The libraries that scripts are given: `bit`, `struct`, `cjson`, `cmsgpack`, and what replaces parts of Lua's own.
//!
//! A function of theirs does not raise errors: it returns `true` and its results, or `false` and the text of an error
//! that the prelude raises where the script called it, as a library in C would.

mod bit;
mod cjson;
mod cmsgpack;
mod math;
mod structs;

use std::rc::Rc;

use mlua::{Function, IntoLuaMulti, Lua, MultiValue, Table, Value};

use crate::random::Random;
pub(crate) use cjson::Shared as JsonSettings;

/// The longest string that a function makes by itself.
pub(crate) const MAX_STRING: usize = 512 << 20;

/// Why a library's function failed.
#[derive(Debug)]
pub(crate) enum Complaint {
    /// What the script did wrong.
    Script(String),
    /// Lua itself, for want of memory.
    Lua(mlua::Error),
}

impl From<mlua::Error> for Complaint {
    fn from(error: mlua::Error) -> Self {
        Self::Lua(error)
    }
}

impl From<&str> for Complaint {
    fn from(text: &str) -> Self {
        Self::Script(text.to_owned())
    }
}

impl From<String> for Complaint {
    fn from(text: String) -> Self {
        Self::Script(text)
    }
}

pub(crate) type Returned<R> = Result<R, Complaint>;

/// A function in the form that the prelude takes.
pub(crate) fn function<R: IntoLuaMulti>(
    lua: &Lua,
    f: impl Fn(&Lua, &Arguments) -> Returned<R> + 'static,
) -> mlua::Result<Function> {
    lua.create_function(move |lua, args: MultiValue| {
        let mut results = match f(lua, &Arguments { args }) {
            Ok(results) => results.into_lua_multi(lua)?,
            Err(Complaint::Script(text)) => return (false, text).into_lua_multi(lua),
            Err(Complaint::Lua(error)) => return Err(error),
        };
        results.push_front(Value::Boolean(true));
        Ok(results)
    })
}

/// What a function was called with.
#[derive(Debug)]
pub(crate) struct Arguments {
    args: MultiValue,
}

impl Arguments {
    pub(crate) fn len(&self) -> usize {
        self.args.len()
    }

    /// Argument `index`, counted from 1.
    pub(crate) fn value(&self, index: usize) -> &Value {
        self.args.get(index - 1).unwrap_or(&Value::Nil)
    }

    fn expected(&self, index: usize, function: &str, expected: &str) -> Complaint {
        let got = self.args.get(index - 1).map_or("no value", type_name);
        bad(index, function, &format!("{expected} expected, got {got}"))
    }

    /// A number, or text that is one.
    pub(crate) fn number(&self, index: usize, function: &str) -> Returned<f64> {
        number_of(self.value(index)).ok_or_else(|| self.expected(index, function, "number"))
    }

    pub(crate) fn optional_number(&self, index: usize, function: &str, default: f64) -> Returned<f64> {
        match self.value(index) {
            Value::Nil => Ok(default),
            _ => self.number(index, function),
        }
    }

    /// Text, or a number as text.
    pub(crate) fn text(&self, index: usize, function: &str) -> Returned<Vec<u8>> {
        match self.value(index) {
            Value::String(text) => Ok(text.as_bytes().to_vec()),
            Value::Integer(number) => Ok(crate::number::format_g(*number as f64, 14).into_bytes()),
            Value::Number(number) => Ok(crate::number::format_g(*number, 14).into_bytes()),
            _ => Err(self.expected(index, function, "string")),
        }
    }
}

pub(crate) fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        Value::String(text) => std::str::from_utf8(&text.as_bytes()).ok()?.trim().parse().ok(),
        _ => None,
    }
}

pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) => "number",
        Value::LightUserData(_) => "userdata",
        other => other.type_name(),
    }
}

/// The error of a C library about one of its arguments.
pub(crate) fn bad(index: usize, function: &str, what: &str) -> Complaint {
    Complaint::Script(format!("bad argument #{index} to '{function}' ({what})"))
}

/// What the prelude takes.
pub(crate) fn natives(lua: &Lua, random: &Rc<Random>, json: &JsonSettings) -> mlua::Result<Table> {
    let native = lua.create_table()?;
    native.set("bit", bit::library(lua)?)?;
    native.set("struct", structs::library(lua)?)?;
    native.set("cmsgpack", cmsgpack::library(lua)?)?;
    let own = json.clone();
    let new_json = move |lua: &Lua, shared: bool| {
        let settings = if shared { own.clone() } else { JsonSettings::default() };
        cjson::library(lua, &settings)
    };
    native.set("new_json", lua.create_function(new_json)?)?;
    native.set("math", math::library(lua, random)?)?;
    native.set("string", lua.create_table()?)?;
    native.set("max_string", MAX_STRING)?;
    let is_flag = |_: &Lua, name: Value| {
        let mut flags = crate::script::ScriptFlags::default();
        Ok(matches!(&name, Value::String(name) if flags.set(&name.as_bytes())))
    };
    native.set("is_flag", lua.create_function(is_flag)?)?;
    let sha1hex =
        |lua: &Lua, text: mlua::LuaString| lua.create_string(crate::script::sha1_hex(&text.as_bytes()));
    native.set("sha1hex", lua.create_function(sha1hex)?)?;
    Ok(native)
}

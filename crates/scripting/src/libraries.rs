//! The libraries that scripts are given: `bit`, `struct`, `cjson`, `cmsgpack`, and what replaces parts of Lua's own.
//!
//! An error of theirs says where the script called them, as one of a library in C does ([`Raised`]).

mod bit;
mod cjson;
mod cmsgpack;
mod math;
mod patterns;
pub(crate) mod server;
mod structs;
pub(crate) mod walk;

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Function, IntoLuaMulti, Lua, MultiValue, Table, Value};

use crate::collector::Collector;
use crate::random::Random;
pub(crate) use cjson::Shared as JsonSettings;

/// The longest string that a function makes by itself.
const MAX_STRING: usize = 512 << 20;
/// Steps between two looks at whether the script is to end: some hundred microseconds.
const STEPS: usize = 10_000;
/// So many bytes of a text take as long as one step.
const BYTES_OF_A_STEP: usize = 64;

/// The limits of a function that may run for long or make much.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Raises an error if the script is to end.
    pub(crate) look: Function,
    /// The memory limit of the Lua state, in bytes.
    pub(crate) memory: Rc<Cell<usize>>,
    pub(crate) collector: Rc<Collector>,
}

impl Limits {
    /// The longest string that a function may make by itself.
    pub(crate) fn longest(&self) -> usize {
        self.memory.get().min(MAX_STRING)
    }

    pub(crate) fn pace(&self) -> Pace<'_> {
        Pace { limits: self, steps: 0, lifted: None }
    }

    /// Runs what makes or visits many values without the allocator's bound, under which mlua guards each allocation:
    /// that would be more than half of the time. The pace that it is given sees to the bound instead.
    pub(crate) fn lifted<R>(&self, lua: &Lua, run: impl FnOnce(Pace<'_>) -> Returned<R>) -> Returned<R> {
        self.collector.make_room(lua, 0)?;
        let bound = lua.set_memory_limit(0)?;
        let lifted = Some((lua, bound)).filter(|_| bound > 0);
        let made = run(Pace { limits: self, steps: 0, lifted });
        lua.set_memory_limit(bound)?;
        made
    }
}

/// How far a function is: it looks every so many steps whether it may go on.
#[derive(Debug)]
pub(crate) struct Pace<'a> {
    limits: &'a Limits,
    steps: usize,
    /// The state whose bound is lifted, and the bound.
    lifted: Option<(&'a Lua, usize)>,
}

impl Pace<'_> {
    /// One element of `bytes` is done, and a result is this long.
    pub(crate) fn step(&mut self, bytes: usize, made: usize) -> Returned<()> {
        if made > self.limits.longest() {
            return Err("resulting string too large".into());
        }
        self.steps += 1 + bytes / BYTES_OF_A_STEP;
        if self.steps < STEPS {
            return Ok(());
        }
        self.steps = 0;
        if self.lifted.is_some_and(|(lua, bound)| lua.used_memory() > bound) {
            return Err(mlua::Error::MemoryError("not enough memory".to_owned()).into());
        }
        Ok(self.limits.look.call::<()>(())?)
    }
}

/// Why a library's function failed.
#[derive(Debug)]
pub(crate) enum Complaint {
    /// A mistake of the script, as text.
    Script(String),
    /// An argument of this function is wrong.
    Argument {
        /// Counted from 1.
        index: usize,
        function: String,
        what: String,
    },
    /// Lua itself failed, since memory is short.
    Lua(mlua::Error),
}

impl std::fmt::Display for Complaint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Script(text) => f.write_str(text),
            Self::Argument { index, function, what } => {
                write!(f, "bad argument #{index} to '{function}' ({what})")
            }
            Self::Lua(error) => f.write_str(&complaint_text(error)),
        }
    }
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

/// An error on its way through Lua, until the prelude turns it into the script's error.
#[derive(Debug)]
pub(crate) struct Raised {
    pub(crate) text: Vec<u8>,
    /// If it becomes a table with the text as `err`, as the server's own errors do: whether the statistics have it.
    pub(crate) table: Option<bool>,
}

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

impl std::error::Error for Raised {}

/// The place where the running function was called, in the form in which Lua's own errors begin.
fn called_at(lua: &Lua) -> String {
    for level in 1.. {
        let place = lua.inspect_stack(level, |debug| {
            let source = debug.source().short_src.map(|source| source.into_owned());
            source.zip(debug.current_line())
        });
        match place {
            // The prelude calls on a script's behalf.
            Some(Some((source, _))) if source == "prelude" => {}
            Some(Some((source, line))) => return format!("{source}:{line}: "),
            Some(None) | None => break,
        }
    }
    String::new()
}

/// Whether the running function was called as a method (`text:find()`), itself or by the prelude: then Lua does not
/// count the object among the arguments.
fn called_as_method(lua: &Lua) -> bool {
    for level in 0.. {
        let called = lua.inspect_stack(level, |debug| debug.names().name_what == Some("method"));
        let by_prelude =
            lua.inspect_stack(level + 1, |debug| debug.source().source.is_some_and(|it| it == "=prelude"));
        match (called, by_prelude) {
            (Some(true), _) => return true,
            (Some(false), Some(true)) => {}
            _ => return false,
        }
    }
    false
}

/// The text of an error that ended a piece of Lua.
pub(crate) fn complaint_text(error: &mlua::Error) -> String {
    let mut cause = error;
    while let mlua::Error::CallbackError { cause: inner, .. } = cause {
        cause = inner;
    }
    let text = match cause {
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        other => other.to_string(),
    };
    let text = text.strip_prefix("runtime error: ").unwrap_or(&text);
    text.lines().next().unwrap_or_default().to_owned()
}

/// Makes the value that a script sees of an error that comes from Rust.
fn unwrap(lua: &Lua, error: Value) -> mlua::Result<Value> {
    let Value::Error(error) = error else { return Ok(error) };
    let mut cause = &*error;
    while let mlua::Error::CallbackError { cause: inner, .. } = cause {
        cause = inner;
    }
    let Some(raised) = cause.downcast_ref::<Raised>() else {
        let text = cause.to_string();
        let text = text.strip_prefix("runtime error: ").unwrap_or(&text);
        return Ok(Value::String(lua.create_string(text.lines().next().unwrap_or_default())?));
    };
    match raised.table {
        Some(counted) => Ok(Value::Table(crate::reply::error_table(lua, &raised.text, counted)?)),
        None => Ok(Value::String(lua.create_string(&raised.text)?)),
    }
}

/// A function of a library.
pub(crate) fn function<R: IntoLuaMulti>(
    lua: &Lua,
    f: impl Fn(&Lua, &Arguments) -> Returned<R> + 'static,
) -> mlua::Result<Function> {
    lua.create_function(move |lua, args: MultiValue| {
        f(lua, &Arguments { args }).map_err(|complaint| match complaint {
            Complaint::Argument { index, function, what } => {
                let index = index - usize::from(called_as_method(lua));
                let text = match index {
                    0 => format!("calling '{function}' on bad self"),
                    _ => format!("bad argument #{index} to '{function}' ({what})"),
                };
                let text = format!("{}{text}", called_at(lua)).into_bytes();
                mlua::Error::external(Raised { text, table: None })
            }
            Complaint::Script(text) => {
                let text = format!("{}{text}", called_at(lua)).into_bytes();
                mlua::Error::external(Raised { text, table: None })
            }
            Complaint::Lua(error) => error,
        })
    })
}

/// The arguments that a function was called with.
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
    Complaint::Argument { index, function: function.to_owned(), what: what.to_owned() }
}

/// The table of native functions that the prelude takes.
pub(crate) fn natives(
    lua: &Lua,
    random: &Rc<Random>,
    json: &JsonSettings,
    limits: &Limits,
    log: fn(u8, &str),
) -> mlua::Result<Table> {
    let native = lua.create_table()?;
    native.set("bit", bit::library(lua)?)?;
    native.set("struct", structs::library(lua)?)?;
    native.set("cmsgpack", cmsgpack::library(lua, limits)?)?;
    let (own, bounds) = (json.clone(), limits.clone());
    let new_json = move |lua: &Lua, shared: bool| {
        let settings = if shared { own.clone() } else { JsonSettings::default() };
        cjson::library(lua, &settings, &bounds)
    };
    native.set("new_json", lua.create_function(new_json)?)?;
    native.set("math", math::library(lua, random)?)?;
    let string = lua.create_table()?;
    patterns::add_to(&string, lua, &limits.look)?;
    native.set("string", string)?;
    native.set("look", &limits.look)?;
    let bounds = limits.clone();
    native.set("max_string", lua.create_function(move |_, ()| Ok(bounds.longest()))?)?;
    let is_flag = |_: &Lua, name: Value| {
        let mut flags = crate::script::ScriptFlags::default();
        Ok(matches!(&name, Value::String(name) if flags.set(&name.as_bytes())))
    };
    native.set("unwrap", lua.create_function(unwrap)?)?;
    native.set("is_flag", lua.create_function(is_flag)?)?;
    let api = move |lua: &Lua, current: Function| server::library(lua, &current, log);
    native.set("api", lua.create_function(api)?)?;
    Ok(native)
}

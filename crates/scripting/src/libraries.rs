//! Libraries available to scripts: `bit`, `struct`, `cjson`, `cmsgpack`, and safe replacements for parts of Lua's own.
//!
//! Their errors include the position in the script, like those of a C library ([`RaisedError`]).

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

use crate::collector::GarbageCollector;
use crate::random::Random;
pub(crate) use cjson::SharedJsonOptions as JsonSettings;

/// Maximum length of a string that a single function call creates.
const MAX_STRING_BYTES: usize = 512 << 20;
/// Number of steps between two checks whether the script must stop; they take some hundred microseconds.
const STEPS_PER_CHECK: usize = 10_000;
/// Number of bytes of text that count as one step.
const BYTES_PER_STEP: usize = 64;

/// Limits of functions that may run for long or allocate much.
#[derive(Debug, Clone)]
pub(crate) struct FunctionLimits {
    /// A Lua function that raises an error if the script must stop.
    pub(crate) check_hook: Function,
    /// The memory limit of the Lua state in bytes.
    pub(crate) memory_limit: Rc<Cell<usize>>,
    pub(crate) collector: Rc<GarbageCollector>,
}

impl FunctionLimits {
    /// Maximum length of a string that a function may create now.
    pub(crate) fn max_string_len(&self) -> usize {
        self.memory_limit.get().min(MAX_STRING_BYTES)
    }

    pub(crate) fn step_counter(&self) -> StepCounter<'_> {
        StepCounter { limits: self, steps: 0, lifted_limit: None }
    }

    /// Lifts the allocator's limit while code creates or visits many values. Under that limit mlua would guard each
    /// allocation, which more than doubles the run time. The `StepCounter` passed to the code enforces the limit
    /// instead.
    pub(crate) fn with_limit_lifted<R>(
        &self,
        lua: &Lua,
        run: impl FnOnce(StepCounter<'_>) -> LibraryResult<R>,
    ) -> LibraryResult<R> {
        self.collector.collect_garbage_if_due(lua, 0)?;
        let bound = lua.set_memory_limit(0)?;
        let lifted = Some((lua, bound)).filter(|_| bound > 0);
        let made = run(StepCounter { limits: self, steps: 0, lifted_limit: lifted });
        lua.set_memory_limit(bound)?;
        made
    }
}

/// Progress of a long-running function; checks the limits every [`STEPS_PER_CHECK`] steps.
#[derive(Debug)]
pub(crate) struct StepCounter<'a> {
    limits: &'a FunctionLimits,
    steps: usize,
    /// The Lua state whose allocator limit was lifted, and the limit to restore.
    lifted_limit: Option<(&'a Lua, usize)>,
}

impl StepCounter<'_> {
    /// Counts one processed element of `bytes` bytes as steps. `result_len` is the present length of the result.
    pub(crate) fn step(&mut self, bytes: usize, result_len: usize) -> LibraryResult<()> {
        if result_len > self.limits.max_string_len() {
            return Err("resulting string too large".into());
        }
        self.steps += 1 + bytes / BYTES_PER_STEP;
        if self.steps < STEPS_PER_CHECK {
            return Ok(());
        }
        self.steps = 0;
        if self.lifted_limit.is_some_and(|(lua, bound)| lua.used_memory() > bound) {
            return Err(mlua::Error::MemoryError("not enough memory".to_owned()).into());
        }
        Ok(self.limits.check_hook.call::<()>(())?)
    }
}

/// The reason why a library function failed.
#[derive(Debug)]
pub(crate) enum LibraryError {
    /// The script made a mistake; holds the error text.
    Script(String),
    /// One of the function's arguments is invalid.
    Argument {
        /// Number of the argument, counted from 1.
        index: usize,
        function: String,
        problem: String,
    },
    /// Lua itself failed, for lack of memory.
    Lua(mlua::Error),
}

impl std::fmt::Display for LibraryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Script(text) => f.write_str(text),
            Self::Argument { index, function, problem: what } => {
                write!(f, "bad argument #{index} to '{function}' ({what})")
            }
            Self::Lua(error) => f.write_str(&error_text(error)),
        }
    }
}

impl From<mlua::Error> for LibraryError {
    fn from(error: mlua::Error) -> Self {
        Self::Lua(error)
    }
}

impl From<&str> for LibraryError {
    fn from(text: &str) -> Self {
        Self::Script(text.to_owned())
    }
}

impl From<String> for LibraryError {
    fn from(text: String) -> Self {
        Self::Script(text)
    }
}

pub(crate) type LibraryResult<R> = Result<R, LibraryError>;

/// An error in transit through Lua, which the prelude converts to the script's error.
#[derive(Debug)]
pub(crate) struct RaisedError {
    pub(crate) text: Vec<u8>,
    /// `Some` if the script receives a table with the text in `err`, like errors of commands; the value says whether
    /// the error statistics include it.
    pub(crate) error_table_counted: Option<bool>,
}

impl std::fmt::Display for RaisedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

impl std::error::Error for RaisedError {}

/// The position from which the running function was called, formatted as the prefix of Lua's error texts.
fn caller_position(lua: &Lua) -> String {
    for level in 1.. {
        let place = lua.inspect_stack(level, |debug| {
            let source = debug.source().short_src.map(|source| source.into_owned());
            source.zip(debug.current_line())
        });
        match place {
            // The prelude calls library functions on behalf of the script, so skip its stack levels.
            Some(Some((source, _))) if source == "prelude" => {}
            Some(Some((source, line))) => return format!("{source}:{line}: "),
            Some(None) | None => break,
        }
    }
    String::new()
}

/// Whether the running function was called as a method (`text:find()`), directly or through the prelude. Lua then does
/// not count the object as an argument in error messages.
fn is_called_as_method(lua: &Lua) -> bool {
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

/// The text of an error that ended Lua code, without a stack trace.
pub(crate) fn error_text(error: &mlua::Error) -> String {
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

/// Converts an error from Rust to the value that a script receives.
fn error_to_lua(lua: &Lua, error: Value) -> mlua::Result<Value> {
    let Value::Error(error) = error else { return Ok(error) };
    let mut cause = &*error;
    while let mlua::Error::CallbackError { cause: inner, .. } = cause {
        cause = inner;
    }
    let Some(raised) = cause.downcast_ref::<RaisedError>() else {
        let text = cause.to_string();
        let text = text.strip_prefix("runtime error: ").unwrap_or(&text);
        return Ok(Value::String(lua.create_string(text.lines().next().unwrap_or_default())?));
    };
    match raised.error_table_counted {
        Some(counted) => Ok(Value::Table(crate::reply::error_table(lua, &raised.text, counted)?)),
        None => Ok(Value::String(lua.create_string(&raised.text)?)),
    }
}

/// Creates a library function.
pub(crate) fn create_function<R: IntoLuaMulti>(
    lua: &Lua,
    f: impl Fn(&Lua, &Arguments) -> LibraryResult<R> + 'static,
) -> mlua::Result<Function> {
    lua.create_function(move |lua, args: MultiValue| {
        f(lua, &Arguments { args }).map_err(|complaint| match complaint {
            LibraryError::Argument { index, function, problem: what } => {
                let index = index - usize::from(is_called_as_method(lua));
                let text = match index {
                    0 => format!("calling '{function}' on bad self"),
                    _ => format!("bad argument #{index} to '{function}' ({what})"),
                };
                let text = format!("{}{text}", caller_position(lua)).into_bytes();
                mlua::Error::external(RaisedError { text, error_table_counted: None })
            }
            LibraryError::Script(text) => {
                let text = format!("{}{text}", caller_position(lua)).into_bytes();
                mlua::Error::external(RaisedError { text, error_table_counted: None })
            }
            LibraryError::Lua(error) => error,
        })
    })
}

/// The arguments of a library function.
#[derive(Debug)]
pub(crate) struct Arguments {
    args: MultiValue,
}

impl Arguments {
    pub(crate) fn len(&self) -> usize {
        self.args.len()
    }

    /// Argument `index`, counted from 1; nil if it is missing.
    pub(crate) fn value(&self, index: usize) -> &Value {
        self.args.get(index - 1).unwrap_or(&Value::Nil)
    }

    fn type_error(&self, index: usize, function: &str, expected: &str) -> LibraryError {
        let got = self.args.get(index - 1).map_or("no value", type_name);
        argument_error(index, function, &format!("{expected} expected, got {got}"))
    }

    /// Argument `index` as a number; numeric text is accepted.
    pub(crate) fn number(&self, index: usize, function: &str) -> LibraryResult<f64> {
        to_number(self.value(index)).ok_or_else(|| self.type_error(index, function, "number"))
    }

    pub(crate) fn optional_number(&self, index: usize, function: &str, default: f64) -> LibraryResult<f64> {
        match self.value(index) {
            Value::Nil => Ok(default),
            _ => self.number(index, function),
        }
    }

    /// Argument `index` as text; numbers are converted.
    pub(crate) fn text(&self, index: usize, function: &str) -> LibraryResult<Vec<u8>> {
        match self.value(index) {
            Value::String(text) => Ok(text.as_bytes().to_vec()),
            Value::Integer(number) => Ok(crate::number::format_g(*number as f64, 14).into_bytes()),
            Value::Number(number) => Ok(crate::number::format_g(*number, 14).into_bytes()),
            _ => Err(self.type_error(index, function, "string")),
        }
    }
}

pub(crate) fn to_number(value: &Value) -> Option<f64> {
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

/// The error for an invalid argument, in the format of C libraries.
pub(crate) fn argument_error(index: usize, function: &str, problem: &str) -> LibraryError {
    LibraryError::Argument { index, function: function.to_owned(), problem: problem.to_owned() }
}

/// The table of native functions for the prelude.
pub(crate) fn native_libraries(
    lua: &Lua,
    random: &Rc<Random>,
    json: &JsonSettings,
    limits: &FunctionLimits,
    log: fn(u8, &str),
) -> mlua::Result<Table> {
    let native = lua.create_table()?;
    native.set("bit", bit::create_library(lua)?)?;
    native.set("struct", structs::create_library(lua)?)?;
    native.set("cmsgpack", cmsgpack::create_library(lua, limits)?)?;
    let (own, bounds) = (json.clone(), limits.clone());
    let new_json = move |lua: &Lua, shared: bool| {
        let settings = if shared { own.clone() } else { JsonSettings::default() };
        cjson::create_library(lua, &settings, &bounds)
    };
    native.set("new_json", lua.create_function(new_json)?)?;
    native.set("math", math::create_library(lua, random)?)?;
    let string = lua.create_table()?;
    patterns::register_functions(&string, lua, &limits.check_hook)?;
    native.set("string", string)?;
    native.set("look", &limits.check_hook)?;
    let bounds = limits.clone();
    native.set("max_string", lua.create_function(move |_, ()| Ok(bounds.max_string_len()))?)?;
    let is_flag = |_: &Lua, name: Value| {
        let mut flags = crate::script::ScriptFlags::default();
        Ok(matches!(&name, Value::String(name) if flags.set_flag(&name.as_bytes())))
    };
    native.set("unwrap", lua.create_function(error_to_lua)?)?;
    native.set("is_flag", lua.create_function(is_flag)?)?;
    let api = move |lua: &Lua, current: Function| server::create_library(lua, &current, log);
    native.set("api", lua.create_function(api)?)?;
    Ok(native)
}

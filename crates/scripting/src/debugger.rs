//! The Lua script debugger (SCRIPT DEBUG): breakpoints, single steps, variables and stack traces.
//!
//! A line hook runs at each line of the script. When the script stops, the debugger reads commands from its
//! [`DebugConsole`] until one of them continues the script. The debugger's output consists of lines in the format of
//! `redis-cli --ldb`, sent together as an array of simple strings. Local variables are read through calls inserted into
//! the script ([`scopes`]).

mod scopes;
mod show;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mlua::{Function, Lua, MultiValue, Table, Value};
use resp::Args;

use crate::libraries::error_text;
use crate::running::InterpreterState;

/// Number of lines to list before and after the current one.
const CONTEXT_LINES: i64 = 5;
const MAX_BREAKPOINTS: usize = 64;
/// Default limit in bytes for printed values.
const DEFAULT_MAX_PRINTED_BYTES: usize = 256;
const LOWEST_MAX_PRINTED_BYTES: usize = 60;
/// The chunk name of the script in Lua's debug information.
pub(crate) const SCRIPT_CHUNK_NAME: &str = "@user_script";

const HELP: &str = include_str!("debugger/help.txt");

/// The connection to the client that debugs a script.
pub trait DebugConsole: std::fmt::Debug {
    /// Sends already encoded output to the client.
    fn send(&mut self, bytes: Vec<u8>);

    /// Waits for the client's next command and returns its words. Returns `None` if the client disconnected or
    /// `stopped` returns true.
    fn receive(&mut self, stopped: &dyn Fn() -> bool) -> Option<Vec<Vec<u8>>>;
}

/// What the script does after the user continues it.
enum NextStep {
    Wait,
    Continue,
    Abort,
}

/// The debugger of one script.
#[derive(Debug)]
pub(crate) struct Debugger {
    console: RefCell<Box<dyn DebugConsole>>,
    source: Vec<String>,
    /// The script's global variables.
    environment: Table,
    interpreter_state: Arc<InterpreterState>,
    /// Lines whose first instruction is an inserted call that reports the variables in scope.
    scope_report_lines: HashSet<usize>,
    /// Functions that return the variables in scope, by stack depth of the function to which the scope belongs.
    scopes: RefCell<HashMap<usize, Function>>,
    breakpoints: RefCell<Vec<usize>>,
    output_lines: RefCell<Vec<Vec<u8>>>,
    current_line: Cell<usize>,
    is_stepping: Cell<bool>,
    /// Whether the script requested a stop (`redis.breakpoint()`).
    stop_requested: Cell<bool>,
    /// The reason for a stop that takes effect after the variables in scope have been reported.
    pending_stop: Cell<Option<&'static str>>,
    max_printed_bytes: Cell<usize>,
    hint_shown: Cell<bool>,
    is_disconnected: Cell<bool>,
    /// Whether the debugger's own code is running, which must not be debugged.
    is_debugger_running: Cell<bool>,
}

/// Instruments a script for debugging. Returns the new text and the lines that start with an inserted call.
pub(crate) fn instrument_for_debugging(body: &[u8]) -> Option<(Vec<u8>, HashSet<usize>)> {
    let shown = scopes::instrument(body).ok()?;
    let mut text = format!("local {} = ... return function(...) ", scopes::SCOPE_HOOK).into_bytes();
    text.extend_from_slice(&shown.text);
    text.extend_from_slice(b"\nend");
    Some((text, shown.scope_report_lines))
}

impl Debugger {
    pub(crate) fn new(
        text: &[u8],
        environment: Table,
        interpreter_state: Arc<InterpreterState>,
        console: Box<dyn DebugConsole>,
        scope_report_lines: HashSet<usize>,
    ) -> Self {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let source = String::from_utf8_lossy(text).split('\n').map(str::to_owned).collect();
        Self {
            console: RefCell::new(console),
            source,
            environment,
            interpreter_state,
            scope_report_lines,
            scopes: RefCell::default(),
            breakpoints: RefCell::default(),
            output_lines: RefCell::default(),
            current_line: Cell::new(0),
            is_stepping: Cell::new(true),
            stop_requested: Cell::new(false),
            pending_stop: Cell::new(None),
            max_printed_bytes: Cell::new(DEFAULT_MAX_PRINTED_BYTES),
            hint_shown: Cell::new(false),
            is_disconnected: Cell::new(false),
            is_debugger_running: Cell::new(false),
        }
    }

    /// Handles the script's arrival at another line.
    pub(crate) fn on_line(&self, lua: &Lua, line: usize) -> mlua::Result<()> {
        if self.is_debugger_running.get() {
            return Ok(());
        }
        self.current_line.set(line);
        // A loop that returns to its first line does not report its scope there, so stop at the next line instead.
        let missed = self.pending_stop.take();
        let reason = if self.stop_requested.take() {
            "server.breakpoint() called"
        } else if self.breakpoints.borrow().contains(&line) {
            "break point"
        } else if let Some(reason) = missed {
            reason
        } else if self.is_stepping.get() {
            "step over"
        } else {
            return Ok(());
        };
        self.is_stepping.set(false);
        if self.scope_report_lines.contains(&line) {
            self.pending_stop.set(Some(reason));
            return Ok(());
        }
        self.stop(lua, reason)
    }

    /// Handles an inserted call: `scope` returns the number of the running function's own variables, then names and
    /// values.
    pub(crate) fn on_scope(&self, lua: &Lua, scope: Function) -> mlua::Result<()> {
        if self.is_debugger_running.get() {
            return Ok(());
        }
        // The inserted call itself is one level above the function.
        self.scopes.borrow_mut().insert(stack_depth(lua) - 1, scope);
        match self.pending_stop.take() {
            Some(reason) => self.stop(lua, reason),
            None => Ok(()),
        }
    }

    /// `redis.breakpoint()`: stops at the next line.
    pub(crate) fn stop_at_next_line(&self) {
        self.stop_requested.set(!self.is_disconnected.get());
    }

    /// `redis.debug(...)`: prints values.
    pub(crate) fn print_values(&self, values: &MultiValue) {
        let values: Vec<Vec<u8>> = values.iter().map(show::format_value).collect();
        let begin = format!("<debug> line {}: ", self.current_line.get());
        self.print_line([begin.into_bytes(), values.join(&b", "[..])].concat());
    }

    /// Prints a command that the script executed, with its reply.
    pub(crate) fn print_call(&self, request: Args<'_>, reply: &[u8]) {
        if !self.is_stepping.get() {
            return;
        }
        let words: Vec<&[u8]> = request.iter().collect();
        self.print_line([b"<command> ", words.join(&b' ').as_slice()].concat());
        match show::format_unknown_command(request, reply) {
            Some((refusal, error)) => {
                self.print_shortened("<reply> ", &show::format_reply(refusal.as_bytes()));
                self.print_line(format!("<error> {error}"));
            }
            None => {
                self.print_shortened("<reply> ", &show::format_reply(reply));
                if reply.starts_with(b"-") {
                    self.print_line([b"<error> ", reply].concat());
                }
            }
        }
    }

    /// Sends the remaining output and the end of the session.
    pub(crate) fn end_session(&self) {
        self.print_line("<endsession>");
        self.send();
    }

    fn print_line(&self, line: impl AsRef<[u8]>) {
        let shown = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
        self.output_lines.borrow_mut().push(line.as_ref().iter().map(shown).collect());
    }

    fn print_shortened(&self, prefix: &str, text: &[u8]) {
        let (mut line, most) = ([prefix.as_bytes(), text].concat(), self.max_printed_bytes.get());
        if most == 0 || line.len() <= most {
            return self.print_line(line);
        }
        line.truncate(most);
        line.extend_from_slice(b" ...");
        self.print_line(line);
        if !self.hint_shown.replace(true) {
            self.print_line("<hint> The above reply was trimmed. Use 'maxlen 0' to disable trimming.");
        }
    }

    fn send(&self) {
        let lines = std::mem::take(&mut *self.output_lines.borrow_mut());
        let mut bytes = format!("*{}\r\n", lines.len()).into_bytes();
        for line in lines {
            bytes.extend([b"+", line.as_slice(), b"\r\n"].concat());
        }
        self.console.borrow_mut().send(bytes);
    }

    fn stop(&self, lua: &Lua, reason: &str) -> mlua::Result<()> {
        self.is_debugger_running.set(true);
        let outcome = self.read_commands(lua, reason);
        self.is_debugger_running.set(false);
        outcome
    }

    fn read_commands(&self, lua: &Lua, reason: &str) -> mlua::Result<()> {
        self.print_line(format!("* Stopped at {}, stop reason = {reason}", self.current_line.get()));
        self.print_source(self.current_line.get());
        loop {
            self.send();
            let command = self.console.borrow_mut().receive(&|| self.interpreter_state.is_stopped());
            let Some(command) = command else {
                // The client has disconnected, so run the script to its end without the debugger.
                self.is_disconnected.set(true);
                self.breakpoints.borrow_mut().clear();
                return Ok(());
            };
            let words: Vec<String> =
                command.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match self.run_command(lua, &words) {
                NextStep::Wait => {}
                NextStep::Continue => return Ok(()),
                NextStep::Abort => return Err(mlua::Error::runtime("script aborted for user request")),
            }
        }
    }

    fn run_command(&self, lua: &Lua, words: &[&str]) -> NextStep {
        let Some((command, rest)) = words.split_first() else { return NextStep::Wait };
        let command = command.to_ascii_lowercase();
        match (command.as_str(), rest) {
            ("h" | "help", []) => HELP.lines().for_each(|line| self.print_line(line)),
            ("s" | "step" | "n" | "next", []) => {
                self.is_stepping.set(true);
                return NextStep::Continue;
            }
            ("c" | "continue", []) => return NextStep::Continue,
            ("a" | "abort", []) => return NextStep::Abort,
            ("t" | "trace", []) => self.print_stack_trace(lua),
            ("max" | "maxlen", [] | [_]) => self.set_max_printed_bytes(rest.first().copied()),
            ("b" | "break", []) => self.list_breakpoints(),
            ("b" | "break", [word]) => self.set_breakpoint(word),
            ("e" | "eval", [_, ..]) => self.eval(lua, &rest.join(" ")),
            ("r" | "redis" | "v" | "valkey" | "server", [_, ..]) => self.run_server_command(lua, rest),

            ("p" | "print", [name]) => self.print_variable(lua, name),
            ("p" | "print", []) => self.print_variables(lua),
            ("l" | "list", [] | [_] | [_, _]) => {
                let number = |place: usize| rest.get(place).map(|word| leading_number(word));
                self.list_source(number(0).unwrap_or(0), number(1).unwrap_or(CONTEXT_LINES));
            }
            ("w" | "whole", []) => self.list_source(1, 1_000_000),
            _ => self.print_line("<error> Unknown debugger command or wrong number of arguments."),
        }
        NextStep::Wait
    }

    fn print_source(&self, number: usize) {
        let text =
            self.source.get(number.wrapping_sub(1)).map_or("<out of range source code line>", String::as_str);
        let mark = match (number == self.current_line.get(), self.breakpoints.borrow().contains(&number)) {
            (true, true) => "->#",
            (true, false) => "-> ",
            (false, true) => "  #",
            (false, false) => "   ",
        };
        self.print_line(format!("{mark}{number:<3} {text}"));
    }

    fn list_source(&self, line: i64, context: i64) {
        let around = if line <= 0 { self.current_line.get() as i64 } else { line };
        for number in 1..=self.source.len() {
            let away = number as i64 - around;
            if away.saturating_abs() <= context {
                self.print_source(number);
            }
        }
    }

    fn set_max_printed_bytes(&self, word: Option<&str>) {
        let Some(word) = word else {
            return self.print_line(format!("Current maxlen is {}", self.max_printed_bytes.get()));
        };
        let Ok(most) = word.parse::<usize>() else { return self.print_line("<error> Invalid maxlen value.") };
        self.hint_shown.set(true);
        self.max_printed_bytes.set(if most == 0 { 0 } else { most.max(LOWEST_MAX_PRINTED_BYTES) });
        self.print_line(match self.max_printed_bytes.get() {
            0 => "<value> replies are not truncated.".to_owned(),
            most => format!("<value> replies are truncated at {most} bytes."),
        });
    }

    fn list_breakpoints(&self) {
        let lines = self.breakpoints.borrow().clone();
        match lines.len() {
            0 => self.print_line("No breakpoints set. Use 'b <line>' to add one."),
            count => self.print_line(format!("{count} breakpoints set:")),
        }
        lines.iter().for_each(|line| self.print_source(*line));
    }

    fn set_breakpoint(&self, word: &str) {
        match word.parse::<i64>() {
            Err(_) => self.print_line(format!("Invalid argument:'{word}'")),
            Ok(0) => {
                self.breakpoints.borrow_mut().clear();
                self.print_line("All breakpoints removed.");
            }
            Ok(line) if line > 0 => self.add_breakpoint(line as usize),
            Ok(line) => {
                let mut lines = self.breakpoints.borrow_mut();
                let place = lines.iter().position(|known| *known as u64 == line.unsigned_abs());
                self.print_line(match place.map(|place| lines.remove(place)) {
                    Some(_) => "Breakpoint removed.",
                    None => "No breakpoint in the specified line.",
                });
            }
        }
    }

    fn add_breakpoint(&self, line: usize) {
        if self.breakpoints.borrow().len() >= MAX_BREAKPOINTS {
            return self.print_line("Too many breakpoints set.");
        }
        if line > self.source.len() || self.breakpoints.borrow().contains(&line) {
            return self.print_line("Wrong line number.");
        }
        self.breakpoints.borrow_mut().push(line);
        self.list_source(line as i64, 1);
    }

    /// Prints the stack of the script's functions, innermost first.
    fn print_stack_trace(&self, lua: &Lua) {
        let mut begin = "In";
        for level in 0.. {
            let found = lua.inspect_stack(level, |debug| {
                let own = debug.source().source.is_some_and(|source| source == SCRIPT_CHUNK_NAME);
                let name = debug.names().name.map(|name| name.into_owned());
                (own, name, debug.current_line())
            });
            let Some((own, name, line)) = found else { break };
            if let (true, Some(line)) = (own, line) {
                self.print_line(format!("{begin} {}:", name.as_deref().unwrap_or("top level")));
                self.print_source(line);
                begin = "From";
            }
        }
    }

    fn eval(&self, lua: &Lua, code: &str) {
        let compile = |text: String| {
            let chunk = lua.load(text).set_name("@ldb_eval").set_mode(mlua::chunk::ChunkMode::Text);
            chunk.set_environment(self.environment.clone()).into_function()
        };
        let compiled = compile(format!("return {code}")).or_else(|_| compile(code.to_owned()));
        let function = match compiled {
            Ok(function) => function,
            Err(error) => {
                return self.print_line(format!("Error compiling code: {}", error_text(&error)));
            }
        };
        match function.call::<Value>(()) {
            Ok(value) => self.print_shortened("<retval> ", &show::format_value(&value)),
            Err(error) => self.print_line(format!("<error> {}", error_text(&error))),
        }
    }

    /// Executes a command on behalf of the user; [`Debugger::print_call`] prints the reply.
    fn run_server_command(&self, lua: &Lua, words: &[&str]) {
        let step = self.is_stepping.replace(true);
        let ran = self.environment.get::<Table>("redis").and_then(|redis| {
            let words = words.iter().map(|word| lua.create_string(word).map(Value::String));
            redis.get::<Function>("pcall")?.call::<Value>(words.collect::<mlua::Result<MultiValue>>()?)
        });
        if let Err(error) = ran {
            self.print_line(format!("<error> {}", error_text(&error)));
        }
        self.is_stepping.set(step);
    }

    /// The variables in scope, and the number of those that belong to the innermost function.
    fn variables_in_scope(&self, lua: &Lua) -> (Vec<(String, Value)>, usize) {
        // During an inserted call, that call is one level above the function.
        let depth = stack_depth(lua);
        let scopes = self.scopes.borrow();
        let in_call = lua.inspect_stack(0, |debug| debug.source().what == "C").unwrap_or(false);
        let Some(scope) = scopes.get(&(depth - usize::from(in_call))).cloned() else {
            return (Vec::new(), 0);
        };
        drop(scopes);
        let Ok(values) = scope.call::<MultiValue>(()) else { return (Vec::new(), 0) };
        let mut values = values.into_iter();
        let own = values.next().and_then(|own| own.as_usize()).unwrap_or(0);
        let mut pairs = Vec::new();
        while let (Some(Value::String(name)), value) = (values.next(), values.next()) {
            pairs.push((name.to_string_lossy(), value.unwrap_or(Value::Nil)));
        }
        (pairs, own)
    }

    fn print_variables(&self, lua: &Lua) {
        let (pairs, own) = self.variables_in_scope(lua);
        for (name, value) in pairs.iter().take(own) {
            self.print_shortened(&format!("<value> {name} = "), &show::format_value(value));
        }
        if own == 0 {
            self.print_line("No local variables in the current context.");
        }
    }

    fn print_variable(&self, lua: &Lua, name: &str) {
        let (mut pairs, own) = self.variables_in_scope(lua);
        // Search the function's own variables first, then those of the enclosing functions, innermost first.
        let mut outer = pairs.split_off(own.min(pairs.len()));
        outer.append(&mut pairs);
        if let Some((_, value)) = outer.iter().rev().find(|(known, _)| known == name) {
            return self.print_shortened("<value> ", &show::format_value(value));
        }
        match self.environment.get::<Value>(name) {
            Ok(value) if matches!(name, "KEYS" | "ARGV") => {
                self.print_shortened("<value> ", &show::format_value(&value));
            }
            _ => self.print_line("No such variable."),
        }
    }
}

/// The number at the beginning of `word`, or 0 if there is none.
fn leading_number(word: &str) -> i64 {
    let digits = word.strip_prefix('-').unwrap_or(word).bytes().take_while(u8::is_ascii_digit).count();
    let end = digits + usize::from(word.starts_with('-'));
    word.get(..end).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The number of functions on the Lua stack.
fn stack_depth(lua: &Lua) -> usize {
    (0..).find(|level| lua.inspect_stack(*level, |_| ()).is_none()).unwrap_or(0)
}

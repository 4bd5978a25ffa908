//! The debugger of scripts (SCRIPT DEBUG): stops at lines, shows variables and the stack, and goes on.
//!
//! A hook of Lua's is called at each line of the script. Where the debugger stops, it reads commands from its
//! [`Console`] until one of them says to go on. What it says are lines, sent together as an array of simple strings, in
//! the words that `redis-cli --ldb` knows. Locals come from calls that the script gets for that ([`scopes`]).

mod scopes;
mod show;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mlua::{Function, Lua, MultiValue, Table, Value};
use resp::Args;

use crate::libraries::complaint_text;
use crate::running::Running;

/// Lines around the current one that are listed.
const CONTEXT: i64 = 5;
const MOST_BREAKPOINTS: usize = 64;
/// Bytes of a value that are shown, unless told otherwise, and the least that one may choose.
const MAX_SHOWN: usize = 256;
const LEAST_SHOWN: usize = 60;
/// The name of the script's own text in Lua's debug information.
pub(crate) const SOURCE: &str = "@user_script";

const HELP: &str = include_str!("debugger/help.txt");

/// The client's side of a debugger: takes its output and gives it commands.
pub trait Console: std::fmt::Debug {
    /// Takes bytes for the client.
    fn send(&mut self, bytes: Vec<u8>);

    /// The words of the next command; waits for it. `None`: the client has gone, or `stopped` says that the script is
    /// to end.
    fn receive(&mut self, stopped: &dyn Fn() -> bool) -> Option<Vec<Vec<u8>>>;
}

/// The next step of a stopped script.
enum Then {
    Stay,
    GoOn,
    Abort,
}

/// The debugger of one script.
#[derive(Debug)]
pub(crate) struct Debugger {
    console: RefCell<Box<dyn Console>>,
    source: Vec<String>,
    /// The globals of the script.
    environment: Table,
    running: Arc<Running>,
    /// The lines whose first instruction is a call that shows the variables in scope.
    leading: HashSet<usize>,
    /// Functions that return the variables in scope, by the depth of their function in the stack.
    scopes: RefCell<HashMap<usize, Function>>,
    breakpoints: RefCell<Vec<usize>>,
    lines: RefCell<Vec<String>>,
    line: Cell<usize>,
    step: Cell<bool>,
    /// The script asked to stop.
    asked: Cell<bool>,
    /// The reason to stop as soon as the variables in scope have been shown, if there is one.
    pending: Cell<Option<&'static str>>,
    max_shown: Cell<usize>,
    hinted: Cell<bool>,
    gone: Cell<bool>,
    /// The code that runs is the debugger's own, so it is not to be debugged.
    stopped: Cell<bool>,
}

/// A script as it is to be compiled for its debugger, with the lines that begin by showing the variables in scope.
pub(crate) fn prepare(body: &[u8]) -> Option<(Vec<u8>, HashSet<usize>)> {
    let shown = scopes::show(body).ok()?;
    let mut text = format!("local {} = ... return function(...) ", scopes::HOOK).into_bytes();
    text.extend_from_slice(&shown.text);
    text.extend_from_slice(b"\nend");
    Some((text, shown.leading))
}

impl Debugger {
    pub(crate) fn new(
        text: &[u8],
        environment: Table,
        running: Arc<Running>,
        console: Box<dyn Console>,
        leading: HashSet<usize>,
    ) -> Self {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let source = String::from_utf8_lossy(text).split('\n').map(str::to_owned).collect();
        Self {
            console: RefCell::new(console),
            source,
            environment,
            running,
            leading,
            scopes: RefCell::default(),
            breakpoints: RefCell::default(),
            lines: RefCell::default(),
            line: Cell::new(0),
            step: Cell::new(true),
            asked: Cell::new(false),
            pending: Cell::new(None),
            max_shown: Cell::new(MAX_SHOWN),
            hinted: Cell::new(false),
            gone: Cell::new(false),
            stopped: Cell::new(false),
        }
    }

    /// The script has come to another line.
    pub(crate) fn on_line(&self, lua: &Lua, line: usize) -> mlua::Result<()> {
        if self.stopped.get() {
            return Ok(());
        }
        self.line.set(line);
        // A loop that comes back to its line shows nothing there: the next line is as good.
        let missed = self.pending.take();
        let reason = if self.asked.take() {
            "redis.breakpoint() called"
        } else if self.breakpoints.borrow().contains(&line) {
            "break point"
        } else if let Some(reason) = missed {
            reason
        } else if self.step.get() {
            "step over"
        } else {
            return Ok(());
        };
        self.step.set(false);
        if self.leading.contains(&line) {
            self.pending.set(Some(reason));
            return Ok(());
        }
        self.stop(lua, reason)
    }

    /// The script shows the variables in scope: `scope` returns how many of them are the running function's own, then
    /// names and values.
    pub(crate) fn on_scope(&self, lua: &Lua, scope: Function) -> mlua::Result<()> {
        if self.stopped.get() {
            return Ok(());
        }
        // This call stands above the function.
        self.scopes.borrow_mut().insert(depth(lua) - 1, scope);
        match self.pending.take() {
            Some(reason) => self.stop(lua, reason),
            None => Ok(()),
        }
    }

    /// `redis.breakpoint()`
    pub(crate) fn break_at_next(&self) {
        self.asked.set(!self.gone.get());
    }

    /// `redis.debug(...)`
    pub(crate) fn write(&self, values: &MultiValue) {
        let values: Vec<String> = values.iter().map(show::value).collect();
        self.say(format!("<debug> line {}: {}", self.line.get(), values.join(", ")));
    }

    /// A command of the script's has run.
    pub(crate) fn on_call(&self, request: Args<'_>, reply: &[u8]) {
        if !self.step.get() {
            return;
        }
        let words: Vec<_> = request.iter().map(String::from_utf8_lossy).collect();
        self.say(format!("<redis> {}", words.join(" ")));
        if let Some(error) = reply.strip_prefix(b"-") {
            let error = String::from_utf8_lossy(error);
            let error = error.trim_end();
            let refused = [
                "ERR Unknown command called",
                "ERR Wrong number of args",
                "ERR This Valkey command is not allowed",
            ];
            match error.strip_prefix("ERR ").filter(|_| refused.iter().any(|text| error.starts_with(text))) {
                Some(text) => return self.say(format!("<error> {text}")),
                None => self.say(format!("<error> -{error}")),
            }
        }
        self.say_short("<reply> ", &show::reply(reply));
    }

    /// The script has ended: sends the output so far, and that it has ended.
    pub(crate) fn end(&self) {
        self.say("<endsession>");
        self.send();
    }

    fn say(&self, line: impl AsRef<str>) {
        self.lines.borrow_mut().push(line.as_ref().replace(['\r', '\n'], " "));
    }

    fn say_short(&self, begin: &str, text: &str) {
        let (line, most) = (format!("{begin}{text}"), self.max_shown.get());
        if most == 0 || line.len() <= most {
            return self.say(line);
        }
        let end = (0..=most).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
        self.say(format!("{} ...", &line[..end]));
        if !self.hinted.replace(true) {
            self.say("<hint> The above reply was trimmed. Use 'maxlen 0' to disable trimming.");
        }
    }

    fn send(&self) {
        let lines = std::mem::take(&mut *self.lines.borrow_mut());
        let mut bytes = format!("*{}\r\n", lines.len()).into_bytes();
        for line in lines {
            bytes.extend_from_slice(format!("+{line}\r\n").as_bytes());
        }
        self.console.borrow_mut().send(bytes);
    }

    fn stop(&self, lua: &Lua, reason: &str) -> mlua::Result<()> {
        self.stopped.set(true);
        let outcome = self.converse(lua, reason);
        self.stopped.set(false);
        outcome
    }

    fn converse(&self, lua: &Lua, reason: &str) -> mlua::Result<()> {
        self.say(format!("* Stopped at {}, stop reason = {reason}", self.line.get()));
        self.say_source(self.line.get());
        loop {
            self.send();
            let command = self.console.borrow_mut().receive(&|| self.running.is_stopped());
            let Some(command) = command else {
                // It runs to its end as if there were no debugger.
                self.gone.set(true);
                self.breakpoints.borrow_mut().clear();
                return Ok(());
            };
            let words: Vec<String> =
                command.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match self.carry_out(lua, &words) {
                Then::Stay => {}
                Then::GoOn => return Ok(()),
                Then::Abort => return Err(mlua::Error::runtime("script aborted for user request")),
            }
        }
    }

    fn carry_out(&self, lua: &Lua, words: &[&str]) -> Then {
        let Some((command, rest)) = words.split_first() else { return Then::Stay };
        let command = command.to_ascii_lowercase();
        match (command.as_str(), rest) {
            ("h" | "help", _) => HELP.lines().for_each(|line| self.say(line)),
            ("s" | "step" | "n" | "next", _) => {
                self.step.set(true);
                return Then::GoOn;
            }
            ("c" | "continue", _) => return Then::GoOn,
            ("a" | "abort", _) => return Then::Abort,
            ("t" | "trace", _) => self.trace(lua),
            ("m" | "maxlen", [] | [_]) => self.set_max_shown(rest.first().copied()),
            ("b" | "break", _) => self.set_breakpoints(rest),
            ("e" | "eval", [_, ..]) => self.eval(lua, &rest.join(" ")),
            ("r" | "redis", [_, ..]) => self.call(lua, rest),

            ("p" | "print", [name]) => self.print(lua, name),
            ("p" | "print", _) => self.print_all(lua),
            ("l" | "list", [] | [_] | [_, _]) => {
                let number = |place: usize| rest.get(place).map(|word| word.parse().unwrap_or(0));
                self.list(number(0).unwrap_or(0), number(1).unwrap_or(CONTEXT));
            }
            ("w" | "whole", _) => self.list(1, 1_000_000),
            _ => self.say("<error> Unknown debugger command or wrong number of arguments."),
        }
        Then::Stay
    }

    fn say_source(&self, number: usize) {
        let text =
            self.source.get(number.wrapping_sub(1)).map_or("<out of range source code line>", String::as_str);
        let mark = match (number == self.line.get(), self.breakpoints.borrow().contains(&number)) {
            (true, true) => "->#",
            (true, false) => "-> ",
            (false, true) => "  #",
            (false, false) => "   ",
        };
        self.say(format!("{mark}{number:<3} {text}"));
    }

    fn list(&self, around: i64, context: i64) {
        let around = if around == 0 { self.line.get() as i64 } else { around };
        for number in 1..=self.source.len() {
            let away = number as i64 - around;
            if away.saturating_abs() <= context {
                self.say_source(number);
            }
        }
    }

    fn set_max_shown(&self, word: Option<&str>) {
        if let Some(word) = word {
            let most: usize = word.parse().unwrap_or(0);
            self.max_shown.set(if most == 0 { 0 } else { most.max(LEAST_SHOWN) });
            self.hinted.set(true);
        }
        self.say(match self.max_shown.get() {
            0 => "<value> replies are unlimited.".to_owned(),
            most => format!("<value> replies are truncated at {most} bytes."),
        });
    }

    fn set_breakpoints(&self, words: &[&str]) {
        if words.is_empty() {
            let lines = self.breakpoints.borrow().clone();
            match lines.len() {
                0 => self.say("No breakpoints set. Use 'b <line>' to add one."),
                count => self.say(format!("{count} breakpoints set:")),
            }
            lines.iter().for_each(|line| self.say_source(*line));
        }
        for word in words {
            match word.parse::<i64>() {
                Err(_) => self.say(format!("Invalid argument:'{word}'")),
                Ok(0) => {
                    self.breakpoints.borrow_mut().clear();
                    self.say("All breakpoints removed.");
                }
                Ok(line) if line > 0 => self.add_breakpoint(line as usize),
                Ok(line) => {
                    let mut lines = self.breakpoints.borrow_mut();
                    let place = lines.iter().position(|known| *known as u64 == line.unsigned_abs());
                    self.say(match place.map(|place| lines.remove(place)) {
                        Some(_) => "Breakpoint removed.".to_owned(),
                        None => "No breakpoint in the specified line.".to_owned(),
                    });
                }
            }
        }
    }

    fn add_breakpoint(&self, line: usize) {
        if self.breakpoints.borrow().len() >= MOST_BREAKPOINTS {
            return self.say("Too many breakpoints set.");
        }
        if line > self.source.len() {
            return self.say("Wrong line number.");
        }
        self.breakpoints.borrow_mut().push(line);
        self.list(line as i64, 1);
    }

    /// The functions of the script that run, the innermost first.
    fn trace(&self, lua: &Lua) {
        let mut begin = "In";
        for level in 0.. {
            let found = lua.inspect_stack(level, |debug| {
                let own = debug.source().source.is_some_and(|source| source == SOURCE);
                let name = debug.names().name.map(|name| name.into_owned());
                (own, name, debug.current_line())
            });
            let Some((own, name, line)) = found else { break };
            if let (true, Some(line)) = (own, line) {
                self.say(format!("{begin} {}:", name.as_deref().unwrap_or("top level")));
                self.say_source(line);
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
        match compiled.and_then(|function| function.call::<Value>(())) {
            Ok(value) => self.say_short("<retval> ", &show::value(&value)),
            Err(error) => self.say(format!("<error> {}", complaint_text(&error))),
        }
    }

    /// Runs a command as the script would; its reply is shown by [`Debugger::on_call`].
    fn call(&self, lua: &Lua, words: &[&str]) {
        let step = self.step.replace(true);
        let ran = self.environment.get::<Table>("redis").and_then(|redis| {
            let words = words.iter().map(|word| lua.create_string(word).map(Value::String));
            redis.get::<Function>("pcall")?.call::<Value>(words.collect::<mlua::Result<MultiValue>>()?)
        });
        if let Err(error) = ran {
            self.say(format!("<error> {}", complaint_text(&error)));
        }
        self.step.set(step);
    }

    /// The names and values in scope, and how many are of the innermost function.
    fn scope(&self, lua: &Lua) -> (Vec<(String, Value)>, usize) {
        // While a scope is shown, that call stands above the function.
        let depth = depth(lua);
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

    fn print_all(&self, lua: &Lua) {
        let (pairs, own) = self.scope(lua);
        for (name, value) in pairs.iter().take(own) {
            self.say_short(&format!("<value> {name} = "), &show::value(value));
        }
        if own == 0 {
            self.say("No local variables in the current context.");
        }
    }

    fn print(&self, lua: &Lua, name: &str) {
        let (mut pairs, own) = self.scope(lua);
        // The innermost of that name: of the function's own, then of those around it.
        let mut outer = pairs.split_off(own.min(pairs.len()));
        outer.append(&mut pairs);
        if let Some((_, value)) = outer.iter().rev().find(|(known, _)| known == name) {
            return self.say_short("<value> ", &show::value(value));
        }
        match self.environment.get::<Value>(name) {
            Ok(value) if matches!(name, "KEYS" | "ARGV") => self.say_short("<value> ", &show::value(&value)),
            _ => self.say("No such variable."),
        }
    }
}

/// How many functions are within each other on the stack.
fn depth(lua: &Lua) -> usize {
    (0..).find(|level| lua.inspect_stack(*level, |_| ()).is_none()).unwrap_or(0)
}

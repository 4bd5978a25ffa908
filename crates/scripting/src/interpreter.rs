//! A thread's Lua interpreter: compiles scripts once, runs them, and enforces memory and time limits.
//!
//! Memory is limited by Lua's allocator. Calls to the server go through [`HostBridge`].
//!
//! A hook runs every [`INSTRUCTIONS_PER_CHECK`] instructions and checks whether the script may continue. To stop a
//! script, the hook is set to raise an error at every instruction, so that the script cannot continue by catching the
//! error with `pcall`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use mlua::{
    Either, Function, HookTriggers, IntoLua, Lua, LuaOptions, MultiValue, StdLib, Table, Value, VmState,
};
use resp::{Args, Protocol, Request, Writer};

use crate::answer::ReplyWriter;
use crate::bridge::{self, HostBridge};
use crate::cache::Scripts;
use crate::collector::GarbageCollector;
use crate::debugger::{self, DebugConsole, Debugger};
use crate::functions::Library;
use crate::libraries::server::question;
use crate::libraries::{FunctionLimits, JsonSettings, to_number};
use crate::number::{format_argument, format_g};
use crate::random::Random;
use crate::running::InterpreterState;
use crate::script::Script;
use crate::{answer, libraries};

/// Maximum memory of one Lua state in bytes. A string value of the default maximum length (512 MB) takes half of it.
const MAX_MEMORY_BYTES: usize = 1 << 30;
/// Minimum memory limit in bytes, regardless of `maxmemory`: enough to run a script and to read a value.
const MIN_MEMORY_BYTES: usize = 16 << 20;
/// Number of instructions between two checks whether the script must stop. They take about ten microseconds, or longer
/// if they copy long strings.
const INSTRUCTIONS_PER_CHECK: u32 = 10_000;
/// Argument buffers above this size in bytes are freed when the script ends.
pub(crate) const LARGE_REQUEST_BYTES: usize = 64 << 10;
/// Overhead of a string in a Lua table: header, table entry and entry in the string table.
const STRING_OVERHEAD_BYTES: usize = 64;
/// Log levels that `redis.log` accepts.
const LOG_NOTICE: u8 = 2;
const LOG_WARNING: u8 = 3;
/// Time limit in milliseconds for the registration code of a library that a client loads, as in Valkey.
const LOADING_TIMEOUT_MILLIS: u64 = 500;

const PRELUDE_SOURCE: &str = include_str!("prelude.lua");

/// The Lua error that ends a stopped script. The client does not receive this text but the reason for the stop.
const STOPPED_ERROR: &str = "the script is stopped";

/// Lua's error text for a refused allocation.
const OUT_OF_MEMORY_ERROR: &[u8] = b"not enough memory";

/// The reason why a command must stop the script that called it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// SCRIPT KILL or FUNCTION KILL stopped the script.
    Killed,
    /// The script needs undeclared slots that it cannot lock in this run, and must be restarted.
    Restart,
}

/// The reason why the running script or library is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopCause {
    Stopped(StopReason),
    /// The registration code of a library exceeded its time limit.
    TimedOut,
}

/// The destinations to which the effects of a script's commands are replicated (`redis.set_repl`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplicationTargets {
    /// Replicate to replicas and the append-only file (`REPL_ALL`).
    #[default]
    All,
    /// Write only to the append-only file (`REPL_AOF`).
    AppendOnlyFile,
    /// Replicate only to replicas (`REPL_REPLICA`).
    Replicas,
    /// Do not replicate (`REPL_NONE`).
    Nowhere,
}

impl ReplicationTargets {
    /// Converts the flags of `redis.set_repl`.
    fn from_flags(flags: i64) -> Self {
        match flags & 3 {
            0 => Self::Nowhere,
            1 => Self::AppendOnlyFile,
            2 => Self::Replicas,
            _ => Self::All,
        }
    }
}

/// The server that executes the commands of scripts.
pub trait LuaHost {
    /// Executes a command and returns its reply in wire format. `protocol` is the RESP version of the reply.
    ///
    /// # Errors
    /// The reason why the script must stop.
    fn call(&mut self, request: &Request, protocol: Protocol) -> Result<&[u8], StopReason>;

    /// Sets the destinations to which the following commands are replicated (`redis.set_repl`).
    fn set_replication_targets(&mut self, targets: ReplicationTargets);

    /// Whether the client has permission for this command; `None` if the command does not exist.
    fn is_permitted(&mut self, request: &Request) -> Option<bool>;
}

/// Options that all interpreters of a server share.
#[derive(Debug, Clone)]
pub struct InterpreterOptions {
    /// The value of `redis.REDIS_VERSION`.
    pub version: &'static str,
    /// The value of `redis.REDIS_VERSION_NUM`.
    pub version_number: u32,
    /// The value of `server.SERVER_NAME`.
    pub server_name: &'static str,
    /// Whether scripts have `getfenv` and `setfenv` (`lua-enable-deprecated-api`).
    pub deprecated_api: bool,
    /// A monotonic clock in nanoseconds.
    pub nanos: fn() -> u64,
    /// Receives the lines of `redis.log`: the level from 0 to 3, and the text.
    pub log_line: fn(u8, &str),
    /// Called when a script exceeds its timeout and becomes busy.
    pub on_busy: fn(),
}

/// The reason why a script ended without a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptFailure {
    /// The script does not compile; holds Lua's message.
    Syntax(String),
    /// The script raised an error.
    Error {
        /// The error text, including the position in the script.
        text: Vec<u8>,
        /// Whether the error statistics already include the error.
        is_counted: bool,
    },
    /// The script needs undeclared slots and must be run again, see [`StopReason::Restart`].
    Restart,
    /// The script exceeded its memory limit, possibly because of garbage ([`Interpreter::with_full_collection`]).
    Memory,
}

/// A call of a script or function by a client.
#[derive(Debug, Clone, Copy)]
pub struct Invocation<'a> {
    /// The complete request: EVAL or FCALL with its arguments.
    pub command: Args<'a>,
    /// Number of keys, which start at argument 3. The command must have at least that many arguments.
    pub key_count: usize,
    /// Time in milliseconds after which the script is busy; 0 means never.
    pub busy_timeout_millis: u64,
}

impl<'a> Invocation<'a> {
    fn keys(&self) -> Args<'a> {
        self.command.skip(3).prefix(self.key_count)
    }

    fn args(&self) -> Args<'a> {
        self.command.skip(3 + self.key_count)
    }
}

/// The value that a script returned. The script counts as running until [`Interpreter::write`] has written the value.
#[derive(Debug)]
#[must_use = "the script runs until what it returned is written"]
pub struct ScriptValue {
    value: Value,
    protocol: Protocol,
}

/// State that the hook reads to decide whether the script may continue.
#[derive(Debug)]
pub(crate) struct HookState {
    interpreter_state: Arc<InterpreterState>,
    nanos: fn() -> u64,
    on_busy: fn(),
    log_line: fn(u8, &str),
    /// The timeout in nanoseconds after which the script is busy; 0 means none.
    timeout_nanos: Cell<u64>,
    /// The reason to stop the script, or `None` while the script may continue.
    pub(crate) stop_cause: Cell<Option<StopCause>>,
    /// The position in the script at which SCRIPT KILL stopped it.
    kill_position: RefCell<Option<String>>,
    /// Whether the registration code of a library is running; it is stopped at the timeout.
    is_loading: Cell<bool>,
    pub(crate) collector: Rc<GarbageCollector>,
    /// The command that called the script.
    command: RefCell<Request>,
}

/// The Lua interpreter of one thread.
#[derive(Debug)]
pub struct Interpreter {
    lua: Lua,
    run: Function,
    run_function: Function,
    environment: Table,
    /// The connection to the server, and the Lua function that uses it.
    bridge: Rc<HostBridge>,
    call: Function,
    /// The prelude's function that creates the environment of a library.
    pub(crate) create_library_environment: Function,
    load_library: Function,
    compiled_scripts: HashMap<[u8; 40], Arc<Script>>,
    /// Compiled scripts by SHA1. They are stored in a Lua table, because there can be more scripts than mlua has
    /// references.
    compiled_functions: Table,
    /// The last script that ran. Clients mostly run the same script repeatedly, so this saves a lookup.
    last_script: Option<(Arc<Script>, Function)>,
    /// Compiled libraries by id.
    pub(crate) libraries: Table,
    pub(crate) known_libraries: HashMap<u64, Arc<Library>>,
    limits: FunctionLimits,
    /// The memory limit of the state in bytes.
    memory_limit: Rc<Cell<usize>>,
    json: JsonSettings,
    hook_state: Rc<HookState>,
}

/// The memory limit in bytes of one Lua state, for a server with `limit` as `maxmemory`.
#[must_use]
pub fn lua_memory_limit(limit: Option<usize>) -> usize {
    limit.map_or(MAX_MEMORY_BYTES, |limit| (limit / 2).clamp(MIN_MEMORY_BYTES, MAX_MEMORY_BYTES))
}

/// Sets the server's version and name in Lua, and the function that checks whether a script must stop.
fn set_server_identity(
    native: &Table,
    lua: &Lua,
    state: &Rc<HookState>,
    options: &InterpreterOptions,
) -> mlua::Result<()> {
    let state = state.clone();
    native.set("ending", lua.create_function(move |_, ()| Ok(state.stop_cause.get().is_some()))?)?;
    native.set("version", options.version)?;
    native.set("version_number", options.version_number)?;
    native.set("server_name", options.server_name)
}

fn error_without_trace(error: &mlua::Error) -> String {
    // Keep only the first line, because the other lines are Lua's stack trace.
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}

impl Interpreter {
    /// Creates an interpreter for one thread of the server.
    ///
    /// # Panics
    /// If the sandbox's own code fails.
    #[must_use]
    pub fn new(scripts: &Scripts, options: &InterpreterOptions) -> Self {
        let running = Arc::new(InterpreterState::new(&scripts.shutdown_stop_policy, &scripts.lua_bytes));
        let mut all = scripts.interpreter_states.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&running));
        drop(all);
        Self::build(running, options).expect("the sandbox runs in a fresh state")
    }

    fn build(running: Arc<InterpreterState>, options: &InterpreterOptions) -> mlua::Result<Self> {
        let lua = Lua::new_with(StdLib::ALL_SAFE, LuaOptions::default())?;
        let memory = Rc::new(Cell::new(MAX_MEMORY_BYTES));
        let collector = Rc::new(GarbageCollector::new(&memory, &running));
        GarbageCollector::set_full_collections(&lua, false);
        let watch = Rc::new(HookState {
            interpreter_state: running,
            nanos: options.nanos,
            on_busy: options.on_busy,
            log_line: options.log_line,
            timeout_nanos: Cell::new(0),
            stop_cause: Cell::new(None),
            kill_position: RefCell::default(),
            is_loading: Cell::new(false),
            collector: collector.clone(),
            command: RefCell::default(),
        });
        let (watched, json) = (watch.clone(), JsonSettings::default());
        let look = lua.create_function(move |lua, bytes: Option<f64>| {
            watched.collector.collect_garbage_if_due(lua, bytes.unwrap_or(0.0) as usize)?;
            on_instruction_count(lua, &watched).map(drop)
        })?;
        let random = Rc::new(Random::new((options.nanos)()));
        let limits = FunctionLimits { check_hook: look, memory_limit: memory.clone(), collector };
        let native = libraries::native_libraries(&lua, &random, &json, &limits, options.log_line)?;
        set_server_identity(&native, &lua, &watch, options)?;
        let mark = lua.create_table()?;
        native.set("mark", &mark)?;
        let bridge = HostBridge::new(watch.clone());
        let own = bridge.clone();
        let asked = lua.create_function(move |lua, args: MultiValue| answer_query(lua, &own, args))?;
        let call = bridge.create_call_function(&lua, &mark, asked)?;
        let getinfo = lua.create_function(stack_level_info)?;
        let prelude = lua.load(PRELUDE_SOURCE).set_name("=prelude").into_function()?;
        let parts: Table = prelude.call((native, getinfo, options.deprecated_api))?;
        let environment: Table = parts.raw_get("env")?;
        lua.set_globals(environment.clone())?;
        lua.set_named_registry_value("names", parts.raw_get::<Table>("names")?)?;
        install_hook(&lua, &watch)?;
        Ok(Self {
            run: parts.raw_get("run")?,
            run_function: parts.raw_get("run_function")?,
            create_library_environment: parts.raw_get("library_world")?,
            load_library: parts.raw_get("load_library")?,
            environment,
            bridge,
            call,
            compiled_scripts: HashMap::new(),
            compiled_functions: lua.create_table()?,
            last_script: None,
            libraries: lua.create_table()?,
            known_libraries: HashMap::new(),
            limits,
            memory_limit: memory,
            lua,
            json,
            hook_state: watch,
        })
    }

    /// The state of this interpreter that other threads can read, for example to kill its script.
    #[must_use]
    pub fn interpreter_state(&self) -> &Arc<InterpreterState> {
        &self.hook_state.interpreter_state
    }

    /// Returns the script with this SHA1 if this thread has compiled the script and not dropped the compiled form.
    #[must_use]
    #[inline]
    pub fn find_compiled(&self, sha: &[u8; 40]) -> Option<Arc<Script>> {
        let last = self.last_script.as_ref().filter(|(script, _)| script.sha == *sha);
        let found = last.map(|(script, _)| script).or_else(|| self.compiled_scripts.get(sha));
        found.filter(|script| script.is_live()).cloned()
    }

    /// Compiles a script unless this thread has already done so.
    ///
    /// # Errors
    /// [`ScriptFailure::Syntax`] if the script does not compile.
    pub fn compile(&mut self, script: &Arc<Script>) -> Result<(), ScriptFailure> {
        if self.last_script.as_ref().is_some_and(|(last, _)| last.sha == script.sha) {
            return Ok(());
        }
        let failed = |error: mlua::Error| internal_failure(format!("ERR {}", error_without_trace(&error)));
        if let Some(known) = self.compiled_scripts.get(&script.sha) {
            let function = self.compiled_functions.raw_get(to_lua_string(&script.sha)).map_err(failed)?;
            self.last_script = Some((known.clone(), function));
            return Ok(());
        }
        let function = self
            .compile_text(script.body(), &self.environment, "@user_script")
            .map_err(ScriptFailure::Syntax)?;
        self.compiled_functions.raw_set(to_lua_string(&script.sha), &function).map_err(failed)?;
        self.compiled_scripts.insert(script.sha, script.clone());
        self.last_script = Some((script.clone(), function));
        Ok(())
    }

    /// Drops compiled scripts and libraries that can no longer be called ([`Scripts::announced_release_count`]).
    pub fn drop_released(&mut self) {
        if self.last_script.as_ref().is_some_and(|(script, _)| !script.is_live()) {
            self.last_script = None;
        }
        let functions = &self.compiled_functions;
        for (sha, _) in self.compiled_scripts.extract_if(|_, script| !script.is_live()) {
            // Replacing a value by `nil` allocates nothing, so it cannot fail.
            let _ = functions.raw_set(to_lua_string(&sha), Value::Nil);
        }
        self.drop_stale_libraries();
        // The first collection runs finalizers, and only the second one frees the values that had them.
        for _ in 0..2 {
            let _ = self.hook_state.collector.collect_garbage(&self.lua);
        }
    }

    pub(crate) fn compile_text(
        &self,
        text: &[u8],
        environment: &Table,
        name: &str,
    ) -> Result<Function, String> {
        let chunk = self.lua.load(text).set_name(name).set_mode(mlua::chunk::ChunkMode::Text);
        let chunk = chunk.set_environment(environment.clone());
        chunk.into_function().map_err(|error| match error {
            mlua::Error::SyntaxError { message, .. } => message,
            error => error_without_trace(&error),
        })
    }

    /// Runs a compiled script.
    ///
    /// # Errors
    /// The script failed or must be restarted.
    ///
    /// # Panics
    /// If the script was not compiled.
    pub fn run(
        &mut self,
        script: &Script,
        call: &Invocation<'_>,
        host: &mut dyn LuaHost,
    ) -> Result<ScriptValue, ScriptFailure> {
        let last = self.last_script.as_ref().filter(|(last, _)| last.sha == script.sha);
        let (_, function) = last.expect("a script is compiled before it runs");
        self.begin_run(call.busy_timeout_millis, false, call.command);
        let ran = self.run_with_host(host, function, call);
        self.end_run(ran)
    }

    /// Runs a compiled script in the debugger. The interpreter must be discarded afterwards, since debugger calls may
    /// leave values on Lua's stack.
    ///
    /// # Errors
    /// As for [`Interpreter::run`].
    pub fn debug(
        &mut self,
        script: &Script,
        call: &Invocation<'_>,
        host: &mut dyn LuaHost,
        console: Box<dyn DebugConsole>,
    ) -> Result<ScriptValue, ScriptFailure> {
        let failed = |error: &mlua::Error| internal_failure(format!("ERR {}", error_without_trace(error)));
        let (shown, leading) = debugger::instrument_for_debugging(script.body()).unzip();
        let running = self.hook_state.interpreter_state.clone();
        let (environment, text) = (self.environment.clone(), &script.text);
        let debugger = Debugger::new(text, environment, running, console, leading.unwrap_or_default());
        let debugger = Rc::new(debugger);
        let compiled = self.compile_debugged(shown.as_deref(), &debugger);
        let plain = || self.compile_text(script.body(), &self.environment, debugger::SCRIPT_CHUNK_NAME);
        let function = compiled.map_or_else(plain, Ok).map_err(ScriptFailure::Syntax)?;
        self.begin_run(call.busy_timeout_millis, false, call.command);
        // Report busy to other clients immediately, because the user may pause the script for any length of time.
        self.hook_state.interpreter_state.set_busy(call.command.iter().map(<[u8]>::to_vec).collect());
        (self.hook_state.on_busy)();
        self.bridge.debugger.replace(Some(debugger.clone()));
        let ran = install_debug_hook(&self.lua, &self.hook_state, &debugger)
            .and_then(|()| self.run_with_host(host, &function, call));
        self.bridge.debugger.replace(None);
        let outcome = self.end_run(ran);
        debugger.end_session();
        install_hook(&self.lua, &self.hook_state).map_err(|error| failed(&error))?;
        outcome
    }

    /// Compiles the instrumented script. Returns `None` if the script could not be instrumented.
    fn compile_debugged(&self, instrumented: Option<&[u8]>, debugger: &Rc<Debugger>) -> Option<Function> {
        let maker = self.compile_text(instrumented?, &self.environment, debugger::SCRIPT_CHUNK_NAME).ok()?;
        let debugger = debugger.clone();
        let hook = self.lua.create_function(move |lua, scope| debugger.on_scope(lua, scope)).ok()?;
        maker.call(hook).ok()
    }

    /// Sets the keys and arguments as globals and runs a script.
    fn run_with_host(
        &self,
        host: &mut dyn LuaHost,
        script: &Function,
        call: &Invocation<'_>,
    ) -> mlua::Result<(bool, Value)> {
        let what = (&self.run, &self.call, script);
        self.run_guarded(host, || bridge::call_with_lists(&self.lua, what, [call.keys(), call.args()]))
    }

    /// Runs a compiled function of a library.
    ///
    /// # Errors
    /// As for [`Interpreter::run`].
    ///
    /// # Panics
    /// If the library was not compiled.
    pub fn run_function(
        &mut self,
        library: &Library,
        name: &str,
        call: &Invocation<'_>,
        host: &mut dyn LuaHost,
    ) -> Result<ScriptValue, ScriptFailure> {
        let number = library.id();
        self.begin_run(call.busy_timeout_millis, true, call.command);
        let ran = self.run_guarded(host, || {
            let compiled: Table = self.libraries.raw_get(number)?;
            let functions: Table = compiled.raw_get("functions")?;
            let (function, environment): (Function, Table) =
                (functions.raw_get(name)?, compiled.raw_get("env")?);
            let what = (&self.run_function, &self.call, environment, function);
            bridge::call_with_lists(&self.lua, what, [call.keys(), call.args()])
        });
        self.end_run(ran)
    }

    /// Runs the registration code of a library under the memory limit of scripts. With `has_time_limit`, a time limit
    /// applies as well.
    pub(crate) fn run_registration_code(
        &self,
        environment: &Table,
        chunk: &Function,
        has_time_limit: bool,
    ) -> Result<(bool, Value), String> {
        self.begin_run(if has_time_limit { LOADING_TIMEOUT_MILLIS } else { 0 }, true, Args::default());
        self.hook_state.is_loading.set(has_time_limit);
        let ran = self.with_limits(|| self.load_library.call((environment, chunk)));
        self.hook_state.is_loading.set(false);
        self.end_script();
        match self.take_stop_cause() {
            Some(StopCause::TimedOut) => Err("ERR FUNCTION LOAD timeout".to_owned()),
            Some(StopCause::Stopped(_)) => Err(format!("ERR {STOPPED_ERROR}")),
            None => ran.map_err(|error| format!("ERR {}", error_without_trace(&error))),
        }
    }

    /// Runs `f` under the memory limit.
    fn with_limits<R>(&self, f: impl FnOnce() -> mlua::Result<R>) -> mlua::Result<R> {
        // Add the size of the arguments, which are about to be copied into Lua.
        let words = self.hook_state.command.borrow();
        let taken = words.heap_bytes() + words.args().len() * STRING_OVERHEAD_BYTES;
        drop(words);
        self.hook_state.collector.collect_garbage_if_due(&self.lua, taken)?;
        self.lua.set_memory_limit(self.memory_limit.get())?;
        let ran = f();
        self.lua.set_memory_limit(0)?;
        ran
    }

    /// Frees all garbage and runs `run` with full collections, which let no garbage accumulate.
    pub fn with_full_collection<R>(&mut self, run: impl FnOnce(&mut Self) -> R) -> R {
        let _ = self.hook_state.collector.collect_garbage(&self.lua);
        GarbageCollector::set_full_collections(&self.lua, true);
        let ran = run(self);
        GarbageCollector::set_full_collections(&self.lua, false);
        ran
    }

    /// If the script was stopped, returns the reason and resets the hook for the next script.
    fn take_stop_cause(&self) -> Option<StopCause> {
        let ending = self.hook_state.stop_cause.take();
        if ending.is_some() {
            // The stopping hook runs at every instruction; restore the normal interval.
            let _ = install_hook(&self.lua, &self.hook_state);
        }
        ending
    }

    /// Limits the state's memory to half of `limit` (`maxmemory`). `None` means that `maxmemory` is not set.
    pub fn limit_memory(&self, limit: Option<usize>) {
        self.memory_limit.set(lua_memory_limit(limit));
    }

    fn begin_run(&self, timeout: u64, is_function: bool, command: Args<'_>) {
        self.bridge.protocol.set(Protocol::Resp2);
        self.hook_state.timeout_nanos.set(timeout.saturating_mul(1_000_000));
        self.hook_state.interpreter_state.begin((self.hook_state.nanos)(), is_function);
        let mut words = self.hook_state.command.borrow_mut();
        words.clear();
        command.iter().for_each(|word| words.push(word));
    }

    /// Runs `f` with `host` available to Lua, and resumes a panic of the host afterwards.
    fn run_guarded(
        &self,
        host: &mut dyn LuaHost,
        f: impl FnOnce() -> mlua::Result<(bool, Value)>,
    ) -> mlua::Result<(bool, Value)> {
        let ran = self.bridge.with_host_lent(host, || self.with_limits(f));
        if let Some(panic) = self.bridge.take_panic() {
            self.take_stop_cause();
            self.hook_state.interpreter_state.end();
            std::panic::resume_unwind(panic);
        }
        ran
    }

    /// Converts the result of a script run. A script that returned a value still counts as running.
    fn end_run(&mut self, result: mlua::Result<(bool, Value)>) -> Result<ScriptValue, ScriptFailure> {
        *self.json.borrow_mut() = Default::default();
        let failure = match (self.take_stop_cause(), result) {
            (Some(StopCause::Stopped(StopReason::Restart)), _) => ScriptFailure::Restart,
            (None, Ok((true, value))) => {
                return Ok(ScriptValue { value, protocol: self.bridge.protocol.get() });
            }
            (Some(_), _) => self.killed_failure(),
            (None, Ok((false, Value::String(text)))) if *text.as_bytes() == *OUT_OF_MEMORY_ERROR => {
                self.out_of_memory_failure()
            }
            (None, Ok((false, error))) => failure_from_error(&error),
            (None, Err(mlua::Error::MemoryError(_))) => self.out_of_memory_failure(),
            (None, Err(error)) => internal_failure(format!("ERR {}", error_without_trace(&error))),
        };
        self.end_script();
        Err(failure)
    }

    fn out_of_memory_failure(&self) -> ScriptFailure {
        match self.hook_state.collector.may_have_missed_garbage() {
            true => ScriptFailure::Memory,
            false => internal_failure("ERR not enough memory".to_owned()),
        }
    }

    fn killed_failure(&self) -> ScriptFailure {
        let by = if self.hook_state.interpreter_state.is_function() { "FUNCTION" } else { "SCRIPT" };
        let place = self.hook_state.kill_position.take();
        let place = place.map(|place| format!(" script: on {place}.")).unwrap_or_default();
        internal_failure(format!("ERR Script killed by user with {by} KILL.{place}"))
    }

    /// Writes the script's value as a reply and ends the script. `on_error` is called for each error in the value; its
    /// second argument says whether the error statistics already include the error.
    ///
    /// # Errors
    /// The script was stopped. Nothing is written if the conversion of the value was interrupted.
    pub fn write(
        &mut self,
        value: &ScriptValue,
        reply: &mut Writer<'_>,
        on_error: &mut dyn FnMut(&[u8], bool),
    ) -> Result<(), ScriptFailure> {
        let start = reply.len();
        let mut answer = ReplyWriter {
            protocol: value.protocol,
            reply,
            step_counter: self.limits.step_counter(),
            on_error,
        };
        let written = answer.write(&value.value, 0);
        let stopped = self.take_stop_cause().is_some();
        if let Err(complaint) = &written {
            answer.reply.truncate(start);
            if !stopped {
                let complaint = format!("ERR {complaint}");
                answer.write_error(&answer::to_one_line(complaint.as_bytes(), true), false);
            }
        }
        let ended = if stopped { Err(self.killed_failure()) } else { Ok(()) };
        self.end_script();
        ended
    }

    /// Marks the script or library code as ended.
    fn end_script(&self) {
        self.hook_state.interpreter_state.end();
        self.hook_state.kill_position.take();
        let mut words = self.hook_state.command.borrow_mut();
        if words.heap_bytes() > LARGE_REQUEST_BYTES {
            *words = Request::new();
        }
        self.bridge.release_large_request();
        self.hook_state.collector.collect_garbage_after_script(&self.lua);
    }

    pub(crate) fn empty_table(&self) -> mlua::Result<Table> {
        self.lua.create_table()
    }

    /// Memory that the Lua state uses, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.lua.used_memory()
    }
}

/// The result of an internal query: a value, or an error that the caller receives after a `nil`.
type QueryResult = Result<Value, Value>;

/// Handles an internal query of a script. The query's number follows the query marker in `args`.
fn answer_query(lua: &Lua, bridge: &HostBridge, mut args: MultiValue) -> mlua::Result<QueryResult> {
    args.pop_front();
    let operation = args.pop_front();
    let operation = operation.as_ref().and_then(to_number).unwrap_or(0.0) as i64;
    let argument = args.front().and_then(to_number).unwrap_or(0.0) as i64;
    let done = Ok(Ok(Value::Nil));
    match operation {
        question::SET_PROTOCOL => {
            bridge.protocol.set(if argument == 3 { Protocol::Resp3 } else { Protocol::Resp2 });
        }
        question::SET_REPLICATION => {
            let targets = ReplicationTargets::from_flags(argument);
            bridge.with_host(|host| host.set_replication_targets(targets));
        }
        question::IS_PERMITTED => {
            let mut request = Request::new();
            if let Err(complaint) = read_request(&args, &mut request) {
                return query_error(lua, complaint);
            }
            return match bridge.with_host(|host| host.is_permitted(&request)).flatten() {
                Some(may) => Ok(Ok(Value::Boolean(may))),
                None => query_error(lua, "Invalid command passed to server.acl_check_cmd()"),
            };
        }
        question::BREAKPOINT => {
            let debugger = bridge.debugger.borrow();
            debugger.as_ref().inspect(|debugger| debugger.stop_at_next_line());
            return Ok(Ok(Value::Boolean(debugger.is_some())));
        }
        question::DEBUG => {
            if let Some(debugger) = &*bridge.debugger.borrow() {
                debugger.print_values(&args);
            }
        }
        _ => {}
    }
    done
}

/// Reads the arguments of the command that an internal query refers to.
fn read_request(args: &MultiValue, request: &mut Request) -> Result<(), &'static str> {
    request.clear();
    for arg in args {
        match (arg, to_number(arg)) {
            (Value::String(text), _) => request.push(&text.as_bytes()),
            (_, Some(number)) => request.push(format_argument(number).as_bytes()),
            (_, None) => return Err("Command arguments must be strings or integers"),
        }
    }
    if args.is_empty() {
        return Err("Please specify at least one argument for this call");
    }
    Ok(())
}

/// Converts `message` to an error text in Lua, which the prelude raises.
fn query_error(lua: &Lua, message: &str) -> mlua::Result<QueryResult> {
    Ok(Err(message.into_lua(lua)?))
}

/// Bytes that mlua converts to a Lua string.
struct LuaBytes<'a>(&'a [u8]);

impl IntoLua for LuaBytes<'_> {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        lua.create_string(self.0).map(Value::String)
    }
}

/// Converts bytes to a Lua string. UTF-8 text, the usual case, is pushed without an mlua reference.
fn to_lua_string(bytes: &[u8]) -> Either<&str, LuaBytes<'_>> {
    std::str::from_utf8(bytes).map_or(Either::Right(LuaBytes(bytes)), Either::Left)
}

/// The fields of `debug.getinfo` for a stack level that the prelude requests.
fn stack_level_info(lua: &Lua, level: usize) -> mlua::Result<Option<Table>> {
    let found = lua.inspect_stack(level, |debug| {
        let source = debug.source();
        let text = source.source.map(|source| source.into_owned()).unwrap_or_default();
        (text, source.what, debug.current_line())
    });
    let Some((source, what, line)) = found else { return Ok(None) };
    let table = lua.create_table_with_capacity(0, 3)?;
    table.raw_set("source", source)?;
    table.raw_set("what", what)?;
    table.raw_set("currentline", line.map_or(-1, |line| line as i64))?;
    Ok(Some(table))
}

/// Converts the error that ended a script to the failure for the client.
fn failure_from_error(error: &Value) -> ScriptFailure {
    let Value::Table(table) = error else {
        return match error {
            Value::String(text) => {
                let text = [b"ERR ", &*answer::to_one_line(&text.as_bytes(), true)].concat();
                ScriptFailure::Error { text, is_counted: false }
            }
            Value::Error(error) => internal_failure(format!("ERR {}", error_without_trace(error))),
            _ => internal_failure("ERR execution failure".to_owned()),
        };
    };
    let counted = table.raw_get("ignore_error_stats_update").unwrap_or(false);
    let source: Option<mlua::LuaString> = table.raw_get("source").ok().flatten();
    let line: Option<i64> = table.raw_get("line").ok().flatten();
    let mut text = error_text(table);
    if let (Some(source), Some(line)) = (source, line) {
        let place = [b" script: on ", &*source.as_bytes(), format!(":{line}.").as_bytes()].concat();
        text.extend(answer::to_one_line(&place, true));
    }
    ScriptFailure::Error { text, is_counted: counted }
}

/// A failure caused by the server rather than by the script.
fn internal_failure(text: String) -> ScriptFailure {
    ScriptFailure::Error { text: text.into_bytes(), is_counted: false }
}

/// The text of an error that is a table, from its field `err`.
pub(crate) fn error_text(table: &Table) -> Vec<u8> {
    match table.raw_get("err") {
        Ok(Value::String(text)) => answer::to_one_line(&text.as_bytes(), true),
        Ok(number @ (Value::Integer(_) | Value::Number(_))) => {
            format_g(to_number(&number).unwrap_or_default(), 14).into_bytes()
        }
        _ => b"ERR unknown error".to_vec(),
    }
}

/// Installs the hook that checks every `INSTRUCTIONS_PER_CHECK` instructions whether the script may continue.
fn install_hook(lua: &Lua, hook_state: &Rc<HookState>) -> mlua::Result<()> {
    let watch = hook_state.clone();
    lua.set_global_hook(HookTriggers::new().every_nth_instruction(INSTRUCTIONS_PER_CHECK), move |lua, _| {
        on_instruction_count(lua, &watch)
    })
}

/// Installs a hook that fails every further instruction of the stopped script, and returns the same error.
pub(crate) fn stopped_error(lua: &Lua, hook_state: &Rc<HookState>) -> mlua::Error {
    check_stop(lua, hook_state).err().unwrap_or_else(|| mlua::Error::runtime(STOPPED_ERROR))
}

/// Stops the script: every further instruction fails.
fn check_stop(lua: &Lua, hook_state: &Rc<HookState>) -> mlua::Result<()> {
    let watch = hook_state.clone();
    lua.set_global_hook(HookTriggers::new().every_nth_instruction(1), move |lua, _| {
        on_instruction_count(lua, &watch)
    })
}

/// Installs the debugger's line hook in addition to the check for a stop.
fn install_debug_hook(lua: &Lua, hook_state: &Rc<HookState>, debugger: &Rc<Debugger>) -> mlua::Result<()> {
    let (watch, debugger) = (hook_state.clone(), debugger.clone());
    let triggers = HookTriggers::new().every_line().every_nth_instruction(INSTRUCTIONS_PER_CHECK);
    lua.set_global_hook(triggers, move |lua, debug| {
        if debug.event() != mlua::debug::DebugEvent::Line {
            return on_instruction_count(lua, &watch);
        }
        let line = debug.current_line().filter(|_| {
            let source = debug.source().source;
            source.is_some_and(|source| source == debugger::SCRIPT_CHUNK_NAME)
        });
        line.map_or(Ok(()), |line| debugger.on_line(lua, line)).map(|()| VmState::Continue)
    })
}

/// The script's current position (source and line), skipping other code on the stack.
fn position_in_script(lua: &Lua) -> Option<String> {
    for level in 0.. {
        let found = lua.inspect_stack(level, |debug| {
            let source = debug.source().source.filter(|source| source.starts_with("@user_"));
            source.zip(debug.current_line()).map(|(source, line)| format!("{source}:{line}"))
        });
        match found {
            None => break,
            Some(None) => {}
            Some(place) => return place,
        }
    }
    None
}

fn on_instruction_count(lua: &Lua, hook_state: &Rc<HookState>) -> mlua::Result<VmState> {
    hook_state.collector.collect_garbage_if_due(lua, 0)?;
    if hook_state.collector.start_full_collections_if_due(lua.used_memory()) {
        GarbageCollector::set_full_collections(lua, true);
    }
    let running = &hook_state.interpreter_state;
    let timeout = hook_state.timeout_nanos.get();
    let is_over = || running.elapsed_nanos((hook_state.nanos)()) > timeout;
    let mut ending = hook_state.stop_cause.get();
    if ending.is_none() && (running.is_stopped() || running.delays_shutdown(hook_state.nanos)) {
        ending = Some(StopCause::Stopped(StopReason::Killed));
        *hook_state.kill_position.borrow_mut() = position_in_script(lua);
        let kill = if running.is_function() { "FUNCTION KILL" } else { "SCRIPT KILL" };
        (hook_state.log_line)(LOG_NOTICE, &format!("Script killed by user with {kill}."));
    } else if ending.is_none() && hook_state.is_loading.get() && is_over() {
        ending = Some(StopCause::TimedOut);
    }
    if ending.is_some() {
        if hook_state.stop_cause.replace(ending).is_none() {
            check_stop(lua, hook_state)?;
        }
        return Err(mlua::Error::runtime(STOPPED_ERROR));
    }
    if timeout > 0 && !running.is_busy() && is_over() {
        log_busy_script(hook_state);
        running.set_busy(hook_state.command.borrow().args().iter().map(<[u8]>::to_vec).collect());
        (hook_state.on_busy)();
    }
    Ok(VmState::Continue)
}

/// Logs that a script is busy, in the wording that tools search for.
fn log_busy_script(hook_state: &HookState) {
    let millis = hook_state.interpreter_state.elapsed_nanos((hook_state.nanos)()) / 1_000_000;
    let kill = if hook_state.interpreter_state.is_function() { "FUNCTION KILL" } else { "SCRIPT KILL" };
    let request = hook_state.command.borrow();
    let (command, word) = (request.args().get(0), request.args().get(1).unwrap_or_default());
    let is_text = command.is_some_and(|command| {
        command.eq_ignore_ascii_case(b"eval") || command.eq_ignore_ascii_case(b"eval_ro")
    });
    let sha = is_text.then(|| crate::script::sha1_hex(word));
    let name = String::from_utf8_lossy(sha.as_ref().map_or(word, |sha| &sha[..]));
    (hook_state.log_line)(
        LOG_WARNING,
        &format!(
            "Slow script detected: still in execution after {millis} milliseconds. You can try killing the script \
             using the {kill} command. Script name is: {name}."
        ),
    );
}

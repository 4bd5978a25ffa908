//! Script execution: the calls of a script, the slot locks that they use, and the logged effects.
//!
//! The slots of a script's declared keys are locked before it runs and stay locked until it ends; its calls borrow
//! these locks. A call to another slot accesses undeclared keys. If the script holds no locks yet, it first takes the
//! global script lock, under which it may wait for any slot. If it has not written yet, it is aborted and restarted
//! with the script lock, and marked so that it takes that lock immediately next time. If it has already written, it
//! locks the slot if the slot is free, or else waits for the script lock. The call fails only if the script lock's
//! owner holds both the script lock and the slot for a tenth of a second, because that owner may be waiting for this
//! script's slots. In cluster mode the same applies to the slots of this node.
//!
//! All changes of the calls are logged as one transaction when the script ends.

use std::sync::Arc;
use std::time::Duration;

use keyspace::{Key, LockedSlots};
use resp::{Args, Protocol, Request, Writer};
use scripting::{
    Interpreter, Library, LuaHost, ReplicationTargets, Script, ScriptFailure, ScriptFlags, StopReason,
};
use slot_routing::{Ownership, SLOT_COUNT, Slot};

use super::Invocation;
use super::admission::{AdmissionInput, AdmissionVerdict, admit};
use super::execution::LockedCommand;
use super::slots::KeySlots;
use crate::command::{Caller, Command, CommandRunner, Context, Flags, LockScope, RegisteredCommand};
use crate::engine::{CopyOnAccess, Engine, Worker};
use crate::error::CommandError;
use crate::outcome::CommandOutcome;
use crate::scripting::{ChargedSlot, Runnable, ScriptCall};
use crate::session::CommandOrigin;
use crate::settings::{Measurements, NodeFlags};
use crate::stats::add;

/// Number of rounds for which a call waits for a locked slot or for the script lock.
const MAX_WAIT_ROUNDS: u32 = 1000;
const WAIT_INTERVAL: Duration = Duration::from_micros(100);

const NOT_ALLOWED_IN_SCRIPTS_ERROR: CommandError =
    CommandError::text("ERR This Valkey command is not allowed from script");

const NOT_LOCAL_KEY_ERROR: CommandError =
    CommandError::text("ERR Attempted to access a non local key in a cluster node");

/// Why a call of a script was refused.
enum CallError {
    /// The call returns this error.
    Error(CommandError),
    /// The client lacks permission. The error code that the script receives differs from the one in the error
    /// statistics.
    Forbidden(CommandError),
    /// The script must stop.
    Stop(StopReason),
}

impl From<CommandError> for CallError {
    fn from(error: CommandError) -> Self {
        Self::Error(error)
    }
}

fn refused_call(text: &'static str) -> CallError {
    CallError::Error(CommandError::text(text))
}

/// Converts the error for an unknown subcommand, whose text is the same in scripts as for clients.
fn unknown_command_error(error: CommandError) -> CallError {
    match error {
        CommandError::UnknownCommand { .. } => refused_call("ERR Unknown command called from script"),
        error => CallError::Error(error),
    }
}

/// The server as seen by a running script.
struct ScriptHost<'c, 'a> {
    context: &'c mut Context<'a>,
    runnable: &'c Runnable,
    /// The first declared key, which most calls use.
    first_key: Option<Key<'a>>,
    /// Whether writes are refused.
    read_only: bool,
    /// Whether the script can release its locks and restart. False under a debugger, because the user has already
    /// stepped through the first run.
    can_restart: bool,
    flags: ScriptFlags,
    /// The reply of the last call.
    reply: Vec<u8>,
    has_written: bool,
    /// Whether the script must not run again, since it has written or published.
    has_side_effects: bool,
    /// The database of the last logged effect.
    logged_db: u16,
    /// The slots that the script's calls may access.
    allowed_slots: AllowedSlots,
    interpreter: Arc<scripting::InterpreterState>,
}

/// The slots that a script's calls may access.
#[derive(Debug, Clone, Copy)]
enum AllowedSlots {
    /// All slots served here. This applies without cluster mode, with `allow-cross-slot-keys`, and to scripts without a
    /// shebang line, since such scripts cannot declare flags.
    Any,
    /// The slot of the first key that a call uses, because neither the script nor its transaction declares keys.
    SlotOfFirstKey,
    /// Only this slot, which the declared keys belong to.
    Single(Slot),
}

impl AllowedSlots {
    fn new(context: &Context<'_>, flags: ScriptFlags, declared_key: Option<Key<'_>>) -> Self {
        match declared_key.map(|key| key.slot()).or(context.transaction_slot) {
            _ if context.engine.topology.is_none() || !flags.declared || flags.allow_cross_slot => Self::Any,
            Some(slot) => Self::Single(slot),
            None => Self::SlotOfFirstKey,
        }
    }
}

/// A key with its argument index.
type HashedKey<'w> = (usize, Key<'w>);

struct LockedCall<'w> {
    entry: &'static RegisteredCommand,
    args: Args<'w>,
    /// The call's first key.
    key: Option<HashedKey<'w>>,
    slots: &'w [Slot],
}

impl Engine {
    /// Returns the flags that the script of this command declares, or the command's own flags if the script declares
    /// none. The script may not be compiled yet.
    pub(super) fn effective_script_flags(
        &self,
        worker: &Worker,
        entry: &RegisteredCommand,
        args: Args<'_>,
    ) -> Flags {
        let own = entry.command.flags;
        let known =
            self.find_cached_script(&worker.scripting, entry.command.name, args).map(|found| found.flags());
        let declared = known.or_else(|| {
            let is_text = matches!(entry.command.name, "eval" | "eval_ro");
            args.get(1).filter(|_| is_text).and_then(|text| Some(Script::new(text).ok()?.flags))
        });
        let said = Flags::STALE | Flags::DENYOOM | Flags::WRITE | Flags::MAY_REPLICATE;
        match declared {
            None => own,
            Some(declared) if declared.declared => {
                let mut flags = own - said;
                flags.set(Flags::STALE, declared.allow_stale);
                flags.set(Flags::WRITE, !declared.no_writes);
                flags.set(Flags::DENYOOM, !declared.allow_oom && !declared.no_writes);
                flags
            }
            // A script without flags may do anything, so its command's flags apply; stale reads are checked when it
            // starts.
            Some(_) => own,
        }
    }

    /// Returns whether the command's script is known to access undeclared keys.
    pub(super) fn touches_undeclared_keys(
        &self,
        worker: &Worker,
        entry: &RegisteredCommand,
        args: Args<'_>,
    ) -> bool {
        let found = self.find_cached_script(&worker.scripting, entry.command.name, args);
        found.is_some_and(|found| found.has_undeclared_keys() || found.flags().allow_cross_slot)
    }

    /// Locks the slots of a script's declared keys, and takes the script lock if the script is known to access
    /// undeclared keys.
    pub(super) fn lock_script_slots<'r>(
        &'r self,
        context: &mut Context<'r>,
        entry: &RegisteredCommand,
        args: Args<'r>,
    ) -> Result<Option<Slot>, CommandOutcome> {
        context.slots.release();
        let found = self.find_cached_script(&context.worker.scripting, entry.command.name, args);
        let has_undeclared_keys = found.as_ref().is_some_and(Runnable::has_undeclared_keys);
        context.worker.scripting.next_script = found;
        if !has_undeclared_keys {
            return self.lock_key_slots(context, entry, args);
        }
        let slots = self.key_slots(entry, args);
        // Declared keys must be in one slot even with `allow-cross-slot-keys`, which concerns undeclared keys.
        if self.topology.is_some() && slots.iter().any(|slot| *slot != slots[0]) {
            return Err(CommandError::CrossSlot.into());
        }
        let mut locked = LockedSlots::default();
        context.global_lock = Some(self.lock_with_global_lock(context, &mut locked, &slots)?);
        context.slots = locked;
        Ok(slots.first().copied())
    }
}

impl<'a> Context<'a> {
    /// Returns the script of this command if it is cached. Outside of a transaction it was found while its slots were
    /// being locked; in a transaction, which locks the slots of all commands together, it is looked up now.
    pub fn take_cached_script(&mut self) -> Option<Runnable> {
        match self.caller {
            Caller::Client | Caller::Master | Caller::SlotMigrationSource => {
                self.worker.scripting.next_script.take()
            }
            Caller::Exec | Caller::Script | Caller::Waiter => {
                let name = self.commands.command_by_number(self.command_index).command.name;
                self.engine.find_cached_script(&self.worker.scripting, name, self.args)
            }
        }
    }

    /// Checks a script's declared flags against the command that runs it and the server's state. Admission was checked
    /// before ([`super::admission`]).
    ///
    /// # Errors
    /// The error for the client if the flags forbid the script to run now.
    pub fn check_script_start(&self, flags: ScriptFlags, read_only: bool) -> Result<(), CommandError> {
        if read_only && flags.declared && !flags.no_writes {
            return Err(CommandError::text(
                "ERR Can not execute a script with write flag using *_ro command.",
            ));
        }
        if self.session.origin() != CommandOrigin::Client {
            return Ok(());
        }
        if flags.no_cluster && self.engine.topology.is_some() {
            return Err(CommandError::text("ERR Can not run script on cluster, 'no-cluster' flag is set."));
        }
        let stale = self.engine.settings.node_flags() & NodeFlags::STALE;
        if !flags.declared && !stale.is_empty() {
            return Err(self.engine.refusal_error(stale, Flags::empty()));
        }
        Ok(())
    }

    /// Compiles a script that is not cached.
    ///
    /// # Errors
    /// The compiler's error for the client.
    pub fn compile_script(&mut self, script: &Arc<Script>) -> Result<(), CommandError> {
        let (engine, nanos) = (self.engine, self.worker.clock_nanos);
        let mut interpreter = engine.take_interpreter(&mut self.worker.scripting, nanos);
        let compiled = interpreter.compile(script);
        self.worker.scripting.return_interpreter(interpreter);
        compiled.map_err(to_command_error)
    }

    /// Caches a script under its text for this thread.
    pub fn cache_text(&mut self, text: &[u8], script: &Arc<Script>) {
        let hash = self.engine.keyspace.hash_element_name(text);
        self.worker.scripting.cache_text(hash, script.clone());
    }

    /// Loads a library's code: its name and functions.
    ///
    /// # Errors
    /// The code is not a valid library.
    pub fn load_library(&mut self, code: &[u8]) -> Result<Library, CommandError> {
        let (engine, nanos) = (self.engine, self.worker.clock_nanos);
        // A library that another node has accepted must also be loaded here, so no time limit applies.
        let hurried = self.session.origin() == CommandOrigin::Client;
        let mut interpreter = engine.take_interpreter(&mut self.worker.scripting, nanos);
        let library = interpreter.load_library(code, hurried);
        self.worker.scripting.return_interpreter(interpreter);
        library.map_err(|error| CommandError::Text(error.to_string().into()))
    }

    /// Runs a script or function whose first key is argument 3.
    pub(super) fn run_script(&mut self, script: &ScriptCall) -> Result<CommandOutcome, CommandError> {
        let ScriptCall { runnable: ref what, declared_key_count: keys, read_only } = *script;
        let (engine, db) = (self.engine, self.session.db());
        let named = (keys > 0).then(|| self.key(3)).transpose()?;
        let timeout = engine.settings.scripts.busy_reply_threshold.load(std::sync::atomic::Ordering::Relaxed);
        let call = scripting::Invocation {
            command: self.args,
            key_count: keys,
            busy_timeout_millis: u64::try_from(timeout).unwrap_or(0),
        };
        let nanos = self.worker.clock_nanos;
        if self.caller != Caller::Exec {
            self.worker.frozen_wall_micros = None;
            self.worker.scripting.charged_slot = ChargedSlot::Declared;
        }
        let console = self.worker.scripting.console.take();
        let mut interpreter = engine.take_interpreter(&mut self.worker.scripting, nanos);
        let compiled = match what {
            Runnable::Script(script) => interpreter.compile(script),
            Runnable::Function(library, _) => interpreter.compile_library(library).map_err(|error| {
                ScriptFailure::Error { text: error.to_string().into_bytes(), is_counted: false }
            }),
        };
        let flags = what.flags();
        let mut reached = ScriptHost {
            runnable: what,
            first_key: named,
            read_only: read_only || flags.no_writes,
            can_restart: self.caller.may_restart() && console.is_none(),
            flags,
            reply: std::mem::take(&mut self.worker.scripting.reply_buffer),
            has_written: false,
            has_side_effects: false,
            logged_db: db,
            allowed_slots: AllowedSlots::new(self, flags, named),
            interpreter: interpreter.interpreter_state().clone(),
            context: self,
        };
        let ran = compiled.and_then(|()| match (what, console) {
            (Runnable::Script(script), Some(console)) => {
                interpreter.debug(script, &call, &mut reached, console)
            }
            _ => run_with_gc_retry(&mut interpreter, &call, &mut reached),
        });
        let ScriptHost { mut reply, logged_db, .. } = reached;
        reply.clear();
        if reply.capacity() > super::MAX_BATCH_BYTES_WITH_PREFETCH_LOCKS {
            reply = Vec::new();
        }
        self.worker.scripting.reply_buffer = reply;
        self.worker.scripting.started_at = interpreter.interpreter_state().started_nanos();
        self.session.select(db);
        self.worker.effects.set_targets(ReplicationTargets::All);
        if logged_db != db && self.worker.effects.has_commands {
            self.worker.effects.add_select(db);
        }
        let ended = ran.and_then(|outcome| self.write_return_value(&mut interpreter, &outcome));
        self.worker.scripting.return_interpreter(interpreter);
        self.end_script(ended, what)
    }

    /// Writes a script's return value and counts the errors in it.
    fn write_return_value(
        &mut self,
        interpreter: &mut scripting::Interpreter,
        value: &scripting::ScriptValue,
    ) -> Result<(), ScriptFailure> {
        let (stats, mut has_errors) = (&self.worker.stats, false);
        let mut told = |text: &[u8], counted: bool| {
            has_errors = true;
            if !counted {
                stats.count_script_error(text);
            }
        };
        interpreter.write(value, &mut self.reply, &mut told)?;
        if has_errors {
            add(&self.worker.stats.commands[self.command_index].failed_calls, 1);
        }
        Ok(())
    }

    fn end_script(
        &mut self,
        result: Result<(), ScriptFailure>,
        runnable: &Runnable,
    ) -> Result<CommandOutcome, CommandError> {
        let engine = self.engine;
        if engine.settings.node_flags().contains(NodeFlags::BUSY)
            && !engine.scripting.scripts.has_busy_script()
        {
            engine.settings.set_node_flag(NodeFlags::BUSY, false);
        }
        match result {
            Ok(()) => Ok(CommandOutcome::Done),
            Err(ScriptFailure::Restart) => {
                runnable.record_undeclared_keys();
                Ok(CommandOutcome::Restart)
            }
            Err(ScriptFailure::Error { text, is_counted: counted }) => {
                if !counted {
                    self.worker.stats.count_script_error(&text);
                }
                add(&self.worker.stats.commands[self.command_index].failed_calls, 1);
                self.reply.error_bytes(&text);
                self.record_failure(&String::from_utf8_lossy(&text), false);
                Ok(CommandOutcome::Done)
            }
            Err(failure @ (ScriptFailure::Syntax(_) | ScriptFailure::Memory)) => {
                Err(to_command_error(failure))
            }
        }
    }
}

/// Runs a script or function; if it ran out of memory before any effect, collects all garbage and runs it again.
fn run_with_gc_retry(
    interpreter: &mut Interpreter,
    call: &scripting::Invocation<'_>,
    host: &mut ScriptHost<'_, '_>,
) -> Result<scripting::ScriptValue, ScriptFailure> {
    let what = host.runnable;
    let run = |interpreter: &mut Interpreter, reached: &mut ScriptHost<'_, '_>| match what {
        Runnable::Script(script) => interpreter.run(script, call, reached),
        Runnable::Function(library, place) => {
            interpreter.run_function(library, &library.functions[*place].name, call, reached)
        }
    };
    let db = host.context.session.db();
    match run(interpreter, host) {
        Err(ScriptFailure::Memory) if !host.has_side_effects => {
            host.context.session.select(db);
            host.allowed_slots = AllowedSlots::new(host.context, host.flags, host.first_key);
            host.context.worker.effects.set_targets(ReplicationTargets::All);
            interpreter.with_full_collection(|interpreter| run(interpreter, host))
        }
        ran => ran,
    }
}

fn to_command_error(failure: ScriptFailure) -> CommandError {
    CommandError::Text(match failure {
        ScriptFailure::Syntax(text) => format!("ERR Error compiling script (new function): {text}").into(),
        ScriptFailure::Error { text, .. } => String::from_utf8_lossy(&text).into_owned().into(),
        ScriptFailure::Restart => "ERR the script did not run".into(),
        ScriptFailure::Memory => "ERR not enough memory".into(),
    })
}

impl LuaHost for ScriptHost<'_, '_> {
    fn call(&mut self, request: &Request, protocol: Protocol) -> Result<&[u8], StopReason> {
        self.reply.clear();
        let (error, counted) = match self.run(request.args(), protocol) {
            Ok(()) => return Ok(&self.reply),
            Err(CallError::Stop(stop)) => return Err(stop),
            Err(CallError::Error(error)) => (error.to_string(), None),
            Err(CallError::Forbidden(error)) => (error.to_string(), Some("NOPERM ")),
        };
        let stats = &self.context.worker.stats;
        stats.count_error(counted.unwrap_or(&error));
        if let Ok(entry) = self.context.commands.registry().resolve(request.args()) {
            add(&stats.commands[entry.index].rejected_calls, 1);
        }
        Writer::new(&mut self.reply, protocol).error(&error);
        Ok(&self.reply)
    }

    fn set_replication_targets(&mut self, targets: ReplicationTargets) {
        self.context.worker.effects.set_targets(targets);
    }

    fn is_permitted(&mut self, request: &Request) -> Option<bool> {
        let entry = self.context.commands.registry().lookup(request.args())?;
        Some(self.context.engine.check_permissions(self.context.session, entry, request.args()).is_ok())
    }
}

impl ScriptHost<'_, '_> {
    fn run(&mut self, args: Args<'_>, protocol: Protocol) -> Result<(), CallError> {
        let engine = self.context.engine;
        let entry = self.context.commands.registry().resolve(args).map_err(unknown_command_error)?;
        self.admit(entry, args)?;
        let (slots, key) = self.lock_slots_of_call(entry, args)?;
        if let Some(staged) = &engine.scripting.copy_on_access {
            self.copy_key(staged, entry, args)?;
        }
        self.check_cluster_slots(entry, args, &slots)?;
        let call = LockedCall { entry, args, key, slots: &slots };
        self.run_locked_call(&call, protocol)
    }

    /// Performs all checks of a call that do not depend on slots, including that of the client's permissions.
    fn admit(&mut self, entry: &'static RegisteredCommand, args: Args<'_>) -> Result<(), CallError> {
        let command = entry.command;
        if !command.accepts_word_count(args.len()) || matches!(command.runner, CommandRunner::Container) {
            return Err(refused_call("ERR Wrong number of args calling command from script"));
        }
        let (context, flags) = (&*self.context, command.flags);
        let engine = context.engine;
        let for_scripts = !flags.contains(Flags::NOSCRIPT)
            || engine.settings.debug.scripts_may_call_all.load(std::sync::atomic::Ordering::Relaxed);
        if !for_scripts || matches!(command.runner, CommandRunner::Script(_) | CommandRunner::Exec) {
            return Err(NOT_ALLOWED_IN_SCRIPTS_ERROR.into());
        }
        // As in Valkey, memory is checked first and the other flags last.
        self.check_flags(command, NodeFlags::OUT_OF_MEMORY)?;
        engine.check_permissions(context.session, entry, args).map_err(|refused| {
            context.publish_last_command();
            engine.record_denial(context.session, context.now, "lua", &refused);
            CallError::Forbidden(refused.error_in_script())
        })?;
        if self.read_only && flags.intersects(Flags::WRITE.union(Flags::MAY_REPLICATE)) {
            return Err(refused_call("ERR Write commands are not allowed from read-only scripts."));
        }
        self.check_flags(command, NodeFlags::all())
    }

    /// Checks whether a call may run, given the node flags in `node_flags`.
    fn check_flags(&self, command: &Command, node_flags: NodeFlags) -> Result<(), CallError> {
        let (context, flags) = (&*self.context, command.flags);
        let engine = context.engine;
        let gate = engine.settings.node_flags() & node_flags;
        if gate.is_empty() {
            return Ok(());
        }
        let needs_memory = if self.flags.allow_oom { Flags::DENYOOM } else { Flags::empty() };
        let need = engine.admission_input(context.session, flags - needs_memory, !command.keys.is_empty());
        // Ignore routing here: the script was admitted on this node, so its slot is not a reason to refuse the call.
        let need = AdmissionInput { has_written: self.has_written, is_routed: false, ..need };
        let is_in_cluster = engine.topology.is_some() && !command.keys.is_empty();
        match admit(gate, Caller::Script.for_nested_command(context.session), &need) {
            AdmissionVerdict::Refuse(NodeFlags::READ_ONLY_REPLICA) if is_in_cluster => {
                Err(NOT_LOCAL_KEY_ERROR.into())
            }
            AdmissionVerdict::Refuse(state) => Err(CallError::Error(self.refusal_error(state, flags))),
            _ => Ok(()),
        }
    }

    /// Returns the error for a refused call; its text may differ from the one that a client gets.
    fn refusal_error(&self, flag: NodeFlags, flags: Flags) -> CommandError {
        let error = self.context.engine.refusal_error(flag, flags);
        match error {
            CommandError::MasterDown | CommandError::EmptyMaster => {
                CommandError::text("ERR Can not execute the command on a stale replica")
            }
            CommandError::ClusterDown => {
                CommandError::text("ERR Script attempted to execute a command while the cluster is down")
            }
            CommandError::ClusterDownReadsOnly => CommandError::text(
                "ERR Script attempted to execute a write command while the cluster is down and readonly",
            ),
            error => error,
        }
    }

    /// Returns whether the call accesses undeclared keys. In cluster mode undeclared keys are in the slot of the call's
    /// declared keys.
    fn has_key_patterns(&self, entry: &RegisteredCommand, args: Args<'_>) -> bool {
        self.context.engine.topology.is_none() && entry.command.has_key_patterns(args)
    }

    /// Locks the slots of a call and returns them with the call's first key. The list is empty for a command that
    /// visits all slots.
    fn lock_slots_of_call<'w>(
        &mut self,
        entry: &RegisteredCommand,
        args: Args<'w>,
    ) -> Result<(KeySlots, Option<HashedKey<'w>>), CallError> {
        match entry.command.lock_scope {
            LockScope::Keys | LockScope::Patterns if !self.has_key_patterns(entry, args) => {
                let (mut slots, mut first) = (KeySlots::new(), None);
                entry.command.visit_keys(args, &mut |index, _| {
                    let key = self.hash_key(args.get(index).expect("a key is one of the words"));
                    slots.push(key.slot());
                    first.get_or_insert((index, key));
                });
                if !slots.iter().all(|slot| self.context.slots.is_locked(*slot)) {
                    self.lock_undeclared_slots(&slots)?;
                }
                Ok((slots, first))
            }
            // The call locks no slot, because it is logged as part of the script.
            LockScope::FirstArgument => Ok((KeySlots::new(), None)),
            // A pattern may match a key in any slot.
            LockScope::Keys
            | LockScope::Patterns
            | LockScope::EachSlot
            | LockScope::AllSlots
            | LockScope::NamedSlot => {
                if !self.context.holds_all_slots {
                    let all: Vec<Slot> = Slot::all().collect();
                    self.lock_undeclared_slots(&all)?;
                    self.context.holds_all_slots = true;
                }
                let mut routed = KeySlots::new();
                if entry.command.lock_scope == LockScope::EachSlot {
                    routed = self.context.engine.key_slots(entry, args);
                }
                Ok((routed, None))
            }
        }
    }

    fn hash_key<'w>(&self, word: &'w [u8]) -> Key<'w> {
        let named = self.first_key.and_then(|named| named.rebind(word));
        named.unwrap_or_else(|| self.context.engine.keyspace.key(word))
    }

    /// In a debugging session on copied data, copies the keys that a call will access.
    fn copy_key(
        &mut self,
        copy_on_access: &CopyOnAccess,
        entry: &RegisteredCommand,
        args: Args<'_>,
    ) -> Result<(), CallError> {
        let context = &mut *self.context;
        let (keyspace, slots) = (&context.engine.keyspace, &mut context.slots);
        if !context.holds_all_slots {
            entry
                .command
                .visit_keys(args, &mut |index, _| copy_on_access.copy_key(keyspace, slots, &args[index]));
        } else if !copy_on_access.copy_all(keyspace, slots) {
            return Err(refused_call(
                "ERR This command is about all keys, and there are too many for a debugger that works on copies. \
                 SCRIPT DEBUG SYNC works on the data itself.",
            ));
        }
        Ok(())
    }

    #[cold]
    fn lock_undeclared_slots(&mut self, slots: &[Slot]) -> Result<(), CallError> {
        let engine = self.context.engine;
        if self.context.global_lock.is_none() && self.context.slots.is_empty() {
            self.runnable.record_undeclared_keys();
            let wait = engine.start_slot_wait(self.context, &[]);
            self.context.global_lock =
                engine.keyspace.acquire_global_lock_while(&|waited| wait.wait_or_offload(waited));
        }
        if self.context.global_lock.is_none() && !self.has_side_effects && self.can_restart {
            return Err(CallError::Stop(StopReason::Restart));
        }
        let wait = engine.start_slot_wait(self.context, &[]);
        match &self.context.global_lock {
            Some(turn) if slots.len() == SLOT_COUNT => {
                self.context.slots.add_all(turn, &|waited| wait.wait_or_offload(waited));
            }
            _ => slots.iter().try_for_each(|slot| self.lock_slot(*slot))?,
        }
        // While this thread waited for the locks, the slots may have moved or the node's state may have changed.
        let gate = engine.settings.node_flags();
        if self.context.session.origin() == CommandOrigin::Client
            && gate.intersects(NodeFlags::PAUSED)
            && !self.has_written
        {
            return Err(refused_call(
                "ERR Writes are paused, and the script touches keys that it does not name",
            ));
        }
        Ok(())
    }

    fn lock_slot(&mut self, slot: Slot) -> Result<(), CallError> {
        let context = &mut *self.context;
        let (engine, wanted) = (context.engine, [slot]);
        let keyspace = &engine.keyspace;
        let wait = engine.start_slot_wait(context, &wanted);
        if let Some(turn) = &context.global_lock {
            context.slots.add_slot(turn, slot, &|waited| wait.wait_or_offload(waited));
            return Ok(());
        }
        self.runnable.record_undeclared_keys();
        for _ in 0..MAX_WAIT_ROUNDS {
            if context.slots.try_add(keyspace, slot) {
                return Ok(());
            }
            if let Some(turn) = keyspace.acquire_global_lock_within(WAIT_INTERVAL) {
                context.slots.add_slot(&turn, slot, &|waited| wait.wait_or_offload(waited));
                context.global_lock = Some(turn);
                return Ok(());
            }
        }
        Err(refused_call(
            "ERR A key that the script does not name is in use, and waiting for it could never end",
        ))
    }

    /// In cluster mode, checks that all keys of a call are in one slot, and that the script may access this slot.
    fn check_cluster_slots(
        &mut self,
        entry: &'static RegisteredCommand,
        args: Args<'_>,
        slots: &[Slot],
    ) -> Result<(), CallError> {
        let engine = self.context.engine;
        let (Some(topology), CommandOrigin::Client, Some(first)) =
            (&engine.topology, self.context.session.origin(), slots.first())
        else {
            return Ok(());
        };
        // One command may never use keys of several slots, whatever flags the script declares.
        let crosses = slots.iter().any(|slot| slot != first);
        let foreign = |context: &Context<'_>| {
            slots.iter().any(|slot| context.slots.slot(*slot).ownership() != Ownership::Local)
        };
        if crosses || foreign(self.context) {
            let Context { session, slots: locked, now, .. } = &mut *self.context;
            let call = Invocation { entry, args, asking: session.is_asking(), db: session.db() };
            let access = engine.route_request(session, call, entry.command.flags, locked, *now);
            let ownership = locked.slot(*first).ownership();
            let via = session.client().connection.transport;
            let routed = engine.check_route(&topology.load(), *first, ownership, access, via);
            if crosses || routed.is_err() {
                return Err(NOT_LOCAL_KEY_ERROR.into());
            }
        }
        match self.allowed_slots {
            AllowedSlots::Single(slot) if slot != *first => {
                Err(refused_call("ERR Script attempted to access keys that do not hash to the same slot"))
            }
            AllowedSlots::Any | AllowedSlots::Single(_) => Ok(()),
            AllowedSlots::SlotOfFirstKey => {
                self.allowed_slots = AllowedSlots::Single(*first);
                Ok(())
            }
        }
    }

    /// Runs a call while its slots are locked.
    fn run_locked_call(&mut self, call: &LockedCall<'_>, protocol: Protocol) -> Result<(), CallError> {
        let LockedCall { entry, args, slots, .. } = *call;
        let outer = &mut *self.context;
        let (engine, holds_all) = (outer.engine, outer.holds_all_slots);
        let counts_slots =
            engine.topology.is_some() && engine.settings.measurements().contains(Measurements::SLOTS);
        if counts_slots {
            outer.worker.scripting.charged_slot = match self.allowed_slots {
                AllowedSlots::Any => ChargedSlot::SeveralSlots,
                AllowedSlots::Single(slot) if self.first_key.is_none() => ChargedSlot::Used(slot),
                AllowedSlots::Single(_) | AllowedSlots::SlotOfFirstKey => ChargedSlot::Declared,
            };
        }
        self.has_side_effects |= entry.command.flags.intersects(Flags::WRITE.union(Flags::MAY_REPLICATE));
        if entry.command.flags.contains(Flags::WRITE) && !self.has_written {
            self.has_written = true;
            self.interpreter.mark_written();
        }
        outer.feed_to_monitors(entry, args, true);
        let accessible = match entry.command.lock_scope {
            LockScope::EachSlot | LockScope::AllSlots | LockScope::NamedSlot => None,
            LockScope::Patterns if slots.is_empty() => None,
            LockScope::Keys | LockScope::Patterns | LockScope::FirstArgument => Some(slots),
        };
        let mut context = outer.for_script_call(accessible, Writer::new(&mut self.reply, protocol));
        let db = context.session.db();
        if db != self.logged_db {
            self.logged_db = db;
            context.worker.effects.add_select(db);
        }
        let call = LockedCommand { entry, args, key: call.key.as_ref(), holds_all_slots: holds_all };
        match engine.execute_nested(&mut context, call) {
            CommandOutcome::Block(wait) => {
                (wait.timeout_reply)(&mut context.reply);
                engine.record_call(&mut context, entry, args, 0, 0);
            }
            CommandOutcome::Defer(_) => return Err(NOT_ALLOWED_IN_SCRIPTS_ERROR.into()),
            CommandOutcome::Done
            | CommandOutcome::Pause
            | CommandOutcome::Restart
            | CommandOutcome::Offload(_)
            | CommandOutcome::Fail(_) => {}
        }
        if counts_slots {
            engine.charge_script_call(&context, entry, args);
        }
        Ok(())
    }
}

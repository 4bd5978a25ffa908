//! Per-thread script state: the Lua interpreter, the compiled scripts, and callbacks into the server process.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use scripting::{DebugConsole, Interpreter, Library, Script};
use slot_routing::Slot;

/// Maximum number of EVAL texts that a thread looks up without computing their SHA1.
const MAX_CACHED_TEXTS: usize = 512;

/// Callbacks from scripts into the server process.
#[derive(Debug, Clone, Copy)]
pub struct ScriptHooks {
    /// Writes a line of `redis.log`; the level is from 0 (debug) to 3 (warning).
    pub log_line: fn(u8, &str),
    /// Called on a thread that a script has blocked for long, so that the server can move the thread's other work
    /// elsewhere.
    pub on_busy: fn(),
}

impl Default for ScriptHooks {
    fn default() -> Self {
        Self { log_line: |_, _| {}, on_busy: || {} }
    }
}

/// A script or function to run.
#[derive(Debug, Clone)]
pub enum Runnable {
    /// A script of EVAL or EVALSHA.
    Script(Arc<Script>),
    /// A function, given by its library and its index in that library.
    Function(Arc<Library>, usize),
}

impl Runnable {
    /// Returns whether an earlier run accessed undeclared keys.
    pub(crate) fn has_undeclared_keys(&self) -> bool {
        match self {
            Self::Script(script) => script.has_undeclared_keys.load(Ordering::Relaxed),
            Self::Function(library, _) => library.has_undeclared_keys.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn record_undeclared_keys(&self) {
        match self {
            Self::Script(script) => script.has_undeclared_keys.store(true, Ordering::Relaxed),
            Self::Function(library, _) => library.has_undeclared_keys.store(true, Ordering::Relaxed),
        }
    }

    fn mean_nanos_counter(&self) -> &AtomicU64 {
        match self {
            Self::Script(script) => &script.mean_nanos,
            Self::Function(library, place) => &library.functions[*place].mean_nanos,
        }
    }

    /// Returns the mean duration of the recent long runs; 0 if no run was long.
    pub(crate) fn mean_nanos(&self) -> u64 {
        self.mean_nanos_counter().load(Ordering::Relaxed)
    }

    /// Records the duration of a long run.
    pub(crate) fn record_run(&self, nanos: u64) {
        let mean = match self.mean_nanos() {
            0 => nanos,
            before => before - before / 4 + nanos / 4,
        };
        self.mean_nanos_counter().store(mean, Ordering::Relaxed);
    }

    /// Decays the mean while the script runs in the background, so that a script that became fast leaves it again.
    pub(crate) fn decay_mean(&self) {
        let before = self.mean_nanos();
        self.mean_nanos_counter().store(before - before / 8, Ordering::Relaxed);
    }

    /// Returns the declared script flags.
    pub fn flags(&self) -> scripting::ScriptFlags {
        match self {
            Self::Script(script) => script.flags,
            Self::Function(library, place) => library.functions[*place].flags,
        }
    }
}

/// A prepared call of a script.
#[derive(Debug)]
pub struct ScriptCall {
    /// The script or function to run.
    pub runnable: Runnable,
    /// Number of declared keys; the first one is argument 3.
    pub declared_key_count: usize,
    /// Whether writes are refused even if the script does not declare `no-writes` (EVAL_RO, FCALL_RO).
    pub read_only: bool,
}

#[derive(Debug, Default)]
pub(crate) struct ThreadScripting {
    /// The Lua interpreter, created on first use.
    interpreter: Option<Box<Interpreter>>,
    /// Whether the interpreter provides the deprecated `getfenv` and `setfenv`.
    deprecated_api: bool,
    /// The release counter that the compiled scripts and libraries of this thread correspond to.
    release_count: u64,
    scripts_by_text: HashMap<u64, Arc<Script>>,
    /// The script or function of the next command, if it was already found while its slots were being locked.
    pub(crate) next_script: Option<Runnable>,
    /// Reused buffer for the replies of `redis.call`.
    pub(crate) reply_buffer: Vec<u8>,
    /// The debugger's console if the next script runs in a debugging session.
    pub(crate) console: Option<Box<dyn DebugConsole + Send>>,
    /// Start time of the last script on the thread's monotonic clock.
    pub(crate) started_at: u64,
    pub(crate) charged_slot: ChargedSlot,
}

/// The slot to which a script is charged ([`crate::slot_costs`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ChargedSlot {
    /// The slot of the declared keys, if there are any.
    #[default]
    Declared,
    /// The slot of the first key of the script's calls, since the script declares no keys.
    Used(Slot),
    /// No slot: the script has called a command and may access keys of several slots.
    SeveralSlots,
}

impl ThreadScripting {
    /// Takes the interpreter for a run; the caller puts it back. Calls `create` if there is none, or if the existing
    /// one was created with another setting for the deprecated functions.
    pub(crate) fn take_interpreter(
        &mut self,
        deprecated_api: bool,
        create: impl FnOnce() -> Box<Interpreter>,
    ) -> Box<Interpreter> {
        let fits = deprecated_api == self.deprecated_api;
        self.deprecated_api = deprecated_api;
        self.interpreter.take().filter(|_| fits).unwrap_or_else(create)
    }

    pub(crate) fn return_interpreter(&mut self, interpreter: Box<Interpreter>) {
        self.interpreter = Some(interpreter);
    }

    /// Drops compiled scripts and libraries that were flushed or replaced since the last call.
    #[inline]
    pub(crate) fn drop_released(&mut self, release_count: u64) {
        if self.release_count != release_count {
            self.drop_stale_scripts(release_count);
        }
    }

    #[cold]
    fn drop_stale_scripts(&mut self, release_count: u64) {
        self.release_count = release_count;
        self.scripts_by_text.retain(|_, script| script.is_live());
        self.next_script = None;
        if let Some(interpreter) = &mut self.interpreter {
            interpreter.drop_released();
        }
    }

    /// Finds a script by its text if this thread has cached it.
    pub(crate) fn find_by_text(&self, hash: u64, text: &[u8]) -> Option<Arc<Script>> {
        self.scripts_by_text.get(&hash).filter(|script| *script.text == *text && script.is_live()).cloned()
    }

    pub(crate) fn cache_text(&mut self, hash: u64, script: Arc<Script>) {
        if self.scripts_by_text.len() >= MAX_CACHED_TEXTS {
            self.scripts_by_text.retain(|_, script| script.is_live());
        }
        if self.scripts_by_text.len() >= 2 * MAX_CACHED_TEXTS {
            self.scripts_by_text.clear();
        }
        self.scripts_by_text.insert(hash, script);
    }

    /// Finds a script by its SHA1 among those that this thread has compiled.
    pub(crate) fn find_by_sha(&self, sha: &[u8; 40]) -> Option<Arc<Script>> {
        self.interpreter.as_ref()?.find_compiled(sha)
    }
}

/// Parses a SHA1 of 40 hexadecimal digits and converts it to lower case; `None` if it is malformed.
pub fn parse_sha1(word: &[u8]) -> Option<[u8; 40]> {
    let sha: &[u8; 40] = word.try_into().ok()?;
    Some(sha.map(|digit| digit.to_ascii_lowercase()))
}

//! Scripts: their interpreters, their libraries, and finding the one that a command is to run.

use std::sync::atomic::Ordering;

use resp::Args;
use scripting::{FunctionError, Interpreter, Options, Restore};

use super::{Engine, Worker};
use crate::scripting::{Runnable, ScriptHooks, Scripting, sha_of};
use crate::settings::Gate;

/// The version of the data model and the scripting interface that scripts are told.
const VERSION: &str = "7.2.4";
const VERSION_NUMBER: u32 = 0x0007_0204;

impl Engine {
    /// A thread's interpreter, for as long as something runs there. To be put back.
    pub(crate) fn take_interpreter(&self, scripting: &mut Scripting, nanos: fn() -> u64) -> Box<Interpreter> {
        scripting.forget_released(self.scripts.announced_releases());
        let deprecated_api = self.settings.lua_deprecated_api.load(Ordering::Relaxed);
        let interpreter = scripting.take(deprecated_api, || {
            let ScriptHooks { log, busy } = self.script_hooks;
            Box::new(Interpreter::new(
                &self.scripts,
                &Options {
                    version: VERSION,
                    version_number: VERSION_NUMBER,
                    server_name: "redis",
                    deprecated_api,
                    nanos,
                    log,
                    busy,
                },
            ))
        });
        interpreter.bound_memory(self.budget.limit());
        interpreter
    }

    /// Drops what the calling thread has compiled of scripts and libraries that were flushed or replaced. Threads that
    /// run no scripts are to do so when [`scripting::Scripts::call_when_released`] tells.
    pub fn forget_released_scripts(&self, worker: &mut Worker) {
        worker.scripting.forget_released(self.scripts.announced_releases());
    }

    /// Says of all commands whether a script has kept the server busy for too long. To be asked at times, by a thread
    /// that waits for no slot.
    pub fn watch_scripts(&self) -> bool {
        let busy = self.scripts.any_busy();
        self.settings.set_gates(Gate::BUSY, if busy { Gate::BUSY } else { Gate::empty() });
        busy
    }

    /// Takes these libraries in place of those that are there.
    ///
    /// # Errors
    /// The fault of the first library that does not load.
    pub fn replace_libraries(&self, codes: &[Vec<u8>], nanos: fn() -> u64) -> Result<(), FunctionError> {
        if codes.is_empty() {
            self.scripts.functions.flush();
            return Ok(());
        }
        let mut interpreter = self.take_interpreter(&mut Scripting::default(), nanos);
        let libraries =
            codes.iter().map(|code| interpreter.load_library(code, false)).collect::<Result<_, _>>()?;
        self.scripts.functions.add_all(libraries, Restore::Flush)
    }

    /// Whether [`Self::replace_libraries`] would take these.
    ///
    /// # Errors
    /// As [`Self::replace_libraries`].
    pub fn check_libraries(&self, codes: &[Vec<u8>], nanos: fn() -> u64) -> Result<(), FunctionError> {
        if codes.is_empty() {
            return Ok(());
        }
        let mut interpreter = self.take_interpreter(&mut Scripting::default(), nanos);
        codes.iter().try_for_each(|code| interpreter.load_library(code, false).map(drop))
    }

    /// Finds the script or the function that a command is to run, if it is known.
    pub(crate) fn runnable(&self, scripting: &Scripting, name: &str, args: Args<'_>) -> Option<Runnable> {
        let word = args.get(1)?;
        if name.starts_with("fcall") {
            let (library, place) = self.scripts.functions.find(word)?;
            return Some(Runnable::Function(library, place));
        }
        if name.starts_with("evalsha") {
            let sha = sha_of(word)?;
            let script = scripting.by_sha(&sha).or_else(|| self.scripts.find(&sha))?;
            return Some(Runnable::Script(script));
        }
        scripting.by_text(self.keyspace.hash_element_name(word), word).map(Runnable::Script)
    }
}

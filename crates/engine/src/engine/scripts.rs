//! Script management: interpreters, libraries, and lookup of the script that a command runs.

use std::sync::atomic::Ordering;

use resp::Args;
use scripting::{FunctionError, Interpreter, InterpreterOptions, RestorePolicy, Scripts};

use super::{CopyOnAccess, Engine, Worker};
use crate::scripting::{Runnable, ScriptHooks, ThreadScripting, parse_sha1};
use crate::settings::NodeFlags;

/// The Redis version that scripts see in `redis.REDIS_VERSION`.
const REDIS_VERSION: &str = "7.2.4";
const REDIS_VERSION_NUMBER: u32 = 0x0007_0204;

/// The state of script execution that all threads share.
#[derive(Debug, Default)]
pub struct SharedScripting {
    /// Scripts, functions, and the state of the threads' interpreters.
    pub scripts: Scripts,
    /// Callbacks from scripts into the server process.
    pub hooks: ScriptHooks,
    /// The source of the keys if this engine belongs to a script debugging session; otherwise `None`.
    pub(crate) copy_on_access: Option<CopyOnAccess>,
}

impl SharedScripting {
    /// Drops the calling thread's compiled scripts and libraries that were flushed or replaced. A thread that runs no
    /// scripts calls this when [`scripting::Scripts::call_when_released`] notifies it.
    pub fn drop_released(&self, worker: &mut Worker) {
        worker.scripting.drop_released(self.scripts.announced_release_count());
    }
}

impl Engine {
    /// Takes the thread's interpreter for a run, or creates one; the caller puts it back.
    pub(crate) fn take_interpreter(
        &self,
        scripting: &mut ThreadScripting,
        nanos: fn() -> u64,
    ) -> Box<Interpreter> {
        scripting.drop_released(self.scripting.scripts.announced_release_count());
        let deprecated_api = self.settings.scripts.lua_deprecated_api.load(Ordering::Relaxed);
        let interpreter = scripting.take_interpreter(deprecated_api, || {
            let ScriptHooks { log_line: log, on_busy: busy } = self.scripting.hooks;
            Box::new(Interpreter::new(
                &self.scripting.scripts,
                &InterpreterOptions {
                    version: REDIS_VERSION,
                    version_number: REDIS_VERSION_NUMBER,
                    server_name: "redis",
                    deprecated_api,
                    nanos,
                    log_line: log,
                    on_busy: busy,
                },
            ))
        });
        interpreter.limit_memory(self.memory.budget.limit());
        interpreter
    }

    /// Sets or clears the busy flag for all commands, depending on whether a script has exceeded
    /// `busy-reply-threshold`. Called periodically by a thread that never waits for a slot.
    pub fn update_busy_flag(&self) -> bool {
        let busy = self.scripting.scripts.has_busy_script();
        self.settings
            .set_node_flags(NodeFlags::BUSY, if busy { NodeFlags::BUSY } else { NodeFlags::empty() });
        busy
    }

    /// Replaces all function libraries.
    ///
    /// # Errors
    /// The error of the first library that fails to load.
    pub fn replace_libraries(&self, codes: &[Vec<u8>], nanos: fn() -> u64) -> Result<(), FunctionError> {
        if codes.is_empty() {
            self.scripting.scripts.functions.flush();
            return Ok(());
        }
        let mut interpreter = self.take_interpreter(&mut ThreadScripting::default(), nanos);
        let libraries =
            codes.iter().map(|code| interpreter.load_library(code, false)).collect::<Result<_, _>>()?;
        self.scripting.scripts.functions.add_all(libraries, RestorePolicy::Flush)
    }

    /// Checks that [`Self::replace_libraries`] would accept these libraries.
    ///
    /// # Errors
    /// The error of the first library that fails to load.
    pub fn check_libraries(&self, codes: &[Vec<u8>], nanos: fn() -> u64) -> Result<(), FunctionError> {
        if codes.is_empty() {
            return Ok(());
        }
        let mut interpreter = self.take_interpreter(&mut ThreadScripting::default(), nanos);
        codes.iter().try_for_each(|code| interpreter.load_library(code, false).map(drop))
    }

    /// Finds the cached script or function that a command will run.
    pub(crate) fn find_cached_script(
        &self,
        scripting: &ThreadScripting,
        name: &str,
        args: Args<'_>,
    ) -> Option<Runnable> {
        let word = args.get(1)?;
        if name.starts_with("fcall") {
            let (library, place) = self.scripting.scripts.functions.find(word)?;
            return Some(Runnable::Function(library, place));
        }
        if name.starts_with("evalsha") {
            let sha = parse_sha1(word)?;
            let script = scripting.find_by_sha(&sha).or_else(|| self.scripting.scripts.find(&sha))?;
            return Some(Runnable::Script(script));
        }
        scripting.find_by_text(self.keyspace.hash_element_name(word), word).map(Runnable::Script)
    }
}

//! The interpreter and the known scripts of a thread, and the functions of the shell that scripts call.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use scripting::{Console, Interpreter, Library, Script};

/// So many texts of EVAL a thread knows at once, without their SHA1.
const KNOWN_TEXTS: usize = 512;

/// The functions of the shell that scripts call.
#[derive(Debug, Clone, Copy)]
pub struct ScriptHooks {
    /// Takes the lines of `redis.log`: the level from 0 to 3, and the text.
    pub log: fn(u8, &str),
    /// The calling thread is kept for long, by a script or by what a script holds: called on it, so that it can have
    /// others do what else it does.
    pub busy: fn(),
}

impl Default for ScriptHooks {
    fn default() -> Self {
        Self { log: |_, _| {}, busy: || {} }
    }
}

/// The script or the function that a command is to run.
#[derive(Debug, Clone)]
pub enum Runnable {
    /// A script.
    Script(Arc<Script>),
    /// The function at this place of a library.
    Function(Arc<Library>, usize),
}

impl Runnable {
    /// Whether it has touched keys that it did not name.
    pub(crate) fn has_undeclared_keys(&self) -> bool {
        match self {
            Self::Script(script) => script.has_undeclared_keys.load(Ordering::Relaxed),
            Self::Function(library, _) => library.has_undeclared_keys.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn note_undeclared_keys(&self) {
        match self {
            Self::Script(script) => script.has_undeclared_keys.store(true, Ordering::Relaxed),
            Self::Function(library, _) => library.has_undeclared_keys.store(true, Ordering::Relaxed),
        }
    }

    fn mean(&self) -> &AtomicU64 {
        match self {
            Self::Script(script) => &script.mean_nanos,
            Self::Function(library, place) => &library.functions[*place].mean_nanos,
        }
    }

    /// How long it took in the mean of its last runs; 0 while that was not long.
    pub(crate) fn mean_nanos(&self) -> u64 {
        self.mean().load(Ordering::Relaxed)
    }

    /// It ran for noteworthy long.
    pub(crate) fn note_nanos(&self, nanos: u64) {
        let mean = match self.mean_nanos() {
            0 => nanos,
            before => before - before / 4 + nanos / 4,
        };
        self.mean().store(mean, Ordering::Relaxed);
    }

    /// It runs in the background: that it was long is forgotten, little by little, if it is no more.
    pub(crate) fn forget_some(&self) {
        let before = self.mean_nanos();
        self.mean().store(before - before / 8, Ordering::Relaxed);
    }

    /// The flags that it declares.
    pub fn flags(&self) -> scripting::ScriptFlags {
        match self {
            Self::Script(script) => script.flags,
            Self::Function(library, place) => library.functions[*place].flags,
        }
    }
}

/// A script on its way to be run.
#[derive(Debug)]
pub struct ScriptCall {
    /// The script or the function to run.
    pub what: Runnable,
    /// How many keys are named; the first is argument 3.
    pub keys: usize,
    /// The command must not write, whatever the script says.
    pub read_only: bool,
}

/// One thread's scripts.
#[derive(Debug, Default)]
pub(crate) struct Scripting {
    /// Made when the first script comes.
    interpreter: Option<Box<Interpreter>>,
    /// Whether it has `getfenv` and `setfenv`.
    deprecated_api: bool,
    /// The releases that the compiled scripts and libraries of this thread take account of.
    releases: u64,
    /// Scripts by the hashes of their texts.
    texts: HashMap<u64, Arc<Script>>,
    /// The script or the function of the next command, if it was found when the command's slots were locked.
    pub(crate) found: Option<Runnable>,
    /// Memory for the replies that scripts get.
    pub(crate) reply: Vec<u8>,
    /// The next script runs under a debugger, which speaks there.
    pub(crate) console: Option<Box<dyn Console + Send>>,
    /// When the last script began, by the thread's clock.
    pub(crate) began: u64,
}

impl Scripting {
    /// The interpreter, for as long as something runs there, with the deprecated functions or without them; `make` makes
    /// it if there is none that fits. To be put back.
    pub(crate) fn take(
        &mut self,
        deprecated_api: bool,
        make: impl FnOnce() -> Box<Interpreter>,
    ) -> Box<Interpreter> {
        let fits = deprecated_api == self.deprecated_api;
        self.deprecated_api = deprecated_api;
        self.interpreter.take().filter(|_| fits).unwrap_or_else(make)
    }

    pub(crate) fn put_back(&mut self, interpreter: Box<Interpreter>) {
        self.interpreter = Some(interpreter);
    }

    /// Drops the scripts and libraries that can no longer be called, if any were released since the last time.
    #[inline]
    pub(crate) fn forget_released(&mut self, releases: u64) {
        if self.releases != releases {
            self.forget(releases);
        }
    }

    #[cold]
    fn forget(&mut self, releases: u64) {
        self.releases = releases;
        self.texts.retain(|_, script| script.is_live());
        self.found = None;
        if let Some(interpreter) = &mut self.interpreter {
            interpreter.forget_released();
        }
    }

    /// The script of this text, if this thread knows it.
    pub(crate) fn by_text(&self, hash: u64, text: &[u8]) -> Option<Arc<Script>> {
        self.texts.get(&hash).filter(|script| *script.text == *text && script.is_live()).cloned()
    }

    pub(crate) fn note_text(&mut self, hash: u64, script: Arc<Script>) {
        if self.texts.len() >= KNOWN_TEXTS {
            self.texts.retain(|_, script| script.is_live());
        }
        if self.texts.len() >= 2 * KNOWN_TEXTS {
            self.texts.clear();
        }
        self.texts.insert(hash, script);
    }

    /// The script of this name, if this thread has compiled it.
    pub(crate) fn by_sha(&self, sha: &[u8; 40]) -> Option<Arc<Script>> {
        self.interpreter.as_ref()?.known(sha)
    }
}

/// A script's name as it is kept, in lower case.
pub fn sha_of(word: &[u8]) -> Option<[u8; 40]> {
    let sha: &[u8; 40] = word.try_into().ok()?;
    Some(sha.map(|digit| digit.to_ascii_lowercase()))
}

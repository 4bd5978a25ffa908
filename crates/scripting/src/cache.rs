//! The script cache of a server, shared by all threads. A thread looks up a script here only if the thread has not
//! compiled the script yet.
//!
//! Scripts added by EVAL are evicted after [`MAX_EVAL_SCRIPTS`] other scripts were used more recently; scripts added by
//! SCRIPT LOAD stay.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::functions::Functions;
use crate::releases::Releases;
use crate::running::InterpreterState;
use crate::script::Script;

/// Maximum number of scripts added by EVAL, as in Redis.
const MAX_EVAL_SCRIPTS: usize = 500;

/// The scripts, function libraries and interpreter states of a server, shared by its threads.
#[derive(Debug, Default)]
pub struct Scripts {
    state: Mutex<CacheState>,
    /// Number of scripts evicted since the start.
    pub evicted: AtomicU64,
    /// The states of all threads' interpreters.
    pub(crate) interpreter_states: Mutex<Vec<Weak<InterpreterState>>>,
    /// The function libraries loaded by FUNCTION LOAD.
    pub functions: Functions,
    releases: Releases,
    /// Whether the server is shutting down, and which scripts the shutdown may stop. All interpreters share this value.
    pub(crate) shutdown_stop_policy: Arc<AtomicU8>,
    /// Memory of all threads' Lua states in bytes.
    pub(crate) lua_bytes: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct CacheState {
    by_sha: HashMap<[u8; 40], Arc<Script>>,
    /// Number of cached scripts that may be evicted, that is, those added by EVAL.
    evictable_count: usize,
}

impl Scripts {
    /// Looks up a script by its SHA1.
    #[must_use]
    pub fn find(&self, sha: &[u8; 40]) -> Option<Arc<Script>> {
        self.state.lock().by_sha.get(sha).cloned()
    }

    /// Adds a script to the cache, or returns the cached script with the same SHA1. `is_pinned` exempts the script from
    /// eviction.
    pub fn add(&self, script: Arc<Script>, is_pinned: bool) -> Arc<Script> {
        let known = &mut *self.state.lock();
        let script = known.by_sha.entry(script.sha).or_insert_with(|| {
            known.evictable_count += 1;
            script
        });
        let script = script.clone();
        if is_pinned && !script.is_pinned.swap(true, Ordering::Relaxed) {
            known.evictable_count -= 1;
        }
        if known.evictable_count > MAX_EVAL_SCRIPTS {
            let evictable = known.by_sha.values().filter(|other| !other.is_pinned.load(Ordering::Relaxed));
            let others = evictable.filter(|other| other.sha != script.sha);
            let oldest = others.min_by_key(|other| other.last_used.load(Ordering::Relaxed)).cloned();
            if let Some(oldest) = oldest {
                oldest.is_live.store(false, Ordering::Release);
                known.by_sha.remove(&oldest.sha);
                known.evictable_count -= 1;
                self.evicted.fetch_add(1, Ordering::Relaxed);
                self.releases.record_release(oldest.text.len());
            }
        }
        script
    }

    /// Removes all scripts from the cache (SCRIPT FLUSH).
    pub fn flush(&self) {
        let known = std::mem::take(&mut *self.state.lock());
        known.by_sha.values().for_each(|script| script.is_live.store(false, Ordering::Release));
        drop(known);
        self.releases.announce();
    }

    /// A counter that grows when threads should drop compiled scripts and libraries that clients can no longer call.
    #[must_use]
    #[inline]
    pub fn announced_release_count(&self) -> u64 {
        self.releases.announcement_count() + self.functions.releases.announcement_count()
    }

    /// Calls `hook` whenever [`Scripts::announced_release_count`] grows, on the thread that caused it. Only the first
    /// hook is used.
    pub fn call_when_released(&self, hook: impl Fn() + Send + Sync + Clone + 'static) {
        self.functions.releases.call_when_announced(Box::new(hook.clone()));
        self.releases.call_when_announced(Box::new(hook));
    }

    /// The number of cached scripts, including those added by SCRIPT LOAD.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.lock().by_sha.len()
    }

    /// Whether the cache is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Total size of the scripts' texts in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let known = self.state.lock();
        known.by_sha.values().map(|script| script.text.len() + size_of::<Script>() + 64).sum()
    }

    /// Memory of all threads' Lua states in bytes.
    #[must_use]
    pub fn lua_bytes(&self) -> usize {
        self.lua_bytes.load(Ordering::Relaxed)
    }

    /// The states of all interpreters whose threads are still alive.
    #[must_use]
    pub fn interpreter_states(&self) -> Vec<Arc<InterpreterState>> {
        self.interpreter_states.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eval_scripts_are_evicted_but_loaded_scripts_are_kept() {
        let scripts = Scripts::default();
        let text = |n: usize| format!("return {n}");
        let make = |n: usize| Arc::new(Script::new(text(n).as_bytes()).unwrap());
        scripts.add(make(0), true);
        let first = scripts.add(make(1), false);
        first.record_use(1000);
        for n in 2..=MAX_EVAL_SCRIPTS + 1 {
            scripts.add(make(n), false).record_use(n as u64);
        }
        assert_eq!(scripts.len(), MAX_EVAL_SCRIPTS + 1);
        assert!(first.is_live() && scripts.find(&first.sha).is_some());
        assert!(scripts.find(&make(0).sha).is_some());
        assert!(scripts.find(&make(2).sha).is_none());
        assert_eq!(scripts.evicted.load(Ordering::Relaxed), 1);
        scripts.flush();
        assert!(!first.is_live() && scripts.is_empty());
    }
}

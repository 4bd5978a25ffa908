//! Prevents garbage from exhausting a script's memory limit.
//!
//! Lua 5.1 raises "not enough memory" as soon as one allocation is refused, whatever the amount of garbage. Its
//! collector makes one small step per allocation, whatever the size, so a loop that creates strings of megabytes
//! outruns it. This module therefore uses larger steps, and before creating a large value it collects all garbage once
//! half of the memory above the live data is used. Allocations that it cannot see (Lua's own `..`) may still fail; the
//! script is then run again with a non-incremental collector ([`GarbageCollector::set_full_collections`]). A script that has written
//! cannot be repeated, so it gets that collector as soon as it uses much memory.
//!
//! Lua memory does not count towards `maxmemory`, so it is published while a script runs for other threads that check
//! for eviction.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use mlua::Lua;
use mlua::state::{GcIncParams, GcMode};

use crate::running::InterpreterState;

/// If memory exceeds this size at the end of a script, all garbage is freed immediately.
const FULL_COLLECTION_BYTES: usize = 64 << 20;
/// If memory exceeds this size at the end of a script, and all threads' states together use half of one state's limit,
/// all garbage is freed.
const SHARED_COLLECTION_BYTES: usize = 1 << 20;
/// Step size in hundredths of a kilobyte: about fifty microseconds, so that a state without live script values is
/// collected within a few steps. Lua's default of 200 would need thousands of steps for large strings.
const STEP_SIZE: i32 = 10_000;
/// A collection starts when memory reaches this percentage of the live memory. The value is Lua's default.
const PAUSE_PERCENT: i32 = 200;

/// Decides when to collect the garbage of one Lua state, in addition to Lua's own steps.
#[derive(Debug)]
pub(crate) struct GarbageCollector {
    /// The memory limit of the state, in bytes.
    limit_bytes: Rc<Cell<usize>>,
    /// Upper bound of the live memory, in bytes.
    live_bytes: Cell<usize>,
    /// Upper bound of the live memory while no script runs, in bytes.
    live_bytes_at_rest: Cell<usize>,
    uses_full_collections: Cell<bool>,
    interpreter_state: Arc<InterpreterState>,
}

impl GarbageCollector {
    /// Step multiplier that makes each step a full collection.
    pub(crate) const FULL_COLLECTION_STEP: i32 = 0;
    /// A full collection starts when memory reaches this percentage of the live memory, so the live memory may be up to
    /// two thirds of the limit.
    pub(crate) const SHORT_PAUSE_PERCENT: i32 = 150;

    pub(crate) fn new(limit: &Rc<Cell<usize>>, interpreter_state: &Arc<InterpreterState>) -> Self {
        Self {
            limit_bytes: limit.clone(),
            live_bytes: Cell::default(),
            live_bytes_at_rest: Cell::default(),
            uses_full_collections: Cell::default(),
            interpreter_state: interpreter_state.clone(),
        }
    }

    /// Makes the state's memory usage visible to other threads.
    pub(crate) fn publish_used_bytes(&self, bytes: usize) {
        self.interpreter_state.publish_memory(bytes);
    }

    /// Starts full collections for the script if they are due with `used_bytes` in use. Returns true at most once per
    /// script.
    pub(crate) fn start_full_collections_if_due(&self, used_bytes: usize) -> bool {
        let due = !self.uses_full_collections.get()
            && used_bytes > self.limit_bytes.get() / 8
            && self.interpreter_state.has_written();
        self.uses_full_collections.set(self.uses_full_collections.get() || due);
        due
    }

    /// Whether to collect garbage before creating a value of `new_bytes`, with `used_bytes` in use.
    pub(crate) fn is_collection_due(&self, used_bytes: usize, new_bytes: usize) -> bool {
        let limit = self.limit_bytes.get();
        if used_bytes.saturating_add(new_bytes) <= limit / 4 {
            return false;
        }
        let live = self.live_bytes.get().min(used_bytes);
        self.live_bytes.set(live);
        let (grown, room) = (used_bytes - live, limit.saturating_sub(live));
        // A collection takes time proportional to the live memory, so little garbage is not worth it.
        grown >= limit / 32 && grown.saturating_add(new_bytes) > room / 2
    }

    /// Whether the live memory was last known to be below half of the limit, so that a failed allocation may be due to
    /// garbage.
    pub(crate) fn may_have_missed_garbage(&self) -> bool {
        self.live_bytes.get() < self.limit_bytes.get() / 2
    }

    /// Records that `live_bytes` are still in use after a full collection.
    pub(crate) fn record_live_bytes(&self, live_bytes: usize) {
        self.live_bytes.set(live_bytes);
    }

    /// Collects garbage if that is due before creating a value of `bytes`.
    pub(crate) fn collect_garbage_if_due(&self, lua: &Lua, bytes: usize) -> mlua::Result<()> {
        let used = lua.used_memory();
        if self.is_collection_due(used, bytes) {
            self.collect_garbage(lua)?;
        }
        self.publish_used_bytes(lua.used_memory() + bytes);
        Ok(())
    }

    /// Runs a full collection.
    pub(crate) fn collect_garbage(&self, lua: &Lua) -> mlua::Result<()> {
        lua.gc_collect()?;
        let used = lua.used_memory();
        self.record_live_bytes(used);
        self.publish_used_bytes(used);
        Ok(())
    }

    /// Collects garbage at the end of a script that has left much of it.
    pub(crate) fn collect_garbage_after_script(&self, lua: &Lua) {
        if self.uses_full_collections.replace(false) {
            Self::set_full_collections(lua, false);
        }
        let used = lua.used_memory();
        self.publish_used_bytes(used);
        let limit = self.limit_bytes.get();
        let kept = if self.interpreter_state.total_memory() > limit / 2 {
            SHARED_COLLECTION_BYTES
        } else {
            FULL_COLLECTION_BYTES
        };
        if used > kept.min(limit / 4) && used > 2 * self.live_bytes_at_rest.get() {
            // Only finalizers can make a collection fail, and the finalizers of this crate never do.
            let _ = self.collect_garbage(lua);
            self.live_bytes_at_rest.set(self.live_bytes.get());
        }
        // The script has ended, so its values are garbage now.
        self.live_bytes.set(self.live_bytes_at_rest.get());
    }

    /// Enables or disables full collections in place of each of Lua's steps.
    pub(crate) fn set_full_collections(lua: &Lua, enabled: bool) {
        let mut parameters = GcIncParams::default();
        parameters.step_multiplier = Some(if enabled { Self::FULL_COLLECTION_STEP } else { STEP_SIZE });
        parameters.pause = Some(if enabled { Self::SHORT_PAUSE_PERCENT } else { PAUSE_PERCENT });
        lua.gc_set_mode(GcMode::Incremental(parameters));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    #[test]
    fn collection_starts_at_half_of_available_memory() {
        let collector = GarbageCollector::new(&Rc::new(Cell::new(64 * MB)), &Arc::default());
        assert!(!collector.is_collection_due(15 * MB, MB));
        assert!(!collector.is_collection_due(30 * MB, MB));
        assert!(collector.is_collection_due(30 * MB, 3 * MB));
        collector.record_live_bytes(24 * MB);
        assert!(!collector.is_collection_due(42 * MB, MB));
        assert!(collector.is_collection_due(43 * MB, 2 * MB));
        // Lua's own steps have freed more memory than half of the room above the live data.
        assert!(!collector.is_collection_due(8 * MB, 10 * MB));
        assert!(collector.is_collection_due(30 * MB, 8 * MB));
        // The collection freed nothing, and little was allocated after it.
        collector.record_live_bytes(60 * MB);
        assert!(!collector.is_collection_due(61 * MB, 40 * MB));
        assert!(collector.is_collection_due(62 * MB, MB + 1));
    }
}

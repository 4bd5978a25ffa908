//! Keeps garbage from using up the memory that a script may take.
//!
//! Lua 5.1 raises "not enough memory" as soon as an allocation is refused, however much garbage there is, and its
//! collector takes one small step per allocation, however large that is: a loop that makes strings of megabytes gets far
//! ahead of it. So its steps are larger here, and where large values are made, all garbage is collected once half of the
//! room above the live memory is used. What this misses (Lua's own `..`) fails, and the script is run again with a
//! collector that does not work in steps ([`Collector::set_thorough`]). A script that has written cannot run again: it
//! gets that collector as soon as it takes much memory.
//!
//! The memory of a state does not count for `maxmemory`, so it is published while a script runs: other threads may look
//! for what to evict meanwhile.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use mlua::Lua;
use mlua::state::{GcIncParams, GcMode};

use crate::running::Running;

/// With more than that at the end of a script, all that is no longer used is freed at once.
const MUCH_MEMORY: usize = 64 << 20;
/// With more than that, all that is no longer used is freed while the states of all threads take half of what one may.
const SOME_MEMORY: usize = 1 << 20;
/// The work of a step in hundredths of a kilobyte: some fifty microseconds, and a state without live values of a script
/// is through within a few steps. In Lua it is 200, so that garbage in large strings is thousands of steps ahead.
const STEPWISE: i32 = 10_000;
/// As in Lua: a collection begins when the memory is that many percent of the live memory.
const PAUSE: i32 = 200;

/// Decides when one state of Lua is collected beside Lua's own steps.
#[derive(Debug)]
pub(crate) struct Collector {
    /// The memory limit of the state, in bytes.
    limit: Rc<Cell<usize>>,
    /// At most this much is in use without the garbage.
    live: Cell<usize>,
    /// The same while no script runs.
    live_at_rest: Cell<usize>,
    is_thorough: Cell<bool>,
    running: Arc<Running>,
}

impl Collector {
    /// The multiplier with which a step is a whole collection.
    pub(crate) const THOROUGH: i32 = 0;
    /// A thorough collection begins when the memory is that many percent of the live memory: the live memory may be two
    /// thirds of the limit.
    pub(crate) const SHORT_PAUSE: i32 = 150;

    pub(crate) fn new(limit: &Rc<Cell<usize>>, running: &Arc<Running>) -> Self {
        Self {
            limit: limit.clone(),
            live: Cell::default(),
            live_at_rest: Cell::default(),
            is_thorough: Cell::default(),
            running: running.clone(),
        }
    }

    /// Publishes that so many bytes are in use.
    pub(crate) fn note_used(&self, bytes: usize) {
        self.running.note_memory(bytes);
    }

    /// Whether the script is to go on with a thorough collector, with `used` bytes in use; true once in a script.
    pub(crate) fn is_to_be_thorough(&self, used: usize) -> bool {
        let due = !self.is_thorough.get() && used > self.limit.get() / 8 && self.running.is_dirty();
        self.is_thorough.set(self.is_thorough.get() || due);
        due
    }

    /// Whether to collect before a value of `bytes` is made, with `used` in use.
    pub(crate) fn is_due(&self, used: usize, bytes: usize) -> bool {
        let limit = self.limit.get();
        if used.saturating_add(bytes) <= limit / 4 {
            return false;
        }
        let live = self.live.get().min(used);
        self.live.set(live);
        let (grown, room) = (used - live, limit.saturating_sub(live));
        // A collection takes as long as the live memory is large: little garbage is not worth it.
        grown >= limit / 32 && grown.saturating_add(bytes) > room / 2
    }

    /// Whether less than half of the limit was in use when it was last known without the garbage.
    pub(crate) fn may_have_missed_garbage(&self) -> bool {
        self.live.get() < self.limit.get() / 2
    }

    /// A full collection left `used` bytes in use.
    pub(crate) fn note_live(&self, used: usize) {
        self.live.set(used);
    }

    /// Collects if that is due before a value of `bytes` is made.
    pub(crate) fn make_room(&self, lua: &Lua, bytes: usize) -> mlua::Result<()> {
        let used = lua.used_memory();
        if self.is_due(used, bytes) {
            self.collect(lua)?;
        }
        self.note_used(lua.used_memory() + bytes);
        Ok(())
    }

    /// Frees everything that is no longer used.
    pub(crate) fn collect(&self, lua: &Lua) -> mlua::Result<()> {
        lua.gc_collect()?;
        let used = lua.used_memory();
        self.note_live(used);
        self.note_used(used);
        Ok(())
    }

    /// Collects at the end of a script that has left much garbage.
    pub(crate) fn tidy(&self, lua: &Lua) {
        if self.is_thorough.replace(false) {
            Self::set_thorough(lua, false);
        }
        let used = lua.used_memory();
        self.note_used(used);
        let limit = self.limit.get();
        let kept = if self.running.memory_of_all() > limit / 2 { SOME_MEMORY } else { MUCH_MEMORY };
        if used > kept.min(limit / 4) && used > 2 * self.live_at_rest.get() {
            // Only finalizers can fail, and those of this crate do not.
            let _ = self.collect(lua);
            self.live_at_rest.set(self.live.get());
        }
        // The values of the script are garbage now.
        self.live.set(self.live_at_rest.get());
    }

    /// Whether Lua collects everything at once whenever it would take a step.
    pub(crate) fn set_thorough(lua: &Lua, thorough: bool) {
        let mut parameters = GcIncParams::default();
        parameters.step_multiplier = Some(if thorough { Self::THOROUGH } else { STEPWISE });
        parameters.pause = Some(if thorough { Self::SHORT_PAUSE } else { PAUSE });
        lua.gc_set_mode(GcMode::Incremental(parameters));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    #[test]
    fn garbage_is_collected_once_half_of_the_room_is_used() {
        let collector = Collector::new(&Rc::new(Cell::new(64 * MB)), &Arc::default());
        assert!(!collector.is_due(15 * MB, MB));
        assert!(!collector.is_due(30 * MB, MB));
        assert!(collector.is_due(30 * MB, 3 * MB));
        collector.note_live(24 * MB);
        assert!(!collector.is_due(42 * MB, MB));
        assert!(collector.is_due(43 * MB, 2 * MB));
        // Lua's own steps have freed more.
        assert!(!collector.is_due(8 * MB, 10 * MB));
        assert!(collector.is_due(30 * MB, 8 * MB));
        // Nothing was freed and little was made since.
        collector.note_live(60 * MB);
        assert!(!collector.is_due(61 * MB, 40 * MB));
        assert!(collector.is_due(62 * MB, MB + 1));
    }
}

//! Keeps garbage from using up the memory that a script may take.
//!
//! Lua 5.1 raises "not enough memory" as soon as an allocation is refused, however much garbage there is, and its
//! collector takes one small step per allocation, however large that is: a loop that makes strings of megabytes gets far
//! ahead of it. So where large values are made, all garbage is collected once half of the room above the live memory is
//! used. What this misses (Lua's own `..`) fails, and the script is run again with a collector that does not work in
//! steps ([`Collector::set_thorough`]), unless the script has written.

use std::cell::Cell;
use std::rc::Rc;

use mlua::Lua;
use mlua::state::{GcIncParams, GcMode};

/// With more than that at the end of a script, all that is no longer used is freed at once.
const MUCH_MEMORY: usize = 64 << 20;
/// Lua's own pace: two units of work per unit that is allocated.
const STEPWISE: i32 = 200;
/// A step is a whole collection.
const THOROUGH: i32 = 0;

/// Decides when one state of Lua is collected beside Lua's own steps.
#[derive(Debug)]
pub(crate) struct Collector {
    /// The memory limit of the state, in bytes.
    limit: Rc<Cell<usize>>,
    /// At most this much is in use without the garbage.
    live: Cell<usize>,
    /// The same while no script runs.
    live_at_rest: Cell<usize>,
}

impl Collector {
    pub(crate) fn new(limit: &Rc<Cell<usize>>) -> Self {
        Self { limit: limit.clone(), live: Cell::default(), live_at_rest: Cell::default() }
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
        if self.is_due(lua.used_memory(), bytes) {
            self.collect(lua)?;
        }
        Ok(())
    }

    /// Frees everything that is no longer used.
    pub(crate) fn collect(&self, lua: &Lua) -> mlua::Result<()> {
        lua.gc_collect()?;
        self.note_live(lua.used_memory());
        Ok(())
    }

    /// Collects at the end of a script that has left much garbage.
    pub(crate) fn tidy(&self, lua: &Lua) {
        let used = lua.used_memory();
        if used > MUCH_MEMORY.min(self.limit.get() / 4) && used > 2 * self.live_at_rest.get() {
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
        parameters.step_multiplier = Some(if thorough { THOROUGH } else { STEPWISE });
        lua.gc_set_mode(GcMode::Incremental(parameters));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    #[test]
    fn garbage_is_collected_once_half_of_the_room_is_used() {
        let collector = Collector::new(&Rc::new(Cell::new(64 * MB)));
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

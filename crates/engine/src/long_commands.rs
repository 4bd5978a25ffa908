//! Commands that take long, which background workers run: how long that is, and the slots that they hold or are next to
//! hold.
//!
//! A command that wants such a slot would keep its worker waiting for all that time, and the worker's other connections
//! with it. So it goes to the background too, where it waits its turn.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use slot_routing::Slot;

/// Long commands and their slots.
#[derive(Debug)]
pub struct LongCommands {
    /// So many nanoseconds are long.
    threshold: AtomicU64,
    /// How many are with background workers that are about some slot.
    running: AtomicUsize,
    /// Their slots, and how many each has. Only asked about a slot that another thread holds.
    slots: Mutex<BTreeMap<Slot, usize>>,
}

/// The slots of a long command, until that has run.
#[derive(Debug)]
pub(crate) struct LongSlots<'a> {
    all: &'a LongCommands,
    slots: Vec<Slot>,
}

impl Default for LongCommands {
    fn default() -> Self {
        Self { threshold: AtomicU64::new(u64::MAX), running: AtomicUsize::new(0), slots: Mutex::default() }
    }
}

impl LongCommands {
    /// Says how many nanoseconds are long.
    pub fn set_threshold(&self, nanos: u64) {
        self.threshold.store(nanos, Ordering::Relaxed);
    }

    /// How many nanoseconds are long.
    #[must_use]
    pub fn threshold(&self) -> u64 {
        self.threshold.load(Ordering::Relaxed)
    }

    /// A long command begins that is about these slots.
    pub(crate) fn begin(&self, slots: Vec<Slot>) -> LongSlots<'_> {
        if !slots.is_empty() {
            self.running.fetch_add(1, Ordering::Relaxed);
            let mut all = self.slots.lock();
            slots.iter().for_each(|slot| *all.entry(*slot).or_default() += 1);
        }
        LongSlots { all: self, slots }
    }

    /// Whether a long command is about one of these slots; or about any, if these are none.
    pub(crate) fn hold_any(&self, slots: &[Slot]) -> bool {
        if self.running.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let all = self.slots.lock();
        slots.is_empty() || slots.iter().any(|slot| all.contains_key(slot))
    }
}

impl Drop for LongSlots<'_> {
    fn drop(&mut self) {
        if self.slots.is_empty() {
            return;
        }
        self.all.running.fetch_sub(1, Ordering::Relaxed);
        let mut all = self.all.slots.lock();
        for slot in &self.slots {
            match all.get_mut(slot) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(all.remove(slot)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_held_as_long_as_one_of_its_commands_runs() {
        let (all, slot) = (LongCommands::default(), |number| Slot::new(number).unwrap());
        assert!(!all.hold_any(&[slot(1)]) && !all.hold_any(&[]));
        let first = all.begin(vec![slot(1), slot(1), slot(2)]);
        let second = all.begin(vec![slot(1)]);
        assert!(all.hold_any(&[slot(3), slot(1)]) && !all.hold_any(&[slot(3)]) && all.hold_any(&[]));
        drop(first);
        assert!(all.hold_any(&[slot(1)]) && !all.hold_any(&[slot(2)]));
        drop(second);
        assert!(!all.hold_any(&[slot(1)]) && !all.hold_any(&[]));
        drop(all.begin(Vec::new()));
    }
}

//! Registry of slow commands on background workers: the duration threshold, and the slots that those commands have
//! locked or will lock.
//!
//! A command that waited for such a slot would block its worker and the worker's other connections. Therefore the
//! waiting command also moves to the background and waits there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use slot_routing::Slot;

/// The threshold for slow commands, and the slots that slow commands use.
#[derive(Debug)]
pub struct LongCommands {
    /// Estimated duration in nanoseconds from which a command runs in the background.
    threshold: AtomicU64,
    /// Number of slow commands in the background that use slots.
    running_count: AtomicUsize,
    /// Number of slow commands per slot. Other threads read it only when they find a slot locked.
    commands_by_slot: Mutex<BTreeMap<Slot, usize>>,
}

/// The slots of a running slow command; dropping this value unregisters them.
#[derive(Debug)]
pub(crate) struct LongCommandSlots<'a> {
    registry: &'a LongCommands,
    slots: Vec<Slot>,
}

impl Default for LongCommands {
    fn default() -> Self {
        Self {
            threshold: AtomicU64::new(u64::MAX),
            running_count: AtomicUsize::new(0),
            commands_by_slot: Mutex::default(),
        }
    }
}

impl LongCommands {
    /// Sets the estimated duration in nanoseconds from which a command runs in the background.
    pub fn set_threshold(&self, nanos: u64) {
        self.threshold.store(nanos, Ordering::Relaxed);
    }

    /// Returns the estimated duration in nanoseconds from which a command runs in the background.
    #[must_use]
    pub fn threshold(&self) -> u64 {
        self.threshold.load(Ordering::Relaxed)
    }

    /// Registers a slow command with its slots.
    pub(crate) fn register(&self, slots: Vec<Slot>) -> LongCommandSlots<'_> {
        if !slots.is_empty() {
            self.running_count.fetch_add(1, Ordering::Relaxed);
            let mut all = self.commands_by_slot.lock();
            slots.iter().for_each(|slot| *all.entry(*slot).or_default() += 1);
        }
        LongCommandSlots { registry: self, slots }
    }

    /// Returns whether a slow command uses one of these slots, or any slot if the list is empty.
    pub(crate) fn uses_any_slot(&self, slots: &[Slot]) -> bool {
        if self.running_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let all = self.commands_by_slot.lock();
        slots.is_empty() || slots.iter().any(|slot| all.contains_key(slot))
    }
}

impl Drop for LongCommandSlots<'_> {
    fn drop(&mut self) {
        if self.slots.is_empty() {
            return;
        }
        self.registry.running_count.fetch_sub(1, Ordering::Relaxed);
        let mut all = self.registry.commands_by_slot.lock();
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
    fn slot_is_registered_while_slow_command_runs() {
        let (all, slot) = (LongCommands::default(), |number| Slot::new(number).unwrap());
        assert!(!all.uses_any_slot(&[slot(1)]) && !all.uses_any_slot(&[]));
        let first = all.register(vec![slot(1), slot(1), slot(2)]);
        let second = all.register(vec![slot(1)]);
        assert!(
            all.uses_any_slot(&[slot(3), slot(1)])
                && !all.uses_any_slot(&[slot(3)])
                && all.uses_any_slot(&[])
        );
        drop(first);
        assert!(all.uses_any_slot(&[slot(1)]) && !all.uses_any_slot(&[slot(2)]));
        drop(second);
        assert!(!all.uses_any_slot(&[slot(1)]) && !all.uses_any_slot(&[]));
        drop(all.register(Vec::new()));
    }
}

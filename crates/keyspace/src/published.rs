//! Per-slot summaries that can be read without locking the slot: key counts and the next expiry.
//!
//! A slot publishes its changes when it is unlocked. A global lower bound of all expiry times lets the expiry thread
//! sleep without polling 16384 slots. When a slot's next expiry becomes earlier, the bound is lowered; when it becomes
//! later, the bound stays; a scan over all slots recomputes the bound.
//!
//! A scan must not miss the time of a slot that is published during the scan. The slot writes its own time and then
//! reads the bound; the scan writes the bound and then reads the slots' times; each has a fence between its write and
//! its read. So at least one of them sees the other's write, and both only lower the bound.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering, fence};

use clock::Millis;
use slot_routing::Slot;

use crate::page;
use crate::shared_slots::AtomicSlotSet;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotSummary {
    pub(crate) keys: u32,
    pub(crate) other_database_keys: u32,
    /// Number of keys with an expiry, in all databases.
    pub(crate) volatile: u32,
    /// Number of keys whose values have expiring elements, in all databases.
    pub(crate) keys_with_element_expiry: u32,
    /// Lower bound of the time at which the next key or element of the slot expires.
    pub(crate) next_expiry: Millis,
}

impl SlotSummary {
    /// Returns whether the slot holds no keys.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys | self.other_database_keys == 0
    }
}

/// The summaries of all slots, each as it was when the slot was last unlocked.
pub(crate) struct PublishedSummaries {
    /// Number of keys in database 0, by slot.
    pub(crate) keys: Box<[AtomicU32]>,
    pub(crate) other_database_keys: Box<[AtomicU32]>,
    /// Slots that contain keys of any database.
    pub(crate) non_empty_slots: AtomicSlotSet,
    /// Number of keys with an expiry in all databases, by slot.
    pub(crate) volatile: Box<[AtomicU32]>,
    /// Number of keys whose values have expiring elements, in all slots and databases.
    pub(crate) keys_with_element_expiry: AtomicUsize,
    /// Lower bound of the next expiry time in milliseconds, by slot.
    next_expiry_by_slot: Box<[AtomicI64]>,
    /// Lower bound of the next expiry time over all slots, in milliseconds.
    next_expiry_bound: AtomicI64,
    on_earlier_expiry_callback: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Default for PublishedSummaries {
    fn default() -> Self {
        let counts = || Slot::all().map(|_| AtomicU32::new(0)).collect();
        Self {
            keys: counts(),
            other_database_keys: counts(),
            non_empty_slots: AtomicSlotSet::default(),
            volatile: counts(),
            keys_with_element_expiry: AtomicUsize::new(0),
            next_expiry_by_slot: Slot::all().map(|_| AtomicI64::new(page::NO_EXPIRY.0)).collect(),
            next_expiry_bound: AtomicI64::new(page::NO_EXPIRY.0),
            on_earlier_expiry_callback: OnceLock::new(),
        }
    }
}

impl std::fmt::Debug for PublishedSummaries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Published").field("next_due", &self.next_expiry_bound).finish_non_exhaustive()
    }
}

impl PublishedSummaries {
    /// Publishes the changed fields. Unchanged fields are not written, so that their cache lines stay shared between
    /// cores.
    #[inline]
    pub(crate) fn publish(&self, slot: Slot, new: SlotSummary, old: SlotSummary) {
        let index = slot.index();
        self.keys[index].store(new.keys, Ordering::Relaxed);
        self.next_expiry_by_slot[index].store(new.next_expiry.0, Ordering::Relaxed);
        if (new.other_database_keys, new.volatile) != (old.other_database_keys, old.volatile) {
            self.other_database_keys[index].store(new.other_database_keys, Ordering::Relaxed);
            self.volatile[index].store(new.volatile, Ordering::Relaxed);
        }
        if new.is_empty() != old.is_empty() {
            self.non_empty_slots.set(slot, !new.is_empty());
        }
        if new.keys_with_element_expiry != old.keys_with_element_expiry {
            // The sum may wrap around temporarily; it is correct once all threads have added their changes.
            let change =
                (new.keys_with_element_expiry as usize).wrapping_sub(old.keys_with_element_expiry as usize);
            self.keys_with_element_expiry.fetch_add(change, Ordering::Relaxed);
        }
        if new.next_expiry < old.next_expiry {
            self.notify_earlier_expiry(new.next_expiry);
        }
    }

    #[inline(never)]
    fn notify_earlier_expiry(&self, expiry: Millis) {
        fence(Ordering::SeqCst);
        if expiry.0 >= self.next_expiry_bound.load(Ordering::Relaxed) {
            return;
        }
        let before = self.next_expiry_bound.fetch_min(expiry.0, Ordering::Relaxed);
        if expiry.0 < before
            && let Some(notify) = self.on_earlier_expiry_callback.get()
        {
            notify();
        }
    }

    pub(crate) fn next_expiry(&self) -> Millis {
        Millis(self.next_expiry_bound.load(Ordering::Relaxed))
    }

    /// Returns the slots with due expiries by checking every slot. The times of these slots are included in the new
    /// bound, because the caller may not process all of them.
    pub(crate) fn slots_with_expiries_due(&self, now: Millis) -> Vec<Slot> {
        self.next_expiry_bound.store(page::NO_EXPIRY.0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let (mut due, mut next) = (Vec::new(), page::NO_EXPIRY.0);
        for slot in Slot::all() {
            let at = self.next_expiry_by_slot[slot.index()].load(Ordering::Relaxed);
            next = next.min(at);
            if at <= now.0 {
                due.push(slot);
            }
        }
        self.next_expiry_bound.fetch_min(next, Ordering::Relaxed);
        due
    }

    pub(crate) fn on_earlier_expiry(&self, notify: Box<dyn Fn() + Send + Sync>) {
        assert!(self.on_earlier_expiry_callback.set(notify).is_ok(), "one shell expires keys");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const EMPTY_SLOT: SlotSummary = SlotSummary {
        keys: 0,
        other_database_keys: 0,
        volatile: 0,
        keys_with_element_expiry: 0,
        next_expiry: page::NO_EXPIRY,
    };

    fn summary_due_at(millis: i64) -> SlotSummary {
        SlotSummary { keys: 1, volatile: 1, next_expiry: Millis(millis), ..EMPTY_SLOT }
    }

    #[test]
    fn earlier_expiry_updates_bound_and_notifies() {
        let (published, rung) = (PublishedSummaries::default(), Arc::new(AtomicUsize::new(0)));
        let counter = rung.clone();
        published.on_earlier_expiry(Box::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        let slot = |number| Slot::new(number).unwrap();
        assert_eq!(published.next_expiry(), page::NO_EXPIRY);
        published.publish(slot(7), summary_due_at(50), EMPTY_SLOT);
        published.publish(slot(8), summary_due_at(60), EMPTY_SLOT);
        assert_eq!((published.next_expiry(), rung.load(Ordering::Relaxed)), (Millis(50), 1));
        published.publish(slot(9), summary_due_at(40), EMPTY_SLOT);
        assert_eq!((published.next_expiry(), rung.load(Ordering::Relaxed)), (Millis(40), 2));
        // When the expiry of a slot becomes later, the bound is not raised until the next scan.
        published.publish(slot(9), summary_due_at(70), summary_due_at(40));
        assert_eq!(published.next_expiry(), Millis(40));
        assert_eq!(published.slots_with_expiries_due(Millis(55)), [slot(7)]);
        assert_eq!(published.next_expiry(), Millis(50));
        published.publish(slot(7), EMPTY_SLOT, summary_due_at(50));
        assert_eq!(published.slots_with_expiries_due(Millis(55)), []);
        assert_eq!((published.next_expiry(), rung.load(Ordering::Relaxed)), (Millis(60), 2));
    }

    /// If a slot publishes an earlier expiry during a scan, the bound must not be later than this expiry after the
    /// scan.
    #[test]
    fn concurrent_scan_does_not_miss_an_earlier_expiry() {
        const ITERATIONS: i64 = 20_000;
        let published = PublishedSummaries::default();
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                while published.keys[0].load(Ordering::Acquire) == 0 {
                    published.slots_with_expiries_due(Millis(0));
                }
            });
            let mut before = EMPTY_SLOT;
            for time in (1..=ITERATIONS).rev() {
                let next = SlotSummary { keys: 0, volatile: 1, next_expiry: Millis(time), ..EMPTY_SLOT };
                published.publish(Slot::new(3).unwrap(), next, before);
                before = next;
                if time % 100 == 0 {
                    published.publish(Slot::new(3).unwrap(), EMPTY_SLOT, before);
                    before = EMPTY_SLOT;
                }
            }
            published.keys[0].store(1, Ordering::Release);
            looks.join().unwrap();
        });
        assert_eq!(published.next_expiry(), Millis(1));
    }
}

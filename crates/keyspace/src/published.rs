//! Per-slot summaries that are readable without the slot locks: key counts and the next expiry.
//!
//! A slot publishes its changes when it is unlocked. A global lower bound of all expiry times lets the expiry
//! thread sleep without polling 16384 slots. A slot whose time moves earlier lowers the bound; a slot whose
//! time moves later leaves it; a scan over all slots recomputes it.
//!
//! A scan that races with a publishing slot must not miss its time. The slot writes its own time and then
//! reads the bound; the scan writes the bound and then reads the slots' times; each has a fence between. So
//! at least one of them sees the other's write, and both only lower the bound.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering, fence};

use clock::Millis;
use slot_routing::Slot;

use crate::page;
use crate::shared_slots::SharedSlots;

/// The published summary of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Number of keys in database 0.
    pub(crate) keys: u32,
    /// Number of keys in the other databases.
    pub(crate) others: u32,
    /// Number of keys with an expiry, all databases.
    pub(crate) volatile: u32,
    /// Number of keys whose values have expiring elements, all databases.
    pub(crate) timed: u32,
    /// Lower bound of the next expiry.
    pub(crate) due: Millis,
}

impl Summary {
    /// Whether the slot holds no keys.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys | self.others == 0
    }
}

/// The summaries of all slots, each as of its last unlock.
pub(crate) struct Published {
    /// Number of keys in database 0, by slot.
    pub(crate) keys: Box<[AtomicU32]>,
    /// Number of keys in the other databases, by slot.
    pub(crate) others: Box<[AtomicU32]>,
    /// Slots that hold keys of any database.
    pub(crate) filled: SharedSlots,
    /// Number of keys with an expiry in all databases, by slot.
    pub(crate) volatile: Box<[AtomicU32]>,
    /// Number of keys whose values have expiring elements, all slots and databases.
    pub(crate) timed: AtomicUsize,
    /// Lower bound of the next expiry in milliseconds, by slot.
    due: Box<[AtomicI64]>,
    /// Lower bound over all slots.
    next_due: AtomicI64,
    notify: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Default for Published {
    fn default() -> Self {
        let counts = || Slot::all().map(|_| AtomicU32::new(0)).collect();
        Self {
            keys: counts(),
            others: counts(),
            filled: SharedSlots::default(),
            volatile: counts(),
            timed: AtomicUsize::new(0),
            due: Slot::all().map(|_| AtomicI64::new(page::NEVER.0)).collect(),
            next_due: AtomicI64::new(page::NEVER.0),
            notify: OnceLock::new(),
        }
    }
}

impl std::fmt::Debug for Published {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Published").field("next_due", &self.next_due).finish_non_exhaustive()
    }
}

impl Published {
    /// Writes only changed fields, so that cache lines are not transferred needlessly.
    #[inline]
    pub(crate) fn publish(&self, slot: Slot, new: Summary, old: Summary) {
        let index = slot.index();
        self.keys[index].store(new.keys, Ordering::Relaxed);
        self.due[index].store(new.due.0, Ordering::Relaxed);
        if (new.others, new.volatile) != (old.others, old.volatile) {
            self.others[index].store(new.others, Ordering::Relaxed);
            self.volatile[index].store(new.volatile, Ordering::Relaxed);
        }
        if new.is_empty() != old.is_empty() {
            self.filled.set(slot, !new.is_empty());
        }
        if new.timed != old.timed {
            // Wrapping arithmetic: the sum is right once all threads have added their changes.
            let change = (new.timed as usize).wrapping_sub(old.timed as usize);
            self.timed.fetch_add(change, Ordering::Relaxed);
        }
        if new.due < old.due {
            self.notify_earlier_expiry(new.due);
        }
    }

    #[inline(never)]
    fn notify_earlier_expiry(&self, due: Millis) {
        fence(Ordering::SeqCst);
        if due.0 >= self.next_due.load(Ordering::Relaxed) {
            return;
        }
        let before = self.next_due.fetch_min(due.0, Ordering::Relaxed);
        if due.0 < before
            && let Some(notify) = self.notify.get()
        {
            notify();
        }
    }

    pub(crate) fn next_due(&self) -> Millis {
        Millis(self.next_due.load(Ordering::Relaxed))
    }

    /// Checks every slot. Slots that are due also count for the next time, because they may not be processed.
    pub(crate) fn due_slots(&self, now: Millis) -> Vec<Slot> {
        self.next_due.store(page::NEVER.0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let (mut due, mut next) = (Vec::new(), page::NEVER.0);
        for slot in Slot::all() {
            let at = self.due[slot.index()].load(Ordering::Relaxed);
            next = next.min(at);
            if at <= now.0 {
                due.push(slot);
            }
        }
        self.next_due.fetch_min(next, Ordering::Relaxed);
        due
    }

    pub(crate) fn on_earlier_expiry(&self, notify: Box<dyn Fn() + Send + Sync>) {
        assert!(self.notify.set(notify).is_ok(), "one shell expires keys");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const EMPTY: Summary = Summary { keys: 0, others: 0, volatile: 0, timed: 0, due: page::NEVER };

    fn due(millis: i64) -> Summary {
        Summary { keys: 1, volatile: 1, due: Millis(millis), ..EMPTY }
    }

    #[test]
    fn earlier_expiry_updates_bound_and_notifies() {
        let (published, rung) = (Published::default(), Arc::new(AtomicUsize::new(0)));
        let counter = rung.clone();
        published.on_earlier_expiry(Box::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        let slot = |number| Slot::new(number).unwrap();
        assert_eq!(published.next_due(), page::NEVER);
        published.publish(slot(7), due(50), EMPTY);
        published.publish(slot(8), due(60), EMPTY);
        assert_eq!((published.next_due(), rung.load(Ordering::Relaxed)), (Millis(50), 1));
        published.publish(slot(9), due(40), EMPTY);
        assert_eq!((published.next_due(), rung.load(Ordering::Relaxed)), (Millis(40), 2));
        // A later time does not raise the bound before the next scan.
        published.publish(slot(9), due(70), due(40));
        assert_eq!(published.next_due(), Millis(40));
        assert_eq!(published.due_slots(Millis(55)), [slot(7)]);
        assert_eq!(published.next_due(), Millis(50));
        published.publish(slot(7), EMPTY, due(50));
        assert_eq!(published.due_slots(Millis(55)), []);
        assert_eq!((published.next_due(), rung.load(Ordering::Relaxed)), (Millis(60), 2));
    }

    /// However a scan and new times interleave, afterwards no slot's time is below the bound.
    #[test]
    fn concurrent_scan_does_not_miss_an_earlier_expiry() {
        const TIMES: i64 = 20_000;
        let published = Published::default();
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                while published.keys[0].load(Ordering::Acquire) == 0 {
                    published.due_slots(Millis(0));
                }
            });
            let mut before = EMPTY;
            for time in (1..=TIMES).rev() {
                let next = Summary { keys: 0, volatile: 1, due: Millis(time), ..EMPTY };
                published.publish(Slot::new(3).unwrap(), next, before);
                before = next;
                if time % 100 == 0 {
                    published.publish(Slot::new(3).unwrap(), EMPTY, before);
                    before = EMPTY;
                }
            }
            published.keys[0].store(1, Ordering::Release);
            looks.join().unwrap();
        });
        assert_eq!(published.next_due(), Millis(1));
    }
}

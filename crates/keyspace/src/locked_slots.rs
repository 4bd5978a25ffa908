//! The set of slots that one command has locked.

use std::ops::{Deref, DerefMut};

use clock::Millis;
use slot_routing::Slot;
use smallvec::SmallVec;

use crate::entries::KeyLookup;
use crate::global_lock::GlobalLock;
use crate::key::Key;
use crate::keyspace::{Keyspace, WaitPolicy};
use crate::prefetched::PrefetchedSlot;
use crate::slot::{SlotData, SlotGuard};
use crate::usage::Usage;

/// Maximum number of slots that can be locked without a heap allocation besides the guards.
const MAX_INLINE_SLOTS: usize = 16;
/// Maximum number of keys to prefetch; with more keys, the first cache lines would be evicted before they are used.
const MAX_PREFETCHED_KEYS: usize = 512;

/// The slots that one command has locked, in ascending order.
#[derive(Debug, Default)]
pub struct LockedSlots<'k> {
    /// The locked slot if there is only one, which is the most common case.
    single_guard: Option<SlotGuard<'k>>,
    /// All locked slots, if there are several.
    guards: SlotGuards<'k>,
    /// Slots borrowed from another `LockedSlots`, which has locked them. If there are any, the two fields above are
    /// empty.
    borrowed: BorrowedSlots<'k>,
}

/// Slots that are unlocked together. All are published before the first is unlocked. A thread that then locks one of
/// them and reads the published key counts of the others ([`Keyspace::slot_len`]) therefore sees every change.
#[derive(Debug, Default)]
struct SlotGuards<'k>(Vec<SlotGuard<'k>>);

impl SlotGuards<'_> {
    /// Unlocks all slots. Inlined, because there are usually none.
    #[inline]
    fn clear(&mut self) {
        if !self.0.is_empty() {
            self.publish_and_unlock();
        }
    }

    fn publish_and_unlock(&mut self) {
        // Publish slots that become non-empty first, so that a key that moves between slots is always visible in at
        // least one of them.
        self.0.iter_mut().filter(|guard| guard.becomes_non_empty()).for_each(SlotGuard::publish);
        self.0.iter_mut().for_each(SlotGuard::publish);
        self.0.clear();
    }
}

impl Drop for SlotGuards<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<'k> Deref for SlotGuards<'k> {
    type Target = Vec<SlotGuard<'k>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for SlotGuards<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// Slots that another `LockedSlots` has locked; usually one.
#[derive(Debug, Default)]
enum BorrowedSlots<'k> {
    #[default]
    None,
    One(BorrowedLock<'k>),
    /// Several borrowed slots, in ascending order.
    Several(Vec<BorrowedLock<'k>>),
    /// All slots of the lender, so that they need not be borrowed one by one.
    All(Box<dyn SlotLender + 'k>),
}

/// Slots in ascending order that can be borrowed from a `LockedSlots`.
trait SlotLender: std::fmt::Debug {
    fn slot_data(&self, slot: Slot) -> Option<&SlotData>;
    fn slot_data_mut(&mut self, slot: Slot) -> Option<&mut SlotData>;
    fn iter_slots<'a>(&'a mut self) -> Box<dyn Iterator<Item = &'a mut SlotData> + 'a>;
}

impl SlotLender for &mut Vec<SlotGuard<'_>> {
    fn slot_data(&self, slot: Slot) -> Option<&SlotData> {
        position_in(self, slot, SlotGuard::slot).map(|place| &*self[place])
    }

    fn slot_data_mut(&mut self, slot: Slot) -> Option<&mut SlotData> {
        position_in(self, slot, SlotGuard::slot).map(|place| &mut *self[place])
    }

    fn iter_slots<'a>(&'a mut self) -> Box<dyn Iterator<Item = &'a mut SlotData> + 'a> {
        Box::new(self.iter_mut().map(|guard| &mut **guard))
    }
}

/// A borrowed slot and its data.
#[derive(Debug)]
struct BorrowedLock<'k> {
    slot: Slot,
    slot_data: &'k mut SlotData,
}

/// Returns the index of `slot` in a list in ascending order; it is the slot number if the list contains every slot.
fn position_in<T>(ascending: &[T], slot: Slot, slot_of: impl Fn(&T) -> Slot) -> Option<usize> {
    let own = slot.index();
    if ascending.get(own).is_some_and(|there| slot_of(there) == slot) {
        return Some(own);
    }
    ascending.binary_search_by_key(&slot, slot_of).ok()
}

impl BorrowedSlots<'_> {
    fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    fn data(&self, slot: Slot) -> Option<&SlotData> {
        match self {
            Self::None => None,
            Self::One(borrowed) => (borrowed.slot == slot).then_some(&*borrowed.slot_data),
            Self::Several(several) => {
                position_in(several, slot, |borrowed| borrowed.slot).map(|place| &*several[place].slot_data)
            }
            Self::All(lender) => lender.slot_data(slot),
        }
    }

    fn data_mut(&mut self, slot: Slot) -> Option<&mut SlotData> {
        match self {
            Self::None => None,
            Self::One(borrowed) => (borrowed.slot == slot).then_some(&mut *borrowed.slot_data),
            Self::Several(several) => position_in(several, slot, |borrowed| borrowed.slot)
                .map(|place| &mut *several[place].slot_data),
            Self::All(lender) => lender.slot_data_mut(slot),
        }
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut SlotData> {
        let (borrowed, all) = match self {
            Self::None => (&mut [][..], None),
            Self::One(borrowed) => (std::slice::from_mut(borrowed), None),
            Self::Several(several) => (&mut several[..], None),
            Self::All(lender) => (&mut [][..], Some(lender.iter_slots())),
        };
        borrowed.iter_mut().map(|borrowed| &mut *borrowed.slot_data).chain(all.into_iter().flatten())
    }
}

impl<'k> LockedSlots<'k> {
    /// Unlocks all slots, then locks these: all, or none if the wait policy gives up while one is locked elsewhere.
    /// Returns whether they are locked.
    pub fn lock_while(
        &mut self,
        keyspace: &'k Keyspace,
        slots: &[Slot],
        wait_policy: WaitPolicy<'_>,
    ) -> bool {
        self.release();
        if let &[only] = slots {
            self.single_guard = keyspace.lock_slot_while(only, wait_policy);
            return self.single_guard.is_some();
        }
        let mut wanted: SmallVec<[Slot; MAX_INLINE_SLOTS]> = slots.into();
        wanted.sort_unstable();
        wanted.dedup();
        // Never wait while holding a lock: wait for the busy slot while holding no other, then try to lock the other
        // slots.
        let mut first = 0;
        'again: loop {
            self.guards.clear();
            let Some(&waited_for) = wanted.get(first) else { return true };
            let Some(guard) = keyspace.lock_slot_while(waited_for, wait_policy) else { return false };
            self.guards.push(guard);
            for (index, &slot) in wanted.iter().enumerate().filter(|&(index, _)| index != first) {
                match keyspace.try_lock(slot) {
                    Some(guard) => self.guards.push(guard),
                    None => {
                        first = index;
                        continue 'again;
                    }
                }
            }
            if first > 0 {
                self.guards.sort_unstable_by_key(SlotGuard::slot);
            }
            return true;
        }
    }

    /// Prefetches the lookups of keys in locked slots, so that their cache misses overlap.
    pub fn prefetch(&mut self, db: u16, keys: &[Key<'_>]) {
        let guards = match &mut self.single_guard {
            Some(guard) => std::slice::from_mut(guard),
            None => &mut self.guards[..],
        };
        let keys = &keys[..keys.len().min(MAX_PREFETCHED_KEYS)];
        let place = |key: &Key<'_>| guards.binary_search_by_key(&key.slot(), SlotGuard::slot);
        let places: SmallVec<[_; MAX_INLINE_SLOTS]> = keys.iter().map(place).collect();
        let at = || keys.iter().zip(&places).filter_map(|(key, place)| Some((key, (*place).ok()?)));
        for (key, place) in at() {
            if let Some(table) = guards[place].data.existing_table(db) {
                table.entries.prefetch_index(key.hash);
            }
        }
        for (key, place) in at() {
            guards[place].prefetch_entry(db, key);
        }
    }

    /// Locks every slot, waiting as long as necessary.
    #[must_use]
    pub fn lock_all(global_lock: &GlobalLock<'k>) -> Self {
        let mut locked = Self::default();
        locked.add_all(global_lock, &|_| true);
        locked
    }

    /// Locks all slots. While the thread waits for one slot, it holds no other. Returns `None` if the wait policy gave
    /// up.
    pub fn lock_all_while(global_lock: &GlobalLock<'k>, wait_policy: WaitPolicy<'_>) -> Option<Self> {
        let mut locked = Self::default();
        locked.add_all(global_lock, wait_policy).then_some(locked)
    }

    /// Locks one more slot, unless it is locked here already. Returns false if the wait policy gave up.
    pub fn add_slot(
        &mut self,
        global_lock: &GlobalLock<'k>,
        slot: Slot,
        wait_policy: WaitPolicy<'_>,
    ) -> bool {
        self.guards.extend(self.single_guard.take());
        let Err(place) = self.guards.binary_search_by_key(&slot, SlotGuard::slot) else { return true };
        let Some(guard) = global_lock.keyspace.lock_slot_while(slot, wait_policy) else { return false };
        self.guards.insert(place, guard);
        true
    }

    /// Locks all slots that are not locked here yet, or none of them. While the thread waits for a busy slot, it holds
    /// only the slots that were locked before. Returns whether all slots are locked.
    pub fn add_all(&mut self, global_lock: &GlobalLock<'k>, wait_policy: WaitPolicy<'_>) -> bool {
        self.add_slots(global_lock, global_lock.keyspace.slots(), wait_policy)
    }

    /// Like [`Self::add_all`], but only for these slots, which must be in ascending order.
    pub fn add_slots(
        &mut self,
        global_lock: &GlobalLock<'k>,
        slots: impl Iterator<Item = Slot>,
        wait_policy: WaitPolicy<'_>,
    ) -> bool {
        self.guards.extend(self.single_guard.take());
        let (keyspace, is_first) = (global_lock.keyspace, self.guards.is_empty());
        let missing: Vec<Slot> = slots.filter(|slot| is_first || !self.is_locked(*slot)).collect();
        let mut held: Vec<Option<SlotGuard<'k>>> = missing.iter().map(|_| None).collect();
        let guard = |slot, data| keyspace.slot_guard(slot, data);
        if !keyspace.lock_all_slots(global_lock, &missing, &mut held, wait_policy, guard) {
            return false;
        }
        // This collects in place, because an `Option<SlotGuard>` is as large as a `SlotGuard`.
        let all = held.into_iter().map(|guard| guard.expect("each slot is locked")).collect();
        let before = std::mem::replace(&mut self.guards.0, all);
        if !is_first {
            self.guards.extend(before);
            self.guards.sort_by_key(SlotGuard::slot);
        }
        true
    }

    /// Returns the number of slots locked here.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.single_guard.is_some()) + self.guards.len()
    }

    /// Locks one more slot if no other thread holds it. Returns whether it is locked here.
    pub fn try_add(&mut self, keyspace: &'k Keyspace, slot: Slot) -> bool {
        if self.is_locked(slot) {
            return true;
        }
        let Some(guard) = keyspace.try_lock(slot) else { return false };
        self.guards.extend(self.single_guard.take());
        let place = self.guards.partition_point(|other| other.slot() < slot);
        self.guards.insert(place, guard);
        true
    }

    /// Lends those of `slots` that are locked here, for example to one command of a script.
    pub fn lend(&mut self, slots: &[Slot]) -> LockedSlots<'_> {
        let borrowed = match (&mut self.single_guard, slots) {
            (Some(guard), slots) if slots.contains(&guard.slot()) => {
                BorrowedSlots::One(BorrowedLock::from_guard(guard))
            }
            (Some(_), _) => BorrowedSlots::None,
            (None, &[only]) => match position_in(&self.guards, only, SlotGuard::slot) {
                Some(place) => BorrowedSlots::One(BorrowedLock::from_guard(&mut self.guards[place])),
                None => BorrowedSlots::None,
            },
            (None, slots) => {
                let wanted = |guard: &&mut SlotGuard<'k>| slots.contains(&guard.slot());
                BorrowedSlots::Several(
                    self.guards.iter_mut().filter(wanted).map(BorrowedLock::from_guard).collect(),
                )
            }
        };
        LockedSlots { borrowed, ..LockedSlots::default() }
    }

    /// Lends all slots that are locked here.
    pub fn lend_all(&mut self) -> LockedSlots<'_> {
        let borrowed = match &mut self.single_guard {
            Some(guard) => BorrowedSlots::One(BorrowedLock::from_guard(guard)),
            None => BorrowedSlots::All(Box::new(&mut self.guards.0)),
        };
        LockedSlots { borrowed, ..LockedSlots::default() }
    }

    /// Unlocks all slots.
    #[inline]
    pub fn release(&mut self) {
        self.single_guard = None;
        self.guards.clear();
        self.borrowed = BorrowedSlots::None;
    }

    /// Returns whether no slot is locked here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.single_guard.is_none() && self.guards.is_empty() && self.borrowed.is_none()
    }

    /// Makes `slot` the only slot locked here, without waiting. It may be locked here already, or have been locked
    /// since one of its keys was prefetched. Returns whether the slot is locked here.
    #[inline(always)]
    pub fn try_lock_only(
        &mut self,
        keyspace: &'k Keyspace,
        slot: Slot,
        prefetched: Option<PrefetchedSlot<'k>>,
    ) -> bool {
        if self.single_guard.as_ref().is_some_and(|guard| guard.slot() == slot) {
            return true;
        }
        self.release();
        self.single_guard = match prefetched {
            Some(touched) => Some(keyspace.guard_from_prefetched(slot, touched)),
            None => keyspace.try_lock(slot),
        };
        self.single_guard.is_some()
    }

    /// Takes the guard out if exactly one slot is locked here.
    #[must_use]
    pub fn take_single_guard(&mut self) -> Option<SlotGuard<'k>> {
        self.single_guard.take()
    }

    /// Puts a guard back as the only locked slot.
    pub fn put_single_guard(&mut self, guard: SlotGuard<'k>) {
        self.release();
        self.single_guard = Some(guard);
    }

    /// Waits for `slot` until the wait policy gives up, and returns whether it is locked. The thread must hold no slot.
    #[cold]
    pub fn wait_for_slot(&mut self, keyspace: &'k Keyspace, slot: Slot, wait_policy: WaitPolicy<'_>) -> bool {
        debug_assert!(self.is_empty());
        self.single_guard = keyspace.lock_slot_while(slot, wait_policy);
        self.single_guard.is_some()
    }

    /// Returns the guard of a slot, unless the slot is borrowed or not locked here.
    #[inline(always)]
    fn guard(&self, slot: Slot) -> Option<&SlotGuard<'k>> {
        match &self.single_guard {
            Some(guard) => {
                assert_eq!(guard.slot(), slot, "a command touches only the slots it locked");
                Some(guard)
            }
            None if !self.guards.is_empty() => Some(&self.guards[Self::position_in(&self.guards, slot)]),
            None => None,
        }
    }

    fn position_in(guards: &[SlotGuard<'k>], slot: Slot) -> usize {
        position_in(guards, slot, SlotGuard::slot).expect("a command touches only the slots it locked")
    }

    fn borrowed_slot(&self, slot: Slot) -> &SlotData {
        self.borrowed.data(slot).expect("a command touches only the slots it locked")
    }

    /// Returns whether `slot` is locked here.
    #[must_use]
    pub fn is_locked(&self, slot: Slot) -> bool {
        self.single_guard.as_ref().is_some_and(|guard| guard.slot() == slot)
            || position_in(&self.guards, slot, SlotGuard::slot).is_some()
            || self.borrowed.data(slot).is_some()
    }

    /// Returns the data of `slot`, which must be locked here.
    #[inline(always)]
    pub fn slot(&self, slot: Slot) -> &SlotData {
        match self.guard(slot) {
            Some(guard) => guard,
            None => self.borrowed_slot(slot),
        }
    }

    /// Returns the mutable data of `slot`, which must be locked here.
    #[inline]
    pub fn slot_mut(&mut self, slot: Slot) -> &mut SlotData {
        match &mut self.single_guard {
            Some(guard) => {
                assert_eq!(guard.slot(), slot, "a command touches only the slots it locked");
                guard
            }
            None => Self::slot_in(&mut self.guards, &mut self.borrowed, slot),
        }
    }

    /// Handles several or borrowed slots, out of line so that the common case of one slot stays short.
    #[inline(never)]
    fn slot_in<'s>(
        guards: &'s mut [SlotGuard<'k>],
        borrowed: &'s mut BorrowedSlots<'k>,
        slot: Slot,
    ) -> &'s mut SlotData {
        if guards.is_empty() {
            return borrowed.data_mut(slot).expect("a command touches only the slots it locked");
        }
        let place = Self::position_in(guards, slot);
        &mut guards[place]
    }

    /// Looks up a key of a locked slot in database `db`, and its usage.
    #[inline(always)]
    pub fn find(&self, db: u16, key: &Key<'_>, now: Millis) -> (KeyLookup, Usage) {
        match self.guard(key.slot()) {
            Some(guard) => guard.find(db, key, now),
            None => self.borrowed_slot(key.slot()).table_ref(db).find_with_usage(key, now),
        }
    }

    /// Iterates over the locked slots in ascending order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut SlotData> {
        let own = self.single_guard.iter_mut().chain(self.guards.iter_mut()).map(|guard| &mut **guard);
        own.chain(self.borrowed.iter_mut())
    }
}

impl<'k> BorrowedLock<'k> {
    fn from_guard(guard: &'k mut SlotGuard<'_>) -> Self {
        Self { slot: guard.slot(), slot_data: &mut **guard }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_all_keeps_existing_locks_and_lends_every_slot() {
        let keyspace = Keyspace::new(1, 1);
        let slot = |number| Slot::new(number).unwrap();
        let mut locked = keyspace.lock_many(&[slot(3), slot(9000)]);
        let key = keyspace.key(b"k");
        {
            let turn = keyspace.acquire_global_lock();
            assert!(locked.add_all(&turn, &|_| true));
        }
        assert_eq!(locked.len(), slot_routing::SLOT_COUNT);
        assert!(Slot::all().all(|slot| locked.is_locked(slot) && keyspace.try_lock(slot).is_none()));
        assert!(locked.guards.is_sorted_by_key(SlotGuard::slot));
        {
            let mut borrowed = locked.lend_all();
            assert!(!borrowed.is_empty() && borrowed.is_locked(slot(9000)));
            borrowed.slot_mut(key.slot()).table(0).insert(&key, crate::PackedValue::string(b"v"), None);
            assert_eq!(borrowed.slot(key.slot()).existing_table(0).map(crate::Table::len), Some(1));
            assert_eq!(borrowed.iter_mut().count(), slot_routing::SLOT_COUNT);
        }
        locked.release();
        assert_eq!(keyspace.slot_len(key.slot()), 1, "what was done under a loan is published");
    }

    /// Regression test: a slot that was busy for a moment stayed locked while the thread waited for another slot.
    #[test]
    fn locking_all_slots_keeps_no_slot_during_a_long_wait() {
        let keyspace = Keyspace::new(1, 1);
        let (brief, long) = (Slot::new(3).unwrap(), Slot::new(9000).unwrap());
        let (brief_guard, long_guard) = (keyspace.lock(brief), keyspace.lock(long));
        std::thread::scope(|scope| {
            let locker = scope.spawn(|| {
                let turn = keyspace.acquire_global_lock();
                LockedSlots::default().add_all(&turn, &|_| true)
            });
            // The other thread is probably waiting for the first slot now; the test also passes if it is not yet.
            std::thread::sleep(std::time::Duration::from_millis(50));
            drop(brief_guard);
            let bound = std::time::Duration::from_secs(20);
            for _ in 0..50 {
                let free = keyspace.lock_slot_while(brief, &|waited| waited < bound);
                assert!(free.is_some(), "the slot is kept");
                drop(free);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            drop(long_guard);
            assert!(locker.join().unwrap());
        });
    }

    #[test]
    fn restricted_keyspace_only_uses_its_slots() {
        let key = |keyspace: &Keyspace| keyspace.key(b"k").slot();
        let for_key = key(&Keyspace::new(1, 1));
        let slots = [for_key, Slot::new(3).unwrap()].into_iter().collect();
        let keyspace = std::sync::Arc::new(Keyspace::with_only_slots(1, 1, &slots));
        let key = keyspace.key(b"k");
        keyspace.lock(for_key).table(0).insert(&key, crate::PackedValue::string(b"v"), None);
        assert_eq!(keyspace.len(0), 1);
        let turn = keyspace.acquire_global_lock();
        let mut locked = LockedSlots::lock_all(&turn);
        assert_eq!(locked.len(), 2);
        assert_eq!(locked.slot_mut(for_key).existing_table(0).map(crate::Table::len), Some(1));
        locked.release();
        let (mut snapshot, ()) = keyspace.prepare_snapshot().take(&turn, || ()).unwrap();
        let mut keys = Vec::new();
        for slot in keyspace.slots() {
            snapshot.walk(slot, &mut |entry| keys.push(entry.key.to_vec()));
        }
        assert_eq!(keys, [b"k"]);
    }
}

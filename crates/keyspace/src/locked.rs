//! The slots that one command holds.

use clock::Millis;
use slot_routing::Slot;
use smallvec::SmallVec;

use crate::entries::Found;
use crate::key::Key;
use crate::keyspace::Keyspace;
use crate::slot::{SlotData, SlotGuard};
use crate::touched::Touched;
use crate::turn::ScriptTurn;
use crate::usage::Usage;

/// Locked slots in rising order.
#[derive(Debug, Default)]
pub struct LockedSlots<'k> {
    /// Nearly always the only one.
    one: Option<SlotGuard<'k>>,
    /// All of them, if there are several.
    several: Vec<SlotGuard<'k>>,
}

impl<'k> LockedSlots<'k> {
    pub(crate) fn acquire(keyspace: &'k Keyspace, slots: &[Slot]) -> Self {
        if let &[only] = slots {
            return Self { one: Some(keyspace.lock(only)), several: Vec::new() };
        }
        let mut wanted: SmallVec<[Slot; 4]> = slots.into();
        wanted.sort_unstable();
        wanted.dedup();
        // Wait only with empty hands, for the slot that was busy; then try the others.
        let mut first = 0;
        'again: loop {
            let Some(&waited_for) = wanted.get(first) else { return Self::default() };
            let mut several = Vec::with_capacity(wanted.len());
            several.push(keyspace.lock(waited_for));
            for (index, &slot) in wanted.iter().enumerate().filter(|&(index, _)| index != first) {
                match keyspace.try_lock(slot) {
                    Some(guard) => several.push(guard),
                    None => {
                        first = index;
                        continue 'again;
                    }
                }
            }
            several.sort_unstable_by_key(SlotGuard::slot);
            return Self { one: None, several };
        }
    }

    /// Locks every slot in rising order.
    #[must_use]
    pub fn all(turn: &ScriptTurn<'k>) -> Self {
        Self { one: None, several: Slot::all().map(|slot| turn.keyspace.lock(slot)).collect() }
    }

    /// Locks one slot more, if it is not among them.
    pub fn add(&mut self, turn: &ScriptTurn<'k>, slot: Slot) {
        self.several.extend(self.one.take());
        if let Err(place) = self.several.binary_search_by_key(&slot, SlotGuard::slot) {
            self.several.insert(place, turn.keyspace.lock(slot));
        }
    }

    /// Unlocks them.
    #[inline]
    pub fn release(&mut self) {
        self.one = None;
        self.several.clear();
    }

    /// Whether no slot is locked here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.one.is_none() && self.several.is_empty()
    }

    /// Makes `slot` the only one that is locked here, which it may have been before or, since it was touched,
    /// elsewhere. Does not wait for it: says whether it is locked.
    #[inline(always)]
    pub fn try_lock_only(
        &mut self,
        keyspace: &'k Keyspace,
        slot: Slot,
        touched: Option<Touched<'k>>,
    ) -> bool {
        if self.one.as_ref().is_some_and(|guard| guard.slot() == slot) {
            return true;
        }
        self.release();
        self.one = match touched {
            Some(touched) => Some(keyspace.guard_touched(slot, touched)),
            None => keyspace.try_lock(slot),
        };
        self.one.is_some()
    }

    /// Gives away the slot that is the only one locked here.
    #[must_use]
    pub fn take_only(&mut self) -> Option<SlotGuard<'k>> {
        self.one.take()
    }

    /// Makes a slot that was given away the only one that is locked here.
    pub fn put_only(&mut self, guard: SlotGuard<'k>) {
        self.release();
        self.one = Some(guard);
    }

    /// Waits for `slot`. Nothing may be locked, here or elsewhere.
    #[cold]
    pub fn wait_for(&mut self, keyspace: &'k Keyspace, slot: Slot) {
        debug_assert!(self.one.is_none() && self.several.is_empty());
        self.one = Some(keyspace.lock(slot));
    }

    #[inline(always)]
    fn guard(&self, slot: Slot) -> &SlotGuard<'k> {
        match &self.one {
            Some(guard) => {
                assert_eq!(guard.slot(), slot, "a command touches only the slots it locked");
                guard
            }
            None => &self.several[Self::place_among(&self.several, slot)],
        }
    }

    fn place_among(several: &[SlotGuard<'k>], slot: Slot) -> usize {
        several
            .binary_search_by_key(&slot, SlotGuard::slot)
            .expect("a command touches only the slots it locked")
    }

    /// Whether `slot` is among the locked ones.
    #[must_use]
    pub fn has(&self, slot: Slot) -> bool {
        self.one.as_ref().is_some_and(|guard| guard.slot() == slot)
            || self.several.binary_search_by_key(&slot, SlotGuard::slot).is_ok()
    }

    /// The data of `slot`, which must be among the locked ones.
    #[inline(always)]
    pub fn slot(&self, slot: Slot) -> &SlotData {
        self.guard(slot)
    }

    /// The same, to be changed.
    #[inline]
    pub fn slot_mut(&mut self, slot: Slot) -> &mut SlotData {
        match &mut self.one {
            Some(guard) => {
                assert_eq!(guard.slot(), slot, "a command touches only the slots it locked");
                guard
            }
            None => {
                let place = Self::place_among(&self.several, slot);
                &mut self.several[place]
            }
        }
    }

    /// Looks a key of a locked slot up in database `db`, and says when and how often it was used.
    #[inline(always)]
    pub fn find(&self, db: u16, key: &Key<'_>, now: Millis) -> (Found, Usage) {
        self.guard(key.slot()).find(db, key, now)
    }

    /// The locked slots in rising order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut SlotData> {
        self.one.iter_mut().chain(&mut self.several).map(|guard| &mut **guard)
    }
}

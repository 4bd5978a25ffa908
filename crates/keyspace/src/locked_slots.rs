//! The slots that one command holds.

use std::ops::{Deref, DerefMut};

use clock::Millis;
use slot_routing::Slot;
use smallvec::SmallVec;

use crate::entries::Found;
use crate::global_lock::ScriptTurn;
use crate::key::Key;
use crate::keyspace::{Keyspace, Patience};
use crate::prefetched::Touched;
use crate::slot::{SlotData, SlotGuard};
use crate::usage::Usage;

/// So many slots at once take no memory beside their guards.
const MANY: usize = 16;
/// Of so many keys together, lines that are asked for ahead are still there when they are needed.
const MOST_TOUCHED: usize = 512;

/// Locked slots in rising order.
#[derive(Debug, Default)]
pub struct LockedSlots<'k> {
    /// Nearly always the only one.
    one: Option<SlotGuard<'k>>,
    /// All of them, if there are several.
    several: Several<'k>,
    /// In place of both: slots that another owner has locked and lends.
    lent: Loan<'k>,
}

/// Slots that are unlocked together. Each is published before any is unlocked: who locks one of them then, and reads of
/// the others how much they hold ([`Keyspace::slot_len`]), knows of all that was done to them.
#[derive(Debug, Default)]
struct Several<'k>(Vec<SlotGuard<'k>>);

impl Several<'_> {
    /// Nearly always there is nothing to let go of.
    #[inline]
    fn clear(&mut self) {
        if !self.0.is_empty() {
            self.publish();
        }
    }

    fn publish(&mut self) {
        // So a key that goes from one slot to another is seen in one of them at least.
        self.0.iter_mut().filter(|guard| guard.gets_first_key()).for_each(SlotGuard::publish);
        self.0.iter_mut().for_each(SlotGuard::publish);
        self.0.clear();
    }
}

impl Drop for Several<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<'k> Deref for Several<'k> {
    type Target = Vec<SlotGuard<'k>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Several<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// Slots that another owner has locked, nearly always one.
#[derive(Debug, Default)]
enum Loan<'k> {
    #[default]
    None,
    One(Lent<'k>),
    /// In rising order.
    Several(Vec<Lent<'k>>),
    /// All that the owner has locked, as they lie there: to lend every slot touches none of them.
    All(Box<dyn Lender + 'k>),
}

/// Several locked slots in rising order.
trait Lender: std::fmt::Debug {
    fn data(&self, slot: Slot) -> Option<&SlotData>;
    fn data_mut(&mut self, slot: Slot) -> Option<&mut SlotData>;
    fn each<'a>(&'a mut self) -> Box<dyn Iterator<Item = &'a mut SlotData> + 'a>;
}

impl Lender for &mut Vec<SlotGuard<'_>> {
    fn data(&self, slot: Slot) -> Option<&SlotData> {
        place_among(self, slot, SlotGuard::slot).map(|place| &*self[place])
    }

    fn data_mut(&mut self, slot: Slot) -> Option<&mut SlotData> {
        place_among(self, slot, SlotGuard::slot).map(|place| &mut *self[place])
    }

    fn each<'a>(&'a mut self) -> Box<dyn Iterator<Item = &'a mut SlotData> + 'a> {
        Box::new(self.iter_mut().map(|guard| &mut **guard))
    }
}

/// The data of a slot that another owner has locked.
#[derive(Debug)]
struct Lent<'k> {
    slot: Slot,
    data: &'k mut SlotData,
}

/// Where `slot` is among what is in rising order: at its own number, if that is every slot.
fn place_among<T>(rising: &[T], slot: Slot, slot_of: impl Fn(&T) -> Slot) -> Option<usize> {
    let own = slot.index();
    if rising.get(own).is_some_and(|there| slot_of(there) == slot) {
        return Some(own);
    }
    rising.binary_search_by_key(&slot, slot_of).ok()
}

impl Loan<'_> {
    fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    fn data(&self, slot: Slot) -> Option<&SlotData> {
        match self {
            Self::None => None,
            Self::One(lent) => (lent.slot == slot).then_some(&*lent.data),
            Self::Several(several) => {
                place_among(several, slot, |lent| lent.slot).map(|place| &*several[place].data)
            }
            Self::All(lender) => lender.data(slot),
        }
    }

    fn data_mut(&mut self, slot: Slot) -> Option<&mut SlotData> {
        match self {
            Self::None => None,
            Self::One(lent) => (lent.slot == slot).then_some(&mut *lent.data),
            Self::Several(several) => {
                place_among(several, slot, |lent| lent.slot).map(|place| &mut *several[place].data)
            }
            Self::All(lender) => lender.data_mut(slot),
        }
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut SlotData> {
        let (lent, all) = match self {
            Self::None => (&mut [][..], None),
            Self::One(lent) => (std::slice::from_mut(lent), None),
            Self::Several(several) => (&mut several[..], None),
            Self::All(lender) => (&mut [][..], Some(lender.each())),
        };
        lent.iter_mut().map(|lent| &mut *lent.data).chain(all.into_iter().flatten())
    }
}

impl<'k> LockedSlots<'k> {
    /// Locks these slots in place of what is locked here: all of them or, if one stays locked elsewhere and `patient`
    /// says that it is not to be waited for, none. Says which.
    pub fn lock_while(&mut self, keyspace: &'k Keyspace, slots: &[Slot], patient: Patience<'_>) -> bool {
        self.release();
        if let &[only] = slots {
            self.one = keyspace.lock_while(only, patient);
            return self.one.is_some();
        }
        let mut wanted: SmallVec<[Slot; MANY]> = slots.into();
        wanted.sort_unstable();
        wanted.dedup();
        // Wait only with empty hands, for the slot that was busy; then try the others.
        let mut first = 0;
        'again: loop {
            self.several.clear();
            let Some(&waited_for) = wanted.get(first) else { return true };
            let Some(guard) = keyspace.lock_while(waited_for, patient) else { return false };
            self.several.push(guard);
            for (index, &slot) in wanted.iter().enumerate().filter(|&(index, _)| index != first) {
                match keyspace.try_lock(slot) {
                    Some(guard) => self.several.push(guard),
                    None => {
                        first = index;
                        continue 'again;
                    }
                }
            }
            if first > 0 {
                self.several.sort_unstable_by_key(SlotGuard::slot);
            }
            return true;
        }
    }

    /// Asks the processor for what looking up these keys of locked slots will need, so that these reads overlap.
    pub fn touch(&mut self, db: u16, keys: &[Key<'_>]) {
        let guards = match &mut self.one {
            Some(guard) => std::slice::from_mut(guard),
            None => &mut self.several[..],
        };
        let keys = &keys[..keys.len().min(MOST_TOUCHED)];
        let place = |key: &Key<'_>| guards.binary_search_by_key(&key.slot(), SlotGuard::slot);
        let places: SmallVec<[_; MANY]> = keys.iter().map(place).collect();
        let at = || keys.iter().zip(&places).filter_map(|(key, place)| Some((key, (*place).ok()?)));
        for (key, place) in at() {
            if let Some(table) = guards[place].data.table_if(db) {
                table.entries.prefetch_index(key.hash);
            }
        }
        for (key, place) in at() {
            guards[place].touch_entry(db, key);
        }
    }

    /// Locks every slot.
    #[must_use]
    pub fn all(turn: &ScriptTurn<'k>) -> Self {
        let mut locked = Self::default();
        locked.add_all(turn, &|_| true);
        locked
    }

    /// Locks all slots, and waits for each as long as `patient` lets it, with the others free.
    pub fn all_while(turn: &ScriptTurn<'k>, patient: Patience<'_>) -> Option<Self> {
        let mut locked = Self::default();
        locked.add_all(turn, patient).then_some(locked)
    }

    /// Locks one slot more, if it is not among them; says whether `patient` let it wait for that.
    pub fn add(&mut self, turn: &ScriptTurn<'k>, slot: Slot, patient: Patience<'_>) -> bool {
        self.several.extend(self.one.take());
        let Err(place) = self.several.binary_search_by_key(&slot, SlotGuard::slot) else { return true };
        let Some(guard) = turn.keyspace.lock_while(slot, patient) else { return false };
        self.several.insert(place, guard);
        true
    }

    /// Locks every slot that is not among them, or none; says which. While it waits for one that stays locked, only
    /// those that were locked before are held.
    pub fn add_all(&mut self, turn: &ScriptTurn<'k>, patient: Patience<'_>) -> bool {
        self.add_each(turn, turn.keyspace.slots(), patient)
    }

    /// The same of these slots, in rising order.
    pub fn add_each(
        &mut self,
        turn: &ScriptTurn<'k>,
        slots: impl Iterator<Item = Slot>,
        patient: Patience<'_>,
    ) -> bool {
        self.several.extend(self.one.take());
        let (keyspace, is_first) = (turn.keyspace, self.several.is_empty());
        let missing: Vec<Slot> = slots.filter(|slot| is_first || !self.has(*slot)).collect();
        let mut held: Vec<Option<SlotGuard<'k>>> = missing.iter().map(|_| None).collect();
        let guard = |slot, data| keyspace.guard(slot, data);
        if !keyspace.lock_every(turn, &missing, &mut held, patient, guard) {
            return false;
        }
        // In place: an optional guard is as large as a guard.
        let all = held.into_iter().map(|guard| guard.expect("each is locked")).collect();
        let before = std::mem::replace(&mut self.several.0, all);
        if !is_first {
            self.several.extend(before);
            self.several.sort_by_key(SlotGuard::slot);
        }
        true
    }

    /// How many are locked here.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.one.is_some()) + self.several.len()
    }

    /// Locks one slot more, if it is not among them and no other thread has it; says whether it is locked here.
    pub fn try_add(&mut self, keyspace: &'k Keyspace, slot: Slot) -> bool {
        if self.has(slot) {
            return true;
        }
        let Some(guard) = keyspace.try_lock(slot) else { return false };
        self.several.extend(self.one.take());
        let place = self.several.partition_point(|other| other.slot() < slot);
        self.several.insert(place, guard);
        true
    }

    /// Lends some of the locked slots, as to a command of a script: one that is not among them is left out.
    pub fn lend(&mut self, slots: &[Slot]) -> LockedSlots<'_> {
        let lent = match (&mut self.one, slots) {
            (Some(guard), slots) if slots.contains(&guard.slot()) => Loan::One(Lent::of(guard)),
            (Some(_), _) => Loan::None,
            (None, &[only]) => match place_among(&self.several, only, SlotGuard::slot) {
                Some(place) => Loan::One(Lent::of(&mut self.several[place])),
                None => Loan::None,
            },
            (None, slots) => {
                let wanted = |guard: &&mut SlotGuard<'k>| slots.contains(&guard.slot());
                Loan::Several(self.several.iter_mut().filter(wanted).map(Lent::of).collect())
            }
        };
        LockedSlots { lent, ..LockedSlots::default() }
    }

    /// Lends all of them.
    pub fn lend_all(&mut self) -> LockedSlots<'_> {
        let lent = match &mut self.one {
            Some(guard) => Loan::One(Lent::of(guard)),
            None => Loan::All(Box::new(&mut self.several.0)),
        };
        LockedSlots { lent, ..LockedSlots::default() }
    }

    /// Unlocks them.
    #[inline]
    pub fn release(&mut self) {
        self.one = None;
        self.several.clear();
        self.lent = Loan::None;
    }

    /// Whether no slot is locked here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.one.is_none() && self.several.is_empty() && self.lent.is_none()
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

    /// Waits for `slot` as long as `patient` lets it; says whether it is locked. Nothing may be locked, here or
    /// elsewhere.
    #[cold]
    pub fn wait_for(&mut self, keyspace: &'k Keyspace, slot: Slot, patient: Patience<'_>) -> bool {
        debug_assert!(self.is_empty());
        self.one = keyspace.lock_while(slot, patient);
        self.one.is_some()
    }

    /// The guard of a slot that is not lent.
    #[inline(always)]
    fn guard(&self, slot: Slot) -> Option<&SlotGuard<'k>> {
        match &self.one {
            Some(guard) => {
                assert_eq!(guard.slot(), slot, "a command touches only the slots it locked");
                Some(guard)
            }
            None if !self.several.is_empty() => Some(&self.several[Self::place_among(&self.several, slot)]),
            None => None,
        }
    }

    fn place_among(several: &[SlotGuard<'k>], slot: Slot) -> usize {
        place_among(several, slot, SlotGuard::slot).expect("a command touches only the slots it locked")
    }

    fn lent(&self, slot: Slot) -> &SlotData {
        self.lent.data(slot).expect("a command touches only the slots it locked")
    }

    /// Whether `slot` is among the locked ones.
    #[must_use]
    pub fn has(&self, slot: Slot) -> bool {
        self.one.as_ref().is_some_and(|guard| guard.slot() == slot)
            || place_among(&self.several, slot, SlotGuard::slot).is_some()
            || self.lent.data(slot).is_some()
    }

    /// The data of `slot`, which must be among the locked ones.
    #[inline(always)]
    pub fn slot(&self, slot: Slot) -> &SlotData {
        match self.guard(slot) {
            Some(guard) => guard,
            None => self.lent(slot),
        }
    }

    /// The same, to be changed.
    #[inline]
    pub fn slot_mut(&mut self, slot: Slot) -> &mut SlotData {
        match &mut self.one {
            Some(guard) => {
                assert_eq!(guard.slot(), slot, "a command touches only the slots it locked");
                guard
            }
            None => Self::slot_among(&mut self.several, &mut self.lent, slot),
        }
    }

    /// The same of several slots, or of lent ones: apart, so that the usual way stays short.
    #[inline(never)]
    fn slot_among<'s>(
        several: &'s mut [SlotGuard<'k>],
        lent: &'s mut Loan<'k>,
        slot: Slot,
    ) -> &'s mut SlotData {
        if several.is_empty() {
            return lent.data_mut(slot).expect("a command touches only the slots it locked");
        }
        let place = Self::place_among(several, slot);
        &mut several[place]
    }

    /// Looks a key of a locked slot up in database `db`, and says when and how often it was used.
    #[inline(always)]
    pub fn find(&self, db: u16, key: &Key<'_>, now: Millis) -> (Found, Usage) {
        match self.guard(key.slot()) {
            Some(guard) => guard.find(db, key, now),
            None => self.lent(key.slot()).view(db).find_with_usage(key, now),
        }
    }

    /// The locked slots in rising order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut SlotData> {
        let own = self.one.iter_mut().chain(self.several.iter_mut()).map(|guard| &mut **guard);
        own.chain(self.lent.iter_mut())
    }
}

impl<'k> Lent<'k> {
    fn of(guard: &'k mut SlotGuard<'_>) -> Self {
        Self { slot: guard.slot(), data: &mut **guard }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_others_are_locked_around_those_that_are_and_lent_as_they_lie() {
        let keyspace = Keyspace::new(1, 1);
        let slot = |number| Slot::new(number).unwrap();
        let mut locked = keyspace.lock_many(&[slot(3), slot(9000)]);
        let key = keyspace.key(b"k");
        {
            let turn = keyspace.script_turn();
            assert!(locked.add_all(&turn, &|_| true));
        }
        assert_eq!(locked.len(), slot_routing::SLOT_COUNT);
        assert!(Slot::all().all(|slot| locked.has(slot) && keyspace.try_lock(slot).is_none()));
        assert!(locked.several.is_sorted_by_key(SlotGuard::slot));
        {
            let mut lent = locked.lend_all();
            assert!(!lent.is_empty() && lent.has(slot(9000)));
            lent.slot_mut(key.slot()).table(0).insert(&key, crate::Packed::string(b"v"), None);
            assert_eq!(lent.slot(key.slot()).table_if(0).map(crate::Table::len), Some(1));
            assert_eq!(lent.iter_mut().count(), slot_routing::SLOT_COUNT);
        }
        locked.release();
        assert_eq!(keyspace.slot_len(key.slot()), 1, "what was done under a loan is published");
    }

    #[test]
    fn a_keyspace_of_few_slots_locks_counts_and_cuts_these_alone() {
        let key = |keyspace: &Keyspace| keyspace.key(b"k").slot();
        let of_key = key(&Keyspace::new(1, 1));
        let slots = [of_key, Slot::new(3).unwrap()].into_iter().collect();
        let keyspace = std::sync::Arc::new(Keyspace::of_slots(1, 1, &slots));
        let key = keyspace.key(b"k");
        keyspace.lock(of_key).table(0).insert(&key, crate::Packed::string(b"v"), None);
        assert_eq!(keyspace.len(0), 1);
        let turn = keyspace.script_turn();
        let mut locked = LockedSlots::all(&turn);
        assert_eq!(locked.len(), 2);
        assert_eq!(locked.slot_mut(of_key).table_if(0).map(crate::Table::len), Some(1));
        locked.release();
        let (mut snapshot, ()) = keyspace.ready_to_cut().cut(&turn, || ()).unwrap();
        let mut keys = Vec::new();
        for slot in keyspace.slots() {
            snapshot.walk(slot, &mut |entry| keys.push(entry.key.to_vec()));
        }
        assert_eq!(keys, [b"k"]);
    }
}

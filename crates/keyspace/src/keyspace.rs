//! All slots and their locks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use clock::Millis;
use parking_lot::{Mutex, MutexGuard};
use slot_routing::{SLOT_COUNT, Slot, SlotSet};
use smallvec::SmallVec;

use crate::global_lock::ScriptTurn;
use crate::hashing;
use crate::key::Key;
use crate::locked_slots::LockedSlots;
use crate::memory::{FullChunk, prefetch};
use crate::page;
use crate::prefetched::Touched;
use crate::published::Published;
use crate::slot::{SlotData, SlotGuard};
use crate::snapshot::Cuts;
use crate::table::Table;

/// How many slots ahead memory is asked for while all are locked one after another.
const LOCKS_AHEAD: usize = 16;

/// How often a slot that is in use is looked at before its waiter goes to sleep: about as long as a worker has it for
/// all commands of a batch.
const SPINS: usize = 200;
/// A slot that is locked for longer than this is waited for without holding all others.
const SOON: Duration = Duration::from_millis(1);
/// The interval at which a thread that waits for a slot asks whether to go on waiting.
pub(crate) const ASKED: Duration = Duration::from_millis(2);
/// Says, every two milliseconds, whether to go on waiting for what has been waited for so long.
pub(crate) type Patience<'a> = &'a dyn Fn(Duration) -> bool;
/// For so many keys at once sweeping takes no memory.
const AT_ONCE: usize = 32;
/// Room for the guards of all slots.
pub(crate) type Holding<'k> = Vec<Option<MutexGuard<'k, SlotData>>>;

/// A slot on lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Aligned(Mutex<SlotData>);

/// How large a database is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Its keys.
    pub keys: usize,
    /// Those of them that expire.
    pub volatile: usize,
    /// Those of them whose values have elements that expire.
    pub timed: usize,
}

impl Size {
    /// Counts the keys of one slot.
    pub fn add(&mut self, table: &Table) {
        self.keys += table.len();
        self.volatile += table.volatile_len();
        self.timed += table.timed_len();
    }
}

/// All slots.
#[derive(Debug)]
pub struct Keyspace {
    slots: FullChunk<Aligned>,
    /// The slots that can hold keys, in rising order.
    in_use: Box<[Slot]>,
    published: Published,
    pub(crate) cuts: Cuts,
    pub(crate) turn: Mutex<()>,
    databases: u16,
}

impl Keyspace {
    /// The seed that servers have in common which are given the same text: a cursor of one goes on at another.
    #[must_use]
    pub fn seed_of(text: &[u8]) -> u64 {
        hashing::seed_of(text)
    }

    /// An empty keyspace of that many databases. `seed` makes the hashes unguessable; the first keyspace of
    /// a process chooses it for all.
    #[must_use]
    pub fn new(seed: u64, databases: u16) -> Self {
        Self::made_of(seed, databases, Slot::all().collect())
    }

    /// The same for keys of these slots alone: what looks at all slots passes over the others. No key of another slot
    /// may be written.
    #[must_use]
    pub fn of_slots(seed: u64, databases: u16, slots: &SlotSet) -> Self {
        Self::made_of(seed, databases, slots.iter().collect())
    }

    fn made_of(seed: u64, databases: u16, in_use: Box<[Slot]>) -> Self {
        hashing::seed(seed);
        Self {
            slots: FullChunk::default(),
            in_use,
            published: Published::default(),
            cuts: Cuts::default(),
            turn: Mutex::new(()),
            databases,
        }
    }

    /// The slots that can hold keys, in rising order: nearly always every slot.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = Slot> + '_ {
        self.in_use.iter().copied()
    }

    /// Whether keys of this slot may be written.
    #[must_use]
    pub fn is_in_use(&self, slot: Slot) -> bool {
        self.in_use.len() == SLOT_COUNT || self.in_use.binary_search(&slot).is_ok()
    }

    /// An empty one with the same databases and slots.
    #[must_use]
    pub fn empty_alike(&self, seed: u64) -> Self {
        Self::made_of(seed, self.databases, self.in_use.clone())
    }

    /// How many databases there are.
    #[must_use]
    pub fn databases(&self) -> u16 {
        self.databases
    }

    /// Hashes `bytes` once for everything that follows.
    #[must_use]
    #[inline]
    pub fn key<'a>(&self, bytes: &'a [u8]) -> Key<'a> {
        Key { bytes, slot: Slot::of_key(bytes), hash: hashing::of(bytes) }
    }

    /// The same, for a caller that knows the key's slot.
    #[must_use]
    #[inline]
    pub fn key_in<'a>(&self, slot: Slot, bytes: &'a [u8]) -> Key<'a> {
        debug_assert_eq!(slot, Slot::of_key(bytes));
        Key { bytes, slot, hash: hashing::of(bytes) }
    }

    /// First sweep over a batch: asks the processor for the slot's own memory.
    #[inline]
    pub fn touch_slot(&self, key: &Key<'_>) {
        let slot = &self.slots[key.slot.index()..];
        prefetch(slot.as_ptr());
        prefetch(slot.as_ptr().cast::<u8>().wrapping_add(64));
    }

    /// Second sweep: asks for the key's index line. The slot is locked from then on; `None` if it is in use.
    #[inline]
    pub fn touch_index(&self, db: u16, key: &Key<'_>) -> Option<Touched<'_>> {
        let data = self.slots[key.slot.index()].0.try_lock()?;
        data.table_if(db)?.entries.prefetch_index(key.hash);
        Some(Touched { data, likely: None })
    }

    /// Second and third sweep over keys whose slots are not to stay locked.
    pub fn touch_entries<'a>(&self, db: u16, keys: impl Iterator<Item = &'a Key<'a>>) {
        let touched = keys.filter_map(|key| Some((self.touch_index(db, key)?, key)));
        let touched: SmallVec<[(Touched<'_>, &Key<'_>); AT_ONCE]> = touched.collect();
        touched.into_iter().for_each(|(mut touched, key)| touched.touch_entry(db, key));
    }

    /// Hashes the name of a part of a value, a field of a hash.
    #[must_use]
    #[inline]
    pub fn hash_part(&self, name: &[u8]) -> u64 {
        hashing::of(name)
    }

    /// Waits for one slot. The caller must hold no other (see [`Keyspace::lock_many`]).
    #[must_use]
    #[inline]
    pub fn lock(&self, slot: Slot) -> SlotGuard<'_> {
        self.try_lock(slot).unwrap_or_else(|| self.wait_for(slot))
    }

    /// Spins before it sleeps: a slot is held for a few microseconds, and to sleep and to be woken takes both sides
    /// longer than that.
    #[cold]
    fn wait_for(&self, slot: Slot) -> SlotGuard<'_> {
        let data = self.spin_for(slot).unwrap_or_else(|| self.slots[slot.index()].0.lock());
        self.guard(slot, data)
    }

    fn spin_for(&self, slot: Slot) -> Option<MutexGuard<'_, SlotData>> {
        let lock = &self.slots[slot.index()].0;
        (0..SPINS).find_map(|_| {
            std::hint::spin_loop();
            lock.try_lock()
        })
    }

    /// Locks the slots all or nothing: never waits for one while it holds another, so two callers
    /// cannot wait for each other.
    #[must_use]
    pub fn lock_many(&self, slots: &[Slot]) -> LockedSlots<'_> {
        let mut locked = LockedSlots::default();
        locked.lock_while(self, slots, &|_| true);
        locked
    }

    /// Waits for a slot as long as `patient` lets it.
    pub fn lock_while(&self, slot: Slot, patient: Patience<'_>) -> Option<SlotGuard<'_>> {
        self.try_lock(slot).or_else(|| Some(self.guard(slot, self.data_while(slot, patient)?)))
    }

    fn data_while(&self, slot: Slot, patient: Patience<'_>) -> Option<MutexGuard<'_, SlotData>> {
        let spun = self.spin_for(slot);
        let mut waited = Duration::ZERO;
        spun.or_else(|| {
            while patient(waited) {
                if let Some(data) = self.slots[slot.index()].0.try_lock_for(ASKED) {
                    return Some(data);
                }
                waited += ASKED;
            }
            None
        })
    }

    /// Locks so many slots that others would notice if they were held while one of them is waited for: what stays locked
    /// for more than a moment is waited for with all others free, and kept. `held` has a place for each; says whether
    /// all are locked, or `patient` did not let it wait. For the holder of the turn, which may hold other slots.
    pub(crate) fn lock_every<'k, G>(
        &'k self,
        _turn: &ScriptTurn<'_>,
        slots: &[Slot],
        held: &mut [Option<G>],
        patient: Patience<'_>,
        guard: impl Fn(Slot, MutexGuard<'k, SlotData>) -> G,
    ) -> bool {
        let mut awaited: SmallVec<[usize; 8]> = SmallVec::new();
        loop {
            let busy = slots.iter().zip(&mut *held).position(|(slot, held)| {
                if held.is_none() {
                    self.touch_lock(slot.index() + LOCKS_AHEAD);
                    *held = self.lock_soon(*slot).map(|data| guard(*slot, data));
                }
                held.is_none()
            });
            let Some(busy) = busy else { return true };
            let others = held.iter_mut().enumerate().filter(|(place, _)| !awaited.contains(place));
            others.for_each(|(_, held)| *held = None);
            let Some(data) = self.data_while(slots[busy], patient) else { return false };
            held[busy] = Some(guard(slots[busy], data));
            awaited.push(busy);
        }
    }

    fn lock_soon(&self, slot: Slot) -> Option<MutexGuard<'_, SlotData>> {
        let lock = &self.slots[slot.index()].0;
        lock.try_lock().or_else(|| self.spin_for(slot)).or_else(|| lock.try_lock_for(SOON))
    }

    /// Makes ready for holding every slot at once: the memory that takes, and the locks' lines on this core. It is
    /// not the locking that takes time but the lines' way here from others.
    pub(crate) fn ready_to_hold_all(&self) -> Holding<'_> {
        for slot in self.slots() {
            self.touch_lock(slot.index() + LOCKS_AHEAD);
            drop(self.slots[slot.index()].0.try_lock());
        }
        self.slots().map(|_| None).collect()
    }

    /// Runs `at_that_moment` while every slot is held, and looks into none of them: of each slot, only the line
    /// with its lock is needed.
    pub(crate) fn with_all_held<'k, R>(
        &'k self,
        turn: &ScriptTurn<'_>,
        mut held: Holding<'k>,
        at_that_moment: impl FnOnce() -> R,
    ) -> R {
        self.lock_every(turn, &self.in_use, &mut held, &|_| true, |_, data| data);
        let outcome = at_that_moment();
        held.iter_mut().for_each(|guard| *guard = None);
        outcome
    }

    fn touch_lock(&self, number: usize) {
        if let Some(slot) = self.slots.get(number) {
            prefetch(slot);
        }
    }

    /// Locks a slot, if no other thread has it.
    #[must_use]
    pub fn try_lock(&self, slot: Slot) -> Option<SlotGuard<'_>> {
        self.slots[slot.index()].0.try_lock().map(|data| self.guard(slot, data))
    }

    /// Lets go of the slot for the threads that wait for it, and takes it again after them. Work on a slot that takes
    /// long must do this at times: unlocking and locking again would nearly always win against a waiting thread.
    pub(crate) fn let_others(&self, guard: &mut SlotGuard<'_>) {
        guard.publish();
        MutexGuard::bump(&mut guard.data);
        self.cuts.meet(guard.slot, &mut guard.data);
        guard.likely = None;
    }

    #[inline]
    pub(crate) fn guard<'k>(&'k self, slot: Slot, data: MutexGuard<'k, SlotData>) -> SlotGuard<'k> {
        self.guard_touched(slot, Touched { data, likely: None })
    }

    #[inline(always)]
    pub(crate) fn guard_touched<'k>(&'k self, slot: Slot, touched: Touched<'k>) -> SlotGuard<'k> {
        let Touched { mut data, likely } = touched;
        self.cuts.meet(slot, &mut data);
        SlotGuard { data, published: &self.published, slot, last_published: None, likely }
    }

    /// How many keys database 0 has in `slot`, as of the last unlock.
    #[must_use]
    pub fn slot_len(&self, slot: Slot) -> usize {
        self.published.keys[slot.index()].load(Ordering::Relaxed) as usize
    }

    /// How many keys all slots have in all databases, each as of its last unlock.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.filled_slots().map(|slot| self.keys_in_slot(slot)).sum()
    }

    /// The slots that hold keys, in rising order, each as of its last unlock. Those whose keys are hidden hold none.
    pub fn filled_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.published.filled.iter()
    }

    /// How often a slot got its first key or lost its last one, as of the last unlocks.
    #[must_use]
    pub fn filled_changes(&self) -> u64 {
        self.published.filled.changes()
    }

    /// How many keys `slot` has in all databases, as of the last unlock.
    #[must_use]
    pub fn keys_in_slot(&self, slot: Slot) -> usize {
        self.slot_len(slot) + self.published.others[slot.index()].load(Ordering::Relaxed) as usize
    }

    /// How many of them expire.
    #[must_use]
    pub fn volatile_in_slot(&self, slot: Slot) -> usize {
        self.published.volatile[slot.index()].load(Ordering::Relaxed) as usize
    }

    /// How many keys database `db` has in `slot`.
    #[must_use]
    pub fn len_in(&self, db: u16, slot: Slot) -> usize {
        if db == 0 {
            return self.slot_len(slot);
        }
        if !self.has_others(slot) { 0 } else { self.lock(slot).table_if(db).map_or(0, Table::len) }
    }

    /// Whether databases other than 0 have keys in `slot`, as of the last unlock.
    #[must_use]
    pub fn has_others(&self, slot: Slot) -> bool {
        self.published.others[slot.index()].load(Ordering::Relaxed) > 0
    }

    /// How many keys database `db` has.
    #[must_use]
    pub fn len(&self, db: u16) -> usize {
        self.filled_slots().map(|slot| self.len_in(db, slot)).sum()
    }

    /// How large each database is. One slot is counted after another, so others may write meanwhile. Only where
    /// databases other than 0 have keys is a slot locked.
    #[must_use]
    pub fn sizes(&self) -> Vec<Size> {
        let mut sizes = vec![Size::default(); usize::from(self.databases())];
        for slot in self.filled_slots() {
            if self.has_others(slot) {
                for (db, table) in self.lock(slot).tables() {
                    sizes[usize::from(db)].add(table);
                }
            } else {
                sizes[0].keys += self.slot_len(slot);
                sizes[0].volatile += self.volatile_in_slot(slot);
            }
        }
        let others: usize = sizes[1..].iter().map(|size| size.timed).sum();
        sizes[0].timed = self.published.timed.load(Ordering::Relaxed).saturating_sub(others);
        sizes
    }

    /// Whether database `db` has no keys.
    #[must_use]
    pub fn is_empty(&self, db: u16) -> bool {
        self.len(db) == 0
    }

    /// The slots that may hold a key whose time has come. Reads no lock, and looks at no slot before something can be
    /// due.
    #[must_use]
    pub fn due_slots(&self, now: Millis) -> Vec<Slot> {
        if self.published.next_due() > now { Vec::new() } else { self.published.due_slots(now) }
    }

    /// No key's time comes before this; `None` if no key has one. It may be earlier than the first until
    /// [`Keyspace::due_slots`] has looked.
    #[must_use]
    pub fn next_due(&self) -> Option<Millis> {
        Some(self.published.next_due()).filter(|next| *next != page::NEVER)
    }

    /// Has `ring` called, from then on, whenever a key got a time before [`Keyspace::next_due`], with its slot locked.
    /// Once.
    ///
    /// # Panics
    /// If it was called before.
    pub fn call_when_due_sooner(&self, ring: impl Fn() + Send + Sync + 'static) {
        self.published.call_when_due_sooner(Box::new(ring));
    }
}

const _: () = assert!(SLOT_COUNT <= u16::MAX as usize && FullChunk::<Aligned>::LEN == SLOT_COUNT);

//! The keyspace: all slots and their locks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use clock::Millis;
use parking_lot::{Mutex, MutexGuard};
use slot_routing::{SLOT_COUNT, Slot, SlotSet};
use smallvec::SmallVec;

use crate::global_lock::GlobalLock;
use crate::hashing;
use crate::key::Key;
use crate::locked_slots::LockedSlots;
use crate::memory::{FullChunk, prefetch};
use crate::page;
use crate::prefetched::PrefetchedSlot;
use crate::published::PublishedSummaries;
use crate::slot::{SlotData, SlotGuard};
use crate::snapshot::ActiveCuts;
use crate::table::Table;

/// Number of slots by which prefetching runs ahead while all slots are locked in order.
const PREFETCH_DISTANCE: usize = 16;
/// How long a thread that locks all slots first keeps some of them while it waits for another.
const KEPT_SLOT_WAIT: Duration = Duration::from_millis(2);

/// Number of spin attempts before a waiting thread sleeps: about as long as a worker holds a slot for one batch of
/// commands.
const SPIN_ATTEMPTS: usize = 200;
/// Time after which a thread that waits for a slot releases all other slots.
const SHORT_WAIT: Duration = Duration::from_millis(1);
/// Interval at which a thread that waits for a slot consults its wait policy.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Decides whether to keep waiting. It is called every two milliseconds with the time waited so far.
pub(crate) type WaitPolicy<'a> = &'a dyn Fn(Duration) -> bool;
/// Number of keys up to which prefetching needs no heap allocation.
const PREFETCH_BATCH: usize = 32;
pub(crate) type AllGuards<'k> = Vec<Option<MutexGuard<'k, SlotData>>>;

/// A slot with its lock, aligned so that it shares no cache line with another slot.
#[derive(Debug, Default)]
#[repr(align(128))]
struct AlignedSlot(Mutex<SlotData>);

/// Key counts of a database.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DatabaseSize {
    /// Total number of keys.
    pub keys: usize,
    /// Number of keys with an expiry.
    pub volatile: usize,
    /// Number of keys whose values have expiring elements.
    pub with_element_expiry: usize,
}

impl DatabaseSize {
    /// Adds the keys of one slot.
    pub fn add(&mut self, table: &Table) {
        self.keys += table.len();
        self.volatile += table.volatile_len();
        self.with_element_expiry += table.keys_with_element_expiry();
    }
}

/// The data of a node: all slots, each with its own lock.
#[derive(Debug)]
pub struct Keyspace {
    slots: FullChunk<AlignedSlot>,
    /// Slots that can hold keys, in ascending order.
    usable_slots: Box<[Slot]>,
    published_summaries: PublishedSummaries,
    pub(crate) active_cuts: ActiveCuts,
    pub(crate) global_lock: Mutex<()>,
    databases: u16,
}

impl Keyspace {
    /// Derives a hash seed from `text`. Servers with the same text share SCAN cursors.
    #[must_use]
    pub fn seed_from_text(text: &[u8]) -> u64 {
        hashing::seed_from_text(text)
    }

    /// Creates an empty keyspace with this many databases. `seed` makes hashes unpredictable; the first keyspace
    /// created in a process sets the seed for all.
    #[must_use]
    pub fn new(seed: u64, databases: u16) -> Self {
        Self::with_slots(seed, databases, Slot::all().collect())
    }

    /// Like [`Self::new`], restricted to these slots: loops over all slots skip the others, and keys of other
    /// slots must not be written.
    #[must_use]
    pub fn with_only_slots(seed: u64, databases: u16, slots: &SlotSet) -> Self {
        Self::with_slots(seed, databases, slots.iter().collect())
    }

    fn with_slots(seed: u64, databases: u16, in_use: Box<[Slot]>) -> Self {
        hashing::set_seed(seed);
        Self {
            slots: FullChunk::default(),
            usable_slots: in_use,
            published_summaries: PublishedSummaries::default(),
            active_cuts: ActiveCuts::default(),
            global_lock: Mutex::new(()),
            databases,
        }
    }

    /// Returns the slots that can hold keys, in ascending order; nearly always all slots.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = Slot> + '_ {
        self.usable_slots.iter().copied()
    }

    /// Returns whether keys of this slot may be written.
    #[must_use]
    pub fn is_in_use(&self, slot: Slot) -> bool {
        self.usable_slots.len() == SLOT_COUNT || self.usable_slots.binary_search(&slot).is_ok()
    }

    /// Creates an empty keyspace with the same databases and slots.
    #[must_use]
    pub fn empty_like(&self, seed: u64) -> Self {
        Self::with_slots(seed, self.databases, self.usable_slots.clone())
    }

    /// Returns the number of databases.
    #[must_use]
    pub fn databases(&self) -> u16 {
        self.databases
    }

    /// Hashes `bytes` once for all later lookups.
    #[must_use]
    #[inline]
    pub fn key<'a>(&self, bytes: &'a [u8]) -> Key<'a> {
        Key { bytes, slot: Slot::of_key(bytes), hash: hashing::hash_bytes(bytes) }
    }

    /// Like [`Self::key`], for callers that know the slot.
    #[must_use]
    #[inline]
    pub fn key_in_slot<'a>(&self, slot: Slot, bytes: &'a [u8]) -> Key<'a> {
        debug_assert_eq!(slot, Slot::of_key(bytes));
        Key { bytes, slot, hash: hashing::hash_bytes(bytes) }
    }

    /// Prefetches the slot's lock and header (first pass over a batch).
    #[inline]
    pub fn prefetch_slot(&self, key: &Key<'_>) {
        let slot = &self.slots[key.slot.index()..];
        prefetch(slot.as_ptr());
        prefetch(slot.as_ptr().cast::<u8>().wrapping_add(64));
    }

    /// Prefetches the key's index line (second pass). Locks the slot; returns `None` if another thread has locked it.
    #[inline]
    pub fn prefetch_index(&self, db: u16, key: &Key<'_>) -> Option<PrefetchedSlot<'_>> {
        let data = self.slots[key.slot.index()].0.try_lock()?;
        data.table_if(db)?.entries.prefetch_index(key.hash);
        Some(PrefetchedSlot { data, probable_entry: None })
    }

    /// Runs the second and third prefetch pass over keys whose slots must not stay locked.
    pub fn prefetch_entries<'a>(&self, db: u16, keys: impl Iterator<Item = &'a Key<'a>>) {
        let touched = keys.filter_map(|key| Some((self.prefetch_index(db, key)?, key)));
        let touched: SmallVec<[(PrefetchedSlot<'_>, &Key<'_>); PREFETCH_BATCH]> = touched.collect();
        touched.into_iter().for_each(|(mut touched, key)| touched.prefetch_entry(db, key));
    }

    /// Hashes the name of a part of a value, such as a hash field.
    #[must_use]
    #[inline]
    pub fn hash_element_name(&self, name: &[u8]) -> u64 {
        hashing::hash_bytes(name)
    }

    /// Locks one slot, waiting if necessary. The caller must hold no other slot (see
    /// [`Keyspace::lock_many`]).
    #[must_use]
    #[inline]
    pub fn lock(&self, slot: Slot) -> SlotGuard<'_> {
        self.try_lock(slot).unwrap_or_else(|| self.wait_for_slot(slot))
    }

    /// Spins before sleeping, because a slot is held only for a few microseconds, and a sleep with its wake-up costs
    /// both threads more.
    #[cold]
    fn wait_for_slot(&self, slot: Slot) -> SlotGuard<'_> {
        let data = self.spin_for_slot(slot).unwrap_or_else(|| self.slots[slot.index()].0.lock());
        self.slot_guard(slot, data)
    }

    fn spin_for_slot(&self, slot: Slot) -> Option<MutexGuard<'_, SlotData>> {
        let lock = &self.slots[slot.index()].0;
        (0..SPIN_ATTEMPTS).find_map(|_| {
            std::hint::spin_loop();
            lock.try_lock()
        })
    }

    /// Locks all given slots or none. It never waits for a slot while holding another, so two callers cannot deadlock.
    #[must_use]
    pub fn lock_many(&self, slots: &[Slot]) -> LockedSlots<'_> {
        let mut locked = LockedSlots::default();
        locked.lock_while(self, slots, &|_| true);
        locked
    }

    /// Waits for a slot as long as the policy allows.
    pub fn lock_slot_while(&self, slot: Slot, wait_policy: WaitPolicy<'_>) -> Option<SlotGuard<'_>> {
        self.try_lock(slot).or_else(|| Some(self.slot_guard(slot, self.lock_data_while(slot, wait_policy)?)))
    }

    fn lock_data_while(&self, slot: Slot, wait_policy: WaitPolicy<'_>) -> Option<MutexGuard<'_, SlotData>> {
        let spun = self.spin_for_slot(slot);
        let mut waited = Duration::ZERO;
        spun.or_else(|| {
            while wait_policy(waited) {
                if let Some(data) = self.slots[slot.index()].0.try_lock_for(POLL_INTERVAL) {
                    return Some(data);
                }
                waited += POLL_INTERVAL;
            }
            None
        })
    }

    /// Locks many slots without blocking other clients behind one busy slot: if a slot stays locked for more than a
    /// moment, the thread waits for it with all other slots released. `held` has one place per slot. Returns false if
    /// the wait policy gave up, and otherwise true with all slots locked. Only for the holder of the global lock, which
    /// may hold other slots.
    pub(crate) fn lock_all_slots<'k, G>(
        &'k self,
        _turn: &GlobalLock<'_>,
        slots: &[Slot],
        held: &mut [Option<G>],
        wait_policy: WaitPolicy<'_>,
        guard: impl Fn(Slot, MutexGuard<'k, SlotData>) -> G,
    ) -> bool {
        let mut awaited: SmallVec<[usize; 8]> = SmallVec::new();
        let mut patience = KEPT_SLOT_WAIT;
        loop {
            let busy = slots.iter().zip(&mut *held).position(|(slot, held)| {
                if held.is_none() {
                    self.prefetch_lock(slot.index() + PREFETCH_DISTANCE);
                    *held = self.try_lock_briefly(*slot).map(|data| guard(*slot, data));
                }
                held.is_none()
            });
            let Some(busy) = busy else { return true };
            let others = held.iter_mut().enumerate().filter(|(place, _)| !awaited.contains(place));
            others.for_each(|(_, held)| *held = None);
            // Slots that were waited for are kept during the next wait, or two busy slots could alternate for ever. Only
            // for a moment, since the next slot may stay locked for long; a longer one after each failure.
            let kept = |waited| waited < patience && wait_policy(waited);
            let mut data = if awaited.is_empty() { None } else { self.lock_data_while(slots[busy], &kept) };
            if data.is_none() {
                held.iter_mut().for_each(|held| *held = None);
                if !std::mem::take(&mut awaited).is_empty() {
                    patience *= 2;
                }
                data = self.lock_data_while(slots[busy], wait_policy);
            }
            let Some(data) = data else { return false };
            held[busy] = Some(guard(slots[busy], data));
            awaited.push(busy);
        }
    }

    fn try_lock_briefly(&self, slot: Slot) -> Option<MutexGuard<'_, SlotData>> {
        let lock = &self.slots[slot.index()].0;
        lock.try_lock().or_else(|| self.spin_for_slot(slot)).or_else(|| lock.try_lock_for(SHORT_WAIT))
    }

    /// Prepares for locking all slots: allocates the guards and prefetches the cache lines of the locks. Fetching these
    /// lines from other cores takes longer than the locking itself.
    pub(crate) fn prepare_to_lock_all(&self) -> AllGuards<'_> {
        for slot in self.slots() {
            self.prefetch_lock(slot.index() + PREFETCH_DISTANCE);
            drop(self.slots[slot.index()].0.try_lock());
        }
        self.slots().map(|_| None).collect()
    }

    /// Runs `at_that_moment` while all slots are locked. It does not read the slots, so only the cache line
    /// with each lock is touched.
    pub(crate) fn with_all_locked<'k, R>(
        &'k self,
        turn: &GlobalLock<'_>,
        mut held: AllGuards<'k>,
        at_that_moment: impl FnOnce() -> R,
    ) -> R {
        self.lock_all_slots(turn, &self.usable_slots, &mut held, &|_| true, |_, data| data);
        let outcome = at_that_moment();
        held.iter_mut().for_each(|guard| *guard = None);
        outcome
    }

    fn prefetch_lock(&self, number: usize) {
        if let Some(slot) = self.slots.get(number) {
            prefetch(slot);
        }
    }

    /// Locks a slot unless another thread holds it.
    #[must_use]
    pub fn try_lock(&self, slot: Slot) -> Option<SlotGuard<'_>> {
        self.slots[slot.index()].0.try_lock().map(|data| self.slot_guard(slot, data))
    }

    /// Yields the slot to waiting threads and locks it again. Long operations on a slot must call this
    /// regularly: a plain unlock and lock would nearly always win against a waiting thread.
    pub(crate) fn yield_to_waiters(&self, guard: &mut SlotGuard<'_>) {
        guard.publish();
        MutexGuard::bump(&mut guard.data);
        self.active_cuts.pin_missed_cuts(guard.slot, &mut guard.data);
        guard.likely = None;
    }

    #[inline]
    pub(crate) fn slot_guard<'k>(&'k self, slot: Slot, data: MutexGuard<'k, SlotData>) -> SlotGuard<'k> {
        self.guard_prefetched(slot, PrefetchedSlot { data, probable_entry: None })
    }

    #[inline(always)]
    pub(crate) fn guard_prefetched<'k>(&'k self, slot: Slot, touched: PrefetchedSlot<'k>) -> SlotGuard<'k> {
        let PrefetchedSlot { mut data, probable_entry: likely } = touched;
        self.active_cuts.pin_missed_cuts(slot, &mut data);
        SlotGuard { data, published: &self.published_summaries, slot, last_published: None, likely }
    }

    /// Returns the number of keys of database 0 in `slot`, as of the last unlock.
    #[must_use]
    pub fn slot_len(&self, slot: Slot) -> usize {
        self.published_summaries.keys[slot.index()].load(Ordering::Relaxed) as usize
    }

    /// Returns the number of keys in all databases, as of each slot's last unlock.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.non_empty_slots().map(|slot| self.keys_in_slot(slot)).sum()
    }

    /// Returns the slots that hold visible keys, in ascending order, as of each slot's last unlock.
    pub fn non_empty_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.published_summaries.non_empty_slots.iter()
    }

    /// Returns how often slots became empty or non-empty, as of the last unlocks.
    #[must_use]
    pub fn non_empty_changes(&self) -> u64 {
        self.published_summaries.non_empty_slots.changes()
    }

    /// Returns the number of keys of `slot` in all databases, as of the last unlock.
    #[must_use]
    pub fn keys_in_slot(&self, slot: Slot) -> usize {
        self.slot_len(slot)
            + self.published_summaries.other_database_keys[slot.index()].load(Ordering::Relaxed) as usize
    }

    /// Returns the number of keys of `slot` with an expiry, in all databases.
    #[must_use]
    pub fn volatile_in_slot(&self, slot: Slot) -> usize {
        self.published_summaries.volatile[slot.index()].load(Ordering::Relaxed) as usize
    }

    /// Returns the number of keys of database `db` in `slot`.
    #[must_use]
    pub fn len_in_slot(&self, db: u16, slot: Slot) -> usize {
        if db == 0 {
            return self.slot_len(slot);
        }
        if !self.has_other_databases(slot) { 0 } else { self.lock(slot).table_if(db).map_or(0, Table::len) }
    }

    /// Returns whether databases other than 0 have keys in `slot`, as of the last unlock.
    #[must_use]
    pub fn has_other_databases(&self, slot: Slot) -> bool {
        self.published_summaries.other_database_keys[slot.index()].load(Ordering::Relaxed) > 0
    }

    /// Returns the number of keys of database `db`.
    #[must_use]
    pub fn len(&self, db: u16) -> usize {
        self.non_empty_slots().map(|slot| self.len_in_slot(db, slot)).sum()
    }

    /// Returns the key counts per database. Slots are counted one after another while other threads may write. A slot
    /// is locked only if databases other than 0 have keys in it.
    #[must_use]
    pub fn sizes(&self) -> Vec<DatabaseSize> {
        let mut sizes = vec![DatabaseSize::default(); usize::from(self.databases())];
        for slot in self.non_empty_slots() {
            if self.has_other_databases(slot) {
                for (db, table) in self.lock(slot).tables() {
                    sizes[usize::from(db)].add(table);
                }
            } else {
                sizes[0].keys += self.slot_len(slot);
                sizes[0].volatile += self.volatile_in_slot(slot);
            }
        }
        let others: usize = sizes[1..].iter().map(|size| size.with_element_expiry).sum();
        sizes[0].with_element_expiry =
            self.published_summaries.keys_with_element_expiry.load(Ordering::Relaxed).saturating_sub(others);
        sizes
    }

    /// Returns whether database `db` has no keys.
    #[must_use]
    pub fn is_empty(&self, db: u16) -> bool {
        self.len(db) == 0
    }

    /// Returns the slots that may hold an expired key. Takes no locks, and returns at once while nothing can have
    /// expired.
    #[must_use]
    pub fn slots_with_expiries_due(&self, now: Millis) -> Vec<Slot> {
        if self.published_summaries.next_due() > now {
            Vec::new()
        } else {
            self.published_summaries.slots_with_expiries_due(now)
        }
    }

    /// Returns a lower bound of the next key expiry; `None` if no key expires. It becomes exact when
    /// [`Keyspace::slots_with_expiries_due`] runs.
    #[must_use]
    pub fn next_due(&self) -> Option<Millis> {
        Some(self.published_summaries.next_due()).filter(|next| *next != page::NO_EXPIRY)
    }

    /// Registers `notify`, called with the slot locked whenever a key gets an expiry earlier than
    /// [`Keyspace::next_due`].
    ///
    /// # Panics
    /// If called twice.
    pub fn on_earlier_expiry(&self, notify: impl Fn() + Send + Sync + 'static) {
        self.published_summaries.on_earlier_expiry(Box::new(notify));
    }
}

const _: () = assert!(SLOT_COUNT <= u16::MAX as usize && FullChunk::<AlignedSlot>::LEN == SLOT_COUNT);

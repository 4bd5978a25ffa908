//! Point-in-time snapshots without copying.
//!
//! To take a snapshot, a thread locks every slot only to advance the snapshot number; it does not read the slots. A
//! thread that locks a slot later compares that number with the last one that the slot has seen, and pins the slot's
//! tables before anything can change (see `pins` in [`crate::entries`]). A snapshot then walks through each slot: it
//! visits the state at the moment when the snapshot was taken, and unpins it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use clock::Millis;
use parking_lot::{Condvar, Mutex};
use slot_routing::{SLOT_COUNT, Slot};

use crate::captured::CapturedEntries;
use crate::entries::EntryRef;
use crate::global_lock::GlobalLock;
use crate::keyspace::{AllGuards, Keyspace};
use crate::large::LargeValue;
use crate::locked_slots::LockedSlots;
use crate::shared_slots::AtomicSlotSet;
use crate::slot::SlotData;
use crate::usage::Usage;
use crate::value::SnapshotValue;

/// Maximum number of concurrent snapshots. Each has a bit in the state of an entry.
const MAX_SNAPSHOTS: usize = 3;

/// Number of page bytes that are copied while a slot is locked once, which takes some microseconds.
const BYTES_PER_LOCK: usize = 32 << 10;

/// The active snapshots, for which slots must be pinned.
#[derive(Debug, Default)]
pub(crate) struct ActiveSnapshots {
    last_snapshot_number: AtomicU32,
    /// Number of the active snapshot for each bit; 0 if there is none.
    snapshot_numbers: [AtomicU32; MAX_SNAPSHOTS],
    /// The slots that are pinned for each bit.
    pinned_slots: [AtomicSlotSet; MAX_SNAPSHOTS],
    /// The bits in use. A bit stays in use until no slot is pinned for it any more.
    bits_in_use: AtomicU32,
    /// Number of snapshots that a command reads. Such a snapshot exists only while the command runs.
    reader_count: Mutex<u32>,
    /// Signalled when a command that reads a snapshot ends.
    reader_done: Condvar,
}

impl ActiveSnapshots {
    /// Pins a newly locked slot for all snapshots that were taken since the slot was last locked.
    #[inline]
    pub(crate) fn pin_for_missed_snapshots(&self, slot: Slot, data: &mut SlotData) {
        // Relaxed ordering is sufficient, because the thread that takes a snapshot has locked the slot when it stores
        // the number.
        if data.last_pinned_snapshot != self.last_snapshot_number.load(Ordering::Relaxed) {
            self.pin(slot, data);
        }
    }

    #[cold]
    fn pin(&self, slot: Slot, data: &mut SlotData) {
        for (number, active) in self.snapshot_numbers.iter().enumerate() {
            if active.load(Ordering::Relaxed) <= data.last_pinned_snapshot {
                continue;
            }
            // Add the slot before pinning it: then either the thread that ends the snapshot finds the slot, or this
            // thread sees that the snapshot has ended.
            self.pinned_slots[number].set(slot, true);
            fence(Ordering::SeqCst);
            if active.load(Ordering::Relaxed) <= data.last_pinned_snapshot || !data.pin(1 << number) {
                self.pinned_slots[number].set(slot, false);
            }
        }
        data.last_pinned_snapshot = self.last_snapshot_number.load(Ordering::Relaxed);
    }

    fn reserve_bit(&self) -> Option<usize> {
        let free = |bits: u32| (!bits & ((1 << MAX_SNAPSHOTS) - 1) != 0).then(|| bits | (bits + 1));
        let before = self.bits_in_use.fetch_update(Ordering::Acquire, Ordering::Relaxed, free).ok()?;
        Some(before.trailing_ones() as usize)
    }

    /// Reserves a bit for a snapshot that a command reads, without waiting.
    fn reserve_reader_bit(&self) -> Option<usize> {
        let mut reading = self.reader_count.lock();
        let number = self.reserve_bit()?;
        *reading += 1;
        Some(number)
    }

    /// Reserves a bit, waiting for commands that read snapshots to release theirs.
    fn wait_for_reader_bit(&self) -> Option<usize> {
        let mut reading = self.reader_count.lock();
        loop {
            let number = self.reserve_bit();
            if number.is_some() || *reading == 0 {
                return number;
            }
            self.reader_done.wait(&mut reading);
        }
    }
}

/// A key in the state that the snapshot captured, with its value or a part of the value.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotEntry<'a> {
    /// Number of the database that contains the key.
    pub db: u16,
    /// The key's name.
    pub key: &'a [u8],
    /// The value, or a part of it.
    pub value: SnapshotValue<'a>,
    /// Time at which the key expires; `None` if it has no expiry.
    pub expiry: Option<Millis>,
    /// Usage counters, which may be newer than the snapshot.
    pub usage: Usage,
}

/// The whole keyspace at one moment. Dropping a snapshot unpins everything that it has not visited, which takes time if
/// much has changed since it was taken.
#[derive(Debug)]
pub struct Snapshot {
    keyspace: Arc<Keyspace>,
    snapshot_number: usize,
    walked_slots: Box<[bool]>,
    captured: CapturedEntries,
    /// Whether a command reads the snapshot while the command runs.
    is_read_by_command: bool,
}

/// Memory that is allocated for a snapshot before any slot is locked.
#[derive(Debug)]
pub struct PreparedSnapshot<'k> {
    keyspace: &'k Arc<Keyspace>,
    walked_slots: Box<[bool]>,
    locked_slots: AllGuards<'k>,
}

impl Keyspace {
    /// Allocates the memory for a snapshot in advance, so that no slot is locked meanwhile.
    #[must_use]
    pub fn prepare_snapshot(self: &Arc<Self>) -> PreparedSnapshot<'_> {
        PreparedSnapshot {
            keyspace: self,
            walked_slots: vec![false; SLOT_COUNT].into(),
            locked_slots: self.prepare_to_lock_all(),
        }
    }
}

impl Keyspace {
    /// Takes a snapshot of only these values, whose slots must be locked. Returns `None` if there are no values, if one
    /// of them is not a large collection, or if the maximum number of snapshots is active.
    pub fn pin_values(
        self: &Arc<Self>,
        slots: &mut LockedSlots<'_>,
        db: u16,
        values: &[(Slot, EntryRef)],
    ) -> Option<Snapshot> {
        let is_walked_in_parts = |(slot, place): &(Slot, EntryRef)| {
            slots.slot(*slot).table_ref(db).entries.is_walked_in_parts(*place)
        };
        if values.is_empty() || !values.iter().all(is_walked_in_parts) {
            return None;
        }
        let number = self.active_snapshots.reserve_reader_bit()?;
        for &(slot, place) in values {
            slots.slot_mut(slot).pin_value(1 << number, db, place);
            self.active_snapshots.pinned_slots[number].set(slot, true);
        }
        Some(Snapshot::from_number(self.clone(), number, vec![false; SLOT_COUNT].into(), true))
    }
}

impl PreparedSnapshot<'_> {
    /// Takes a snapshot; returns `None` if three are active, but first waits for those that commands read.
    /// `while_locked` runs while every slot is locked, to record other state of the same moment, such as the log
    /// offset.
    pub fn take<R>(
        self,
        global_lock: &GlobalLock<'_>,
        while_locked: impl FnOnce() -> R,
    ) -> Option<(Snapshot, R)> {
        let cuts = &self.keyspace.active_snapshots;
        let number = cuts.reserve_bit().or_else(|| cuts.wait_for_reader_bit())?;
        Some(self.take_with_number(number, false, global_lock, while_locked))
    }

    /// Like [`Self::take`], for a command that reads the snapshot while it runs. Does not wait for other snapshots.
    pub fn take_for_command<R>(
        self,
        global_lock: &GlobalLock<'_>,
        while_locked: impl FnOnce() -> R,
    ) -> Option<(Snapshot, R)> {
        let number = self.keyspace.active_snapshots.reserve_reader_bit()?;
        Some(self.take_with_number(number, true, global_lock, while_locked))
    }

    fn take_with_number<R>(
        self,
        number: usize,
        is_read_by_command: bool,
        global_lock: &GlobalLock<'_>,
        while_locked: impl FnOnce() -> R,
    ) -> (Snapshot, R) {
        let Self { keyspace, walked_slots: walked, locked_slots: held } = self;
        let cuts = &keyspace.active_snapshots;
        let noted = keyspace.with_all_locked(global_lock, held, || {
            let cut = cuts.last_snapshot_number.load(Ordering::Relaxed) + 1;
            cuts.snapshot_numbers[number].store(cut, Ordering::Relaxed);
            cuts.last_snapshot_number.store(cut, Ordering::Relaxed);
            while_locked()
        });
        (Snapshot::from_number(keyspace.clone(), number, walked, is_read_by_command), noted)
    }
}

impl Snapshot {
    fn from_number(
        keyspace: Arc<Keyspace>,
        number: usize,
        walked_slots: Box<[bool]>,
        is_read_by_command: bool,
    ) -> Self {
        Self {
            keyspace,
            snapshot_number: number,
            walked_slots,
            captured: CapturedEntries::default(),
            is_read_by_command,
        }
    }

    /// Passes the value that will be visited next in `slot`, in its current state, to `inspect`.
    pub(crate) fn with_next_value<R>(&self, slot: Slot, inspect: impl FnOnce(&LargeValue) -> R) -> Option<R> {
        let mut guard = self.keyspace.lock(slot);
        let last_cut = guard.pinned_value(1 << self.snapshot_number).map(inspect);
        // Let waiting threads lock the slot first, because the caller locks it again at once.
        self.keyspace.yield_to_waiters(&mut guard);
        last_cut
    }

    /// Visits the keys that `slot` had when the snapshot was taken, and unpins them.
    pub fn walk(&mut self, slot: Slot, visit: &mut dyn FnMut(SnapshotEntry<'_>)) {
        while self.walk_part(slot, visit) {}
    }

    /// Visits the database, name and expiry of the keys that `slot` had when the snapshot was taken, and unpins them.
    pub fn walk_names(&mut self, slot: Slot, mut visit: impl FnMut(u16, &[u8], Option<Millis>)) {
        self.captured.keys_only = true;
        self.walk(slot, &mut |entry| visit(entry.db, entry.key, entry.expiry));
        self.captured.keys_only = false;
    }

    /// Visits some of the keys that `slot` had when the snapshot was taken, and unpins them. Returns whether more keys
    /// remain. No slot is locked while `visit` runs.
    pub fn walk_part(&mut self, slot: Slot, visit: &mut dyn FnMut(SnapshotEntry<'_>)) -> bool {
        if self.captured.in_multipart_value {
            self.captured.visit_captured(visit);
            return self.captured.in_multipart_value || !self.walked_slots[slot.index()];
        }
        if self.walked_slots[slot.index()] {
            return false;
        }
        let mut guard = self.keyspace.lock(slot);
        let mut more = !guard.walk(1 << self.snapshot_number, BYTES_PER_LOCK, &mut self.captured);
        while self.captured.in_long_value {
            self.keyspace.yield_to_waiters(&mut guard);
            more = !guard.walk(1 << self.snapshot_number, BYTES_PER_LOCK, &mut self.captured);
        }
        if !more {
            self.walked_slots[slot.index()] = true;
            self.keyspace.active_snapshots.pinned_slots[self.snapshot_number].set(slot, false);
        }
        drop(guard);
        self.captured.visit_captured(visit);
        more || self.captured.in_multipart_value
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let cuts = &self.keyspace.active_snapshots;
        let pinned = &cuts.pinned_slots[self.snapshot_number];
        // Store this before reading the pinned slots, so that a thread that pins a slot later sees that the snapshot
        // has ended.
        cuts.snapshot_numbers[self.snapshot_number].store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        for slot in pinned.iter() {
            let mut guard = self.keyspace.lock(slot);
            while !guard.unpin(1 << self.snapshot_number, BYTES_PER_LOCK, &mut self.captured.records_to_drop)
            {
                self.keyspace.yield_to_waiters(&mut guard);
            }
            pinned.set(slot, false);
            drop(guard);
            self.captured.clear();
        }
        cuts.bits_in_use.fetch_and(!(1 << self.snapshot_number), Ordering::Release);
        if self.is_read_by_command {
            *cuts.reader_count.lock() -= 1;
            cuts.reader_done.notify_all();
        }
    }
}

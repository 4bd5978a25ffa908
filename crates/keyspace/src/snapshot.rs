//! The state at one moment, slot by slot, without a copy.
//!
//! A cut holds every slot only to write down its number: it looks into none of them. A slot that is locked
//! afterwards compares that with the last it has seen and pins its tables before anything can change
//! ([`crate::entries`], `pins`).
//! Walking a slot visits what it held at the cut and lets go of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use clock::Millis;
use parking_lot::{Condvar, Mutex};
use slot_routing::{SLOT_COUNT, Slot};

use crate::captured::Captured;
use crate::entries::Place;
use crate::global_lock::ScriptTurn;
use crate::keyspace::{Holding, Keyspace};
use crate::large::Large;
use crate::locked_slots::LockedSlots;
use crate::shared_slots::SharedSlots;
use crate::slot::SlotData;
use crate::usage::Usage;
use crate::value::Shown;

/// How many snapshots can be under way: each has a bit in an entry's state.
const MOST: usize = 3;

/// Bytes of pages that are copied under one lock: some microseconds.
const BUDGET: usize = 32 << 10;

/// The cuts that slots have to know of.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    /// The number of the last cut.
    last: AtomicU32,
    /// By bit: the number of the cut whose snapshot is under way, or 0.
    active: [AtomicU32; MOST],
    /// By bit: the slots that are pinned.
    pinned: [SharedSlots; MOST],
    /// The bits that are in use. A bit stays so until its snapshot is unpinned everywhere.
    bits: AtomicU32,
    /// How many of them commands have that read, for about as long as they run.
    reading: Mutex<u32>,
    /// One of these has ended.
    has_been_read: Condvar,
}

impl Cuts {
    /// Pins a slot that has just been locked for the cuts that it has not seen.
    #[inline]
    pub(crate) fn meet(&self, slot: Slot, data: &mut SlotData) {
        // Relaxed: the thread that cuts holds the slot's lock meanwhile.
        if data.seen != self.last.load(Ordering::Relaxed) {
            self.pin(slot, data);
        }
    }

    #[cold]
    fn pin(&self, slot: Slot, data: &mut SlotData) {
        for (number, active) in self.active.iter().enumerate() {
            if active.load(Ordering::Relaxed) <= data.seen {
                continue;
            }
            // Said before it is done: who ends the snapshot meanwhile finds the slot, or this finds the end.
            self.pinned[number].set(slot, true);
            fence(Ordering::SeqCst);
            if active.load(Ordering::Relaxed) <= data.seen || !data.pin(1 << number) {
                self.pinned[number].set(slot, false);
            }
        }
        data.seen = self.last.load(Ordering::Relaxed);
    }

    fn reserve(&self) -> Option<usize> {
        let free = |bits: u32| (!bits & ((1 << MOST) - 1) != 0).then(|| bits | (bits + 1));
        let before = self.bits.fetch_update(Ordering::Acquire, Ordering::Relaxed, free).ok()?;
        Some(before.trailing_ones() as usize)
    }

    /// The same for a command that reads: it waits for nobody.
    fn reserve_to_read(&self) -> Option<usize> {
        let mut reading = self.reading.lock();
        let number = self.reserve()?;
        *reading += 1;
        Some(number)
    }

    /// Waits for a command that reads, if there is one, to let go of its bit.
    fn await_reader(&self) -> Option<usize> {
        let mut reading = self.reading.lock();
        loop {
            let number = self.reserve();
            if number.is_some() || *reading == 0 {
                return number;
            }
            self.has_been_read.wait(&mut reading);
        }
    }
}

/// One key as it was at the cut.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotEntry<'a> {
    /// Its database.
    pub db: u16,
    /// The key.
    pub key: &'a [u8],
    /// Its value, or a part of it.
    pub value: Shown<'a>,
    /// When it expires, if it does.
    pub expiry: Option<Millis>,
    /// When and how often it was used, as of about now.
    pub usage: Usage,
}

/// The whole keyspace as it was at the cut. Dropping it lets go of what was not walked, which takes time
/// when much was changed since.
#[derive(Debug)]
pub struct Snapshot {
    keyspace: Arc<Keyspace>,
    number: usize,
    walked: Box<[bool]>,
    captured: Captured,
    /// A command reads it.
    reads: bool,
}

/// All that a snapshot needs before any slot is held.
#[derive(Debug)]
pub struct ReadyToCut<'k> {
    keyspace: &'k Arc<Keyspace>,
    walked: Box<[bool]>,
    held: Holding<'k>,
}

impl Keyspace {
    /// Allocates what a cut needs, with no slot locked yet, so that no command waits for it.
    #[must_use]
    pub fn ready_to_cut(self: &Arc<Self>) -> ReadyToCut<'_> {
        ReadyToCut { keyspace: self, walked: vec![false; SLOT_COUNT].into(), held: self.ready_to_hold_all() }
    }
}

impl Keyspace {
    /// A snapshot of some values alone, whose slots are locked. `None` if there are none or one is not a large collection, or as many
    /// snapshots are under way as there can be.
    pub fn pin_values(
        self: &Arc<Self>,
        slots: &mut LockedSlots<'_>,
        db: u16,
        values: &[(Slot, Place)],
    ) -> Option<Snapshot> {
        let is_in_parts =
            |(slot, place): &(Slot, Place)| slots.slot(*slot).view(db).entries.is_in_parts(*place);
        if values.is_empty() || !values.iter().all(is_in_parts) {
            return None;
        }
        let number = self.cuts.reserve_to_read()?;
        for &(slot, place) in values {
            slots.slot_mut(slot).pin_value(1 << number, db, place);
            self.cuts.pinned[number].set(slot, true);
        }
        Some(Snapshot::of(self.clone(), number, vec![false; SLOT_COUNT].into(), true))
    }
}

impl ReadyToCut<'_> {
    /// Takes a snapshot, unless three are under way; those that commands read are waited for. `at_cut` runs while every
    /// slot is held, to note what belongs to that moment (the log's offset).
    pub fn cut<R>(self, turn: &ScriptTurn<'_>, at_cut: impl FnOnce() -> R) -> Option<(Snapshot, R)> {
        let cuts = &self.keyspace.cuts;
        let number = cuts.reserve().or_else(|| cuts.await_reader())?;
        Some(self.cut_as(number, false, turn, at_cut))
    }

    /// The same for a command that reads it as it runs. It waits for no other.
    pub fn cut_to_read<R>(self, turn: &ScriptTurn<'_>, at_cut: impl FnOnce() -> R) -> Option<(Snapshot, R)> {
        let number = self.keyspace.cuts.reserve_to_read()?;
        Some(self.cut_as(number, true, turn, at_cut))
    }

    fn cut_as<R>(
        self,
        number: usize,
        reads: bool,
        turn: &ScriptTurn<'_>,
        at_cut: impl FnOnce() -> R,
    ) -> (Snapshot, R) {
        let Self { keyspace, walked, held } = self;
        let cuts = &keyspace.cuts;
        let noted = keyspace.with_all_held(turn, held, || {
            let cut = cuts.last.load(Ordering::Relaxed) + 1;
            cuts.active[number].store(cut, Ordering::Relaxed);
            cuts.last.store(cut, Ordering::Relaxed);
            at_cut()
        });
        (Snapshot::of(keyspace.clone(), number, walked, reads), noted)
    }
}

impl Snapshot {
    fn of(keyspace: Arc<Keyspace>, number: usize, walked: Box<[bool]>, reads: bool) -> Self {
        Self { keyspace, number, walked, captured: Captured::default(), reads }
    }

    /// Looks at the value that is the next to be walked in a slot, as it is now and with all that it was at the cut.
    pub(crate) fn with_next_value<R>(&self, slot: Slot, look: impl FnOnce(&Large) -> R) -> Option<R> {
        let mut guard = self.keyspace.lock(slot);
        let seen = guard.pinned_value(1 << self.number).map(look);
        // The caller comes back at once.
        self.keyspace.let_others(&mut guard);
        seen
    }

    /// Visits the keys that `slot` held at the cut and lets go of them.
    pub fn walk(&mut self, slot: Slot, visit: &mut dyn FnMut(SnapshotEntry<'_>)) {
        while self.walk_part(slot, visit) {}
    }

    /// Visits the names of the keys that `slot` held at the cut, with their databases and when they expire, and lets go
    /// of them.
    pub fn walk_names(&mut self, slot: Slot, mut visit: impl FnMut(u16, &[u8], Option<Millis>)) {
        self.captured.names_only = true;
        self.walk(slot, &mut |entry| visit(entry.db, entry.key, entry.expiry));
        self.captured.names_only = false;
    }

    /// Visits some of the keys that `slot` held at the cut and lets go of them; says whether there are more.
    /// Nothing is locked while `visit` runs.
    pub fn walk_part(&mut self, slot: Slot, visit: &mut dyn FnMut(SnapshotEntry<'_>)) -> bool {
        if self.captured.within_parts {
            self.captured.show(visit);
            return self.captured.within_parts || !self.walked[slot.index()];
        }
        if self.walked[slot.index()] {
            return false;
        }
        let mut guard = self.keyspace.lock(slot);
        let mut more = !guard.walk(1 << self.number, BUDGET, &mut self.captured);
        while self.captured.within_value {
            self.keyspace.let_others(&mut guard);
            more = !guard.walk(1 << self.number, BUDGET, &mut self.captured);
        }
        if !more {
            self.walked[slot.index()] = true;
            self.keyspace.cuts.pinned[self.number].set(slot, false);
        }
        drop(guard);
        self.captured.show(visit);
        more || self.captured.within_parts
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let cuts = &self.keyspace.cuts;
        let pinned = &cuts.pinned[self.number];
        // Before the look at what is pinned: a thread that pins a slot after that sees it.
        cuts.active[self.number].store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        for slot in pinned.iter() {
            let mut guard = self.keyspace.lock(slot);
            while !guard.unpin(1 << self.number, BUDGET, &mut self.captured.dropped) {
                self.keyspace.let_others(&mut guard);
            }
            pinned.set(slot, false);
            drop(guard);
            self.captured.clear();
        }
        cuts.bits.fetch_and(!(1 << self.number), Ordering::Release);
        if self.reads {
            *cuts.reading.lock() -= 1;
            cuts.has_been_read.notify_all();
        }
    }
}

//! The pins that snapshots hold in a store.
//!
//! A pin says: the pages from `walked` to `mark` are as they were at the cut. `mark` is how many pages
//! there were then; from the cut on, new entries go to new pages. In the pages between, no entry is edited
//! or moved, and one that leaves the index stays, with the pins that need it in its state. So walking the
//! pages between visits exactly the state at the cut: what is alive was alive then, for nothing was added;
//! what was removed since is still there. As the walk passes a page, what was kept for it dies, and the
//! page is as any other.
//!
//! A large collection is pinned in turn ([`crate::large::Collection`]): when it is first changed after the cut, or
//! when its entry is copied, or at the latest when the walk passes its entry. From then on it waits in
//! `pending`, which keeps it alive, until the walk has gone through it too.
//!
//! A long string or packed collection outside of the pages waits there as well and is walked by itself, a piece
//! at a time; it is copied if it is edited meanwhile.
//!
//! A walk copies what it passes ([`Captured`]); it is shown when the slot is no longer held.
//!
//! Up to three snapshots can hold a store at a time, each with its bit; none waits for another's walk.

use super::{Entries, Place, Rare};
use crate::captured::{Captured, External, FindExternal, Owner, is_needed};
use crate::entry::{self, Draft, Header, Marks, Where};
use crate::key::Key;
use crate::large::Large;
use crate::overflow::{Outside, Record, Shape, ShapeMut, count_kept};
use crate::page;
use crate::pages;

/// How much of a long value is copied under one lock.
const PIECE: usize = 64 << 10;

/// The pages and entries that one snapshot holds in a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pin {
    /// The snapshot's bit in the state of an entry: 1, 2 or 4.
    bit: u32,
    /// The database that the store was at the cut.
    db: u16,
    walked: u32,
    mark: u32,
    /// How many entries there were, and how many of them expire: a pin is made before the first change after the
    /// cut.
    pub(crate) len: u32,
    pub(crate) volatile: u32,
}

impl Pin {
    /// Whether nothing has been walked yet.
    pub(crate) fn is_new(&self) -> bool {
        self.walked == 0
    }
}

/// A value outside whose entry a walk has passed.
#[derive(Debug)]
pub(super) struct Pending {
    bit: u32,
    db: u16,
    marks: Marks,
    key: Box<[u8]>,
    record: u32,
    /// How much of a long value has been walked.
    walked: usize,
}

impl<V: Outside> Entries<V> {
    /// The snapshots that still need what lies in a page, as bits.
    #[inline]
    pub(super) fn pinned(&self, number: usize) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.pinned(number))
    }

    /// From here on, new pages get at least this number.
    pub(super) fn first_free_number(&self) -> usize {
        let pins = self.rare.as_ref().map_or(&[][..], |rare| &rare.pins);
        pins.iter().map(|pin| pin.mark as usize).max().unwrap_or(0)
    }

    /// Holds the entries as they are now for a snapshot; says whether there are any.
    pub(crate) fn pin(&mut self, bit: u32, db: u16) -> bool {
        let (mark, len, volatile) = (self.pages.count() as u32, self.len, self.volatile);
        if mark > 0 {
            self.rare().pins.push(Pin { bit, db, walked: 0, mark, len, volatile });
        }
        mark > 0
    }

    /// The record of an entry whose value is walked in parts: a long one that is not a collection is shown whole.
    fn record_in_parts(&self, place: Place) -> Option<u32> {
        let (header, page, at) = self.pages.entry(place.0);
        let record = header.outside(page, at)?;
        matches!(self.store().record(record).value.shape(), Shape::Collection(_)).then_some(record)
    }

    /// Whether the value of this entry is one.
    pub(crate) fn is_in_parts(&self, place: Place) -> bool {
        self.record_in_parts(place).is_some()
    }

    /// Holds such a value as it is now.
    pub(crate) fn pin_value(&mut self, bit: u32, db: u16, place: Place) {
        let Some(record) = self.record_in_parts(place) else { return };
        let (header, page, at) = self.pages.entry(place.0);
        let key = self.names().name_of(header, page, at).into();
        let pending = Pending { bit, db, marks: header.marks(page, at), key, record, walked: 0 };
        self.let_wait(vec![pending]);
    }

    /// The value that is the next to be walked.
    pub(crate) fn pinned_value(&self, bit: u32) -> Option<&V> {
        let pending = &self.rare.as_ref()?.pending[self.pending_for(bit)?];
        Some(&self.store().record(pending.record).value)
    }

    /// Pins values, and keeps them until they are walked.
    fn let_wait(&mut self, values: Vec<Pending>) {
        for value in &values {
            self.pin_record(value.record, value.bit);
            self.rare().store.record_mut(value.record).shared += 1;
        }
        self.rare().pending.extend(values);
    }

    pub(crate) fn pin_of(&self, bit: u32) -> Option<Pin> {
        self.rare.as_ref()?.pins.iter().find(|pin| pin.bit == bit).copied()
    }

    pub(crate) fn is_pinned_for(&self, bit: u32) -> bool {
        self.pin_of(bit).is_some() || self.pending_for(bit).is_some()
    }

    /// Whether the walk is within the large values of a page.
    pub(crate) fn is_within(&self, bit: u32) -> bool {
        self.pending_for(bit).is_some()
    }

    /// Whether any snapshot still needs something here.
    pub(crate) fn is_pinned(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| !rare.pins.is_empty() || !rare.pending.is_empty())
    }

    /// Bytes of entries that are kept for snapshots only.
    pub(crate) fn leftover_bytes(&self) -> usize {
        self.rare.as_ref().map_or(0, |rare| rare.leftover)
    }

    /// Copies pages that the pin holds until it has passed `budget` bytes, and lets go of them. Says whether the
    /// pin is done; then it is gone.
    pub(crate) fn walk(&mut self, bit: u32, budget: usize, captured: &mut Captured) -> bool {
        let mut passed = 0;
        while passed < budget {
            if let Some(index) = self.pending_for(bit) {
                passed += self.walk_pending(index, captured);
                continue;
            }
            let Some(pin) = self.pin_of(bit) else { return true };
            let number = pin.walked as usize;
            self.pages.prefetch_page(number + 1);
            if let Some(page) = self.pages.page_if(number) {
                passed += self.with_beside(page, |external| captured.add_page(pin.db, bit, page, external));
            }
            self.pin_external_of(bit, pin.db, number);
            self.pass(bit, number, &mut captured.dropped);
        }
        !self.is_pinned_for(bit)
    }

    fn has_outside(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| !rare.store.is_empty())
    }

    /// Gives `work` a way to the keys and values that entries of a page have outside, if any may.
    fn with_beside<'a, R>(
        &'a self,
        page: &'a [u8],
        work: impl FnOnce(Option<&FindExternal<'_, 'a>>) -> R,
    ) -> R {
        if !self.has_outside() {
            return work(None);
        }
        work(Some(&|at, header| self.external(page, at, header)))
    }

    /// The key and value that an entry has outside of its page.
    fn external<'a>(&'a self, page: &'a [u8], at: usize, header: Header) -> Option<External<'a>> {
        let record = self.store().record(header.outside(page, at)?);
        let value = match record.value.shape() {
            Shape::Flat(bytes) if !record.value.waits() => Some(&bytes[..]),
            Shape::Flat(_) | Shape::Collection(_) => None,
        };
        Some(External { key: record.key.as_deref(), value })
    }

    /// Copies a piece of a long value, or the next part of a collection; returns its bytes.
    fn walk_pending(&mut self, index: usize, captured: &mut Captured) -> usize {
        if captured.names_only {
            return self.skip_pending(index, &mut captured.dropped);
        }
        let rare = self.rare();
        let pending = &mut rare.pending[index];
        let copied = match rare.store.record_mut(pending.record).value.shape_mut() {
            ShapeMut::Collection(collection) => collection.walk(pending.bit, pending.owner(), captured),
            ShapeMut::Flat(bytes) => {
                let left = &bytes[pending.walked..];
                let (piece, left) = left.split_at(left.len().min(PIECE));
                captured.add_long_part(piece, left.len());
                pending.walked += piece.len();
                let (copied, done) = (piece.len(), left.is_empty());
                if done {
                    captured.complete_long(pending.owner(), pending.walked);
                    self.end_pending(index, &mut captured.dropped);
                }
                return copied;
            }
        };
        copied.unwrap_or_else(|| {
            self.end_pending(index, &mut captured.dropped);
            0
        })
    }

    /// For a collection, whose entries these are: lets `copy` have the next page that the pin holds, which may be an
    /// empty one so that there is a first, and passes it. `None` if the pin is done.
    pub(crate) fn walk_page(
        &mut self,
        bit: u32,
        dropped: &mut Vec<Record<Large>>,
        copy: impl for<'a> FnOnce(&Pin, &'a [u8], Option<&FindExternal<'_, 'a>>) -> usize,
    ) -> Option<usize> {
        let pin = self.pin_of(bit)?;
        let number = pin.walked as usize;
        let mut empty = [0; page::HEAD];
        page::format(&mut empty);
        let page = self.pages.page_if(number).unwrap_or(&empty);
        let copied = self.with_beside(page, |external| copy(&pin, page, external));
        self.pages.prefetch_page(number + 1);
        self.pass(bit, number, dropped);
        Some(copied)
    }

    /// For a collection: passes the next page that the pin holds; returns its bytes. `None` if the pin is done.
    pub(crate) fn skip_page(&mut self, bit: u32, dropped: &mut Vec<Record<Large>>) -> Option<usize> {
        let number = self.pin_of(bit)?.walked as usize;
        let size = self.pages.size_if(number).unwrap_or(0);
        self.pass(bit, number, dropped);
        Some(size)
    }

    /// In order: the next of the same snapshot may have been begun.
    fn end_pending(&mut self, index: usize, dropped: &mut Vec<Record<Large>>) {
        let pending = self.rare().pending.remove(index);
        dropped.extend(self.rare().store.release(pending.record).map(Record::into_dropped));
    }

    /// Lets go of a long value, or of the next part of a collection; returns its bytes.
    fn skip_pending(&mut self, index: usize, dropped: &mut Vec<Record<Large>>) -> usize {
        let rare = self.rare();
        let Pending { bit, record, .. } = rare.pending[index];
        let passed = match rare.store.record_mut(record).value.shape_mut() {
            ShapeMut::Flat(_) => None,
            ShapeMut::Collection(collection) => collection.skip(bit, dropped),
        };
        passed.unwrap_or_else(|| {
            self.end_pending(index, dropped);
            0
        })
    }

    /// Lets go of what the pin holds without copying it, `budget` bytes of pages at a time. Says whether the
    /// pin is done.
    pub(crate) fn unpin(&mut self, bit: u32, budget: usize, dropped: &mut Vec<Record<Large>>) -> bool {
        let mut passed = 0;
        while passed < budget {
            if let Some(index) = self.pending_for(bit) {
                passed += self.skip_pending(index, dropped);
                continue;
            }
            let Some(pin) = self.pin_of(bit) else { return true };
            let nothing =
                self.rare.as_ref().is_none_or(|rare| rare.leftover == 0 && !rare.store.has_collections());
            if nothing {
                self.rare().pins.retain(|pin| pin.bit != bit);
                return true;
            }
            let number = pin.walked as usize;
            passed += self.pages.size_if(number).unwrap_or(0);
            self.pin_external_of(bit, pin.db, number);
            self.pass(bit, number, dropped);
        }
        !self.is_pinned_for(bit)
    }

    fn pending_for(&self, bit: u32) -> Option<usize> {
        self.rare.as_ref()?.pending.iter().position(|pending| pending.bit == bit)
    }

    /// The pin has passed a page.
    fn pass(&mut self, bit: u32, number: usize, dropped: &mut Vec<Record<Large>>) {
        let rare = self.rare();
        let index = rare.pins.iter().position(|pin| pin.bit == bit).expect("a pin passes pages");
        rare.pins[index].walked += 1;
        if rare.pins[index].walked == rare.pins[index].mark {
            rare.pins.swap_remove(index);
        }
        if self.pages.size_if(number).is_some() {
            self.let_go(bit, number, dropped);
        }
    }

    /// The long values of a page that is being passed are pinned and wait for their walk.
    fn pin_external_of(&mut self, bit: u32, db: u16, number: usize) {
        let Some(page) = self.pages.page_if(number).filter(|_| self.has_outside()) else { return };
        let mut pending = Vec::new();
        for (at, header) in page::entries(page, page::HEAD) {
            let Some(record) = header.outside(page, at).filter(|_| is_needed(header, bit)) else { continue };
            if self.store().record(record).value.waits() {
                let key = self.names().name_of(header, page, at).into();
                pending.push(Pending { bit, db, marks: header.marks(page, at), key, record, walked: 0 });
            }
        }
        self.let_wait(pending);
    }

    /// Pins a record that is a collection, for each of `bits` that has not.
    fn pin_record(&mut self, record: u32, bits: u32) {
        if let ShapeMut::Collection(collection) = self.rare().store.record_mut(record).value.shape_mut() {
            [1, 2, 4].into_iter().filter(|bit| bits & bit != 0).for_each(|bit| collection.pin(bit));
        }
    }

    /// The value that an entry has outside, to be changed: the snapshots that need the entry pin it first.
    pub(crate) fn outside_mut(&mut self, place: Place) -> Option<&mut V> {
        let pinned = self.pinned(pages::split(place.0).0);
        let (header, page, at) = self.pages.entry(place.0);
        let number = header.outside(page, at)?;
        if pinned != 0 {
            self.pin_record(number, pinned);
        }
        Some(&mut self.rare().store.record_mut(number).value)
    }

    /// Ends the entries of a page that were kept for this pin only.
    fn let_go(&mut self, bit: u32, number: usize, dropped: &mut Vec<Record<Large>>) {
        if self.rare().leftover == 0 {
            return;
        }
        let mut at = page::HEAD;
        while let Some((here, header)) =
            self.pages.page_if(number).and_then(|page| page::entries(page, at).next())
        {
            at = here + header.len();
            if header.state() & bit == 0 || header.state() == entry::DEAD {
                continue;
            }
            let left = header.state() & !bit;
            if left != 0 {
                header.with_state(left).write(self.pages.page_mut(number), here);
                continue;
            }
            self.rare().leftover -= header.len();
            count_kept(0, header.len());
            if let Some(record) = header.outside(self.pages.page(number), here) {
                dropped.extend(self.rare().store.release(record).map(Record::into_dropped));
            }
            self.leave_tombstone(number, here);
        }
    }

    /// Makes an entry one that may be edited: if a snapshot needs it as it is, a copy of it.
    pub(crate) fn copy_on_write(&mut self, place: Place, key: &Key<'_>) -> Place {
        let pinned = self.pinned(pages::split(place.0).0);
        if pinned == 0 {
            return place;
        }
        let (header, page, at) = self.pages.entry(place.0);
        let value: smallvec::SmallVec<[u8; 512]> = header.value(page, at).into();
        let marks = header.marks(page, at);
        if let Some(number) = header.outside(page, at) {
            self.pin_record(number, pinned);
            self.rare().store.record_mut(number).shared += 1;
        }
        let key_here = if header.place() == Where::BothOutside { &[] } else { key.bytes };
        let draft = Draft { marks, place: header.place(), key: key_here, value: &value };
        self.unlink(place, key.hash);
        self.kill(place);
        self.count_in(marks.expiry);
        self.put(key.hash, &draft, value.len())
    }

    /// Makes an entry's record one that may be edited: if another entry has it too, a copy of it. Returns
    /// its number. The entry itself must be thawed.
    pub(super) fn own_record(&mut self, place: Place, number: u32) -> u32 {
        let store = &mut self.rare().store;
        if store.record(number).shared == 0 {
            return number;
        }
        store.record_mut(number).shared -= 1;
        let copied = store.put_copy(number);
        store.keep(number);
        let (header, page, at): (Header, _, _) = self.pages.entry_mut(place.0);
        header.value_mut(page, at).copy_from_slice(&copied.to_le_bytes());
        copied
    }
}

impl Pending {
    fn owner(&self) -> Owner<'_> {
        Owner { db: self.db, key: &self.key, marks: self.marks }
    }
}

impl<V: Outside> Rare<V> {
    #[inline]
    fn pinned(&self, number: usize) -> u32 {
        let holding = self.pins.iter().filter(|pin| (pin.walked..pin.mark).contains(&(number as u32)));
        holding.fold(0, |bits, pin| bits | pin.bit)
    }
}

//! What snapshots hold of a table.
//!
//! A pin says: the pages from `walked` to `mark` are as they were at the cut. `mark` is how many pages
//! there were then; from the cut on, new entries go to new pages. In the pages between, no entry is edited
//! or moved, and one that leaves the index stays, with the pins that need it in its state. So walking the
//! pages between visits exactly the state at the cut: what is alive was alive then, for nothing was added;
//! what was removed since is still there. As the walk passes a page, what was kept for it dies, and the
//! page is as any other.
//!
//! A large value is a table of its own, and is pinned in turn: when it is first changed after the cut, or
//! when its entry is copied, or at the latest when the walk passes its entry. From then on it waits in
//! `pending`, which keeps it alive, until the walk has gone through its pages too.
//!
//! A long string or packed collection outside of the pages waits there as well and is walked by itself, a piece
//! at a time; it is copied if it is edited meanwhile.
//!
//! A walk copies what it passes ([`Captured`]); it is shown when the slot is no longer held.
//!
//! Up to three snapshots can hold a table at a time, each with its bit; nobody waits for another's walk.

use clock::Millis;

use super::{Place, Rare, Table};
use crate::captured::{Beside, Captured, FindBeside, Owner, PartOf, is_needed};
use crate::entry::{self, Draft, Header, MAX_VALUE, Where};
use crate::hash::{HashRef, Shape};
use crate::key::Key;
use crate::outside::{Large, Record, count_kept};
use crate::page;
use crate::pages;
use crate::usage::Usage;
use crate::value::Value;

/// How much of a long value is copied under one lock.
const PIECE: usize = 64 << 10;

/// What one snapshot holds of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pin {
    /// The snapshot's bit in the state of an entry: 1, 2 or 4.
    bit: u32,
    /// The database that the table was at the cut.
    db: u16,
    walked: u32,
    mark: u32,
    /// How many entries the table had, and how many of them expire: a pin is made before the first change after the
    /// cut.
    len: u32,
    volatile: u32,
}

/// A value outside whose entry a walk has passed.
#[derive(Debug)]
pub(super) struct Pending {
    bit: u32,
    db: u16,
    header: Header,
    key: Box<[u8]>,
    expiry: Option<Millis>,
    usage: Usage,
    record: u32,
    /// How much of a long value has been walked.
    walked: usize,
}

impl Table {
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

    /// Holds what the table has now for a snapshot.
    pub(crate) fn pin(&mut self, bit: u32, db: u16) {
        let (mark, len, volatile) = (self.pages.count() as u32, self.len, self.volatile);
        if mark > 0 {
            self.rare().pins.push(Pin { bit, db, walked: 0, mark, len, volatile });
        }
    }

    fn pin_of(&self, bit: u32) -> Option<Pin> {
        self.rare.as_ref()?.pins.iter().find(|pin| pin.bit == bit).copied()
    }

    pub(crate) fn is_pinned_for(&self, bit: u32) -> bool {
        self.pin_of(bit).is_some() || self.pending_for(bit).is_some()
    }

    /// Whether the walk is within the large values of a page.
    pub(crate) fn is_within(&self, bit: u32) -> bool {
        self.pending_for(bit).is_some()
    }

    /// Whether any snapshot still needs the table.
    pub(crate) fn is_pinned(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| !rare.pins.is_empty() || !rare.pending.is_empty())
    }

    /// Bytes of entries that are kept for snapshots only.
    #[must_use]
    pub fn leftover_bytes(&self) -> usize {
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
                let beside = |at, header| self.beside(page, at, header);
                let beside: Option<&FindBeside<'_, '_>> =
                    if self.has_outside() { Some(&beside) } else { None };
                passed += captured.add_page(pin.db, bit, page, beside);
            }
            self.keep_long_of(bit, pin.db, number);
            self.pass(bit, number, &mut captured.dropped);
        }
        !self.is_pinned_for(bit)
    }

    fn has_outside(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| !rare.store.is_empty())
    }

    /// What an entry has outside of its page, unless it is shown by itself. Long fields are not.
    fn beside<'a>(&'a self, page: &'a [u8], at: usize, header: Header) -> Option<Beside<'a>> {
        let record = self.store().record(header.outside(page, at)?);
        match &record.value {
            Large::Bytes(bytes) if self.of_fields || bytes.len() <= MAX_VALUE => {
                Some(Beside { key: record.key.as_deref(), value: bytes })
            }
            _ => None,
        }
    }

    /// Copies a piece of a long value, or a page of one that is a table; returns its bytes.
    fn walk_pending(&mut self, index: usize, captured: &mut Captured) -> usize {
        let rare = self.rare();
        let pending = &mut rare.pending[index];
        let (bit, record) = (pending.bit, pending.record);
        let table = match &mut rare.store.record_mut(record).value {
            Large::Fields(table) => table,
            Large::Bytes(bytes) => {
                let left = &bytes[pending.walked..];
                let (piece, left) = left.split_at(left.len().min(PIECE));
                captured.add_long_part(piece, left.len());
                pending.walked += piece.len();
                let copied = piece.len();
                if left.is_empty() {
                    captured.complete_long(pending.db, pending.header, pending.owner(), pending.walked);
                    self.end_pending(index, &mut captured.dropped);
                }
                return copied;
            }
        };
        let Some(pin) = table.pin_of(bit) else {
            self.end_pending(index, &mut captured.dropped);
            return 0;
        };
        let number = pin.walked as usize;
        let part = PartOf { total: pin.len as usize, first: number == 0, any_expires: pin.volatile > 0 };
        // The first part is there in any case: it says what follows.
        let mut empty = [0; page::HEAD];
        page::format(&mut empty);
        let page = table.pages.page_if(number).unwrap_or(&empty);
        let beside = |at, header| table.beside(page, at, header);
        let beside: Option<&FindBeside<'_, '_>> = if table.has_outside() { Some(&beside) } else { None };
        let copied = captured.add_fields(pending.db, bit, page, beside, pending.owner(), &part);
        table.pages.prefetch_page(number + 1);
        table.pass(bit, number, &mut captured.dropped);
        copied
    }

    /// In order: the next of the same snapshot may have been begun.
    fn end_pending(&mut self, index: usize, dropped: &mut Vec<Record>) {
        let pending = self.rare().pending.remove(index);
        dropped.extend(self.rare().store.release(pending.record));
    }

    /// Lets go of a long value, or of a page of one that is a table; returns its bytes.
    fn skip_pending(&mut self, index: usize, dropped: &mut Vec<Record>) -> usize {
        let rare = self.rare();
        let Pending { bit, record, .. } = rare.pending[index];
        if let Large::Fields(table) = &mut rare.store.record_mut(record).value
            && let Some(pin) = table.pin_of(bit)
        {
            let number = pin.walked as usize;
            let size = table.pages.size_if(number).unwrap_or(0);
            table.pass(bit, number, dropped);
            return size;
        }
        self.end_pending(index, dropped);
        0
    }

    /// Lets go of what the pin holds without copying it, `budget` bytes of pages at a time. Says whether the
    /// pin is done.
    pub(crate) fn unpin(&mut self, bit: u32, budget: usize, dropped: &mut Vec<Record>) -> bool {
        let mut passed = 0;
        while passed < budget {
            if let Some(index) = self.pending_for(bit) {
                passed += self.skip_pending(index, dropped);
                continue;
            }
            let Some(pin) = self.pin_of(bit) else { return true };
            let nothing =
                self.rare.as_ref().is_none_or(|rare| rare.leftover == 0 && !rare.store.has_tables());
            if nothing {
                self.rare().pins.retain(|pin| pin.bit != bit);
                return true;
            }
            let number = pin.walked as usize;
            passed += self.pages.size_if(number).unwrap_or(0);
            self.keep_long_of(bit, pin.db, number);
            self.pass(bit, number, dropped);
        }
        !self.is_pinned_for(bit)
    }

    fn pending_for(&self, bit: u32) -> Option<usize> {
        self.rare.as_ref()?.pending.iter().position(|pending| pending.bit == bit)
    }

    /// The pin has passed a page.
    fn pass(&mut self, bit: u32, number: usize, dropped: &mut Vec<Record>) {
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
    fn keep_long_of(&mut self, bit: u32, db: u16, number: usize) {
        let Some(page) = self.pages.page_if(number).filter(|_| self.has_outside()) else { return };
        let mut pending = Vec::new();
        for (at, header) in page::entries(page, page::HEAD) {
            let Some(record) = header.outside(page, at).filter(|_| is_needed(header, bit)) else { continue };
            if waits(&self.value_of(header, page, at)) {
                let key = self.keys().key_of(header, page, at).into();
                let (expiry, usage) = (header.expiry(page, at), Usage(header.usage(page, at)));
                pending.push(Pending { bit, db, header, key, expiry, usage, record, walked: 0 });
            }
        }
        for pending in &pending {
            self.pin_record(pending.record, bit);
            self.rare().store.record_mut(pending.record).shared += 1;
        }
        self.rare().pending.extend(pending);
    }

    /// Pins a record that is a table, for each of `bits` that has not.
    pub(super) fn pin_record(&mut self, record: u32, bits: u32) {
        if let Large::Fields(table) = &mut self.rare().store.record_mut(record).value {
            for bit in [1, 2, 4].into_iter().filter(|bit| bits & bit != 0) {
                if !table.is_pinned_for(bit) {
                    table.pin(bit, 0);
                }
            }
        }
    }

    /// Ends the entries of a page that were kept for this pin only.
    fn let_go(&mut self, bit: u32, number: usize, dropped: &mut Vec<Record>) {
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
                dropped.extend(self.rare().store.release(record));
            }
            self.bury(number, here);
        }
    }

    /// Makes an entry one that may be edited: if a snapshot needs it as it is, a copy of it.
    pub(super) fn thaw(&mut self, place: Place, key: &Key<'_>) -> Place {
        let pinned = self.pinned(pages::split(place.0).0);
        if pinned == 0 {
            return place;
        }
        let (header, page, at) = self.pages.entry(place.0);
        let value: smallvec::SmallVec<[u8; 512]> = header.value(page, at).into();
        let (usage, expiry) = (header.usage(page, at), header.expiry(page, at));
        if let Some(number) = header.outside(page, at) {
            self.pin_record(number, pinned);
            self.rare().store.record_mut(number).shared += 1;
        }
        let key_here = if header.place() == Where::BothOutside { &[] } else { key.bytes };
        let draft = Draft {
            form: self.form(header.kind()),
            place: header.place(),
            mark: header.mark(),
            usage,
            expiry,
            key: key_here,
            value: &value,
        };
        self.unlink(place, key.hash);
        self.kill(place);
        self.count_in(expiry);
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
        let copy = store.record(number).copy();
        let copied = store.put(copy);
        store.keep(number);
        let (header, page, at): (Header, _, _) = self.pages.entry_mut(place.0);
        header.value_mut(page, at).copy_from_slice(&copied.to_le_bytes());
        copied
    }
}

/// Whether the value is walked by itself, after its page. Only what lies outside is that long.
fn waits(value: &Value<'_>) -> bool {
    match value {
        Value::String(string) => string.bytes.len() > MAX_VALUE,
        Value::Hash(HashRef { shape: Shape::Packed(bytes), .. }) => bytes.len() > MAX_VALUE,
        Value::Hash(_) | Value::HashPart(_) => true,
    }
}

impl Pending {
    fn owner(&self) -> Owner<'_> {
        Owner { key: &self.key, expiry: self.expiry, usage: self.usage }
    }
}

impl Rare {
    #[inline]
    fn pinned(&self, number: usize) -> u32 {
        let holding = self.pins.iter().filter(|pin| (pin.walked..pin.mark).contains(&(number as u32)));
        holding.fold(0, |bits, pin| bits | pin.bit)
    }
}

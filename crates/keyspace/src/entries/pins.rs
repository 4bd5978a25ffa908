//! Pins: how snapshots preserve the entries of a store.
//!
//! A snapshot captures the state at one moment, called its cut, and reads that state afterwards in a walk. A pin covers
//! the pages from `walked_pages` to `end_page`, which is the page count at the cut; later entries go to new pages. In
//! pinned pages no entry is edited or moved. An entry removed from the index stays in its page, and its state records
//! which pins need it. So a walk over the pinned pages visits exactly the state at the cut: live entries were live
//! then, because nothing was added, and removed entries are still there. When the walk has visited a page, the entries
//! that only this snapshot needed become dead and the page is an ordinary one again.
//!
//! A large collection has a pin of its own ([`crate::large::Collection`]). It is taken before the first change after
//! the cut, when the collection's entry is copied, or at the latest when the walk visits that entry. The collection
//! then stays in `pending_values`, which keeps it alive until the walk has visited all its elements.
//!
//! A long string or packed collection outside the pages also stays in `pending_values` and is copied in chunks. An edit
//! before that copies the value first.
//!
//! A walk copies the data that it visits ([`CapturedEntries`]); the copies are serialized after the slot is unlocked.
//!
//! Up to three snapshots can pin a store at a time. Each has one bit, and they do not wait for each other.

use super::{Entries, EntriesExtras, EntryRef};
use crate::captured::{CapturedEntries, FindOverflow, OverflowParts, ValueOwner, is_in_snapshot};
use crate::entry::{self, EntryAttributes, EntryDraft, Header, Placement};
use crate::key::Key;
use crate::large::LargeValue;
use crate::overflow::{OverflowShape, OverflowShapeMut, OverflowValue, Record, count_snapshot_only_bytes};
use crate::page;
use crate::pages;

/// Number of bytes of a long value that are copied while the slot is locked once.
const LONG_VALUE_CHUNK_BYTES: usize = 64 << 10;

/// The range of pages that one snapshot pins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pin {
    /// The snapshot's bit in the state of an entry: 1, 2 or 4.
    snapshot_bit: u32,
    /// The database number of the store when the snapshot was taken (SWAPDB can change it later).
    db: u16,
    walked_pages: u32,
    end_page: u32,
    /// Entry counts when the snapshot was taken. They are exact, because a pin is taken before the first later change.
    pub(crate) pinned_len: u32,
    pub(crate) pinned_volatile: u32,
}

impl Pin {
    /// Returns whether the snapshot has not visited any page yet.
    pub(crate) fn has_not_started(&self) -> bool {
        self.walked_pages == 0
    }
}

/// An overflow value that a snapshot still has to visit after its entry's page.
#[derive(Debug)]
pub(super) struct PendingValue {
    snapshot_bit: u32,
    db: u16,
    attributes: EntryAttributes,
    key: Box<[u8]>,
    record: u32,
    /// Number of bytes of a long value that were copied so far.
    walked_bytes: usize,
}

impl<V: OverflowValue> Entries<V> {
    /// Returns the bits of the snapshots that have not visited this page yet.
    #[inline]
    pub(super) fn pinned_bits(&self, number: usize) -> u32 {
        self.extras.as_ref().map_or(0, |extras| extras.pinned_bits(number))
    }

    /// Returns the lowest page number that a new page may use, above all pinned pages.
    pub(super) fn first_usable_page_number(&self) -> usize {
        let pins = self.extras.as_ref().map_or(&[][..], |extras| &extras.pins);
        pins.iter().map(|pin| pin.end_page as usize).max().unwrap_or(0)
    }

    /// Pins all entries for a snapshot. Returns whether the store has any.
    pub(crate) fn pin(&mut self, snapshot_bit: u32, db: u16) -> bool {
        let (mark, len, volatile) = (self.pages.count() as u32, self.len, self.volatile);
        if mark > 0 {
            self.extras_mut().pins.push(Pin {
                snapshot_bit,
                db,
                walked_pages: 0,
                end_page: mark,
                pinned_len: len,
                pinned_volatile: volatile,
            });
        }
        mark > 0
    }

    /// Returns the overflow record of an entry if its value is visited in parts. A long string is not, because it is
    /// copied in chunks but visited as a whole.
    fn multipart_record(&self, entry_ref: EntryRef) -> Option<u32> {
        let (header, page, at) = self.pages.entry(entry_ref.0);
        let record = header.record_number(page, at)?;
        matches!(self.records().record(record).value.shape(), OverflowShape::Collection(_)).then_some(record)
    }

    pub(crate) fn is_walked_in_parts(&self, entry_ref: EntryRef) -> bool {
        self.multipart_record(entry_ref).is_some()
    }

    /// Pins a value that is visited in parts.
    pub(crate) fn pin_value(&mut self, snapshot_bit: u32, db: u16, entry_ref: EntryRef) {
        let Some(record) = self.multipart_record(entry_ref) else { return };
        let (header, page, at) = self.pages.entry(entry_ref.0);
        let key = self.entry_keys().name_of(header, page, at).into();
        let pending = PendingValue {
            snapshot_bit,
            db,
            attributes: header.attributes(page, at),
            key,
            record,
            walked_bytes: 0,
        };
        self.pin_pending(vec![pending]);
    }

    /// Returns the next pending value for this snapshot.
    pub(crate) fn pinned_value(&self, snapshot_bit: u32) -> Option<&V> {
        let pending = &self.extras.as_ref()?.pending_values[self.pending_position(snapshot_bit)?];
        Some(&self.records().record(pending.record).value)
    }

    /// Pins values and queues them for the snapshot to visit.
    fn pin_pending(&mut self, values: Vec<PendingValue>) {
        for value in &values {
            self.pin_record(value.record, value.snapshot_bit);
            self.extras_mut().records.record_mut(value.record).other_entry_count += 1;
        }
        self.extras_mut().pending_values.extend(values);
    }

    pub(crate) fn pin_for_bit(&self, snapshot_bit: u32) -> Option<Pin> {
        self.extras.as_ref()?.pins.iter().find(|pin| pin.snapshot_bit == snapshot_bit).copied()
    }

    pub(crate) fn is_pinned_for(&self, snapshot_bit: u32) -> bool {
        self.pin_for_bit(snapshot_bit).is_some() || self.pending_position(snapshot_bit).is_some()
    }

    /// Returns whether the snapshot has visited some, but not all, overflow values of a page.
    pub(crate) fn is_walking_page_values(&self, snapshot_bit: u32) -> bool {
        self.pending_position(snapshot_bit).is_some()
    }

    /// Returns whether any snapshot still needs entries of this store.
    pub(crate) fn is_pinned(&self) -> bool {
        self.extras
            .as_ref()
            .is_some_and(|extras| !extras.pins.is_empty() || !extras.pending_values.is_empty())
    }

    /// Returns the bytes of entries that only snapshots still need.
    pub(crate) fn snapshot_only_bytes(&self) -> usize {
        self.extras.as_ref().map_or(0, |extras| extras.snapshot_only_bytes)
    }

    /// Copies and unpins pinned pages until about `budget` bytes are copied. Returns whether all pages are unpinned and
    /// the pin is removed.
    pub(crate) fn walk(&mut self, snapshot_bit: u32, budget: usize, captured: &mut CapturedEntries) -> bool {
        let mut passed = 0;
        while passed < budget {
            if let Some(index) = self.pending_position(snapshot_bit) {
                passed += self.walk_pending(index, captured);
                continue;
            }
            let Some(pin) = self.pin_for_bit(snapshot_bit) else { return true };
            let number = pin.walked_pages as usize;
            self.pages.prefetch_page(number + 1);
            if let Some(page) = self.pages.existing_page(number) {
                passed += self.with_overflow_lookup(page, |overflow_parts| {
                    captured.add_page(pin.db, snapshot_bit, page, overflow_parts)
                });
            }
            self.pin_overflow_values(snapshot_bit, pin.db, number);
            self.unpin_page(snapshot_bit, number, &mut captured.records_to_drop);
        }
        !self.is_pinned_for(snapshot_bit)
    }

    fn has_overflow(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| !extras.records.is_empty())
    }

    /// Calls `work` with a function that looks up overflow keys and values of a page; `None` if the store has none.
    fn with_overflow_lookup<'a, R>(
        &'a self,
        page: &'a [u8],
        work: impl FnOnce(Option<&FindOverflow<'_, 'a>>) -> R,
    ) -> R {
        if !self.has_overflow() {
            return work(None);
        }
        work(Some(&|at, header| self.overflow_parts(page, at, header)))
    }

    fn overflow_parts<'a>(&'a self, page: &'a [u8], at: usize, header: Header) -> Option<OverflowParts<'a>> {
        let record = self.records().record(header.record_number(page, at)?);
        let value = match record.value.shape() {
            OverflowShape::Flat(bytes) if !record.value.is_walked_in_parts() => Some(&bytes[..]),
            OverflowShape::Flat(_) | OverflowShape::Collection(_) => None,
        };
        Some(OverflowParts { key: record.key.as_deref(), value })
    }

    /// Copies a chunk of a long value or the next part of a collection. Returns the number of copied bytes.
    fn walk_pending(&mut self, index: usize, captured: &mut CapturedEntries) -> usize {
        if captured.keys_only {
            return self.skip_pending(index, &mut captured.records_to_drop);
        }
        let extras = self.extras_mut();
        let pending = &mut extras.pending_values[index];
        let copied = match extras.records.record_mut(pending.record).value.shape_mut() {
            OverflowShapeMut::Collection(collection) => {
                collection.walk(pending.snapshot_bit, pending.value_owner(), captured)
            }
            OverflowShapeMut::Flat(bytes) => {
                let left = &bytes[pending.walked_bytes..];
                let (piece, left) = left.split_at(left.len().min(LONG_VALUE_CHUNK_BYTES));
                captured.add_long_chunk(piece, left.len());
                pending.walked_bytes += piece.len();
                let (copied, done) = (piece.len(), left.is_empty());
                if done {
                    captured.finish_long_value(pending.value_owner(), pending.walked_bytes);
                    self.remove_pending(index, &mut captured.records_to_drop);
                }
                return copied;
            }
        };
        copied.unwrap_or_else(|| {
            self.remove_pending(index, &mut captured.records_to_drop);
            0
        })
    }

    /// Passes the next pinned page of a collection to `copy` and unpins it. The first page may be empty, so that every
    /// collection has a first part. Returns `None` if no pinned page is left.
    pub(crate) fn walk_page(
        &mut self,
        snapshot_bit: u32,
        dropped: &mut Vec<Record<LargeValue>>,
        copy: impl for<'a> FnOnce(&Pin, &'a [u8], Option<&FindOverflow<'_, 'a>>) -> usize,
    ) -> Option<usize> {
        let pin = self.pin_for_bit(snapshot_bit)?;
        let number = pin.walked_pages as usize;
        let mut empty = [0; page::HEADER_LEN];
        page::initialize(&mut empty);
        let page = self.pages.existing_page(number).unwrap_or(&empty);
        let copied = self.with_overflow_lookup(page, |overflow_parts| copy(&pin, page, overflow_parts));
        self.pages.prefetch_page(number + 1);
        self.unpin_page(snapshot_bit, number, dropped);
        Some(copied)
    }

    /// Unpins the next page of a collection without copying it. Returns its bytes; `None` if no pinned page is left.
    pub(crate) fn skip_page(
        &mut self,
        snapshot_bit: u32,
        dropped: &mut Vec<Record<LargeValue>>,
    ) -> Option<usize> {
        let number = self.pin_for_bit(snapshot_bit)?.walked_pages as usize;
        let size = self.pages.page_size(number).unwrap_or(0);
        self.unpin_page(snapshot_bit, number, dropped);
        Some(size)
    }

    /// Removes a pending value without reordering the others, because the snapshot may already have started to visit
    /// the next one.
    fn remove_pending(&mut self, index: usize, dropped: &mut Vec<Record<LargeValue>>) {
        let pending = self.extras_mut().pending_values.remove(index);
        dropped.extend(self.extras_mut().records.release(pending.record).map(Record::into_dropped));
    }

    /// Skips a long value or the next part of a collection. Returns the number of skipped bytes.
    fn skip_pending(&mut self, index: usize, dropped: &mut Vec<Record<LargeValue>>) -> usize {
        let extras = self.extras_mut();
        let PendingValue { snapshot_bit: bit, record, .. } = extras.pending_values[index];
        let passed = match extras.records.record_mut(record).value.shape_mut() {
            OverflowShapeMut::Flat(_) => None,
            OverflowShapeMut::Collection(collection) => collection.skip(bit, dropped),
        };
        passed.unwrap_or_else(|| {
            self.remove_pending(index, dropped);
            0
        })
    }

    /// Unpins pages without copying them, about `budget` bytes per call. Returns whether the pin is removed.
    pub(crate) fn unpin(
        &mut self,
        snapshot_bit: u32,
        budget: usize,
        dropped: &mut Vec<Record<LargeValue>>,
    ) -> bool {
        let mut passed = 0;
        while passed < budget {
            if let Some(index) = self.pending_position(snapshot_bit) {
                passed += self.skip_pending(index, dropped);
                continue;
            }
            let Some(pin) = self.pin_for_bit(snapshot_bit) else { return true };
            let nothing = self
                .extras
                .as_ref()
                .is_none_or(|extras| extras.snapshot_only_bytes == 0 && !extras.records.has_collections());
            if nothing {
                self.extras_mut().pins.retain(|pin| pin.snapshot_bit != snapshot_bit);
                return true;
            }
            let number = pin.walked_pages as usize;
            passed += self.pages.page_size(number).unwrap_or(0);
            self.pin_overflow_values(snapshot_bit, pin.db, number);
            self.unpin_page(snapshot_bit, number, dropped);
        }
        !self.is_pinned_for(snapshot_bit)
    }

    fn pending_position(&self, snapshot_bit: u32) -> Option<usize> {
        self.extras.as_ref()?.pending_values.iter().position(|pending| pending.snapshot_bit == snapshot_bit)
    }

    /// Unpins a page after the snapshot has visited or skipped it.
    fn unpin_page(&mut self, snapshot_bit: u32, number: usize, dropped: &mut Vec<Record<LargeValue>>) {
        let extras = self.extras_mut();
        let index =
            extras.pins.iter().position(|pin| pin.snapshot_bit == snapshot_bit).expect("a pin passes pages");
        extras.pins[index].walked_pages += 1;
        if extras.pins[index].walked_pages == extras.pins[index].end_page {
            extras.pins.swap_remove(index);
        }
        if self.pages.page_size(number).is_some() {
            self.free_snapshot_only_entries(snapshot_bit, number, dropped);
        }
    }

    /// Pins the long overflow values of a page and queues them for the snapshot to visit.
    fn pin_overflow_values(&mut self, snapshot_bit: u32, db: u16, number: usize) {
        let Some(page) = self.pages.existing_page(number).filter(|_| self.has_overflow()) else { return };
        let mut pending = Vec::new();
        for (at, header) in page::entries(page, page::HEADER_LEN) {
            let Some(record) =
                header.record_number(page, at).filter(|_| is_in_snapshot(header, snapshot_bit))
            else {
                continue;
            };
            if self.records().record(record).value.is_walked_in_parts() {
                let key = self.entry_keys().name_of(header, page, at).into();
                pending.push(PendingValue {
                    snapshot_bit,
                    db,
                    attributes: header.attributes(page, at),
                    key,
                    record,
                    walked_bytes: 0,
                });
            }
        }
        self.pin_pending(pending);
    }

    /// Pins a collection record for those snapshots in `bits` that have not pinned it yet.
    fn pin_record(&mut self, record: u32, bits: u32) {
        if let OverflowShapeMut::Collection(collection) =
            self.extras_mut().records.record_mut(record).value.shape_mut()
        {
            [1, 2, 4].into_iter().filter(|bit| bits & bit != 0).for_each(|bit| collection.pin(bit));
        }
    }

    /// Returns the overflow value of an entry, for editing. It is pinned first for the snapshots that need the entry.
    pub(crate) fn overflow_mut(&mut self, entry_ref: EntryRef) -> Option<&mut V> {
        let pinned = self.pinned_bits(pages::page_and_offset(entry_ref.0).0);
        let (header, page, at) = self.pages.entry(entry_ref.0);
        let number = header.record_number(page, at)?;
        if pinned != 0 {
            self.pin_record(number, pinned);
        }
        Some(&mut self.extras_mut().records.record_mut(number).value)
    }

    /// Marks those entries of a page as dead that only this snapshot needed.
    fn free_snapshot_only_entries(
        &mut self,
        snapshot_bit: u32,
        number: usize,
        dropped: &mut Vec<Record<LargeValue>>,
    ) {
        if self.extras_mut().snapshot_only_bytes == 0 {
            return;
        }
        let mut at = page::HEADER_LEN;
        while let Some((here, header)) =
            self.pages.existing_page(number).and_then(|page| page::entries(page, at).next())
        {
            at = here + header.len();
            if header.state() & snapshot_bit == 0 || header.state() == entry::STATE_DEAD {
                continue;
            }
            let left = header.state() & !snapshot_bit;
            if left != 0 {
                header.with_state(left).write(self.pages.page_mut(number), here);
                continue;
            }
            self.extras_mut().snapshot_only_bytes -= header.len();
            count_snapshot_only_bytes(0, header.len());
            if let Some(record) = header.record_number(self.pages.page(number), here) {
                dropped.extend(self.extras_mut().records.release(record).map(Record::into_dropped));
            }
            self.write_tombstone(number, here);
        }
    }

    /// Prepares an entry for editing: copies it if a snapshot needs the original.
    pub(crate) fn copy_on_write(&mut self, entry_ref: EntryRef, key: &Key<'_>) -> EntryRef {
        let pinned = self.pinned_bits(pages::page_and_offset(entry_ref.0).0);
        if pinned == 0 {
            return entry_ref;
        }
        let (header, page, at) = self.pages.entry(entry_ref.0);
        let value: smallvec::SmallVec<[u8; 512]> = header.value(page, at).into();
        let attributes = header.attributes(page, at);
        if let Some(number) = header.record_number(page, at) {
            self.pin_record(number, pinned);
            self.extras_mut().records.record_mut(number).other_entry_count += 1;
        }
        let key_here = if header.placement() == Placement::KeyValueOverflow { &[] } else { key.bytes };
        let draft = EntryDraft { attributes, placement: header.placement(), key: key_here, value: &value };
        self.remove_from_index(entry_ref, key.hash);
        self.mark_dead(entry_ref);
        self.count_expiry(attributes.expiry);
        self.write_entry(key.hash, &draft, value.len())
    }

    /// Prepares an entry's record for editing: copies the record if another entry shares it. Returns the record number.
    /// The entry itself must already be prepared ([`Self::copy_on_write`]).
    pub(super) fn make_record_unique(&mut self, entry_ref: EntryRef, number: u32) -> u32 {
        let store = &mut self.extras_mut().records;
        if store.record(number).other_entry_count == 0 {
            return number;
        }
        store.record_mut(number).other_entry_count -= 1;
        let copied = store.put_copy(number);
        store.mark_snapshot_only(number);
        let (header, page, at): (Header, _, _) = self.pages.entry_mut(entry_ref.0);
        header.value_mut(page, at).copy_from_slice(&copied.to_le_bytes());
        copied
    }
}

impl PendingValue {
    fn value_owner(&self) -> ValueOwner<'_> {
        ValueOwner { db: self.db, key: &self.key, attributes: self.attributes }
    }
}

impl<V: OverflowValue> EntriesExtras<V> {
    #[inline]
    fn pinned_bits(&self, number: usize) -> u32 {
        let holding =
            self.pins.iter().filter(|pin| (pin.walked_pages..pin.end_page).contains(&(number as u32)));
        holding.fold(0, |bits, pin| bits | pin.snapshot_bit)
    }
}

//! Edits entries in place, or moves them when their size changes.

use std::ops::Range;

use clock::Millis;
use smallvec::SmallVec;

use super::{Entries, EntryRef, NewValue};
use crate::entry::{EntryAttributes, EntryDraft, Placement, TypeCode, needs_wide_time};
use crate::key::Key;
use crate::order::SecondaryOrder;
use crate::overflow::OverflowValue;
use crate::packed;
use crate::pages::{self, EntryKeys};

impl<V: OverflowValue> Entries<V> {
    /// Overwrites a value with one of equal length in place. Returns false if that is impossible, or a snapshot needs
    /// the old bytes.
    pub(crate) fn overwrite(
        &mut self,
        entry_ref: EntryRef,
        bytes: &[u8],
        code: TypeCode,
        expiry: Option<Millis>,
    ) -> bool {
        let number = pages::page_and_offset(entry_ref.0).0;
        if self.pinned_bits(number) != 0 {
            return false;
        }
        let (header, page, at) = self.pages.entry(entry_ref.0);
        let fits = header.placement() == Placement::Inline
            && header.fits_expiry(expiry)
            && header.value(page, at).len() == bytes.len();
        if fits {
            let names =
                EntryKeys { pages: &self.pages, records: self.extras.as_ref().map(|extras| &extras.records) };
            self.secondary_order.remove(entry_ref.0, &names);
            let (header, page, at) = self.pages.entry_mut(entry_ref.0);
            header.with_code(code).write(page, at);
            header.value_mut(page, at).copy_from_slice(bytes);
            if let Some(expiry) = expiry {
                header.set_expiry(page, at, expiry);
                self.lower_page_expiry(number, expiry);
            }
            let names =
                EntryKeys { pages: &self.pages, records: self.extras.as_ref().map(|extras| &extras.records) };
            self.secondary_order.add(entry_ref.0, &names);
        }
        fits
    }

    /// Sets or removes (`None`) the entry's expiry.
    pub(crate) fn set_expiry(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        expiry: Option<Millis>,
    ) -> EntryRef {
        let place = self.copy_on_write(entry_ref, key);
        let number = pages::page_and_offset(place.0).0;
        let (header, page, at) = self.pages.entry_mut(place.0);
        match expiry {
            None if !header.has_expiry() => place,
            Some(expiry) if header.fits_expiry(Some(expiry)) => {
                header.set_expiry(page, at, expiry);
                self.lower_page_expiry(number, expiry);
                place
            }
            _ => {
                let attributes = EntryAttributes { expiry, ..header.attributes(page, at) };
                let value: SmallVec<[u8; 512]> = header.value(page, at).into();
                self.remove_from_index(place, key.hash);
                self.mark_dead(place);
                if header.placement() == Placement::Inline {
                    return self.insert(key, NewValue { attributes, bytes: &value, len: value.len() });
                }
                let mut place = header.placement();
                if place == Placement::ValueOverflow && needs_wide_time(expiry) {
                    let number = u32::from_le_bytes(value[..].try_into().expect("a number is four bytes"));
                    self.extras_mut().records.set_key(number, key.bytes);
                    place = Placement::KeyValueOverflow;
                }
                let key_here = if place == Placement::KeyValueOverflow { &[] } else { key.bytes };
                let draft = EntryDraft { attributes, placement: place, key: key_here, value: &value };
                self.count_expiry(expiry);
                self.write_entry(key.hash, &draft, value.len())
            }
        }
    }

    /// Resizes a value stored as bytes to `len` bytes and returns it for editing. New bytes are zero; the expiry is
    /// unchanged.
    pub(crate) fn edit(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
        len: usize,
        code: TypeCode,
    ) -> (EntryRef, &mut [u8]) {
        let mut place = self.copy_on_write(entry_ref, key);
        self.set_code(place, code);
        let (header, page, at) = self.pages.entry(place.0);
        if header.placement() == Placement::Inline && header.value(page, at).len() != len {
            let attributes = header.attributes(page, at);
            let value: SmallVec<[u8; 512]> = header.value(page, at).into();
            self.remove_from_index(place, key.hash);
            self.mark_dead(place);
            let bytes = &value[..value.len().min(len)];
            place = self.insert(key, NewValue { attributes, bytes, len });
        }
        let (header, page, at) = self.pages.entry(place.0);
        if let Some(number) = header.record_number(page, at) {
            let number = self.make_record_unique(place, number);
            self.extras_mut().records.resize(number, |bytes| {
                bytes.resize(len, 0);
                if bytes.capacity() > 2 * len + 64 {
                    bytes.shrink_to_fit();
                }
            });
            return (place, self.extras_mut().records.bytes_mut(number));
        }
        let (header, page, at) = self.pages.entry_mut(place.0);
        (place, header.value_mut(page, at))
    }

    /// Sets the entry's code, even if a snapshot needs the entry: the code only determines the OBJECT ENCODING name,
    /// which snapshots do not save.
    pub(crate) fn set_code(&mut self, entry_ref: EntryRef, code: TypeCode) {
        let (header, page, at) = self.pages.entry_mut(entry_ref.0);
        if header.type_code() != code {
            header.with_code(code).write(page, at);
        }
    }

    /// Returns the bytes of a value for editing in place. If a snapshot needs the entry, the caller must have copied it
    /// before.
    pub(crate) fn flat_value_mut(&mut self, entry_ref: EntryRef) -> &mut [u8] {
        let (header, page, at) = self.pages.entry(entry_ref.0);
        match header.record_number(page, at) {
            Some(number) => {
                let number = self.make_record_unique(entry_ref, number);
                self.extras_mut().records.bytes_mut(number)
            }
            None => {
                let (header, page, at) = self.pages.entry_mut(entry_ref.0);
                header.value_mut(page, at)
            }
        }
    }

    /// Replaces a byte range of a packed collection, in its page or its overflow record, and sets the element count.
    pub(crate) fn splice(&mut self, entry_ref: EntryRef, key: &Key<'_>, splice: &Splice<'_>) -> EntryRef {
        let Splice { range, replacement: with, count, code } = splice;
        let (header, page, at) = self.pages.entry(entry_ref.0);
        if header.placement() == Placement::Inline {
            let attributes = EntryAttributes { code: *code, ..header.attributes(page, at) };
            let old = header.value(page, at);
            let mut bytes: SmallVec<[u8; 1024]> = SmallVec::with_capacity(old.len() + with.len());
            bytes.extend_from_slice(&old[..range.start]);
            bytes.extend_from_slice(with);
            bytes.extend_from_slice(&old[range.end..]);
            packed::set_count(&mut bytes, *count);
            self.remove_from_index(entry_ref, key.hash);
            self.mark_dead(entry_ref);
            return self.insert(key, NewValue { attributes, bytes: &bytes, len: bytes.len() });
        }
        let place = self.copy_on_write(entry_ref, key);
        self.set_code(place, *code);
        let (header, page, at) = self.pages.entry(place.0);
        let number = header.record_number(page, at).expect("the value is in overflow");
        let number = self.make_record_unique(place, number);
        self.extras_mut().records.resize(number, |bytes| {
            let need = bytes.len() - range.len() + with.len();
            if need > bytes.capacity() {
                bytes.reserve_exact(need + need / 16 - bytes.len());
            }
            bytes.splice(range.clone(), with.iter().copied());
            packed::set_count(bytes, *count);
        });
        place
    }
}

/// The replacement of a byte range of a packed collection.
#[derive(Debug)]
pub(crate) struct Splice<'a> {
    pub(crate) range: Range<usize>,
    pub(crate) replacement: &'a [u8],
    /// Number of elements after the replacement.
    pub(crate) count: usize,
    pub(crate) code: TypeCode,
}

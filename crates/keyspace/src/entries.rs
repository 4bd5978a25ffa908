//! An entry store with lookup by key. The type that owns the store defines what an entry means.
//!
//! There are two such types: [`crate::table::Table`] (the keys of one slot and one database) and
//! [`crate::fields::LargeFields`] (the elements of one large collection).
//!
//! Entries are stored in [`pages`](crate::pages), and the [`index`](crate::index) finds them by hash. An entry stays in
//! its place until its page is compacted or its size changes ([`allocation`]). While a snapshot still needs a page,
//! overwritten and deleted entries stay in it ([`pins`]). Expiry is tracked in [`expiry`].
mod allocation;
mod editing;
mod expiry;
mod lookup;
mod pins;

use clock::Millis;

use crate::entry::{
    EntryAttributes, EntryDraft, Header, MAX_KEY_LEN, MAX_VALUE_LEN, Placement, STATE_DEAD, needs_wide_time,
};
use crate::index::Index;
use crate::key::Key;
use crate::memory::Block;
use crate::order::SecondaryOrder;
use crate::overflow::{OverflowValue, Record, RecordStore, count_snapshot_only_bytes};
use crate::page;
use crate::pages::{self, EntryKeys, FillLevel, Pages};
use crate::purge::PAGES_PER_LOCK;
use crate::usage::Usage;

pub(crate) use editing::Splice;
pub(crate) use expiry::ElementExpiryIndex;
pub use lookup::KeyLookup;
pub(crate) use lookup::StoredValue;
use pins::{PendingValue, Pin};

/// Location of an entry. It is valid until the next change to its store, which returns the new location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRef(pub(crate) u32);

#[derive(Debug)]
pub(crate) struct Entries<V: OverflowValue> {
    len: u32,
    volatile: u32,
    /// Half the number of bytes of live entries, so that 32 bits suffice for 8 GB. All entry lengths are even.
    live_half_bytes: u32,
    dead_half_bytes: u32,
    /// Number of the page that receives new entries, or `NO_PAGE`.
    open_page: u32,
    /// Time before which no entry expires.
    next_expiry: Millis,
    /// Number of bytes of entries that will be inserted soon, as hinted by [`Entries::set_expected_bytes`].
    expected_bytes: u16,
    index: Index,
    /// A secondary sort order of the entries, such as by score; `()` if the kind has none.
    pub(crate) secondary_order: V::SecondaryOrder,
    pages: Pages,
    extras: Option<Box<EntriesExtras<V>>>,
}

/// Fields that few stores need, boxed so that most stores stay small.
#[derive(Debug)]
struct EntriesExtras<V: OverflowValue> {
    records: RecordStore<V>,
    pins: Vec<Pin>,
    /// Overflow values that a snapshot has reached but not completely visited.
    pending_values: Vec<PendingValue>,
    page_expiries: Option<Box<expiry::PageExpiryTree>>,
    /// Expiry times of elements inside values, such as hash fields.
    element_expiry: Option<Box<ElementExpiryIndex>>,
    /// Bytes of entries that only snapshots still need.
    snapshot_only_bytes: usize,
}

const NO_PAGE: u32 = u32::MAX;

/// Length up to which a packed collection is always stored in a page. Stored outside, its overhead would cost as much
/// as a page.
pub(crate) const MAX_ALWAYS_INLINE: usize = 8 * Block::MIN_BLOCK_BYTES - page::HEADER_LEN;
/// A longer packed collection stays in a page only if the store has at least this many times its bytes. As a collection
/// grows, each move leaves dead bytes behind, which must stay few compared to the store.
const MIN_STORE_TO_VALUE_RATIO: usize = 8;

/// A value that is not part of a store.
#[derive(Debug)]
pub(crate) enum UnstoredValue<V> {
    Bytes(Box<[u8]>),
    Overflow(V),
}

impl<V: OverflowValue> Default for Entries<V> {
    fn default() -> Self {
        Self {
            len: 0,
            volatile: 0,
            live_half_bytes: 0,
            dead_half_bytes: 0,
            open_page: NO_PAGE,
            next_expiry: page::NO_EXPIRY,
            expected_bytes: 0,
            index: Index::default(),
            secondary_order: V::SecondaryOrder::default(),
            pages: Pages::default(),
            extras: None,
        }
    }
}

impl<V: OverflowValue> EntriesExtras<V> {
    /// Returns whether an empty store can drop its extras.
    fn is_unused(&self) -> bool {
        let is_free = self.pins.is_empty() && self.pending_values.is_empty() && self.snapshot_only_bytes == 0;
        is_free && self.records.is_empty()
    }
}

impl<V: OverflowValue> Default for EntriesExtras<V> {
    fn default() -> Self {
        Self {
            records: RecordStore::default(),
            pins: Vec::new(),
            pending_values: Vec::new(),
            page_expiries: None,
            element_expiry: None,
            snapshot_only_bytes: 0,
        }
    }
}

/// A value to be stored: inside the entry, or as an overflow value if it is too long for a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewValue<'a> {
    pub(crate) attributes: EntryAttributes,
    pub(crate) bytes: &'a [u8],
    /// Total length of the value. If it exceeds the length of `bytes`, the rest is zero.
    pub(crate) len: usize,
}

impl<V: OverflowValue> Entries<V> {
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether the store has allocated neither pages nor index lines.
    pub(crate) fn is_memory_free(&self) -> bool {
        self.len == 0 && self.extras.is_none() && self.pages.count() == 0 && self.index.heap_bytes() == 0
    }

    /// Returns whether an empty store may still have memory allocated for overflow values or expiry.
    #[inline]
    pub(crate) fn may_have_unused_memory(&self) -> bool {
        self.len == 0 && self.extras.is_some()
    }

    /// Frees the memory of an empty store unless a snapshot still needs it.
    pub(crate) fn release_unused_memory(&mut self) {
        let is_bare = self.len == 0 && self.pages.count() == 0;
        if is_bare && self.extras.as_ref().is_some_and(|extras| extras.is_unused()) {
            self.extras = None;
        }
    }

    #[inline]
    pub(crate) fn fill_level(&self) -> FillLevel {
        self.pages.fill_level()
    }

    /// Returns the number of entries with an expiry time.
    pub(crate) fn volatile_len(&self) -> usize {
        self.volatile as usize
    }

    pub(crate) fn usage(&self, entry_ref: EntryRef) -> Usage {
        let (header, page, at) = self.pages.entry(entry_ref.0);
        Usage(header.usage(page, at))
    }

    /// Sets the usage of an entry. Does not write an unchanged usage, so that clean cache lines stay clean.
    #[inline]
    pub(crate) fn set_usage(&mut self, entry_ref: EntryRef, usage: Usage) {
        let (header, page, at) = self.pages.entry_mut(entry_ref.0);
        if header.usage(page, at) != usage.0 {
            header.set_usage(page, at, usage.0);
        }
    }

    /// Replaces the usage of every entry in chunk `part` of the pages by the result of `age`. Returns whether more
    /// chunks follow.
    pub(crate) fn age_usage(&mut self, part: usize, age: &mut dyn FnMut(Usage) -> Usage) -> bool {
        for number in part * PAGES_PER_LOCK..(part + 1) * PAGES_PER_LOCK {
            let Some(page) = self.pages.existing_page_mut(number) else { continue };
            let mut at = page::HEADER_LEN;
            loop {
                let Some((here, header)) = page::entries(page, at).next() else { break };
                let aged = age(Usage(header.usage(page, here)));
                header.set_usage(page, here, aged.0);
                at = here + header.len();
            }
        }
        self.pages.count() > (part + 1) * PAGES_PER_LOCK
    }

    /// Removes the entry. Returns its overflow record, if it has one that no snapshot needs.
    pub(crate) fn remove(&mut self, entry_ref: EntryRef, key: &Key<'_>) -> Option<Record<V>> {
        let record = self.remove_without_compaction(entry_ref, key.hash);
        self.compact_after_removal();
        record
    }

    /// Like [`Self::remove`], but frees memory at once for eviction: the entry's page is compacted if at least 1/16 of
    /// it is dead, unless a snapshot pins it.
    pub(crate) fn evict(&mut self, entry_ref: EntryRef, key: &Key<'_>) -> Option<Record<V>> {
        let record = self.remove_without_compaction(entry_ref, key.hash);
        self.compact_if_worthwhile(pages::page_and_offset(entry_ref.0).0);
        record
    }

    /// Like [`Self::remove`], without compaction, for callers that insert a replacement.
    pub(crate) fn remove_without_compaction(&mut self, entry_ref: EntryRef, hash: u64) -> Option<Record<V>> {
        self.remove_from_index(entry_ref, hash);
        self.mark_dead_and_take_record(entry_ref)
    }

    /// Removes the entry and returns its attributes and value. The value is copied only if a snapshot still needs it.
    pub(crate) fn detach(
        &mut self,
        entry_ref: EntryRef,
        key: &Key<'_>,
    ) -> (EntryAttributes, UnstoredValue<V>) {
        let (header, page, at) = self.pages.entry(entry_ref.0);
        let (attributes, overflow) = (header.attributes(page, at), header.record_number(page, at));
        let value = match overflow {
            None => {
                let bytes = header.value(page, at).into();
                drop(self.remove_without_compaction(entry_ref, key.hash));
                UnstoredValue::Bytes(bytes)
            }
            Some(number) => match self.remove_without_compaction(entry_ref, key.hash) {
                Some(record) => UnstoredValue::Overflow(record.value),
                None => UnstoredValue::Overflow(self.records().record(number).value.copy()),
            },
        };
        self.compact_after_removal();
        (attributes, value)
    }

    pub(crate) fn copy(&self, entry_ref: EntryRef) -> (EntryAttributes, UnstoredValue<V>) {
        let (header, page, at) = self.pages.entry(entry_ref.0);
        let value = match self.stored_value_of(header, page, at) {
            StoredValue::Inline(bytes) => UnstoredValue::Bytes(bytes.into()),
            StoredValue::Overflow(value) => UnstoredValue::Overflow(value.copy()),
        };
        (header.attributes(page, at), value)
    }

    /// Stores a detached or copied value under a new key.
    pub(crate) fn attach(
        &mut self,
        key: &Key<'_>,
        attributes: EntryAttributes,
        value: UnstoredValue<V>,
    ) -> EntryRef {
        match value {
            UnstoredValue::Bytes(bytes) => {
                self.insert(key, NewValue { attributes, bytes: &bytes, len: bytes.len() })
            }
            UnstoredValue::Overflow(value) => self.insert_overflow(key, attributes, value),
        }
    }

    /// Returns the bytes that deleting the entry frees, at once or when its page is compacted: the entry, its share of
    /// the index and of free page space, and its overflow record. The sum over all entries equals the bytes of the
    /// store without its dead bytes.
    pub(crate) fn entry_bytes(&self, entry_ref: EntryRef) -> usize {
        let (header, page, at) = self.pages.entry(entry_ref.0);
        let overflow =
            header.record_number(page, at).map_or(0, |number| self.records().record(number).heap_bytes());
        let pages = self.pages.bytes().saturating_sub(self.dead_half_bytes as usize * 2);
        let here = header.len() * pages / self.live_bytes().max(1);
        here + (self.index.heap_bytes() + self.secondary_order.heap_bytes()) / self.len().max(1) + overflow
    }

    /// Returns the bytes of live entries, excluding overflow values.
    pub(crate) fn live_bytes(&self) -> usize {
        self.live_half_bytes as usize * 2
    }

    /// Returns the bytes of pages, index and overflow records.
    pub(crate) fn heap_bytes(&self) -> usize {
        let extras =
            self.extras.as_ref().map_or(0, |extras| size_of::<EntriesExtras<V>>() + extras.records.bytes());
        self.pages.bytes() + self.index.heap_bytes() + self.secondary_order.heap_bytes() + extras
    }

    /// Returns the bytes of the lookup structures: the index and the page list.
    pub(crate) fn overhead_bytes(&self) -> usize {
        let index = if self.len == 0 { 0 } else { self.index.heap_bytes().max(size_of::<Index>()) };
        index + self.pages.list_bytes()
    }

    /// Returns whether any entry can have an overflow value.
    #[inline]
    pub(crate) fn may_have_overflow_values(&self) -> bool {
        self.extras.is_some()
    }

    /// Estimates the bytes freed by dropping the store, in O(1).
    pub(crate) fn estimated_bytes(&self) -> usize {
        let extras = self
            .extras
            .as_ref()
            .map_or(0, |extras| size_of::<EntriesExtras<V>>() + extras.records.bytes_without_pages());
        let index = self.len() * 64 / 10;
        size_of::<Self>()
            + (self.live_half_bytes as usize + self.dead_half_bytes as usize) * 2
            + index
            + self.secondary_order.heap_bytes()
            + extras
    }

    #[inline]
    pub(crate) fn entry_keys(&self) -> EntryKeys<'_, V> {
        EntryKeys { pages: &self.pages, records: self.extras.as_ref().map(|extras| &extras.records) }
    }

    fn records(&self) -> &RecordStore<V> {
        &self.extras.as_ref().expect("an entry with a record is where a store is").records
    }

    fn extras_mut(&mut self) -> &mut EntriesExtras<V> {
        self.extras.get_or_insert_default()
    }

    /// Stores a value under a new key.
    pub(crate) fn insert(&mut self, key: &Key<'_>, value: NewValue<'_>) -> EntryRef {
        let NewValue { attributes, bytes, len } = value;
        let round_up_len =
            Header::entry_len(attributes.code, attributes.expiry.is_some(), key.bytes.len(), len);
        let flat = self.extras.as_ref().map_or(0, |extras| extras.records.bytes_without_pages());
        let fits = !V::may_outgrow_packed(attributes.code)
            || round_up_len <= MAX_ALWAYS_INLINE
            || round_up_len * MIN_STORE_TO_VALUE_RATIO <= self.live_bytes() + flat + round_up_len;
        let fits = fits && self.fill_level() < FillLevel::Full;
        if key.bytes.len() <= MAX_KEY_LEN
            && len <= MAX_VALUE_LEN
            && fits
            && !needs_wide_time(attributes.expiry)
        {
            self.count_expiry(attributes.expiry);
            let draft = EntryDraft { attributes, placement: Placement::Inline, key: key.bytes, value: bytes };
            return self.write_entry(key.hash, &draft, len);
        }
        let mut value = Vec::with_capacity(len);
        value.extend_from_slice(bytes);
        value.resize(len, 0);
        self.insert_overflow(key, attributes, value.into())
    }

    /// Stores an overflow value under a new key.
    pub(crate) fn insert_overflow(
        &mut self,
        key: &Key<'_>,
        attributes: EntryAttributes,
        value: V,
    ) -> EntryRef {
        self.count_expiry(attributes.expiry);
        let key_here = key.bytes.len() <= MAX_KEY_LEN && !needs_wide_time(attributes.expiry);
        let record = Record {
            key: (!key_here).then(|| key.bytes.into()),
            value,
            other_entry_count: 0,
            snapshot_only_bytes: 0,
        };
        let number = self.extras_mut().records.put(record).to_le_bytes();
        let (place, bytes) = if key_here {
            (Placement::ValueOverflow, key.bytes)
        } else {
            (Placement::KeyValueOverflow, &[][..])
        };
        let draft = EntryDraft { attributes, placement: place, key: bytes, value: &number };
        self.write_entry(key.hash, &draft, number.len())
    }

    /// Writes an entry into a page and adds it to the index.
    fn write_entry(&mut self, hash: u64, draft: &EntryDraft<'_>, value_len: usize) -> EntryRef {
        let len = draft.header(value_len).len();
        let (number, at) = self.allocate_space(len);
        let page = self.pages.page_mut(number);
        draft.write(page, at, value_len);
        page::set_entries_end(page, at + len);
        self.live_half_bytes += (len / 2) as u32;
        if let Some(expiry) = draft.attributes.expiry {
            self.lower_page_expiry(number, expiry);
        }
        let reference = pages::reference(number, at);
        let names =
            EntryKeys { pages: &self.pages, records: self.extras.as_ref().map(|extras| &extras.records) };
        self.index.add(hash, reference, &names);
        self.secondary_order.add(reference, &names);
        EntryRef(reference)
    }

    fn count_expiry(&mut self, expiry: Option<Millis>) {
        self.len += 1;
        self.volatile += u32::from(expiry.is_some());
    }

    /// Removes an entry from the index and the counters, but not from its page.
    fn remove_from_index(&mut self, entry_ref: EntryRef, hash: u64) {
        let (header, ..) = self.pages.entry(entry_ref.0);
        self.len -= 1;
        self.volatile -= u32::from(header.has_expiry());
        self.live_half_bytes -= (header.len() / 2) as u32;
        let names =
            EntryKeys { pages: &self.pages, records: self.extras.as_ref().map(|extras| &extras.records) };
        self.index.remove(hash, entry_ref.0, &names);
        self.secondary_order.remove(entry_ref.0, &names);
    }

    /// Marks an entry as dead that was removed from the index. Returns its record unless a snapshot still needs the
    /// record.
    fn mark_dead_and_take_record(&mut self, entry_ref: EntryRef) -> Option<Record<V>> {
        let (header, page, at) = self.pages.entry(entry_ref.0);
        let overflow = header.record_number(page, at);
        let died = self.mark_dead(entry_ref);
        let number = overflow?;
        let store = &mut self.extras_mut().records;
        if !died {
            // Keep the record: a snapshot will reach this entry, or has already queued its value in `pending_values`.
            store.mark_snapshot_only(number);
            return None;
        }
        if store.record(number).other_entry_count > 0 {
            store.mark_snapshot_only(number);
        }
        store.release(number)
    }

    /// Marks an entry dead that was removed from the index, unless snapshots that have not visited its page need it.
    /// Returns whether it is dead.
    fn mark_dead(&mut self, entry_ref: EntryRef) -> bool {
        let (number, at) = pages::page_and_offset(entry_ref.0);
        let pinned = self.pinned_bits(number);
        let page = self.pages.page_mut(number);
        let header = Header::read(page, at);
        if pinned != 0 {
            header.with_state(pinned).write(page, at);
            self.extras_mut().snapshot_only_bytes += header.len();
            count_snapshot_only_bytes(header.len(), 0);
            return false;
        }
        self.write_tombstone(number, at);
        true
    }

    /// Marks the bytes of an entry as dead, and frees the page if it has no live entries left.
    fn write_tombstone(&mut self, number: usize, at: usize) {
        let page = self.pages.page_mut(number);
        let header = Header::read(page, at);
        let len = header.len();
        if at + len == page::entries_end(page) {
            page::set_entries_end(page, at);
        } else {
            header.with_state(STATE_DEAD).write(page, at);
            page::set_dead_bytes(page, page::dead_bytes(page) + len);
            self.dead_half_bytes += (len / 2) as u32;
        }
        if page::live_bytes(page) == 0 && self.pinned_bits(number) == 0 {
            self.free_page(number);
        } else if self.open_page as usize != number {
            self.pages.trim_page(number);
        }
    }

    fn free_page(&mut self, number: usize) {
        self.dead_half_bytes -= (page::dead_bytes(self.pages.page(number)) / 2) as u32;
        self.set_page_expiry(number, page::NO_EXPIRY);
        self.pages.free_page(number);
        if self.open_page as usize == number {
            self.open_page = NO_PAGE;
        }
    }
}

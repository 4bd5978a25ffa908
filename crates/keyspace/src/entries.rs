//! An entry store with lookup by key. The type that owns the store defines what an entry means.
//!
//! There are two owners: [`crate::table::Table`] (the keys of one slot and one database) and
//! [`crate::fields::Fields`] (the elements of one large collection).
//!
//! Entries lie in [`pages`](crate::pages); the [`index`](crate::index) finds them by hash. An entry stays at
//! its place until its page is compacted or its size changes ([`allocation`]). While a snapshot still needs its
//! page, the entry stays there even after it is overwritten or deleted ([`pins`]). Expiry is tracked in
//! [`expiry`].
mod allocation;
mod editing;
mod expiry;
mod lookup;
mod pins;

use clock::Millis;

use crate::entry::{DEAD, Draft, Header, MAX_KEY, MAX_VALUE, Marks, Where, is_wide};
use crate::index::Index;
use crate::key::Key;
use crate::memory::Block;
use crate::order::Order;
use crate::overflow::{Outside, Record, Store, count_kept};
use crate::page;
use crate::pages::{self, Crowding, Names, Pages};
use crate::purge::A_PART;
use crate::usage::Usage;

pub(crate) use editing::Splice;
pub(crate) use expiry::PartsDue;
pub(crate) use lookup::Body;
pub use lookup::Found;
use pins::{Pending, Pin};

/// Location of an entry. Valid until the next change to its store; after that, use the one that the change
/// returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(pub(crate) u32);

/// The entry store.
#[derive(Debug)]
pub(crate) struct Entries<V: Outside> {
    len: u32,
    volatile: u32,
    /// Bytes of live and of dead entries, divided by two (all lengths are even).
    live: u32,
    dead: u32,
    /// Page that receives new entries, or `NO_PAGE`.
    open: u32,
    /// No entry expires before this.
    next_due: Millis,
    /// Hint for the bytes of entries that will be inserted soon ([`Entries::announce`]).
    announced: u16,
    index: Index,
    /// A secondary order of the entries, such as by score; `()` for kinds without one.
    pub(crate) order: V::Order,
    pages: Pages,
    rare: Option<Box<Rare<V>>>,
}

/// Fields that few stores need, boxed so that most stores stay small.
#[derive(Debug)]
struct Rare<V: Outside> {
    store: Store<V>,
    pins: Vec<Pin>,
    /// Overflow values that a walk has reached and not finished.
    pending: Vec<Pending>,
    due: Option<Box<expiry::DueTree>>,
    /// Expiry times of elements inside values.
    parts_due: Option<Box<PartsDue>>,
    /// Bytes of entries that only snapshots still need.
    leftover: usize,
}

const NO_PAGE: u32 = u32::MAX;

/// A packed collection up to this length is always stored in a page: outside it, the overhead would cost as
/// much as a page of its own.
pub(crate) const ALWAYS_HERE: usize = 8 * Block::STEP - page::HEAD;
/// A longer packed collection stays in a page if the store has at least this many times its bytes.
/// Collections grow, and the dead bytes left behind by each move must stay small compared to the store.
const STORE_TO_ENTRY: usize = 8;

/// A value that belongs to no store.
#[derive(Debug)]
pub(crate) enum Loose<V> {
    Bytes(Box<[u8]>),
    Outside(V),
}

impl<V: Outside> Default for Entries<V> {
    fn default() -> Self {
        Self {
            len: 0,
            volatile: 0,
            live: 0,
            dead: 0,
            open: NO_PAGE,
            next_due: page::NEVER,
            announced: 0,
            index: Index::default(),
            order: V::Order::default(),
            pages: Pages::default(),
            rare: None,
        }
    }
}

impl<V: Outside> Rare<V> {
    /// Whether an empty store can drop these fields.
    fn is_unused(&self) -> bool {
        let is_free = self.pins.is_empty() && self.pending.is_empty() && self.leftover == 0;
        is_free && self.store.is_empty()
    }
}

impl<V: Outside> Default for Rare<V> {
    fn default() -> Self {
        Self {
            store: Store::default(),
            pins: Vec::new(),
            pending: Vec::new(),
            due: None,
            parts_due: None,
            leftover: 0,
        }
    }
}

/// A value to be stored in an entry, or as an overflow value if it is too long for a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Content<'a> {
    pub(crate) marks: Marks,
    pub(crate) bytes: &'a [u8],
    /// Total value length; the bytes after `bytes` are zero.
    pub(crate) len: usize,
}

impl<V: Outside> Entries<V> {
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the store has allocated nothing: no page and no index line.
    pub(crate) fn is_vacant(&self) -> bool {
        self.len == 0 && self.rare.is_none() && self.pages.count() == 0 && self.index.bytes() == 0
    }

    /// Whether an empty store may still hold memory for overflow values or expiry.
    #[inline]
    pub(crate) fn may_hold_unused(&self) -> bool {
        self.len == 0 && self.rare.is_some()
    }

    /// Frees that memory unless a snapshot needs it.
    pub(crate) fn release_unused(&mut self) {
        let is_bare = self.len == 0 && self.pages.count() == 0;
        if is_bare && self.rare.as_ref().is_some_and(|rare| rare.is_unused()) {
            self.rare = None;
        }
    }

    #[inline]
    pub(crate) fn crowding(&self) -> Crowding {
        self.pages.crowding()
    }

    /// Number of entries with an expiry time.
    pub(crate) fn volatile_len(&self) -> usize {
        self.volatile as usize
    }

    pub(crate) fn usage(&self, place: Place) -> Usage {
        let (header, page, at) = self.pages.entry(place.0);
        Usage(header.usage(page, at))
    }

    /// Writes only if the value changes, so that clean cache lines stay clean.
    #[inline]
    pub(crate) fn set_usage(&mut self, place: Place, usage: Usage) {
        let (header, page, at) = self.pages.entry_mut(place.0);
        if header.usage(page, at) != usage.0 {
            header.set_usage(page, at, usage.0);
        }
    }

    /// Passes the usage of every entry in chunk `part` of the pages to `age`. Returns whether more chunks
    /// follow.
    pub(crate) fn age(&mut self, part: usize, age: &mut dyn FnMut(Usage) -> Usage) -> bool {
        for number in part * A_PART..(part + 1) * A_PART {
            let Some(page) = self.pages.page_mut_if(number) else { continue };
            let mut at = page::HEAD;
            loop {
                let Some((here, header)) = page::entries(page, at).next() else { break };
                let aged = age(Usage(header.usage(page, here)));
                header.set_usage(page, here, aged.0);
                at = here + header.len();
            }
        }
        self.pages.count() > (part + 1) * A_PART
    }

    /// Removes the entry. Returns its overflow record unless a snapshot needs it.
    pub(crate) fn remove(&mut self, place: Place, key: &Key<'_>) -> Option<Record<V>> {
        let record = self.remove_quietly(place, key.hash);
        self.tidy_after_removal();
        record
    }

    /// Like [`Self::remove`], but also compacts the unpinned page when as little as 1/16 of it is dead:
    /// eviction must free memory at once.
    pub(crate) fn evict(&mut self, place: Place, key: &Key<'_>) -> Option<Record<V>> {
        let record = self.remove_quietly(place, key.hash);
        self.squeeze(pages::split(place.0).0);
        record
    }

    /// Like [`Self::remove`], without compaction, for callers that insert a replacement.
    pub(crate) fn remove_quietly(&mut self, place: Place, hash: u64) -> Option<Record<V>> {
        self.unlink(place, hash);
        self.kill_with_record(place)
    }

    /// Removes the entry and returns its attributes and value. The value is copied only if a snapshot needs
    /// the original.
    pub(crate) fn detach(&mut self, place: Place, key: &Key<'_>) -> (Marks, Loose<V>) {
        let (header, page, at) = self.pages.entry(place.0);
        let (marks, outside) = (header.marks(page, at), header.outside(page, at));
        let value = match outside {
            None => {
                let bytes = header.value(page, at).into();
                drop(self.remove_quietly(place, key.hash));
                Loose::Bytes(bytes)
            }
            Some(number) => match self.remove_quietly(place, key.hash) {
                Some(record) => Loose::Outside(record.value),
                None => Loose::Outside(self.store().record(number).value.copy()),
            },
        };
        self.tidy_after_removal();
        (marks, value)
    }

    /// Copies the entry's attributes and value.
    pub(crate) fn copy(&self, place: Place) -> (Marks, Loose<V>) {
        let (header, page, at) = self.pages.entry(place.0);
        let value = match self.body_of(header, page, at) {
            Body::Here(bytes) => Loose::Bytes(bytes.into()),
            Body::Outside(value) => Loose::Outside(value.copy()),
        };
        (header.marks(page, at), value)
    }

    /// Stores a detached or copied value under a key that does not exist.
    pub(crate) fn attach(&mut self, key: &Key<'_>, marks: Marks, value: Loose<V>) -> Place {
        match value {
            Loose::Bytes(bytes) => self.insert(key, Content { marks, bytes: &bytes, len: bytes.len() }),
            Loose::Outside(value) => self.insert_outside(key, marks, value),
        }
    }

    /// Bytes freed by deleting the entry, at once or at the next compaction of its page: the entry, its share
    /// of the index and of free page space, and its overflow record. The sum over all entries equals the
    /// bytes that the store holds, without its dead bytes.
    pub(crate) fn entry_bytes(&self, place: Place) -> usize {
        let (header, page, at) = self.pages.entry(place.0);
        let outside = header.outside(page, at).map_or(0, |number| self.store().record(number).held_bytes());
        let pages = self.pages.bytes().saturating_sub(self.dead as usize * 2);
        let here = header.len() * pages / self.live_bytes().max(1);
        here + (self.index.bytes() + self.order.bytes()) / self.len().max(1) + outside
    }

    /// Bytes of live entries, excluding overflow values.
    pub(crate) fn live_bytes(&self) -> usize {
        self.live as usize * 2
    }

    /// Bytes of pages, index and overflow records.
    pub(crate) fn held_bytes(&self) -> usize {
        let rare = self.rare.as_ref().map_or(0, |rare| size_of::<Rare<V>>() + rare.store.bytes());
        self.pages.bytes() + self.index.bytes() + self.order.bytes() + rare
    }

    /// Bytes of the lookup structures: the index and the page list.
    pub(crate) fn overhead_bytes(&self) -> usize {
        let index = if self.len == 0 { 0 } else { self.index.bytes().max(size_of::<Index>()) };
        index + self.pages.list_bytes()
    }

    /// Whether any entry can have an overflow value.
    #[inline]
    pub(crate) fn may_have_records(&self) -> bool {
        self.rare.is_some()
    }

    /// Estimates the bytes freed by dropping the store, in O(1).
    pub(crate) fn rough_bytes(&self) -> usize {
        let rare = self.rare.as_ref().map_or(0, |rare| size_of::<Rare<V>>() + rare.store.flat_bytes());
        let index = self.len() * 64 / 10;
        size_of::<Self>() + (self.live as usize + self.dead as usize) * 2 + index + self.order.bytes() + rare
    }

    #[inline]
    pub(crate) fn names(&self) -> Names<'_, V> {
        Names { pages: &self.pages, store: self.rare.as_ref().map(|rare| &rare.store) }
    }

    fn store(&self) -> &Store<V> {
        &self.rare.as_ref().expect("an entry with a record is where a store is").store
    }

    fn rare(&mut self) -> &mut Rare<V> {
        self.rare.get_or_insert_default()
    }

    /// Stores a value under a key that does not exist.
    pub(crate) fn insert(&mut self, key: &Key<'_>, content: Content<'_>) -> Place {
        let Content { marks, bytes, len } = content;
        let whole = Header::entry_len(marks.code, marks.expiry.is_some(), key.bytes.len(), len);
        let flat = self.rare.as_ref().map_or(0, |rare| rare.store.flat_bytes());
        let fits = !V::may_grow(marks.code)
            || whole <= ALWAYS_HERE
            || whole * STORE_TO_ENTRY <= self.live_bytes() + flat + whole;
        let fits = fits && self.crowding() < Crowding::Full;
        if key.bytes.len() <= MAX_KEY && len <= MAX_VALUE && fits && !is_wide(marks.expiry) {
            self.count_in(marks.expiry);
            let draft = Draft { marks, place: Where::Here, key: key.bytes, value: bytes };
            return self.put(key.hash, &draft, len);
        }
        let mut value = Vec::with_capacity(len);
        value.extend_from_slice(bytes);
        value.resize(len, 0);
        self.insert_outside(key, marks, value.into())
    }

    /// Stores an overflow value under a key that does not exist.
    pub(crate) fn insert_outside(&mut self, key: &Key<'_>, marks: Marks, value: V) -> Place {
        self.count_in(marks.expiry);
        let key_here = key.bytes.len() <= MAX_KEY && !is_wide(marks.expiry);
        let record = Record { key: (!key_here).then(|| key.bytes.into()), value, shared: 0, kept: 0 };
        let number = self.rare().store.put(record).to_le_bytes();
        let (place, bytes) =
            if key_here { (Where::ValueOutside, key.bytes) } else { (Where::BothOutside, &[][..]) };
        let draft = Draft { marks, place, key: bytes, value: &number };
        self.put(key.hash, &draft, number.len())
    }

    /// Writes an entry into a page and adds it to the index.
    fn put(&mut self, hash: u64, draft: &Draft<'_>, value_len: usize) -> Place {
        let len = draft.header(value_len).len();
        let (number, at) = self.room_for(len);
        let page = self.pages.page_mut(number);
        draft.write(page, at, value_len);
        page::set_end(page, at + len);
        self.live += (len / 2) as u32;
        if let Some(expiry) = draft.marks.expiry {
            self.note_due(number, expiry);
        }
        let reference = pages::reference(number, at);
        let names = Names { pages: &self.pages, store: self.rare.as_ref().map(|rare| &rare.store) };
        self.index.add(hash, reference, &names);
        self.order.add(reference, &names);
        Place(reference)
    }

    fn count_in(&mut self, expiry: Option<Millis>) {
        self.len += 1;
        self.volatile += u32::from(expiry.is_some());
    }

    /// Removes an entry from the index and the counters; its bytes stay in the page.
    fn unlink(&mut self, place: Place, hash: u64) {
        let (header, ..) = self.pages.entry(place.0);
        self.len -= 1;
        self.volatile -= u32::from(header.volatile());
        self.live -= (header.len() / 2) as u32;
        let names = Names { pages: &self.pages, store: self.rare.as_ref().map(|rare| &rare.store) };
        self.index.remove(hash, place.0, &names);
        self.order.remove(place.0, &names);
    }

    /// Kills an unlinked entry, and its record if no snapshot needs it.
    fn kill_with_record(&mut self, place: Place) -> Option<Record<V>> {
        let (header, page, at) = self.pages.entry(place.0);
        let outside = header.outside(page, at);
        let died = self.kill(place);
        let number = outside?;
        let store = &mut self.rare().store;
        if !died {
            // Keep the record if a snapshot will reach this entry or has queued it in `pending`.
            store.keep(number);
            return None;
        }
        if store.record(number).shared > 0 {
            store.keep(number);
        }
        store.release(number)
    }

    /// Marks an unlinked entry dead, or keeps it for the snapshots that have not passed its page. Returns
    /// whether it is dead.
    fn kill(&mut self, place: Place) -> bool {
        let (number, at) = pages::split(place.0);
        let pinned = self.pinned(number);
        let page = self.pages.page_mut(number);
        let header = Header::read(page, at);
        if pinned != 0 {
            header.with_state(pinned).write(page, at);
            self.rare().leftover += header.len();
            count_kept(header.len(), 0);
            return false;
        }
        self.leave_tombstone(number, at);
        true
    }

    /// Turns an entry into dead bytes of its page and frees the page if that was the last live entry.
    fn leave_tombstone(&mut self, number: usize, at: usize) {
        let page = self.pages.page_mut(number);
        let header = Header::read(page, at);
        let len = header.len();
        if at + len == page::end(page) {
            page::set_end(page, at);
        } else {
            header.with_state(DEAD).write(page, at);
            page::set_dead(page, page::dead(page) + len);
            self.dead += (len / 2) as u32;
        }
        if page::live(page) == 0 && self.pinned(number) == 0 {
            self.free_page(number);
        } else if self.open as usize != number {
            self.pages.trim(number);
        }
    }

    fn free_page(&mut self, number: usize) {
        self.dead -= (page::dead(self.pages.page(number)) / 2) as u32;
        self.set_earliest(number, page::NEVER);
        self.pages.free(number);
        if self.open as usize == number {
            self.open = NO_PAGE;
        }
    }
}

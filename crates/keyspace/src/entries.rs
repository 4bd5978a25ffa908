//! A store of entries, each found by its key; the meaning of an entry is that of the type which has the store. There
//! are two: [`crate::table::Table`] (the keys of one slot and one database) and [`crate::fields::Fields`] (the elements
//! of one large collection).
//!
//! Entries lie in [`pages`](crate::pages), the [`index`](crate::index) finds them by hash. An entry stays
//! where it is until its page is compacted or its size changes ([`room`]); while a snapshot has not passed
//! its page it stays there even when it is overwritten or deleted ([`pins`]). When entries expire is
//! [`due`]'s matter.
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

/// Where an entry lies. Good until the next change to its store; after that, use what the change returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(pub(crate) u32);

/// The entries.
#[derive(Debug)]
pub(crate) struct Entries<V: Outside> {
    len: u32,
    volatile: u32,
    /// Bytes of entries that are alive, and of dead ones, halved: lengths are even.
    live: u32,
    dead: u32,
    /// The page that new entries go to, if there is one.
    open: u32,
    /// No entry expires before this.
    next_due: Millis,
    /// About so many bytes of entries follow at once ([`Entries::announce`]).
    announced: u16,
    index: Index,
    /// The entries in another order than that of their hashes, where one is kept.
    pub(crate) order: V::Order,
    pages: Pages,
    rare: Option<Box<Rare<V>>>,
}

/// The parts that few stores have.
#[derive(Debug)]
struct Rare<V: Outside> {
    store: Store<V>,
    pins: Vec<Pin>,
    /// Long values that a walk has come to and has not finished.
    pending: Vec<Pending>,
    due: Option<Box<expiry::DueTree>>,
    /// When elements of values expire.
    parts_due: Option<Box<PartsDue>>,
    /// Bytes of entries that are kept for snapshots only.
    leftover: usize,
}

const NO_PAGE: u32 = u32::MAX;

/// A packed collection that is at most this long always lies in a page: outside it would cost as much beside its bytes
/// as a page of its own.
pub(crate) const ALWAYS_HERE: usize = 8 * Block::STEP - page::HEAD;
/// A longer one does if the store has this many times its bytes: it grows, and the dead bytes that it leaves behind
/// when it moves on must be few beside the rest.
const STORE_TO_ENTRY: usize = 8;

/// A value that lies in no store.
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
    /// Whether a store without entries does not need it.
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

/// A value to be stored in an entry, or outside if it is too long for one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Content<'a> {
    pub(crate) marks: Marks,
    pub(crate) bytes: &'a [u8],
    /// The value's length; what lies behind `bytes` is zero.
    pub(crate) len: usize,
}

impl<V: Outside> Entries<V> {
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is nothing at all, no page and no line: it is as it was made.
    pub(crate) fn is_vacant(&self) -> bool {
        self.len == 0 && self.rare.is_none() && self.pages.count() == 0 && self.index.bytes() == 0
    }

    /// Whether nothing is left but what large values and expiry needed.
    #[inline]
    pub(crate) fn may_hold_unused(&self) -> bool {
        self.len == 0 && self.rare.is_some()
    }

    /// Gives that back, unless a snapshot needs it.
    pub(crate) fn release_unused(&mut self) {
        let is_bare = self.len == 0 && self.pages.count() == 0;
        if is_bare && self.rare.as_ref().is_some_and(|rare| rare.is_unused()) {
            self.rare = None;
        }
    }

    /// How full it is.
    #[inline]
    pub(crate) fn crowding(&self) -> Crowding {
        self.pages.crowding()
    }

    /// How many entries expire.
    pub(crate) fn volatile_len(&self) -> usize {
        self.volatile as usize
    }

    pub(crate) fn usage(&self, place: Place) -> Usage {
        let (header, page, at) = self.pages.entry(place.0);
        Usage(header.usage(page, at))
    }

    /// Writes only a change.
    #[inline]
    pub(crate) fn set_usage(&mut self, place: Place, usage: Usage) {
        let (header, page, at) = self.pages.entry_mut(place.0);
        if header.usage(page, at) != usage.0 {
            header.set_usage(page, at, usage.0);
        }
    }

    /// Lets `age` see the usage of all entries of some pages, those of part `part`; says whether there are
    /// further parts.
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

    /// Takes the entry out. Returns the record that it had outside, unless a snapshot needs that.
    pub(crate) fn remove(&mut self, place: Place, key: &Key<'_>) -> Option<Record<V>> {
        let record = self.remove_quietly(place, key.hash);
        self.tidy_after_removal();
        record
    }

    /// The same, and compacts its page, unless a snapshot holds it, for as little as a sixteenth of dead bytes.
    pub(crate) fn evict(&mut self, place: Place, key: &Key<'_>) -> Option<Record<V>> {
        let record = self.remove_quietly(place, key.hash);
        self.squeeze(pages::split(place.0).0);
        record
    }

    /// The same, for a caller that stores something in its place.
    pub(crate) fn remove_quietly(&mut self, place: Place, hash: u64) -> Option<Record<V>> {
        self.unlink(place, hash);
        self.kill_with_record(place)
    }

    /// Takes the entry out and returns its attributes and its value, which is copied only if a snapshot needs it where
    /// it is.
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

    /// A copy of the entry's attributes and value.
    pub(crate) fn copy(&self, place: Place) -> (Marks, Loose<V>) {
        let (header, page, at) = self.pages.entry(place.0);
        let value = match self.body_of(header, page, at) {
            Body::Here(bytes) => Loose::Bytes(bytes.into()),
            Body::Outside(value) => Loose::Outside(value.copy()),
        };
        (header.marks(page, at), value)
    }

    /// Stores a detached or copied value under a key that is not there.
    pub(crate) fn attach(&mut self, key: &Key<'_>, marks: Marks, value: Loose<V>) -> Place {
        match value {
            Loose::Bytes(bytes) => self.insert(key, Content { marks, bytes: &bytes, len: bytes.len() }),
            Loose::Outside(value) => self.insert_outside(key, marks, value),
        }
    }

    /// Bytes that deleting the entry gives back, at once or with its page's next compaction: the entry, its
    /// share of the index and of the free bytes in pages, and its record outside. Those of all entries add
    /// up to the bytes that the store holds, without its dead bytes.
    pub(crate) fn entry_bytes(&self, place: Place) -> usize {
        let (header, page, at) = self.pages.entry(place.0);
        let outside = header.outside(page, at).map_or(0, |number| self.store().record(number).held_bytes());
        let pages = self.pages.bytes().saturating_sub(self.dead as usize * 2);
        let here = header.len() * pages / self.live_bytes().max(1);
        here + (self.index.bytes() + self.order.bytes()) / self.len().max(1) + outside
    }

    /// Bytes of the entries that are alive, without those that large values take outside.
    pub(crate) fn live_bytes(&self) -> usize {
        self.live as usize * 2
    }

    /// Bytes of pages, index and records outside.
    pub(crate) fn held_bytes(&self) -> usize {
        let rare = self.rare.as_ref().map_or(0, |rare| size_of::<Rare<V>>() + rare.store.bytes());
        self.pages.bytes() + self.index.bytes() + self.order.bytes() + rare
    }

    /// Bytes of the structures that find the entries: the index and the list of pages.
    pub(crate) fn overhead_bytes(&self) -> usize {
        let index = if self.len == 0 { 0 } else { self.index.bytes().max(size_of::<Index>()) };
        index + self.pages.list_bytes()
    }

    /// Whether an entry may have a value outside.
    #[inline]
    pub(crate) fn may_have_records(&self) -> bool {
        self.rare.is_some()
    }

    /// About how much dropping all of it gives back, without a look at all of it.
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

    /// Stores a value under a key that is not there.
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

    /// Stores a value outside under a key that is not there.
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

    /// Writes an entry into a page and links it.
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

    /// Takes an entry out of the index and the counts; it still lies in its page.
    fn unlink(&mut self, place: Place, hash: u64) {
        let (header, ..) = self.pages.entry(place.0);
        self.len -= 1;
        self.volatile -= u32::from(header.volatile());
        self.live -= (header.len() / 2) as u32;
        let names = Names { pages: &self.pages, store: self.rare.as_ref().map(|rare| &rare.store) };
        self.index.remove(hash, place.0, &names);
        self.order.remove(place.0, &names);
    }

    /// Ends an unlinked entry, and its record if no snapshot needs it.
    fn kill_with_record(&mut self, place: Place) -> Option<Record<V>> {
        let (header, page, at) = self.pages.entry(place.0);
        let outside = header.outside(page, at);
        let died = self.kill(place);
        let number = outside?;
        let store = &mut self.rare().store;
        if !died {
            // A snapshot that comes to the entry needs it; so does one that has come to it and waits.
            store.keep(number);
            return None;
        }
        if store.record(number).shared > 0 {
            store.keep(number);
        }
        store.release(number)
    }

    /// Ends an unlinked entry: dead, or kept for the snapshots that have not passed it. Says whether it is
    /// dead.
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

    /// Makes an entry dead bytes of its page; gives the page back if it was the last.
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

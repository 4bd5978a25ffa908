//! The keys of one slot and one database.
//!
//! Entries lie in [`pages`](crate::pages), the [`index`](crate::index) finds them by hash. An entry stays
//! where it is until its page is compacted or its size changes ([`room`]); while a snapshot has not passed
//! its page it stays there even when it is overwritten or deleted ([`pins`]). When entries expire is
//! [`due`]'s matter.
mod due;
mod fields;
mod finding;
mod loading;
mod moving;
mod pins;
mod room;
mod setting;
#[cfg(test)]
mod tests;

use clock::Millis;

use crate::entry::{DEAD, Draft, Form, Header, MAX_KEY, MAX_VALUE, Mark, Where, is_wide};
use crate::index::Index;
use crate::key::Key;
use crate::memory::Block;
use crate::outside::{Large, Record, Store, count_kept};
use crate::page;
use crate::pages::{self, Keys, Pages};
use crate::purge::A_PART;
use crate::usage::Usage;
use crate::value::{Kind, Naming, NewValue, Str};

pub(crate) use finding::flat_value;
pub use finding::{Found, ScanItem};
pub use loading::NewEntry;
pub use moving::Detached;
use pins::{Pending, Pin};

/// Where an entry lies. Good until the next change to its table; after that, use what the change returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(u32);

/// What a removal took out of the table. Dropping it frees the memory, which for a large value takes
/// time: the caller may drop it elsewhere.
#[derive(Debug, Default)]
#[must_use = "dropping a large value takes time: decide where"]
pub struct Dropped {
    record: Option<Record>,
}

impl Dropped {
    /// Bytes of the heap that dropping it gives back.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.record.as_ref().map_or(0, Record::bytes)
    }
}

/// The keys of one slot and one database.
#[derive(Debug)]
pub struct Table {
    len: u32,
    volatile: u32,
    /// Bytes of entries that are alive, and of dead ones, halved: lengths are even.
    live: u32,
    dead: u32,
    /// The page that new entries go to, if there is one.
    open: u32,
    /// No entry expires before this.
    next_due: Millis,
    /// The keys are the fields of a hash.
    of_fields: bool,
    /// About so many bytes of entries follow at once ([`loading`]).
    coming: u16,
    index: Index,
    pages: Pages,
    rare: Option<Box<Rare>>,
}

/// What few tables have.
#[derive(Debug, Default)]
struct Rare {
    store: Store,
    pins: Vec<Pin>,
    /// Long values that a walk has come to and has not finished.
    pending: Vec<Pending>,
    due: Option<Box<due::DueTree>>,
    fields_due: Option<Box<fields::FieldsDue>>,
    /// Bytes of entries that are kept for snapshots only.
    leftover: usize,
}

const NO_PAGE: u32 = u32::MAX;

/// A packed collection that is at most this long always lies in a page: outside it would cost as much beside its bytes
/// as a page of its own.
const ALWAYS_HERE: usize = 4 * Block::STEP - page::HEAD;
/// A longer one does if the table has this many times its bytes: it grows, and what it leaves behind when it moves on
/// must be little beside the rest.
const TABLE_TO_ENTRY: usize = 8;

impl Default for Table {
    fn default() -> Self {
        Self {
            len: 0,
            volatile: 0,
            live: 0,
            dead: 0,
            open: NO_PAGE,
            next_due: page::NEVER,
            of_fields: false,
            coming: 0,
            index: Index::default(),
            pages: Pages::default(),
            rare: None,
        }
    }
}

/// A value to be stored.
#[derive(Debug, Clone, Copy)]
struct Content<'a> {
    kind: Kind,
    mark: Mark,
    usage: u16,
    expiry: Option<Millis>,
    bytes: &'a [u8],
    /// The value's length; what lies behind `bytes` is zero.
    len: usize,
}

impl Table {
    /// For the fields of a hash.
    fn for_fields() -> Self {
        Self { of_fields: true, ..Self::default() }
    }

    fn form(&self, kind: Kind) -> Form {
        if self.of_fields { Form::Field } else { Form::Key(kind) }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the table has nothing at all, no page and no line: it is as it was made.
    #[must_use]
    pub(crate) fn is_vacant(&self) -> bool {
        self.len == 0 && self.rare.is_none() && self.pages.count() == 0 && self.index.bytes() == 0
    }

    /// How many keys have a time to live.
    #[must_use]
    pub fn volatile_len(&self) -> usize {
        self.volatile as usize
    }

    /// Stores a value under a key that is not there.
    pub fn insert(&mut self, key: &Key<'_>, value: NewValue<'_>, expiry: Option<Millis>) -> Place {
        self.insert_used(key, value, expiry, Usage::of_new().0)
    }

    fn insert_used(
        &mut self,
        key: &Key<'_>,
        value: NewValue<'_>,
        expiry: Option<Millis>,
        usage: u16,
    ) -> Place {
        match value {
            NewValue::String(Str { bytes, naming }) => {
                let mark = naming.into();
                let content = Content { kind: Kind::String, mark, usage, expiry, bytes, len: bytes.len() };
                self.store_new(key, content)
            }
            NewValue::Hash(hash) => self.insert_hash(key, hash, expiry, usage),
        }
    }

    /// Stores another value and expiry under the key that lies at `place`.
    pub fn replace(
        &mut self,
        place: Place,
        key: &Key<'_>,
        value: NewValue<'_>,
        expiry: Option<Millis>,
    ) -> (Place, Dropped) {
        if let NewValue::String(string) = value
            && self.overwrite(place, string, expiry)
        {
            return (place, Dropped::default());
        }
        let usage = self.usage(place);
        let dropped = self.remove_quietly(place, key.hash);
        (self.insert_used(key, value, expiry, usage.0), dropped)
    }

    /// When and how often the entry was used.
    #[must_use]
    pub fn usage(&self, place: Place) -> Usage {
        let (header, page, at) = self.pages.entry(place.0);
        Usage(header.usage(page, at))
    }

    /// The entry was used. Writes only a change.
    #[inline]
    pub fn set_usage(&mut self, place: Place, usage: Usage) {
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

    /// Writes over a string of the same length, if it may be edited where it lies.
    fn overwrite(&mut self, place: Place, string: Str<'_>, expiry: Option<Millis>) -> bool {
        let Str { bytes, naming } = string;
        let number = pages::split(place.0).0;
        if self.pinned(number) != 0 {
            return false;
        }
        let (header, page, at) = self.pages.entry_mut(place.0);
        let fits = header.kind() == Kind::String
            && header.place() == Where::Here
            && header.holds(expiry)
            && header.value(page, at).len() == bytes.len();
        if fits {
            header.with_mark(naming.into()).write(page, at);
            header.value_mut(page, at).copy_from_slice(bytes);
            if let Some(expiry) = expiry {
                header.set_expiry(page, at, expiry);
                self.note_due(number, expiry);
            }
        }
        fits
    }

    /// Changes when the entry expires; `None` makes it stay.
    pub fn set_expiry(&mut self, place: Place, key: &Key<'_>, expiry: Option<Millis>) -> Place {
        let place = self.thaw(place, key);
        let number = pages::split(place.0).0;
        let (header, page, at) = self.pages.entry_mut(place.0);
        match expiry {
            None if !header.volatile() => place,
            Some(expiry) if header.holds(Some(expiry)) => {
                header.set_expiry(page, at, expiry);
                self.note_due(number, expiry);
                place
            }
            _ => {
                let (kind, mark, usage) = (header.kind(), header.mark(), header.usage(page, at));
                let value: smallvec::SmallVec<[u8; 512]> = header.value(page, at).into();
                self.unlink(place, key.hash);
                self.kill(place);
                if header.place() == Where::Here {
                    let content = Content { kind, mark, usage, expiry, bytes: &value, len: value.len() };
                    return self.store_new(key, content);
                }
                let mut place = header.place();
                if place == Where::ValueOutside && is_wide(expiry) {
                    let number = u32::from_le_bytes(value[..].try_into().expect("a number is four bytes"));
                    self.rare().store.set_key(number, key.bytes);
                    place = Where::BothOutside;
                }
                let key_here = if place == Where::BothOutside { &[] } else { key.bytes };
                let form = self.form(kind);
                let draft = Draft { form, place, mark, usage, expiry, key: key_here, value: &value };
                self.count_in(expiry);
                self.put(key.hash, &draft, value.len())
            }
        }
    }

    /// Makes the string at `place` `len` bytes long, keeping what it has and filling with zeros, and
    /// gives its bytes for editing. The expiry stays.
    pub fn edit_string(
        &mut self,
        place: Place,
        key: &Key<'_>,
        len: usize,
        naming: Naming,
    ) -> (Place, &mut [u8]) {
        let mark = naming.into();
        let mut place = self.thaw(place, key);
        let (header, page, at) = self.pages.entry_mut(place.0);
        header.with_mark(mark).write(page, at);
        if header.place() == Where::Here && header.value(page, at).len() != len {
            let (usage, expiry) = (header.usage(page, at), header.expiry(page, at));
            let value: smallvec::SmallVec<[u8; 512]> = header.value(page, at).into();
            self.unlink(place, key.hash);
            self.kill(place);
            let bytes = &value[..value.len().min(len)];
            place = self.store_new(key, Content { kind: header.kind(), mark, usage, expiry, bytes, len });
        }
        let (header, page, at) = self.pages.entry(place.0);
        if let Some(number) = header.outside(page, at) {
            let number = self.own_record(place, number);
            self.rare().store.resize(number, |bytes| {
                bytes.resize(len, 0);
                if bytes.capacity() > 2 * len + 64 {
                    bytes.shrink_to_fit();
                }
            });
            return (place, self.rare().store.flat_mut(number));
        }
        let (header, page, at) = self.pages.entry_mut(place.0);
        (place, header.value_mut(page, at))
    }

    /// Takes the entry out.
    pub fn remove(&mut self, place: Place, key: &Key<'_>) -> Dropped {
        let dropped = self.remove_quietly(place, key.hash);
        self.tidy_after_removal();
        dropped
    }

    fn remove_quietly(&mut self, place: Place, hash: u64) -> Dropped {
        self.unlink(place, hash);
        Dropped { record: self.kill_with_record(place) }
    }

    /// Bytes that deleting the entry gives back, at once or with its page's next compaction: the entry, its
    /// share of the index and of what lies free in pages, and what it has outside. Those of all entries add
    /// up to what the table holds, without its dead bytes.
    #[must_use]
    pub fn entry_bytes(&self, place: Place) -> usize {
        let (header, page, at) = self.pages.entry(place.0);
        let outside = header.outside(page, at).map_or(0, |number| self.store().record(number).held_bytes());
        let pages = self.pages.bytes().saturating_sub(self.dead as usize * 2);
        let here = header.len() * pages / self.live_bytes().max(1);
        here + self.index.bytes() / self.len().max(1) + outside
    }

    /// Bytes of the entries that are alive, without what large values take outside.
    #[must_use]
    pub fn live_bytes(&self) -> usize {
        self.live as usize * 2
    }

    /// Bytes that the table takes: pages, index, and what lies outside.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let rare = self.rare.as_ref().map_or(0, |rare| size_of::<Rare>() + rare.store.bytes());
        self.pages.bytes() + self.index.bytes() + rare
    }

    /// Bytes of what finds the entries: the index and the list of pages.
    #[must_use]
    pub fn overhead_bytes(&self) -> usize {
        self.index.bytes() + self.pages.list_bytes()
    }

    /// About how much dropping the table gives back, without a look at all of it.
    #[must_use]
    pub fn rough_bytes(&self) -> usize {
        let rare = self.rare.as_ref().map_or(0, |rare| size_of::<Rare>() + rare.store.flat_bytes());
        let index = self.len() * 64 / 10;
        size_of::<Self>() + (self.live as usize + self.dead as usize) * 2 + index + rare
    }

    #[inline]
    fn keys(&self) -> Keys<'_> {
        Keys { pages: &self.pages, store: self.rare.as_ref().map(|rare| &rare.store) }
    }

    fn store(&self) -> &Store {
        &self.rare.as_ref().expect("an entry with a record is in a table with a store").store
    }

    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Stores a value and links it.
    fn store_new(&mut self, key: &Key<'_>, content: Content<'_>) -> Place {
        let Content { kind, mark, usage, expiry, bytes, len } = content;
        self.count_in(expiry);
        let form = self.form(kind);
        let whole = Header::entry_len(form, expiry.is_some(), key.bytes.len(), len);
        let flat = self.rare.as_ref().map_or(0, |rare| rare.store.flat_bytes());
        let fits = kind == Kind::String
            || whole <= ALWAYS_HERE
            || whole * TABLE_TO_ENTRY <= self.live_bytes() + flat + whole;
        if key.bytes.len() <= MAX_KEY && len <= MAX_VALUE && fits && !is_wide(expiry) {
            let draft = Draft { form, place: Where::Here, mark, usage, expiry, key: key.bytes, value: bytes };
            return self.put(key.hash, &draft, len);
        }
        let mut value = Vec::with_capacity(len);
        value.extend_from_slice(bytes);
        value.resize(len, 0);
        self.put_outside(key, kind, mark, usage, expiry, Large::Bytes(value))
    }

    fn put_outside(
        &mut self,
        key: &Key<'_>,
        kind: Kind,
        mark: Mark,
        usage: u16,
        expiry: Option<Millis>,
        value: Large,
    ) -> Place {
        let key_here = key.bytes.len() <= MAX_KEY && !is_wide(expiry);
        let record = Record { key: (!key_here).then(|| key.bytes.into()), value, shared: 0, kept: 0 };
        let number = self.rare().store.put(record).to_le_bytes();
        let (place, bytes) =
            if key_here { (Where::ValueOutside, key.bytes) } else { (Where::BothOutside, &[][..]) };
        let form = self.form(kind);
        let draft = Draft { form, place, mark, usage, expiry, key: bytes, value: &number };
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
        if let Some(expiry) = draft.expiry {
            self.note_due(number, expiry);
        }
        let reference = pages::reference(number, at);
        let keys = Keys { pages: &self.pages, store: self.rare.as_ref().map(|rare| &rare.store) };
        self.index.add(hash, reference, &keys);
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
        let keys = Keys { pages: &self.pages, store: self.rare.as_ref().map(|rare| &rare.store) };
        self.index.remove(hash, place.0, &keys);
    }

    /// Ends an unlinked entry, and its record if nobody else needs it.
    fn kill_with_record(&mut self, place: Place) -> Option<Record> {
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
        self.bury(number, at);
        true
    }

    /// Makes an entry dead bytes of its page; gives the page back if it was the last.
    fn bury(&mut self, number: usize, at: usize) {
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

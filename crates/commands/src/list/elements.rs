//! The steps that list commands share: find the list, show its elements, put some in, take some out.

use engine::{Class, CommandError, Context};
use keyspace::{Key, ListEnd, ListItem, ListRef, Place};
use resp::{Args, Writer};

/// The event of an element that was put there.
pub(super) fn pushed(end: ListEnd) -> &'static str {
    match end {
        ListEnd::Head => "lpush",
        ListEnd::Tail => "rpush",
    }
}

/// The event of an element that was taken from there.
pub(super) fn popped(end: ListEnd) -> &'static str {
    match end {
        ListEnd::Head => "lpop",
        ListEnd::Tail => "rpop",
    }
}

/// The command that takes elements from there.
pub(super) fn pop_command(end: ListEnd) -> &'static [u8] {
    match end {
        ListEnd::Head => b"LPOP",
        ListEnd::Tail => b"RPOP",
    }
}

pub(super) fn reply_item(reply: &mut Writer<'_>, item: ListItem<'_>) {
    match item {
        ListItem::Bytes(bytes) => reply.bulk(bytes),
        ListItem::Integer(value) => reply.bulk_integer(value),
    }
}

/// The lists of a command.
pub(crate) trait ListAccess {
    /// Where the list under `key` lies, for a command that changes it.
    fn find_list(&mut self, key: &Key<'_>) -> Result<Option<Place>, CommandError>;

    /// The same for a command that reads: counts a hit or a miss.
    fn read_list(&mut self, key: &Key<'_>) -> Result<Option<Place>, CommandError>;

    /// The list at `place`, which [`Context::find_list`] or [`Context::read_list`] gave.
    fn list(&self, key: &Key<'_>, place: Place) -> ListRef<'_>;

    /// Puts elements at an end of the list under `key`, which lies at `found`, or makes the list. Returns how many
    /// elements it has then.
    fn push(&mut self, key: &Key<'_>, found: Option<Place>, end: ListEnd, elements: Args<'_>) -> usize;

    /// Replies with `count` elements from an end of the list at `place`, beginning with the one at the end.
    fn reply_end(&mut self, key: &Key<'_>, place: Place, end: ListEnd, count: usize);

    /// Takes elements from an end of the list at `place`, and the key with the last of them. Returns how many.
    fn pop(&mut self, key: &Key<'_>, place: Place, end: ListEnd, count: usize) -> usize;

    /// Takes some elements from an end of the list at `place`, which has more than these.
    fn take(&mut self, key: &Key<'_>, place: Place, end: ListEnd, count: usize) -> Place;
}

impl ListAccess for Context<'_> {
    fn find_list(&mut self, key: &Key<'_>) -> Result<Option<Place>, CommandError> {
        self.find_typed::<ListRef<'_>>(key)
    }

    fn read_list(&mut self, key: &Key<'_>) -> Result<Option<Place>, CommandError> {
        self.read_typed::<ListRef<'_>>(key)
    }

    fn list(&self, key: &Key<'_>, place: Place) -> ListRef<'_> {
        self.view(key).list(place).expect("a list was found there")
    }

    fn push(&mut self, key: &Key<'_>, found: Option<Place>, end: ListEnd, elements: Args<'_>) -> usize {
        let limit = self.engine.settings.list_limit();
        let table = self.table(key);
        let place = match found {
            None => table.list_create(key, end, elements.iter(), limit),
            Some(place) => table.list_push(place, key, end, elements.iter(), limit),
        };
        let len = self.list(key, place).len();
        self.modified_times(key, elements.len());
        self.notify(Class::LIST, pushed(end), key);
        len
    }

    fn reply_end(&mut self, key: &Key<'_>, place: Place, end: ListEnd, count: usize) {
        let (table, reply) = self.view_and_reply(key);
        let list = table.list(place).expect("a list was found there");
        let count = count.min(list.len());
        let mut left = count;
        reply.array(count);
        let mut visit = |item: ListItem<'_>| {
            reply_item(reply, item);
            left -= 1;
            left > 0
        };
        match end {
            _ if count == 0 => {}
            ListEnd::Head => list.visit_from(0, &mut visit),
            ListEnd::Tail => list.visit_back_from(list.len() - 1, &mut visit),
        }
    }

    fn pop(&mut self, key: &Key<'_>, place: Place, end: ListEnd, count: usize) -> usize {
        let len = self.list(key, place).len();
        let count = count.min(len);
        if count == len {
            self.delete(key, place);
            self.changed((count as u64).saturating_sub(1));
        } else {
            self.take(key, place, end, count);
            self.modified_times(key, count);
        }
        self.notify(Class::LIST, popped(end), key);
        if count == len {
            self.notify(Class::GENERIC, "del", key);
        }
        count
    }

    fn take(&mut self, key: &Key<'_>, place: Place, end: ListEnd, count: usize) -> Place {
        let limit = self.engine.settings.list_limit();
        let (place, dropped) = self.table(key).list_take(place, key, end, count, limit);
        self.discard(dropped);
        place
    }
}

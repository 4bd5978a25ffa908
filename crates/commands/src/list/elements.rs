//! Steps shared by list commands: find the list, reply with elements, push and pop.

use engine::{CommandError, Context, EventClass};
use keyspace::{EntryRef, Key, ListEnd, ListItem, ListRef};
use resp::{Args, Writer};

/// The keyspace event of a push at this end.
pub(super) fn push_event(end: ListEnd) -> &'static str {
    match end {
        ListEnd::Head => "lpush",
        ListEnd::Tail => "rpush",
    }
}

/// The keyspace event of a pop at this end.
pub(super) fn pop_event(end: ListEnd) -> &'static str {
    match end {
        ListEnd::Head => "lpop",
        ListEnd::Tail => "rpop",
    }
}

/// The name of the command that pops at this end.
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

/// Access to the lists of a command's keys.
pub(crate) trait ListAccess {
    /// Finds the list under `key` for writing. Fails with WRONGTYPE if the key has another type.
    fn find_list(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError>;

    /// Finds the list under `key` for reading, and counts a keyspace hit or miss.
    fn read_list(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError>;

    /// The list in the entry `entry_ref`, which [`Context::find_list`] or [`Context::read_list`] returned.
    fn list_at(&self, key: &Key<'_>, entry_ref: EntryRef) -> ListRef<'_>;

    /// Pushes elements at one end of the list at `found`, or creates the list. Returns the new length.
    fn push(&mut self, key: &Key<'_>, found: Option<EntryRef>, end: ListEnd, elements: Args<'_>) -> usize;

    /// Replies with `count` elements from one end of the list at `entry_ref`, starting at that end.
    fn reply_end_elements(&mut self, key: &Key<'_>, entry_ref: EntryRef, end: ListEnd, count: usize);

    /// Pops up to `count` elements at one end of the list at `entry_ref`, and deletes the key if the list is empty.
    /// Returns the number of popped elements.
    fn pop(&mut self, key: &Key<'_>, entry_ref: EntryRef, end: ListEnd, count: usize) -> usize;

    /// Removes `count` elements at one end of the list at `entry_ref`, which must have more elements. The caller
    /// reports the change. Returns the list's new location.
    fn remove_end_elements(
        &mut self,
        key: &Key<'_>,
        entry_ref: EntryRef,
        end: ListEnd,
        count: usize,
    ) -> EntryRef;
}

impl ListAccess for Context<'_> {
    fn find_list(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError> {
        self.find_typed::<ListRef<'_>>(key)
    }

    fn read_list(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError> {
        self.read_typed::<ListRef<'_>>(key)
    }

    fn list_at(&self, key: &Key<'_>, entry_ref: EntryRef) -> ListRef<'_> {
        self.table_ref(key).list(entry_ref).expect("a list was found there")
    }

    fn push(&mut self, key: &Key<'_>, found: Option<EntryRef>, end: ListEnd, elements: Args<'_>) -> usize {
        let limit = self.engine.settings.value_limits.list_limit();
        let table = self.table(key);
        let place = match found {
            None => table.list_create(key, end, elements.iter(), limit),
            Some(place) => table.list_push(place, key, end, elements.iter(), limit),
        };
        let len = self.list_at(key, place).len();
        self.report_changes(key, elements.len());
        self.notify(EventClass::LIST, push_event(end), key);
        len
    }

    fn reply_end_elements(&mut self, key: &Key<'_>, entry_ref: EntryRef, end: ListEnd, count: usize) {
        let (table, reply) = self.table_and_reply(key);
        let list = table.list(entry_ref).expect("a list was found there");
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
            ListEnd::Tail => list.visit_backward_from(list.len() - 1, &mut visit),
        }
    }

    fn pop(&mut self, key: &Key<'_>, entry_ref: EntryRef, end: ListEnd, count: usize) -> usize {
        let len = self.list_at(key, entry_ref).len();
        let count = count.min(len);
        if count == len {
            self.delete(key, entry_ref);
            self.count_changes((count as u64).saturating_sub(1));
        } else {
            self.remove_end_elements(key, entry_ref, end, count);
            self.report_changes(key, count);
        }
        self.notify(EventClass::LIST, pop_event(end), key);
        if count == len {
            self.notify(EventClass::GENERIC, "del", key);
        }
        count
    }

    fn remove_end_elements(
        &mut self,
        key: &Key<'_>,
        entry_ref: EntryRef,
        end: ListEnd,
        count: usize,
    ) -> EntryRef {
        let limit = self.engine.settings.value_limits.list_limit();
        let (place, dropped) = self.table(key).list_remove_ends(entry_ref, key, end, count, limit);
        self.discard(dropped);
        place
    }
}

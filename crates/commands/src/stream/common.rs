//! Steps shared by stream commands: find streams and groups, reply with entries, replicate deliveries to consumers.

use std::borrow::Cow;
use std::sync::Arc;

use engine::{CommandError, Context, EventClass, truncate_at_nul};
use keyspace::{
    EntryRef, Group, Key, Kind, PackedValue, PendingEntry, Stream, StreamEntry, StreamId, StreamRef,
};
use resp::Writer;

use super::id;

/// Access to the streams of a command's keys.
pub(crate) trait StreamAccess<'a> {
    /// Finds the stream under `key` for writing. Fails with WRONGTYPE if the key has another type.
    fn find_stream(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError>;

    /// Finds the stream under `key` for reading, and counts a keyspace hit or miss.
    fn read_stream(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError>;

    /// The stream in the entry `entry_ref`, which [`StreamAccess::find_stream`] or [`StreamAccess::read_stream`]
    /// returned.
    fn stream_at(&self, key: &Key<'_>, entry_ref: EntryRef) -> Cow<'_, Stream>;

    /// Returns the stream together with the reply, so that both can be borrowed at the same time.
    fn stream_and_reply(&mut self, key: &Key<'_>, entry_ref: EntryRef) -> (Cow<'_, Stream>, &mut Writer<'a>);

    /// Edits the stream at `entry_ref`. Returns the stream's new location and the result of the closure.
    fn edit_stream<R>(
        &mut self,
        key: &Key<'_>,
        entry_ref: EntryRef,
        edit: impl FnOnce(&mut Stream) -> R,
    ) -> (EntryRef, R);

    /// Creates an empty stream under `key`.
    fn create_stream(&mut self, key: &Key<'_>) -> EntryRef;

    /// Drops the removed parts of a stream, in the background if they are large.
    fn free_stream_parts(&self, removed: Stream);

    /// Creates a consumer in an existing group if it is missing, and replicates the creation. Returns whether the
    /// consumer was created.
    fn create_consumer(
        &mut self,
        key: &Key<'_>,
        entry_ref: EntryRef,
        group: &[u8],
        consumer: &[u8],
    ) -> (EntryRef, bool);

    /// Creates a consumer like [`StreamAccess::create_consumer`], and updates the time at which the consumer was last
    /// seen.
    fn touch_consumer(
        &mut self,
        key: &Key<'_>,
        entry_ref: EntryRef,
        group: &[u8],
        consumer: &[u8],
    ) -> EntryRef;

    fn report_new_consumer(&mut self, key: &Key<'_>, group: &[u8], consumer: &[u8]);

    /// Replicates a pending entry of a consumer as XCLAIM, with the id that the group has delivered last.
    fn log_pending(
        &mut self,
        key: &Key<'_>,
        group: &[u8],
        last_delivered: StreamId,
        id: StreamId,
        pending: &PendingEntry,
    );

    /// Replicates the group's last delivered id and its read counter.
    fn log_group(&mut self, key: &Key<'_>, name: &[u8], group: &Group);
}

impl<'a> StreamAccess<'a> for Context<'a> {
    fn find_stream(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError> {
        self.find_typed::<StreamRef<'_>>(key)
    }

    fn read_stream(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError> {
        self.read_typed::<StreamRef<'_>>(key)
    }

    fn stream_at(&self, key: &Key<'_>, entry_ref: EntryRef) -> Cow<'_, Stream> {
        self.table_ref(key).stream(entry_ref).expect("a stream was found there").to_stream()
    }

    fn stream_and_reply(&mut self, key: &Key<'_>, entry_ref: EntryRef) -> (Cow<'_, Stream>, &mut Writer<'a>) {
        let (table, reply) = self.table_and_reply(key);
        (table.stream(entry_ref).expect("a stream was found there").to_stream(), reply)
    }

    fn edit_stream<R>(
        &mut self,
        key: &Key<'_>,
        entry_ref: EntryRef,
        edit: impl FnOnce(&mut Stream) -> R,
    ) -> (EntryRef, R) {
        self.table(key).edit_stream(entry_ref, key, edit)
    }

    fn create_stream(&mut self, key: &Key<'_>) -> EntryRef {
        self.table(key).insert(key, PackedValue::empty(Kind::Stream), None)
    }

    fn free_stream_parts(&self, removed: Stream) {
        self.discard(removed.into_dropped());
    }

    fn create_consumer(
        &mut self,
        key: &Key<'_>,
        entry_ref: EntryRef,
        group: &[u8],
        consumer: &[u8],
    ) -> (EntryRef, bool) {
        let now = self.now;
        let (place, is_new) = self.edit_stream(key, entry_ref, |stream| {
            stream.group_mut(group).is_some_and(|group| group.create_consumer(consumer, now))
        });
        if is_new {
            self.report_new_consumer(key, group, consumer);
        }
        (place, is_new)
    }

    fn touch_consumer(
        &mut self,
        key: &Key<'_>,
        entry_ref: EntryRef,
        group: &[u8],
        consumer: &[u8],
    ) -> EntryRef {
        let now = self.now;
        let (place, is_new) = self.edit_stream(key, entry_ref, |stream| {
            let Some(group) = stream.group_mut(group) else { return false };
            let is_new = group.create_consumer(consumer, now);
            if let Some(consumer) = group.consumer_mut(consumer) {
                consumer.last_seen = now;
            }
            is_new
        });
        if is_new {
            self.report_new_consumer(key, group, consumer);
        }
        place
    }

    fn report_new_consumer(&mut self, key: &Key<'_>, group: &[u8], consumer: &[u8]) {
        self.report_modified(key);
        self.notify(EventClass::STREAM, "xgroup-createconsumer", key);
        self.log_effect(&[b"XGROUP", b"CREATECONSUMER", key.bytes(), group, consumer]);
    }

    fn log_pending(
        &mut self,
        key: &Key<'_>,
        group: &[u8],
        last_delivered: StreamId,
        id: StreamId,
        pending: &PendingEntry,
    ) {
        let (mut time, mut count) = (itoa::Buffer::new(), itoa::Buffer::new());
        self.log_effect(&[
            b"XCLAIM",
            key.bytes(),
            group,
            &pending.consumer,
            b"0",
            &id::format_id(id),
            b"TIME",
            time.format(pending.delivery_time.0).as_bytes(),
            b"RETRYCOUNT",
            count.format(pending.delivery_count).as_bytes(),
            b"FORCE",
            b"JUSTID",
            b"LASTID",
            &id::format_id(last_delivered),
        ]);
    }

    fn log_group(&mut self, key: &Key<'_>, name: &[u8], group: &Group) {
        let read = group.entries_read.map_or_else(|| "-1".to_owned(), |read| read.to_string());
        let last = id::format_id(group.last_delivered);
        self.log_effect(&[b"XGROUP", b"SETID", key.bytes(), name, &last, b"ENTRIESREAD", read.as_bytes()]);
    }
}

/// The consumer's name as shared by the group, so that the name is stored only once.
pub(super) fn consumer_name(group: &Group, consumer: &[u8]) -> Arc<[u8]> {
    group.consumer_name(consumer).unwrap_or_else(|| consumer.into())
}

/// The NOGROUP error for a missing key or group.
pub(super) fn no_group_error(key: &[u8], group: &[u8], suffix: &str) -> CommandError {
    let (key, group) =
        (String::from_utf8_lossy(truncate_at_nul(key)), String::from_utf8_lossy(truncate_at_nul(group)));
    CommandError::Text(format!("NOGROUP No such key '{key}' or consumer group '{group}'{suffix}").into())
}

/// The NOGROUP error for a missing group of an existing key.
pub(super) fn no_such_group_error(key: &[u8], group: &[u8]) -> CommandError {
    let (key, group) =
        (String::from_utf8_lossy(truncate_at_nul(key)), String::from_utf8_lossy(truncate_at_nul(group)));
    CommandError::Text(format!("NOGROUP No such consumer group '{group}' for key name '{key}'").into())
}

/// Replies with an id.
pub(super) fn reply_id(reply: &mut Writer<'_>, id: StreamId) {
    reply.bulk(&id::format_id(id));
}

/// Replies with an entry: its id, then field names and values.
pub(super) fn reply_entry(reply: &mut Writer<'_>, entry: &StreamEntry<'_>) {
    reply.array(2);
    reply_id(reply, entry.id);
    reply_fields(reply, entry);
}

/// Replies with the field names and values of an entry.
pub(super) fn reply_fields(reply: &mut Writer<'_>, entry: &StreamEntry<'_>) {
    reply.array(2 * entry.len());
    entry.for_each(&mut |name, value| {
        reply.bulk(name);
        reply.bulk(value);
    });
}

/// Replies with up to `count` entries, or with all entries if `count` is 0.
pub(super) fn reply_entries<'e>(
    reply: &mut Writer<'_>,
    entries: impl Iterator<Item = StreamEntry<'e>>,
    count: usize,
) {
    let most = if count == 0 { usize::MAX } else { count };
    let entries: Vec<_> = entries.take(most).collect();
    reply.array(entries.len());
    entries.iter().for_each(|entry| reply_entry(reply, entry));
}

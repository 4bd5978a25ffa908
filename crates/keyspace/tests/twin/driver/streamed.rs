//! Operations on streams.

use keyspace::{Group, Stream, StreamId, StreamNodeBounds, StreamTrim, TrimPrecision};

use super::super::model::StreamEntries;
use super::*;

/// Node limits so low that streams have many nodes.
const BOUNDS: StreamNodeBounds = StreamNodeBounds { max_bytes: 400, max_entries: 9 };

impl TestDriver {
    fn random_stream(&mut self) -> Option<(u16, Vec<u8>, Entry)> {
        let (db, bytes) = self.random_key_name();
        let old = self.model.get(&(db, bytes.clone())).cloned();
        let entry = old.unwrap_or(Entry { data: EntryData::Stream(StreamEntries::default()), expiry: None });
        if !matches!(entry.data, EntryData::Stream(_)) {
            self.delete_key(db, &bytes);
            return None;
        }
        Some((db, bytes, entry))
    }

    fn edit_stream<R>(&self, db: u16, bytes: &[u8], edit: impl FnOnce(&mut Stream) -> R) -> R {
        self.with_key(db, bytes, |table, key, place| {
            let place = place.unwrap_or_else(|| table.insert(key, PackedValue::empty(Kind::Stream), None));
            table.edit_stream(place, key, edit).1
        })
    }

    /// Adds entries to a new or existing stream, and assigns some of them to consumers.
    pub(super) fn stream_add(&mut self) {
        let Some((db, bytes, mut entry)) = self.random_stream() else { return };
        let EntryData::Stream(twin) = &mut entry.data else { panic!("seen above") };
        let times = if self.random(10) == 0 { self.limits.fields } else { 1 + self.random(5) };
        for _ in 0..times {
            let ahead = StreamId { millis: self.random(2), sequence: 1 + self.random(3) };
            let fields = 1 + self.random(3);
            let words: Vec<Vec<u8>> =
                (0..fields).flat_map(|name| [name.to_string().into_bytes(), self.random_value()]).collect();
            let id = self.edit_stream(db, &bytes, |stream| {
                let last = stream.head().last_id;
                let sequence = if ahead.millis == 0 { last.sequence } else { 0 } + ahead.sequence;
                let id = StreamId { millis: last.millis + ahead.millis, sequence };
                stream.append(id, &words.iter().map(Vec::as_slice).collect::<Vec<_>>(), BOUNDS);
                id
            });
            twin.field_names.insert(id, words);
            if self.random(3) == 0 {
                let (consumer, count) =
                    (format!("consumer {}", self.random(3)).into_bytes(), 1 + self.random(9));
                let now = self.now;
                self.edit_stream(db, &bytes, |stream| {
                    if stream.group(StreamEntries::GROUP).is_none() {
                        stream.insert_group(StreamEntries::GROUP, Group::default());
                    }
                    let group = stream.group_mut(StreamEntries::GROUP).expect("it was made");
                    group.create_consumer(&consumer, now);
                    let name = group.consumer_name(&consumer).expect("it was made");
                    group.assign(id, &name, now, count);
                });
                twin.pending_entries.insert(id, (consumer, count));
            }
        }
        self.record_added_key(db, &bytes, entry);
        self.compare_key(db, &bytes);
    }

    /// Trims a stream, or deletes or acknowledges one of its entries.
    pub(super) fn stream_remove(&mut self) {
        let Some((db, bytes, mut entry)) = self.random_stream() else { return };
        let EntryData::Stream(twin) = &mut entry.data else { panic!("seen above") };
        if !self.model.contains_key(&(db, bytes.clone())) {
            return;
        }
        let index = self.random(twin.field_names.len() as u64 + 1) as usize;
        let id = twin.field_names.keys().nth(index).copied();
        match (self.random(4), id) {
            (0, _) => {
                let cut = self.edit_stream(db, &bytes, |stream| {
                    let (cut, gone) = stream.trim(StreamTrim::MaxLen(index as u64), TrimPrecision::Exact);
                    drop(gone.into_dropped());
                    cut
                });
                assert_eq!(cut, twin.field_names.len() as u64 - index as u64);
                twin.field_names = twin
                    .field_names
                    .split_off(&twin.field_names.keys().nth(cut as usize).copied().unwrap_or(StreamId::MAX));
            }
            (1, Some(id)) => {
                assert!(self.edit_stream(db, &bytes, |stream| stream.delete(id)));
                twin.field_names.remove(&id);
            }
            (_, Some(id)) => {
                let was = self.edit_stream(db, &bytes, |stream| {
                    stream.group_mut(StreamEntries::GROUP).is_some_and(|group| group.acknowledge(id))
                });
                assert_eq!(was, twin.pending_entries.remove(&id).is_some());
            }
            (_, None) => {}
        }
        self.record_added_key(db, &bytes, entry);
        self.compare_key(db, &bytes);
    }
}

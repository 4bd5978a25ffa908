//! Consumer groups and their pending entries.

use std::sync::{Arc, OnceLock};

use clock::Millis;

use super::{Stream, StreamId};
use crate::tree::Map;

/// A consumer group.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// The id of the last entry delivered to the group.
    pub last_delivered: StreamId,
    /// Number of entries read up to `last_delivered`; `None` if unknown.
    pub entries_read: Option<u64>,
    pub(super) pending: Map<StreamId, PendingEntry>,
    /// Pending entries by delivery time. Built when first used.
    by_time: OnceLock<Map<(Millis, StreamId), ()>>,
    pub(super) consumers: Map<Arc<[u8]>, Consumer>,
}

/// An entry that was delivered to a consumer but not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingEntry {
    /// The consumer that owns the entry.
    pub consumer: Arc<[u8]>,
    /// Time of the last delivery.
    pub delivery_time: Millis,
    /// Number of deliveries.
    pub delivery_count: u64,
}

/// A consumer of a group.
#[derive(Debug, Clone)]
pub struct Consumer {
    /// Time of the consumer's last attempt to read or claim entries.
    pub last_seen: Millis,
    /// Time at which the consumer last received an entry; `None` if it never did.
    pub last_active: Option<Millis>,
    pub(super) pending: Map<StreamId, ()>,
}

impl Consumer {
    /// Returns the number of pending entries.
    #[must_use]
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the ids of pending entries from `from` on, ascending.
    pub fn pending_from(&self, from: StreamId) -> impl Iterator<Item = StreamId> {
        self.pending.iter_from(&from).map(|(id, ())| *id)
    }
}

impl Group {
    /// Creates a group without consumers. `last_delivered` is the id of the last entry that counts as delivered.
    #[must_use]
    pub fn new(last_delivered: StreamId, entries_read: Option<u64>) -> Self {
        Self { last_delivered, entries_read, ..Self::default() }
    }

    /// Returns the number of pending entries.
    #[must_use]
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the number of consumers.
    #[must_use]
    pub fn consumer_count(&self) -> usize {
        self.consumers.len()
    }

    /// Returns the delivery state of an entry, if it is pending.
    #[must_use]
    pub fn pending(&self, id: StreamId) -> Option<&PendingEntry> {
        self.pending.get(&id)
    }

    /// Returns the pending entries with ids from `from` on, ascending.
    pub fn pending_from(&self, from: StreamId) -> impl Iterator<Item = (StreamId, &PendingEntry)> {
        self.pending.iter_from(&from).map(|(id, pending)| (*id, pending))
    }

    /// Returns the pending entries ordered by delivery time, oldest first.
    pub fn pending_by_time(&self) -> impl Iterator<Item = (Millis, StreamId)> {
        let by_time = self.by_time.get_or_init(|| {
            let mut by_time = Map::default();
            for (id, pending) in self.pending.iter() {
                by_time.insert((pending.delivery_time, *id), ());
            }
            by_time
        });
        by_time.iter().map(|(entry, ())| *entry)
    }

    /// Returns the highest pending id.
    #[must_use]
    pub fn last_pending(&self) -> Option<StreamId> {
        self.pending.last().map(|(id, _)| *id)
    }

    /// Looks up a consumer by name.
    #[must_use]
    pub fn consumer(&self, name: &[u8]) -> Option<&Consumer> {
        self.consumers.get(name)
    }

    /// Returns the name of an existing consumer as a shared pointer.
    #[must_use]
    pub fn consumer_name(&self, consumer: &[u8]) -> Option<Arc<[u8]>> {
        let (name, _) = self.consumers.iter_from(consumer).next()?;
        (**name == *consumer).then(|| name.clone())
    }

    /// Returns a consumer, for updating its times.
    pub fn consumer_mut(&mut self, name: &[u8]) -> Option<&mut Consumer> {
        self.consumers.get_mut(name)
    }

    /// Returns the consumers ordered by name.
    pub fn consumers(&self) -> impl Iterator<Item = (&Arc<[u8]>, &Consumer)> {
        self.consumers.iter()
    }

    /// Creates a consumer. Returns whether it is new.
    pub fn create_consumer(&mut self, name: &[u8], now: Millis) -> bool {
        let is_new = !self.consumers.contains(name);
        if is_new {
            let consumer = Consumer { last_seen: now, last_active: None, pending: Map::default() };
            self.consumers.insert(name.into(), consumer);
        }
        is_new
    }

    /// Assigns an entry to an existing consumer, even if another consumer owns the entry.
    pub fn assign(&mut self, id: StreamId, consumer: &Arc<[u8]>, delivery_time: Millis, delivery_count: u64) {
        let pending = PendingEntry { consumer: consumer.clone(), delivery_time, delivery_count };
        let before = self.pending.insert(id, pending);
        if let Some(by_time) = self.by_time.get_mut() {
            if let Some(before) = &before {
                by_time.remove(&(before.delivery_time, id));
            }
            by_time.insert((delivery_time, id), ());
        }
        let moved = match before {
            Some(before) if before.consumer == *consumer => return,
            Some(before) => Some(before.consumer),
            None => None,
        };
        if let Some(consumer) = moved.and_then(|name| self.consumers.get_mut(&*name)) {
            consumer.pending.remove(&id);
        }
        if let Some(consumer) = self.consumers.get_mut(&**consumer) {
            consumer.pending.insert(id, ());
        }
    }

    /// Removes an entry from the pending entries. Returns whether the entry was pending.
    pub fn acknowledge(&mut self, id: StreamId) -> bool {
        let Some(pending) = self.remove_pending(id) else { return false };
        if let Some(consumer) = self.consumers.get_mut(&*pending.consumer) {
            consumer.pending.remove(&id);
        }
        true
    }

    fn remove_pending(&mut self, id: StreamId) -> Option<PendingEntry> {
        let pending = self.pending.remove(&id)?;
        if let Some(by_time) = self.by_time.get_mut() {
            by_time.remove(&(pending.delivery_time, id));
        }
        Some(pending)
    }

    /// Removes a consumer and its pending entries. Returns the number of those entries; `None` if there is no such
    /// consumer.
    pub fn remove_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let consumer = self.consumers.remove(name)?;
        consumer.pending.iter().for_each(|(id, ())| drop(self.remove_pending(*id)));
        Some(consumer.pending.len())
    }

    /// Estimates the memory of the group in bytes.
    pub(super) fn estimated_bytes(&self) -> usize {
        const PENDING_BYTES: usize = 96;
        const CONSUMER_BYTES: usize = 128;
        const TIME_INDEX_BYTES: usize = 24;
        let times = self.by_time.get().map_or(0, Map::len);
        self.pending.len() * PENDING_BYTES
            + times * TIME_INDEX_BYTES
            + self.consumers.len() * CONSUMER_BYTES
            + size_of::<Self>()
    }
}

impl Stream {
    /// Returns the number of groups.
    #[must_use]
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Returns the groups ordered by name.
    pub fn groups(&self) -> impl Iterator<Item = (&Arc<[u8]>, &Group)> {
        self.groups.iter()
    }

    /// Looks up a group by name.
    #[must_use]
    pub fn group(&self, name: &[u8]) -> Option<&Group> {
        self.groups.get(name)
    }

    /// Looks up a group for editing.
    pub fn group_mut(&mut self, name: &[u8]) -> Option<&mut Group> {
        self.groups.get_mut(name)
    }

    /// Adds a group that does not exist yet.
    pub fn insert_group(&mut self, name: &[u8], group: Group) {
        self.groups.insert(name.into(), group);
    }

    /// Removes a group and returns it for the caller to drop.
    pub fn remove_group(&mut self, name: &[u8]) -> Option<Self> {
        let group = self.groups.remove(name)?;
        let mut gone = Self::default();
        gone.insert_group(name, group);
        Some(gone)
    }

    /// Returns whether an entry is pending in any group.
    #[must_use]
    pub fn is_pending(&self, id: StreamId) -> bool {
        self.groups.iter().any(|(_, group)| group.pending.contains(&id))
    }
}

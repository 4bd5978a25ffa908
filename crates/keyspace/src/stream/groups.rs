//! Groups of consumers, and the entries that were given to each consumer.

use std::sync::{Arc, OnceLock};

use clock::Millis;

use super::{Stream, StreamId};
use crate::tree::Map;

/// A group of consumers.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// The id that was given out last.
    pub last: StreamId,
    /// How many entries were read up to there, as far as that is known.
    pub read: Option<u64>,
    pub(super) pending: Map<StreamId, Pending>,
    /// The pending entries by the time of their delivery; made when that is first asked for.
    by_time: OnceLock<Map<(Millis, StreamId), ()>>,
    pub(super) consumers: Map<Arc<[u8]>, Consumer>,
}

/// An entry that was given to a consumer, which has not said that it is done with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// The consumer that it was given to.
    pub consumer: Arc<[u8]>,
    /// When it was last delivered.
    pub delivered: Millis,
    /// How often it was delivered.
    pub count: u64,
}

/// One of a group.
#[derive(Debug, Clone)]
pub struct Consumer {
    /// When it last tried to read or to claim something.
    pub seen: Millis,
    /// When it last got something, if it ever did.
    pub active: Option<Millis>,
    pub(super) pending: Map<StreamId, ()>,
}

impl Consumer {
    /// How many entries are pending.
    #[must_use]
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// The entries that are pending, from an id on.
    pub fn pending_from(&self, from: StreamId) -> impl Iterator<Item = StreamId> {
        self.pending.iter_from(&from).map(|(id, ())| *id)
    }
}

impl Group {
    /// A group that has given out the entries up to this id.
    #[must_use]
    pub fn new(last: StreamId, read: Option<u64>) -> Self {
        Self { last, read, ..Self::default() }
    }

    /// How many entries are pending.
    #[must_use]
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// How many consumers there are.
    #[must_use]
    pub fn consumer_count(&self) -> usize {
        self.consumers.len()
    }

    /// An entry, if it is pending.
    #[must_use]
    pub fn pending(&self, id: StreamId) -> Option<&Pending> {
        self.pending.get(&id)
    }

    /// The entries that are pending, from an id on.
    pub fn pending_from(&self, from: StreamId) -> impl Iterator<Item = (StreamId, &Pending)> {
        self.pending.iter_from(&from).map(|(id, pending)| (*id, pending))
    }

    /// The entries that are pending, the longest pending first.
    pub fn pending_by_time(&self) -> impl Iterator<Item = (Millis, StreamId)> {
        let by_time = self.by_time.get_or_init(|| {
            let mut by_time = Map::default();
            for (id, pending) in self.pending.iter() {
                by_time.insert((pending.delivered, *id), ());
            }
            by_time
        });
        by_time.iter().map(|(entry, ())| *entry)
    }

    /// The last that is pending.
    #[must_use]
    pub fn last_pending(&self) -> Option<StreamId> {
        self.pending.last().map(|(id, _)| *id)
    }

    /// A consumer.
    #[must_use]
    pub fn consumer(&self, name: &[u8]) -> Option<&Consumer> {
        self.consumers.get(name)
    }

    /// The name of a consumer that is there, to be shared.
    #[must_use]
    pub fn name_of(&self, consumer: &[u8]) -> Option<Arc<[u8]>> {
        let (name, _) = self.consumers.iter_from(consumer).next()?;
        (**name == *consumer).then(|| name.clone())
    }

    /// A consumer whose times are to be noted.
    pub fn consumer_mut(&mut self, name: &[u8]) -> Option<&mut Consumer> {
        self.consumers.get_mut(name)
    }

    /// The consumers, by name.
    pub fn consumers(&self) -> impl Iterator<Item = (&Arc<[u8]>, &Consumer)> {
        self.consumers.iter()
    }

    /// Makes a consumer; says whether it was not there.
    pub fn create_consumer(&mut self, name: &[u8], now: Millis) -> bool {
        let is_new = !self.consumers.contains(name);
        if is_new {
            let consumer = Consumer { seen: now, active: None, pending: Map::default() };
            self.consumers.insert(name.into(), consumer);
        }
        is_new
    }

    /// Gives an entry to a consumer, which must be there, whether or not another had it.
    pub fn assign(&mut self, id: StreamId, consumer: &Arc<[u8]>, delivered: Millis, count: u64) {
        let pending = Pending { consumer: consumer.clone(), delivered, count };
        let before = self.pending.insert(id, pending);
        if let Some(by_time) = self.by_time.get_mut() {
            if let Some(before) = &before {
                by_time.remove(&(before.delivered, id));
            }
            by_time.insert((delivered, id), ());
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

    /// An entry is done with; says whether it was pending.
    pub fn acknowledge(&mut self, id: StreamId) -> bool {
        let Some(pending) = self.take_pending(id) else { return false };
        if let Some(consumer) = self.consumers.get_mut(&*pending.consumer) {
            consumer.pending.remove(&id);
        }
        true
    }

    fn take_pending(&mut self, id: StreamId) -> Option<Pending> {
        let pending = self.pending.remove(&id)?;
        if let Some(by_time) = self.by_time.get_mut() {
            by_time.remove(&(pending.delivered, id));
        }
        Some(pending)
    }

    /// Removes a consumer with all that is pending; says how much that was.
    pub fn remove_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let consumer = self.consumers.remove(name)?;
        consumer.pending.iter().for_each(|(id, ())| drop(self.take_pending(*id)));
        Some(consumer.pending.len())
    }

    /// About how many bytes it takes.
    pub(super) fn rough_bytes(&self) -> usize {
        const OF_PENDING: usize = 96;
        const OF_CONSUMER: usize = 128;
        const OF_TIME: usize = 24;
        let times = self.by_time.get().map_or(0, Map::len);
        self.pending.len() * OF_PENDING
            + times * OF_TIME
            + self.consumers.len() * OF_CONSUMER
            + size_of::<Self>()
    }
}

impl Stream {
    /// How many groups there are.
    #[must_use]
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// The groups, by name.
    pub fn groups(&self) -> impl Iterator<Item = (&Arc<[u8]>, &Group)> {
        self.groups.iter()
    }

    /// A group.
    #[must_use]
    pub fn group(&self, name: &[u8]) -> Option<&Group> {
        self.groups.get(name)
    }

    /// A group, to be changed.
    pub fn group_mut(&mut self, name: &[u8]) -> Option<&mut Group> {
        self.groups.get_mut(name)
    }

    /// Adds a group that is not there.
    pub fn insert_group(&mut self, name: &[u8], group: Group) {
        self.groups.insert(name.into(), group);
    }

    /// Takes a group out, to be dropped.
    pub fn remove_group(&mut self, name: &[u8]) -> Option<Self> {
        let group = self.groups.remove(name)?;
        let mut gone = Self::default();
        gone.insert_group(name, group);
        Some(gone)
    }

    /// Whether an entry is pending in any group.
    #[must_use]
    pub fn is_pending(&self, id: StreamId) -> bool {
        self.groups.iter().any(|(_, group)| group.pending.contains(&id))
    }
}

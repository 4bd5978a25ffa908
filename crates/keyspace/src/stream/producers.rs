//! Idempotent producers: which of a producer's messages are in the stream already.
//!
//! A producer gives each message an id of its own, the iid, and sends a message again when it does not know whether it
//! arrived. The stream keeps the iids of each producer with the ids of their entries for some time, at most so many for
//! each. The age of an iid is that of its entry, whose id begins with the milliseconds of its time. Facts of Redis 8.6.

use std::sync::Arc;

use clock::Millis;

use super::{Stream, StreamId};
use crate::tree::Map;

type Name = Arc<[u8]>;

/// For how long iids are kept, and how many of each producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdempotenceBounds {
    /// Seconds.
    pub duration: u64,
    /// Iids of one producer.
    pub most: u64,
}

/// The producers of a stream.
#[derive(Debug, Clone)]
pub struct Producers {
    pub(super) bounds: IdempotenceBounds,
    pub(super) by_name: Map<Name, Producer>,
    /// Each iid's entry and its producer, the oldest first.
    by_age: Map<(StreamId, Name), ()>,
    /// Bytes of names and iids.
    bytes: usize,
    pub(super) totals: IdempotenceTotals,
    /// The producer that was read last, while a stream is read from a file.
    last: Option<Name>,
}

/// Messages with an iid since the stream was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IdempotenceTotals {
    /// Those that were added.
    pub added: u64,
    /// Those that had been added before.
    pub duplicates: u64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Producer {
    pub(super) iids: Map<Name, StreamId>,
    pub(super) by_age: Map<(StreamId, Name), ()>,
}

/// About the bytes that an iid takes beside its own.
const OF_IID: usize = 160;

impl Producers {
    pub(super) fn new(bounds: IdempotenceBounds) -> Self {
        Self {
            bounds,
            by_name: Map::default(),
            by_age: Map::default(),
            bytes: 0,
            totals: IdempotenceTotals::default(),
            last: None,
        }
    }

    /// For how long iids are kept, and how many.
    #[must_use]
    pub fn bounds(&self) -> IdempotenceBounds {
        self.bounds
    }

    /// The messages with an iid so far.
    #[must_use]
    pub fn totals(&self) -> IdempotenceTotals {
        self.totals
    }

    /// How many producers are known.
    #[must_use]
    pub fn producer_count(&self) -> usize {
        self.by_name.len()
    }

    /// How many iids are known.
    #[must_use]
    pub fn iid_count(&self) -> usize {
        self.by_name.iter().map(|(_, producer)| producer.iids.len()).sum()
    }

    /// The entry that a producer added with this iid.
    #[must_use]
    pub fn find(&self, producer: &[u8], iid: &[u8]) -> Option<StreamId> {
        self.by_name.get(producer)?.iids.get(iid).copied()
    }

    pub(super) fn rough_bytes(&self) -> usize {
        self.bytes + self.by_age.len() * OF_IID + size_of::<Self>()
    }

    /// Notes the entry of an iid that is not known.
    pub(super) fn insert(&mut self, producer: &[u8], iid: &[u8], id: StreamId) {
        if !self.by_name.contains(producer) {
            self.by_name.insert(producer.into(), Producer::default());
            self.bytes += producer.len() + size_of::<Producer>();
        }
        let iid: Name = iid.into();
        self.by_age.insert((id, producer.into()), ());
        self.bytes += 2 * iid.len();
        if let Some(producer) = self.by_name.get_mut(producer) {
            producer.by_age.insert((id, iid.clone()), ());
            producer.iids.insert(iid.clone(), id);
        }
        self.shrink(producer, &(id, iid));
    }

    /// Adds a producer that is still to be given its iids, from a file; says whether it was not there.
    pub(super) fn add_producer(&mut self, name: &[u8]) -> bool {
        let name: Name = name.into();
        self.last = Some(name.clone());
        self.bytes += name.len() + size_of::<Producer>();
        self.by_name.insert(name, Producer::default()).is_none()
    }

    /// Adds an iid to the producer that was added last; says whether it was not there.
    pub(super) fn add_iid_of_last(&mut self, iid: &[u8], id: StreamId) -> bool {
        let Some(name) = self.last.clone() else { return false };
        let is_new = self.find(&name, iid).is_none();
        if is_new {
            self.insert(&name, iid, id);
        }
        is_new
    }

    /// Forgets the oldest iids of a producer that has too many, but not `newest`: two iids of one entry are of the same
    /// age by its ID, and the one that was just inserted stays.
    fn shrink(&mut self, name: &[u8], newest: &(StreamId, Name)) {
        while let Some(oldest) = self.oldest_surplus(name, newest) {
            self.forget(name, oldest);
        }
    }

    /// The iid that a producer with too many is to forget next.
    fn oldest_surplus(&self, name: &[u8], newest: &(StreamId, Name)) -> Option<(StreamId, Name)> {
        let producer = self.by_name.get(name)?;
        if producer.iids.len() as u64 <= self.bounds.most {
            return None;
        }
        let mut by_age = producer.by_age.iter().map(|(iid, ())| iid);
        by_age.find(|iid| *iid != newest).cloned()
    }

    fn forget(&mut self, name: &[u8], (id, iid): (StreamId, Name)) {
        let Some(producer) = self.by_name.get_mut(name) else { return };
        producer.iids.remove(&*iid);
        producer.by_age.remove(&(id, iid.clone()));
        self.bytes = self.bytes.saturating_sub(2 * iid.len());
        let (is_last_of_entry, is_empty) = {
            let next = producer.by_age.iter_from(&(id, Name::default())).next();
            (next.is_none_or(|((of, _), ())| *of != id), producer.iids.is_empty())
        };
        if is_last_of_entry {
            self.by_age.remove(&(id, Name::from(name)));
        }
        if is_empty {
            self.by_name.remove(name);
            self.bytes = self.bytes.saturating_sub(name.len() + size_of::<Producer>());
        }
    }

    /// Forgets iids whose time has passed.
    fn expire(&mut self, now: Millis) {
        let kept = self.bounds.duration.saturating_mul(1000);
        let Ok(now) = u64::try_from(now.0) else { return };
        while let Some(((id, name), ())) = self.by_age.first()
            && id.millis.saturating_add(kept) <= now
        {
            let (id, name) = (*id, name.clone());
            while let Some(producer) = self.by_name.get(&*name)
                && let Some((oldest, ())) = producer.by_age.first()
                && oldest.0 <= id
            {
                let oldest = oldest.clone();
                self.forget(&name, oldest);
            }
            self.by_age.remove(&(id, name));
        }
    }
}

impl Stream {
    /// The idempotent producers, if there ever were any.
    #[must_use]
    pub fn producers(&self) -> Option<&Producers> {
        self.producers.as_deref()
    }

    /// Sets for how long iids are kept and how many. Those that are known are forgotten.
    pub fn set_idempotence(&mut self, bounds: IdempotenceBounds) {
        let totals = self.producers.as_ref().map_or_else(Default::default, |producers| producers.totals);
        self.producers = Some(Arc::new(Producers { totals, ..Producers::new(bounds) }));
    }

    /// The producers, to be changed; `bounds` are those of a stream that has none yet.
    fn producers_mut(&mut self, bounds: IdempotenceBounds) -> &mut Producers {
        Arc::make_mut(self.producers.get_or_insert_with(|| Arc::new(Producers::new(bounds))))
    }

    /// The entry that a producer has added with this iid, which then counts as sent again. Iids whose time has passed
    /// are forgotten first.
    pub fn find_duplicate(&mut self, producer: &[u8], iid: &[u8], now: Millis) -> Option<StreamId> {
        let producers = Arc::make_mut(self.producers.as_mut()?);
        producers.expire(now);
        let found = producers.find(producer, iid)?;
        producers.totals.duplicates += 1;
        Some(found)
    }

    /// Notes the entry that a producer added with an iid that is not known; `bounds` are those of a stream that has none
    /// yet.
    pub fn add_iid(&mut self, producer: &[u8], iid: &[u8], id: StreamId, bounds: IdempotenceBounds) {
        let producers = self.producers_mut(bounds);
        producers.totals.added += 1;
        producers.insert(producer, iid, id);
    }
}

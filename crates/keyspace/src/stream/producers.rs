//! Idempotent producers: detects messages that are already in the stream.
//!
//! A producer gives each message an id, the iid, and sends the message again if it does not know whether the message
//! arrived. The stream remembers the iids of each producer and their entry ids, limited by time and by number. The age
//! of an iid is that of its entry, whose id starts with a timestamp. The behaviour is that of Redis 8.6.

use std::sync::Arc;

use clock::Millis;

use super::{Stream, StreamId};
use crate::tree::Map;

type Name = Arc<[u8]>;

/// Limits on how long, and how many, iids are remembered per producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdempotenceBounds {
    /// Number of seconds for which an iid is remembered.
    pub duration_secs: u64,
    /// Maximum number of iids per producer.
    pub max_iids: u64,
}

/// The idempotent producers of a stream.
#[derive(Debug, Clone)]
pub struct Producers {
    pub(super) bounds: IdempotenceBounds,
    pub(super) by_name: Map<Name, Producer>,
    /// The entry id of each iid with the producer's name, oldest first.
    by_age: Map<(StreamId, Name), ()>,
    /// Total bytes of names and iids.
    bytes: usize,
    pub(super) lifetime_totals: IdempotenceTotals,
    /// While the stream is loaded, the producer that was read last.
    last_loaded_producer: Option<Name>,
}

/// Message counts since the stream was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IdempotenceTotals {
    /// Number of messages that were added.
    pub added: u64,
    /// Number of messages that were duplicates and therefore not added.
    pub duplicates: u64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Producer {
    pub(super) iids: Map<Name, StreamId>,
    pub(super) by_age: Map<(StreamId, Name), ()>,
}

/// Approximate overhead per iid in bytes.
const IID_OVERHEAD_BYTES: usize = 160;

impl Producers {
    pub(super) fn new(bounds: IdempotenceBounds) -> Self {
        Self {
            bounds,
            by_name: Map::default(),
            by_age: Map::default(),
            bytes: 0,
            lifetime_totals: IdempotenceTotals::default(),
            last_loaded_producer: None,
        }
    }

    /// Returns the retention limits of iids.
    #[must_use]
    pub fn bounds(&self) -> IdempotenceBounds {
        self.bounds
    }

    /// Returns the message counts so far.
    #[must_use]
    pub fn lifetime_totals(&self) -> IdempotenceTotals {
        self.lifetime_totals
    }

    /// Returns the number of known producers.
    #[must_use]
    pub fn producer_count(&self) -> usize {
        self.by_name.len()
    }

    /// Returns the number of known iids.
    #[must_use]
    pub fn iid_count(&self) -> usize {
        self.by_name.iter().map(|(_, producer)| producer.iids.len()).sum()
    }

    /// Returns the entry that the producer added with this iid.
    #[must_use]
    pub fn find(&self, producer: &[u8], iid: &[u8]) -> Option<StreamId> {
        self.by_name.get(producer)?.iids.get(iid).copied()
    }

    pub(super) fn estimated_bytes(&self) -> usize {
        self.bytes + self.by_age.len() * IID_OVERHEAD_BYTES + size_of::<Self>()
    }

    /// Records a new iid and the id of its entry.
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
        self.remove_surplus_iids(producer, id, &iid);
    }

    /// Adds a producer read from a file, whose iids are added next. Returns whether it is new.
    pub(super) fn add_producer(&mut self, name: &[u8]) -> bool {
        let name: Name = name.into();
        self.last_loaded_producer = Some(name.clone());
        self.bytes += name.len() + size_of::<Producer>();
        self.by_name.insert(name, Producer::default()).is_none()
    }

    /// Adds an iid to the producer that was added last. Returns whether the iid is new.
    pub(super) fn add_iid_to_last_producer(&mut self, iid: &[u8], id: StreamId) -> bool {
        let Some(name) = self.last_loaded_producer.clone() else { return false };
        let is_new = self.find(&name, iid).is_none();
        if is_new {
            self.insert(&name, iid, id);
        }
        is_new
    }

    /// Removes the oldest iids of a producer that exceed the limit, but never `newest_iid`: two iids of one entry have
    /// the same age, and the one that was just inserted must stay.
    fn remove_surplus_iids(&mut self, name: &[u8], newest: StreamId, newest_iid: &Name) {
        while let Some((id, iid)) = self.oldest_beyond_limit(name, newest, newest_iid) {
            self.remove_iid(name, id, &iid);
        }
    }

    /// Returns the oldest iid of a producer that exceeds the limit, if any.
    fn oldest_beyond_limit(
        &self,
        name: &[u8],
        newest: StreamId,
        newest_iid: &Name,
    ) -> Option<(StreamId, Name)> {
        let producer = self.by_name.get(name)?;
        if producer.iids.len() as u64 <= self.bounds.max_iids {
            return None;
        }
        let mut by_age = producer.by_age.iter().map(|(iid, ())| iid);
        by_age.find(|(id, iid)| (*id, iid) != (newest, newest_iid)).cloned()
    }

    fn remove_iid(&mut self, name: &[u8], id: StreamId, iid: &Name) {
        let Some(producer) = self.by_name.get_mut(name) else { return };
        producer.iids.remove(&**iid);
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

    /// Removes the iids whose retention time has passed at `now`.
    fn remove_expired(&mut self, now: Millis) {
        let kept = self.bounds.duration_secs.saturating_mul(1000);
        let Ok(now) = u64::try_from(now.0) else { return };
        while let Some(((id, name), ())) = self.by_age.first()
            && id.millis.saturating_add(kept) <= now
        {
            let (id, name) = (*id, name.clone());
            while let Some(producer) = self.by_name.get(&*name)
                && let Some((oldest, ())) = producer.by_age.first()
                && oldest.0 <= id
            {
                let (oldest_id, iid) = oldest.clone();
                self.remove_iid(&name, oldest_id, &iid);
            }
            self.by_age.remove(&(id, name));
        }
    }
}

impl Stream {
    /// Returns the idempotent producers; `None` if the stream never had any.
    #[must_use]
    pub fn producers(&self) -> Option<&Producers> {
        self.producers.as_deref()
    }

    /// Sets the retention limits, and discards all known iids.
    pub fn set_idempotence(&mut self, bounds: IdempotenceBounds) {
        let totals =
            self.producers.as_ref().map_or_else(Default::default, |producers| producers.lifetime_totals);
        self.producers = Some(Arc::new(Producers { lifetime_totals: totals, ..Producers::new(bounds) }));
    }

    /// Returns the producers for editing. If there are none, they are created with `bounds`.
    fn producers_mut(&mut self, bounds: IdempotenceBounds) -> &mut Producers {
        Arc::make_mut(self.producers.get_or_insert_with(|| Arc::new(Producers::new(bounds))))
    }

    /// Returns the entry that a producer added with this iid, and counts the message as a duplicate. Expired iids are
    /// removed first.
    pub fn find_duplicate(&mut self, producer: &[u8], iid: &[u8], now: Millis) -> Option<StreamId> {
        let producers = Arc::make_mut(self.producers.as_mut()?);
        producers.remove_expired(now);
        let found = producers.find(producer, iid)?;
        producers.lifetime_totals.duplicates += 1;
        Some(found)
    }

    /// Records the id of the entry that was added with a new iid. If there are no producers yet, they are created with
    /// `bounds`.
    pub fn add_iid(&mut self, producer: &[u8], iid: &[u8], id: StreamId, bounds: IdempotenceBounds) {
        let producers = self.producers_mut(bounds);
        producers.lifetime_totals.added += 1;
        producers.insert(producer, iid, id);
    }
}

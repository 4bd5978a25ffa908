//! The reference model, based on std maps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use clock::Millis;
use keyspace::{EncodingHint, ItemDigits, Kind, PartElements, SortedSetRef, Stream, StreamId, Value};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) data: EntryData,
    pub(crate) expiry: Option<Millis>,
}

pub(crate) type Fields = BTreeMap<Vec<u8>, (Vec<u8>, Option<Millis>)>;

pub(crate) type Scores = BTreeMap<Vec<u8>, u64>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EntryData {
    String(Vec<u8>, EncodingHint),
    List(VecDeque<Vec<u8>>),
    /// A set: its members and the name of the expected encoding.
    Set(BTreeSet<Vec<u8>>, &'static str),
    /// A sorted set: the score of each member, as bits, and whether the encoding is `skiplist`.
    SortedSet(Scores, bool),
    /// A hash: its fields, and whether the encoding is `hashtable`.
    Hash(Fields, bool),
    Stream(StreamEntries),
}

/// The entries of a stream, and the pending entries of one of its groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamEntries {
    pub(crate) field_names: BTreeMap<StreamId, Vec<Vec<u8>>>,
    /// Pending entries: the consumer and the delivery count of each.
    pub(crate) pending_entries: BTreeMap<StreamId, (Vec<u8>, u64)>,
    parts: Stream,
}

impl PartialEq for StreamEntries {
    fn eq(&self, other: &Self) -> bool {
        self.field_names == other.field_names && self.pending_entries == other.pending_entries
    }
}

impl Eq for StreamEntries {}

impl StreamEntries {
    /// Name of the consumer group that is compared.
    pub(crate) const GROUP: &[u8] = b"group";

    fn from_stream(stream: &Stream) -> Self {
        let entries = Self::from_partial_stream(stream);
        assert_eq!(stream.head().len, entries.field_names.len() as u64);
        let back = stream.range_backward(StreamId::MIN, StreamId::MAX).map(|entry| entry.id);
        assert!(entries.field_names.keys().rev().copied().eq(back), "it is the same from its end");
        if let Some(group) = stream.group(Self::GROUP) {
            let owned: usize = group.consumers().map(|(_, consumer)| consumer.pending_len()).sum();
            assert_eq!(
                (group.pending_len(), owned),
                (entries.pending_entries.len(), entries.pending_entries.len())
            );
        }
        entries
    }

    /// Reads a stream that may be incomplete.
    fn from_partial_stream(stream: &Stream) -> Self {
        let mut entries = Self::default();
        for entry in stream.range(StreamId::MIN, StreamId::MAX) {
            let words = entries.field_names.entry(entry.id).or_default();
            entry.for_each(&mut |name, value| words.extend([name.to_vec(), value.to_vec()]));
        }
        if let Some(group) = stream.group(Self::GROUP) {
            let pending = group.pending_from(StreamId::MIN);
            entries.pending_entries = pending
                .map(|(id, pending)| (id, (pending.consumer.to_vec(), pending.delivery_count)))
                .collect();
        }
        entries
    }
}

impl Entry {
    pub(crate) fn string(bytes: Vec<u8>, encoding_hint: EncodingHint, expiry: Option<Millis>) -> Self {
        Self { data: EntryData::String(bytes, encoding_hint), expiry }
    }

    /// Returns an empty entry of the same kind as this part, to which parts will be added.
    pub(crate) fn empty(part: PartElements<'_>, expiry: Option<Millis>) -> Self {
        let data = match part {
            PartElements::List(_) => EntryData::List(VecDeque::new()),
            PartElements::Set(_) => EntryData::Set(BTreeSet::new(), "hashtable"),
            PartElements::SortedSet(_) => EntryData::SortedSet(Scores::new(), true),
            PartElements::Hash(_) => EntryData::Hash(Fields::new(), true),
            PartElements::Stream(_) => EntryData::Stream(StreamEntries::default()),
        };
        Self { data, expiry }
    }

    /// Reads a stored value into a model entry.
    pub(crate) fn from_value(value: Value<'_>, expiry: Option<Millis>) -> Self {
        let data = match value {
            Value::String(string) => EntryData::String(string.bytes.to_vec(), string.encoding_hint),
            Value::List(list) => {
                let (mut items, mut digits) = (VecDeque::new(), ItemDigits::default());
                list.for_each(&mut |item| items.push_back(item.bytes(&mut digits).to_vec()));
                assert_eq!(list.len(), items.len());
                EntryData::List(items)
            }
            Value::Set(set) => {
                let mut members = BTreeSet::new();
                set.for_each(&mut |member| {
                    assert!(set.contains(&member), "what is visited is found");
                    assert!(members.insert(member.to_vec()), "a member is there once");
                });
                assert_eq!(set.len(), members.len());
                EntryData::Set(members, set.encoding())
            }
            Value::SortedSet(set) => Self::read_sorted_set(&set),
            Value::Hash(hash) => {
                let mut fields = Fields::new();
                hash.for_each(&mut |field| {
                    let copy = (field.value.to_vec(), field.expiry);
                    assert_eq!(fields.insert(field.name.to_vec(), copy), None, "a field is there once");
                });
                assert_eq!(hash.len(), fields.len());
                EntryData::Hash(fields, hash.encoding() == "hashtable")
            }
            Value::Stream(stream) => EntryData::Stream(StreamEntries::from_stream(&stream.to_stream())),
        };
        Self { data, expiry }
    }

    /// Reads a sorted set and checks its order in both directions.
    fn read_sorted_set(set: &SortedSetRef<'_>) -> EntryData {
        let mut listed = Vec::new();
        set.visit(0..usize::MAX, false, &mut |member| {
            listed.push((member.score, member.name.to_vec()));
            true
        });
        assert!(listed.is_sorted(), "members are in order");
        let mut left = listed.iter().rev();
        set.visit(0..usize::MAX, true, &mut |member| {
            assert_eq!(left.next(), Some(&(member.score, member.name.to_vec())));
            true
        });
        assert!(left.next().is_none());
        assert_eq!(set.len(), listed.len());
        let members: Scores = listed.into_iter().map(|(score, name)| (name, score.to_bits())).collect();
        assert_eq!(set.len(), members.len());
        EntryData::SortedSet(members, set.encoding() == "skiplist")
    }
}

impl EntryData {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::String(..) => Kind::String,
            Self::List(_) => Kind::List,
            Self::Set(..) => Kind::Set,
            Self::SortedSet(..) => Kind::SortedSet,
            Self::Hash(..) => Kind::Hash,
            Self::Stream(_) => Kind::Stream,
        }
    }

    pub(crate) fn add(&mut self, part: PartElements<'_>) -> usize {
        let mut added = 0;
        match (self, part) {
            (Self::List(items), PartElements::List(part)) => part.for_each_run(&mut |run| {
                let mut digits = ItemDigits::default();
                items.extend(run.items().map(|item| item.bytes(&mut digits).to_vec()));
                added += run.len;
            }),
            (Self::Set(members, _), PartElements::Set(part)) => part.for_each(&mut |field| {
                assert!(members.insert(field.name.to_vec()), "a member is visited once");
                added += 1;
            }),
            (Self::Hash(fields, _), PartElements::Hash(part)) => part.for_each(&mut |field| {
                let before = fields.insert(field.name.to_vec(), (field.value.to_vec(), field.expiry));
                assert_eq!(before, None, "a field is visited once");
                added += 1;
            }),
            (Self::SortedSet(members, _), PartElements::SortedSet(part)) => part.for_each(&mut |member| {
                let before = members.insert(member.name.to_vec(), member.score.to_bits());
                assert_eq!(before, None, "a member is visited once");
                added += 1;
            }),
            (Self::Stream(entries), PartElements::Stream(part)) => {
                let mut parts = std::mem::take(&mut entries.parts);
                part.for_each(&mut |piece| assert!(parts.add_piece(piece), "{piece:?}"));
                let before = entries.field_names.len();
                // Entries without a consumer get one with a later part.
                let whole = parts.clone();
                *entries = StreamEntries { parts, ..StreamEntries::from_partial_stream(&whole) };
                added += entries.field_names.len() - before;
            }
            (other, part) => panic!("{part:?} of {other:?}"),
        }
        added
    }
}

/// Entries by database and key.
pub(crate) type ReferenceModel = BTreeMap<(u16, Vec<u8>), Entry>;

/// A scan in progress: the keys that have existed since it started, and the keys visited so far.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) db: u16,
    pub(crate) slot: slot_routing::Slot,
    pub(crate) position: u64,
    pub(crate) present_throughout: BTreeSet<Vec<u8>>,
    pub(crate) scanned: BTreeSet<Vec<u8>>,
}

//! Compares streams with std maps, including streams in snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;

use clock::Millis;
use proptest::prelude::*;

use super::*;
use crate::kind::Kind;
use crate::packed::{PackedBuilder, PackedValue};
use crate::value::{PartElements, SnapshotValue, Value};
use crate::{KeyLookup, Keyspace};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// The expected content of a stream: its entries, and the pending entries of one group with consumer and delivery
/// count.
#[derive(Debug, Clone, Default, PartialEq)]
struct ReferenceModel {
    entries: BTreeMap<StreamId, Fields>,
    pending: BTreeMap<StreamId, (Vec<u8>, u64)>,
}

#[derive(Debug, Clone)]
enum Step {
    /// Adds an entry: the distance of its id from the last id, and a seed for the fields.
    Add(u64, u8),
    Delete(u64),
    MaxLen(u64, bool),
    MinId(u64, bool),
    Assign(u64, u8),
    Acknowledge(u64),
    Snapshot,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        20 => (1..4u64, any::<u8>()).prop_map(|(ahead, fields)| Step::Add(ahead, fields)),
        4 => (0..600u64).prop_map(Step::Delete),
        1 => (0..200u64, any::<bool>()).prop_map(|(most, exact)| Step::MaxLen(most, exact)),
        1 => (0..600u64, any::<bool>()).prop_map(|(least, exact)| Step::MinId(least, exact)),
        4 => (0..600u64, 0..3u8).prop_map(|(id, consumer)| Step::Assign(id, consumer)),
        3 => (0..600u64).prop_map(Step::Acknowledge),
        1 => Just(Step::Snapshot),
    ];
    prop::collection::vec(step, 0..400)
}

fn id(number: u64) -> StreamId {
    StreamId { millis: number / 3, sequence: number % 3 }
}

fn fields(seed: u8) -> Fields {
    let count = usize::from(seed % 3) + 1;
    let name = |n: usize| format!("f{}", n + usize::from(seed / 128)).into_bytes();
    (0..count).map(|n| (name(n), format!("{}", i64::from(seed) << (seed % 40)).into_bytes())).collect()
}

fn field_words(fields: &Fields) -> Vec<&[u8]> {
    fields.iter().flat_map(|(name, value)| [&name[..], &value[..]]).collect()
}

fn read_entry(entry: &StreamEntry<'_>) -> (StreamId, Fields) {
    let mut fields = Fields::new();
    entry.for_each(&mut |name, value| fields.push((name.to_vec(), value.to_vec())));
    assert_eq!(fields.len(), entry.len());
    (entry.id, fields)
}

/// Reads a stream into a model. Also checks that its counts are correct and that reading in both directions gives the
/// same entries.
fn read_model(stream: &Stream) -> ReferenceModel {
    let entries: BTreeMap<_, _> =
        stream.range(StreamId::MIN, StreamId::MAX).map(|entry| read_entry(&entry)).collect();
    let backward: Vec<_> =
        stream.range_backward(StreamId::MIN, StreamId::MAX).map(|entry| read_entry(&entry)).collect();
    assert!(entries.iter().rev().map(|(id, fields)| (*id, fields.clone())).eq(backward));
    assert_eq!(stream.head().len, entries.len() as u64);
    let mut pending = BTreeMap::new();
    if let Some(group) = stream.group(b"g") {
        for (id, PendingEntry { consumer, delivery_count: count, .. }) in group.pending_from(StreamId::MIN) {
            pending.insert(id, (consumer.to_vec(), *count));
        }
        let mut by_time: Vec<_> =
            group.pending_from(StreamId::MIN).map(|(id, pending)| (pending.delivery_time, id)).collect();
        by_time.sort_unstable();
        assert!(group.pending_by_time().eq(by_time));
        for (name, consumer) in group.consumers() {
            let own = pending.iter().filter(|(_, (owner, _))| **name == owner[..]).map(|(id, _)| *id);
            assert!(consumer.pending_from(StreamId::MIN).eq(own));
        }
    }
    ReferenceModel { entries, pending }
}

fn rebuild_from_pieces(stream: &Stream) -> Stream {
    let (mut cursor, mut copy) = (StreamCursor::default(), Stream::default());
    while let Some(piece) = cursor.next(stream) {
        if let StreamPiece::Node { id, bytes } = piece {
            assert!(check_node(id, bytes).is_some());
        }
        assert!(copy.add_piece(piece), "{piece:?}");
    }
    copy
}

struct TestRun {
    keyspace: Arc<Keyspace>,
    model: ReferenceModel,
    last: u64,
}

const BOUNDS: StreamNodeBounds = StreamNodeBounds { max_bytes: 400, max_entries: 9 };

impl TestRun {
    fn edit_stream<R>(&self, edit: impl FnOnce(&mut Stream) -> R) -> R {
        let key = self.keyspace.key(b"key");
        let mut slot = self.keyspace.lock(key.slot());
        let table = slot.table(0);
        let place = match table.find(&key, Millis(0)) {
            KeyLookup::Live(place) => place,
            _ => table.insert(&key, PackedValue::empty(Kind::Stream), None),
        };
        table.edit_stream(place, &key, edit).1
    }

    fn apply_step(&mut self, step: &Step) {
        let gone = |model: &mut ReferenceModel, keep: &dyn Fn(usize, StreamId) -> bool| {
            let mut left = model.entries.len();
            let before = left;
            model.entries.retain(|id, _| {
                let keep = keep(left, *id);
                left -= usize::from(!keep);
                keep
            });
            (before - model.entries.len()) as u64
        };
        match *step {
            Step::Add(ahead, seed) => {
                self.last += ahead;
                let (id, fields) = (id(self.last), fields(seed));
                self.edit_stream(|stream| stream.append(id, &field_words(&fields), BOUNDS));
                self.model.entries.insert(id, fields);
            }
            Step::Delete(number) => {
                let there = self.model.entries.remove(&id(number)).is_some();
                assert_eq!(self.edit_stream(|stream| stream.delete(id(number))), there);
            }
            Step::MaxLen(most, true) => {
                let expected = gone(&mut self.model, &|left, _| left as u64 <= most);
                let cut =
                    self.edit_stream(|stream| stream.trim(StreamTrim::MaxLen(most), TrimPrecision::Exact).0);
                assert_eq!(cut, expected);
            }
            Step::MinId(least, true) => {
                let expected = gone(&mut self.model, &|_, entry| entry >= id(least));
                let cut = self
                    .edit_stream(|stream| stream.trim(StreamTrim::MinId(id(least)), TrimPrecision::Exact).0);
                assert_eq!(cut, expected);
            }
            Step::MaxLen(most, false) => self.trim_nodes(StreamTrim::MaxLen(most), most as usize),
            Step::MinId(least, false) => self.trim_nodes(StreamTrim::MinId(id(least)), 0),
            Step::Assign(number, consumer) => {
                let name: Arc<[u8]> = [b"abc"[usize::from(consumer)]].into();
                self.edit_stream(|stream| {
                    if stream.group(b"g").is_none() {
                        stream.insert_group(b"g", Group::default());
                    }
                    let group = stream.group_mut(b"g").expect("it is there");
                    group.create_consumer(&name, Millis(1));
                    group.assign(id(number), &name, Millis(number as i64 * 7 % 11), number);
                    // Iterating by time builds the index, which is then maintained unless the stream is packed.
                    assert_eq!(group.pending_by_time().count(), group.pending_len());
                });
                self.model.pending.insert(id(number), (name.to_vec(), number));
            }
            Step::Acknowledge(number) => {
                let there = self.model.pending.remove(&id(number)).is_some();
                let acknowledge = |stream: &mut Stream| {
                    stream.group_mut(b"g").is_some_and(|group| group.acknowledge(id(number)))
                };
                assert_eq!(self.edit_stream(acknowledge), there);
            }
            Step::Snapshot => {}
        }
    }

    /// Trims whole nodes and updates the model: the removed entries must be the first ones, and at least
    /// `min_remaining` must remain.
    fn trim_nodes(&mut self, trim: StreamTrim, min_remaining: usize) {
        let before = self.model.entries.len();
        let cut = self.edit_stream(|stream| stream.trim(trim, TrimPrecision::Nodes(0)).0) as usize;
        assert!(cut == 0 || before - cut >= min_remaining);
        (0..cut).for_each(|_| drop(self.model.entries.pop_first()));
    }

    fn check(&self) {
        let stream = self.edit_stream(|stream| stream.clone());
        assert_eq!(read_model(&stream), self.model);
        assert_eq!(read_model(&rebuild_from_pieces(&stream)), self.model);
    }
}

/// Reads the stream that a snapshot has under its only key.
fn read_snapshot_stream(snapshot: &mut crate::Snapshot, keyspace: &Keyspace) -> ReferenceModel {
    let (mut stream, mut packed) = (Stream::default(), Vec::new());
    snapshot.walk(keyspace.key(b"key").slot(), &mut |entry| match entry.value {
        SnapshotValue::Whole(Value::Stream(whole)) => packed.push(whole.to_stream().into_owned()),
        SnapshotValue::Part(part) => {
            let PartElements::Stream(pieces) = part.elements else { panic!("it is a stream") };
            pieces.for_each(&mut |piece| assert!(stream.add_piece(piece)));
        }
        SnapshotValue::Whole(_) => panic!("it is a stream"),
    });
    read_model(packed.first().unwrap_or(&stream))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn streams_match_model_and_snapshots_are_unaffected(steps in steps()) {
        let mut run = TestRun { keyspace: Arc::new(Keyspace::new(1, 1)), model: ReferenceModel::default(), last: 0 };
        let mut taken: Option<(crate::Snapshot, ReferenceModel)> = None;
        for step in &steps {
            run.apply_step(step);
            if matches!(step, Step::Snapshot) {
                if let Some((mut snapshot, expected)) = taken.take() {
                    prop_assert_eq!(read_snapshot_stream(&mut snapshot, &run.keyspace), expected);
                }
                let turn = run.keyspace.acquire_global_lock();
                let cut = run.keyspace.prepare_snapshot().take(&turn, || ());
                taken = cut.map(|(snapshot, ())| (snapshot, run.model.clone()));
            }
        }
        run.check();
        if let Some((mut snapshot, expected)) = taken {
            prop_assert_eq!(read_snapshot_stream(&mut snapshot, &run.keyspace), expected);
        }
    }

    #[test]
    fn malformed_nodes_are_rejected(
        fields in prop::collection::vec(any::<u8>(), 1..12),
        at in any::<prop::sample::Index>(),
        with in any::<u8>(),
    ) {
        let mut stream = Stream::default();
        for (number, seed) in fields.iter().enumerate() {
            stream.append(id(number as u64 + 1), &field_words(&self::fields(*seed)), StreamNodeBounds { max_bytes: 0, max_entries: 0 });
        }
        let (first, node) = stream.nodes.first().expect("it has a node");
        prop_assert_eq!(check_node(*first, &node.bytes), Some((fields.len() as u64, id(fields.len() as u64))));
        let mut wrong = node.bytes.clone();
        let at = at.index(wrong.len());
        wrong[at] = with;
        if check_node(*first, &wrong).is_some() {
            // A node that is accepted must be readable and editable.
            let mut copy = Stream::default();
            let added = copy.add_piece(StreamPiece::Node { id: *first, bytes: &wrong });
            prop_assert!(added);
            let ids: Vec<_> = copy.range(StreamId::MIN, StreamId::MAX).map(|entry| entry.id).collect();
            prop_assert_eq!(ids.len() as u64, copy.head().len);
            ids.iter().for_each(|id| assert!(copy.delete(*id)));
            prop_assert_eq!(copy.head().len, 0);
        }
        for end in 0..node.bytes.len() {
            prop_assert_eq!(check_node(*first, &node.bytes[..end]), None);
        }
    }
}

#[test]
fn inconsistent_pieces_are_rejected() {
    let mut stream = Stream::default();
    stream.append(id(4), &[b"a", b"1"], BOUNDS);
    stream.append(id(5), &[b"a", b"1"], BOUNDS);
    let mut group = Group::new(id(5), Some(2));
    for name in [&b""[..], b"b"] {
        group.create_consumer(name, Millis(1));
    }
    group.assign(id(4), &b""[..].into(), Millis(2), 1);
    group.assign(id(5), &b"b"[..].into(), Millis(2), 1);
    stream.insert_group(b"g", group);
    let mut pieces = Vec::new();
    let mut cursor = StreamCursor::default();
    while let Some(piece) = cursor.next(&stream) {
        pieces.push(piece);
    }
    let fits = |pieces: &[StreamPiece<'_>]| {
        let mut stream = Stream::default();
        pieces.iter().all(|piece| stream.add_piece(*piece))
    };
    assert!(fits(&pieces));
    // Repeating a piece must be rejected, unless it is only a count.
    for (index, piece) in pieces.iter().enumerate() {
        let mut twice = pieces.clone();
        twice.insert(index, *piece);
        let is_number =
            matches!(piece, StreamPiece::Nodes(_) | StreamPiece::Consumers(_) | StreamPiece::Head { .. });
        assert_eq!(fits(&twice), is_number, "{piece:?}");
    }
    let mut stolen = pieces.clone();
    let owned = StreamPiece::ConsumerPending(id(5));
    let place =
        stolen.iter().position(|piece| *piece == StreamPiece::ConsumerPending(id(4))).expect("it is there");
    stolen[place] = owned;
    assert!(!fits(&stolen));
}

#[test]
fn small_stream_stays_packed() {
    let keyspace = Arc::new(Keyspace::new(1, 1));
    let run = TestRun { keyspace, model: ReferenceModel::default(), last: 0 };
    let is_packed = || {
        let key = run.keyspace.key(b"key");
        let mut slot = run.keyspace.lock(key.slot());
        let KeyLookup::Live(place) = slot.table(0).find(&key, Millis(0)) else { panic!("it is there") };
        matches!(slot.table(0).stream(place), Some(StreamRef { shape: CollectionShape::Packed(_) }))
    };
    let bounds = StreamNodeBounds { max_bytes: 4096, max_entries: 100 };
    run.edit_stream(|stream| stream.append(id(1), &[b"field", b"value"], bounds));
    assert!(is_packed());
    run.edit_stream(|stream| stream.append(id(2), &[b"field", &[b'x'; 2000]], bounds));
    assert!(!is_packed());
}

#[test]
fn stream_part_round_trips() {
    let mut stream = Stream::default();
    (1..300).for_each(|number| stream.append(id(number), &field_words(&fields(number as u8)), BOUNDS));
    stream.insert_group(b"g", Group::new(id(20), None));
    stream.insert_group(b"h", Group::new(id(20), Some(7)));
    let (mut cursor, mut copy) = (StreamCursor::default(), Stream::default());
    let mut builder = PackedBuilder::new(Kind::Stream);
    while let Some(piece) = cursor.next(&stream) {
        builder.push_piece(piece);
        assert!(copy.add_pieces(builder.packed()));
        builder.reset(Kind::Stream);
    }
    assert_eq!((read_model(&copy), copy.head()), (read_model(&stream), stream.head()));
    let groups: Vec<_> = copy
        .groups()
        .map(|(name, group)| (name.to_vec(), group.last_delivered, group.entries_read))
        .collect();
    assert_eq!(groups, [(b"g".to_vec(), id(20), None), (b"h".to_vec(), id(20), Some(7))]);
}

#[test]
fn range_starts_at_requested_id() {
    let mut stream = Stream::default();
    (1..200).for_each(|number| stream.append(id(number * 2), &field_words(&fields(number as u8)), BOUNDS));
    (1..200).filter(|number| number % 3 == 0).for_each(|number| assert!(stream.delete(id(number * 2))));
    let all: Vec<StreamId> = stream.range(StreamId::MIN, StreamId::MAX).map(|entry| entry.id).collect();
    for from in (0..402).map(id) {
        let found: Vec<StreamId> = stream.range(from, StreamId::MAX).map(|entry| entry.id).collect();
        let expected: Vec<StreamId> = all.iter().copied().filter(|id| *id >= from).collect();
        assert_eq!(found, expected);
        assert_eq!(
            stream.entry(from).map(|entry| entry.id),
            expected.first().copied().filter(|id| *id == from)
        );
    }
}

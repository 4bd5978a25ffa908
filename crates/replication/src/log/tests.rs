use proptest::prelude::*;

use super::*;

const A: ReplId = ReplId::NONE;

fn id(byte: u8) -> ReplId {
    ReplId::from_random([byte; 20])
}

fn open_log(capacity: u64) -> Log {
    let mut log = Log::new(A, capacity);
    log.open(id(1));
    log
}

fn rest(log: &mut Log, cursor: CursorId) -> Result<String, FellOff> {
    let mut out = Vec::new();
    log.read(cursor, usize::MAX, &mut out).map(|()| String::from_utf8(out).unwrap())
}

#[test]
fn nothing_is_kept_or_counted_until_somebody_reads() {
    let mut log = Log::new(id(1), 100);
    log.append(0, b"ignored");
    assert_eq!(log.position(), Position { id: id(1), offset: ReplOffset(0) });
    assert_eq!(log.resume(id(1).as_str().as_bytes(), 1), Err(Refusal::NoBacklog));
    log.open(id(2));
    assert_eq!(log.position().id, id(2), "what changed before is no part of the old history");
    log.append_raw(b"kept");
    assert_eq!(log.position().offset, ReplOffset(4));
    assert_eq!(log.first_byte(), Some((1, 4)));
}

#[test]
fn the_stream_selects_a_database_when_it_changes() {
    let mut log = open_log(1000);
    let cursor = log.add_cursor(ReplOffset(0));
    log.append(0, b"a");
    log.append(0, b"b");
    log.append(3, b"c");
    log.forget_db();
    log.append(3, b"d");
    let select = |db| format!("*2\r\n$6\r\nSELECT\r\n$1\r\n{db}\r\n");
    let expected = format!("{}ab{}c{}d", select(0), select(3), select(3));
    assert_eq!(rest(&mut log, cursor), Ok(expected));
    assert_eq!(log.pending(cursor), Ok(0));
}

#[test]
fn who_may_go_on_and_who_needs_everything() {
    let mut log = open_log(1000);
    log.append_raw(&[b'x'; 100]);
    log.rename(id(2));
    log.append_raw(&[b'y'; 50]);
    let (new, old, other) = (id(2), id(1), id(3));
    // identifier, first byte wanted, where it goes on
    let table: &[(&str, i64, Result<u64, Refusal>)] = &[
        ("?", -1, Err(Refusal::NothingAsked)),
        ("short", 5, Err(Refusal::OtherHistory)),
        (other.as_str(), 5, Err(Refusal::OtherHistory)),
        (new.as_str(), 1, Ok(0)),
        (new.as_str(), 151, Ok(150)),
        (new.as_str(), 152, Err(Refusal::OutsideBacklog)),
        (new.as_str(), 0, Err(Refusal::OutsideBacklog)),
        (new.as_str(), i64::MIN, Err(Refusal::OutsideBacklog)),
        (old.as_str(), 1, Ok(0)),
        (old.as_str(), 101, Ok(100)),
        (old.as_str(), 102, Err(Refusal::PastSecondHistory)),
    ];
    for &(id, first_byte, expected) in table {
        assert_eq!(log.resume(id.as_bytes(), first_byte), expected.map(ReplOffset), "{id} {first_byte}");
    }
    log.close();
    assert_eq!(log.resume(new.as_str().as_bytes(), 151), Err(Refusal::NoBacklog));
}

#[test]
fn a_replica_takes_over_its_masters_history() {
    let mut log = open_log(1000);
    log.append_raw(b"own");
    let cursor = log.add_cursor(ReplOffset(0));
    log.adopt(Position { id: id(7), offset: ReplOffset(5000) });
    assert_eq!(rest(&mut log, cursor), Err(FellOff));
    assert_eq!(log.append_raw(b"theirs"), ReplOffset(5006));
    assert_eq!(log.first_byte(), Some((5001, 6)));
    assert_eq!(log.second(), None);
    // Promoted: those who followed the old master as far as this node can go on here.
    log.rename(id(8));
    assert_eq!(log.second(), Some(Position { id: id(7), offset: ReplOffset(5006) }));
    assert_eq!(log.resume(id(7).as_str().as_bytes(), 5001), Ok(ReplOffset(5000)));
}

#[test]
fn old_bytes_go_unless_a_cursor_needs_them_and_a_slow_cursor_falls_off() {
    let block = vec![b'z'; 64 * 1024];
    let mut log = open_log(64 * 1024);
    let cursor = log.add_cursor(ReplOffset(0));
    for _ in 0..8 {
        log.append_raw(&block);
    }
    assert_eq!(log.first_byte(), Some((1, 8 * 65536)), "the cursor holds it");
    log.set_cursor_bound(4 * 64 * 1024);
    log.append_raw(&block);
    assert!(log.first_byte().unwrap().1 <= 5 * 65536);
    let mut out = Vec::new();
    assert_eq!(log.read(cursor, 10, &mut out), Err(FellOff));
    log.remove_cursor(cursor);
    log.remove_cursor(cursor);
    assert!(log.first_byte().unwrap().1 <= 2 * 65536);
}

proptest! {
    /// Against one long buffer: whatever is appended, read and let go of, a cursor sees the stream's
    /// bytes without a gap, and what is kept is bounded.
    #[test]
    fn cursors_read_what_was_appended(
        steps in prop::collection::vec((0usize..3, 0usize..40_000), 1..60),
        capacity in 0u64..200_000,
    ) {
        let mut log = open_log(capacity);
        let mut all: Vec<u8> = Vec::new();
        let mut cursors: Vec<(CursorId, usize)> = Vec::new();
        for (step, amount) in steps {
            match step {
                0 => {
                    let bytes: Vec<u8> = (0..amount).map(|i| (all.len() + i) as u8).collect();
                    log.append_raw(&bytes);
                    all.extend(bytes);
                }
                1 => {
                    let start = log.first_byte().unwrap().0 as usize - 1;
                    let at = start + amount % (all.len() - start + 1);
                    cursors.push((log.add_cursor(ReplOffset(at as u64)), at));
                }
                _ if cursors.is_empty() => {}
                _ => {
                    let index = amount % cursors.len();
                    let (cursor, at) = &mut cursors[index];
                    let mut out = Vec::new();
                    log.read(*cursor, amount, &mut out).unwrap();
                    prop_assert_eq!(&out[..], &all[*at..(*at + amount).min(all.len())]);
                    *at += out.len();
                }
            }
            let held = cursors.iter().map(|(_, at)| all.len() - at).max().unwrap_or(0) as u64;
            prop_assert!(log.first_byte().unwrap().1 < capacity.max(held) + 2 * 65536);
        }
    }
}

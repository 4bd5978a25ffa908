use proptest::prelude::*;

use super::*;

const ID_A: ReplId = ReplId::NONE;

fn id(byte: u8) -> ReplId {
    ReplId::from_random([byte; 20])
}

fn open_log(capacity: u64) -> Log {
    let mut log = Log::new(ID_A, capacity);
    log.open(id(1));
    log
}

fn read_rest(log: &mut Log, cursor: CursorId) -> Result<String, CursorLostError> {
    let mut out = Vec::new();
    log.read(cursor, usize::MAX, &mut out).map(|()| String::from_utf8(out).unwrap())
}

#[test]
fn closed_log_keeps_and_counts_nothing() {
    let mut log = Log::new(id(1), 100);
    log.append(0, b"ignored");
    assert_eq!(log.position(), ReplPosition { id: id(1), offset: ReplOffset(0) });
    assert_eq!(log.resume_offset(id(1).as_str().as_bytes(), 1), Err(FullSyncReason::NoBacklog));
    log.open(id(2));
    assert_eq!(log.position().id, id(2), "what changed before is no part of the old history");
    log.append_control(b"kept");
    assert_eq!(log.position().offset, ReplOffset(4));
    assert_eq!(log.retained_range(), Some((1, 4)));
}

#[test]
fn select_is_logged_when_the_database_changes() {
    let mut log = open_log(1000);
    let cursor = log.add_cursor(ReplOffset(0));
    log.append(0, b"a");
    log.append(0, b"b");
    log.append(3, b"c");
    log.reset_selected_db();
    log.append(3, b"d");
    let select = |db| format!("*2\r\n$6\r\nSELECT\r\n$1\r\n{db}\r\n");
    let expected = format!("{}ab{}c{}d", select(0), select(3), select(3));
    assert_eq!(read_rest(&mut log, cursor), Ok(expected));
    assert_eq!(log.unread_bytes(cursor), Ok(0));
}

#[test]
fn resume_decides_between_partial_and_full_synchronisation() {
    let mut log = open_log(1000);
    log.append_control(&[b'x'; 100]);
    log.change_id(id(2));
    log.append_control(&[b'y'; 50]);
    let (new, old, other) = (id(2), id(1), id(3));
    // replication id, first byte requested, offset at which the replica continues
    let table: &[(&str, i64, Result<u64, FullSyncReason>)] = &[
        ("?", -1, Err(FullSyncReason::Requested)),
        ("short", 5, Err(FullSyncReason::OtherHistory)),
        (other.as_str(), 5, Err(FullSyncReason::OtherHistory)),
        (new.as_str(), 1, Ok(0)),
        (new.as_str(), 151, Ok(150)),
        (new.as_str(), 152, Err(FullSyncReason::OutsideBacklog)),
        (new.as_str(), 0, Err(FullSyncReason::OutsideBacklog)),
        (new.as_str(), i64::MIN, Err(FullSyncReason::OutsideBacklog)),
        (old.as_str(), 1, Ok(0)),
        (old.as_str(), 101, Ok(100)),
        (old.as_str(), 102, Err(FullSyncReason::PastSecondHistory)),
    ];
    for &(id, first_byte, expected) in table {
        assert_eq!(
            log.resume_offset(id.as_bytes(), first_byte),
            expected.map(ReplOffset),
            "{id} {first_byte}"
        );
    }
    log.close();
    assert_eq!(log.resume_offset(new.as_str().as_bytes(), 151), Err(FullSyncReason::NoBacklog));
}

#[test]
fn replica_adopts_its_masters_history() {
    let mut log = open_log(1000);
    log.append_control(b"own");
    let cursor = log.add_cursor(ReplOffset(0));
    let stream = log.demote();
    assert_eq!(log.accept_stream(stream), Ok(Some(ReplPosition { id: id(1), offset: ReplOffset(3) })));
    log.adopt_loaded_history(ReplPosition { id: id(7), offset: ReplOffset(5000) }, id(9));
    assert_eq!(read_rest(&mut log, cursor), Err(CursorLostError));
    assert!(log.append_stream(stream, b"theirs"));
    assert_eq!(log.position(), ReplPosition { id: id(7), offset: ReplOffset(5006) });
    assert_eq!(log.retained_range(), Some((5001, 6)));
    assert_eq!(log.second_history(), None);
    // After a promotion, replicas of the old master can continue up to the offset of the promotion.
    assert!(log.promote(id(8)));
    assert_eq!(log.second_history(), Some(ReplPosition { id: id(7), offset: ReplOffset(5006) }));
    assert_eq!(log.resume_offset(id(7).as_str().as_bytes(), 5001), Ok(ReplOffset(5000)));
}

/// A replica with sub-replicas may receive bytes of its new master before the connections of its sub-replicas are
/// closed. A sub-replica would count these bytes under the old id, exceed the common part of both histories, and need a
/// full synchronisation.
#[test]
fn renamed_history_drops_the_cursors_of_replicas() {
    let mut log = open_log(1000);
    let stream = log.demote();
    log.accept_stream(stream).unwrap();
    assert!(log.append_stream(stream, b"old"));
    let (replica, file) = (log.add_cursor(ReplOffset(1)), log.add_local_cursor(ReplOffset(1)));
    log.change_id(id(2));
    assert!(log.append_stream(stream, b"new"));
    assert_eq!(read_rest(&mut log, replica), Err(CursorLostError));
    assert_eq!(
        log.resume_offset(id(1).as_str().as_bytes(), 2),
        Ok(ReplOffset(1)),
        "it comes back and goes on"
    );
    assert_eq!(read_rest(&mut log, file), Ok("ldnew".to_owned()), "this node's file is of both");
    let again = log.add_cursor(ReplOffset(1));
    log.change_id(id(2));
    assert_eq!(read_rest(&mut log, again), Ok("ldnew".to_owned()), "that name is known");
    assert!(log.promote(id(3)));
    assert_eq!(read_rest(&mut log, again), Err(CursorLostError));
}

#[test]
fn no_replica_continues_after_a_new_history_was_started() {
    let mut log = open_log(1000);
    log.append_control(b"old");
    log.start_new_history(id(2));
    assert_eq!(log.resume_offset(id(1).as_str().as_bytes(), 4), Err(FullSyncReason::OtherHistory));
    assert_eq!(log.position(), ReplPosition { id: id(2), offset: ReplOffset(3) });
}

/// A master is demoted while a command is still running in database 3: that command is the last in the log.
#[test]
fn position_of_a_demoted_master_includes_its_last_write() {
    let mut log = open_log(1000);
    log.append(3, b"first");
    let stream = log.demote();
    assert!(!log.append_stream(stream, b"too early"), "its master's stream begins where this one ends");
    let end = log.append(3, b"begun before");
    assert_eq!(log.accept_stream(stream), Ok(Some(ReplPosition { id: id(1), offset: end })));
    assert_eq!(log.append(3, b"a replica's own"), end, "is nobody else's");
    assert_eq!(log.append_control(b"PING"), end);
    assert!(log.append_stream(stream, b"theirs"));
    assert_eq!(log.position().offset, ReplOffset(end.0 + 6));
}

/// A replica is promoted while part of its old master's stream, which selected database 9, is being applied.
#[test]
fn promoted_log_drops_the_old_stream_and_selects_its_database_again() {
    let mut log = open_log(1000);
    log.append(0, b"own");
    let stream = log.demote();
    log.accept_stream(stream).unwrap();
    assert!(log.append_stream(stream, b"SELECT 9"));
    assert!(log.promote(id(2)));
    let at = log.position().offset;
    let cursor = log.add_cursor(at);
    assert!(!log.append_stream(stream, b"late"));
    assert_eq!(log.accept_stream(stream), Err(StreamSupersededError));
    log.append(0, b"mine");
    assert_eq!(read_rest(&mut log, cursor), Ok("*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\nmine".to_owned()));
    assert!(!log.promote(id(3)), "it is a master");
    assert_eq!(log.position().id, id(2));
}

/// A failover happens while a snapshot of the old master is being loaded.
#[test]
fn snapshot_loaded_after_a_promotion_starts_a_new_history() {
    let mut log = open_log(1000);
    let stream = log.demote();
    log.accept_stream(stream).unwrap();
    log.close();
    assert!(log.promote(id(2)));
    let loaded = ReplPosition { id: id(7), offset: ReplOffset(5000) };
    log.adopt_loaded_history(loaded, id(3));
    assert_eq!((log.position().id, log.second_history()), (id(3), Some(loaded)));
}

/// Bytes are freed in whole chunks, so the log may retain more than the capacity and more than the cursor bound. A
/// replica that continued beyond the bound would be disconnected at once, and reconnect for ever.
#[test]
fn replica_beyond_the_cursor_bound_needs_a_full_synchronisation() {
    let mut log = open_log(100);
    log.append_control(&[b'z'; 1000]);
    assert_eq!(log.retained_range(), Some((1, 1000)));
    let own = log.position().id;
    let resume = |log: &Log, offset: i64| log.resume_offset(own.as_str().as_bytes(), offset + 1);
    assert_eq!(resume(&log, 0), Ok(ReplOffset(0)), "without a bound all that is kept will do");
    log.set_cursor_bound(400);
    assert_eq!(resume(&log, 599), Err(FullSyncReason::OutsideBacklog));
    assert_eq!(resume(&log, 600), Ok(ReplOffset(600)));
    log.set_capacity(700);
    assert_eq!(resume(&log, 300), Ok(ReplOffset(300)), "the backlog is kept anyway");
}

#[test]
fn old_bytes_are_kept_for_cursors_within_their_bound() {
    let block = vec![b'z'; 64 * 1024];
    let mut log = open_log(64 * 1024);
    let cursor = log.add_cursor(ReplOffset(0));
    for _ in 0..8 {
        log.append_control(&block);
    }
    assert_eq!(log.retained_range(), Some((1, 8 * 65536)), "the cursor holds it");
    log.set_cursor_bound(4 * 64 * 1024);
    assert!(!log.take_lost_cursor_flag());
    log.append_control(&block);
    assert!(log.retained_range().unwrap().1 <= 5 * 65536);
    assert!(log.take_lost_cursor_flag(), "it may wait for its peer and not read for long");
    log.append_control(&block);
    assert!(!log.take_lost_cursor_flag(), "it has fallen off once");
    let mut out = Vec::new();
    assert_eq!(log.read(cursor, 10, &mut out), Err(CursorLostError));
    log.remove_cursor(cursor);
    log.remove_cursor(cursor);
    assert!(log.retained_range().unwrap().1 <= 2 * 65536);
}

proptest! {
    /// Compares the log with one long buffer: a cursor reads the stream without gaps, and the log retains a bounded
    /// number of bytes.
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
                    log.append_control(&bytes);
                    all.extend(bytes);
                }
                1 => {
                    let start = log.retained_range().unwrap().0 as usize - 1;
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
            prop_assert!(log.retained_range().unwrap().1 < capacity.max(held) + 2 * 65536);
        }
    }
}

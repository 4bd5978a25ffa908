use std::time::Duration;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn open_log(capacity: u64) -> Arc<SharedLog> {
    let log = SharedLog::new(capacity);
    log.open(&mut log.lock());
    log
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(MINUTE, future).await.expect("it was woken") })
}

#[test]
fn engine_appends_only_while_the_log_is_open() {
    let log = SharedLog::new(1000);
    let handle = EngineLogHandle(log.clone());
    assert!(!handle.has_readers());
    log.open(&mut log.lock());
    let id = log.lock().position().id;
    log.open(&mut log.lock());
    assert_eq!(log.lock().position().id, id, "opening it again changes nothing");
    assert!(handle.has_readers());
    let end = handle.append(0, b"SET a 1\r\n");
    assert_eq!(end, log.lock().position().offset);
    log.close();
    assert!(!handle.has_readers());
}

#[test]
fn first_write_is_recorded_once_per_request() {
    let log = open_log(1000);
    let handle = EngineLogHandle(log.clone());
    handle.append(0, b"x");
    assert_eq!(log.take_first_write(), None, "nobody has asked");
    log.watch_first_write();
    log.append(0, b"x");
    assert_eq!(log.take_first_write(), None, "no client has sent it");
    let before = process::time::now();
    handle.append(0, b"x");
    let first = log.take_first_write().expect("a write");
    assert!(before <= first && first <= process::time::now());
    handle.append(0, b"x");
    assert_eq!(log.take_first_write(), None);
}

#[test]
fn migrations_and_the_append_only_file_keep_the_log_open() {
    let log = SharedLog::new(1000);
    assert!(!log.is_kept_open());
    log.begin_migration();
    log.begin_migration();
    log.end_migration();
    assert!(log.is_kept_open(), "one migration is running");
    log.set_kept_open(true);
    log.end_migration();
    assert!(log.is_kept_open(), "the append-only file reads it");
    log.set_kept_open(false);
    assert!(!log.is_kept_open());
}

#[test]
fn growth_and_new_histories_wake_readers() {
    let log = open_log(1000);
    let begin = log.lock().position();
    let append_control = || {
        log.append_control(b"PING\r\n");
    };
    let adopt = || {
        log.adopt_loaded_history(ReplPosition { offset: ReplOffset(1_000_000), ..begin });
    };
    let actions: [&dyn Fn(); 3] = [&|| log.append(0, b"x"), &append_control, &adopt];
    for action in actions {
        let before = log.lock().position();
        let grown = log.wait_for_growth(|| Some(log.lock().position()).filter(|now| *now != before));
        let (after, ()) = block_on(async { tokio::join!(grown, async { action() }) });
        assert_ne!(after, before);
    }
}

#[test]
fn loaded_history_continues_under_a_new_id() {
    let log = SharedLog::new(1000);
    let loaded = ReplPosition { id: random_repl_id(), offset: ReplOffset(77) };
    log.adopt_loaded_history(loaded);
    let position = log.lock().position();
    assert_eq!(position.offset, loaded.offset);
    assert_ne!(position.id, loaded.id);
    log.adopt_position(loaded);
    assert_eq!(log.lock().position(), loaded);
}

#[test]
fn readers_are_registered_until_their_guard_is_dropped() {
    let log = open_log(1000);
    let begin = log.lock().position().offset;
    let one = log.lock().add_cursor(begin);
    let other = log.lock().add_cursor(begin);
    let session = engine::Session::new(1, engine::CommandOrigin::Client, true);
    let registered = log.add_reader(one, session.client());
    let _stays = log.add_reader(other, session.client());
    drop(registered);
    let left: Vec<CursorId> = log.readers.lock().iter().map(|(cursor, _)| *cursor).collect();
    assert_eq!(left, [other]);
}

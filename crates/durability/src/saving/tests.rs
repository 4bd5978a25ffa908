use std::fs;
use std::path::Path;

use slot_routing::ReplOffset;

use super::*;
use crate::append_only::UnfinishedAofPolicy;
use crate::testing::{TestFolder, TestServer, import_of_keys, wait_until_past};

const FILE: &str = "dump.rdb";

fn finish_without_result(server: &TestServer) {
    let mut state = server.durability.rdb_saves.state.lock();
    state.saves.abort_start();
    state.cancellation = None;
}

#[test]
fn saved_data_is_loaded_at_the_next_start() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::new(&[]);
    assert_eq!(server.load().unwrap(), Some(ReplOffset(0)), "there is no file");
    server.run("SET a 1");
    assert_eq!(server.info("rdb_changes_since_last_save"), "1");
    save(&server.durability).unwrap();
    assert_eq!(
        (server.info("rdb_changes_since_last_save"), server.info("rdb_saves")),
        ("0".into(), "1".into())
    );
    let mut next = TestServer::start(&[]);
    assert_eq!(next.run("GET a"), "$11");
    assert_eq!(next.info("rdb_last_load_keys_loaded"), "1");
}

#[test]
fn file_records_the_position_in_the_replication_history() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::new(&[]);
    server.open_log();
    server.run("SET a 1");
    let position = server.durability.log.lock().position();
    save(&server.durability).unwrap();
    let next = TestServer::new(&[]);
    assert_eq!(next.load().unwrap(), Some(position.offset));
    assert_eq!(next.durability.log.lock().position(), position);
}

#[test]
fn file_of_a_closed_log_claims_no_position() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::new(&[]);
    server.run("SET a 1");
    save(&server.durability).unwrap();
    assert_eq!(TestServer::new(&[]).load().unwrap(), None);
}

#[test]
fn file_with_missing_changes_claims_no_position() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::new(&[]);
    server.open_log();
    server.run("SET a 1");
    server.durability.applied_stream.count_missing_changes(1);
    save(&server.durability).unwrap();
    assert_eq!(TestServer::new(&[]).load().unwrap(), None);
    assert_eq!(server.durability.applied_stream.reset_missing_changes(), 1);
    save(&server.durability).unwrap();
    assert!(TestServer::new(&[]).load().unwrap().is_some());
}

#[test]
fn file_contains_no_imported_slots_and_claims_no_position() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::new(&[]);
    server.open_log();
    server.run("SET a 1");
    server.run("SET b 2");
    let Durability { applied_stream, engine, .. } = &*server.durability;
    applied_stream.imports.start_import(engine, import_of_keys(1, &["a"]));
    save(&server.durability).unwrap();
    let mut next = TestServer::new(&[]);
    assert_eq!(next.load().unwrap(), None);
    assert_eq!((next.run("GET a"), next.run("GET b")), ("$-1".into(), "$12".into()));
}

#[test]
fn damaged_file_prevents_the_start() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::new(&[]);
    server.run("SET a 1");
    save(&server.durability).unwrap();
    let bytes = fs::read(FILE).unwrap();
    fs::write(FILE, &bytes[..bytes.len() - 12]).unwrap();
    let error = TestServer::new(&[]).load().unwrap_err().to_string();
    assert!(error.starts_with("Fatal error loading the DB"), "{error}");
}

/// The master decides when the keys of a replica expire, so a replica keeps them.
#[test]
fn replicas_load_expired_keys_and_masters_delete_them() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::new(&[]);
    let expiry = clock::Millis(process::time::now().0 + 300);
    assert_eq!(server.run(&format!("SET a 1 PXAT {}", expiry.0)), "+OK");
    save(&server.durability).unwrap();
    wait_until_past(expiry);
    let replica = TestServer::start(&[("replicaof", "127.0.0.1 1")]);
    assert_eq!(replica.durability.engine.keyspace.key_count(), 1);
    let master = TestServer::start(&[]);
    assert_eq!(master.durability.engine.keyspace.key_count(), 0);
    assert_eq!(master.info("rdb_last_load_keys_expired"), "1");
    let skipped = take_skipped_keys(&master.durability);
    assert_eq!(skipped.commands_by_database().map(<[_]>::len), Some(1), "replicas must delete the key");
    let again = take_skipped_keys(&master.durability);
    assert_eq!(again.commands_by_database().map(<[_]>::len), Some(0));
}

#[test]
fn failed_save_stops_writes_if_configured() {
    let _folder = TestFolder::enter();
    // A file cannot replace a folder.
    fs::create_dir_all(Path::new(FILE).join("x")).unwrap();
    let server = TestServer::new(&[("save", "60 1")]);
    assert!(matches!(save(&server.durability), Err(SaveError::Failed(_))));
    assert_eq!(server.info("rdb_last_bgsave_status"), "err");
    let stops_writes = |name, value| {
        server.set(name, value);
        update_write_gate(&server.durability);
        server.has_flag(NodeFlags::MISCONF)
    };
    assert!(stops_writes("save", "60 1"));
    assert!(!stops_writes("save", ""), "nobody expects saves");
    assert!(stops_writes("save", "60 1"));
    assert!(!stops_writes("stop-writes-on-bgsave-error", "no"));
    assert!(stops_writes("stop-writes-on-bgsave-error", "yes"));
    fs::remove_dir_all(FILE).unwrap();
    save(&server.durability).unwrap();
    assert!(!server.has_flag(NodeFlags::MISCONF));
    assert_eq!(server.info("rdb_last_bgsave_status"), "ok");
}

#[test]
fn only_background_saves_can_be_cancelled() {
    let _folder = TestFolder::enter();
    let server = TestServer::new(&[]);
    let saves = &server.durability.rdb_saves;
    assert!(!saves.cancel(), "none is running");
    let foreground = start_save(&server.durability, SaveKind::Foreground).unwrap();
    assert!(!saves.cancel() && !foreground.is_cancelled(&server.durability));
    assert!(matches!(save_in_background(&server.durability), Err(SaveError::Running)));
    assert!(matches!(save(&server.durability), Err(SaveError::Running)));
    finish_without_result(&server);
    let background = start_save(&server.durability, SaveKind::Background).unwrap();
    assert_eq!(server.info("rdb_bgsave_in_progress"), "1");
    assert!(saves.cancel() && background.is_cancelled(&server.durability));
    assert_eq!(server.info("rdb_bgsave_in_progress"), "0", "it is about to end");
}

#[test]
fn deleting_all_data_cancels_background_saves_only() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::new(&[]);
    for (kind, is_cancelled) in [(SaveKind::Background, true), (SaveKind::Foreground, false)] {
        let cancellation = start_save(&server.durability, kind).unwrap();
        assert!(!cancellation.is_cancelled(&server.durability));
        server.run("FLUSHALL");
        assert_eq!(cancellation.is_cancelled(&server.durability), is_cancelled, "{kind:?}");
        finish_without_result(&server);
    }
}

#[test]
fn cancelled_save_keeps_the_old_file_and_result() {
    let folder = TestFolder::enter();
    let mut server = TestServer::new(&[]);
    server.run("SET a 1");
    save(&server.durability).unwrap();
    let before = fs::read(FILE).unwrap();
    server.run("SET a 2");
    let cancellation = start_save(&server.durability, SaveKind::Background).unwrap();
    assert!(server.durability.rdb_saves.cancel());
    assert!(run_save(&server.durability, &cancellation, SaveKind::Background).is_err());
    assert_eq!(fs::read(FILE).unwrap(), before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "the temporary file is gone");
    assert_eq!(server.info("rdb_last_bgsave_status"), "ok");
    assert_eq!(server.info("rdb_changes_since_last_save"), "1");
    save(&server.durability).unwrap();
}

#[test]
fn shutdown_saves_what_was_requested_but_no_partial_data() {
    let _folder = TestFolder::enter();
    let server = TestServer::new(&[]);
    let table = [
        ("60 1", ShutdownSave::AsConfigured, None, true),
        ("", ShutdownSave::AsConfigured, None, false),
        ("", ShutdownSave::Save, None, true),
        ("60 1", ShutdownSave::NoSave, None, false),
        ("60 1", ShutdownSave::Save, Some(NodeFlags::LOADING), false),
        ("60 1", ShutdownSave::Save, Some(NodeFlags::EMPTY_MASTER), false),
    ];
    for (save_points, requested, flag, is_saved) in table {
        server.set("save", save_points);
        flag.inspect(|flag| server.set_flag(*flag, true));
        save_at_shutdown(&server.durability, requested, UnfinishedAofPolicy::AbortShutdown).unwrap();
        flag.inspect(|flag| server.set_flag(*flag, false));
        assert_eq!(fs::remove_file(FILE).is_ok(), is_saved, "{save_points:?} {requested:?} {flag:?}");
    }
}

#[test]
fn shutdown_waits_for_the_running_save_and_fails_if_the_final_one_does() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::new(&[("save", "60 1")]);
    server.run("SET a 1");
    let running = start_save(&server.durability, SaveKind::Background).unwrap();
    let saver = server.durability.clone();
    let ended = std::thread::spawn(move || run_save(&saver, &running, SaveKind::Background).is_ok());
    save_at_shutdown(&server.durability, ShutdownSave::AsConfigured, UnfinishedAofPolicy::AbortShutdown)
        .unwrap();
    ended.join().unwrap();
    assert_eq!(TestServer::start(&[]).run("GET a"), "$11");
    fs::remove_file(FILE).unwrap();
    fs::create_dir_all(Path::new(FILE).join("x")).unwrap();
    let failed = save_at_shutdown(&server.durability, ShutdownSave::Save, UnfinishedAofPolicy::AbortShutdown);
    assert!(matches!(failed, Err(SaveError::Failed(_))));
}

#[test]
fn reload_replaces_the_data_or_adds_to_it() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::new(&[]);
    server.run("SET a 1");
    save(&server.durability).unwrap();
    for (merges, b) in [(true, "$12"), (false, "$-1")] {
        server.run("SET b 2");
        server.run("DEL a");
        let mut is_loaded = false;
        let options = ReloadOptions { saves_first: false, merges };
        reload(&server.durability, options, true, |_| is_loaded = true).unwrap();
        assert!(is_loaded && !server.has_flag(NodeFlags::LOADING));
        assert_eq!((server.run("GET a"), server.run("GET b")), ("$11".into(), b.into()), "{merges}");
    }
    server.run("SET b 3");
    reload(&server.durability, ReloadOptions { saves_first: true, merges: false }, true, |_| ()).unwrap();
    assert_eq!(server.run("GET b"), "$13");
    fs::remove_file(FILE).unwrap();
    let options = ReloadOptions { saves_first: false, merges: false };
    let failed = reload(&server.durability, options, true, |_| unreachable!("nothing was loaded"));
    assert!(matches!(failed, Err(SaveError::Failed(_))));
}

#[test]
fn full_resyncs_are_shown_as_a_save_until_the_last_one_ends() {
    let _folder = TestFolder::enter();
    let server = TestServer::new(&[]);
    let progress = || {
        let names = ["rdb_bgsave_in_progress", "current_save_keys_processed", "current_save_keys_total"];
        names.map(|name| server.info(name)).join(" ")
    };
    let saves = &server.durability.rdb_saves;
    let first = saves.show_transfer_as_save(3);
    first.written_keys().fetch_add(2, Ordering::Relaxed);
    assert_eq!(progress(), "1 2 3");
    let second = saves.show_transfer_as_save(4);
    assert_eq!(progress(), "1 2 7");
    drop(first);
    assert_eq!(progress(), "1 2 7");
    assert_eq!(server.info("rdb_last_bgsave_time_sec"), "-1");
    drop(second);
    assert_eq!((progress().as_str(), server.info("rdb_last_bgsave_time_sec").as_str()), ("0 0 0", "0"));
    let _third = saves.show_transfer_as_save(1);
    assert_eq!(progress(), "1 0 1", "the counters start again");
}

#[test]
fn keys_of_a_full_resync_count_as_unsaved_changes() {
    let _folder = TestFolder::enter();
    let server = TestServer::new(&[]);
    record_resync(&server.durability, 5);
    assert_eq!(server.info("rdb_changes_since_last_save"), "5");
    save(&server.durability).unwrap();
    assert_eq!(server.info("rdb_changes_since_last_save"), "0");
}

#[test]
fn file_of_a_full_resync_replaces_the_own_file_or_deletes_it() {
    let _folder = TestFolder::enter();
    let mut master = TestServer::new(&[]);
    master.run("SET a master");
    save(&master.durability).unwrap();
    let sent = fs::read(FILE).unwrap();
    let receive = |server: &TestServer| {
        fs::write(FILE, "an older file").unwrap();
        let mut file = create_temporary_file(&server.durability).unwrap();
        std::io::Write::write_all(&mut file, &sent).unwrap();
        adopt_resync_file(&server.durability, file, 1);
    };
    let replica = TestServer::new(&[("save", "60 1"), ("rdb-del-sync-files", "yes")]);
    record_resync(&replica.durability, 7);
    receive(&replica);
    assert_eq!(replica.info("rdb_changes_since_last_save"), "0");
    assert_eq!(TestServer::start(&[]).run("GET a"), "$6master");
    receive(&TestServer::new(&[("save", ""), ("rdb-del-sync-files", "no")]));
    assert!(Path::new(FILE).exists());
    receive(&TestServer::new(&[("save", ""), ("rdb-del-sync-files", "yes")]));
    assert!(!Path::new(FILE).exists(), "a node without persistence must not start from it");
}

#[test]
fn only_abandoned_temporary_files_are_removed() {
    let _folder = TestFolder::enter();
    let server = TestServer::new(&[]);
    let in_use = create_temporary_file(&server.durability).unwrap();
    let (file, abandoned) = create_temporary_file(&server.durability).unwrap().keep().unwrap();
    drop(file);
    remove_temporary_files(&server.durability);
    assert!(in_use.path().exists() && !abandoned.exists());
}

#[test]
fn save_points_are_not_evaluated_while_loading() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::new(&[("save", "1 1")]);
    server.durability.rdb_saves.state.lock().saves = SaveTracker::new(0);
    server.run("SET a 1");
    for flag in [NodeFlags::LOADING, NodeFlags::ASYNC_LOADING] {
        server.set_flag(flag, true);
        assert_eq!(due_save_reason(&server.durability), None);
        server.set_flag(flag, false);
    }
    assert!(matches!(due_save_reason(&server.durability), Some(SaveReason::SavePointReached(_))));
    save(&server.durability).unwrap();
    assert_eq!(due_save_reason(&server.durability), None);
    server.durability.rdb_saves.reset_counts();
    assert_eq!(server.info("rdb_saves"), "0");
}

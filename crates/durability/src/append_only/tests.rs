use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;

use replication::wait::DiskProgress;
use slot_routing::Slot;

use crate::stream::imports::{encode_begin, encode_end};
use crate::testing::{TestFolder, TestServer, import_of_keys};
use crate::{Durability, append_only, saving};

const ENABLED: &[(&str, &str)] = &[("appendonly", "yes")];

/// Returns the files of the append-only directory whose names have this end.
fn files(end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir("appendonlydir").unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(end));
    paths.sort();
    paths
}

#[test]
fn writes_survive_a_restart_with_their_databases() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::start(ENABLED);
    server.run("SET a 1");
    server.run("SELECT 1");
    server.run("SET a 2");
    server.stop();
    let mut next = TestServer::start(ENABLED);
    assert_eq!(next.run("GET a"), "$11");
    next.run("SELECT 1");
    assert_eq!(next.run("GET a"), "$12");
    // The next write goes to the file that was loaded.
    next.run("SET a 3");
    next.stop();
    let mut last = TestServer::start(ENABLED);
    last.run("SELECT 1");
    assert_eq!(last.run("GET a"), "$13");
}

#[test]
fn first_start_takes_over_the_data_of_the_rdb_file() {
    let _folder = TestFolder::enter();
    let mut before = TestServer::new(&[]);
    before.run("SET a 1");
    saving::save(&before.durability).unwrap();
    TestServer::start(ENABLED).stop();
    fs::remove_file("dump.rdb").unwrap();
    assert_eq!(TestServer::start(ENABLED).run("GET a"), "$11");
}

#[test]
fn append_only_file_is_loaded_instead_of_the_rdb_file() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::start(ENABLED);
    server.run("SET a 1");
    saving::save(&server.durability).unwrap();
    server.run("SET a 2");
    server.stop();
    assert_eq!(TestServer::start(&[]).run("GET a"), "$11");
    assert_eq!(TestServer::start(ENABLED).run("GET a"), "$12");
}

#[test]
fn incomplete_last_command_is_cut_off_if_configured() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::start(ENABLED);
    server.run("SET a 1");
    server.stop();
    let [increment] = &files(".incr.aof")[..] else { panic!("one increment: {:?}", files("")) };
    let append = |bytes: &[u8]| {
        OpenOptions::new().append(true).open(increment).unwrap().write_all(bytes).unwrap();
    };
    append(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nla");
    let strict = TestServer::new(&[("appendonly", "yes"), ("aof-load-truncated", "no")]);
    assert!(strict.load().is_err());
    let mut next = TestServer::start(&[("appendonly", "yes"), ("aof-load-truncated", "yes")]);
    assert_eq!(next.run("GET a"), "$11");
    next.stop();
    // Garbage is not the end of an interrupted write.
    append(b"no command\r\n");
    assert!(TestServer::new(&[("appendonly", "yes"), ("aof-load-truncated", "yes")]).load().is_err());
}

#[test]
fn rewrite_replaces_all_files_by_a_base_with_the_data() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::start(ENABLED);
    (0..100).for_each(|_| drop(server.run("INCR n")));
    let data_files = || [files(".base.rdb"), files(".incr.aof")].concat();
    let before = data_files();
    append_only::rewrite_now(&server.durability).unwrap();
    assert_eq!(server.info("aof_last_bgrewrite_status"), "ok");
    let after = data_files();
    assert_eq!(after.len(), 2, "{after:?}");
    assert!(after.iter().all(|path| !before.contains(path)), "{before:?}, then {after:?}");
    server.run("INCR n");
    server.stop();
    assert_eq!(TestServer::start(ENABLED).run("GET n"), "$3101");
}

#[test]
fn base_written_while_disabled_is_loaded_once_enabled() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::start(&[]);
    server.run("SET a 1");
    append_only::rewrite_now(&server.durability).unwrap();
    assert!(!server.durability.append_only.is_enabled());
    assert_eq!(TestServer::start(ENABLED).run("GET a"), "$11");
}

#[test]
fn import_in_the_file_runs_until_its_end_is_found() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::start(ENABLED);
    let import = import_of_keys(1, &["a"]);
    server.durability.log.append_control(&encode_begin(&import));
    server.stop();
    let next = TestServer::start(ENABLED);
    let Durability { applied_stream, engine, .. } = &*next.durability;
    let running: Vec<_> = applied_stream.imports.running_imports();
    assert_eq!(running.iter().map(|import| import.name).collect::<Vec<_>>(), [import.name]);
    assert!(engine.keyspace.lock(Slot::of_key(b"a")).is_hidden());
    next.durability.log.append_control(&encode_end(engine, &import, &Ok(())));
    next.stop();
    let last = TestServer::start(ENABLED);
    let Durability { applied_stream, engine, .. } = &*last.durability;
    assert!(applied_stream.imports.is_empty());
    assert!(!engine.keyspace.lock(Slot::of_key(b"a")).is_hidden());
    server.run("PING");
}

#[test]
fn progress_on_disk_is_known_only_while_enabled() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::start(&[("appendonly", "yes"), ("appendfsync", "always")]);
    server.run("SET a 1");
    let end = server.durability.log.lock().position().offset;
    let shared = server.durability.append_only.clone();
    shared.sync_log().unwrap();
    assert_eq!(shared.disk_progress(), DiskProgress::SyncedUpTo(end));
    assert!(server.durability.log.is_kept_open());
    shared.disable();
    assert_eq!(shared.disk_progress(), DiskProgress::Disabled);
    assert!(!server.durability.log.is_kept_open() && !shared.is_enabled());
    assert_eq!(server.info("aof_enabled"), "0");
}

#[test]
fn enabling_at_runtime_writes_the_current_data() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::start(&[]);
    server.run("SET a 1");
    append_only::enable(&server.durability).unwrap();
    server.run("SET b 2");
    server.durability.append_only.wait_for_rewrite();
    server.stop();
    let mut next = TestServer::start(ENABLED);
    assert_eq!((next.run("GET a"), next.run("GET b")), ("$11".into(), "$12".into()));
}

#[test]
fn reloading_keeps_appending_to_the_files() {
    let _folder = TestFolder::enter();
    let mut server = TestServer::start(ENABLED);
    server.run("SET a 1");
    assert!(append_only::reload(&server.durability).unwrap());
    assert_eq!(server.run("GET a"), "$11");
    server.run("SET a 2");
    server.stop();
    assert_eq!(TestServer::start(ENABLED).run("GET a"), "$12");
    let disabled = TestServer::new(&[("appenddirname", "otherdir")]);
    assert!(!append_only::reload(&disabled.durability).unwrap(), "there is no file");
}

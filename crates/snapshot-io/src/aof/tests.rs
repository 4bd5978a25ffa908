use engine::{CommandSet, Engine, NoLog};
use keyspace::Keyspace;

use super::*;
use crate::testing::NoopHost;

/// The commands of the test file, each with the number of keys that a file ending after that command loads.
const COMMANDS: [(&[&str], usize); 8] = [
    (&["SELECT", "0"], 0),
    (&["SET", "a", "1"], 1),
    (&["MULTI"], 1),
    (&["SET", "b", "1"], 1),
    (&["SET", "c", "1"], 1),
    (&["EXEC"], 3),
    (&["SET", "d", "12345678901234567890"], 4),
    (&["RPUSH", "e", "one", "two"], 5),
];
const ANNOTATION: &[u8] = b"#TS:1700000000\r\n";

/// Builds the test file. Also returns each offset at which commands and transactions are complete, with the number of
/// keys at that point.
fn build_file() -> (Vec<u8>, Vec<(usize, usize)>) {
    let (mut bytes, mut ends) = (Vec::new(), vec![(0, 0)]);
    for (words, keys) in COMMANDS {
        resp::encode_request(&mut bytes, words.iter().map(|word| word.as_bytes()));
        let is_inside = words[0] == "MULTI" || (words[0] == "SET" && matches!(words[1], "b" | "c"));
        if !is_inside {
            ends.push((bytes.len(), keys));
        }
        if words[0] == "EXEC" {
            bytes.extend_from_slice(ANNOTATION);
            ends.push((bytes.len(), keys));
        }
    }
    (bytes, ends)
}

struct TestServer {
    engine: Engine,
    commands: CommandSet,
}

impl TestServer {
    fn new() -> Self {
        let commands = CommandSet::new(::commands::server_registry());
        let catalogue = commands.registry().catalogue();
        let engine = Engine::new(catalogue, Keyspace::new(7, 1), None, Box::new(NoLog));
        Self { engine, commands }
    }

    /// Loads a file with this content. Returns the offset up to which it is complete, and the number of loaded keys.
    fn load(&self, bytes: &[u8]) -> (Result<u64, ReplayError>, usize) {
        let (outcome, _) = self.load_to_position(bytes);
        (outcome, self.engine.keyspace.sizes().iter().map(|size| size.keys).sum())
    }

    /// Loads a file with this content. Returns the offset up to which it is complete, and the replication position.
    fn load_to_position(&self, bytes: &[u8]) -> (Result<u64, ReplayError>, Option<ReplPosition>) {
        let Self { engine, commands } = self;
        let host = &NoopHost;
        let loader =
            Loader { engine, commands, store_threads: 1, verify_checksum: true, max_deletion_bytes: 0, host };
        clear_for_loading(engine);
        let mut session = Session::new(0, CommandOrigin::Master, true);
        let mut replay = ReplayState::default();
        let outcome = loader.run_commands(&mut session, bytes, 0, &mut replay);
        (outcome, replay.position)
    }
}

#[test]
fn truncated_file_is_complete_up_to_its_last_command() {
    let fixture = TestServer::new();
    let (bytes, ends) = build_file();
    for len in 0..=bytes.len() {
        let (end, keys) = *ends.iter().rfind(|(end, _)| *end <= len).unwrap();
        let (outcome, loaded) = fixture.load(&bytes[..len]);
        let whole = outcome.unwrap_or_else(|stop| panic!("cut at {len}: {stop:?}"));
        assert_eq!((loaded, whole), (keys, end as u64), "cut at {len}");
        assert_eq!(fixture.load(&bytes[..end]).1, keys, "what is left is whole");
    }
}

#[test]
fn corrupt_byte_gives_error_or_different_command() {
    let fixture = TestServer::new();
    let (bytes, _) = build_file();
    for at in 0..bytes.len() {
        for wrong in [0, b'*', b'$', b'\n', b'9', b'-', bytes[at] ^ 0x55] {
            let mut changed = bytes.clone();
            changed[at] = wrong;
            if let (Err(ReplayError::Format { offset, .. }), _) = fixture.load(&changed) {
                assert!(offset <= bytes.len() as u64);
            }
        }
    }
}

/// A server is killed while writing a transaction and restarts. The next annotation that it writes must match the
/// replication position at which the truncated file ends.
#[test]
fn incomplete_transaction_resets_position_to_truncation_point() {
    let fixture = TestServer::new();
    let annotation = format!("#REPL:{} 100\r\n", "a".repeat(40));
    let (bytes, ends) = build_file();
    let end_of_first = bytes.windows(ANNOTATION.len()).position(|some| some == ANNOTATION).unwrap();
    for len in 0..=end_of_first {
        let (end, _) = *ends.iter().rfind(|(end, _)| *end <= len).unwrap();
        let torn = [annotation.as_bytes(), &bytes[..len]].concat();
        let (outcome, position) = fixture.load_to_position(&torn);
        assert_eq!(outcome.unwrap(), (annotation.len() + end) as u64, "cut at {len}");
        assert_eq!(position.unwrap().offset, ReplOffset(100 + end as u64), "cut at {len}");
    }
}

/// As in Valkey, an unknown command aborts the load: a server with other commands wrote the file, so the effect of the
/// following commands would not be certain.
#[test]
fn unknown_command_aborts_the_load() {
    let fixture = TestServer::new();
    let set = |value: &str| request(&["SET", "key", value]);
    let before = [set("1"), request(&["MULTI"]), set("2"), request(&["EXEC"]), set("3")].concat();
    let table: [(&[&str], &str); 5] = [
        (&["NOSUCH", "a"], "ERR unknown command 'NOSUCH', with args beginning with: 'a' "),
        (&["SET", "a"], "ERR wrong number of arguments for 'set' command"),
        (&["XGROUP", "NOSUCH", "a", "b"], "ERR unknown subcommand 'NOSUCH'. Try XGROUP HELP."),
        (&["XGROUP", "CREATE", "a"], "ERR wrong number of arguments for 'xgroup|create' command"),
        (&["XGROUP"], "ERR wrong number of arguments for 'xgroup' command"),
    ];
    for (words, text) in table {
        let wrong = request(words);
        let inside = [request(&["MULTI"]), set("4"), wrong.clone(), request(&["EXEC"])].concat();
        let depth = inside.len() - wrong.len() - request(&["EXEC"]).len();
        for (tail, at) in [(wrong, 0), (inside, depth)] {
            let bytes = [before.clone(), tail, set("5")].concat();
            let (Err(ReplayError::Command { offset, error }), _) = fixture.load(&bytes) else {
                panic!("{words:?} was taken")
            };
            assert_eq!((offset, error.as_str()), ((before.len() + at) as u64, text), "{words:?}");
        }
    }
    // A command that fails when executed is reported, and the load continues.
    let bytes = [set("1"), request(&["RPUSH", "key", "x"]), request(&["SET", "other", "1"])].concat();
    let (outcome, keys) = fixture.load(&bytes);
    assert_eq!((outcome.ok(), keys), (Some(bytes.len() as u64), 2));
}

fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    resp::encode_request(&mut bytes, words.iter().map(|word| word.as_bytes()));
    bytes
}

/// Some old Redis versions wrote empty collections.
#[test]
fn empty_collections_are_skipped_and_counted() {
    let fixture = TestServer::new();
    let host = &NoopHost;
    let loader = Loader {
        engine: &fixture.engine,
        commands: &fixture.commands,
        store_threads: 2,
        verify_checksum: true,
        max_deletion_bytes: 0,
        host,
    };
    // A file with an empty hash, a string, a quicklist with one empty listpack, an empty set, an empty sorted set, and
    // a hash stored as a ziplist.
    let file =
        b"REDIS0009\xfe\x00\x04\x01h\x00\x00\x01k\x01v\x12\x01q\x01\x02\x07\x07\0\0\0\0\0\xff\x02\x01s\x00\
        \x05\x01z\x00\x0d\x01f\x0b\x0b\0\0\0\x0a\0\0\0\0\0\xff\xff\0\0\0\0\0\0\0\0";
    let loaded = loader.replace_dataset(&file[..], file.len() as u64, true, || true).expect("it is loaded");
    assert_eq!((loaded.keys, loaded.empty_keys), (1, 5));
    assert_eq!(fixture.engine.keyspace.sizes()[0].keys, 1);
}

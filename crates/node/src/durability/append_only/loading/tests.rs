use config::Config;
use engine::{Commands, Engine};
use keyspace::Keyspace;

use super::*;
use crate::process::settings;
use crate::replication::{LogHandle, SharedLog};
use crate::server::{Identity, Server};

/// A file that ends in the middle of each of these, and how many keys there are up to the last whole command or
/// transaction before.
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

/// The file, and where whole commands and transactions end with how many keys there are then.
fn file() -> (Vec<u8>, Vec<(usize, usize)>) {
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

struct Fixture {
    server: Arc<Server>,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let log = SharedLog::new(1 << 20);
        let commands = Commands::new(::commands::of_server());
        let catalogue = commands.registry().catalogue();
        let engine = Engine::new(catalogue, Keyspace::new(7, 1), None, Box::new(LogHandle(log.clone())));
        let server = Server::new((engine, commands), Config::default(), Identity::default(), log);
        settings::apply(&server);
        Self { server, folder: tempfile::tempdir().unwrap() }
    }

    /// Loads a file of these bytes. Gives how many keys there are, and what is left of the file.
    fn load(&self, bytes: &[u8], truncates: bool) -> (Result<(), AofError>, usize, Vec<u8>) {
        let path = self.folder.path().join("incr.aof");
        std::fs::write(&path, bytes).unwrap();
        let durability = &self.server.durability;
        clear(durability);
        let mut session = Session::new(0, Origin::Master, true);
        let outcome = run_file(
            durability,
            &mut session,
            &Part { path: &path, begin: 0, truncates },
            &mut Ran::default(),
        );
        let keys = durability.engine.keyspace.sizes().iter().map(|size| size.keys).sum();
        (outcome, keys, std::fs::read(&path).unwrap())
    }
}

#[test]
fn torn_at_any_byte_it_loads_up_to_the_last_whole_command_or_not_at_all() {
    let fixture = Fixture::new();
    let (bytes, ends) = file();
    for len in 0..=bytes.len() {
        let torn = &bytes[..len];
        let (end, keys) = *ends.iter().rfind(|(end, _)| *end <= len).unwrap();
        let (outcome, loaded, left) = fixture.load(torn, true);
        assert!(outcome.is_ok(), "cut at {len}: {outcome:?}");
        assert_eq!((loaded, left.len()), (keys, end), "cut at {len}");
        assert_eq!(fixture.load(&left, false).1, keys, "what is left is whole");
        let (outcome, _, left) = fixture.load(torn, false);
        match outcome {
            Ok(()) => assert_eq!(end, len),
            Err(AofError::Truncated { whole, .. }) => assert_eq!((whole, end < len), (end as u64, true)),
            Err(other) => panic!("cut at {len}: {other}"),
        }
        assert_eq!(left, torn, "nothing is changed");
    }
}

#[test]
fn a_byte_that_is_wrong_is_an_error_with_its_place_or_another_command() {
    let fixture = Fixture::new();
    let (bytes, _) = file();
    for at in 0..bytes.len() {
        for wrong in [0, b'*', b'$', b'\n', b'9', b'-', bytes[at] ^ 0x55] {
            let mut changed = bytes.clone();
            changed[at] = wrong;
            if let (Err(AofError::Format { offset, .. }), ..) = fixture.load(&changed, true) {
                assert!(offset <= bytes.len() as u64);
            }
        }
    }
}

//! Fuzzes commands whose keys depend on other arguments: no handler may access a key that its command has not declared.
//! Each input line is a request with arguments separated by blanks, and runs alone and in a transaction.

use std::cell::RefCell;

use clock::Millis;
use commands::server_registry;
use engine::{
    BeginSearch, CommandOrigin, CommandRunner, CommandSet, DispatchStatus, Engine, FindKeys, KeySpec, NoLog,
    PipelinedRequests, Session, Worker,
};
use keyspace::Keyspace;
use resp::{Batch, ParseLimits, Parser};

/// Commands that create values for the other commands.
const VALUE_CREATING_COMMANDS: &[&[u8]] =
    &[b"geoadd", b"rpush", b"sadd", b"set", b"xadd", b"xgroup", b"zadd"];
/// The maximum number of words in a request. Longer requests exercise no additional code.
const MAX_WORDS: usize = 64;

thread_local! {
    /// A client that is created once per thread, because creating a keyspace is slow.
    static FUZZED_CLIENT: RefCell<FuzzedClient> = RefCell::new(FuzzedClient::new());
}

/// Runs each line of `bytes` as a request on an empty server.
///
/// # Panics
/// A handler accesses a key that its command has not declared.
pub fn fuzz_keys(bytes: &[u8]) {
    FUZZED_CLIENT.with_borrow_mut(|client| {
        client.call_command(&[b"flushall"]);
        for line in bytes.split(|byte| *byte == b'\n') {
            let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').take(MAX_WORDS).collect();
            if is_fuzzed_command(words[0]) {
                client.call_command(&words);
                client.call_command(&[b"multi"]);
                client.call_command(&words);
                client.call_command(&[b"exec"]);
            }
            assert_eq!(client.engine.diagnostics.undeclared_keys.count(), 0, "{}", line.escape_ascii());
        }
    });
}

/// Whether the command has keys at variable positions, or creates values for such commands. Scripts are excluded
/// because they may never end.
fn is_fuzzed_command(name: &[u8]) -> bool {
    let moves = |spec: &KeySpec| {
        !matches!((spec.search_start, spec.find_keys), (BeginSearch::Index(_), FindKeys::Range { .. }))
    };
    let found = server_registry().find(name).map(|entry| entry.command);
    let has_moving_keys = found.is_some_and(|command| {
        !matches!(command.runner, CommandRunner::Script(_))
            && (command.has_key_parser() || command.keys.iter().any(moves))
    });
    has_moving_keys || VALUE_CREATING_COMMANDS.iter().any(|maker| maker.eq_ignore_ascii_case(name))
}

/// A client of an engine that runs in this process.
struct FuzzedClient {
    engine: Engine,
    commands: CommandSet,
    worker: Worker,
    session: Session,
}

impl FuzzedClient {
    fn new() -> Self {
        let engine = Engine::new(server_registry().catalogue(), Keyspace::new(1, 16), None, Box::new(NoLog));
        let worker = engine.new_worker(|| 0);
        let session = Session::new(1, CommandOrigin::Client, true);
        Self { engine, commands: CommandSet::new(server_registry()), worker, session }
    }

    fn call_command(&mut self, words: &[&[u8]]) {
        let (mut buffer, mut batch, mut out) = (Vec::new(), Batch::default(), Vec::new());
        resp::encode_request(&mut buffer, words.iter().copied());
        let parsed = Parser::new().parse(&mut buffer, &mut batch, &ParseLimits::default());
        assert_eq!(parsed.error, None);
        let requests = PipelinedRequests { buffer: &buffer, batch: &batch, first_pending: 0 };
        let dispatcher = self.commands.dispatcher(&self.engine);
        let now = Millis(1_700_000_000_000);
        let (_, flow) = dispatcher.run(&mut self.worker, &mut self.session, now, requests, &mut out);
        if flow != DispatchStatus::Done {
            self.engine.disconnect(&mut self.session);
            self.session = Session::new(self.session.id() + 1, CommandOrigin::Client, true);
        }
    }
}

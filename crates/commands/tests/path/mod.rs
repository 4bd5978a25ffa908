//! Runs a command through the whole engine without sockets: parse from a read buffer, prepare in a batch, execute,
//! write the reply.

use clock::Millis;
use engine::{CommandOrigin, CommandSet, DispatchStatus, Engine, NoLog, PipelinedRequests, Session, Worker};
use keyspace::Keyspace;
use resp::{Batch, ParseLimits, Parser, encode_request};

pub(crate) const PIPELINE_LEN: usize = 16;

const NOW: Millis = Millis(1_700_000_000_000);

/// A server without a replication log, with one client.
pub(crate) struct CommandPath {
    engine: Engine,
    commands: CommandSet,
    worker: Worker,
    session: Session,
    batch: Batch,
    parser: Parser,
    out: Vec<u8>,
}

impl CommandPath {
    pub(crate) fn new() -> Self {
        let commands = CommandSet::new(commands::server_registry());
        let engine =
            Engine::new(commands.registry().catalogue(), Keyspace::new(1, 16), None, Box::new(NoLog));
        let worker = engine.new_worker(|| 0);
        let session = Session::new(1, CommandOrigin::Client, true);
        let (batch, parser, out) = (Batch::default(), Parser::new(), Vec::with_capacity(64 * 1024));
        Self { engine, commands, worker, session, batch, parser, out }
    }

    /// Executes the complete requests in `buffer`. Panics if a request fails.
    pub(crate) fn run(&mut self, buffer: &mut [u8]) {
        let Self { engine, commands, worker, session, batch, parser, out } = self;
        batch.clear();
        out.clear();
        let parsed = parser.parse(buffer, batch, &ParseLimits::default());
        assert_eq!((parsed.consumed_bytes, parsed.error), (buffer.len(), None));
        let (_, flow) = commands.dispatcher(engine).run(
            worker,
            session,
            NOW,
            PipelinedRequests { buffer, batch, first_pending: 0 },
            out,
        );
        assert_eq!(flow, DispatchStatus::Done);
        assert_ne!(out.first(), Some(&b'-'), "{}", String::from_utf8_lossy(out));
    }
}

/// Encodes a request as a client sends it.
pub(crate) fn encode_words<W: AsRef<str>>(words: &[W]) -> Vec<u8> {
    let mut wire = Vec::new();
    encode_request(&mut wire, words.iter().map(|word| word.as_ref().as_bytes()).collect::<Vec<_>>());
    wire
}

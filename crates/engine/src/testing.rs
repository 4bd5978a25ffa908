//! A client without a socket, for the handlers' tests.

use clock::Millis;
use keyspace::Keyspace;
use resp::{Batch, Limits, Parser, Request, Value, parse_value};

use crate::dispatch::{Engine, Flow, Worker};
use crate::effects::NoLog;
use crate::session::{Origin, Session};

pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) worker: Worker,
    pub(crate) session: Session,
    pub(crate) now: Millis,
}

impl Client {
    /// A client of an empty server without cluster mode.
    pub(crate) fn new() -> Self {
        let engine = Engine::new(Keyspace::new(1, 16), None, Box::new(NoLog));
        let worker = engine.worker(|| 0);
        Self {
            engine,
            worker,
            session: Session::new(1, Origin::Client, true),
            now: Millis(1_700_000_000_000),
        }
    }

    /// Sends inline text, several lines for a pipeline, and gives back what the server wrote.
    pub(crate) fn wire(&mut self, text: &str) -> String {
        let mut buffer = format!("{text}\n").into_bytes();
        let mut batch = Batch::default();
        let parsed = Parser::new().parse(&mut buffer, &mut batch, &Limits::default());
        assert_eq!(parsed.error, None, "{text}");
        let mut out = Vec::new();
        let (_, flow) =
            self.engine.run(&mut self.worker, &mut self.session, self.now, &buffer, &batch, 0, &mut out);
        assert!(matches!(flow, Flow::Done | Flow::Close), "{text}: {flow:?}");
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Sends one command as words and reads its reply.
    pub(crate) fn call(&mut self, words: &[&str]) -> Value {
        let request: Request = words.iter().collect();
        let mut buffer = Vec::new();
        resp::encode_request(&mut buffer, request.args().iter());
        let mut batch = Batch::default();
        Parser::new().parse(&mut buffer, &mut batch, &Limits::default());
        let mut out = Vec::new();
        self.engine.run(&mut self.worker, &mut self.session, self.now, &buffer, &batch, 0, &mut out);
        let (value, len) = parse_value(&out).expect("a well-formed reply").expect("a whole reply");
        assert_eq!(len, out.len(), "one reply for one command: {words:?}");
        value
    }

    /// Runs a text table: a line with a command, then its reply on the wire with `\r\n` shown as `|`.
    pub(crate) fn table(&mut self, table: &[(&str, &str)]) {
        for (line, reply) in table {
            assert_eq!(self.wire(line).trim_end_matches("\r\n").replace("\r\n", "|"), *reply, "{line}");
        }
    }
}

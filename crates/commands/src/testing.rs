//! A client without a socket, for the handlers' tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clock::Millis;
use engine::{
    Class, Commands, Dispatcher, EffectLog, Engine, Flow, Link, NoLog, Origin, Requests, Session, Waiter,
    Worker,
};
use keyspace::Keyspace;
use parking_lot::Mutex;
use resp::{Batch, Limits, Parser, Request, Value, parse_value};
use slot_routing::{Endpoint, Epoch, Member, NodeId, ReplOffset, Role, Slot, Topology};

/// The effects that a log was given: the database, then the commands in wire form.
type Told = Vec<(u16, Vec<u8>)>;

/// A log that keeps the effects that it is given, and goes to so many replicas.
#[derive(Debug, Default, Clone)]
pub(crate) struct Kept(Arc<Mutex<Told>>, Arc<AtomicUsize>);

impl EffectLog for Kept {
    fn wanted(&self) -> bool {
        true
    }

    fn append(&self, db: u16, commands: &[u8]) -> ReplOffset {
        let mut kept = self.0.lock();
        kept.push((db, commands.to_vec()));
        ReplOffset(kept.iter().map(|(_, commands)| commands.len() as u64).sum())
    }

    fn replicas(&self) -> usize {
        self.1.load(Ordering::Relaxed)
    }
}

impl Kept {
    /// So many replicas read it from now on.
    pub(crate) fn set_replicas(&self, count: usize) {
        self.1.store(count, Ordering::Relaxed);
    }

    /// The commands in the log so far, each as its database and its words.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (db, commands) in self.0.lock().iter() {
            let (mut batch, mut commands) = (Batch::default(), commands.clone());
            let parsed = Parser::new().parse(&mut commands, &mut batch, &Limits::default());
            assert_eq!((parsed.consumed, parsed.error), (commands.len(), None));
            for index in 0..batch.len() {
                let words = batch.args(index, &commands).iter().map(String::from_utf8_lossy);
                lines.push(format!("{db} {}", words.collect::<Vec<_>>().join(" ")));
            }
        }
        lines
    }
}

/// Runs the requests in `buffer` as they come in one read. Gives the number of the one that was stopped at, why, and
/// what was written.
pub(crate) fn run_read(
    dispatcher: Dispatcher<'_>,
    worker: &mut Worker,
    session: &mut Session,
    now: Millis,
    mut buffer: Vec<u8>,
) -> (usize, Flow, Vec<u8>) {
    let (mut batch, mut out) = (Batch::default(), Vec::new());
    let parsed = Parser::new().parse(&mut buffer, &mut batch, &Limits::default());
    assert_eq!(parsed.error, None, "{}", buffer.escape_ascii());
    let requests = Requests { buffer: &buffer, batch: &batch, from: 0 };
    let (stopped, flow) = dispatcher.run(worker, session, now, requests, &mut out);
    (stopped, flow, out)
}

/// A connection to a server that it shares with others.
pub(crate) struct Connection<'e> {
    pub(crate) session: Session,
    dispatcher: Dispatcher<'e>,
    worker: Worker,
    now: Millis,
}

impl<'e> Connection<'e> {
    /// On a thread of its own, at this time.
    pub(crate) fn new(engine: &'e Engine, commands: &'e Commands, session: Session, now: Millis) -> Self {
        Self { session, dispatcher: commands.on(engine), worker: engine.worker(|| 0), now }
    }

    /// Runs lines as they come in one read: the number of the one that was stopped at, why, and what was written.
    pub(crate) fn run(&mut self, lines: &str) -> (usize, Flow, String) {
        let Self { session, dispatcher, worker, now } = self;
        let (stopped, flow, out) = run_read(*dispatcher, worker, session, *now, lines.as_bytes().to_vec());
        (stopped, flow, String::from_utf8_lossy(&out).into_owned())
    }
}

pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) commands: Commands,
    pub(crate) worker: Worker,
    pub(crate) session: Session,
    pub(crate) now: Millis,
    pub(crate) log: Kept,
}

impl Client {
    /// A client of an empty server without cluster mode.
    pub(crate) fn new() -> Self {
        Self::of(
            Engine::new(crate::of_server().catalogue(), Keyspace::new(1, 16), None, Box::new(NoLog)),
            Kept::default(),
        )
    }

    /// A client of an empty server whose log can be read.
    pub(crate) fn logged() -> Self {
        let log = Kept::default();
        Self::of(
            Engine::new(crate::of_server().catalogue(), Keyspace::new(1, 16), None, Box::new(log.clone())),
            log,
        )
    }

    /// A client of a node that serves every slot of a cluster.
    pub(crate) fn clustered() -> Self {
        Self::clustered_with(1)
    }

    /// A node of a cluster with so many databases (`cluster-databases`).
    pub(crate) fn clustered_with(databases: u16) -> Self {
        let me = NodeId::from_random([1; 20]);
        let member = Member {
            id: me,
            shard: me,
            endpoint: Endpoint { ip: "127.0.0.1".to_owned(), port: 6379, ..Endpoint::default() },
            role: Role::Master,
            config_epoch: Epoch(1),
            offset: ReplOffset(0),
            failed: false,
            suspected: false,
        };
        let mut topology = Topology::new(me, Epoch(1), true, vec![member]);
        topology.assign(Slot::all(), me);
        let log = Kept::default();
        Self::of(
            Engine::new(
                crate::of_server().catalogue(),
                Keyspace::new(1, databases),
                Some(topology),
                Box::new(log.clone()),
            ),
            log,
        )
    }

    fn of(engine: Engine, log: Kept) -> Self {
        let worker = engine.worker(|| 0);
        engine.settings.debug_command.set(config::Allowed::Yes);
        Self {
            engine,
            commands: Commands::new(crate::of_server()),
            worker,
            session: Session::new(1, Origin::Client, true),
            now: Millis(1_700_000_000_000),
            log,
        }
    }

    /// The commands in the log so far, each as its database and its words.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lines()
    }

    /// Requires a password from now on; the client has not logged in yet.
    pub(crate) fn require(&mut self, password: &[u8]) {
        self.engine.change_users(|users| users.set_default_password(password));
        self.session = Session::new(1, Origin::Client, false);
    }

    /// How often something was appended to the log.
    pub(crate) fn appends(&self) -> usize {
        self.log.0.lock().len()
    }

    /// How long the log is.
    pub(crate) fn log_bytes(&self) -> usize {
        self.log.0.lock().iter().map(|(_, commands)| commands.len()).sum()
    }

    /// Returns the waiter of the client, which is left waiting; the next requests are those of another client.
    pub(crate) fn leave_waiting(&mut self) -> Arc<Waiter> {
        let waiter = self.session.waiter().expect("it waits");
        self.session = Session::new(self.session.id + 1, Origin::Client, true);
        waiter
    }

    /// Runs what came in one read.
    fn run(&mut self, buffer: Vec<u8>) -> (Flow, Vec<u8>) {
        let Self { engine, commands, worker, session, now, .. } = self;
        let (_, flow, out) = run_read(commands.on(engine), worker, session, *now, buffer);
        (flow, out)
    }

    /// Sends inline text and gives back why the engine stopped, and what was written.
    pub(crate) fn run_lines(&mut self, text: &str) -> (Flow, Vec<u8>) {
        self.run(format!("{text}\n").into_bytes())
    }

    /// Sends inline text and gives back why the engine stopped.
    pub(crate) fn flow(&mut self, text: &str) -> Flow {
        self.run_lines(text).0
    }

    /// Sends inline text, several lines for a pipeline, and gives back what the server wrote.
    pub(crate) fn wire(&mut self, text: &str) -> String {
        let (flow, out) = self.run_lines(text);
        assert!(matches!(flow, Flow::Done | Flow::Close), "{text}: {flow:?}");
        String::from_utf8_lossy(&out).into_owned()
    }

    /// The reply to a line as [`Client::table`] writes it.
    pub(crate) fn shown(&mut self, line: &str) -> String {
        self.wire(line).trim_end().replace("\r\n", "|")
    }

    /// Sends one command as words and reads its reply.
    pub(crate) fn call(&mut self, words: &[&str]) -> Value {
        self.call_bytes(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>())
    }

    /// [`Client::call`] with words that are not text.
    pub(crate) fn call_bytes(&mut self, words: &[&[u8]]) -> Value {
        let request: Request = words.iter().collect();
        let mut buffer = Vec::new();
        resp::encode_request(&mut buffer, request.args().iter());
        let (_, out) = self.run(buffer);
        let (value, len) = parse_value(&out).expect("a well-formed reply").expect("a whole reply");
        assert_eq!(len, out.len(), "one reply for one command: {request:?}");
        value
    }

    /// Runs a text table: a line with a command, then its reply on the wire with `\r\n` shown as `|`.
    pub(crate) fn table(&mut self, table: &[(&str, &str)]) {
        for (line, reply) in table {
            let wire = self.wire(line);
            let shown = wire.strip_suffix("\r\n").unwrap_or(&wire).replace("\r\n", "|");
            assert_eq!(shown, *reply, "{line}");
        }
    }

    /// Runs a table of commands, each with the events that subscribers hear of by it: the event and the key of each,
    /// `@` and the number of the database between them where that is not 0.
    pub(crate) fn events(&mut self, table: &[(&str, &str)]) {
        for (line, events) in table {
            assert_eq!(self.heard_of(|client| drop(client.wire(line))), *events, "{line}");
        }
    }

    /// The events that subscribers to keyspace events receive while `act` is done.
    pub(crate) fn heard_of(&mut self, act: impl FnOnce(&mut Self)) -> String {
        let settings = &self.engine.settings;
        let before = settings.notified();
        settings.set_notified(before | Class::KEYEVENT | Class::ALL);
        let seen = self.engine.clients.connect(Link::default(), self.now, Box::new(|| ()));
        let listener = Session::of(seen, Origin::Client, true);
        let client = std::mem::replace(&mut self.session, listener);
        self.wire("psubscribe __keyevent@*");
        let mut listener = std::mem::replace(&mut self.session, client);
        act(self);
        let events = heard(&listener);
        self.engine.disconnect(&mut listener);
        self.engine.settings.set_notified(before);
        events
    }
}

/// The events that a subscriber to keyspace events has received.
fn heard(listener: &Session) -> String {
    let (mut wire, mut events) = (Vec::new(), Vec::new());
    listener.take_messages(&mut wire);
    let mut left = &wire[..];
    while let Some((message, len)) = parse_value(left).expect("a well-formed message") {
        let [_, _, channel, key] = message.as_array().expect("a message of a pattern") else {
            panic!("{message:?}")
        };
        let text = |value: &Value| String::from_utf8_lossy(value.as_bytes().expect("text")).into_owned();
        let channel = text(channel);
        let (db, event) = channel["__keyevent@".len()..].split_once("__:").expect("an event of a database");
        let db = if db == "0" { String::new() } else { format!("@{db}") };
        events.push(format!("{event}{db} {}", text(key)));
        left = &left[len..];
    }
    events.join(", ")
}

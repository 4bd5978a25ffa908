//! A client without a socket for unit tests of the handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clock::Millis;
use engine::{
    CommandOrigin, CommandSet, ConnectionInfo, DispatchStatus, Dispatcher, EffectLog, Engine, EventClass,
    NoLog, PipelinedRequests, Session, Waiter, Worker,
};
use keyspace::Keyspace;
use parking_lot::Mutex;
use resp::{Batch, ParseLimits, Parser, Request, Value, parse_value};
use slot_routing::{Endpoint, Epoch, Member, NodeId, ReplOffset, Role, Slot, Topology};

/// The effects appended to the log: for each one, the database and the encoded commands.
type RecordedEffects = Vec<(u16, Vec<u8>)>;

/// A replication log that records its input and reports a configurable number of replicas.
#[derive(Debug, Default, Clone)]
pub(crate) struct RecordingLog(Arc<Mutex<RecordedEffects>>, Arc<AtomicUsize>);

impl EffectLog for RecordingLog {
    fn has_readers(&self) -> bool {
        true
    }

    fn append(&self, db: u16, commands: &[u8]) -> ReplOffset {
        let mut kept = self.0.lock();
        kept.push((db, commands.to_vec()));
        ReplOffset(kept.iter().map(|(_, commands)| commands.len() as u64).sum())
    }

    fn replica_count(&self) -> usize {
        self.1.load(Ordering::Relaxed)
    }
}

impl RecordingLog {
    /// Sets the number of replicas that the log reports.
    pub(crate) fn set_replicas(&self, count: usize) {
        self.1.store(count, Ordering::Relaxed);
    }

    /// Formats the recorded commands as text, each with its database number.
    pub(crate) fn to_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (db, commands) in self.0.lock().iter() {
            let (mut batch, mut commands) = (Batch::default(), commands.clone());
            let parsed = Parser::new().parse(&mut commands, &mut batch, &ParseLimits::default());
            assert_eq!((parsed.consumed_bytes, parsed.error), (commands.len(), None));
            for index in 0..batch.len() {
                let words = batch.args(index, &commands).iter().map(String::from_utf8_lossy);
                lines.push(format!("{db} {}", words.collect::<Vec<_>>().join(" ")));
            }
        }
        lines
    }
}

/// Executes the requests in `buffer` as one batch. Returns the number of executed requests, the reason why the batch
/// stopped, and the output.
pub(crate) fn run_buffer(
    dispatcher: Dispatcher<'_>,
    worker: &mut Worker,
    session: &mut Session,
    now: Millis,
    mut buffer: Vec<u8>,
) -> (usize, DispatchStatus, Vec<u8>) {
    let (mut batch, mut out) = (Batch::default(), Vec::new());
    let parsed = Parser::new().parse(&mut buffer, &mut batch, &ParseLimits::default());
    assert_eq!(parsed.error, None, "{}", buffer.escape_ascii());
    let requests = PipelinedRequests { buffer: &buffer, batch: &batch, first_pending: 0 };
    let (stopped, flow) = dispatcher.run(worker, session, now, requests, &mut out);
    (stopped, flow, out)
}

/// A connection to a server that several test clients share.
pub(crate) struct Connection<'e> {
    pub(crate) session: Session,
    dispatcher: Dispatcher<'e>,
    worker: Worker,
    now: Millis,
}

impl<'e> Connection<'e> {
    /// Creates a connection with its own thread context.
    pub(crate) fn new(engine: &'e Engine, commands: &'e CommandSet, session: Session, now: Millis) -> Self {
        Self { session, dispatcher: commands.dispatcher(engine), worker: engine.new_worker(|| 0), now }
    }

    /// Executes lines as one batch. Returns the number of executed lines, the reason why the batch stopped, and the
    /// output.
    pub(crate) fn run(&mut self, lines: &str) -> (usize, DispatchStatus, String) {
        let Self { session, dispatcher, worker, now } = self;
        let (stopped, flow, out) = run_buffer(*dispatcher, worker, session, *now, lines.as_bytes().to_vec());
        (stopped, flow, String::from_utf8_lossy(&out).into_owned())
    }
}

pub(crate) struct Client {
    pub(crate) engine: Engine,
    pub(crate) commands: CommandSet,
    pub(crate) worker: Worker,
    pub(crate) session: Session,
    pub(crate) now: Millis,
    pub(crate) log: RecordingLog,
}

impl Client {
    /// Creates a client of an empty standalone server.
    pub(crate) fn new() -> Self {
        Self::from_engine(
            Engine::new(crate::server_registry().catalogue(), Keyspace::new(1, 16), None, Box::new(NoLog)),
            RecordingLog::default(),
        )
    }

    /// Creates a client of an empty server that records the replicated commands.
    pub(crate) fn with_recording_log() -> Self {
        let log = RecordingLog::default();
        Self::from_engine(
            Engine::new(
                crate::server_registry().catalogue(),
                Keyspace::new(1, 16),
                None,
                Box::new(log.clone()),
            ),
            log,
        )
    }

    /// Creates a client of a cluster node that serves all slots.
    pub(crate) fn in_cluster() -> Self {
        Self::in_cluster_with_databases(1)
    }

    /// Creates a client of a cluster node with this number of databases (`cluster-databases`).
    pub(crate) fn in_cluster_with_databases(databases: u16) -> Self {
        let me = NodeId::from_random([1; 20]);
        let member = Member {
            id: me,
            shard: me,
            endpoint: Endpoint { ip: "127.0.0.1".to_owned(), port: 6379, ..Endpoint::default() },
            role: Role::Master,
            config_epoch: Epoch(1),
            offset: ReplOffset(0),
            has_failed: false,
            is_suspected: false,
        };
        let mut topology = Topology::new(me, Epoch(1), true, vec![member]);
        topology.assign(Slot::all(), me);
        let log = RecordingLog::default();
        Self::from_engine(
            Engine::new(
                crate::server_registry().catalogue(),
                Keyspace::new(1, databases),
                Some(topology),
                Box::new(log.clone()),
            ),
            log,
        )
    }

    fn from_engine(engine: Engine, log: RecordingLog) -> Self {
        let worker = engine.new_worker(|| 0);
        engine.settings.permissions.debug_command.set(config::AllowedClients::Yes);
        Self {
            engine,
            commands: CommandSet::new(crate::server_registry()),
            worker,
            session: Session::new(1, CommandOrigin::Client, true),
            now: Millis(1_700_000_000_000),
            log,
        }
    }

    /// Formats the replicated commands as text, each with its database number.
    pub(crate) fn logged_commands(&self) -> Vec<String> {
        self.log.to_lines()
    }

    /// Sets the server's password, so that this client must authenticate before further commands.
    pub(crate) fn require_password(&mut self, password: &[u8]) {
        self.engine.access.change_users(|users| users.set_default_password(password));
        self.session = Session::new(1, CommandOrigin::Client, false);
    }

    /// Number of times that effects were appended to the log.
    pub(crate) fn append_count(&self) -> usize {
        self.log.0.lock().len()
    }

    /// Length of the log in bytes.
    pub(crate) fn log_bytes(&self) -> usize {
        self.log.0.lock().iter().map(|(_, commands)| commands.len()).sum()
    }

    /// Returns the waiter of the blocked client. Later requests of the test come from another client.
    pub(crate) fn detach_blocked_client(&mut self) -> Arc<Waiter> {
        let waiter = self.session.waiter().cloned().expect("it waits");
        self.session = Session::new(self.session.id() + 1, CommandOrigin::Client, true);
        waiter
    }

    /// Executes the requests in `buffer`, which stands for the bytes of one read from the socket.
    fn run(&mut self, buffer: Vec<u8>) -> (DispatchStatus, Vec<u8>) {
        let Self { engine, commands, worker, session, now, .. } = self;
        let (_, flow, out) = run_buffer(commands.dispatcher(engine), worker, session, *now, buffer);
        (flow, out)
    }

    /// Sends inline commands. Returns the reason why the batch stopped, and the output.
    pub(crate) fn run_lines(&mut self, text: &str) -> (DispatchStatus, Vec<u8>) {
        self.run(format!("{text}\n").into_bytes())
    }

    /// Sends inline commands and returns the reason why the batch stopped.
    pub(crate) fn run_status(&mut self, text: &str) -> DispatchStatus {
        self.run_lines(text).0
    }

    /// Sends inline commands, several lines as a pipeline, and returns the output.
    pub(crate) fn run_to_text(&mut self, text: &str) -> String {
        let (flow, out) = self.run_lines(text);
        assert!(matches!(flow, DispatchStatus::Done | DispatchStatus::Close), "{text}: {flow:?}");
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Runs a line and returns the reply in the notation of [`Client::check_replies`].
    pub(crate) fn run_to_table_text(&mut self, line: &str) -> String {
        self.run_to_text(line).trim_end().replace("\r\n", "|")
    }

    /// Sends one command and parses its reply.
    pub(crate) fn call(&mut self, words: &[&str]) -> Value {
        self.call_bytes(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>())
    }

    /// Does the same as [`Client::call`] for arguments that need not be UTF-8.
    pub(crate) fn call_bytes(&mut self, words: &[&[u8]]) -> Value {
        let request: Request = words.iter().collect();
        let mut buffer = Vec::new();
        resp::encode_request(&mut buffer, request.args().iter());
        let (_, out) = self.run(buffer);
        let (value, len) = parse_value(&out).expect("a well-formed reply").expect("a whole reply");
        assert_eq!(len, out.len(), "one reply for one command: {request:?}");
        value
    }

    /// Runs each command of a table and compares its raw reply with the expected text, in which `|` stands for CR LF.
    pub(crate) fn check_replies(&mut self, table: &[(&str, &str)]) {
        for (line, reply) in table {
            let wire = self.run_to_text(line);
            let shown = wire.strip_suffix("\r\n").unwrap_or(&wire).replace("\r\n", "|");
            assert_eq!(shown, *reply, "{line}");
        }
    }

    /// Runs each command of a table and compares the keyspace events that it sends. An event is written as its name and
    /// key, with `@` and the database number in between unless the number is 0.
    pub(crate) fn check_events(&mut self, table: &[(&str, &str)]) {
        for (line, events) in table {
            assert_eq!(self.events_during(|client| drop(client.run_to_text(line))), *events, "{line}");
        }
    }

    /// Returns the keyspace events that are sent while `act` runs.
    pub(crate) fn events_during(&mut self, act: impl FnOnce(&mut Self)) -> String {
        let settings = &self.engine.settings;
        let before = settings.notified_event_classes();
        settings.set_notified_event_classes(before | EventClass::KEYEVENT | EventClass::ALL);
        let seen = self.engine.clients.connect(ConnectionInfo::default(), self.now, Box::new(|| ()));
        let listener = Session::for_client(seen, CommandOrigin::Client, true);
        let client = std::mem::replace(&mut self.session, listener);
        self.run_to_text("psubscribe __keyevent@*");
        let mut listener = std::mem::replace(&mut self.session, client);
        act(self);
        let events = received_events(&listener);
        self.engine.disconnect(&mut listener);
        self.engine.settings.set_notified_event_classes(before);
        events
    }
}

/// Returns the keyspace events that a subscriber has received.
fn received_events(listener: &Session) -> String {
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

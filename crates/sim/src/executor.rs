//! A node's commands at work: the real engine, its keys and values, and the thread that runs commands in it.

use std::io;
use std::time::Duration;

use clock::Millis;
use config::EvictionPolicy;
use engine::{
    Background, CapturedKey, CommandError, Commands, EffectLog, Engine, Flow, Origin, Release, Requests,
    Resumed, Session, Unblock, Worker,
};
use keyspace::Keyspace;
use loading::{Host, Loader, State, Steps, Told};
use persistence::{Dialect, Info, Uses, WriteOptions};
use replication::Position;
use resp::{Args, Batch, Limits, Parser};
use slot_routing::{SlotSet, Topology};

/// The engine with its commands and a thread.
pub(crate) struct Executor {
    pub(crate) engine: Engine,
    pub(crate) commands: Commands,
    worker: Worker,
}

impl Executor {
    /// One whose keys are in these slots and in so many databases; with a topology in cluster mode.
    pub(crate) fn new(
        (slots, databases): (&SlotSet, u16),
        topology: Option<Topology>,
        log: Box<dyn EffectLog>,
    ) -> Self {
        let commands = Commands::new(::commands::of_server());
        let catalogue = commands.registry().catalogue();
        let engine = Engine::new(catalogue, Keyspace::of_slots(1, databases, slots), topology, log);
        engine.begin_routing();
        engine.settings.debug_command.set(config::Allowed::Yes);
        let worker = engine.worker(nanos);
        Self { engine, commands, worker }
    }

    pub(crate) fn loader<'a>(&'a self, host: &'a dyn Host) -> Loader<'a> {
        let Self { engine, commands, .. } = self;
        Loader { engine, commands, threads: 1, verify_checksum: true, kept: 0, host }
    }

    /// Runs requests, up to the first that waits for the end of a pause. Nobody else's run before those that go to the
    /// background.
    pub(crate) fn run(&mut self, session: &mut Session, wall: Millis, buffer: Vec<u8>) -> (Running, Stop) {
        let mut running = Running::of(buffer);
        session.turn_ends = u64::MAX;
        let stop = loop {
            match self.go_on(session, wall, &mut running) {
                Stop::Long => session.background = Background::Here,
                stop => break stop,
            }
        };
        leave_background(session);
        (running, stop)
    }

    /// Runs what is left of requests.
    pub(crate) fn go_on(&mut self, session: &mut Session, wall: Millis, running: &mut Running) -> Stop {
        while running.next < running.batch.len() {
            let Running { buffer, batch, next, replies, unanswered, .. } = running;
            let requests = Requests { buffer, batch, from: *next };
            let dispatcher = self.commands.on(&self.engine);
            let (after, flow) = dispatcher.run(&mut self.worker, session, wall, requests, replies);
            *next = after;
            match flow {
                Flow::Node(_) => (*next, *unanswered) = (after + 1, *unanswered + 1),
                Flow::Paused => return Stop::Paused,
                Flow::Blocked => break,
                Flow::Long | Flow::Held => return Stop::Long,
                Flow::TurnOver => return Stop::TurnOver,
                Flow::Done | Flow::Close => {}
            }
        }
        Stop::Ended
    }

    /// Runs one command for nobody.
    pub(crate) fn ask(&mut self, db: u16, wall: Millis, words: &[impl AsRef<str>]) -> Vec<u8> {
        let mut session = Session::new(0, Origin::Client, true);
        session.db = db;
        self.call(&mut session, wall, words)
    }

    /// Runs one command of a client; returns its reply.
    pub(crate) fn call(&mut self, session: &mut Session, wall: Millis, words: &[impl AsRef<str>]) -> Vec<u8> {
        let mut request = Vec::new();
        resp::encode_request(&mut request, words.iter().map(|word| word.as_ref().as_bytes()));
        self.run(session, wall, request).0.replies
    }

    /// Ends the wait of a client whose reply is there or whose time is over; returns the reply.
    pub(crate) fn end_wait(&mut self, session: &mut Session, wall: Millis, how: Unblock) -> Vec<u8> {
        let mut reply = Vec::new();
        let dispatcher = self.commands.on(&self.engine);
        match dispatcher.end_wait(&mut self.worker, session, wall, how, &mut reply) {
            Resumed::Replied => reply,
            Resumed::RunAgain(request) => {
                let mut again = Vec::new();
                resp::encode_request(&mut again, request.args().iter());
                self.run(session, wall, again).0.replies
            }
        }
    }

    /// A digest of all data, and of the functions.
    pub(crate) fn digest(&mut self, wall: Millis) -> String {
        let mut text = self.ask(0, wall, &["DEBUG", "DIGEST"]);
        text.extend(self.ask(0, wall, &["FUNCTION", "LIST"]));
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Memory is short for a moment: all that this policy lets go is evicted.
    pub(crate) fn evict(&mut self, wall: Millis, policy: EvictionPolicy) {
        self.engine.settings.set_evicting(policy, 5, 10, true);
        self.engine.limit_memory(1);
        self.engine.make_room(&mut self.worker, wall);
        self.engine.limit_memory(0);
    }

    /// Deletes a key of the first database, if it is as it was captured.
    pub(crate) fn release(
        &self,
        name: &[u8],
        wall: Millis,
        captured: &CapturedKey,
    ) -> Result<Release, CommandError> {
        self.engine.release(&self.worker, 0, name, wall, captured)
    }

    pub(crate) fn expire(&mut self, wall: Millis) {
        self.engine.expire_cycle(&mut self.worker, wall, Duration::from_secs(1));
    }
}

/// The host of a load.
pub(crate) struct Quiet<'a> {
    pub(crate) now: Millis,
    /// Hears of the commands that are not the engine's.
    pub(crate) on_command: &'a dyn Fn(Args<'_>),
}

impl Quiet<'_> {
    pub(crate) fn at(now: Millis) -> Self {
        Self { now, on_command: &|_| () }
    }
}

impl Host for Quiet<'_> {
    fn now(&self) -> Millis {
        self.now
    }

    fn on_command(&self, args: Args<'_>) {
        (self.on_command)(args);
    }

    fn nanos(&self) -> fn() -> u64 {
        nanos
    }

    fn begin(&self, _total: u64) {}

    fn progress(&self, _read: u64, _keys: u64) {}

    fn used_memory(&self, _bytes: u64) {}

    fn key_read(&self) {}

    fn tell(&self, _told: Told<'_>) {}
}

/// Writes a snapshot that was cut at this place of its history, with what it says beside the data.
pub(crate) fn write_rdb(
    state: State,
    (position, wall): (Position, Millis),
    (aof_base, slot_states): (bool, &str),
    steps: &mut dyn Steps,
) -> io::Result<Vec<u8>> {
    let options =
        WriteOptions { compress: true, checksum: true, uses: Uses::NotKept, dialect: Dialect::Redis };
    let id = position.id;
    let info = Info {
        version: resp::REDIS_VERSION,
        created: wall,
        used_memory: 0,
        replication: Some((id.as_str().as_bytes(), position.offset.0, 0)),
        aof_base,
        slot_states,
    };
    let mut out = Vec::new();
    loading::write_rdb(state, options, &info, steps, &mut out)?;
    Ok(out)
}

/// No command is given up for taking too long.
pub(crate) fn nanos() -> u64 {
    0
}

/// The requests of one read, and how far they have run.
pub(crate) struct Running {
    pub(crate) buffer: Vec<u8>,
    pub(crate) batch: Batch,
    /// Nothing was behind them.
    pub(crate) is_whole: bool,
    /// The number of the next one.
    pub(crate) next: usize,
    pub(crate) replies: Vec<u8>,
    /// Requests that have no reply here.
    pub(crate) unanswered: usize,
}

/// Why requests stopped to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// There are no more.
    Ended,
    /// The next one is to run in the background.
    Long,
    /// Others are to be served first.
    TurnOver,
    /// The next one waits for the end of a pause.
    Paused,
}

impl Running {
    /// The whole requests of a buffer.
    pub(crate) fn of(mut buffer: Vec<u8>) -> Self {
        let mut batch = Batch::default();
        let parsed = Parser::new().parse(&mut buffer, &mut batch, &Limits::default());
        let is_whole = parsed.error.is_none() && parsed.consumed == buffer.len();
        Self { buffer, batch, is_whole, next: 0, replies: Vec::new(), unanswered: 0 }
    }
}

/// A session comes back from the background, if it is there.
pub(crate) fn leave_background(session: &mut Session) {
    if session.background == Background::Here {
        session.background = Background::Elsewhere;
    }
}

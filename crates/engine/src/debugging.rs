//! Scripts under a debugger (SCRIPT DEBUG). One runs on a thread of its own, in a session of its own, while its user
//! thinks.
//!
//! With SYNC it works on the data, under the locks that it has as any script; others are told that the server is busy.
//! With YES it works on copies that nobody else sees and that are dropped at its end: an engine of its own, whose
//! keys are copied when the script first touches them ([`crate::engine::Staged`]). What goes through all keys needs
//! copies of all, so that is for small data only. Neither is a snapshot: another client may change a key before it is
//! copied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clock::Millis;
use resp::{Batch, ParseLimits, Parser, Request};
use scripting::Console;

use crate::command::Commands;
use crate::dispatch::Requests;
use crate::engine::Engine;
use crate::session::{DebugMode, Origin, Session};

/// The last message of a debugger whose script did not run.
const END: &[u8] = b"*1\r\n+<endsession>\r\n";

/// A client's script that is to be debugged, and what its thread needs for that.
#[derive(Debug)]
pub struct DebuggedScript {
    session: Session,
    mode: DebugMode,
    request: Request,
    console: Box<dyn Console + Send>,
}

impl DebuggedScript {
    /// The EVAL that `session` has sent after SCRIPT DEBUG.
    pub fn new(session: &mut Session, request: Request, console: Box<dyn Console + Send>) -> Self {
        let mode = session.debug_mode.take().unwrap_or(DebugMode::Discarded);
        let mut own = Session::of(session.client.clone(), Origin::Client, session.authenticated);
        (own.db, own.protocol, own.readonly) = (session.db, session.protocol, session.readonly);
        (own.user, own.unrestricted) = (session.user.clone(), session.unrestricted);
        own.users_version = session.users_version;
        Self { session: own, mode, request, console }
    }

    /// Runs it to its end and gives back the reply, before which its debugger has said its last.
    #[must_use]
    pub fn run(
        mut self,
        engine: &Arc<Engine>,
        commands: &Commands,
        now: Millis,
        nanos: fn() -> u64,
    ) -> Vec<u8> {
        match self.mode {
            DebugMode::Kept => self.run_on(engine, commands, now, nanos),
            DebugMode::Discarded => {
                let staged = engine.staged(self.session.users_version);
                self.run_on(&staged, commands, now, nanos)
            }
        }
    }

    fn run_on(&mut self, engine: &Engine, commands: &Commands, now: Millis, nanos: fn() -> u64) -> Vec<u8> {
        let (said, console) = Told::around(std::mem::replace(&mut self.console, Box::new(Nobody)));
        let mut worker = engine.worker(nanos);
        worker.scripting.console = Some(console);
        let (mut wire, mut batch, mut out) = (Vec::new(), Batch::default(), Vec::new());
        resp::encode_request(&mut wire, self.request.args().iter());
        let limits = ParseLimits { max_bulk_len: i64::MAX, ..ParseLimits::default() };
        Parser::new().parse(&mut wire, &mut batch, &limits);
        let requests = Requests { buffer: &wire, batch: &batch, from: 0 };
        commands.on(engine).run(&mut worker, &mut self.session, now, requests, &mut out);
        if !said.load(Ordering::Relaxed) {
            out.splice(0..0, END.iter().copied());
        }
        engine.forget_worker(&worker);
        out
    }
}

/// A console that notes whether the debugger has had a word.
#[derive(Debug)]
struct Told {
    said: Arc<AtomicBool>,
    console: Box<dyn Console + Send>,
}

impl Told {
    fn around(console: Box<dyn Console + Send>) -> (Arc<AtomicBool>, Box<dyn Console + Send>) {
        let said = Arc::<AtomicBool>::default();
        (said.clone(), Box::new(Self { said, console }))
    }
}

impl Console for Told {
    fn send(&mut self, bytes: Vec<u8>) {
        self.said.store(true, Ordering::Relaxed);
        self.console.send(bytes);
    }

    fn receive(&mut self, stopped: &dyn Fn() -> bool) -> Option<Vec<Vec<u8>>> {
        self.console.receive(stopped)
    }
}

/// A console without a client, which drops all that it is sent.
#[derive(Debug)]
struct Nobody;

impl Console for Nobody {
    fn send(&mut self, _bytes: Vec<u8>) {}

    fn receive(&mut self, _stopped: &dyn Fn() -> bool) -> Option<Vec<Vec<u8>>> {
        None
    }
}

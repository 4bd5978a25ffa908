//! Lua debugging sessions (SCRIPT DEBUG). A debugged script runs on a thread and in a session of its own, because its
//! user may pause it at any time.
//!
//! In SYNC mode the script works on the data set and locks slots like any other script, and other clients get the busy
//! error. In YES mode it works on a private engine whose keys are copied when the script first accesses them
//! ([`crate::engine::CopyOnAccess`]) and dropped at the end. Commands that visit all keys copy everything, so YES mode
//! is for small data sets only. Neither mode is a snapshot: another client may change a key before it is copied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clock::Millis;
use resp::{Batch, ParseLimits, Parser, Request};
use scripting::DebugConsole;

use crate::command::CommandSet;
use crate::dispatch::PipelinedRequests;
use crate::engine::Engine;
use crate::session::{DebugMode, Session};

/// The message that ends a debugging session whose script did not run.
const END_OF_SESSION_REPLY: &[u8] = b"*1\r\n+<endsession>\r\n";

/// A script to debug, with the state that its thread needs.
#[derive(Debug)]
pub struct DebuggedScript {
    session: Session,
    mode: DebugMode,
    request: Request,
    console: Box<dyn DebugConsole + Send>,
}

impl DebuggedScript {
    /// Prepares the EVAL that `session` sent after SCRIPT DEBUG.
    pub fn new(session: &mut Session, request: Request, console: Box<dyn DebugConsole + Send>) -> Self {
        let mode = session.take_debug_mode().unwrap_or(DebugMode::CopiedData);
        let own = session.for_debugger();
        Self { session: own, mode, request, console }
    }

    /// Runs the script and returns its reply, after the debugger's last message.
    #[must_use]
    pub fn run(
        mut self,
        engine: &Arc<Engine>,
        commands: &CommandSet,
        now: Millis,
        nanos: fn() -> u64,
    ) -> Vec<u8> {
        match self.mode {
            DebugMode::RealData => self.run_on_engine(engine, commands, now, nanos),
            DebugMode::CopiedData => {
                let staged = engine.copy_on_access_view(self.session.users_version());
                self.run_on_engine(&staged, commands, now, nanos)
            }
        }
    }

    fn run_on_engine(
        &mut self,
        engine: &Engine,
        commands: &CommandSet,
        now: Millis,
        nanos: fn() -> u64,
    ) -> Vec<u8> {
        let (said, console) =
            RecordingConsole::wrap(std::mem::replace(&mut self.console, Box::new(NullConsole)));
        let mut worker = engine.new_worker(nanos);
        worker.scripting.console = Some(console);
        let (mut wire, mut batch, mut out) = (Vec::new(), Batch::default(), Vec::new());
        resp::encode_request(&mut wire, self.request.args().iter());
        let limits = ParseLimits { max_bulk_len: i64::MAX, ..ParseLimits::default() };
        Parser::new().parse(&mut wire, &mut batch, &limits);
        let requests = PipelinedRequests { buffer: &wire, batch: &batch, first_pending: 0 };
        commands.dispatcher(engine).run(&mut worker, &mut self.session, now, requests, &mut out);
        if !said.load(Ordering::Relaxed) {
            out.splice(0..0, END_OF_SESSION_REPLY.iter().copied());
        }
        engine.diagnostics.remove_worker(&worker);
        out
    }
}

/// A console that records whether the debugger has sent anything.
#[derive(Debug)]
struct RecordingConsole {
    has_sent: Arc<AtomicBool>,
    console: Box<dyn DebugConsole + Send>,
}

impl RecordingConsole {
    fn wrap(console: Box<dyn DebugConsole + Send>) -> (Arc<AtomicBool>, Box<dyn DebugConsole + Send>) {
        let said = Arc::<AtomicBool>::default();
        (said.clone(), Box::new(Self { has_sent: said, console }))
    }
}

impl DebugConsole for RecordingConsole {
    fn send(&mut self, bytes: Vec<u8>) {
        self.has_sent.store(true, Ordering::Relaxed);
        self.console.send(bytes);
    }

    fn receive(&mut self, stopped: &dyn Fn() -> bool) -> Option<Vec<Vec<u8>>> {
        self.console.receive(stopped)
    }
}

/// A console without a client, which discards its output.
#[derive(Debug)]
struct NullConsole;

impl DebugConsole for NullConsole {
    fn send(&mut self, _bytes: Vec<u8>) {}

    fn receive(&mut self, _stopped: &dyn Fn() -> bool) -> Option<Vec<Vec<u8>>> {
        None
    }
}

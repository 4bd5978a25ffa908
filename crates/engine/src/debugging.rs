//! Scripts under a debugger (SCRIPT DEBUG). One runs on a thread of its own, in a session of its own, while its user
//! thinks.
//!
//! With SYNC it works on the data, under the locks that it has as any script; others are told that the server is busy.
//! With YES it works on copies that nobody else sees and that are dropped at its end: an engine of its own, whose
//! keys are copied when the script first touches them ([`Staged`]). What goes through all keys needs copies of all, so
//! that is for small data only. Neither is a snapshot: another client may change a key before it is copied.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clock::Millis;
use keyspace::{Found, Keyspace, LockedSlots};
use parking_lot::Mutex;
use resp::{Batch, Limits, Parser, Request};
use scripting::Console;
use slot_routing::Slot;

use crate::dispatch::Requests;
use crate::effects::NoLog;
use crate::engine::Engine;
use crate::session::{Origin, Session};

/// With more keys than this not all are copied.
const MOST_COPIED: usize = 100_000;
/// The last message of a debugger whose script did not run.
const END: &[u8] = b"*1\r\n+<endsession>\r\n";

/// The mode that SCRIPT DEBUG chose for the next script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugMode {
    /// It works on copies.
    Discarded,
    /// It works on the data.
    Kept,
}

/// Keys that are copied from another engine when they are first touched.
#[derive(Debug)]
pub(crate) struct Staged {
    source: Arc<Engine>,
    copied: Mutex<HashSet<Vec<u8>>>,
    whole: AtomicBool,
}

impl Staged {
    /// Copies a key of every database, unless that was done before. Its slot is locked.
    pub(crate) fn bring(&self, keyspace: &Keyspace, slots: &mut LockedSlots<'_>, name: &[u8]) {
        if self.whole.load(Ordering::Relaxed) || !self.copied.lock().insert(name.to_vec()) {
            return;
        }
        let key = self.source.keyspace.key(name);
        let mut found = Vec::new();
        let mut slot = self.source.keyspace.lock(key.slot());
        for db in 0..self.source.keyspace.databases() {
            let table = slot.table(db);
            if let Found::Live(place) | Found::Expired(place) = table.find(&key, Millis(i64::MIN)) {
                found.push((db, table.copy(place), table.expiry(place)));
            }
        }
        drop(slot);
        let key = keyspace.key(name);
        for (db, value, expiry) in found {
            slots.slot_mut(key.slot()).table(db).attach(&key, value, expiry);
        }
    }

    /// Copies all that is there; `false` if that is too much. Every slot is locked.
    pub(crate) fn bring_all(&self, keyspace: &Keyspace, slots: &mut LockedSlots<'_>) -> bool {
        let source = &self.source.keyspace;
        if self.whole.load(Ordering::Relaxed) {
            return true;
        }
        let (mut names, databases) = (Vec::new(), source.databases());
        for number in Slot::all() {
            let mut slot = source.lock(number);
            for db in 0..databases {
                slot.table(db).scan(0, usize::MAX, &mut |item| names.push(item.key.to_vec()));
            }
            if names.len() > MOST_COPIED {
                return false;
            }
        }
        names.iter().for_each(|name| self.bring(keyspace, slots, name));
        self.whole.store(true, Ordering::Relaxed);
        true
    }
}

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
    pub fn run(mut self, engine: &Arc<Engine>, now: Millis, nanos: fn() -> u64) -> Vec<u8> {
        match self.mode {
            DebugMode::Kept => self.run_on(engine, now, nanos),
            DebugMode::Discarded => {
                let staged = engine.staged(self.session.users_version);
                self.run_on(&staged, now, nanos)
            }
        }
    }

    fn run_on(&mut self, engine: &Engine, now: Millis, nanos: fn() -> u64) -> Vec<u8> {
        let (said, console) = Told::around(std::mem::replace(&mut self.console, Box::new(Nobody)));
        let mut worker = engine.worker(nanos);
        worker.scripting.console = Some(console);
        let (mut wire, mut batch, mut out) = (Vec::new(), Batch::default(), Vec::new());
        resp::encode_request(&mut wire, self.request.args().iter());
        let limits = Limits { max_bulk_len: i64::MAX, ..Limits::default() };
        Parser::new().parse(&mut wire, &mut batch, &limits);
        let requests = Requests { buffer: &wire, batch: &batch, from: 0 };
        engine.run(&mut worker, &mut self.session, now, requests, &mut out);
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

impl Engine {
    /// An engine over copies of this one's data, for a session that knows the users as of `users_version`.
    fn staged(self: &Arc<Self>, users_version: u64) -> Self {
        let keyspace = Keyspace::new(0, self.keyspace.databases());
        let mut engine = Self::new(self.own_names, keyspace, None, Box::new(NoLog));
        engine.registry = self.registry;
        engine.script_hooks = self.script_hooks;
        engine.shell = self.shell.clone();
        engine.users_version.store(users_version, Ordering::Relaxed);
        let (from, to) = (&self.settings, &engine.settings);
        to.set_limits(&from.limits());
        to.proto_max_bulk_len.store(from.proto_max_bulk_len.load(Ordering::Relaxed), Ordering::Relaxed);
        to.lua_deprecated_api.store(from.lua_deprecated_api.load(Ordering::Relaxed), Ordering::Relaxed);
        to.hll_sparse_bytes.store(from.hll_sparse_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        engine.wall_base.store(self.wall_base.load(Ordering::Relaxed), Ordering::Relaxed);
        let source = self.clone();
        engine.staged = Some(Staged { source, copied: Mutex::default(), whole: AtomicBool::new(false) });
        engine
    }
}

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
/// What a debugger says last, if the script did not run.
const END: &[u8] = b"*1\r\n+<endsession>\r\n";

/// What SCRIPT DEBUG said of the next script.
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

/// The console of nobody.
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
        let mut engine = Self::with(self.registry, keyspace, None, Box::new(NoLog));
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::command::NodeCommand;
    use crate::dispatch::Flow;
    use crate::testing::Client;

    /// A user who says these lines one after another and leaves.
    #[derive(Debug)]
    struct User {
        lines: Vec<&'static str>,
        seen: std::sync::mpsc::Sender<String>,
    }

    impl User {
        fn saying(lines: &[&'static str]) -> (Box<Self>, Receiver<String>) {
            let (seen, heard) = channel();
            (Box::new(Self { lines: lines.iter().rev().copied().collect(), seen }), heard)
        }
    }

    impl Console for User {
        fn send(&mut self, bytes: Vec<u8>) {
            self.seen.send(String::from_utf8(bytes).expect("text")).expect("it is heard");
        }

        fn receive(&mut self, _stopped: &dyn Fn() -> bool) -> Option<Vec<Vec<u8>>> {
            Some(self.lines.pop()?.split(' ').map(|word| word.as_bytes().to_vec()).collect())
        }
    }

    /// What the debugger said, and the reply.
    fn debug(client: Client, mode: &str, script: &str, lines: &[&'static str]) -> (Client, String, String) {
        let mut client = client;
        client.table(&[(&format!("script debug {mode}"), "+OK")]);
        let (console, heard) = User::saying(lines);
        let words = ["eval", script, "1", "k", "5"];
        assert_eq!(client.flow("eval \"return 1\" 0"), Flow::Node(NodeCommand::DebugScript));
        let mut request = Request::new();
        words.iter().for_each(|word| request.push(word.as_bytes()));
        let script = DebuggedScript::new(&mut client.session, request, console);
        let Client { engine, worker, session, now, log } = client;
        let engine = Arc::new(engine);
        let reply = script.run(&engine, now, || 0);
        let engine = Arc::into_inner(engine).expect("nobody keeps it");
        let said: String = heard.iter().collect();
        let client = Client { engine, worker, session, now, log };
        (client, said, String::from_utf8(reply).expect("text"))
    }

    const SCRIPT: &str = "local key = KEYS[1]\nlocal function add(x, y)\n  local z = x + y\n  return z\nend\n\
                          redis.call('incrby', key, add(1, ARGV[1]))\nfor i = 1, 2 do\n  redis.debug('i', i)\nend\n\
                          redis.breakpoint()\nreturn redis.call('get', key)";

    #[test]
    fn what_a_debugged_script_does_is_discarded_or_kept() {
        let mut client = Client::logged();
        client.table(&[("set k 10", "+OK")]);
        let (mut client, said, reply) = debug(client, "yes", SCRIPT, &["c", "c"]);
        assert_eq!(reply, "$2\r\n16\r\n", "{said}");
        assert!(said.ends_with("*1\r\n+<endsession>\r\n"), "{said}");
        client.table(&[("get k", "$2|10")]);
        let (mut client, _, reply) = debug(client, "sync", SCRIPT, &["c", "c"]);
        assert_eq!(reply, "$2\r\n16\r\n");
        client.table(&[("get k", "$2|16")]);
        assert_eq!(client.log(), ["0 set k 10", "0 incrby k 6"]);
    }

    #[test]
    fn it_stops_shows_and_goes_on() {
        let lines = [
            "p",
            "b 4",
            "s",
            "c",
            "p",
            "p key",
            "p x",
            "p nosuch",
            "t",
            "b 0",
            "maxlen 10",
            "e 1 + 1",
            "r get k",
            "c",
            "s",
        ];
        let (_, said, _) = debug(Client::new(), "yes", SCRIPT, &lines);
        for expected in [
            "*2\r\n+* Stopped at 1, stop reason = step over\r\n+-> 1   local key = KEYS[1]\r\n",
            "*1\r\n+No local variables in the current context.\r\n",
            "*3\r\n+   3     local z = x + y\r\n+  #4     return z\r\n+   5   end\r\n",
            "*2\r\n+* Stopped at 5, stop reason = step over\r\n+-> 5   end\r\n",
            "*2\r\n+* Stopped at 4, stop reason = break point\r\n+->#4     return z\r\n",
            "*3\r\n+<value> x = 1\r\n+<value> y = \"5\"\r\n+<value> z = 6\r\n",
            "*1\r\n+<value> \"k\"\r\n",
            "*1\r\n+<value> 1\r\n",
            "*1\r\n+No such variable.\r\n",
            "*4\r\n+In add:\r\n+->#4     return z\r\n+From top level:\r\n+   6   redis.call('incrby', key, add(1, ARGV[1]))\r\n",
            "*1\r\n+All breakpoints removed.\r\n",
            "*1\r\n+<value> replies are truncated at 60 bytes.\r\n",
            "*1\r\n+<retval> 2\r\n",
            "*2\r\n+<redis> get k\r\n+<reply> NULL\r\n",
            "*4\r\n+<debug> line 8: \"i\", 1\r\n+<debug> line 8: \"i\", 2\r\n+* Stopped at 11, stop reason = redis.breakpoint() called\r\n",
            "+<redis> get k\r\n+<reply> \"6\"\r\n+<endsession>\r\n",
        ] {
            assert!(said.contains(expected), "{expected}\nin\n{said}");
        }
    }

    #[test]
    fn it_is_aborted_or_does_not_compile_or_its_user_leaves() {
        let (client, _, reply) = debug(Client::new(), "yes", SCRIPT, &["s", "a"]);
        assert!(reply.starts_with("-ERR script aborted for user request script: "), "{reply}");
        assert!(reply.ends_with(" on @user_script:5.\r\n"), "{reply}");
        let (client, said, reply) = debug(client, "yes", "foo(", &[]);
        assert_eq!(said, "");
        assert!(reply.starts_with("*1\r\n+<endsession>\r\n-ERR Error compiling script"), "{reply}");
        let (mut client, _, reply) = debug(client, "yes", SCRIPT, &["s"]);
        assert_eq!(reply, "$1\r\n6\r\n");
        client.table(&[
            ("exists k", ":0"),
            ("script debug", "-ERR wrong number of arguments for 'script|debug' command"),
            ("script debug x", "-ERR Use SCRIPT DEBUG YES/SYNC/NO"),
            ("script debug yes", "+OK"),
            (
                "evalsha e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
                "-ERR Please use EVAL instead of EVALSHA for debugging",
            ),
            ("script debug no", "+OK"),
            ("eval \"return 1\" 0", ":1"),
            ("multi", "+OK"),
            ("script debug yes", "+QUEUED"),
            ("exec", "*1|-ERR SCRIPT DEBUG must be called outside a pipeline"),
        ]);
    }

    #[test]
    fn what_goes_through_all_keys_sees_copies_of_all() {
        let mut client = Client::new();
        client.table(&[("mset a 1 b 2 c 3", "+OK")]);
        let script = "redis.call('del', 'a')\nredis.call('set', 'd', 4)\nlocal keys = redis.call('keys', '*')\n\
                      table.sort(keys)\nredis.call('flushall')\nreturn {table.concat(keys, ' '), redis.call('dbsize')}";
        let (mut client, said, reply) = debug(client, "yes", script, &["c"]);
        assert_eq!(reply, "*2\r\n$5\r\nb c d\r\n:0\r\n", "{said}");
        client.table(&[("dbsize", ":3"), ("debug populate 200000", "+OK")]);
        let (_, _, reply) = debug(client, "yes", "return redis.call('dbsize')", &["c"]);
        assert!(reply.starts_with("-ERR This command is about all keys, and there are too many"), "{reply}");
    }
}

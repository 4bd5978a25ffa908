//! The keys and values of a process: a real engine. Of each slot that is written to, one key has the number of the last
//! write, by which the invariants know it; the others are of every type.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, OnceLock};

use clock::Millis;
use engine::{EffectLog, Gate, Origin, Session};
use loading::{Loaded, Steps};
use replication::Position;
use resp::{Args, Value};
use slot_routing::{ReplOffset, SLOT_COUNT, Slot, SlotSet};

use super::Key;
use crate::clients::Words;
use crate::executor::{self, Executor, Quiet};

/// At this time nothing is past its own: what is there is there.
const NO_TIME: Millis = Millis(0);

/// A name for each slot. It is also the tag of the slot's other keys.
pub(super) fn name_of(key: Key) -> &'static str {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let mut names = vec![String::new(); SLOT_COUNT];
        let (mut missing, mut number) = (names.len(), 0);
        while missing > 0 {
            let name = format!("{{{number}}}");
            let place = &mut names[usize::from(Slot::of_key(name.as_bytes()).number())];
            if place.is_empty() {
                *place = name;
                missing -= 1;
            }
            number += 1;
        }
        names
    });
    &names[usize::from(key)]
}

/// The slot of the keys that a command names; none if it names none.
pub(super) fn key_of(args: Args<'_>) -> Option<Key> {
    let tagged = args.iter().skip(1).find(|arg| arg.starts_with(b"{"))?;
    Some(Slot::of_key(tagged).number())
}

/// The effects of commands, until the log takes them.
#[derive(Debug, Clone, Default)]
struct Effects(Arc<Mutex<Vec<u8>>>);

impl Effects {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().expect("no run goes on after a panic"))
    }
}

impl EffectLog for Effects {
    fn wanted(&self) -> bool {
        true
    }

    fn append(&self, db: u16, commands: &[u8]) -> ReplOffset {
        assert_eq!(db, 0, "all keys are in one database");
        self.0.lock().expect("no run goes on after a panic").extend_from_slice(commands);
        ReplOffset(0)
    }
}

/// The data of one process.
pub(super) struct Held {
    /// To look at data is to run commands, too.
    executor: RefCell<Executor>,
    effects: Effects,
}

impl Held {
    /// No data; there will be keys of these slots alone.
    pub(super) fn nothing(slots: &SlotSet) -> Self {
        let effects = Effects::default();
        let executor = Executor::new(slots, 1, Box::new(effects.clone()));
        executor.engine.settings.set_gate(Gate::LOADING, false);
        Self { executor: RefCell::new(executor), effects }
    }

    /// The number of the last write to this slot.
    pub(super) fn get(&self, key: Key) -> Option<u64> {
        let reply = self.ask(&["GET", name_of(key)]);
        match resp::parse_value(&reply) {
            Ok(Some((Value::Bulk(text), _))) => resp::parse_i64(&text).map(|number| number as u64),
            _ => None,
        }
    }

    fn ask(&self, words: &[&str]) -> Vec<u8> {
        self.executor.borrow_mut().ask(0, NO_TIME, words)
    }

    /// Runs what a client sends; returns the effects.
    pub(super) fn write(&mut self, wall: Millis, requests: &[Words]) -> Vec<u8> {
        let mut buffer = Vec::new();
        for words in requests {
            resp::encode_request(&mut buffer, words.iter().map(String::as_bytes));
        }
        self.write_raw(wall, buffer)
    }

    /// The same of requests as they go over a wire.
    pub(super) fn write_raw(&mut self, wall: Millis, requests: Vec<u8>) -> Vec<u8> {
        let mut session = Session::new(0, Origin::Client, true);
        self.executor.get_mut().run(&mut session, wall, requests);
        self.effects.take()
    }

    /// Runs a command of a master's stream. An error says that the master's change was not made.
    pub(super) fn apply(
        &mut self,
        session: &mut Session,
        wall: Millis,
        request: Vec<u8>,
    ) -> Result<(), String> {
        let (reply, _) = self.executor.get_mut().run(session, wall, request);
        self.effects.take();
        match resp::parse_value(&reply) {
            Ok(Some((value, _))) => error_in(&value).map_or(Ok(()), |error| Err(error.to_owned())),
            _ => Ok(()),
        }
    }

    /// Keys that are past their time go; returns the effects.
    pub(super) fn expire(&mut self, wall: Millis) -> Vec<u8> {
        self.executor.get_mut().expire(wall);
        self.effects.take()
    }

    /// The names of a slot's keys.
    fn names(&self, key: Key) -> Vec<Vec<u8>> {
        match resp::parse_value(&self.ask(&["KEYS", &format!("{}*", name_of(key))])) {
            Ok(Some((Value::Array(names), _))) => {
                let name = |name: Value| if let Value::Bulk(name) = name { Some(name) } else { None };
                names.into_iter().filter_map(name).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Deletes all keys of a slot; returns the effects.
    pub(super) fn leave(&mut self, key: Key) -> Vec<u8> {
        let names = self.names(key);
        if names.is_empty() {
            return Vec::new();
        }
        let mut request = Vec::new();
        let mut words = vec![&b"DEL"[..]];
        words.extend(names.iter().map(Vec::as_slice));
        resp::encode_request(&mut request, words);
        self.write_raw(NO_TIME, request)
    }

    /// Commands that make all keys of a slot as they are.
    pub(super) fn copies(&self, key: Key) -> Vec<Vec<u8>> {
        let names = self.names(key);
        names.iter().map(|name| self.copy(name)).collect()
    }

    fn copy(&self, name: &[u8]) -> Vec<u8> {
        let name = std::str::from_utf8(name).expect("names are text");
        let dump = match resp::parse_value(&self.ask(&["DUMP", name])) {
            Ok(Some((Value::Bulk(dump), _))) => dump,
            other => unreachable!("{name} is there: {other:?}"),
        };
        let due = match resp::parse_value(&self.ask(&["PEXPIRETIME", name])) {
            Ok(Some((Value::Integer(due), _))) => due.max(0).to_string(),
            other => unreachable!("{name} is there: {other:?}"),
        };
        let mut request = Vec::new();
        let words = [b"RESTORE", name.as_bytes(), due.as_bytes(), &dump, b"REPLACE", b"ABSTTL"];
        resp::encode_request(&mut request, words);
        request
    }

    /// Equal for equal data.
    pub(super) fn digest(&self) -> Vec<u8> {
        self.ask(&["DEBUG", "DIGEST"])
    }

    /// As a snapshot has it, at this place of its history.
    pub(super) fn snapshot(&self, position: Position, slot_states: &str) -> Vec<u8> {
        let executor = self.executor.borrow();
        let (cut, _) = loading::cut(&executor.engine, executor::nanos, || ());
        let (state, ()) = cut.expect("no other snapshot is under way");
        let beside = (false, slot_states);
        executor::write_rdb(state, (position, NO_TIME), beside, &mut NoSteps).expect("memory takes it")
    }

    /// Has nothing be the data.
    pub(super) fn clear(&mut self) {
        let engine = &self.executor.get_mut().engine;
        loading::clear(engine);
        engine.settings.set_gate(Gate::LOADING, false);
    }

    /// Has a snapshot be the data.
    pub(super) fn load(&mut self, snapshot: &[u8]) -> Loaded {
        let executor = self.executor.get_mut();
        let host = Quiet(NO_TIME);
        let loaded = executor.loader(&host).replace(snapshot, snapshot.len() as u64, false, || true);
        executor.engine.settings.set_gate(Gate::LOADING, false);
        loaded.unwrap_or_else(|error| panic!("a snapshot is whole: {error}"))
    }
}

/// The first error in a reply.
fn error_in(reply: &Value) -> Option<&str> {
    match reply {
        Value::Error(text) => Some(text),
        Value::Array(items) => items.iter().find_map(error_in),
        _ => None,
    }
}

/// Nothing happens while a snapshot is written.
struct NoSteps;

impl Steps for NoSteps {
    fn on_part(&mut self, _keys: u64) -> std::io::Result<()> {
        Ok(())
    }
}

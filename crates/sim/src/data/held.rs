//! The keys and values of a process: a real engine. Of each slot that is written to, one key has the number of the last
//! write, by which the invariants know it; the others are of every type.

use std::cell::{Ref, RefCell};
use std::sync::{Arc, Mutex, OnceLock};

use append_only::AofDirectory;
use clock::Millis;
use durability::stream::imports::Imports;
use engine::{CapturedKey, CommandError, EffectLog, Engine, Gate, Left, Link, Origin, Release, Session};
use loading::{Loaded, LoadedFiles, Steps};
use persistence::aof::Manifest;
use replication::Position;
use resp::{Args, Value};
use slot_routing::{
    Endpoint, Epoch, Member, NodeId, Ownership, ReplOffset, Role, SLOT_COUNT, Slot, SlotSet, Topology,
};

use super::Key;
use crate::clients::Words;
use crate::disk::SimDisk;
use crate::executor::{self, Executor, Quiet, Stop};
use crate::waiting::WaitingClient;

/// While one of these holds, no client's write is taken.
const CLOSED: Gate = Gate::PAUSED
    .union(Gate::LOADING)
    .union(Gate::REPLICA)
    .union(Gate::CLUSTER_DOWN)
    .union(Gate::EMPTY_MASTER);
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
    /// No data, of a process that has yet to start; there will be keys of these slots alone.
    pub(super) fn nothing(slots: &SlotSet, clustered: bool) -> Self {
        let effects = Effects::default();
        let topology = clustered.then(alone);
        let executor = Executor::new((slots, 1), topology, Box::new(effects.clone()));
        executor.engine.settings.set_gate(Gate::LOADING, true);
        Self { executor: RefCell::new(executor), effects }
    }

    /// The engine, whose gates and slots say what may run.
    pub(super) fn engine(&self) -> Ref<'_, Engine> {
        Ref::map(self.executor.borrow(), |executor| &executor.engine)
    }

    /// Whether a client's write to this slot would be taken now.
    pub(super) fn takes_writes(&self, key: Key, wall: Millis) -> bool {
        let engine = self.engine();
        engine.pauses.end_overdue(&engine.settings, wall);
        let slot = engine.keyspace.lock(slot_of(key));
        let is_ours = matches!(slot.ownership(), Ownership::Mine | Ownership::Migrating);
        is_ours && !slot.is_held() && !engine.settings.gate().intersects(CLOSED)
    }

    /// The number of the last write to this slot.
    pub(super) fn get(&self, key: Key) -> Option<u64> {
        let reply = self.ask(&["GET", name_of(key)]);
        match resp::parse_value(&reply) {
            Ok(Some((Value::Bulk(text), _))) => resp::parse_i64(&text).map(|number| number as u64),
            _ => None,
        }
    }

    /// The answer to somebody who is let in everywhere and always.
    fn ask(&self, words: &[&str]) -> Vec<u8> {
        let mut session = Session::new(0, Origin::Master, true);
        self.executor.borrow_mut().call(&mut session, NO_TIME, words)
    }

    /// Runs what a client sends at once; returns the replies, of those before the first that waits for the end of a
    /// pause, and the effects.
    pub(super) fn serve(
        &mut self,
        session: &mut Session,
        wall: Millis,
        requests: &[Words],
    ) -> (Vec<Value>, Vec<u8>) {
        let mut buffer = Vec::new();
        for words in requests {
            resp::encode_request(&mut buffer, words.iter().map(String::as_bytes));
        }
        let (ran, _) = self.executor.get_mut().run(session, wall, buffer);
        (values(&ran.replies), self.effects.take())
    }

    /// A client's connection.
    pub(super) fn connect(&self) -> Session {
        let client = self.engine().clients.connect(Link::default(), NO_TIME, Box::new(|| {}));
        Session::of(client, Origin::Client, true)
    }

    pub(super) fn disconnect(&self, client: &WaitingClient) {
        self.engine().clients.disconnect(client.id());
    }

    /// Has somebody do something with the data; returns the effects, too.
    pub(super) fn with<T>(&mut self, does: impl FnOnce(&mut Executor) -> T) -> (T, Vec<u8>) {
        let done = does(self.executor.get_mut());
        (done, self.effects.take())
    }

    /// Runs commands that make what another node has, of slots that are on their way here; returns the effects, too.
    ///
    /// # Panics
    /// If a pause holds: a command that was not run would be lost.
    pub(super) fn import(&mut self, wall: Millis, requests: Vec<u8>) -> (Result<(), String>, Vec<u8>) {
        let mut session = Session::new(0, Origin::Source, true);
        let (ran, stop) = self.executor.get_mut().run(&mut session, wall, requests);
        assert_eq!(stop, Stop::Ended, "the commands of a source wait for the end of a pause");
        let replies = values(&ran.replies);
        let failed = replies.iter().find_map(error_in).map(str::to_owned);
        (failed.map_or(Ok(()), Err), self.effects.take())
    }

    /// Runs a command of a master's stream. An error says that the master's change was not made.
    pub(super) fn apply(
        &mut self,
        session: &mut Session,
        wall: Millis,
        request: Vec<u8>,
    ) -> Result<(), String> {
        let (ran, _) = self.executor.get_mut().run(session, wall, request);
        self.effects.take();
        values(&ran.replies).first().and_then(error_in).map_or(Ok(()), |error| Err(error.to_owned()))
    }

    /// Keys that are past their time go; returns the effects.
    pub(super) fn expire(&mut self, wall: Millis) -> Vec<u8> {
        self.executor.get_mut().expire(wall);
        self.effects.take()
    }

    /// The names of a slot's keys.
    pub(super) fn names(&self, key: Key) -> Vec<Vec<u8>> {
        match resp::parse_value(&self.ask(&["KEYS", &format!("{}*", name_of(key))])) {
            Ok(Some((Value::Array(names), _))) => {
                let name = |name: Value| if let Value::Bulk(name) = name { Some(name) } else { None };
                names.into_iter().filter_map(name).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Deletes some keys of a slot that another node serves; returns the effects.
    pub(super) fn leave(&mut self, key: Key) -> (Left, Vec<u8>) {
        let left = self.engine().leave_slot(slot_of(key));
        (left, self.effects.take())
    }

    /// The same of a slot whose import has come to nothing.
    pub(super) fn drop_imported(&mut self, slot: Slot) -> (Left, Vec<u8>) {
        let left = self.engine().drop_imported(slot);
        (left, self.effects.take())
    }

    /// Has a key go whose value another node has, if it is as it was captured; returns the outcome, and the effects.
    pub(super) fn release(
        &mut self,
        name: &[u8],
        wall: Millis,
        captured: &CapturedKey,
    ) -> (Result<Release, CommandError>, Vec<u8>) {
        let outcome = self.executor.get_mut().release(name, wall, captured);
        (outcome, self.effects.take())
    }

    /// Runs what a client sends as it goes over the wire; returns the replies, and the effects.
    pub(super) fn receive(&mut self, wall: Millis, requests: Vec<u8>) -> (Vec<Value>, Vec<u8>) {
        let mut session = Session::new(0, Origin::Client, true);
        let (ran, _) = self.executor.get_mut().run(&mut session, wall, requests);
        (values(&ran.replies), self.effects.take())
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
        self.written(position, (false, slot_states))
    }

    fn written(&self, position: Position, beside: (bool, &str)) -> Vec<u8> {
        let executor = self.executor.borrow();
        let (cut, _) = loading::cut(&executor.engine, executor::nanos, || ());
        let (state, ()) = cut.expect("no other snapshot is under way");
        executor::write_rdb(state, (position, NO_TIME), beside, &mut NoSteps).expect("memory takes it")
    }

    /// As the base of an append-only file has it.
    pub(super) fn base(&self, position: Position) -> Vec<u8> {
        self.written(position, (true, ""))
    }

    /// Has the files of an append-only file be the data, with what they say of imports.
    pub(super) fn load_files(
        &mut self,
        folder: &AofDirectory<SimDisk>,
        manifest: &Manifest,
        imports: &Imports,
    ) -> Result<LoadedFiles, String> {
        let executor = self.executor.get_mut();
        let on_command = |args: Args<'_>| drop(imports.apply_command(&executor.engine, args));
        let host = Quiet { now: NO_TIME, on_command: &on_command };
        let loaded = executor.loader(&host).run_files(folder, manifest, true);
        self.effects.take();
        loaded.map_err(|error| error.to_string())
    }

    /// Has nothing be the data.
    pub(super) fn clear(&mut self) {
        loading::clear(&self.executor.get_mut().engine);
    }

    /// Has a snapshot be the data.
    pub(super) fn load(&mut self, snapshot: &[u8]) -> Loaded {
        let executor = self.executor.get_mut();
        let host = Quiet::at(NO_TIME);
        let loaded = executor.loader(&host).replace(snapshot, snapshot.len() as u64, false, || true);
        loaded.unwrap_or_else(|error| panic!("a snapshot is whole: {error}"))
    }
}

/// As a node of a cluster that knows nobody else.
fn alone() -> Topology {
    let id = NodeId::from_random([0; 20]);
    let member = Member {
        id,
        shard: id,
        endpoint: Endpoint::default(),
        role: Role::Master,
        config_epoch: Epoch(0),
        offset: ReplOffset(0),
        failed: false,
        suspected: false,
    };
    Topology::new(id, Epoch(0), false, vec![member])
}

/// The slot that has this number.
pub(super) fn slot_of(key: Key) -> Slot {
    Slot::new(key).expect("a key is the number of a slot")
}

/// All replies.
fn values(mut replies: &[u8]) -> Vec<Value> {
    let mut values = Vec::new();
    while let Ok(Some((value, len))) = resp::parse_value(replies) {
        replies = &replies[len..];
        values.push(value);
    }
    values
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

#[cfg(test)]
mod tests {
    use engine::{PauseMode, PausePurpose};

    use super::*;

    /// Seed 132 of six nodes: the target of a move stood still, and went on with a pause. What the source had sent meanwhile
    /// was dropped here, where a node has it wait; the target claimed the slot without it.
    #[test]
    #[should_panic(expected = "wait for the end of a pause")]
    fn commands_of_a_source_are_not_dropped_during_a_pause() {
        let mut held = Held::nothing(&SlotSet::from_iter([slot_of(1)]), true);
        let mut request = Vec::new();
        resp::encode_request(&mut request, ["SET", name_of(1), "7"].map(str::as_bytes));
        assert_eq!(held.import(Millis(1), request.clone()).0, Ok(()));
        assert_eq!(held.get(1), Some(7));
        let engine = held.engine();
        engine.pauses.pause(&engine.settings, PausePurpose::Standstill, PauseMode::All, Millis(i64::MAX));
        drop(engine);
        drop(held.import(Millis(1), request));
    }
}

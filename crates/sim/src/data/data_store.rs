//! The keys and values of a process in a real engine. Each slot in use has one key that holds the number of the last
//! write, for the invariants. The other keys are of every type.

use std::cell::{Ref, RefCell};
use std::sync::{Arc, Mutex, OnceLock};

use append_only::AofDirectory;
use clock::Millis;
use durability::stream::imports::SlotImports;
use engine::{
    CapturedKey, CommandError, CommandOrigin, ConnectionInfo, EffectLog, Engine, NodeFlags, ReleaseResult,
    RemainingKeys, Session,
};
use migration::{ControlCommand, LoggedCommandDecoder};
use persistence::aof::Manifest;
use replication::ReplPosition;
use resp::{Args, Value};
use slot_routing::{
    Endpoint, Epoch, Member, NodeId, Ownership, ReplOffset, Role, SLOT_COUNT, Slot, SlotSet, Topology,
};
use snapshot_io::{AofLoadResult, LoadResult, WriteObserver};

use super::KeyGroup;
use crate::clients::CommandWords;
use crate::disk::SimDisk;
use crate::executor::{self, ExecutionStop, Executor, LoadCommandForwarder};
use crate::waiting::WaitingClient;

/// The node flags that reject or block client writes.
const WRITE_BLOCKING_FLAGS: NodeFlags = NodeFlags::PAUSED
    .union(NodeFlags::LOADING)
    .union(NodeFlags::REPLICA)
    .union(NodeFlags::CLUSTER_DOWN)
    .union(NodeFlags::EMPTY_MASTER);
/// The time at which the simulator itself reads data. It is so early that no key is expired.
const EARLIEST_TIME: Millis = Millis(0);

/// Returns the name of the key that holds the number of the slot's last write. It is also the hash tag of the slot's
/// other keys.
pub(super) fn marker_key(key_group: KeyGroup) -> &'static str {
    static MARKER_KEY_NAMES: OnceLock<Vec<String>> = OnceLock::new();
    let names = MARKER_KEY_NAMES.get_or_init(|| {
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
    &names[usize::from(key_group)]
}

/// Returns the slot of a command's keys, if it has any.
pub(super) fn slot_of_command(args: Args<'_>) -> Option<KeyGroup> {
    let tagged = args.iter().skip(1).find(|arg| arg.starts_with(b"{"))?;
    Some(Slot::of_key(tagged).number())
}

/// The effects of executed commands, until they are moved to the log.
#[derive(Debug, Clone, Default)]
struct CollectedEffects(Arc<Mutex<Vec<u8>>>);

impl CollectedEffects {
    fn take_effects(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().expect("no run goes on after a panic"))
    }
}

impl EffectLog for CollectedEffects {
    fn has_readers(&self) -> bool {
        true
    }

    fn append(&self, db: u16, commands: &[u8]) -> ReplOffset {
        assert_eq!(db, 0, "all keys are in one database");
        self.0.lock().expect("no run goes on after a panic").extend_from_slice(commands);
        ReplOffset(0)
    }
}

/// The keyspace of one process.
pub(super) struct DataStore {
    /// Reading data executes commands, which needs a mutable executor.
    executor: RefCell<Executor>,
    effects: CollectedEffects,
}

impl DataStore {
    /// Creates an empty keyspace that serves `slots`.
    pub(super) fn new_empty(slots: &SlotSet, is_cluster_enabled: bool) -> Self {
        let effects = CollectedEffects::default();
        let topology = is_cluster_enabled.then(single_node_topology);
        let executor = Executor::new(slots, 1, topology, Box::new(effects.clone()));
        executor.engine.settings.set_node_flag(NodeFlags::LOADING, true);
        Self { executor: RefCell::new(executor), effects }
    }

    /// Returns the engine, whose node flags and slots decide which commands may run.
    pub(super) fn engine(&self) -> Ref<'_, Engine> {
        Ref::map(self.executor.borrow(), |executor| &executor.engine)
    }

    /// Returns whether a client's write to this slot would be accepted now.
    pub(super) fn accepts_writes(&self, key_group: KeyGroup, wall_time: Millis) -> bool {
        let engine = self.engine();
        engine.scheduling.pauses.end_expired(&engine.settings, wall_time);
        let slot = engine.keyspace.lock(slot_of(key_group));
        let is_ours = matches!(slot.ownership(), Ownership::Local | Ownership::Migrating);
        is_ours && !slot.has_paused_writes() && !engine.settings.node_flags().intersects(WRITE_BLOCKING_FLAGS)
    }

    /// Returns the number of the last write to this slot.
    pub(super) fn last_write_number(&self, key_group: KeyGroup) -> Option<u64> {
        let reply = self.run_command(&["GET", marker_key(key_group)]);
        match resp::parse_value(&reply) {
            Ok(Some((Value::Bulk(text), _))) => resp::parse_i64(&text).map(|number| number as u64),
            _ => None,
        }
    }

    /// Executes a command with all permissions and without access checks, and returns its reply.
    fn run_command(&self, words: &[&str]) -> Vec<u8> {
        let mut session = Session::new(0, CommandOrigin::Master, true);
        self.executor.borrow_mut().run_on_session(&mut session, EARLIEST_TIME, words)
    }

    /// Executes a client's pipeline. Returns the replies to all commands before the first one that a pause blocks, and
    /// the effects.
    pub(super) fn serve(
        &mut self,
        session: &mut Session,
        wall_time: Millis,
        requests: &[CommandWords],
    ) -> (Vec<Value>, Vec<u8>) {
        let mut buffer = Vec::new();
        for words in requests {
            resp::encode_request(&mut buffer, words.iter().map(String::as_bytes));
        }
        let (ran, _) = self.executor.get_mut().run(session, wall_time, buffer);
        (parse_replies(&ran.replies), self.effects.take_effects())
    }

    /// Opens a session for a client.
    pub(super) fn connect(&self) -> Session {
        let client = self.engine().clients.connect(ConnectionInfo::default(), EARLIEST_TIME, Box::new(|| {}));
        Session::for_client(client, CommandOrigin::Client, true)
    }

    pub(super) fn disconnect(&self, client: &WaitingClient) {
        self.engine().clients.disconnect(client.id());
    }

    /// Runs a closure on the executor. Returns its result, and the effects that must enter the log.
    pub(super) fn with_executor<T>(&mut self, action: impl FnOnce(&mut Executor) -> T) -> (T, Vec<u8>) {
        let done = action(self.executor.get_mut());
        (done, self.effects.take_effects())
    }

    /// Executes commands that recreate another node's keys in slots that are being imported. Returns the effects.
    ///
    /// # Panics
    /// If a pause is active, because the commands that it blocks would be lost.
    pub(super) fn execute_import(
        &mut self,
        session: &mut Session,
        wall_time: Millis,
        requests: Vec<u8>,
    ) -> (Result<(), String>, Vec<u8>) {
        let (ran, stop) = self.executor.get_mut().run(session, wall_time, requests);
        assert_eq!(stop, ExecutionStop::Finished, "the commands of a source wait for the end of a pause");
        (ran.failure.map_or(Ok(()), Err), self.effects.take_effects())
    }

    /// Returns the decoder with which slot migrations read the log.
    pub(super) fn logged_command_decoder(&self) -> LoggedCommandDecoder {
        durability::stream::logged_command_decoder(&self.executor.borrow().commands)
    }

    /// Executes a command from a master's stream. An error means that a change that the master has made could not be
    /// applied.
    pub(super) fn apply_command(
        &mut self,
        session: &mut Session,
        wall_time: Millis,
        request: Vec<u8>,
    ) -> Result<(), String> {
        let (ran, _) = self.executor.get_mut().run(session, wall_time, request);
        self.effects.take_effects();
        ran.failure.map_or(Ok(()), Err)
    }

    /// Deletes expired keys and returns the effects.
    pub(super) fn delete_expired_keys(&mut self, wall_time: Millis) -> Vec<u8> {
        self.executor.get_mut().expire_keys(wall_time);
        self.effects.take_effects()
    }

    /// Returns the names of a slot's keys.
    pub(super) fn key_names(&self, key_group: KeyGroup) -> Vec<Vec<u8>> {
        match resp::parse_value(&self.run_command(&["KEYS", &format!("{}*", marker_key(key_group))])) {
            Ok(Some((Value::Array(names), _))) => {
                let name = |name: Value| if let Value::Bulk(name) = name { Some(name) } else { None };
                names.into_iter().filter_map(name).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Deletes some keys of a slot that another node now serves. Returns the effects.
    pub(super) fn delete_moved_keys(&mut self, key_group: KeyGroup) -> (RemainingKeys, Vec<u8>) {
        let left = self.engine().delete_unowned_keys(slot_of(key_group));
        (left, self.effects.take_effects())
    }

    /// Deletes some keys of a slot whose import failed. Returns the effects.
    pub(super) fn delete_imported_keys(&mut self, slot: Slot) -> (RemainingKeys, Vec<u8>) {
        let left = self.engine().delete_imported_keys(slot);
        (left, self.effects.take_effects())
    }

    /// Deletes a migrated key unless its value has changed since it was captured. Returns the result and the effects.
    pub(super) fn delete_migrated_key(
        &mut self,
        name: &[u8],
        wall_time: Millis,
        captured_key: &CapturedKey,
    ) -> (Result<ReleaseResult, CommandError>, Vec<u8>) {
        let outcome = self.executor.get_mut().release_migrated_key(name, wall_time, captured_key);
        (outcome, self.effects.take_effects())
    }

    /// Executes a client's encoded requests. Returns the replies and the effects.
    pub(super) fn execute_requests(&mut self, wall_time: Millis, requests: Vec<u8>) -> (Vec<Value>, Vec<u8>) {
        let mut session = Session::new(0, CommandOrigin::Client, true);
        let (ran, _) = self.executor.get_mut().run(&mut session, wall_time, requests);
        (parse_replies(&ran.replies), self.effects.take_effects())
    }

    /// Returns RESTORE commands that recreate all keys of a slot.
    pub(super) fn restore_commands(&self, key_group: KeyGroup) -> Vec<Vec<u8>> {
        let names = self.key_names(key_group);
        names.iter().map(|name| self.restore_command(name)).collect()
    }

    fn restore_command(&self, name: &[u8]) -> Vec<u8> {
        let name = std::str::from_utf8(name).expect("names are text");
        let dump = match resp::parse_value(&self.run_command(&["DUMP", name])) {
            Ok(Some((Value::Bulk(dump), _))) => dump,
            other => unreachable!("{name} is there: {other:?}"),
        };
        let due = match resp::parse_value(&self.run_command(&["PEXPIRETIME", name])) {
            Ok(Some((Value::Integer(due), _))) => due.max(0).to_string(),
            other => unreachable!("{name} is there: {other:?}"),
        };
        let mut request = Vec::new();
        let words = [b"RESTORE", name.as_bytes(), due.as_bytes(), &dump, b"REPLACE", b"ABSTTL"];
        resp::encode_request(&mut request, words);
        request
    }

    /// Returns a digest of the data. Equal data has equal digests.
    pub(super) fn digest(&self) -> Vec<u8> {
        self.run_command(&["DEBUG", "DIGEST"])
    }

    /// Serializes a snapshot, which records its position in the process's history.
    pub(super) fn rdb_snapshot(&self, position: ReplPosition, slot_states: &str) -> Vec<u8> {
        self.write_rdb(position, false, slot_states)
    }

    fn write_rdb(&self, position: ReplPosition, is_aof_base: bool, slot_states: &str) -> Vec<u8> {
        let executor = self.executor.borrow();
        let (cut, _) = snapshot_io::take_snapshot(&executor.engine, executor::constant_nanos, || ());
        let (state, ()) = cut.expect("no other snapshot is under way");
        executor::write_rdb(state, position, EARLIEST_TIME, is_aof_base, slot_states, &mut NoWriteObserver)
            .expect("memory takes it")
    }

    /// Serializes the base file of an append-only file.
    pub(super) fn write_base(&self, position: ReplPosition) -> Vec<u8> {
        self.write_rdb(position, true, "")
    }

    /// Replaces the data by the content of append-only files, including the state of imports.
    pub(super) fn load_files(
        &mut self,
        folder: &AofDirectory<SimDisk>,
        manifest: &Manifest,
        imports: &SlotImports,
    ) -> Result<AofLoadResult, String> {
        let executor = self.executor.get_mut();
        let on_command = |args: Args<'_>| {
            if let Ok(Some(ControlCommand::SyncSlots(command))) = ControlCommand::decode(args) {
                imports.apply_command(&executor.engine, &command);
            }
        };
        let host = LoadCommandForwarder { now: EARLIEST_TIME, on_command: &on_command };
        let loaded = executor.loader(&host).run_files(folder, manifest, true);
        self.effects.take_effects();
        loaded.map_err(|error| error.to_string())
    }

    /// Deletes all data without logging effects.
    pub(super) fn clear(&mut self) {
        snapshot_io::clear_for_loading(&self.executor.get_mut().engine);
    }

    /// Replaces the data by the content of a snapshot.
    pub(super) fn load_snapshot(&mut self, snapshot: &[u8]) -> LoadResult {
        let executor = self.executor.get_mut();
        let host = LoadCommandForwarder::with_time(EARLIEST_TIME);
        let loaded = executor.loader(&host).replace_dataset(snapshot, snapshot.len() as u64, false, || true);
        loaded.unwrap_or_else(|error| panic!("a snapshot is whole: {error}"))
    }
}

/// Returns the topology of a cluster with a single node.
fn single_node_topology() -> Topology {
    let id = NodeId::from_random([0; 20]);
    let member = Member {
        id,
        shard: id,
        endpoint: Endpoint::default(),
        role: Role::Master,
        config_epoch: Epoch(0),
        offset: ReplOffset(0),
        has_failed: false,
        is_suspected: false,
    };
    Topology::new(id, Epoch(0), false, vec![member])
}

pub(super) fn slot_of(key_group: KeyGroup) -> Slot {
    Slot::new(key_group).expect("a key is the number of a slot")
}

/// Parses the replies in a buffer.
fn parse_replies(mut replies: &[u8]) -> Vec<Value> {
    let mut values = Vec::new();
    while let Ok(Some((value, len))) = resp::parse_value(replies) {
        replies = &replies[len..];
        values.push(value);
    }
    values
}

/// An observer of snapshot writing that runs no other events between two slots.
struct NoWriteObserver;

impl WriteObserver for NoWriteObserver {
    fn on_keys_written(&mut self, _keys: u64) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use engine::{PauseMode, PausePurpose};

    use super::*;

    /// Regression test, found with seed 132 and six nodes: the target of a migration was frozen, and a pause was active
    /// when it resumed. Commands that the source had sent in between were dropped, and the target claimed the slot
    /// without their data.
    #[test]
    #[should_panic(expected = "wait for the end of a pause")]
    fn import_commands_are_not_dropped_during_pause() {
        let mut data_store = DataStore::new_empty(&SlotSet::from_iter([slot_of(1)]), true);
        let mut request = Vec::new();
        resp::encode_request(&mut request, ["SET", marker_key(1), "7"].map(str::as_bytes));
        let mut session = Session::new(0, CommandOrigin::SlotMigrationSource, true);
        assert_eq!(data_store.execute_import(&mut session, Millis(1), request.clone()).0, Ok(()));
        assert_eq!(data_store.last_write_number(1), Some(7));
        let engine = data_store.engine();
        engine.scheduling.pauses.pause(
            &engine.settings,
            PausePurpose::ProcessSuspended,
            PauseMode::All,
            Millis(i64::MAX),
        );
        drop(engine);
        drop(data_store.execute_import(&mut session, Millis(1), request));
    }
}

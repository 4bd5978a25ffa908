//! Slot imports of this node or its master. The imported keys are hidden from clients. CLUSTER SYNCSLOTS announces an
//! import in the stream, and again after every snapshot that contains such keys.
//!
//! A replica hides its master's imports until the master has claimed the slots. The append-only file records imports
//! like the stream; an import without an end in the file has failed.

use std::collections::BTreeMap;

use engine::Engine;
use migration::{EstablishMessage, FinishMessage, JobName, SyncSlotsCommand};
use parking_lot::Mutex;
use replication::Log;
use slot_routing::{Slot, SlotSet, is_owned_elsewhere};

/// The imports that have started and not ended, by name.
#[derive(Debug, Default)]
pub struct SlotImports(Mutex<BTreeMap<JobName, EstablishMessage>>);

impl SlotImports {
    /// Returns the slots that are being imported.
    pub(crate) fn imported_slots(&self) -> SlotSet {
        self.0.lock().values().flat_map(|import| import.slots().iter().collect::<Vec<Slot>>()).collect()
    }

    /// Whether no import is running.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Returns the imports that have started and not ended, which snapshots and new replicas must know.
    pub fn running_imports(&self) -> Vec<EstablishMessage> {
        self.0.lock().values().cloned().collect()
    }

    /// Starts an import, and hides its slots from clients.
    pub fn start_import(&self, engine: &Engine, import: EstablishMessage) {
        import.slots().iter().for_each(|slot| engine.set_slot_hidden(slot, true));
        self.0.lock().insert(import.name, import);
    }

    /// Ends an import, and makes its slots visible. Returns `None` if there is no import with this name.
    pub fn end_import(&self, engine: &Engine, name: &JobName) -> Option<EstablishMessage> {
        let ended = self.0.lock().remove(name)?;
        // Another running import may still cover some of the slots.
        let hidden = self.imported_slots();
        ended
            .slots()
            .iter()
            .filter(|slot| !hidden.contains(*slot))
            .for_each(|slot| engine.set_slot_hidden(slot, false));
        Some(ended)
    }

    /// Ends all imports, because the data was replaced.
    pub fn end_all_imports(&self, engine: &Engine) {
        for import in self.running_imports() {
            self.end_import(engine, &import.name);
        }
    }

    /// Repeats the running imports in the log. Called when a snapshot is taken.
    pub fn repeat_running_imports_in_log(&self, log: &mut Log) {
        for import in self.0.lock().values() {
            log.append_control(&encode_begin(import));
        }
    }

    /// Processes a SYNCSLOTS command from a master's stream or a file. The master itself sends commands that delete the
    /// keys of a failed import.
    pub fn apply_command(&self, engine: &Engine, command: &SyncSlotsCommand) {
        match command {
            SyncSlotsCommand::Establish(import) => self.start_import(engine, import.clone()),
            SyncSlotsCommand::Finish(end) => {
                // This lock must be released before waiting for slot locks, because a snapshot locks the slots first.
                let failed = self.0.lock().get(&end.name).filter(|_| !end.is_success).cloned();
                if let Some(import) = failed {
                    // Valkey masters do not send these deletions, so the keys are deleted here.
                    import.slots().iter().for_each(|slot| engine.clear_slot_unlogged(slot));
                }
                self.end_import(engine, &end.name);
            }
            SyncSlotsCommand::QueryResumable
            | SyncSlotsCommand::Resume(_)
            | SyncSlotsCommand::Request(..)
            | SyncSlotsCommand::Message(_)
            | SyncSlotsCommand::AppliedBytes(_) => {}
        }
    }
}

/// Encodes the start of an import for the log.
#[must_use]
pub fn encode_begin(import: &EstablishMessage) -> Vec<u8> {
    SyncSlotsCommand::Establish(import.to_message_for_replicas()).to_resp()
}

/// Encodes the end of an import for the log. If the import failed, its keys have been deleted, and replicas drop its
/// slots. If this node serves any of the slots, however, the import has claimed them and only the report was lost;
/// logging a failure would make replicas delete keys that are served.
pub fn encode_end(engine: &Engine, import: &EstablishMessage, outcome: &Result<(), String>) -> Vec<u8> {
    let is_served = |slot| !is_owned_elsewhere(engine.keyspace.lock(slot).ownership());
    let failure = outcome.as_ref().err().filter(|_| !import.slots().iter().any(is_served));
    let (is_success, message) = (failure.is_none(), failure.cloned().unwrap_or_default());
    SyncSlotsCommand::Finish(FinishMessage { name: import.name, is_success, error: message }).to_resp()
}

#[cfg(test)]
mod tests {
    use migration::ControlCommand;
    use resp::Request;
    use slot_routing::{NodeId, Ownership};

    use super::*;
    use crate::testing::{TestServer, import_of_keys};

    /// Regression test: the simulator found that replicas deleted served keys (cluster of nine nodes, seed 21).
    #[test]
    fn import_of_served_slots_is_logged_as_success() {
        let engine = Engine::for_sentinel(acl::CommandCatalogue::default(), 1);
        let slot = |number| Slot::new(number).unwrap();
        let import = EstablishMessage {
            source: NodeId::from_random([1; 20]),
            name: JobName::from_random([2; 20]),
            ranges: vec![(slot(3), slot(4))],
            is_resumable: false,
        };
        let failed = Err("A failover occurred".to_owned());
        let said = |outcome: &Result<(), String>| {
            let command = encode_end(&engine, &import, outcome);
            let text = String::from_utf8_lossy(&command).into_owned();
            let words: Vec<&str> = text.split("\r\n").skip(2).step_by(2).collect();
            let request: Request = words.iter().map(|word| word.as_bytes()).collect();
            match ControlCommand::decode(request.args()) {
                Ok(Some(ControlCommand::SyncSlots(SyncSlotsCommand::Finish(end)))) => end.is_success,
                other => unreachable!("{other:?}"),
            }
        };
        engine.set_ownership(slot(3), Ownership::Remote);
        engine.set_ownership(slot(4), Ownership::Remote);
        assert!(!said(&failed));
        assert!(said(&Ok(())));
        engine.set_ownership(slot(4), Ownership::Local);
        assert!(said(&failed), "its successor has claimed it");
    }

    fn test_engine() -> Engine {
        Engine::for_sentinel(acl::CommandCatalogue::default(), 1)
    }

    fn is_hidden(engine: &Engine, key: &str) -> bool {
        engine.keyspace.lock(Slot::of_key(key.as_bytes())).is_hidden()
    }

    #[test]
    fn slots_stay_hidden_until_no_import_covers_them() {
        let (engine, imports) = (test_engine(), SlotImports::default());
        let (one, other) = (import_of_keys(1, &["a", "b"]), import_of_keys(2, &["b", "c"]));
        imports.start_import(&engine, one.clone());
        imports.start_import(&engine, other);
        let hidden = || ["a", "b", "c"].map(|key| is_hidden(&engine, key));
        assert_eq!(hidden(), [true, true, true]);
        assert_eq!(imports.end_import(&engine, &one.name), Some(one.clone()));
        assert_eq!(hidden(), [false, true, true]);
        assert_eq!(imports.end_import(&engine, &one.name), None, "it has ended");
        imports.end_all_imports(&engine);
        assert_eq!(hidden(), [false, false, false]);
        assert!(imports.is_empty() && imports.imported_slots().iter().next().is_none());
    }

    #[test]
    fn end_of_an_import_in_the_stream_shows_its_slots() {
        let (engine, imports) = (test_engine(), SlotImports::default());
        let import = import_of_keys(1, &["a"]);
        for is_success in [true, false] {
            imports.apply_command(&engine, &SyncSlotsCommand::Establish(import.clone()));
            assert!(is_hidden(&engine, "a"));
            let end = FinishMessage { name: JobName::from_random([9; 20]), is_success, error: String::new() };
            imports.apply_command(&engine, &SyncSlotsCommand::Finish(end.clone()));
            assert!(is_hidden(&engine, "a"), "another import has ended");
            imports.apply_command(
                &engine,
                &SyncSlotsCommand::Finish(FinishMessage { name: import.name, ..end }),
            );
            assert!(!is_hidden(&engine, "a") && imports.is_empty(), "{is_success}");
        }
    }

    #[test]
    fn failed_import_in_the_stream_loses_its_keys() {
        for (is_success, a) in [(true, "$11"), (false, "$-1")] {
            let mut server = TestServer::new(&[]);
            server.run("SET a 1");
            server.run("SET b 2");
            let (durability, import) = (server.durability.clone(), import_of_keys(1, &["a"]));
            let (imports, engine) = (&durability.applied_stream.imports, &durability.engine);
            imports.start_import(engine, import.clone());
            let end = FinishMessage { name: import.name, is_success, error: String::new() };
            imports.apply_command(engine, &SyncSlotsCommand::Finish(end));
            assert_eq!((server.run("GET a").as_str(), server.run("GET b").as_str()), (a, "$12"));
        }
    }
}

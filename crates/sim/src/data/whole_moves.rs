//! Simulates the data of atomic slot migrations: the snapshot and the changes after it, blocked writes, and imported
//! data that is hidden until the target owns the slots.

use std::fmt::Debug;

use durability::stream::imports;
use engine::{CommandOrigin, RemainingKeys, Session};
use migration::{EstablishMessage, LoggedCommandDecoder};
use replication::CursorId;

use super::data_store::slot_of;
use super::{DataEvent, KeyGroup, LOCK_RETRY_INTERVAL, ProcessState};
use crate::simulation::Simulation;

/// A command that recreates or changes a key, in RESP.
pub(crate) type EncodedCommand = Vec<u8>;

/// Creates the session in which the target executes commands from the source.
pub(crate) fn source_session() -> Session {
    Session::new(0, CommandOrigin::SlotMigrationSource, true)
}

impl ProcessState {
    /// Returns the function that finds the slots of a command.
    pub(crate) fn logged_command_decoder(&self) -> LoggedCommandDecoder {
        self.data_store.logged_command_decoder()
    }
}

impl<E: Debug> Simulation<E> {
    /// Takes a snapshot of these slots. Returns commands that recreate their keys, and a cursor for later changes.
    /// `None` if a running command or a load makes a consistent snapshot impossible.
    pub(crate) fn snapshot_slots(
        &mut self,
        host: usize,
        key_groups: &[KeyGroup],
    ) -> Option<(Vec<EncodedCommand>, CursorId)> {
        let store = &mut self.data.process_states[host];
        if !store.can_snapshot() || !store.log.is_open() {
            return None;
        }
        // Makes the next change that is logged select its database.
        store.log.reset_selected_db();
        let end = store.log.position().offset;
        let copies = key_groups.iter().flat_map(|key| store.data_store.restore_commands(*key)).collect();
        Some((copies, store.log.add_local_cursor(end)))
    }

    /// Returns the number of log bytes after a cursor; `None` if the log no longer contains all of them.
    pub(crate) fn unread_log_bytes(&self, host: usize, cursor: CursorId) -> Option<u64> {
        self.data.process_states[host].log.unread_bytes(cursor).ok()
    }

    /// Reads log bytes and advances the cursor; `None` if the log no longer contains the next bytes.
    pub(crate) fn read_log(&mut self, host: usize, cursor: CursorId) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let chunk = self.data.settings.max_chunk;
        self.data.process_states[host].log.read(cursor, chunk, &mut bytes).ok()?;
        Some(bytes)
    }

    pub(crate) fn remove_cursor(&mut self, host: usize, cursor: CursorId) {
        self.data.process_states[host].log.remove_cursor(cursor);
    }

    /// Blocks or unblocks writes to these slots.
    pub(crate) fn set_slot_writes_blocked(
        &mut self,
        host: usize,
        key_groups: &[KeyGroup],
        are_blocked: bool,
    ) {
        let engine = self.data.process_states[host].engine();
        for slot in key_groups.iter().map(|key| slot_of(*key)) {
            if are_blocked {
                engine.pause_slot_writes(slot);
            } else if engine.keyspace.lock(slot).has_paused_writes() {
                engine.resume_slot_writes(slot);
            }
        }
    }

    /// Returns whether no command is running on these slots.
    pub(crate) fn are_slots_unlocked(&self, host: usize, key_groups: &[KeyGroup]) -> bool {
        !key_groups.iter().any(|key| self.data.process_states[host].is_locked(*key))
    }

    /// Begins an import after deleting old data in its slots. Returns whether the import could begin, which it cannot
    /// while a command has such a slot locked.
    pub(crate) fn begin_import(&mut self, host: usize, import: &EstablishMessage) -> bool {
        let are_free = import.slots().iter().all(|slot| {
            !self.data.process_states[host].is_locked(slot.number())
                && self.empty_slot_at_once(host, slot) == RemainingKeys::None
        });
        if are_free {
            let store = &mut self.data.process_states[host];
            store.imports.start_import(&store.data_store.engine(), import.clone());
            store.log.append_control(&imports::encode_begin(import));
            self.wake_replica_connections(host);
        }
        are_free
    }

    /// Returns whether a pause blocks the commands that the source of a migration sends.
    pub(crate) fn is_import_paused(&self, host: usize) -> bool {
        self.data.process_states[host].is_paused(self.wall_clock_of(host))
    }

    /// Executes commands from the source of a migration and replicates them. Must not be called during a pause. An
    /// error means that a change was not applied.
    pub(crate) fn import_changes(
        &mut self,
        host: usize,
        session: &mut Session,
        commands: Vec<u8>,
    ) -> Result<(), String> {
        let wall = self.wall_clock_of(host);
        let (taken, effects) =
            self.data.process_states[host].data_store.execute_import(session, wall, commands);
        self.log_effects(host, &effects);
        taken
    }

    /// Ends an import. If it succeeded, its data becomes visible; otherwise its data is deleted.
    pub(crate) fn end_import(&mut self, host: usize, import: &EstablishMessage, outcome: Result<(), String>) {
        let slots: Vec<_> = import.slots().iter().collect();
        let at = self.process_id(host);
        for slot in slots.into_iter().filter(|_| outcome.is_err()) {
            loop {
                let (left, effects) = self.data.process_states[host].data_store.delete_imported_keys(slot);
                self.log_effects(host, &effects);
                match left {
                    RemainingKeys::MaybeMore => {}
                    RemainingKeys::None => break,
                    RemainingKeys::Paused => {
                        let import = Box::new(import.clone());
                        let event = DataEvent::EndImport { process_id: at, import, outcome };
                        return self.schedule_data(self.now + LOCK_RETRY_INTERVAL * 10, event);
                    }
                }
            }
        }
        let store = &mut self.data.process_states[host];
        let end = imports::encode_end(&store.engine(), import, &outcome);
        store.log.append_control(&end);
        store.imports.end_import(&store.data_store.engine(), &import.name);
        self.wake_replica_connections(host);
    }

    /// After a promotion, drops the imports that the old master had announced.
    pub(super) fn drop_imports(&mut self, host: usize) {
        for import in self.data.process_states[host].imports.running_imports() {
            self.end_import(host, &import, Err("A failover occurred during slot import".to_owned()));
        }
    }

    /// Returns a key whose last write differs between two processes, with both values.
    pub(crate) fn find_differing_key_group(
        &self,
        first_host: usize,
        second_host: usize,
        key_groups: &[KeyGroup],
    ) -> Option<(KeyGroup, [Option<u64>; 2])> {
        let values = |key: &KeyGroup| {
            [first_host, second_host]
                .map(|host| self.data.process_states[host].data_store.last_write_number(*key))
        };
        key_groups.iter().map(|key| (*key, values(key))).find(|(_, [one, other])| one != other)
    }
}

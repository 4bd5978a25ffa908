//! Takes and writes snapshots of an engine's data.

use std::io::{self, Write};
use std::sync::Arc;

use engine::Engine;
use keyspace::{DatabaseSize, Snapshot, SnapshotEntry, SnapshotValue};
use persistence::aof::CommandWriter;
use persistence::{RdbInfo, RdbWriter, WriteOptions};
use slot_routing::SlotSet;

/// The state of all data at one moment.
#[derive(Debug)]
pub struct SnapshotState {
    /// The keys and values; `None` if only the function libraries are written.
    snapshot: Option<Snapshot>,
    /// Approximate key counts per database.
    sizes: Vec<DatabaseSize>,
    libraries: Vec<Arc<scripting::Library>>,
    /// The slots whose keys are written.
    slots: SlotSet,
}

impl SnapshotState {
    /// Returns the approximate number of keys.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.sizes.iter().map(|size| size.keys).sum()
    }

    /// Drops the keys and values; only the function libraries are then written.
    pub fn drop_data(&mut self) {
        self.snapshot = None;
        self.sizes.clear();
    }

    /// Restricts the snapshot to the keys of these slots.
    pub fn retain_slots(&mut self, slots: &SlotSet) {
        self.slots = self.slots.iter().filter(|slot| slots.contains(*slot)).collect();
    }

    /// Excludes the keys of these slots.
    pub fn exclude_slots(&mut self, slots: &SlotSet) {
        for slot in slots.iter() {
            self.slots.remove(slot);
        }
    }

    /// Drops the function libraries.
    pub fn drop_functions(&mut self) {
        self.libraries.clear();
    }
}

/// Captures all data at this moment, and calls `while_locked` while all slots are locked. Returns the snapshot with the
/// result of that call (`None` if too many snapshots are active), and for how many nanoseconds the slots were locked.
pub fn take_snapshot<R>(
    engine: &Engine,
    nanos: fn() -> u64,
    while_locked: impl FnOnce() -> R,
) -> (Option<(SnapshotState, R)>, u64) {
    let turn = engine.keyspace.acquire_global_lock();
    // Count the keys before locking, because counting visits every slot.
    let sizes = engine.keyspace.sizes();
    let ready = engine.keyspace.prepare_snapshot();
    let began = nanos();
    // A change of the function libraries locks every slot, so they cannot change while all slots are locked here.
    let functions = &engine.scripting.scripts.functions;
    let cut = ready.take(&turn, || (while_locked(), functions.libraries()));
    let took = nanos() - began;
    let state = cut.map(|(snapshot, (noted, libraries))| {
        (
            SnapshotState {
                snapshot: Some(snapshot),
                sizes,
                libraries,
                slots: engine.keyspace.slots().collect(),
            },
            noted,
        )
    });
    (state, took)
}

/// Observes, and can abort, the writing of a snapshot.
pub trait WriteObserver {
    /// Called after `keys` keys of a slot were written. No slot is locked.
    ///
    /// # Errors
    /// An error aborts writing.
    fn on_keys_written(&mut self, keys: u64) -> io::Result<()>;
}

/// Writes a snapshot as an RDB. No slot is locked while writing to `out`.
///
/// # Errors
/// The error of `out`, or the error with which the observer aborted writing.
pub fn write_rdb(
    state: SnapshotState,
    options: WriteOptions,
    info: &RdbInfo<'_>,
    observer: &mut dyn WriteObserver,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut writer = RdbWriter::new(out, options, info)?;
    state.libraries.iter().try_for_each(|library| writer.write_function(&library.code))?;
    let sizes = &state.sizes;
    walk_all(state.snapshot, &state.slots, observer, &mut |entry| {
        writer.write_entry(entry, |db| (sizes[usize::from(db)].keys, sizes[usize::from(db)].volatile))
    })?;
    writer.finish().map(drop)
}

/// Writes a snapshot as commands that recreate the data.
///
/// # Errors
/// Same as [`write_rdb`].
pub fn write_commands(
    state: SnapshotState,
    observer: &mut dyn WriteObserver,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut writer = CommandWriter::new(out);
    state.libraries.iter().try_for_each(|library| writer.write_function(&library.code))?;
    walk_all(state.snapshot, &state.slots, observer, &mut |entry| writer.write_entry(entry))?;
    writer.finish().map(drop)
}

fn walk_all(
    snapshot: Option<Snapshot>,
    slots: &SlotSet,
    observer: &mut dyn WriteObserver,
    write: &mut dyn FnMut(&SnapshotEntry<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let Some(mut snapshot) = snapshot else { return Ok(()) };
    for slot in slots.iter() {
        let mut more = true;
        while more {
            let (mut outcome, mut keys) = (Ok(()), 0);
            more = snapshot.walk_part(slot, &mut |entry| {
                keys += u64::from(!matches!(entry.value, SnapshotValue::Part(part) if !part.is_first));
                if outcome.is_ok() {
                    outcome = write(&entry);
                }
            });
            outcome?;
            observer.on_keys_written(keys)?;
        }
    }
    Ok(())
}

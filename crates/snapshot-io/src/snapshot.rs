//! Snapshots of an engine's data: the cut, and the walk that writes what was there then.

use std::io::{self, Write};
use std::sync::Arc;

use engine::Engine;
use keyspace::{Shown, Size, Snapshot, SnapshotEntry};
use persistence::aof::CommandWriter;
use persistence::{Info, RdbWriter, WriteOptions};
use slot_routing::SlotSet;

/// The state of all data at one moment.
#[derive(Debug)]
pub struct State {
    /// None if only something else is wanted.
    snapshot: Option<Snapshot>,
    /// By database: about how many keys it has, and how many of them expire.
    sizes: Vec<Size>,
    libraries: Vec<Arc<scripting::Library>>,
    /// Only what lies in these is written.
    slots: SlotSet,
}

impl State {
    /// About how many keys it has.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.sizes.iter().map(|size| size.keys).sum()
    }

    /// Lets go of the keys.
    pub fn drop_data(&mut self) {
        self.snapshot = None;
        self.sizes.clear();
    }

    /// Keeps the keys of these slots alone.
    pub fn keep_slots(&mut self, slots: &SlotSet) {
        self.slots = self.slots.iter().filter(|slot| slots.contains(*slot)).collect();
    }

    /// Leaves out the keys of these slots.
    pub fn leave_out(&mut self, slots: &SlotSet) {
        for slot in slots.iter() {
            self.slots.remove(slot);
        }
    }

    /// Lets go of the libraries of functions.
    pub fn drop_functions(&mut self) {
        self.libraries.clear();
    }
}

/// Takes the state of all data now, what `at_cut` noted at that moment, and how many nanoseconds everything was held.
/// `None`: too many snapshots are under way.
pub fn cut<R>(engine: &Engine, nanos: fn() -> u64, at_cut: impl FnOnce() -> R) -> (Option<(State, R)>, u64) {
    let turn = engine.keyspace.script_turn();
    // Before anything is held: it looks at every slot.
    let sizes = engine.keyspace.sizes();
    let ready = engine.keyspace.ready_to_cut();
    let began = nanos();
    // A change of libraries holds every slot, as this cut does.
    let functions = &engine.scripts.functions;
    let cut = ready.cut(&turn, || (at_cut(), functions.libraries()));
    let took = nanos() - began;
    let state = cut.map(|(snapshot, (noted, libraries))| {
        (
            State { snapshot: Some(snapshot), sizes, libraries, slots: engine.keyspace.slots().collect() },
            noted,
        )
    });
    (state, took)
}

/// Goes along with a walk through a snapshot.
pub trait Steps {
    /// A part of a slot with so many keys was written. Nothing is held.
    ///
    /// # Errors
    /// The walk is called off.
    fn on_part(&mut self, keys: u64) -> io::Result<()>;
}

/// Writes the snapshot as an RDB. No slot is held while anything is written.
///
/// # Errors
/// Those of `out`, and of a walk that is called off.
pub fn write_rdb(
    state: State,
    options: WriteOptions,
    info: &Info<'_>,
    steps: &mut dyn Steps,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut writer = RdbWriter::new(out, options, info)?;
    state.libraries.iter().try_for_each(|library| writer.function(&library.code))?;
    let sizes = &state.sizes;
    walk(state.snapshot, &state.slots, steps, &mut |entry| {
        writer.entry(entry, |db| (sizes[usize::from(db)].keys, sizes[usize::from(db)].volatile))
    })?;
    writer.finish().map(drop)
}

/// Writes the snapshot as commands that make it.
///
/// # Errors
/// As [`write_rdb`].
pub fn write_commands(state: State, steps: &mut dyn Steps, out: &mut impl Write) -> io::Result<()> {
    let mut writer = CommandWriter::new(out);
    state.libraries.iter().try_for_each(|library| writer.function(&library.code))?;
    walk(state.snapshot, &state.slots, steps, &mut |entry| writer.entry(entry))?;
    writer.finish().map(drop)
}

/// Through a snapshot, slot by slot.
fn walk(
    snapshot: Option<Snapshot>,
    slots: &SlotSet,
    steps: &mut dyn Steps,
    write: &mut dyn FnMut(&SnapshotEntry<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let Some(mut snapshot) = snapshot else { return Ok(()) };
    for slot in slots.iter() {
        let mut more = true;
        while more {
            let (mut outcome, mut keys) = (Ok(()), 0);
            more = snapshot.walk_part(slot, &mut |entry| {
                keys += u64::from(!matches!(entry.value, Shown::Part(part) if !part.first));
                if outcome.is_ok() {
                    outcome = write(&entry);
                }
            });
            outcome?;
            steps.on_part(keys)?;
        }
    }
    Ok(())
}

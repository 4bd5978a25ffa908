//! The imports that are under way, here or at the master, whose keys are hidden: by CLUSTER SYNCSLOTS in the stream,
//! and at once behind each cut that has such keys.
//!
//! A replica hides what its master imports and shows it when the master has claimed the slots. An append-only file
//! tells of imports as the stream does; one that has no end there came to nothing.

use std::collections::BTreeMap;

use engine::Engine;
use migration::{Establish, Finish, JobName, finish, parse_establish, parse_finish};
use parking_lot::Mutex;
use replication::Log;
use resp::Args;
use slot_routing::{Slot, SlotSet};

/// The imports that are under way.
#[derive(Debug, Default)]
pub struct Imports(Mutex<BTreeMap<JobName, Establish>>);

impl Imports {
    /// The slots that are being imported.
    pub(crate) fn slots(&self) -> SlotSet {
        self.0.lock().values().flat_map(|import| import.slots().iter().collect::<Vec<Slot>>()).collect()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Establish> {
        self.0.lock().values().cloned().collect()
    }

    /// An import begins: what its slots hold is hidden.
    pub fn begin(&self, engine: &Engine, import: Establish) {
        import.slots().iter().for_each(|slot| engine.hide_slot(slot, true));
        self.0.lock().insert(import.name, import);
    }

    /// An import has ended: what its slots hold is shown.
    pub fn end(&self, engine: &Engine, name: &JobName) -> Option<Establish> {
        let ended = self.0.lock().remove(name)?;
        // Another one may be about some of them.
        let hidden = self.slots();
        ended
            .slots()
            .iter()
            .filter(|slot| !hidden.contains(*slot))
            .for_each(|slot| engine.hide_slot(slot, false));
        Some(ended)
    }

    /// All data is another's from now on.
    pub fn forget(&self, engine: &Engine) {
        for import in self.all() {
            self.end(engine, &import.name);
        }
    }

    /// Says to the readers of the log what is under way. To be called at a cut.
    pub fn restate(&self, log: &mut Log) {
        for import in self.0.lock().values() {
            let mut command = Vec::new();
            import.encode(&mut command);
            log.append_control(&command);
        }
    }

    /// A master's stream, or a file, brought a command that may be CLUSTER SYNCSLOTS. Returns what it said of an import.
    /// The master deletes what came to nothing itself.
    pub fn on_stream(&self, engine: &Engine, args: Args<'_>) -> Option<Told> {
        let is = |index: usize, word: &str| {
            args.get(index).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
        };
        if !is(0, "cluster") || !is(1, "syncslots") {
            return None;
        }
        let words: Vec<String> =
            args.iter().skip(3).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        if is(2, "establish") {
            let import = parse_establish(&words)?;
            self.begin(engine, import.clone());
            return Some(Told::Began(import));
        }
        let end = parse_finish(&words).filter(|_| is(2, "finish"))?;
        // Without this lock while slots are waited for: a cut takes it while it holds them.
        let failed = self.0.lock().get(&end.name).filter(|_| !end.is_success).cloned();
        if let Some(import) = failed {
            // A master of Valkey's does not say which keys go.
            import.slots().iter().for_each(|slot| engine.forget_slot(slot));
        }
        self.end(engine, &end.name);
        Some(Told::Ended(end))
    }
}

/// A change of an import that the master's stream, or a file, told.
#[derive(Debug)]
pub enum Told {
    /// It has begun: what its slots hold is hidden.
    Began(Establish),
    /// It is over, one way or the other.
    Ended(Finish),
}

/// The end of an import, as the log has it.
pub fn ended(name: JobName, outcome: &Result<(), String>) -> Vec<u8> {
    let message = outcome.as_ref().err().cloned().unwrap_or_default();
    let mut command = Vec::new();
    finish(&Finish { name, is_success: outcome.is_ok(), message }, &mut command);
    command
}

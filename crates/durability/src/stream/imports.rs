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
use slot_routing::{Slot, SlotSet, is_left};

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

/// The end of an import, as the log has it. What has failed is deleted by then, and replicas give its slots up. But slots
/// that this node serves were claimed, and the job had no time to say so: a replica that takes over from the target of a
/// move would have the others delete what it serves.
pub fn ended(engine: &Engine, import: &Establish, outcome: &Result<(), String>) -> Vec<u8> {
    let is_served = |slot| !is_left(engine.keyspace.lock(slot).ownership());
    let failure = outcome.as_ref().err().filter(|_| !import.slots().iter().any(is_served));
    let (is_success, message) = (failure.is_none(), failure.cloned().unwrap_or_default());
    let mut command = Vec::new();
    finish(&Finish { name: import.name, is_success, message }, &mut command);
    command
}

#[cfg(test)]
mod tests {
    use resp::Request;
    use slot_routing::{NodeId, Ownership};

    use super::*;

    /// Found by the simulator (cluster of nine, seed 21).
    #[test]
    fn slots_that_are_served_were_imported_whatever_became_of_the_job() {
        let engine = Engine::of_sentinel(acl::Catalogue::default(), 1);
        let slot = |number| Slot::new(number).unwrap();
        let import = Establish {
            source: NodeId::from_random([1; 20]),
            name: JobName::from_random([2; 20]),
            ranges: vec![(slot(3), slot(4))],
            resumable: false,
        };
        let failed = Err("A failover occurred".to_owned());
        let said = |outcome: &Result<(), String>| {
            let command = ended(&engine, &import, outcome);
            let text = String::from_utf8_lossy(&command).into_owned();
            let words: Vec<&str> = text.split("\r\n").skip(2).step_by(2).collect();
            let request: Request = words.iter().map(|word| word.as_bytes()).collect();
            let (imports, replica) = (Imports::default(), Engine::of_sentinel(acl::Catalogue::default(), 1));
            imports.begin(&replica, import.clone());
            match imports.on_stream(&replica, request.args()) {
                Some(Told::Ended(end)) => end.is_success,
                other => unreachable!("{other:?}"),
            }
        };
        engine.set_ownership(slot(3), Ownership::Elsewhere);
        engine.set_ownership(slot(4), Ownership::Elsewhere);
        assert!(!said(&failed));
        assert!(said(&Ok(())));
        engine.set_ownership(slot(4), Ownership::Mine);
        assert!(said(&failed), "its successor has claimed it");
    }
}

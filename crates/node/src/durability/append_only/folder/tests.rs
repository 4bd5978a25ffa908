//! Errors at every operation with the files, as the machine has them done.

use std::cell::RefCell;
use std::time::Duration;

use append_only::{AppendOnly, Effect, Input, LogEnd, Operation, Policy, RewriteId, Settings, Standing};
use clock::{Instant, Millis};
use replication::{Position, ReplId};
use slot_routing::ReplOffset;
use tempfile::TempDir;

use super::*;

/// Which operations fail, and how many were done.
#[derive(Debug, Default)]
struct Faults {
    done: usize,
    first: usize,
    count: usize,
    /// Whether an operation that fails has been done all the same.
    late: bool,
}

thread_local! {
    static FAULTS: RefCell<Option<Faults>> = const { RefCell::new(None) };
}

/// Does the work, unless it is this one's turn to fail.
pub(super) fn faulty<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let (fails, late) = FAULTS.with_borrow_mut(|faults| {
        let Some(faults) = faults else { return (false, false) };
        faults.done += 1;
        (faults.done >= faults.first && faults.done < faults.first + faults.count, faults.late)
    });
    match (fails, late) {
        (false, _) => work(),
        (true, false) => Err(io::Error::other("injected")),
        (true, true) => work().and(Err(io::Error::other("injected"))),
    }
}

fn folder(path: &Path) -> Folder {
    Folder { path: path.to_owned(), name: "appendonly.aof".to_owned() }
}

/// The data that a server which starts now would load, without annotations: from a copy, since it tidies up.
fn loaded(path: &Path) -> Option<String> {
    let faults = FAULTS.take();
    let copy = TempDir::new().unwrap();
    for file in std::fs::read_dir(path).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    let folder = folder(copy.path());
    let manifest = folder.find().unwrap();
    let read = |(path, _): (PathBuf, bool)| std::fs::read_to_string(path).unwrap();
    let text: Option<String> =
        manifest.map(|manifest| folder.to_load(&manifest).into_iter().map(read).collect());
    FAULTS.set(faults);
    text.map(|text| text.split_inclusive("\r\n").filter(|line| !line.starts_with('#')).collect())
}

/// A server and what it has acknowledged. Data is a text that grows, and the log is that text, too.
struct Story {
    path: TempDir,
    hands: Hands,
    machine: AppendOnly,
    now: Instant,
    log: String,
    acknowledged: usize,
    rewrite: RewriteId,
    base: Option<tempfile::NamedTempFile>,
    rewritten: Option<bool>,
}

impl Story {
    fn new() -> Self {
        let path = TempDir::new().unwrap();
        let settings =
            Settings { policy: Policy::Always, name: "appendonly.aof".to_owned(), ..Settings::default() };
        let now = Instant::from_millis(1);
        let machine = AppendOnly::fresh(settings, Manifest::default(), now);
        let hands = Hands { folder: folder(path.path()), file: None };
        let (log, rewrite) = (String::new(), RewriteId(0));
        Self { path, hands, machine, now, log, acknowledged: 0, rewrite, base: None, rewritten: None }
    }

    /// At any moment the machine may lose its power: what was acknowledged is loaded then, once and in order.
    fn check(&self) {
        if self.machine.standing() == Standing::Whole {
            let found = loaded(self.path.path()).unwrap();
            assert!(self.log.starts_with(&found), "{found:?} of {:?}", self.log);
            assert!(found.len() >= self.acknowledged, "{found:?}, {} acknowledged", self.acknowledged);
        }
    }

    fn end(&self) -> Position {
        Position { id: ReplId::from_random([7; 20]), offset: ReplOffset(self.log.len() as u64) }
    }

    fn tell(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.machine.handle(input, &mut effects);
        self.take(effects);
    }

    fn done(&mut self, outcome: Result<(), Failure>) {
        let mut effects = Vec::new();
        self.machine.done(self.now, outcome, &mut effects);
        self.take(effects);
        self.check();
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Publish(offset) if self.machine.standing() == Standing::Whole => {
                    self.acknowledged = self.acknowledged.max(offset.0 as usize);
                }
                Effect::Rewritten { rewrite, outcome } if rewrite == self.rewrite => {
                    self.rewritten = Some(outcome.is_ok());
                    if outcome.is_ok_and(|history| self.hands.folder.delete(&history)) {
                        self.machine.handle(Input::HistoryDeleted, &mut Vec::new());
                    }
                }
                _ => {}
            }
        }
    }

    /// The writer works until it has nothing to do.
    fn settle(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            self.now += Duration::from_secs(2);
            self.tell(Input::LogGrew(LogEnd { end: self.end(), second: None, wall: Millis(0) }));
            let Some(operation) = self.machine.next_operation(self.now) else {
                idle += 1;
                continue;
            };
            idle = 0;
            let mut bytes = Vec::new();
            if let Operation::Write { head, from, len } = &operation {
                bytes.clone_from(head);
                bytes.extend_from_slice(&self.log.as_bytes()[from.0 as usize..(from.0 + len) as usize]);
            }
            let base = if matches!(operation, Operation::PutBase { .. }) { self.base.take() } else { None };
            let outcome = self.hands.carry_out(operation, &bytes, base);
            self.done(outcome);
        }
    }

    fn write(&mut self, text: &str) {
        self.log += text;
        self.settle();
    }

    /// A rewrite. Writes made `meanwhile` are in the increment behind the new base. Says whether it worked.
    fn rewrite(&mut self, meanwhile: &str) -> bool {
        self.rewrite.0 += 1;
        self.rewritten = None;
        let (rewrite, cut) = (self.rewrite, self.log.clone());
        self.tell(Input::Cut { rewrite, at: self.end(), db: None });
        self.write(meanwhile);
        let base = self.hands.folder.temporary_base().and_then(|mut base| {
            op(|| base.write_all(cut.as_bytes()))?;
            op(|| base.as_file().sync_all())?;
            Ok(base)
        });
        match base {
            Ok(base) => {
                self.base = Some(base);
                self.tell(Input::BaseReady { rewrite, rdb: true });
            }
            Err(_) => self.tell(Input::RewriteFailed(rewrite)),
        }
        self.settle();
        self.rewritten == Some(true)
    }
}

/// Switches the file on, writes, and rewrites until three rewrites have worked; gives the number of operations.
fn run(faults: Faults) -> usize {
    let what = format!("{faults:?}");
    FAULTS.set(Some(faults));
    let mut story = Story::new();
    let (mut number, mut done) = (0, 0);
    while done < 3 {
        number += 1;
        assert!(number < 50, "{what}: errors end");
        done += usize::from(story.rewrite(&format!("[during {number}]\r\n")));
        story.write(&format!("[after {number}]\r\n"));
    }
    let faults = FAULTS.take().expect("set above");
    assert_eq!(loaded(story.path.path()).as_ref(), Some(&story.log), "{what}");
    assert_eq!(story.acknowledged, story.log.len(), "{what}");
    let left = std::fs::read_dir(story.path.path()).unwrap().count();
    // A base whose manifest could not be written, or a file that could not be deleted, may be left until the next
    // start.
    assert!(left <= 3 + 2 * faults.count, "{what}: {left} files");
    faults.done
}

#[test]
fn an_error_at_any_operation_leaves_files_that_are_the_data() {
    let operations = run(Faults::default());
    assert!(operations > 20, "{operations}");
    for first in 1..=operations + 3 {
        for count in [1, 2, 5] {
            for late in [false, true] {
                run(Faults { done: 0, first, count, late });
            }
        }
    }
}

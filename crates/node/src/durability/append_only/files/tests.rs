//! Errors at every operation with the manifest and the bases.

use std::cell::RefCell;

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

fn files(folder: &Path) -> Files {
    let (folder, name) = (folder.to_owned(), "appendonly.aof".to_owned());
    Files { folder, name, manifest: Manifest::default(), whole: false }
}

/// What a server that starts now would load: from a copy, since it tidies up.
fn loaded(folder: &Path) -> Option<String> {
    let faults = FAULTS.take();
    let copy = TempDir::new().unwrap();
    for file in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    let found = files(copy.path()).found().unwrap();
    let read = |(path, _): (PathBuf, bool)| std::fs::read_to_string(path).unwrap();
    let text = found.map(|files| files.to_load().into_iter().map(read).collect());
    FAULTS.set(faults);
    text
}

/// A server and what it has acknowledged. Data is a text that grows.
struct Story {
    folder: TempDir,
    files: Files,
    data: String,
    increment: Option<(String, File)>,
}

impl Story {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let files = files(folder.path());
        Self { folder, files, data: String::new(), increment: None }
    }

    /// At any moment the machine may lose its power: what was acknowledged is loaded then, once and in order.
    fn check(&self) {
        if self.files.is_whole() {
            assert_eq!(loaded(self.folder.path()).as_deref(), Some(self.data.as_str()));
        }
    }

    /// Clients write.
    fn write(&mut self, text: &str) {
        let (_, file) = self.increment.as_mut().expect("it was begun");
        file.write_all(text.as_bytes()).unwrap();
        self.data += text;
        self.check();
    }

    /// As the writer does it at a cut: until it works.
    fn switch(&mut self) {
        for _ in 0..100 {
            let begun = self.files.begin_increment();
            self.check();
            if let Ok(begun) = begun {
                return self.increment = Some(begun);
            }
        }
        panic!("errors end");
    }

    /// A rewrite: what is written while the base is made is in the increment behind it.
    fn rewrite(&mut self, meanwhile: &str) -> io::Result<()> {
        let cut = self.data.clone();
        self.switch();
        self.write(meanwhile);
        let mut base = self.files.temporary_base()?;
        self.check();
        op(|| base.write_all(cut.as_bytes()))?;
        op(|| base.as_file().sync_all())?;
        let first = self.increment.as_ref().expect("it was begun").0.clone();
        let put = self.files.put_base(base, true, &first);
        self.check();
        put
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
        done += usize::from(story.rewrite(&format!("[during {number}]")).is_ok());
        story.write(&format!("[after {number}]"));
    }
    let faults = FAULTS.take().expect("set above");
    assert_eq!(loaded(story.folder.path()), Some(story.data), "{what}");
    let left = std::fs::read_dir(story.folder.path()).unwrap().count();
    // A base whose manifest could not be written, or a file that could not be deleted, may be left until the next start.
    assert!(left <= 3 + faults.count, "{what}: {left} files");
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

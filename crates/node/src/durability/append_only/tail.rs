//! The end of a file that grows: what of it is whole, and what is on the disk.
//!
//! An error may leave anything behind what was whole: half of a write, or pages that the system could not bring to the
//! disk, has forgotten, and would call written the next time. So after an error the file is cut back, to what was written
//! or to what was synced, before anything else is done with it; until that has worked nothing is written. Whoever writes
//! gets the error and writes again what is no longer there.

use std::fs::File;
use std::io::{self, Write};

/// What a file can do.
pub(super) trait Medium: Write {
    /// Cuts it off behind so many bytes.
    fn cut(&mut self, len: u64) -> io::Result<()>;
    /// Brings it to the disk.
    fn sync(&mut self) -> io::Result<()>;
}

impl Medium for File {
    fn cut(&mut self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// A file that is appended to.
#[derive(Debug)]
pub(super) struct Tail<F> {
    file: F,
    written: u64,
    synced: u64,
    /// Whether there may be something behind `written`.
    torn: bool,
}

impl<F: Medium> Tail<F> {
    /// Of a file that has so many bytes, all of them on the disk.
    pub(super) fn new(file: F, len: u64) -> Self {
        Self { file, written: len, synced: len, torn: false }
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Whether all that was written is on the disk.
    pub(super) fn is_synced(&self) -> bool {
        self.synced == self.written
    }

    /// Whether nothing of it is on the disk.
    pub(super) fn is_new(&self) -> bool {
        self.synced == 0
    }

    /// Writes all of it, or nothing.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.mend()?;
        // Until all of it is there.
        self.torn = true;
        if let Err(error) = self.file.write_all(bytes) {
            let _ = self.mend();
            return Err(error);
        }
        self.torn = false;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Brings all of it to the disk. After an error it ends where it was synced last.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.mend()?;
        if let Err(error) = self.file.sync() {
            self.written = self.synced;
            self.torn = true;
            let _ = self.mend();
            return Err(error);
        }
        self.synced = self.written;
        Ok(())
    }

    fn mend(&mut self) -> io::Result<()> {
        if self.torn {
            self.file.cut(self.written)?;
            self.torn = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::rc::Rc;

    use super::*;

    /// A file and the disk beneath it. Operations are counted, and some of them fail.
    #[derive(Debug, Default)]
    struct Disk {
        /// What a reader sees, and for each byte whether a sync would still write it.
        seen: Vec<(u8, bool)>,
        durable: Vec<u8>,
        done: usize,
        failing: BTreeSet<usize>,
    }

    #[derive(Debug, Clone, Default)]
    struct Faulty(Rc<RefCell<Disk>>);

    impl Disk {
        /// Counts an operation; says whether it works.
        fn works(&mut self) -> io::Result<()> {
            self.done += 1;
            if self.failing.contains(&self.done) { Err(io::Error::other("injected")) } else { Ok(()) }
        }
    }

    impl Write for Faulty {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.0.borrow_mut();
            let works = disk.works();
            // What fails has done a part.
            let len = if works.is_ok() { bytes.len() } else { bytes.len() / 2 };
            disk.seen.extend(bytes[..len].iter().map(|byte| (*byte, true)));
            works.map(|()| len)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Medium for Faulty {
        fn cut(&mut self, len: u64) -> io::Result<()> {
            let mut disk = self.0.borrow_mut();
            disk.works()?;
            disk.seen.truncate(len as usize);
            disk.durable.truncate(len as usize);
            Ok(())
        }

        fn sync(&mut self) -> io::Result<()> {
            let mut disk = self.0.borrow_mut();
            let works = disk.works();
            let Disk { seen, durable, .. } = &mut *disk;
            for (at, (byte, dirty)) in seen.iter_mut().enumerate() {
                if at >= durable.len() {
                    // What was forgotten is whatever the disk had there.
                    durable.push(0);
                }
                if std::mem::take(dirty) && works.is_ok() {
                    durable[at] = *byte;
                }
            }
            works
        }
    }

    fn command(number: usize) -> Vec<u8> {
        let mut command = Vec::new();
        resp::encode_request(&mut command, [&b"SET"[..], b"key", number.to_string().as_bytes()]);
        command
    }

    /// Appends commands under `always`, as the writer does: what failed is done again. After each step the machine may
    /// lose its power, and what was acknowledged must be on the disk.
    fn run(failing: &BTreeSet<usize>, commands: usize) -> usize {
        let disk = Faulty::default();
        disk.0.borrow_mut().failing = failing.clone();
        let log: Vec<u8> = (0..commands).flat_map(command).collect();
        let mut tail = Tail::new(disk.clone(), 0);
        let mut acknowledged = 0;
        for _ in 0..commands * 4 {
            let next = command((tail.written() as usize).min(log.len()) / command(0).len());
            if (tail.written() as usize) < log.len() {
                let _ = tail.append(&next);
            }
            if tail.sync().is_ok() {
                acknowledged = acknowledged.max(tail.written());
            }
            let durable = disk.0.borrow().durable.clone();
            let found = persistence::aof::check(durable.as_slice(), None).unwrap();
            assert!(found.whole >= acknowledged, "{failing:?}: {} of {acknowledged}", found.whole);
            let whole = found.whole.min(log.len() as u64) as usize;
            assert_eq!(durable[..whole].escape_ascii().to_string(), log[..whole].escape_ascii().to_string());
        }
        assert_eq!(acknowledged, log.len() as u64, "{failing:?}: all of it in the end");
        assert_eq!(disk.0.borrow().durable, log, "{failing:?}");
        disk.0.borrow().done
    }

    #[test]
    fn an_error_at_any_operation_loses_nothing_that_was_acknowledged() {
        const COMMANDS: usize = 8;
        let operations = run(&BTreeSet::new(), COMMANDS);
        for first in 1..=operations + 6 {
            run(&[first].into(), COMMANDS);
            for second in first + 1..first + 8 {
                run(&[first, second].into(), COMMANDS);
                run(&(first..second).collect(), COMMANDS);
                run(&[first, second, second + 1].into(), COMMANDS);
            }
        }
    }
}

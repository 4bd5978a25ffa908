//! The thread that writes the append-only file: a cursor of the log, so nothing is encoded for it.
//!
//! A round takes what the log has behind the last one, writes it, and syncs as `appendfsync` says: `always` before the
//! commit point moves, one sync for all that came meanwhile; `everysec` once a second; `no` never. What is written but
//! not synced is still in the log behind the writer's anchor: a sync that fails may have lost it, so the file is cut
//! back to what was synced last and written again.
//!
//! The bytes are those of the log. Where the file begins, and where the history takes another name, an annotation says
//! the place in it: so a restarted node knows how far it is, also one that was killed.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clock::Instant;
use persistence::aof::Place;
use replication::{CursorId, ReplId};
use slot_routing::ReplOffset;

use super::tail::Tail;
use super::{AppendOnly, Policy, Switch};
use crate::process::time;

/// At most so much is written at once.
const PIECE: usize = 4 << 20;
/// How often `everysec` syncs.
const SYNC_PERIOD: Duration = Duration::from_secs(1);
/// So long it rests between rounds where nobody waits for it: what comes meanwhile is written together.
const REST: Duration = Duration::from_millis(1);
/// After an error it tries again so often.
const RETRY: Duration = Duration::from_secs(1);

/// An increment that is written to.
#[derive(Debug)]
struct Open {
    tail: Tail<File>,
    /// What it begins with, if it was begun here.
    head: Vec<u8>,
}

/// A place in the log, as the file has it.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at: ReplOffset,
    /// The name of the history there; `None` if the file does not say it.
    history: Option<ReplId>,
    /// Whether a command ends there.
    whole: bool,
}

/// The cursors, and what they stand for.
#[derive(Debug)]
struct Reading {
    cursor: CursorId,
    /// At what was synced last.
    anchor: CursorId,
    /// Where what is written, or taken to be written next, ends.
    taken: Mark,
    synced: Mark,
}

#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<AppendOnly>,
    open: Option<Open>,
    reading: Option<Reading>,
    /// Taken from the log and not yet written.
    buffer: Vec<u8>,
    last_sync: Instant,
    last_stamp: i64,
}

/// What to do before the next round.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Now,
    /// After a moment in which more may come.
    Rest,
    /// When the log has grown, something is asked, or the time for a sync has come.
    Wait,
    Retry,
    Stop,
}

impl Writer {
    /// Goes on with `file`, or waits for a place to begin at.
    pub(super) fn new(shared: Arc<AppendOnly>, file: Option<File>) -> io::Result<Self> {
        let mut open = None;
        if let Some(file) = file {
            let len = file.metadata()?.len();
            open = Some(Open { tail: Tail::new(file, len), head: Vec::new() });
        }
        let reading = open.is_some().then(|| Reading::begin(&shared));
        Ok(Self { shared, open, reading, buffer: Vec::new(), last_sync: time::instant(), last_stamp: 0 })
    }

    /// Runs until the file is switched off.
    pub(super) fn run(mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a thread that cannot get its event loop cannot write the file");
        runtime.block_on(async {
            loop {
                let sleep = self.shared.flush_sleep.load(Ordering::Relaxed);
                if sleep > 0 {
                    tokio::time::sleep(Duration::from_micros(sleep)).await;
                }
                match self.round() {
                    Next::Now => {}
                    Next::Rest => tokio::time::sleep(REST).await,
                    Next::Retry => {
                        let _ = tokio::time::timeout(RETRY, self.shared.asked.notified()).await;
                    }
                    Next::Wait => self.wait().await,
                    Next::Stop => break,
                }
            }
        });
        if let Some(reading) = self.reading.take() {
            reading.end(&self.shared);
        }
    }

    async fn wait(&self) {
        let sync_due = self.open.as_ref().is_some_and(|open| !open.tail.is_synced())
            && self.shared.policy() == Policy::EverySecond;
        let left =
            if sync_due { (self.last_sync + SYNC_PERIOD).since(time::instant()) } else { Duration::MAX };
        let log = &self.shared.log;
        let at = self.reading.as_ref().map(|reading| reading.taken.at);
        let grown = log.when_grown(|| {
            let grown = at.is_some_and(|at| log.lock().position().offset != at);
            (grown || self.shared.is_switch_pending()).then_some(())
        });
        tokio::select! {
            () = grown => {}
            () = self.shared.asked.notified() => {}
            () = tokio::time::sleep(left.min(SYNC_PERIOD)) => {}
        }
    }

    fn round(&mut self) -> Next {
        let stop = self.shared.is_stopping();
        match self.try_round(stop) {
            Ok(next) => {
                self.shared.report(None);
                if stop && next == Next::Wait { Next::Stop } else { next }
            }
            Err(error) => {
                self.shared.report(Some(&error));
                if stop { Next::Stop } else { Next::Retry }
            }
        }
    }

    fn try_round(&mut self, hurry: bool) -> io::Result<Next> {
        let took = self.buffer.is_empty() && self.take();
        self.write()?;
        self.sync_if_due(hurry)?;
        self.publish();
        if self.switch()? {
            return Ok(Next::Now);
        }
        Ok(match (took, hurry || self.shared.policy() == Policy::Always) {
            (false, _) => Next::Wait,
            (true, true) => Next::Now,
            (true, false) => Next::Rest,
        })
    }

    /// Takes what the log has, up to where another increment begins; says whether there was anything.
    fn take(&mut self) -> bool {
        let Some(reading) = &mut self.reading else { return false };
        let mut log = self.shared.log.lock();
        let now = log.position();
        let mut end = now.offset;
        if let Some(switch) = &*self.shared.switch.lock() {
            end = end.min(switch.at);
        }
        let mark = &mut reading.taken;
        if mark.history != Some(now.id) {
            match log.second().filter(|second| Some(second.id) == mark.history) {
                Some(second) if second.offset > mark.at => end = end.min(second.offset),
                _ if mark.whole => {
                    let place = Place { history: now.id.to_string(), offset: mark.at.0 };
                    self.buffer.extend_from_slice(place.to_string().as_bytes());
                    mark.history = Some(now.id);
                }
                _ => {}
            }
        }
        let wanted = usize::try_from(end.0.saturating_sub(mark.at.0)).unwrap_or(PIECE).min(PIECE);
        let before = self.buffer.len();
        if log.read(reading.cursor, wanted, &mut self.buffer).is_err() {
            drop(log);
            self.lose();
            return false;
        }
        let taken = self.buffer.len() - before;
        let began_whole = std::mem::replace(&mut mark.whole, mark.at.0 + taken as u64 == end.0);
        mark.at.0 += taken as u64;
        drop(log);
        if taken > 0 && began_whole && self.shared.stamps() {
            self.stamp(before);
        }
        taken > 0
    }

    /// Says when what was taken behind `before` was done, once a second.
    fn stamp(&mut self, before: usize) {
        let now = time::now().secs();
        if now != self.last_stamp {
            self.last_stamp = now;
            let stamp = format!("#TS:{now}\r\n");
            self.buffer.splice(before..before, stamp.into_bytes());
        }
    }

    /// The log no longer has what is to be written, or has become that of another history: another base is needed.
    fn lose(&mut self) {
        if let Some(reading) = self.reading.take() {
            reading.end(&self.shared);
        }
        self.buffer.clear();
        self.shared.lose();
    }

    fn write(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else {
            self.buffer.clear();
            return Ok(());
        };
        if self.buffer.is_empty() {
            return Ok(());
        }
        open.tail.append(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    fn sync_if_due(&mut self, hurry: bool) -> io::Result<()> {
        let Some(open) = &self.open else { return Ok(()) };
        let due = match self.shared.policy() {
            _ if open.tail.is_synced() => false,
            _ if hurry => true,
            Policy::Always => true,
            Policy::EverySecond => {
                time::instant().since(self.last_sync) >= SYNC_PERIOD && !self.shared.spares_the_disk()
            }
            Policy::Never => false,
        };
        if due { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        let (Some(open), Some(reading)) = (&mut self.open, &mut self.reading) else { return Ok(()) };
        self.last_sync = time::instant();
        if let Err(error) = open.tail.sync() {
            self.shared.log.lock().move_cursor(reading.cursor, reading.synced.at);
            reading.taken = reading.synced;
            if open.tail.is_new() {
                self.buffer.clone_from(&open.head);
            }
            return Err(error);
        }
        reading.synced = reading.taken;
        self.shared.log.lock().move_cursor(reading.anchor, reading.synced.at);
        Ok(())
    }

    /// Tells how far the file is.
    fn publish(&self) {
        let Some(reading) = &self.reading else { return };
        let size = self.open.as_ref().map_or(0, |open| open.tail.written());
        self.shared.publish(reading.taken.at, reading.synced.at, size);
    }

    /// Goes on in another increment, if it is time; says whether it was.
    fn switch(&mut self) -> io::Result<bool> {
        let reached = {
            let switch = self.shared.switch.lock();
            let at = self.reading.as_ref().map(|reading| reading.taken.at);
            switch.as_ref().is_some_and(|switch| at.is_none_or(|at| at >= switch.at))
                && self.buffer.is_empty()
        };
        if !reached {
            return Ok(false);
        }
        self.sync()?;
        let (name, file) = self.shared.begin_increment(self.reading.is_some())?;
        let taken = self.shared.switch.lock().take();
        let Switch { at, history, cursor, anchor, db } =
            taken.expect("it was there, and only this thread takes it");
        let mut head = Vec::new();
        if let Some(db) = db {
            resp::encode_request(&mut head, [&b"SELECT"[..], db.to_string().as_bytes()]);
        }
        head.extend_from_slice(Place { history: history.to_string(), offset: at.0 }.to_string().as_bytes());
        if let Some(reading) = self.reading.take() {
            reading.end(&self.shared);
        }
        let mark = Mark { at, history: Some(history), whole: true };
        self.reading = Some(Reading { cursor, anchor, taken: mark, synced: mark });
        // Written with the next round, and again if that fails.
        self.buffer.clone_from(&head);
        self.open = Some(Open { tail: Tail::new(file, 0), head });
        self.shared.switched(name);
        Ok(true)
    }
}

impl Reading {
    /// From where the log stands now.
    fn begin(shared: &AppendOnly) -> Self {
        let mut log = shared.log.lock();
        let at = log.position().offset;
        let (cursor, anchor) = (log.add_own_cursor(at), log.add_own_cursor(at));
        let mark = Mark { at, history: None, whole: true };
        Self { cursor, anchor, taken: mark, synced: mark }
    }

    fn end(self, shared: &AppendOnly) {
        let mut log = shared.log.lock();
        log.remove_cursor(self.cursor);
        log.remove_cursor(self.anchor);
    }
}

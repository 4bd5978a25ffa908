//! The save that is under way, how the last ones went, and when the next is due. It decides and does nothing: its time
//! is told to it.

use std::time::Duration;

use clock::Instant;
use config::SavePoint;

/// After a save that failed, a save point waits so long before it tries again, as in Redis.
const RETRY: Duration = Duration::from_secs(5);

/// A save that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Running {
    pub(super) since: Instant,
    /// No caller waits for it.
    pub(super) background: bool,
}

/// How a save ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The file has all up to this count of changes.
    Saved {
        changes: u64,
    },
    Failed,
    /// Nobody wanted it any more: how the last one went still holds.
    CalledOff,
}

/// The state of the server that a save may be due for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'p> {
    pub(super) points: &'p [SavePoint],
    /// Data is being loaded.
    pub(super) loads: bool,
    /// How many changes there were in all.
    pub(super) changes: u64,
    /// How often all data was deleted.
    pub(super) flushes: u64,
}

/// Why a save is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// All data was deleted: the file is to have it no longer.
    Flush,
    Point(SavePoint),
}

/// The saves of a server.
#[derive(Debug)]
pub(super) struct Saves {
    running: Option<Running>,
    /// Wall clock of the last save that succeeded, or of the start, in seconds.
    last_save: i64,
    last_ok: bool,
    last_try: Option<Instant>,
    /// How long the last background save took.
    last_took: Option<Duration>,
    /// The changes that are in the file.
    changes_saved: u64,
    count: u64,
    /// How often all data had been deleted at the last look.
    flushes: u64,
}

impl Saves {
    /// None so far: the server starts at this wall clock, in seconds.
    pub(super) fn new(secs: i64) -> Self {
        Self {
            running: None,
            last_save: secs,
            last_ok: true,
            last_try: None,
            last_took: None,
            changes_saved: 0,
            count: 0,
            flushes: 0,
        }
    }

    pub(super) fn running(&self) -> Option<Running> {
        self.running
    }

    pub(super) fn last_save(&self) -> i64 {
        self.last_save
    }

    /// Whether the last save succeeded.
    pub(super) fn last_ok(&self) -> bool {
        self.last_ok
    }

    pub(super) fn last_took(&self) -> Option<Duration> {
        self.last_took
    }

    /// Counts from nought.
    pub(super) fn reset_count(&mut self) {
        self.count = 0;
    }

    /// How many succeeded.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// How many of so many changes are in no file.
    pub(super) fn unsaved(&self, changes: u64) -> u64 {
        changes.saturating_sub(self.changes_saved)
    }

    /// A save begins, if none is under way; says whether it does.
    pub(super) fn begin(&mut self, now: Instant, background: bool) -> bool {
        if self.running.is_some() {
            return false;
        }
        self.running = Some(Running { since: now, background });
        self.last_try = Some(now);
        true
    }

    /// It could not begin after all.
    pub(super) fn take_back(&mut self) {
        self.running = None;
    }

    /// It has ended, at this wall clock in seconds.
    pub(super) fn end(&mut self, now: Instant, secs: i64, how: Ended) {
        if let Some(running) = self.running.take()
            && running.background
        {
            self.last_took = Some(now.since(running.since));
        }
        match how {
            Ended::Saved { changes } => {
                self.last_save = secs;
                self.count += 1;
                self.kept(changes);
            }
            Ended::Failed => self.last_ok = false,
            Ended::CalledOff => {}
        }
    }

    /// A full synchronisation is shown as a save, and has taken so long.
    pub(super) fn transferred(&mut self, took: Duration) {
        self.last_took = Some(took);
    }

    /// A file that was not saved here has all up to this count of changes.
    pub(super) fn kept(&mut self, changes: u64) {
        self.changes_saved = changes;
        self.last_ok = true;
    }

    /// All data has been deleted so often before the first look: by a load, which no save is due for.
    pub(super) fn start(&mut self, flushes: u64) {
        self.flushes = flushes;
    }

    /// Looks whether a save is due.
    pub(super) fn look(&mut self, now: Instant, secs: i64, facts: Facts<'_>) -> Option<Due> {
        let was_flushed = std::mem::replace(&mut self.flushes, facts.flushes) != facts.flushes;
        if facts.points.is_empty() {
            return None;
        }
        if was_flushed {
            return Some(Due::Flush);
        }
        let is_too_soon = !self.last_ok && self.last_try.is_some_and(|at| now.since(at) < RETRY);
        if facts.loads || self.running.is_some() || is_too_soon {
            return None;
        }
        let changes = self.unsaved(facts.changes);
        let since = u64::try_from(secs - self.last_save).unwrap_or(0);
        let reached = |point: &SavePoint| changes >= point.changes && since > point.after.as_secs();
        facts.points.iter().copied().find(reached).map(Due::Point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTS: [SavePoint; 2] = [
        SavePoint { after: Duration::from_secs(100), changes: 1 },
        SavePoint { after: Duration::from_secs(10), changes: 50 },
    ];

    fn at(secs: u64) -> Instant {
        Instant::from_micros(secs * 1_000_000)
    }

    fn facts(changes: u64) -> Facts<'static> {
        Facts { points: &POINTS, loads: false, changes, flushes: 0 }
    }

    fn look(saves: &mut Saves, secs: u64, facts: Facts<'_>) -> Option<Due> {
        saves.look(at(secs), secs as i64, facts)
    }

    #[test]
    fn a_save_is_due_when_there_are_so_many_changes_after_so_long() {
        let mut saves = Saves::new(0);
        // A time, how many changes there are, and which point is reached.
        let table = [
            (10, 50, None),
            (11, 49, None),
            (11, 50, Some(1)),
            (100, 1, None),
            (101, 1, Some(0)),
            (999, 0, None),
        ];
        for (secs, changes, point) in table {
            let due = look(&mut saves, secs, facts(changes));
            assert_eq!(due, point.map(|point: usize| Due::Point(POINTS[point])), "{changes} at {secs}");
        }
        assert_eq!(look(&mut saves, 101, Facts { loads: true, ..facts(1) }), None);
        assert_eq!(look(&mut saves, 101, Facts { points: &[], ..facts(1) }), None);
    }

    #[test]
    fn one_save_runs_at_a_time_and_counts_from_its_cut() {
        let mut saves = Saves::new(0);
        assert!(saves.begin(at(20), true));
        assert!(!saves.begin(at(20), false));
        assert_eq!(look(&mut saves, 200, facts(70)), None, "one is under way");
        saves.end(at(23), 23, Ended::Saved { changes: 60 });
        assert_eq!(
            (saves.running(), saves.last_took(), saves.count()),
            (None, Some(Duration::from_secs(3)), 1)
        );
        assert_eq!((saves.last_save(), saves.unsaved(70)), (23, 10));
        assert_eq!(look(&mut saves, 34, facts(109)), None);
        assert_eq!(look(&mut saves, 34, facts(110)), Some(Due::Point(POINTS[1])));
        // One that a client waits for is not what INFO tells the time of.
        assert!(saves.begin(at(40), false));
        saves.end(at(49), 49, Ended::Saved { changes: 110 });
        assert_eq!(saves.last_took(), Some(Duration::from_secs(3)));
    }

    #[test]
    fn a_save_that_failed_is_tried_again_after_some_time() {
        let mut saves = Saves::new(0);
        saves.begin(at(200), true);
        saves.end(at(201), 201, Ended::Failed);
        assert!(!saves.last_ok());
        assert_eq!(look(&mut saves, 204, facts(1)), None);
        assert_eq!(look(&mut saves, 205, facts(1)), Some(Due::Point(POINTS[0])));
        // One that is called off says nothing of the disk.
        saves.begin(at(205), true);
        saves.end(at(206), 206, Ended::CalledOff);
        assert!(!saves.last_ok() && saves.last_save() == 0);
        saves.kept(1);
        assert!(saves.last_ok());
        assert_eq!(look(&mut saves, 999, facts(1)), None);
    }

    #[test]
    fn data_that_was_deleted_does_not_stay_in_the_file() {
        let mut saves = Saves::new(0);
        let flushed = |flushes| Facts { flushes, ..facts(0) };
        saves.start(5);
        assert_eq!(look(&mut saves, 1, flushed(6)), Some(Due::Flush));
        assert_eq!(look(&mut saves, 1, flushed(6)), None);
        // The one that is under way is called off by that.
        saves.begin(at(1), true);
        assert_eq!(look(&mut saves, 2, flushed(7)), Some(Due::Flush));
        assert_eq!(look(&mut saves, 3, Facts { points: &[], ..flushed(8) }), None);
        assert_eq!(look(&mut saves, 4, flushed(8)), None);
    }
}

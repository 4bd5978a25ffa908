//! Tracks RDB saves: the running one, past results, and when the next is due. Has no side effects, and gets the time as
//! a parameter.

use std::time::Duration;

use clock::Instant;
use config::SavePoint;

/// Delay before a save point retries a failed save, as in Redis.
const RETRY: Duration = Duration::from_secs(5);

/// A running save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Running {
    pub(super) since: Instant,
    /// Whether no caller waits for it.
    pub(super) background: bool,
}

/// The result of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The file contains all changes up to this count.
    Saved {
        changes: u64,
    },
    Failed,
    /// The save was cancelled. The previous result stays valid.
    CalledOff,
}

/// Server state that decides whether a save is due.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'p> {
    pub(super) points: &'p [SavePoint],
    /// Whether data is being loaded.
    pub(super) loads: bool,
    /// Total number of changes.
    pub(super) changes: u64,
    /// Number of times all data was deleted.
    pub(super) flushes: u64,
}

/// Why a save is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// All data was deleted, so the old file must not survive.
    Flush,
    Point(SavePoint),
}

/// All saves of a server.
#[derive(Debug)]
pub(super) struct Saves {
    running: Option<Running>,
    /// Unix time in seconds of the last successful save, or of the start.
    last_save: i64,
    last_ok: bool,
    last_try: Option<Instant>,
    /// Duration of the last background save.
    last_took: Option<Duration>,
    /// Number of changes contained in the file.
    changes_saved: u64,
    count: u64,
    /// Value of [`Facts::flushes`] at the last check.
    flushes: u64,
}

impl Saves {
    /// Creates the state at startup; `secs` is the Unix time.
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

    /// Resets the number of saves.
    pub(super) fn reset_count(&mut self) {
        self.count = 0;
    }

    /// Number of successful saves.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Number of changes not contained in any file.
    pub(super) fn unsaved(&self, changes: u64) -> u64 {
        changes.saturating_sub(self.changes_saved)
    }

    /// Starts a save. Returns `false` if one is already running.
    pub(super) fn begin(&mut self, now: Instant, background: bool) -> bool {
        if self.running.is_some() {
            return false;
        }
        self.running = Some(Running { since: now, background });
        self.last_try = Some(now);
        true
    }

    /// Undoes [`Self::begin`] if the save could not start.
    pub(super) fn take_back(&mut self) {
        self.running = None;
    }

    /// Records the end of a save; `secs` is the Unix time.
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

    /// Records the duration of a full resync, which INFO shows as a save.
    pub(super) fn transferred(&mut self, took: Duration) {
        self.last_took = Some(took);
    }

    /// Records that a file from elsewhere contains all changes up to this count.
    pub(super) fn kept(&mut self, changes: u64) {
        self.changes_saved = changes;
        self.last_ok = true;
    }

    /// Ignores deletions before the first check: they were part of loading.
    pub(super) fn start(&mut self, flushes: u64) {
        self.flushes = flushes;
    }

    /// Checks whether a save is due.
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
        // Time in seconds, number of changes, and the expected save point.
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
        // INFO shows the duration of background saves only.
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
        // A cancelled save says nothing about the disk.
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
        // The deletion cancels the running save.
        saves.begin(at(1), true);
        assert_eq!(look(&mut saves, 2, flushed(7)), Some(Due::Flush));
        assert_eq!(look(&mut saves, 3, Facts { points: &[], ..flushed(8) }), None);
        assert_eq!(look(&mut saves, 4, flushed(8)), None);
    }
}

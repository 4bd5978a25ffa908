//! Tracks RDB saves: the running save, past results, and when the next save is due. This module has no side effects,
//! and gets the time as a parameter.

use std::time::Duration;

use clock::Instant;
use config::SavePoint;

/// Delay before a save point retries a failed save, as in Redis.
const RETRY_DELAY: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunningSave {
    pub(super) started_at: Instant,
    /// Whether the save runs in the background, so that no caller waits for it.
    pub(super) is_background: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SaveResult {
    /// The file contains all changes up to this number.
    Saved {
        changes: u64,
    },
    Failed,
    /// The save was cancelled, so the result of the previous save stays valid.
    Cancelled,
}

/// Server state that decides whether a save is due.
#[derive(Debug, Clone, Copy)]
pub(super) struct SaveConditions<'p> {
    pub(super) save_points: &'p [SavePoint],
    pub(super) is_loading: bool,
    /// Number of changes since the start.
    pub(super) change_count: u64,
    /// How often all data was deleted since the start.
    pub(super) flush_count: u64,
}

/// Why a background save is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SaveReason {
    /// All data was deleted, so the old file must not survive.
    Flush,
    SavePointReached(SavePoint),
}

/// The running save and the history of saves of a server.
#[derive(Debug)]
pub(super) struct SaveTracker {
    running_save: Option<RunningSave>,
    /// Unix time in seconds of the last successful save, or of the start if there was none.
    last_save_secs: i64,
    was_last_successful: bool,
    last_attempt_at: Option<Instant>,
    /// Duration of the last background save. `None` before the first one.
    last_duration: Option<Duration>,
    /// Number of changes that the file contains.
    saved_changes: u64,
    completed_count: u64,
    /// Value of [`SaveConditions::flush_count`] at the last check.
    flush_count: u64,
}

impl SaveTracker {
    /// Creates the state at startup, when `secs` is the Unix time in seconds.
    pub(super) fn new(now_secs: i64) -> Self {
        Self {
            running_save: None,
            last_save_secs: now_secs,
            was_last_successful: true,
            last_attempt_at: None,
            last_duration: None,
            saved_changes: 0,
            completed_count: 0,
            flush_count: 0,
        }
    }

    pub(super) fn running_save(&self) -> Option<RunningSave> {
        self.running_save
    }

    pub(super) fn last_save_secs(&self) -> i64 {
        self.last_save_secs
    }

    pub(super) fn was_last_successful(&self) -> bool {
        self.was_last_successful
    }

    pub(super) fn last_duration(&self) -> Option<Duration> {
        self.last_duration
    }

    pub(super) fn reset_completed_count(&mut self) {
        self.completed_count = 0;
    }

    pub(super) fn completed_count(&self) -> u64 {
        self.completed_count
    }

    /// Returns how many of the first `changes` changes the file does not contain.
    pub(super) fn count_unsaved(&self, changes: u64) -> u64 {
        changes.saturating_sub(self.saved_changes)
    }

    /// Starts a save. Returns `false` if one is already running.
    pub(super) fn start_save(&mut self, now: Instant, is_background: bool) -> bool {
        if self.running_save.is_some() {
            return false;
        }
        self.running_save = Some(RunningSave { started_at: now, is_background });
        self.last_attempt_at = Some(now);
        true
    }

    /// Undoes [`Self::start_save`] after the save could not start.
    pub(super) fn abort_start(&mut self) {
        self.running_save = None;
    }

    /// Records the end of a save. `secs` is the Unix time in seconds.
    pub(super) fn finish_save(&mut self, now: Instant, now_secs: i64, result: SaveResult) {
        if let Some(running) = self.running_save.take()
            && running.is_background
        {
            self.last_duration = Some(now.since(running.started_at));
        }
        match result {
            SaveResult::Saved { changes } => {
                self.last_save_secs = now_secs;
                self.completed_count += 1;
                self.record_saved(changes);
            }
            SaveResult::Failed => self.was_last_successful = false,
            SaveResult::Cancelled => {}
        }
    }

    /// Records the duration of a full resync, which INFO shows as a save.
    pub(super) fn record_transfer(&mut self, duration: Duration) {
        self.last_duration = Some(duration);
    }

    /// Records that a file not written by a save, such as that of a full resync, contains all changes up to this
    /// number.
    pub(super) fn record_saved(&mut self, changes: u64) {
        self.saved_changes = changes;
        self.was_last_successful = true;
    }

    /// Ignores deletions of all data before the first check, because they were part of loading.
    pub(super) fn ignore_flushes(&mut self, flush_count: u64) {
        self.flush_count = flush_count;
    }

    /// Returns why a background save must start now. `None` if no save is due.
    pub(super) fn due_save_reason(
        &mut self,
        now: Instant,
        now_secs: i64,
        conditions: SaveConditions<'_>,
    ) -> Option<SaveReason> {
        let was_flushed =
            std::mem::replace(&mut self.flush_count, conditions.flush_count) != conditions.flush_count;
        if conditions.save_points.is_empty() {
            return None;
        }
        if was_flushed {
            return Some(SaveReason::Flush);
        }
        let is_too_soon =
            !self.was_last_successful && self.last_attempt_at.is_some_and(|at| now.since(at) < RETRY_DELAY);
        if conditions.is_loading || self.running_save.is_some() || is_too_soon {
            return None;
        }
        let changes = self.count_unsaved(conditions.change_count);
        let since = u64::try_from(now_secs - self.last_save_secs).unwrap_or(0);
        let reached = |point: &SavePoint| changes >= point.changes && since > point.interval.as_secs();
        conditions.save_points.iter().copied().find(reached).map(SaveReason::SavePointReached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVE_POINTS: [SavePoint; 2] = [
        SavePoint { interval: Duration::from_secs(100), changes: 1 },
        SavePoint { interval: Duration::from_secs(10), changes: 50 },
    ];

    fn time_at(secs: u64) -> Instant {
        Instant::from_micros(secs * 1_000_000)
    }

    fn save_conditions(changes: u64) -> SaveConditions<'static> {
        SaveConditions { save_points: &SAVE_POINTS, is_loading: false, change_count: changes, flush_count: 0 }
    }

    fn due_save_reason(
        save_tracker: &mut SaveTracker,
        secs: u64,
        conditions: SaveConditions<'_>,
    ) -> Option<SaveReason> {
        save_tracker.due_save_reason(time_at(secs), secs as i64, conditions)
    }

    #[test]
    fn save_points_need_both_changes_and_time() {
        let mut saves = SaveTracker::new(0);
        // Columns: time in seconds, number of changes, the expected save point.
        let table = [
            (10, 50, None),
            (11, 49, None),
            (11, 50, Some(1)),
            (100, 1, None),
            (101, 1, Some(0)),
            (999, 0, None),
        ];
        for (secs, changes, point) in table {
            let due = due_save_reason(&mut saves, secs, save_conditions(changes));
            assert_eq!(
                due,
                point.map(|point: usize| SaveReason::SavePointReached(SAVE_POINTS[point])),
                "{changes} at {secs}"
            );
        }
        assert_eq!(
            due_save_reason(&mut saves, 101, SaveConditions { is_loading: true, ..save_conditions(1) }),
            None
        );
        assert_eq!(
            due_save_reason(&mut saves, 101, SaveConditions { save_points: &[], ..save_conditions(1) }),
            None
        );
    }

    #[test]
    fn one_save_runs_at_a_time_and_counts_changes_up_to_its_snapshot() {
        let mut saves = SaveTracker::new(0);
        assert!(saves.start_save(time_at(20), true));
        assert!(!saves.start_save(time_at(20), false));
        assert_eq!(due_save_reason(&mut saves, 200, save_conditions(70)), None, "one is under way");
        saves.finish_save(time_at(23), 23, SaveResult::Saved { changes: 60 });
        assert_eq!(
            (saves.running_save(), saves.last_duration(), saves.completed_count()),
            (None, Some(Duration::from_secs(3)), 1)
        );
        assert_eq!((saves.last_save_secs(), saves.count_unsaved(70)), (23, 10));
        assert_eq!(due_save_reason(&mut saves, 34, save_conditions(109)), None);
        assert_eq!(
            due_save_reason(&mut saves, 34, save_conditions(110)),
            Some(SaveReason::SavePointReached(SAVE_POINTS[1]))
        );
        // A foreground save does not change the duration, since INFO shows that of background saves only.
        assert!(saves.start_save(time_at(40), false));
        saves.finish_save(time_at(49), 49, SaveResult::Saved { changes: 110 });
        assert_eq!(saves.last_duration(), Some(Duration::from_secs(3)));
    }

    #[test]
    fn failed_saves_are_retried_after_a_delay() {
        let mut saves = SaveTracker::new(0);
        saves.start_save(time_at(200), true);
        saves.finish_save(time_at(201), 201, SaveResult::Failed);
        assert!(!saves.was_last_successful());
        assert_eq!(due_save_reason(&mut saves, 204, save_conditions(1)), None);
        assert_eq!(
            due_save_reason(&mut saves, 205, save_conditions(1)),
            Some(SaveReason::SavePointReached(SAVE_POINTS[0]))
        );
        // A cancelled save says nothing about the disk, so no retry delay applies.
        saves.start_save(time_at(205), true);
        saves.finish_save(time_at(206), 206, SaveResult::Cancelled);
        assert!(!saves.was_last_successful() && saves.last_save_secs() == 0);
        saves.record_saved(1);
        assert!(saves.was_last_successful());
        assert_eq!(due_save_reason(&mut saves, 999, save_conditions(1)), None);
    }

    #[test]
    fn deleting_all_data_triggers_a_save() {
        let mut saves = SaveTracker::new(0);
        let flushed = |flushes| SaveConditions { flush_count: flushes, ..save_conditions(0) };
        saves.ignore_flushes(5);
        assert_eq!(due_save_reason(&mut saves, 1, flushed(6)), Some(SaveReason::Flush));
        assert_eq!(due_save_reason(&mut saves, 1, flushed(6)), None);
        // The deletion cancels the running save.
        saves.start_save(time_at(1), true);
        assert_eq!(due_save_reason(&mut saves, 2, flushed(7)), Some(SaveReason::Flush));
        assert_eq!(due_save_reason(&mut saves, 3, SaveConditions { save_points: &[], ..flushed(8) }), None);
        assert_eq!(due_save_reason(&mut saves, 4, flushed(8)), None);
    }
}
